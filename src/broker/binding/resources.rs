//! Lists and reads resources and prompts of services that are in scope as a whole. They belong to no group and are not
//! frozen, because their source may change during a session.
//!
//! Rules, level and consent apply as for a tool. Rules name them `SERVICE__resources/read` and `SERVICE__prompts/get`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::super::gate::{self, DecisionReason, GateDecision};
use super::super::manage::matches_template;
use super::Binding;
use super::audit::AuditBasis;
use super::permit::ProposedCall;
use crate::ids::ServiceName;
use crate::manifest::{ApprovalLevel, Layer, Transport};
use crate::permissions::{self, Argument, Call, RuleDecision};
use crate::tool::ask::ConsentSubject;
use crate::tool::{AuditKind, AuditSource, AuditVerdict, CallContext, Catalog, ServiceError};

/// Names of resources and prompts in rules, after `SERVICE__`.
const RESOURCES: &str = "resources/read";
const PROMPTS: &str = "prompts/get";

/// The party that requests a resource or a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requester {
    /// The user attached it or typed its command, or Skein reads it for their session. Never asks for consent.
    User,
    /// A model, an external agent or an MCP client.
    Model,
}

/// A resource or a template in MCP's JSON, and its service.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceResource {
    pub service: ServiceName,
    pub value: Value,
    pub template: bool,
}

impl Binding {
    /// Returns whether the service is built in.
    pub fn has_built_in(&self, service: &ServiceName) -> bool {
        let entry = self.request.service(&self.plan, service.as_str());
        entry.is_some_and(|entry| matches!(entry.manifest.transport, Transport::Builtin(_)))
    }

    /// Returns whether a service has resources or may get some.
    pub fn has_resources(&self) -> bool {
        self.whole.iter().any(|(_, seen)| seen.volatile || !seen.resources.is_empty() || !seen.templates.is_empty())
    }

    /// Returns whether a service has prompts or may get some.
    pub fn has_prompts(&self) -> bool {
        self.whole.iter().any(|(_, seen)| seen.volatile || !seen.prompts.is_empty())
    }

    /// Returns the resources and templates of services in scope as a whole.
    pub async fn resources(&self) -> Vec<ServiceResource> {
        self.resources_where(|_| true).await
    }

    /// Returns those of services that `wanted` accepts.
    pub async fn resources_where(&self, wanted: impl Fn(&ServiceName) -> bool) -> Vec<ServiceResource> {
        let mut resources = Vec::new();
        for (service, catalog) in self.current_catalogs(wanted).await {
            let of = |template| {
                let service = service.clone();
                move |value: &Value| ServiceResource { service: service.clone(), value: value.clone(), template }
            };
            resources.extend(catalog.resources.iter().map(of(false)));
            resources.extend(catalog.templates.iter().map(of(true)));
        }
        resources
    }

    /// Returns the prompts of services in scope as a whole, keyed by `service__prompt`.
    pub async fn prompts(&self) -> BTreeMap<String, (ServiceName, Value)> {
        let mut prompts = BTreeMap::new();
        for (service, catalog) in self.current_catalogs(|_| true).await {
            for prompt in &catalog.prompts {
                let name = format!("{service}__{}", prompt["name"].as_str().unwrap_or_default());
                prompts.insert(name, (service.clone(), prompt.clone()));
            }
        }
        prompts
    }

    /// Returns true if a service is in scope as a whole.
    pub fn has_whole(&self, service: &str) -> bool {
        self.whole.iter().any(|(name, _)| name.as_str() == service)
    }

    /// Returns the current catalogs of those services in scope as a whole that `wanted` accepts.
    async fn current_catalogs(&self, wanted: impl Fn(&ServiceName) -> bool) -> Vec<(ServiceName, Arc<Catalog>)> {
        let mut whole: Vec<_> = self.whole.iter().filter(|(name, _)| wanted(name)).cloned().collect();
        for (name, catalog) in &mut whole {
            let Some(service) = self.services.get(name) else { continue };
            if !catalog.volatile {
                // The service may have announced a change.
                *catalog = service.running_catalog().await.unwrap_or_else(|| Arc::clone(catalog));
                continue;
            }
            match service.catalog().await {
                Ok(now) => *catalog = now,
                Err(error) => tracing::warn!(service = %name, %error, "its lists could not be read again"),
            }
        }
        whole
    }

    /// Returns whether a link to `uri` refers to a resource of a bound service. A `file:` or HTTP URI must be listed; a
    /// template is not enough, because any program could open it.
    pub async fn offers_resource(&self, uri: &str) -> bool {
        let common = ["file:", "http:", "https:"].iter().any(|scheme| uri.starts_with(scheme));
        let resources = self.resources().await;
        resources.iter().any(|of| match of.template {
            true => !common && matches_template(&of.value, uri),
            false => of.value["uri"] == json!(uri),
        })
    }

    /// Reads a resource of a service in scope as a whole. Fails if there is none, or rules, level or consent forbid it.
    pub async fn read_resource(
        &self,
        uri: &str,
        requester: Requester,
        context: CallContext,
    ) -> Result<Value, ServiceError> {
        let listed = |of: &&ServiceResource| !of.template && of.value["uri"] == json!(uri);
        let made_from = |of: &&ServiceResource| of.template && matches_template(&of.value, uri);
        let resources = self.resources().await;
        let found = resources.iter().find(listed).or_else(|| resources.iter().find(made_from));
        let service = found.and_then(|of| self.services.get_key_value(&of.service));
        match service {
            Some((name, service)) => {
                let arguments = Map::from_iter([("uri".to_owned(), json!(uri))]);
                self.permit_whole(name, RESOURCES, arguments, requester, &context).await?;
                service.read_resource(uri.to_owned(), self.with_asker(context)).await
            }
            None => Err(self.nothing(format!("there is no resource `{uri}`"))),
        }
    }

    /// Gets a prompt, by its listed name, of a service in scope as a whole. Fails if rules, level or consent forbid it.
    pub async fn get_prompt(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        requester: Requester,
        context: CallContext,
    ) -> Result<Value, ServiceError> {
        let prompts = self.prompts().await;
        let Some((owner, prompt)) = prompts.get(name) else {
            return Err(self.nothing(format!("there is no prompt `{name}`")));
        };
        let own_name = prompt["name"].as_str().unwrap_or_default().to_owned();
        match self.services.get(owner) {
            Some(service) => {
                let mut given = arguments.clone();
                given.insert("name".to_owned(), json!(own_name));
                self.permit_whole(owner, PROMPTS, given, requester, &context).await?;
                service.get_prompt(own_name, arguments, self.with_asker(context)).await
            }
            None => Err(self.nothing(format!("there is no prompt `{name}`"))),
        }
    }

    /// Applies rules, level and consent to a resource or prompt. Only a built-in service counts as read-only, because a
    /// third-party service may do anything to answer.
    async fn permit_whole(
        &self,
        service: &ServiceName,
        what: &'static str,
        arguments: Map<String, Value>,
        requester: Requester,
        context: &CallContext,
    ) -> Result<(), ServiceError> {
        let name = format!("{service}__{what}");
        let refused = |reason: String| Err(ServiceError::NotPermitted { what: name.clone(), reason });
        let subject = ConsentSubject::of(&name, &arguments, false, None).by_services(context.chain());
        let record = |decision, basis| {
            self.record_decision(AuditKind::Call, &name, &arguments, context, decision, basis);
        };
        let of = |because: &DecisionReason, decision| AuditBasis::of(&self.policy, because, decision);
        if self.user_state(context).consents.about(&subject) == Some(false) {
            record(AuditVerdict::Refuse, AuditSource::Consent.into());
            return refused("the user refused such calls for this session".to_owned());
        }
        match (self.judge_whole(&name, service, &arguments), requester) {
            (GateDecision::Run(because), _) => {
                record(AuditVerdict::Allow, of(&because, AuditVerdict::Allow));
                Ok(())
            }
            // A user's own request needs no consent, and `read-only` does not block it. Other refusals still apply.
            (
                GateDecision::Refuse(DecisionReason::Level(ApprovalLevel::ReadOnly)) | GateDecision::Ask(_),
                Requester::User,
            ) => {
                record(AuditVerdict::Allow, AuditSource::User.into());
                Ok(())
            }
            (GateDecision::Refuse(because), _) => {
                record(AuditVerdict::Refuse, of(&because, AuditVerdict::Refuse));
                refused(self.policy.explain(&because))
            }
            (GateDecision::Ask(because), Requester::Model) => {
                let call = ProposedCall { name: &name, title: None, target: None, arguments: &arguments };
                let question = of(&because, AuditVerdict::Ask);
                let (reason, answered_by) = match self.request_consent(call, subject, &because, context).await {
                    Ok(answer) => answer,
                    Err(error) => {
                        record(AuditVerdict::Refuse, AuditSource::Cancel.into());
                        return Err(error);
                    }
                };
                let basis = question.with_source(answered_by);
                if let Some(reason) = reason {
                    record(AuditVerdict::Refuse, basis);
                    return refused(reason);
                }
                // The level may have changed meanwhile.
                match self.judge_whole(&name, service, &arguments) {
                    GateDecision::Refuse(because) => {
                        record(AuditVerdict::Refuse, of(&because, AuditVerdict::Refuse));
                        refused(self.policy.explain(&because))
                    }
                    GateDecision::Run(_) | GateDecision::Ask(_) => {
                        record(AuditVerdict::Allow, basis);
                        Ok(())
                    }
                }
            }
        }
    }

    fn judge_whole(&self, name: &str, service: &ServiceName, arguments: &Map<String, Value>) -> GateDecision {
        let facts = plain(arguments);
        let call = Call { tool: name, arguments: &facts, brought: self.is_brought(service) };
        let ruling = permissions::evaluate(&self.policy.rules, call);
        gate::decide(self.approval(), self.has_built_in(service), &ruling)
    }

    /// Returns the rule decision on a resource that a tool reads, if it denies or asks. Only the tool's own rules can
    /// allow.
    pub(super) fn tightening(&self, service: &ServiceName, uri: &str) -> RuleDecision<'_> {
        let (name, facts) =
            (format!("{service}__{RESOURCES}"), plain(&Map::from_iter([("uri".to_owned(), json!(uri))])));
        let call = Call { tool: &name, arguments: &facts, brought: self.is_brought(service) };
        match permissions::evaluate(&self.policy.rules, call) {
            RuleDecision::Allow(_) => RuleDecision::Silent,
            ruling => ruling,
        }
    }

    /// Returns whether the service comes from the project or the client.
    fn is_brought(&self, service: &ServiceName) -> bool {
        let entry = self.request.service(&self.plan, service.as_str());
        entry.is_some_and(|entry| matches!(entry.layer, Layer::Project | Layer::Editor))
    }

    fn nothing(&self, reason: String) -> ServiceError {
        ServiceError::Refused { service: ServiceName::new(self.mode.to_string()), reason }
    }
}

/// Converts arguments that are neither commands nor paths.
fn plain(arguments: &Map<String, Value>) -> BTreeMap<String, Argument> {
    arguments.iter().map(|(name, value)| (name.clone(), Argument::plain(value))).collect()
}
