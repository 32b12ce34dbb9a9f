//! Sends elicitations of services to the user of the client: as `elicitation/create` if the client supports it.
//! Otherwise as a permission request, if the answers can be listed.
//!
//! Invariant: the question names the service that asks, and no answer is invented.

use agent_client_protocol::v1::schema as acp;
use serde_json::{Map, Value, json};

use super::ask::AcpAsker;
use super::wire::ClientWriter;
use crate::diagnostic::printable;
use crate::ids::random_id;
use crate::tool::elicit::{Elicitation, ElicitationKind, ElicitationResponse, host};

/// Maximum number of values that are listed as options.
const MAX_CHOICES: usize = 12;
const DECLINE: &str = "decline";

impl AcpAsker {
    pub(super) async fn put(&self, question: Elicitation) -> ElicitationResponse {
        if let Some(reason) = question.refusal() {
            self.report_declined(&question, &reason);
            return ElicitationResponse::Declined;
        }
        let mode = match &question.kind {
            ElicitationKind::Fields(schema) if self.features.forms => self.form(&question, schema),
            ElicitationKind::Page { id, url } if self.features.pages => {
                Some(acp::ElicitationUrlMode::new(self.scope(&question), page_id(&question.by, id), url.clone()).into())
            }
            ElicitationKind::Fields(_) | ElicitationKind::Page { .. } => None,
        };
        match (mode, choices(&question.kind)) {
            (Some(mode), _) => {
                self.create_elicitation(acp::CreateElicitationRequest::new(mode, question_text(&question))).await
            }
            (None, Some(choices)) => self.ask_as_permission(&question, choices).await,
            (None, None) => {
                self.report_declined(&question, "this client cannot show its form");
                ElicitationResponse::Declined
            }
        }
    }

    /// Notifies a client that supports pages that this page is completed.
    pub(super) fn notify_page_done(&self, by: &str, id: &str) {
        if self.features.pages {
            let done = acp::CompleteElicitationNotification::new(page_id(by, id));
            // Fails only if the client has disconnected.
            drop(self.client.send_notification(done));
        }
    }

    fn report_declined(&self, question: &Elicitation, reason: &str) {
        tracing::warn!(by = question.by, reason, "a question was declined");
        self.tell(format!("A question of {} was declined: {reason}. It said: {}", question.by, question.message));
    }

    /// Returns the scope of an elicitation. If the client supports subagents, leaves out a call id with a dot, as calls
    /// of child sessions have: the client does not know such calls in this session.
    fn scope(&self, question: &Elicitation) -> acp::ElicitationSessionScope {
        let known = |id: &&str| !(self.features.subagents && id.contains('.'));
        let call = question.call.as_deref().filter(known).map(acp::ToolCallId::new);
        acp::ElicitationSessionScope::new(self.session.clone()).tool_call_id(call)
    }

    /// Returns the form of an elicitation. `None` if ACP has no form for the schema.
    fn form(&self, question: &Elicitation, schema: &Map<String, Value>) -> Option<acp::ElicitationMode> {
        let schema = serde_json::from_value::<acp::ElicitationSchema>(Value::Object(schema.clone())).ok()?;
        Some(acp::ElicitationFormMode::new(self.scope(question), schema).into())
    }

    async fn create_elicitation(&self, request: acp::CreateElicitationRequest) -> ElicitationResponse {
        // The future is dropped when the turn is cancelled, which withdraws the request.
        match self.client.send_request(request).block_task().await.map(|said| said.action) {
            Ok(acp::ElicitationAction::Accept(accepted)) => {
                let fields = accepted.content.unwrap_or_default();
                match json!(fields) {
                    Value::Object(fields) => ElicitationResponse::Accepted(fields),
                    _ => ElicitationResponse::Accepted(Map::new()),
                }
            }
            Ok(acp::ElicitationAction::Decline) => ElicitationResponse::Declined,
            Ok(_) => ElicitationResponse::Dismissed,
            Err(error) => {
                tracing::warn!(%error, "the client did not answer a question");
                ElicitationResponse::Unavailable
            }
        }
    }

    /// Sends the question as a permission request with one option per answer. The client shows it as a separate tool
    /// call that ends with the question.
    async fn ask_as_permission(&self, question: &Elicitation, choices: Vec<AnswerOption>) -> ElicitationResponse {
        let mut text = question_text(question);
        if let ElicitationKind::Page { url, .. } = &question.kind {
            text = format!("{text}\n\n{url}");
        }
        let standing = QuestionCall::start(self, &question.by, text);
        let ids = (0..choices.len()).map(|at| format!("answer-{at}")).collect::<Vec<_>>();
        let option = |(id, choice): (&String, &AnswerOption)| {
            acp::PermissionOption::new(id.clone(), choice.name.clone(), acp::PermissionOptionKind::AllowOnce)
        };
        let mut options: Vec<_> = ids.iter().zip(&choices).map(option).collect();
        options.push(acp::PermissionOption::new(DECLINE, "Decline", acp::PermissionOptionKind::RejectOnce));
        let request = acp::RequestPermissionRequest::new(self.session.clone(), standing.pending_update(), options);
        let outcome = self.client.send_request(request).block_task().await.map(|said| said.outcome);
        match outcome {
            Ok(acp::RequestPermissionOutcome::Selected(selected)) => {
                let chosen = ids.iter().position(|id| **id == *selected.option_id.0);
                match chosen.and_then(|at| choices.into_iter().nth(at)) {
                    Some(choice) => {
                        standing.complete();
                        ElicitationResponse::Accepted(choice.fields)
                    }
                    None => ElicitationResponse::Declined,
                }
            }
            Ok(_) => ElicitationResponse::Dismissed,
            Err(error) => {
                tracing::warn!(%error, "the client did not answer a question");
                ElicitationResponse::Unavailable
            }
        }
    }
}

/// A question that the client shows as a tool call.
struct QuestionCall {
    wire: ClientWriter,
    session: acp::SessionId,
    id: acp::ToolCallId,
    status: acp::ToolCallStatus,
    title: String,
    content: Vec<acp::ToolCallContent>,
}

impl QuestionCall {
    fn start(asker: &AcpAsker, by: &str, text: String) -> Self {
        let standing = Self {
            wire: asker.wire.clone(),
            session: asker.session.clone(),
            id: acp::ToolCallId::new(random_id("question")),
            status: acp::ToolCallStatus::Failed,
            title: format!("{} asks", printable(by)),
            content: vec![acp::ContentBlock::Text(acp::TextContent::new(text)).into()],
        };
        let call = acp::ToolCall::new(standing.id.clone(), standing.title.clone())
            .status(acp::ToolCallStatus::Pending)
            .content(standing.content.clone());
        standing.wire.send_update(&standing.session.0, acp::SessionUpdate::ToolCall(call));
        standing
    }

    fn pending_update(&self) -> acp::ToolCallUpdate {
        let fields = acp::ToolCallUpdateFields::new().title(self.title.clone()).content(self.content.clone());
        acp::ToolCallUpdate::new(self.id.clone(), fields.status(acp::ToolCallStatus::Pending))
    }

    fn complete(mut self) {
        self.status = acp::ToolCallStatus::Completed;
    }
}

/// Ends the call, also if the caller no longer waits for the answer.
impl Drop for QuestionCall {
    fn drop(&mut self) {
        let fields = acp::ToolCallUpdateFields::new().status(self.status);
        let update = acp::ToolCallUpdate::new(self.id.clone(), fields);
        self.wire.send_update(&self.session.0, acp::SessionUpdate::ToolCallUpdate(update));
    }
}

/// An answer that is shown as an option, and the fields it fills in.
#[derive(Debug, Clone, PartialEq)]
struct AnswerOption {
    name: String,
    fields: Map<String, Value>,
}

/// Returns the answers if they can be listed: for a page, and for a form that has no field, or a single field that is
/// a boolean or has few values. Otherwise `None`.
fn choices(wanted: &ElicitationKind) -> Option<Vec<AnswerOption>> {
    let simple = |name: &str| vec![AnswerOption { name: name.to_owned(), fields: Map::new() }];
    let schema = match wanted {
        ElicitationKind::Page { .. } => return Some(simple("I have done it")),
        ElicitationKind::Fields(schema) => schema,
    };
    let fields = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut fields = fields.into_iter();
    let Some((field, about)) = fields.next() else { return Some(simple("Accept")) };
    if fields.next().is_some() {
        return None;
    }
    let choice = |name: &str, value: Value| AnswerOption {
        name: printable(name),
        fields: Map::from_iter([(field.clone(), value)]),
    };
    let title = about["title"].as_str().unwrap_or(&field);
    if about["type"] == "boolean" {
        let named = |answer: &str, value: bool| choice(&format!("{title}: {answer}"), json!(value));
        return Some(vec![named("yes", true), named("no", false)]);
    }
    let values = values(&about);
    let listed = !values.is_empty() && values.len() <= MAX_CHOICES;
    listed.then(|| values.iter().map(|(value, name)| choice(name, json!(value))).collect())
}

/// Returns the values of an enum field and their names. Empty for other fields.
fn values(about: &Value) -> Vec<(String, String)> {
    if about["type"] != "string" {
        return Vec::new();
    }
    if let Some(plain) = about["enum"].as_array() {
        let names = about["enumNames"].as_array();
        let name = |at: usize| names.and_then(|names| names.get(at)?.as_str());
        let plain = plain.iter().filter_map(Value::as_str).enumerate();
        return plain.map(|(at, value)| (value.to_owned(), name(at).unwrap_or(value).to_owned())).collect();
    }
    let titled = about["oneOf"].as_array().map(Vec::as_slice).unwrap_or_default().iter();
    let titled = titled.filter_map(|one| Some((one["const"].as_str()?, one["title"].as_str()?)));
    titled.map(|(value, name)| (value.to_owned(), name.to_owned())).collect()
}

/// Returns the question with the name of the service that asks.
fn question_text(question: &Elicitation) -> String {
    let by = printable(&question.by);
    match &question.kind {
        ElicitationKind::Fields(_) => format!("{by} asks: {}", question.message),
        ElicitationKind::Page { url, .. } => {
            format!("{by} asks you to open a page of {}: {}", host(url).unwrap_or_default(), question.message)
        }
    }
}

/// Returns an id that is unique on the connection: two services may use the same one.
fn page_id(by: &str, id: &str) -> String {
    format!("{by}/{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(schema: Value) -> Option<Vec<String>> {
        let Value::Object(schema) = schema else { unreachable!() };
        choices(&ElicitationKind::Fields(schema)).map(|choices| choices.into_iter().map(|choice| choice.name).collect())
    }

    #[test]
    fn only_answers_that_can_be_listed_are_options() {
        let one = |field: Value| names(json!({"type": "object", "properties": {"x": field}}));
        assert_eq!(names(json!({"type": "object", "properties": {}})).unwrap(), ["Accept"]);
        assert_eq!(one(json!({"type": "boolean", "title": "Go on"})).unwrap(), ["Go on: yes", "Go on: no"]);
        assert_eq!(one(json!({"type": "string", "enum": ["a", "b"]})).unwrap(), ["a", "b"]);
        assert_eq!(one(json!({"type": "string", "oneOf": [{"const": "a", "title": "A"}]})).unwrap(), ["A"]);
        assert_eq!(one(json!({"type": "string"})), None);
        assert_eq!(names(json!({"properties": {"x": {"type": "boolean"}, "y": {"type": "boolean"}}})), None);
    }
}
