//! Answers the requests of a remote agent: permission requests, elicitations and calls of tools.
//!
//! Invariant: as for a program, a call passes `Binding::call`, and only a person approves a permission request. Skein by
//! itself can only reject it.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::super::client_context::SessionBinding;
use super::super::updates::refusal_events;
use super::RemoteSession;
use super::remote_error::RemoteError;
use super::task_update::StateMessage;
use crate::agents::{Event, Notifier, StatusUpdate};
use crate::conversation::ToolUse;
use crate::ids::random_id;
use crate::manifest::ApprovalLevel;
use crate::network::restore_integers;
use crate::tool::ask::{ExternalPermissionRequest, PermissionOption};
use crate::tool::elicit::{Elicitation, ElicitationKind, ElicitationResponse};
use crate::tool::{CallContext, ToolOutcome, strip_invisible, truncate};

/// Maximum number of bytes shown of a question.
const MAX_MESSAGE: usize = 4096;
/// The name of the field in the form of a plain question.
const ANSWER: &str = "answer";

/// What the requests of a turn need.
pub(super) struct RequestContext<'a> {
    pub(super) session: &'a RemoteSession,
    pub(super) notifier: &'a dyn Notifier,
    pub(super) cancel: &'a CancellationToken,
}

impl RequestContext<'_> {
    /// Returns the parts of the answer. Fails if there is none: the user declines a plain question, or there is no
    /// user.
    pub(super) async fn answer(&self, request: &StateMessage) -> Result<Vec<Value>, RemoteError> {
        let question = truncate(&strip_invisible(request.text.trim()), MAX_MESSAGE).to_owned();
        let Some(bound) = self.session.binding() else { return Err(RemoteError::NoUser { question }) };
        let details = &request.details;
        match details["kind"].as_str() {
            Some("call") if self.session.card.calls_tools => Ok(vec![self.call(&bound, details).await?]),
            Some("permission" | "choice") => match options(details) {
                Some(options) => self.permission(&bound, question, details, options).await,
                None => self.form(&bound, question).await,
            },
            Some("form") => match details["schema"].as_object() {
                Some(schema) => self.elicit(&bound, question, ElicitationKind::Fields(schema.clone())).await,
                None => self.form(&bound, question).await,
            },
            Some("page") => match details["url"].as_str() {
                Some(url) => {
                    let (id, url) = (random_id("page"), url.to_owned());
                    self.elicit(&bound, question, ElicitationKind::Page { id, url }).await
                }
                None => self.form(&bound, question).await,
            },
            _ => self.form(&bound, question).await,
        }
    }

    /// Calls a tool of the mode. A refusal is an answer, too.
    async fn call(&self, bound: &SessionBinding, details: &Value) -> Result<Value, RemoteError> {
        let name = details["tool"].as_str().unwrap_or_default().to_owned();
        let arguments = match restore_integers(details["arguments"].clone()) {
            Value::Object(arguments) => arguments,
            _ => Map::new(),
        };
        let id = random_id("call");
        let call = ToolUse::new(id.clone(), name.clone(), Value::Object(arguments.clone()));
        self.notifier.log(Event::ToolStarted { call, by: None });
        let context = CallContext::new(Arc::clone(&bound.session)).with_cancel(self.cancel.child_token()).with_id(&id);
        let called = tokio::select! {
            biased;
            called = bound.binding.call(&name, arguments, context) => Some(called),
            () = self.cancel.cancelled() => None,
        };
        let outcome = match called {
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => ToolOutcome::error(error.to_string()),
            None => ToolOutcome::error("the turn was cancelled; the call may have run"),
        };
        let answer = json!({
            "kind": "result",
            "tool": name,
            "text": outcome.all_text(),
            "structured": outcome.structured,
            "isError": outcome.is_error || outcome.refused,
        });
        self.notifier.log(Event::ToolEnded { id, name, outcome, activity: Vec::new() });
        if self.cancel.is_cancelled() {
            return Err(RemoteError::Cancelled);
        }
        Ok(json!({"data": answer, "mediaType": "application/json"}))
    }

    /// Asks a person for consent. Rejects the request if the level admits no consent, or the user
    /// chooses no option.
    async fn permission(
        &self,
        bound: &SessionBinding,
        title: String,
        details: &Value,
        options: Vec<PermissionOption>,
    ) -> Result<Vec<Value>, RemoteError> {
        let (call, input) = (random_id("call"), details.get("arguments").filter(|input| !input.is_null()).cloned());
        let refuse = || {
            let arguments = input.clone().unwrap_or_else(|| json!({}));
            if let Some(turn) = bound.session.turn_span() {
                turn.agent_tool_call("other", &call).fail("call_refused");
            }
            let shown = ToolUse::new(call.clone(), title.clone(), arguments);
            refusal_events(shown).into_iter().for_each(|event| self.notifier.log(event));
        };
        let level = bound.binding.approval();
        if matches!(level, ApprovalLevel::ReadOnly | ApprovalLevel::Deny) {
            self.tell_refused(bound, &title, &format!("the approval level is `{}`", level.as_str()));
            refuse();
            return reject(&options, title);
        }
        let request = ExternalPermissionRequest {
            by: bound.binding.mode().to_string(),
            apart: None,
            call: call.clone(),
            parent_call: None,
            title: title.clone(),
            request: acp_request(&call, &title, input.as_ref(), &options),
            input: input.clone(),
            options: options.clone(),
        };
        let chosen = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Err(RemoteError::Cancelled),
            chosen = bound.asker.choose(request) => chosen,
        };
        match options.iter().find(|option| chosen.as_ref() == Some(&option.id)) {
            Some(option) => {
                if !option.allows {
                    refuse();
                }
                Ok(vec![json!({"text": option.id})])
            }
            None => {
                self.tell_refused(bound, &title, "no user allowed it");
                refuse();
                reject(&options, title)
            }
        }
    }

    /// Asks a plain question, as a form with one field.
    async fn form(&self, bound: &SessionBinding, question: String) -> Result<Vec<Value>, RemoteError> {
        let mut schema = Map::new();
        schema.insert("type".to_owned(), json!("object"));
        schema.insert("properties".to_owned(), json!({ANSWER: {"type": "string", "title": "Answer"}}));
        schema.insert("required".to_owned(), json!([ANSWER]));
        match self.ask(bound, question.clone(), ElicitationKind::Fields(schema)).await? {
            ElicitationResponse::Accepted(values) => {
                let answer = values.get(ANSWER).and_then(Value::as_str).unwrap_or_default();
                Ok(vec![json!({"text": answer})])
            }
            ElicitationResponse::Unavailable => Err(RemoteError::NoUser { question }),
            ElicitationResponse::Declined | ElicitationResponse::Dismissed => Err(RemoteError::Unanswered { question }),
        }
    }

    /// Shows a form or a page that the agent describes. Such an agent understands that the user declines.
    async fn elicit(
        &self,
        bound: &SessionBinding,
        question: String,
        kind: ElicitationKind,
    ) -> Result<Vec<Value>, RemoteError> {
        let is_page = matches!(kind, ElicitationKind::Page { .. });
        Ok(match self.ask(bound, question, kind).await? {
            ElicitationResponse::Accepted(_) if is_page => vec![json!({"text": "done"})],
            ElicitationResponse::Accepted(values) => vec![json!({"data": values, "mediaType": "application/json"})],
            ElicitationResponse::Declined => vec![json!({"text": "decline"})],
            ElicitationResponse::Dismissed | ElicitationResponse::Unavailable => vec![json!({"text": "cancel"})],
        })
    }

    async fn ask(
        &self,
        bound: &SessionBinding,
        message: String,
        kind: ElicitationKind,
    ) -> Result<ElicitationResponse, RemoteError> {
        let question = Elicitation { by: self.session.agent.title.clone(), call: None, message, kind };
        if let Some(reason) = question.refusal() {
            self.tell_refused(bound, "its own question", &reason);
            return Ok(ElicitationResponse::Declined);
        }
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(RemoteError::Cancelled),
            answer = bound.asker.elicit(question) => Ok(answer),
        }
    }

    fn tell_refused(&self, bound: &SessionBinding, title: &str, why: &str) {
        let text = format!("{} asked about `{title}`; it was refused: {why}", bound.binding.mode());
        self.notifier.status(StatusUpdate::notice(text));
    }
}

/// Returns the options of a permission request. `None` if it names none, or one of them twice.
fn options(details: &Value) -> Option<Vec<PermissionOption>> {
    let ids: Option<Vec<_>> = details["options"].as_array()?.iter().map(|id| id.as_str().map(str::to_owned)).collect();
    let ids = ids.filter(|ids| !ids.is_empty())?;
    let mut seen = std::collections::HashSet::new();
    if !ids.iter().all(|id| seen.insert(id.clone())) {
        return None;
    }
    let name = |id: &str| strip_invisible(details["names"][id].as_str().unwrap_or(id));
    Some(ids.into_iter().map(|id| PermissionOption { name: name(&id), allows: !rejects(&id), id }).collect())
}

/// Returns whether an option is a refusal. Any other one counts as consent.
fn rejects(id: &str) -> bool {
    let first = id.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default().to_ascii_lowercase();
    ["reject", "deny", "refuse", "decline", "cancel", "no"].contains(&first.as_str())
}

/// Returns the agent's own way to say no. Fails if it offers none.
fn reject(options: &[PermissionOption], question: String) -> Result<Vec<Value>, RemoteError> {
    let no = options.iter().find(|option| !option.allows);
    no.map(|option| vec![json!({"text": option.id})]).ok_or(RemoteError::Unanswered { question })
}

/// Writes a permission request for clients that speak ACP.
fn acp_request(call: &str, title: &str, input: Option<&Value>, options: &[PermissionOption]) -> Map<String, Value> {
    let option = |option: &PermissionOption| {
        let kind = match (option.allows, option.id.contains("always")) {
            (true, true) => "allow_always",
            (true, false) => "allow_once",
            (false, true) => "reject_always",
            (false, false) => "reject_once",
        };
        json!({"optionId": option.id, "name": option.name, "kind": kind})
    };
    let options: Vec<_> = options.iter().map(option).collect();
    let mut request = Map::new();
    let call = json!({"toolCallId": call, "title": title, "status": "pending", "rawInput": input});
    request.insert("toolCall".to_owned(), call);
    request.insert("options".to_owned(), json!(options));
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_say_yes_or_no() {
        let named =
            options(&json!({"options": ["allow", "reject always"], "names": {"allow": "Go\u{200b} on"}})).unwrap();
        let shown: Vec<_> = named.iter().map(|option| (&*option.id, &*option.name, option.allows)).collect();
        assert_eq!(shown, [("allow", "Go on", true), ("reject always", "reject always", false)]);
        assert_eq!(reject(&named, String::new()).ok(), Some(vec![json!({"text": "reject always"})]));
        assert!(reject(&named[..1], String::new()).is_err(), "there is no way to say no");
        for wrong in [json!({}), json!({"options": []}), json!({"options": ["a", "a"]}), json!({"options": [1]})] {
            assert_eq!(options(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_permission_request_is_one_of_acp() {
        let named = options(&json!({"options": ["allow always", "deny"]})).unwrap();
        let request = acp_request("c1", "Delete it?", Some(&json!({"path": "x"})), &named);
        assert_eq!(request["toolCall"]["rawInput"], json!({"path": "x"}));
        let kinds: Vec<_> = request["options"].as_array().unwrap().iter().map(|option| &option["kind"]).collect();
        assert_eq!(kinds, [&json!("allow_always"), &json!("reject_once")]);
    }
}
