//! Sends permission requests to the user of the client.

use std::sync::Arc;

use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema as acp;
use agent_client_protocol::{Client, UntypedMessage};
use futures::future::BoxFuture;
use serde_json::Value;

use super::calls;
use super::updates::ClientFeatures;
use super::wire::ClientWriter;
use crate::broker::{RuleStore, RuleStoreError};
use crate::conversation::ToolUse;
use crate::diagnostic::printable;
use crate::graph::Plan;
use crate::ids::random_id;
use crate::manifest::PermissionRule;
use crate::tool::WorkingFolder;
use crate::tool::ask::{Asker, ConsentSubject, ExternalPermissionRequest, PermissionRequest, PermissionResponse};
use crate::tool::elicit::{Elicitation, ElicitationResponse};

// The ids equal the kinds, because some clients look an option up by the name of its kind.
const ALLOW: &str = "allow_once";
const ALLOW_ALWAYS: &str = "allow_always";
const REFUSE: &str = "reject_once";
const REFUSE_ALWAYS: &str = "reject_always";
/// Also saves a rule. Offered only to clients that show every option by its name.
const ALLOW_IN_PROJECT: &str = "allow_in_project";

/// An asker that sends `session/request_permission`.
pub(super) struct AcpAsker {
    pub(super) client: ConnectionTo<Client>,
    pub(super) session: acp::SessionId,
    pub(super) wire: ClientWriter,
    pub(super) plan: Arc<Plan>,
    pub(super) folder: WorkingFolder,
    pub(super) rules: Arc<dyn RuleStore>,
    /// Whether the client supports notices (otherwise they are sent as thoughts), subagents, forms and pages.
    pub(super) features: ClientFeatures,
}

impl AcpAsker {
    /// Saves a rule outside the async threads: it may be in a database. `None` if there is no rule.
    async fn keep(&self, rule: Option<PermissionRule>) -> Option<Result<(), RuleStoreError>> {
        let (rule, rules) = (rule?, Arc::clone(&self.rules));
        let kept = tokio::task::spawn_blocking(move || rules.keep(&rule)).await;
        Some(kept.unwrap_or_else(|error| Err(RuleStoreError::new(error))))
    }
}

impl Asker for AcpAsker {
    fn ask(&self, mut question: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        let rule = question.rule.clone();
        let unannounced = question.call.is_none().then(|| self.announce_call(&mut question));
        let request = self.request(question);
        Box::pin(async move {
            let _told = unannounced.map(|call| AnnouncedCall { asker: self, call });
            // The future is dropped when the turn is cancelled, which withdraws the request.
            match self.client.send_request(request).block_task().await.map(|said| said.outcome) {
                Ok(acp::RequestPermissionOutcome::Selected(selected)) => match &*selected.option_id.0 {
                    ALLOW => PermissionResponse::Allow,
                    ALLOW_ALWAYS => PermissionResponse::AllowAlways,
                    ALLOW_IN_PROJECT => {
                        // The user has allowed the call, so it runs even if the rule cannot be saved.
                        if let Some(Err(problem)) = self.keep(rule).await {
                            tracing::warn!(%problem, "a rule was not kept");
                            self.tell(format!("Allowed in this session, but not kept for this project: {problem}"));
                        }
                        PermissionResponse::AllowAlways
                    }
                    REFUSE_ALWAYS => PermissionResponse::RefuseAlways,
                    _ => PermissionResponse::Refuse,
                },
                Ok(_) => PermissionResponse::Refuse,
                Err(error) => {
                    tracing::warn!(%error, "the client did not answer a question");
                    PermissionResponse::Unavailable
                }
            }
        })
    }

    fn choose(&self, choosing: ExternalPermissionRequest) -> BoxFuture<'_, Option<String>> {
        Box::pin(self.put_choice(choosing))
    }

    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, ElicitationResponse> {
        Box::pin(self.put(question))
    }

    fn page_done(&self, by: &str, id: &str) {
        self.notify_page_done(by, id);
    }
}

/// A call that is shown only while the user is asked about it. Dropping it marks the call as completed.
struct AnnouncedCall<'a> {
    asker: &'a AcpAsker,
    call: acp::ToolCallId,
}

impl Drop for AnnouncedCall<'_> {
    fn drop(&mut self) {
        let fields = acp::ToolCallUpdateFields::new().status(acp::ToolCallStatus::Completed);
        let update = acp::ToolCallUpdate::new(self.call.clone(), fields);
        self.asker.wire.send_update(&self.asker.session.0, acp::SessionUpdate::ToolCallUpdate(update));
    }
}

impl AcpAsker {
    /// Forwards the permission request of an external agent with its own options. Returns the id of the chosen option.
    /// `None` if the user chose none or the client did not answer.
    async fn put_choice(&self, choosing: ExternalPermissionRequest) -> Option<String> {
        let apart = choosing.apart.filter(|_| self.features.subagents);
        let mut params = choosing.request;
        if let (None, Some(call), Some(shown)) = (&apart, choosing.parent_call, params.get_mut("toolCall")) {
            shown["toolCallId"] = Value::String(call);
            shown["title"] = Value::String(choosing.title);
        }
        let session = apart.unwrap_or_else(|| self.session.0.to_string());
        params.insert("sessionId".to_owned(), Value::String(session));
        let request = UntypedMessage::new("session/request_permission", params).ok()?;
        // The future is dropped when the turn is cancelled, which withdraws the request.
        let said = self.client.send_request(request).block_task().await.inspect_err(|error| {
            tracing::warn!(%error, "the client did not answer a question");
        });
        let outcome = serde_json::from_value::<acp::RequestPermissionResponse>(said.ok()?).ok()?.outcome;
        match outcome {
            acp::RequestPermissionOutcome::Selected(selected) => Some(selected.option_id.0.to_string()),
            _ => None,
        }
    }

    /// Shows a call that the client has not seen, because another agent makes it. Sets the id of the shown call in
    /// `question`.
    fn announce_call(&self, question: &mut PermissionRequest) -> acp::ToolCallId {
        let id: Arc<str> = random_id("asked").into();
        question.call = Some(Arc::clone(&id));
        let arguments = Value::Object(question.arguments.clone());
        let call = ToolUse::new(id.to_string(), question.tool.clone(), arguments);
        let by = caller(question.by.as_deref(), question.calling_services());
        let announced = calls::tool_call(&call, by.as_deref(), None, &self.plan, &self.folder);
        self.wire.send_update(&self.session.0, acp::SessionUpdate::ToolCall(announced));
        acp::ToolCallId::new(id)
    }

    pub(super) fn tell(&self, text: String) {
        let update = if self.features.notices {
            acp::SessionUpdate::Notice(acp::Notice::new(acp::NoticeSeverity::Warning, text))
        } else {
            acp::SessionUpdate::AgentThoughtChunk(acp::ContentChunk::new(format!("{text}\n").into()))
        };
        self.wire.send_update(&self.session.0, update);
    }

    fn request(&self, question: PermissionRequest) -> acp::RequestPermissionRequest {
        let own_title = question.own_title().map(printable);
        let (once_reason, is_single) = (question.once_reason(), question.is_single());
        // A client that shows subagents knows the call by the child session and its id there.
        let apart = question.apart.clone().filter(|_| self.features.subagents);
        let (session, call) = match apart {
            Some((session, call)) => (acp::SessionId::new(session), Some(call)),
            None => (self.session.clone(), question.call.clone()),
        };
        let services = question.calling_services();
        let by = caller(question.by.as_deref().filter(|_| session == self.session), services);
        let id = call.unwrap_or_else(|| random_id("call").into());
        let (target, change) = (question.target.as_ref(), question.change.as_ref());
        let mut preview = calls::preview(&question.tool, &question.arguments, change, &self.plan);
        let arguments = Value::Object(question.arguments);
        if let Some(reason) = &once_reason {
            preview.insert(0, calls::text(&format!("{}.", printable(reason))));
        }
        let line = change.map(|change| change.line);
        let locations =
            target.map(|target| vec![acp::ToolCallLocation::new(calls::wire_path(&target.path)).line(line)]);
        let call = ToolUse::new(id.to_string(), question.tool, arguments);
        let kind = calls::kind(&call.name, &self.plan);
        let said = calls::claims_with_title(&call.name, question.title, &self.plan);
        let title = match (own_title, question.always.host()) {
            (Some(title), _) => calls::by_whom(by.as_deref(), title),
            (None, Some(host)) => calls::by_whom(by.as_deref(), format!("Fetch from {host}")),
            (None, None) => calls::title(&call, by.as_deref(), said.as_ref(), kind, target),
        };
        let fields = acp::ToolCallUpdateFields::new()
            .title(title)
            .name(call.name)
            .kind(kind)
            .status(acp::ToolCallStatus::Pending)
            .content((!preview.is_empty()).then_some(preview))
            .locations(locations)
            .raw_input(call.arguments);
        let mut options = self.options(&question.always, once_reason.is_some(), question.rule.is_some());
        if is_single {
            options.retain(|option| option.kind != acp::PermissionOptionKind::RejectAlways);
        }
        let update = acp::ToolCallUpdate::new(acp::ToolCallId::new(id), fields);
        acp::RequestPermissionRequest::new(session, update, options)
    }

    /// Returns one option per kind. With `once`, consent covers only one call. The option that saves a rule comes after
    /// the others: a client that picks by kind must find the option for the session first.
    fn options(&self, always: &ConsentSubject, once: bool, has_rule: bool) -> Vec<acp::PermissionOption> {
        let mut options = vec![acp::PermissionOption::new(ALLOW, "Allow", acp::PermissionOptionKind::AllowOnce)];
        if !once {
            let name = format!("Allow {always} in this session");
            options.push(acp::PermissionOption::new(ALLOW_ALWAYS, name, acp::PermissionOptionKind::AllowAlways));
        }
        let name = format!("Reject {always} in this session");
        options.push(acp::PermissionOption::new(REFUSE, "Reject", acp::PermissionOptionKind::RejectOnce));
        options.push(acp::PermissionOption::new(REFUSE_ALWAYS, name, acp::PermissionOptionKind::RejectAlways));
        if has_rule && !once && self.features.option_names {
            let name = format!("Allow {always} in this project from now on (saves a rule)");
            options.push(acp::PermissionOption::new(ALLOW_IN_PROJECT, name, acp::PermissionOptionKind::AllowAlways));
        }
        options
    }
}

/// Names the agent that makes a call and the services that ask for it: `goose/assistant: scheduling asks to call`.
/// `None` if the session itself makes the call.
fn caller(by: Option<&str>, services: Option<String>) -> Option<String> {
    match (by, services) {
        (by, None) => by.map(str::to_owned),
        (None, Some(services)) => Some(format!("{services} asks to call")),
        (Some(by), Some(services)) => Some(format!("{by}: {services} asks to call")),
    }
}
