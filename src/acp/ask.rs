//! The person behind the client, asked for consent.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use agent_client_protocol::Client;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema as acp;
use futures::future::BoxFuture;
use serde_json::Value;

use super::calls;
use super::updates::Abilities;
use super::wire::Wire;
use crate::broker::{Answer, Asker, Question, RuleStore};
use crate::conversation::ToolUse;
use crate::graph::Plan;
use crate::tool::elicit::{Elicitation, Elicited};

const ALLOW: &str = "allow";
const ALLOW_ALWAYS: &str = "allow-always";
const ALLOW_IN_PROJECT: &str = "allow-in-project";
const REFUSE: &str = "reject";
const REFUSE_ALWAYS: &str = "reject-always";

/// Asks through `session/request_permission`.
pub(super) struct ClientAsker {
    pub(super) client: ConnectionTo<Client>,
    pub(super) session: acp::SessionId,
    pub(super) wire: Wire,
    pub(super) plan: Arc<Plan>,
    pub(super) cwd: PathBuf,
    pub(super) rules: Arc<dyn RuleStore>,
    /// Whether it shows notices; otherwise it is told as a thought. And whether it sees apart who works for the session.
    pub(super) abilities: Abilities,
    /// How many questions of services were asked as permissions.
    pub(super) asked: AtomicU64,
}

impl Asker for ClientAsker {
    fn ask(&self, question: Question) -> BoxFuture<'_, Answer> {
        let rule = question.rule.clone();
        let request = self.request(question);
        Box::pin(async move {
            // Dropped when the turn is cancelled, which takes the question back.
            match self.client.send_request(request).block_task().await.map(|said| said.outcome) {
                Ok(acp::RequestPermissionOutcome::Selected(selected)) => match &*selected.option_id.0 {
                    ALLOW => Answer::Allow,
                    ALLOW_ALWAYS => Answer::AllowAlways,
                    ALLOW_IN_PROJECT => {
                        // What was consented to runs, whether or not the rule can be kept.
                        if let Some(Err(problem)) = rule.map(|rule| self.rules.keep(&rule)) {
                            tracing::warn!(problem, "a rule was not kept");
                            self.tell(format!("Allowed in this session, but not kept for this project: {problem}"));
                        }
                        Answer::AllowAlways
                    }
                    REFUSE_ALWAYS => Answer::RefuseAlways,
                    _ => Answer::Refuse,
                },
                Ok(_) => Answer::Refuse,
                Err(error) => {
                    tracing::warn!(%error, "the client did not answer a question");
                    Answer::Unheard
                }
            }
        })
    }

    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, Elicited> {
        Box::pin(self.put(question))
    }

    fn page_done(&self, by: &str, id: &str) {
        self.told_done(by, id);
    }
}

impl ClientAsker {
    pub(super) fn tell(&self, text: String) {
        let update = if self.abilities.notices {
            acp::SessionUpdate::Notice(acp::Notice::new(acp::NoticeSeverity::Warning, text))
        } else {
            acp::SessionUpdate::AgentThoughtChunk(acp::ContentChunk::new(format!("{text}\n").into()))
        };
        self.wire.update(&self.session.0, update);
    }

    fn request(&self, question: Question) -> acp::RequestPermissionRequest {
        // Where the client knows the call from.
        let apart = question.apart.filter(|_| self.abilities.subagents);
        let (session, call) = match apart {
            Some((session, call)) => (acp::SessionId::new(session), Some(call)),
            None => (self.session.clone(), question.call),
        };
        let by = question.by.filter(|_| session == self.session);
        let id = call.as_deref().unwrap_or("call");
        let arguments = Value::Object(question.arguments);
        let preview = calls::preview(&question.tool, &arguments, &self.cwd);
        let call = ToolUse { id: id.to_owned(), name: question.tool, arguments };
        let kind = calls::kind(&call.name, &self.plan);
        let said = calls::titled(&call.name, question.title, &self.plan);
        let fields = acp::ToolCallUpdateFields::new()
            .title(calls::title(&call, by.as_deref(), said.as_ref(), kind))
            .name(call.name)
            .kind(kind)
            .status(acp::ToolCallStatus::Pending)
            .content((!preview.is_empty()).then_some(preview))
            .raw_input(call.arguments);
        let always = &question.always;
        let mut options = vec![
            (ALLOW, "Allow".to_owned(), acp::PermissionOptionKind::AllowOnce),
            (ALLOW_ALWAYS, format!("Allow {always} in this session"), acp::PermissionOptionKind::AllowAlways),
            (REFUSE, "Reject".to_owned(), acp::PermissionOptionKind::RejectOnce),
            (REFUSE_ALWAYS, format!("Reject {always} in this session"), acp::PermissionOptionKind::RejectAlways),
        ];
        if question.rule.is_some() {
            let name = format!("Allow {always} in this project");
            options.insert(2, (ALLOW_IN_PROJECT, name, acp::PermissionOptionKind::AllowAlways));
        }
        let options = options.into_iter().map(|(id, name, kind)| acp::PermissionOption::new(id, name, kind));
        let update = acp::ToolCallUpdate::new(acp::ToolCallId::new(id), fields);
        acp::RequestPermissionRequest::new(session, update, options.collect())
    }
}
