//! Checks a call before it runs: scope, arguments, unchanged tool description, rules, approval level and hooks. Asks the
//! user if these require it.
//!
//! Invariant: a permission request about a file shows where its path leads, and the tool may touch only that file.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::super::audit_asker::{AuditAsker, read_answer};
use super::super::consent;
use super::super::gate::{DecisionReason, GateDecision};
use super::super::session_state::BrokerState;
use super::super::{files, sanitize};
use super::audit::AuditBasis;
use super::{AdmittedCall, Binding, BoundTool};
use crate::manifest::ApprovalLevel;
use crate::services::Service;
use crate::services::builtin::developer;
use crate::tool::ask::{Asker, ConsentSubject, PermissionRequest, PermissionResponse};
use crate::tool::{AuditSource, AuditVerdict, CallContext, FileTarget, ServiceError, ToolOutcome, path_line};

/// A call as the user sees it in a permission request.
pub(super) struct ProposedCall<'a> {
    pub(super) name: &'a str,
    pub(super) title: Option<&'a str>,
    /// The file that a built-in tool works on.
    pub(super) target: Option<&'a FileTarget>,
    pub(super) arguments: &'a Map<String, Value>,
}

/// Why an action is not permitted.
#[derive(Debug, thiserror::Error)]
pub enum PermitError {
    #[error("{reason}")]
    Refused { reason: String },
    #[error(transparent)]
    Service(#[from] ServiceError),
}

impl Binding {
    /// Checks whether an action equivalent to a call of the tool is permitted. Applies the same scope, rules and
    /// consent as a call. Fails with the reason if not.
    pub async fn permit(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
        context: &CallContext,
    ) -> Result<(), PermitError> {
        match self.check_call(name, arguments, context).await? {
            Ok(_) => Ok(()),
            Err(outcome) => Err(PermitError::Refused { reason: outcome.all_text() }),
        }
    }

    /// Runs all checks before a call, and records the decision. The inner `Err` is the outcome that the caller gets
    /// instead of a call.
    pub(super) async fn check_call(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
        context: &CallContext,
    ) -> Result<Result<AdmittedCall<'_>, ToolOutcome>, ServiceError> {
        let mut basis = AuditBasis::from(AuditSource::Scope);
        let checked = self.decide_call(name, arguments, context, &mut basis).await;
        let (decision, basis) = match &checked {
            Ok(Ok(_)) => (AuditVerdict::Allow, basis),
            Ok(Err(_)) => (AuditVerdict::Refuse, basis),
            Err(_) => (AuditVerdict::Refuse, AuditSource::Cancel.into()),
        };
        self.record_call(name, arguments, context, decision, basis);
        checked
    }

    /// Decides about a call. `basis` receives what decided.
    async fn decide_call(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
        context: &CallContext,
        basis: &mut AuditBasis,
    ) -> Result<Result<AdmittedCall<'_>, ToolOutcome>, ServiceError> {
        let mut admitted = match self.admit(name, arguments, context).await? {
            Ok(admitted) => admitted,
            Err(error) => return Ok(Err(ToolOutcome::error(error.to_string()))),
        };
        let (tool, service) = (admitted.tool, admitted.service);
        if let Some(reason) = self.check_unchanged(tool, service, context).await? {
            *basis = AuditSource::Change.into();
            return Ok(Err(ToolOutcome::error(reason)));
        }
        // Acquire the lock before the decision: the wait can be long, and the state afterwards counts.
        if let Some(turnstile) = self.policy.limits.write_lock.as_ref().filter(|_| !tool.read_only) {
            let files = files::files_in_call(arguments, &self.request.session);
            let passed = tokio::select! {
                biased;
                () = context.cancel.cancelled() => return Err(ServiceError::Cancelled),
                passed = turnstile.acquire(files) => passed,
            };
            if let Err(reason) = passed {
                *basis = AuditSource::Lock.into();
                return Ok(Err(ToolOutcome::error(format!("`{name}` was not called: {reason}"))));
            }
            admitted = match self.admit(name, arguments, context).await? {
                Ok(admitted) => admitted,
                Err(error) => return Ok(Err(ToolOutcome::error(error.to_string()))),
            };
        }
        let subject = match tool.host(arguments) {
            Some(host) => ConsentSubject::of_host(name, host.to_string()),
            None => ConsentSubject::of(name, arguments, tool.builtin, admitted.target.as_ref()),
        };
        let subject = subject.by_services(context.chain());
        // A looser level or an allowing rule does not override the user's refusal.
        let state = self.user_state(context);
        let is_refused = |subject: &ConsentSubject| state.consents.about(subject) == Some(false);
        if is_refused(&subject) || tool.script(arguments).is_some_and(|script| is_refused(&script.shell_subject())) {
            *basis = AuditSource::Consent.into();
            return Ok(Err(refusal(name, "the user refused such calls for this session")));
        }
        let mut decision = self.decide(name, &admitted, arguments);
        // Hooks learn nothing about calls that are refused anyway.
        if !matches!(decision, GateDecision::Refuse(_))
            && let Some(verdict) = self.run_call_hooks(name, &admitted, arguments, context).await?
        {
            if let Some(reason) = verdict.refusal {
                *basis = AuditSource::Hook.into();
                return Ok(Err(refusal(name, &reason)));
            }
            // Hooks take time. The tool, the level and the targets of paths may have changed meanwhile.
            *basis = AuditSource::Change.into();
            let now = match self.admit(name, arguments, context).await? {
                Ok(now) => now,
                Err(error) => return Ok(Err(refusal(name, &error.to_string()))),
            };
            if let Some(path) = find_redirected_path(&admitted, &now, arguments) {
                let reason = format!("`{path}` leads elsewhere now than when a hook checked it; nothing was done");
                return Ok(Err(refusal(name, &reason)));
            }
            if let Some(reason) = self.check_unchanged(tool, service, context).await? {
                return Ok(Err(ToolOutcome::error(reason)));
            }
            decision = match (self.decide(name, &now, arguments), verdict.question) {
                // At `smart`, a model could answer in place of the user.
                (
                    GateDecision::Run(_) | GateDecision::Ask(DecisionReason::Level(ApprovalLevel::Smart)),
                    Some(reason),
                ) => GateDecision::Ask(DecisionReason::Hook { reason }),
                (decision, _) => decision,
            };
            admitted = now;
            admitted.hook_context = verdict.context;
        }
        match decision {
            GateDecision::Run(because) => *basis = AuditBasis::of(&self.policy, &because, AuditVerdict::Allow),
            GateDecision::Refuse(because) => {
                *basis = AuditBasis::of(&self.policy, &because, AuditVerdict::Refuse);
                return Ok(Err(refusal(name, &self.policy.explain(&because))));
            }
            GateDecision::Ask(because) => {
                let question = AuditBasis::of(&self.policy, &because, AuditVerdict::Ask);
                // The request shows the hidden paths that consent opens.
                let mut shown = arguments.clone();
                let opened = self.paths_to_ask(tool, arguments);
                if !opened.is_empty() {
                    shown.insert("opens".to_owned(), opened.into());
                }
                let call = ProposedCall {
                    name,
                    title: tool.spec.title.as_deref(),
                    target: admitted.target.as_ref(),
                    arguments: &shown,
                };
                let (refused, answered_by) = self.request_consent(call, subject, &because, context).await?;
                *basis = question.with_source(answered_by);
                if let Some(reason) = refused {
                    return Ok(Err(refusal(name, &reason)));
                }
                // The user may answer late. The tool, the level and the targets of paths may have changed meanwhile.
                let consent = std::mem::replace(basis, AuditSource::Change.into());
                let now = match self.admit(name, arguments, context).await? {
                    Ok(now) => now,
                    Err(error) => return Ok(Err(refusal(name, &error.to_string()))),
                };
                if let Some(reason) = find_redirect(&admitted, &now, arguments) {
                    return Ok(Err(refusal(name, &reason)));
                }
                match self.decide(name, &now, arguments) {
                    GateDecision::Refuse(because) => {
                        *basis = AuditBasis::of(&self.policy, &because, AuditVerdict::Refuse);
                        return Ok(Err(refusal(name, &self.policy.explain(&because))));
                    }
                    GateDecision::Ask(DecisionReason::Protected { path, .. })
                        if !matches!(because, DecisionReason::Protected { .. }) =>
                    {
                        let reason = format!("{path}, which it was not when you consented");
                        return Ok(Err(refusal(name, &reason)));
                    }
                    GateDecision::Run(_) | GateDecision::Ask(_) => {}
                }
                if let Some(reason) = self.check_unchanged(tool, service, context).await? {
                    return Ok(Err(ToolOutcome::error(reason)));
                }
                admitted.consented = true;
                *basis = consent;
            }
        }
        Ok(Ok(admitted))
    }

    /// Returns what the broker remembers about the top-level session. Child sessions ask in its name, so an answer given
    /// to one counts for all.
    pub(super) fn user_state(&self, context: &CallContext) -> Arc<BrokerState> {
        match &self.policy.limits.parent {
            Some(parent) => parent.user_binding().state(),
            None => self.policy.states.of(&context.session),
        }
    }

    /// Returns the binding of the user's session: this one, or the one of the top-level session that it works for.
    pub(super) fn user_binding(&self) -> &Binding {
        let mut binding = self;
        while let Some(parent) = &binding.policy.limits.parent {
            binding = parent;
        }
        binding
    }

    /// Returns a reason if the tool's description has changed since it was offered, because the consent covered the old
    /// one.
    async fn check_unchanged(
        &self,
        tool: &BoundTool,
        service: &Arc<Service>,
        context: &CallContext,
    ) -> Result<Option<String>, ServiceError> {
        let catalog = tokio::select! {
            biased;
            () = context.cancel.cancelled() => return Err(ServiceError::Cancelled),
            catalog = service.catalog() => catalog,
        };
        let catalog = match catalog {
            Ok(catalog) => catalog,
            Err(error) => return Ok(Some(error.to_string())),
        };
        if Arc::ptr_eq(&catalog, &tool.seen) {
            return Ok(None);
        }
        let now = catalog
            .tools
            .iter()
            .find(|spec| spec.name == tool.spec.name)
            .map(|spec| sanitize::sanitize_tool(spec.clone()));
        Ok(match now {
            Some(Ok(spec)) if spec == tool.spec => None,
            Some(_) => {
                tracing::warn!(service = %tool.service, tool = %tool.spec.name, "a tool changed its description or schema after it was offered");
                Some(format!(
                    "the service `{}` has changed what `{}` says about itself since this session was offered it, so it was not \
                     called; tell the user, who can start a new session after looking at it",
                    tool.service, tool.spec.name
                ))
            }
            None => Some(format!("the service `{}` no longer has a tool `{}`", tool.service, tool.spec.name)),
        })
    }

    /// Asks for consent. Returns the reason if it was not given, `None` if it was, and what decided.
    pub(super) async fn request_consent(
        &self,
        call: ProposedCall<'_>,
        subject: ConsentSubject,
        because: &DecisionReason,
        context: &CallContext,
    ) -> Result<(Option<String>, AuditSource), ServiceError> {
        let state = self.user_state(context);
        let consents = &state.consents;
        let protected = match because {
            DecisionReason::Protected { path, .. } => Some(path.clone()),
            DecisionReason::Level(_)
            | DecisionReason::ReadOnly(_)
            | DecisionReason::Rules(_)
            | DecisionReason::Unsure(_)
            | DecisionReason::Host { .. }
            | DecisionReason::UserNamed(_)
            | DecisionReason::Hook { .. }
            | DecisionReason::Unsandboxed { .. }
            | DecisionReason::ManagedSandbox(_) => None,
        };
        if protected.is_none() && consents.about(&subject) == Some(true) {
            return Ok((None, AuditSource::Consent));
        }
        // Only a built-in tool has a target, so the name identifies the tool.
        let change = match call.target.and(call.name.strip_prefix("developer__")) {
            Some(tool) => developer::preview(tool, call.arguments, context).await,
            None => None,
        };
        let question = PermissionRequest {
            call: context.id.clone(),
            by: None,
            apart: None,
            chain: context.chain(),
            tool: call.name.to_owned(),
            title: call.title.map(str::to_owned),
            arguments: call.arguments.clone(),
            target: call.target.cloned(),
            change,
            // Consent for a protected path covers one call only.
            rule: consent::rule_for(&subject, &self.request.session).filter(|_| protected.is_none()),
            protected: protected.clone(),
            always: subject.clone(),
        };
        let _open = context.open_question();
        let (answer, source) = tokio::select! {
            biased;
            () = context.cancel.cancelled() => return Err(ServiceError::Cancelled),
            answer = self.answer(question, because, context) => answer,
        };
        let refused = match answer {
            PermissionResponse::Allow => None,
            PermissionResponse::AllowAlways if protected.is_some() => None,
            PermissionResponse::AllowAlways => {
                consents.remember(subject, true);
                None
            }
            PermissionResponse::Refuse => Some("the user refused".to_owned()),
            PermissionResponse::RefuseAlways => {
                consents.remember(subject, false);
                Some("the user refused, and refuses such calls for this session".to_owned())
            }
            PermissionResponse::Unavailable => Some(self.policy.explain_no_asker(because)),
        };
        Ok((refused, source))
    }

    /// Returns the judge's answer if the level is `smart` and the judge is certain, otherwise the user's; and whose it is.
    async fn answer(
        &self,
        question: PermissionRequest,
        because: &DecisionReason,
        context: &CallContext,
    ) -> (PermissionResponse, AuditSource) {
        let judge = self.policy.judge.as_ref().filter(|_| *because == DecisionReason::Level(ApprovalLevel::Smart));
        if let Some(judge) = judge
            && judge.finds_read_only(&question).await
            && self.approval() == ApprovalLevel::Smart
        {
            return (PermissionResponse::Allow, AuditSource::Judge);
        }
        let answer = match context.client_asker().filter(|asker| !Arc::ptr_eq(asker, &self.request.asker)) {
            Some(asker) => {
                let (asker, audit) = (Arc::clone(asker), Arc::clone(&self.request.session.audit));
                AuditAsker { asker, audit, actor: self.mode.to_string() }.ask(question).await
            }
            None => self.request.asker.ask(question).await,
        };
        (answer, read_answer(answer).1)
    }
}

/// Returns a reason if one of the call's paths resolves differently than when the user was asked.
fn find_redirect(asked: &AdmittedCall<'_>, now: &AdmittedCall<'_>, arguments: &Map<String, Value>) -> Option<String> {
    let path = find_redirected_path(asked, now, arguments)?;
    Some(format!("`{path}` leads elsewhere now than when the user was asked; nothing was done"))
}

/// Returns a path of the call that resolves differently than before.
fn find_redirected_path(
    before: &AdmittedCall<'_>,
    now: &AdmittedCall<'_>,
    arguments: &Map<String, Value>,
) -> Option<String> {
    let leads_elsewhere = |given: &&str| before.paths.resolve(given) != now.paths.resolve(given);
    let given = files::all_named(arguments).into_iter().chain(before.target.as_ref().map(|_| "."));
    given.into_iter().find(leads_elsewhere).map(path_line)
}

fn refusal(name: &str, reason: &str) -> ToolOutcome {
    ToolOutcome { refused: true, ..ToolOutcome::error(format!("`{name}` was not called: {reason}")) }
}
