//! Forwards questions of an MCP server to the user of the session whose request they belong to. In the newer era a
//! question is the answer to a request, which is then sent again with the user's input. In the older era questions
//! arrive unsolicited.

use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest, InputRequests, InputResponses};
use serde_json::{Map, Value};

use super::McpClient;
use crate::services::connection::CallError;
use crate::services::content;
use crate::tool::elicit::{Elicitation, ElicitationKind, ElicitationResponse};
use crate::tool::{CallContext, strip_invisible, truncate};

pub(in crate::services::remote) const NO_SAMPLING: &str =
    "skein answers no sampling requests: its models are for the session, not for services";
pub(in crate::services::remote) const NO_ROOTS: &str =
    "skein sends its folders only to a service that belongs to one session (`scope: session`)";

/// Maximum number of questions in one answer.
const MAX_AT_ONCE: usize = 10;
/// Maximum bytes of a question.
const MAX_QUESTION: usize = 4_000;

/// Asks the user one question and returns the answer.
pub(in crate::services::remote) async fn elicit(
    client: &McpClient,
    params: ElicitRequestParams,
    context: &CallContext,
) -> ElicitResult {
    let (message, wanted) = match params {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            let Value::Object(mut schema) = content::json(&requested_schema) else {
                return ElicitResult::new(ElicitationAction::Decline);
            };
            tidy(&mut schema);
            (message, ElicitationKind::Fields(schema))
        }
        ElicitRequestParams::UrlElicitationParams { message, url, elicitation_id, .. } => {
            (message, ElicitationKind::Page { id: elicitation_id, url })
        }
        // The enum is non-exhaustive; an unknown question cannot be asked.
        _ => return ElicitResult::new(ElicitationAction::Decline),
    };
    let Some(asker) = context.asker() else {
        return ElicitResult::new(ElicitationAction::Cancel);
    };
    let question = Elicitation {
        by: client.service.to_string(),
        call: context.id.clone(),
        message: truncate(&strip_invisible(&message), MAX_QUESTION).to_owned(),
        kind: wanted.clone(),
    };
    let _open = context.open_question();
    let answer = tokio::select! {
        biased;
        () = context.cancel.cancelled() => ElicitationResponse::Dismissed,
        answer = asker.elicit(question) => answer,
    };
    match (answer, wanted) {
        (ElicitationResponse::Accepted(fields), ElicitationKind::Fields(schema)) => {
            ElicitResult::new(ElicitationAction::Accept).with_content(Value::Object(retain_requested(fields, &schema)))
        }
        (ElicitationResponse::Accepted(_), ElicitationKind::Page { id, .. }) => {
            client.register_page(id, std::sync::Arc::clone(asker));
            ElicitResult::new(ElicitationAction::Accept)
        }
        (ElicitationResponse::Declined, _) => ElicitResult::new(ElicitationAction::Decline),
        (ElicitationResponse::Dismissed | ElicitationResponse::Unavailable, _) => {
            ElicitResult::new(ElicitationAction::Cancel)
        }
    }
}

/// Collects the input that a server of the newer era requires. Returns it with the pages that the user visited for
/// it.
pub(in crate::services::remote) async fn answers(
    client: &McpClient,
    requests: InputRequests,
    context: &CallContext,
) -> Result<(InputResponses, Vec<String>), CallError> {
    if requests.len() > MAX_AT_ONCE {
        return Err(CallError::Refused(format!("it asks for {} things at once", requests.len())));
    }
    let (mut responses, mut visited) = (InputResponses::new(), Vec::new());
    for (key, request) in requests {
        let response = match request {
            InputRequest::Elicitation(request) => {
                let page = page_of(&request.params);
                let answer = elicit(client, request.params, context).await;
                visited.extend(page.filter(|_| answer.action == ElicitationAction::Accept));
                content::json(&answer)
            }
            InputRequest::ListRoots(_) => match client.roots() {
                Some(roots) => content::json(&roots),
                None => return Err(CallError::Refused(NO_ROOTS.to_owned())),
            },
            InputRequest::CreateMessage(_) => return Err(CallError::Refused(NO_SAMPLING.to_owned())),
            _ => return Err(CallError::Refused("it asks for something that skein does not know".to_owned())),
        };
        if context.cancel.is_cancelled() {
            return Err(CallError::Cancelled);
        }
        responses.insert(key, response);
    }
    Ok((responses, visited))
}

/// Returns the pages that an error names if the user has visited all of them; otherwise none.
pub(in crate::services::remote) async fn visit_pages(
    client: &McpClient,
    error: Option<&Value>,
    context: &CallContext,
) -> Vec<String> {
    let wanted = error.and_then(|error| error["elicitations"].as_array()).map(Vec::as_slice).unwrap_or_default();
    let mut visited = Vec::new();
    for page in wanted.iter().take(MAX_AT_ONCE) {
        let Ok(params) = serde_json::from_value::<ElicitRequestParams>(page.clone()) else { return Vec::new() };
        let Some(page) = page_of(&params) else { return Vec::new() };
        if elicit(client, params, context).await.action != ElicitationAction::Accept {
            return Vec::new();
        }
        visited.push(page);
    }
    visited
}

fn page_of(params: &ElicitRequestParams) -> Option<String> {
    match params {
        ElicitRequestParams::UrlElicitationParams { elicitation_id, .. } => Some(elicitation_id.clone()),
        _ => None,
    }
}

/// Marks the pages that were visited for a request as done, because the request has its answer.
pub(in crate::services::remote) fn finish_pages(client: &McpClient, pages: &[String], context: &CallContext) {
    for page in pages {
        // Two sessions on one connection may have pages with the same id.
        match context.asker().filter(|_| !client.is_owned()) {
            Some(asker) => asker.page_done(client.service.as_str(), page),
            None => client.finish_page(page),
        }
    }
}

/// Drops fields that the server did not request.
fn retain_requested(fields: Map<String, Value>, schema: &Map<String, Value>) -> Map<String, Value> {
    let asked = |name: &String| schema.get("properties").is_some_and(|properties| properties.get(name).is_some());
    fields.into_iter().filter(|(name, _)| asked(name)).collect()
}

/// Sanitizes titles and descriptions, which are shown to the user.
fn tidy(schema: &mut Map<String, Value>) {
    for (key, value) in schema {
        match value {
            Value::String(text) if ["title", "description"].contains(&key.as_str()) => {
                *text = truncate(&strip_invisible(text), MAX_QUESTION).to_owned();
            }
            Value::Object(object) => tidy(object),
            Value::Array(items) => items.iter_mut().filter_map(Value::as_object_mut).for_each(tidy),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ServiceName;
    use crate::services::environment::SecretValues;
    use crate::tool::SessionContext;

    #[tokio::test]
    async fn too_many_questions_in_one_answer_are_refused() {
        let client = McpClient::new(ServiceName::new("questions"), SecretValues::default(), None);
        let session = SessionContext::new("s", "/nowhere".into(), Vec::new(), "/nowhere/scratch".into());
        let context = CallContext::new(session);
        let question = InputRequest::ListRoots(Default::default());
        let refuse = async |count: usize| {
            let requests = (0..count).map(|number| (number.to_string(), question.clone())).collect();
            answers(&client, requests, &context).await.unwrap_err()
        };
        assert_eq!(refuse(MAX_AT_ONCE).await, CallError::Refused(NO_ROOTS.to_owned()));
        let too_many = CallError::Refused("it asks for 11 things at once".to_owned());
        assert_eq!(refuse(MAX_AT_ONCE + 1).await, too_many);
    }
}
