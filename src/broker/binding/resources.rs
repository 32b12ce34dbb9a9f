//! Resources and prompts of the services that a binding has as a whole. They belong to no group, and are not frozen as
//! tools are: what they follow from may change while a session lasts. Rules, level and consent count as for a tool: rules
//! know them as `SERVICE__resources/read` and `SERVICE__prompts/get`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::super::consent::ConsentSubject;
use super::super::gate::{self, DecisionReason, GateDecision};
use super::super::manage::matches_template;
use super::Binding;
use super::permit::ProposedCall;
use crate::ids::ServiceName;
use crate::manifest::{ApprovalLevel, Layer, Transport};
use crate::permissions::{self, Argument, Call, RuleDecision};
use crate::tool::{CallContext, Catalog, ServiceError};

/// What rules call the resources and the prompts of a service, behind its name.
const RESOURCES: &str = "resources/read";
const PROMPTS: &str = "prompts/get";

/// Who requests a resource or a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requester {
    /// The user attached it or typed its command, or Skein reads it for their session: no question follows.
    User,
    /// A model, an external agent or an MCP client.
    Model,
}

/// A resource or a template, in MCP's JSON, and whose it is.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceResource {
    pub service: ServiceName,
    pub value: Value,
    pub template: bool,
}

impl Binding {
    /// True if the service is one of our own.
    pub fn has_built_in(&self, service: &ServiceName) -> bool {
        let entry = self.request.service(&self.plan, service.as_str());
        entry.is_some_and(|entry| matches!(entry.manifest.transport, Transport::Builtin(_)))
    }

    /// True if a service has resources, or may come to have some.
    pub fn has_resources(&self) -> bool {
        self.whole.iter().any(|(_, seen)| seen.volatile || !seen.resources.is_empty() || !seen.templates.is_empty())
    }

    /// True if a service has prompts, or may come to have some.
    pub fn has_prompts(&self) -> bool {
        self.whole.iter().any(|(_, seen)| seen.volatile || !seen.prompts.is_empty())
    }

    /// Resources and templates of services in scope as a whole.
    pub async fn resources(&self) -> Vec<ServiceResource> {
        let mut resources = Vec::new();
        for (service, catalog) in self.current_catalogs().await {
            let of = |template| {
                let service = service.clone();
                move |value: &Value| ServiceResource { service: service.clone(), value: value.clone(), template }
            };
            resources.extend(catalog.resources.iter().map(of(false)));
            resources.extend(catalog.templates.iter().map(of(true)));
        }
        resources
    }

    /// Prompts of services in scope as a whole, as `service__prompt`.
    pub async fn prompts(&self) -> BTreeMap<String, (ServiceName, Value)> {
        let mut prompts = BTreeMap::new();
        for (service, catalog) in self.current_catalogs().await {
            for prompt in &catalog.prompts {
                let name = format!("{service}__{}", prompt["name"].as_str().unwrap_or_default());
                prompts.insert(name, (service.clone(), prompt.clone()));
            }
        }
        prompts
    }

    /// What the services in scope as a whole offer now.
    async fn current_catalogs(&self) -> Vec<(ServiceName, Arc<Catalog>)> {
        let mut whole = self.whole.clone();
        for (name, catalog) in &mut whole {
            let Some(service) = self.services.get(name) else { continue };
            if !catalog.volatile {
                // It may have said that they changed.
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

    /// True if a link to this address means a resource of a bound service. What any program could open is one only if
    /// it is listed.
    pub async fn offers_resource(&self, uri: &str) -> bool {
        let common = ["file:", "http:", "https:"].iter().any(|scheme| uri.starts_with(scheme));
        let resources = self.resources().await;
        resources.iter().any(|of| match of.template {
            true => !common && matches_template(&of.value, uri),
            false => of.value["uri"] == json!(uri),
        })
    }

    /// A resource of a service that is in scope as a whole, if rules, level and consent let it be read.
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

    /// A prompt of a service that is in scope as a whole, by its listed name, if rules, level and consent allow it.
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

    /// Rules, level and consent for what is no tool. A third-party service may do anything to answer, so that only a
    /// built-in one counts as reading.
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
        let subject = ConsentSubject::of(&name, &arguments, false, None);
        if self.consents(context).about(&subject) == Some(false) {
            return refused("the user refused such calls for this session".to_owned());
        }
        match (self.judge_whole(&name, service, &arguments), requester) {
            (GateDecision::Run(_), _) => Ok(()),
            // What the user asks for needs no question; a level without questions still refuses calls of others.
            (
                GateDecision::Refuse(DecisionReason::Level(ApprovalLevel::ReadOnly)) | GateDecision::Ask(_),
                Requester::User,
            ) => Ok(()),
            (GateDecision::Refuse(because), _) => refused(because.to_string()),
            (GateDecision::Ask(because), Requester::Model) => {
                let call = ProposedCall { name: &name, title: None, target: None, arguments: &arguments };
                if let Some(reason) = self.request_consent(call, subject, &because, context).await? {
                    return refused(reason);
                }
                // The level may have changed meanwhile.
                match self.judge_whole(&name, service, &arguments) {
                    GateDecision::Refuse(because) => refused(because.to_string()),
                    GateDecision::Run(_) | GateDecision::Ask(_) => Ok(()),
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

    /// What rules say about a resource that a tool reads, as far as they deny or ask: the tool's own rules allow.
    pub(super) fn tightening(&self, service: &ServiceName, uri: &str) -> RuleDecision<'_> {
        let (name, facts) =
            (format!("{service}__{RESOURCES}"), plain(&Map::from_iter([("uri".to_owned(), json!(uri))])));
        let call = Call { tool: &name, arguments: &facts, brought: self.is_brought(service) };
        match permissions::evaluate(&self.policy.rules, call) {
            RuleDecision::Allow(_) => RuleDecision::Silent,
            ruling => ruling,
        }
    }

    /// True if the service came with the project or the editor.
    fn is_brought(&self, service: &ServiceName) -> bool {
        let entry = self.request.service(&self.plan, service.as_str());
        entry.is_some_and(|entry| matches!(entry.layer, Layer::Project | Layer::Editor))
    }

    fn nothing(&self, reason: String) -> ServiceError {
        ServiceError::Refused { service: ServiceName::new(self.mode.to_string()), reason }
    }
}

/// Arguments that are neither commands nor paths.
fn plain(arguments: &Map<String, Value>) -> BTreeMap<String, Argument> {
    arguments.iter().map(|(name, value)| (name.clone(), Argument::plain(value))).collect()
}
