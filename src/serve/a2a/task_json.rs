//! Writes runs as tasks of A2A, with their status and artifacts.

use serde_json::{Value, json};

use super::super::runs::{AgentRun, RunPart, RunSnapshot, RunStatus};
use crate::clock;

/// Returns the task as it is now.
pub(super) fn task(run: &AgentRun) -> Value {
    snapshot(run, &run.snapshot())
}

/// Returns the task as it was.
pub(super) fn snapshot(run: &AgentRun, state: &RunSnapshot) -> Value {
    let ended = state.output.iter().enumerate().map(|(index, message)| (index, parts(&message.parts)));
    let draft = state.draft.as_ref().filter(|text| !text.is_empty());
    let draft = draft.map(|text| (state.output.len(), vec![json!({"text": text})]));
    let artifacts = ended.chain(draft).filter(|(_, parts)| !parts.is_empty());
    json!({
        "id": run.id,
        "contextId": run.owner.session,
        "status": status(run, state),
        "artifacts": artifacts.map(|(index, parts)| artifact(index, parts)).collect::<Vec<_>>(),
        "metadata": {"agent": run.owner.agent},
    })
}

/// Returns the status of the task: its state, and the open question or the error.
pub(super) fn status(run: &AgentRun, state: &RunSnapshot) -> Value {
    let mut status = json!({"state": state_name(state.status), "timestamp": clock::iso(state.changed_at)});
    if let Some(question) = &state.question {
        let parts = json!([{"text": question.text}, {"data": question.details, "mediaType": "application/json"}]);
        status["message"] = message(run, &format!("question-{}", question.number), parts);
    } else if let Some(error) = &state.error {
        status["message"] = message(run, "error", json!([{"text": error}]));
    }
    status
}

/// Returns an event with another status.
pub(super) fn status_update(run: &AgentRun, status: &Value) -> Value {
    json!({"statusUpdate": {"taskId": run.id, "contextId": run.owner.session, "status": status}})
}

/// Returns an event with a remark of Skein.
pub(super) fn notice(run: &AgentRun, position: usize, text: &str) -> Value {
    let said = message(run, &format!("notice-{position}"), json!([{"text": text}]));
    let state = state_name(RunStatus::InProgress);
    status_update(run, &json!({"state": state, "timestamp": clock::iso(clock::now()), "message": said}))
}

/// Returns an event with a part of the message at this place in the output. `None` if clients do not see the part.
pub(super) fn artifact_update(run: &AgentRun, index: usize, piece: &RunPart, is_first: bool) -> Option<Value> {
    let parts = parts(std::slice::from_ref(piece));
    let artifact = (!parts.is_empty()).then(|| artifact(index, parts))?;
    let (task, context) = (&run.id, &run.owner.session);
    let update = json!({"taskId": task, "contextId": context, "artifact": artifact, "append": !is_first});
    Some(json!({"artifactUpdate": update}))
}

/// Returns the name of a status in the protocol.
pub(super) fn state_name(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Created => "TASK_STATE_SUBMITTED",
        RunStatus::InProgress | RunStatus::Cancelling => "TASK_STATE_WORKING",
        RunStatus::Awaiting => "TASK_STATE_INPUT_REQUIRED",
        RunStatus::Cancelled => "TASK_STATE_CANCELED",
        RunStatus::Completed => "TASK_STATE_COMPLETED",
        RunStatus::Failed => "TASK_STATE_FAILED",
    }
}

/// Returns a message of the agent. Its id is the same whenever the task is read.
fn message(run: &AgentRun, name: &str, parts: Value) -> Value {
    json!({
        "messageId": format!("{}-{name}", run.id),
        "taskId": run.id,
        "contextId": run.owner.session,
        "role": "ROLE_AGENT",
        "parts": parts,
    })
}

fn artifact(index: usize, parts: Vec<Value>) -> Value {
    json!({"artifactId": format!("answer-{}", index + 1), "parts": parts})
}

/// Returns what the agent says. Its thoughts and calls stay on the server.
fn parts(parts: &[RunPart]) -> Vec<Value> {
    let part = |part: &RunPart| match part {
        RunPart::Text(text) if text.is_empty() => None,
        RunPart::Text(text) => Some(json!({"text": text})),
        RunPart::Media { mime, data } => Some(json!({"raw": data, "mediaType": mime})),
        RunPart::Thought(_) | RunPart::Call { .. } | RunPart::CallResult { .. } => None,
    };
    parts.iter().filter_map(part).collect()
}
