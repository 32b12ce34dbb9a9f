//! Writes runs and their events in the JSON of the Agent Communication Protocol.

use serde_json::{Value, json};

use super::super::runs::{AgentRun, RunEvent, RunMessage, RunSnapshot};
use super::messages::{agent_message, json_part, part, text_part};
use crate::clock;

/// Returns the run as it is now.
pub(super) fn run(run: &AgentRun) -> Value {
    snapshot(run, &run.snapshot())
}

/// Returns an event of the run.
pub(super) fn event(run: &AgentRun, event: &RunEvent) -> Value {
    match event {
        RunEvent::Status(state) => {
            json!({"type": format!("run.{}", state.status.as_str()), "run": snapshot(run, state)})
        }
        RunEvent::MessageCreated { created_at } => {
            json!({"type": "message.created", "message": agent_message(&run.owner.agent, &[], *created_at, None)})
        }
        RunEvent::Part { part: piece, .. } => json!({"type": "message.part", "part": part(piece)}),
        RunEvent::MessageCompleted(ended) => json!({"type": "message.completed", "message": message(run, ended)}),
        RunEvent::Notice(text) => json!({"type": "generic", "generic": {"notice": text}}),
    }
}

fn snapshot(run: &AgentRun, state: &RunSnapshot) -> Value {
    let question = state.question.as_ref().map(|question| {
        let parts = [text_part(&question.text), json_part(&question.details)];
        json!({"type": "message", "message": {"role": "agent", "parts": parts}})
    });
    json!({
        "run_id": run.id,
        "agent_name": run.owner.agent,
        "session_id": run.owner.session,
        "status": state.status.as_str(),
        "await_request": question,
        "output": state.output.iter().map(|ended| message(run, ended)).collect::<Vec<_>>(),
        "error": state.error.as_ref().map(|problem| json!({"code": "server_error", "message": problem})),
        "created_at": clock::iso(run.created_at),
        "finished_at": state.finished_at.map(clock::iso),
    })
}

fn message(run: &AgentRun, message: &RunMessage) -> Value {
    let parts: Vec<_> = message.parts.iter().map(part).collect();
    agent_message(&run.owner.agent, &parts, message.created_at, Some(message.completed_at))
}
