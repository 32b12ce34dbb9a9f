//! Reads what a remote agent says about a task.
//!
//! Invariant: pure. Unknown fields and states are ignored.

use serde_json::Value;

use crate::conversation::Content;

/// One reply or event of an agent.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TaskUpdate {
    pub(super) task: Option<String>,
    pub(super) context: Option<String>,
    pub(super) pieces: Vec<TaskPiece>,
    pub(super) state: RemoteState,
    /// What the agent says about the state.
    pub(super) message: Option<StateMessage>,
}

/// A piece of the agent's output.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TaskPiece {
    /// The id of the artifact or message.
    pub(super) id: String,
    pub(super) content: Vec<Content>,
    /// Whether the content follows that of earlier pieces with the id. Otherwise it is the whole output so far.
    pub(super) appends: bool,
}

/// A message about a state.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct StateMessage {
    pub(super) id: String,
    pub(super) content: Vec<Content>,
    pub(super) text: String,
    /// The first JSON object in it.
    pub(super) details: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemoteState {
    Working,
    InputRequired,
    AuthRequired,
    Completed,
    Failed,
    Rejected,
    Canceled,
}

impl RemoteState {
    fn read(status: &Value) -> Self {
        match status["state"].as_str() {
            Some("TASK_STATE_INPUT_REQUIRED") => Self::InputRequired,
            Some("TASK_STATE_AUTH_REQUIRED") => Self::AuthRequired,
            Some("TASK_STATE_COMPLETED") => Self::Completed,
            Some("TASK_STATE_FAILED") => Self::Failed,
            Some("TASK_STATE_REJECTED") => Self::Rejected,
            Some("TASK_STATE_CANCELED") => Self::Canceled,
            _ => Self::Working,
        }
    }

    /// Returns whether the task has ended.
    pub(super) fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Rejected | Self::Canceled)
    }
}

impl TaskUpdate {
    /// Reads a reply or an event. `None` if it is neither a task, a message nor a change of a task.
    pub(super) fn read(value: &Value) -> Option<Self> {
        if let Some(task) = value.get("task") {
            return Some(Self::of_task(task));
        }
        if let Some(message) = value.get("message") {
            let piece =
                TaskPiece { id: text(message, "messageId"), content: contents(&message["parts"]), appends: false };
            // A message is the whole answer of an agent that has no tasks.
            return Some(Self { pieces: vec![piece], state: RemoteState::Completed, ..Self::about(message, "taskId") });
        }
        if let Some(update) = value.get("statusUpdate") {
            let (state, message) = state(&update["status"]);
            return Some(Self { state, message, ..Self::about(update, "taskId") });
        }
        let update = value.get("artifactUpdate")?;
        let piece = piece(&update["artifact"], update["append"] == true);
        Some(Self { pieces: vec![piece], ..Self::about(update, "taskId") })
    }

    pub(super) fn of_task(task: &Value) -> Self {
        let (state, message) = state(&task["status"]);
        let artifacts = task["artifacts"].as_array().map(Vec::as_slice).unwrap_or_default();
        let pieces = artifacts.iter().map(|artifact| piece(artifact, false)).collect();
        Self { pieces, state, message, ..Self::about(task, "id") }
    }

    fn about(value: &Value, task: &str) -> Self {
        let id = |key: &str| Some(text(value, key)).filter(|id| !id.is_empty());
        let (task, context) = (id(task), id("contextId"));
        Self { task, context, pieces: Vec::new(), state: RemoteState::Working, message: None }
    }
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn piece(artifact: &Value, appends: bool) -> TaskPiece {
    TaskPiece { id: text(artifact, "artifactId"), content: contents(&artifact["parts"]), appends }
}

fn state(status: &Value) -> (RemoteState, Option<StateMessage>) {
    let message = status.get("message").filter(|message| message.is_object()).map(|message| {
        let parts = message["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
        let texts: Vec<_> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
        let details = parts.iter().map(|part| &part["data"]).find(|data| data.is_object());
        StateMessage {
            id: text(message, "messageId"),
            content: contents(&message["parts"]),
            text: texts.join("\n"),
            details: details.cloned().unwrap_or_default(),
        }
    });
    (RemoteState::read(status), message)
}

/// Converts the parts of a message or an artifact.
fn contents(parts: &Value) -> Vec<Content> {
    let content = |part: &Value| {
        let (mime, data) = (text(part, "mediaType"), text(part, "raw"));
        if let Some(text) = part["text"].as_str() {
            Some(Content::text(text))
        } else if mime.starts_with("image/") && !data.is_empty() {
            Some(Content::Image { mime, data })
        } else if mime.starts_with("audio/") && !data.is_empty() {
            Some(Content::Audio { mime, data })
        } else if let Some(url) = part["url"].as_str() {
            Some(Content::text(url))
        } else if !data.is_empty() {
            Some(Content::text(format!("(a file: {} {mime})", text(part, "filename"))))
        } else {
            part.get("data").map(|data| Content::text(data.to_string()))
        }
    };
    parts.as_array().map(Vec::as_slice).unwrap_or_default().iter().filter_map(content).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_task_has_its_output_and_its_question() {
        let update = TaskUpdate::read(&json!({"task": {
            "id": "t", "contextId": "c",
            "status": {"state": "TASK_STATE_INPUT_REQUIRED", "message": {
                "messageId": "q", "parts": [{"text": "Which?"}, {"data": {"kind": "choice"}}],
            }},
            "artifacts": [{"artifactId": "a", "parts": [{"text": "one"}, {"raw": "AAAA", "mediaType": "image/png"}]}],
        }}));
        let update = update.unwrap();
        assert_eq!((update.task.as_deref(), update.context.as_deref()), (Some("t"), Some("c")));
        let image = Content::Image { mime: "image/png".to_owned(), data: "AAAA".to_owned() };
        let piece = TaskPiece { id: "a".to_owned(), content: vec![Content::text("one"), image], appends: false };
        assert_eq!((update.pieces, update.state), (vec![piece], RemoteState::InputRequired));
        let question = update.message.unwrap();
        assert_eq!((&*question.text, question.details), ("Which?", json!({"kind": "choice"})));
    }

    #[test]
    fn changes_of_a_task_are_told_apart() {
        let read = |value: Value| TaskUpdate::read(&value);
        let status = json!({"statusUpdate": {"taskId": "t", "status": {"state": "TASK_STATE_CANCELED"}}});
        assert_eq!(read(status).unwrap().state, RemoteState::Canceled);
        let parts = json!([{"text": "x"}]);
        let more =
            json!({"artifactUpdate": {"taskId": "t", "append": true, "artifact": {"artifactId": "a", "parts": parts}}});
        let more = read(more).unwrap();
        assert!(more.pieces[0].appends && more.state == RemoteState::Working);
        let message = read(json!({"message": {"messageId": "m", "parts": parts}})).unwrap();
        assert_eq!(
            (message.pieces[0].content.as_slice(), message.state.is_terminal()),
            ([Content::text("x")].as_slice(), true)
        );
        assert_eq!(read(json!({"other": 1})), None);
    }
}
