//! Sends the questions of a turn to the client of its run: the run waits until the client resumes it with an answer.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::questions::{QuestionAnswer, QuestionMessage, QuestionOptions, RunQuestion};
use super::run::AgentRun;
use crate::tool::ask::{Asker, ExternalPermissionRequest, PermissionRequest, PermissionResponse};
use crate::tool::elicit::{Elicitation, ElicitationKind, ElicitationResponse};
use crate::tool::strip_invisible;

/// The asker of a run.
pub(super) struct RunAsker {
    pub(super) run: Arc<AgentRun>,
    /// How long a question waits for an answer.
    pub(super) timeout: Duration,
}

/// Withdraws a question when the turn no longer waits for it.
struct RunQuestionGuard<'a> {
    run: &'a AgentRun,
    number: u64,
}

impl Drop for RunQuestionGuard<'_> {
    fn drop(&mut self) {
        self.run.withdraw(self.number);
    }
}

impl RunAsker {
    /// Asks the client. `None` if it does not answer in time. `details` describes the question to programs.
    async fn put(&self, text: &str, mut details: Value, options: QuestionOptions) -> Option<QuestionAnswer> {
        details["options"] = json!(options.names());
        let text = strip_invisible(text);
        let question = |number, answer| {
            let message = Arc::new(QuestionMessage { text, details, number });
            RunQuestion { message, options, answer }
        };
        let (number, answer) = self.run.ask(question);
        let _open = RunQuestionGuard { run: &self.run, number };
        tokio::time::timeout(self.timeout, answer).await.ok()?.ok()
    }
}

impl Asker for RunAsker {
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        Box::pin(async move {
            let mut words = vec![
                ("allow", PermissionResponse::Allow),
                ("allow always", PermissionResponse::AllowAlways),
                ("reject", PermissionResponse::Refuse),
                ("reject always", PermissionResponse::RefuseAlways),
            ];
            if question.once_reason().is_some() {
                words.retain(|(_, response)| *response != PermissionResponse::AllowAlways);
            }
            if question.is_single() {
                words.retain(|(_, response)| *response != PermissionResponse::RefuseAlways);
            }
            let words = words.into_iter().map(|(word, answer)| (word.to_owned(), QuestionAnswer::Permission(answer)));
            let details = json!({
                "kind": "permission",
                "tool": question.tool,
                "arguments": question.arguments,
                "always": question.always.to_string(),
            });
            match self.put(&permission_text(&question), details, QuestionOptions::new(words.collect())).await {
                Some(QuestionAnswer::Permission(answer)) => answer,
                _ => PermissionResponse::Unavailable,
            }
        })
    }

    fn choose(&self, request: ExternalPermissionRequest) -> BoxFuture<'_, Option<String>> {
        Box::pin(async move {
            // Names may repeat; ids do not.
            let words =
                request.options.iter().map(|option| (option.id.clone(), QuestionAnswer::Choice(option.id.clone())));
            let name = |name: &str| Value::String(strip_invisible(name));
            let names: Map<String, Value> =
                request.options.iter().map(|option| (option.id.clone(), name(&option.name))).collect();
            let details = json!({"kind": "choice", "names": names});
            let text = format!("{} asks: {}", request.by, request.title);
            match self.put(&text, details, QuestionOptions::new(words.collect())).await {
                Some(QuestionAnswer::Choice(id)) => Some(id),
                _ => None,
            }
        })
    }

    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, ElicitationResponse> {
        Box::pin(async move {
            if question.refusal().is_some() {
                return ElicitationResponse::Declined;
            }
            let answer = |word: &str, answer| (word.to_owned(), QuestionAnswer::Elicitation(answer));
            let mut words = vec![
                answer("decline", ElicitationResponse::Declined),
                answer("cancel", ElicitationResponse::Dismissed),
            ];
            let (options, details) = match question.kind {
                ElicitationKind::Fields(schema) => {
                    let fields = schema.get("properties").and_then(Value::as_object);
                    let fields = fields.into_iter().flatten().map(|(name, _)| name.clone()).collect();
                    (QuestionOptions::new(words).with_fields(fields), json!({"kind": "form", "schema": schema}))
                }
                ElicitationKind::Page { url, .. } => {
                    words.insert(0, answer("done", ElicitationResponse::Accepted(Map::new())));
                    (QuestionOptions::new(words), json!({"kind": "page", "url": url}))
                }
            };
            let text = format!("{} asks: {}", question.by, question.message);
            match self.put(&text, details, options).await {
                Some(QuestionAnswer::Elicitation(answer)) => answer,
                _ => ElicitationResponse::Unavailable,
            }
        })
    }
}

/// Describes a call in full, because the client sees nothing else of it.
fn permission_text(question: &PermissionRequest) -> String {
    let arguments = serde_json::to_string_pretty(&question.arguments).unwrap_or_default();
    let covers = match question.once_reason() {
        Some(reason) => format!("{reason}."),
        None => format!("An answer with `always` covers {} until the run ends.", question.always),
    };
    if let Some(title) = question.sandbox_title() {
        return format!("The sandbox asks: {title}\n{arguments}\n{covers}");
    }
    let caller = question.by.as_deref().unwrap_or("The agent");
    let services = question.calling_services().map(|services| format!(" for {services}")).unwrap_or_default();
    let title = question.title.as_deref().map(|title| format!(" ({title})")).unwrap_or_default();
    let target = question.target.as_ref().map(|target| format!(" on {target}")).unwrap_or_default();
    let tool = &question.tool;
    format!("{caller} wants to call {tool}{title}{target}{services}:\n{arguments}\n{covers}")
}
