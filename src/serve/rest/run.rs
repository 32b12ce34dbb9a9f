//! A run: one turn of a session as the Agent Communication Protocol shows it, with its status, output and events.
//!
//! Invariant: a run that has ended does not change any more.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::errors::RestError;
use super::messages::{agent_message, is_text, parts_of, text_part};
use super::questions::{QuestionAnswer, RunQuestion};
use crate::agents::{Event, Notifier, StatusUpdate, StopReason, TurnEnd};
use crate::clock;
use crate::ids::ModeId;
use crate::principal::{Principal, SessionFiles, SessionGrant};
use crate::session::{SessionRoots, SessionViewer, TurnFailure};

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunStatus {
    Created,
    InProgress,
    /// The run has an open question.
    Awaiting,
    Cancelling,
    Cancelled,
    Completed,
    Failed,
}

impl RunStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::InProgress => "in-progress",
            Self::Awaiting => "awaiting",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    fn is_terminal(self) -> bool {
        matches!(self, Self::Cancelled | Self::Completed | Self::Failed)
    }

    /// Returns whether the run waits for its client, or has ended.
    fn is_stop(self) -> bool {
        self.is_terminal() || self == Self::Awaiting
    }
}

/// What a run belongs to.
#[derive(Debug, Clone)]
pub(super) struct RunOwner {
    pub(super) principal: Principal,
    /// The id of the token that started the run.
    pub(super) token: String,
    /// The agent's name in the API.
    pub(super) agent: String,
    pub(super) mode: ModeId,
    /// The UUID of the session.
    pub(super) session: String,
    /// The folders of the session.
    pub(super) roots: SessionRoots,
}

/// A run.
pub(super) struct AgentRun {
    pub(super) id: String,
    owner: RunOwner,
    created_at: u64,
    state: Mutex<RunState>,
    /// Counts changes. Streams and waiting requests subscribe to it.
    changes: watch::Sender<u64>,
    /// Cancels the turn.
    cancel: CancellationToken,
}

struct RunState {
    status: RunStatus,
    output: Vec<Value>,
    error: Option<Value>,
    finished_at: Option<u64>,
    events: Vec<Value>,
    /// The message that the agent writes now.
    message: Option<MessageDraft>,
    /// The open questions. Clients see the first one.
    questions: VecDeque<RunQuestion>,
    next_question: u64,
}

/// A message whose end has not come yet.
struct MessageDraft {
    created_at: u64,
    text: String,
}

impl AgentRun {
    /// Creates a run whose turn `cancel` ends.
    pub(super) fn new(owner: RunOwner, cancel: CancellationToken) -> Self {
        let state = RunState {
            status: RunStatus::Created,
            output: Vec::new(),
            error: None,
            finished_at: None,
            events: Vec::new(),
            message: None,
            questions: VecDeque::new(),
            next_question: 0,
        };
        let run = Self {
            id: crate::ids::random_uuid(),
            owner,
            created_at: clock::now(),
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
            cancel,
        };
        run.update(|state| run.push_run_event(state, "run.created"));
        run
    }

    /// Returns whether a client with this grant may know the run.
    pub(super) fn is_visible(&self, grant: &SessionGrant) -> bool {
        let (limits, SessionRoots { cwd, files, .. }) = (grant.limits(), &self.owner.roots);
        self.owner.principal == *grant.principal()
            && limits.admits_mode(&self.owner.mode)
            && (grant.principal().is_local() || *files != SessionFiles::Server || limits.admits_folder(cwd))
    }

    pub(super) fn principal(&self) -> &Principal {
        &self.owner.principal
    }

    /// Returns whether the token with this id started the run.
    pub(super) fn is_of_token(&self, id: &str) -> bool {
        self.owner.token == id
    }

    /// Returns the time of the end. `None` if the run has not ended.
    pub(super) fn end_time(&self) -> Option<u64> {
        self.state().finished_at
    }

    /// Returns the run in the protocol's JSON.
    pub(super) fn to_json(&self) -> Value {
        self.json(&self.state())
    }

    /// Returns all events so far.
    pub(super) fn events(&self) -> Vec<Value> {
        self.state().events.clone()
    }

    pub(super) fn event_count(&self) -> usize {
        self.state().events.len()
    }

    /// Marks the run as working.
    pub(super) fn start(&self) {
        self.update(|state| {
            state.status = RunStatus::InProgress;
            self.push_run_event(state, "run.in-progress");
        });
    }

    /// Ends the run. Does nothing if it has ended. The error is the reason why the turn failed.
    pub(super) fn finish(&self, end: Result<&TurnEnd, &TurnFailure>) {
        let (status, event, problem) = match end {
            Err(failure) => (RunStatus::Failed, "run.failed", Some(failure.0.clone())),
            Ok(TurnEnd { ending, .. }) => match ending {
                StopReason::EndTurn | StopReason::MaxTokens | StopReason::Refusal | StopReason::CallRefused { .. } => {
                    (RunStatus::Completed, "run.completed", None)
                }
                StopReason::Cancelled => (RunStatus::Cancelled, "run.cancelled", None),
                StopReason::Exhausted { why } | StopReason::Failed { why, .. } => {
                    (RunStatus::Failed, "run.failed", Some(why.clone()))
                }
            },
        };
        self.update_running(|state| {
            // A turn that was cut off has written a part of its message.
            if let Some(draft) = &state.message {
                let parts = vec![text_part(&draft.text)];
                self.complete_message(state, parts);
            }
            state.questions.clear();
            state.status = status;
            state.error = problem.map(|problem| json!({"code": "server_error", "message": problem}));
            state.finished_at = Some(clock::now());
            self.push_run_event(state, event);
        });
    }

    /// Asks the turn to end. Fails if the run has ended.
    pub(super) fn cancel(&self) -> Result<(), RestError> {
        self.update(|state| {
            if state.status.is_terminal() {
                let status = state.status.as_str();
                return Err(RestError::forbidden(format!("the run is {status} and cannot be cancelled")));
            }
            state.status = RunStatus::Cancelling;
            Ok(())
        })?;
        self.cancel.cancel();
        Ok(())
    }

    /// Adds a question of the turn. Returns its number and the receiver of the answer.
    pub(super) fn ask(
        &self,
        question: impl FnOnce(u64, oneshot::Sender<QuestionAnswer>) -> RunQuestion,
    ) -> (u64, oneshot::Receiver<QuestionAnswer>) {
        let (sender, receiver) = oneshot::channel();
        let number = self.update(|state| {
            let number = state.next_question;
            state.next_question += 1;
            state.questions.push_back(question(number, sender));
            if state.questions.len() == 1 {
                self.show_question(state);
            }
            number
        });
        (number, receiver)
    }

    /// Withdraws a question. Does nothing if it was answered.
    pub(super) fn withdraw(&self, number: u64) {
        self.update(|state| {
            let Some(place) = state.questions.iter().position(|question| question.number == number) else { return };
            state.questions.remove(place);
            if place == 0 {
                self.show_question(state);
            }
        });
    }

    /// Answers the question that clients see. Fails if there is none, or the text is no answer to it.
    pub(super) fn resume(&self, text: &str) -> Result<(), RestError> {
        self.update(|state| {
            let Some(question) = state.questions.front().filter(|_| state.status == RunStatus::Awaiting) else {
                let status = state.status.as_str();
                return Err(RestError::forbidden(format!("the run is {status} and has no open question")));
            };
            let answer = question.options.read(text)?;
            if let Some(question) = state.questions.pop_front() {
                // Fails only if the turn no longer waits for it.
                drop(question.answer.send(answer));
            }
            self.show_question(state);
            Ok(())
        })
    }

    /// Waits until the run has ended, or has an open question.
    pub(super) async fn wait_for_stop(&self) {
        let mut changes = self.changes.subscribe();
        while !self.state().status.is_stop() {
            // Fails only if the run is dropped, and this borrows it.
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits for the event at this position. `None` if the run stops before there is one.
    pub(super) async fn next_event(&self, position: usize) -> Option<Value> {
        let mut changes = self.changes.subscribe();
        loop {
            {
                let state = self.state();
                if let Some(event) = state.events.get(position) {
                    return Some(event.clone());
                }
                if state.status.is_stop() {
                    return None;
                }
            }
            changes.changed().await.ok()?;
        }
    }

    /// Shows the first question, or that there is none any more.
    fn show_question(&self, state: &mut RunState) {
        if state.status.is_terminal() || state.status == RunStatus::Cancelling {
            return;
        }
        let (status, event) = match state.questions.is_empty() {
            false => (RunStatus::Awaiting, "run.awaiting"),
            true => (RunStatus::InProgress, "run.in-progress"),
        };
        state.status = status;
        self.push_run_event(state, event);
    }

    /// Adds text that the agent writes.
    fn stream_text(&self, text: &str) {
        self.update_running(|state| {
            self.open_message(state);
            if let Some(draft) = &mut state.message {
                draft.text.push_str(text);
            }
            state.events.push(json!({"type": "message.part", "part": text_part(text)}));
        });
    }

    /// Begins a message, unless the agent writes one already.
    fn open_message(&self, state: &mut RunState) {
        if state.message.is_none() {
            let created_at = clock::now();
            let message = agent_message(&self.owner.agent, &[], created_at, None);
            state.events.push(json!({"type": "message.created", "message": message}));
            state.message = Some(MessageDraft { created_at, text: String::new() });
        }
    }

    /// Ends the message that the agent writes, or adds a whole one.
    fn complete_message(&self, state: &mut RunState, parts: Vec<Value>) {
        if parts.is_empty() && state.message.is_none() {
            return;
        }
        self.open_message(state);
        let Some(draft) = state.message.take() else { return };
        // Clients have the text that was streamed.
        for part in parts.iter().filter(|part| draft.text.is_empty() || !is_text(part)) {
            state.events.push(json!({"type": "message.part", "part": part}));
        }
        let parts = if parts.is_empty() { vec![text_part(&draft.text)] } else { parts };
        let message = agent_message(&self.owner.agent, &parts, draft.created_at, Some(clock::now()));
        state.events.push(json!({"type": "message.completed", "message": message}));
        state.output.push(message);
    }

    fn push_run_event(&self, state: &mut RunState, kind: &str) {
        let run = self.json(state);
        state.events.push(json!({"type": kind, "run": run}));
    }

    fn json(&self, state: &RunState) -> Value {
        let question = state.questions.front().filter(|_| state.status == RunStatus::Awaiting);
        let question = question.map(|question| json!({"type": "message", "message": question.message}));
        json!({
            "run_id": self.id,
            "agent_name": self.owner.agent,
            "session_id": self.owner.session,
            "status": state.status.as_str(),
            "await_request": question,
            "output": state.output,
            "error": state.error,
            "created_at": clock::iso(self.created_at),
            "finished_at": state.finished_at.map(clock::iso),
        })
    }

    /// Changes the state, and wakes the requests that wait for a change.
    fn update<T>(&self, change: impl FnOnce(&mut RunState) -> T) -> T {
        let changed = change(&mut self.state());
        self.changes.send_modify(|count| *count += 1);
        changed
    }

    /// Changes the state, unless the run has ended.
    fn update_running(&self, change: impl FnOnce(&mut RunState)) {
        self.update(|state| {
            if !state.status.is_terminal() {
                change(state);
            }
        });
    }

    fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notifier for AgentRun {
    fn log(&self, event: Event) {
        for event in event.native_events() {
            if let Event::Message { message } = event {
                let parts = parts_of(message);
                if !parts.is_empty() {
                    self.update_running(|state| self.complete_message(state, parts));
                }
            }
        }
    }

    fn status(&self, status: StatusUpdate) {
        match status {
            StatusUpdate::Text(text) | StatusUpdate::ExternalChunk { text, thought: false, .. } => {
                self.stream_text(&text);
            }
            StatusUpdate::Notice(notice) => self.update_running(|state| {
                state.events.push(json!({"type": "generic", "generic": {"notice": notice.text}}));
            }),
            StatusUpdate::Thought(_)
            | StatusUpdate::ExternalChunk { thought: true, .. }
            | StatusUpdate::ToolActivity { .. }
            | StatusUpdate::Usage { .. }
            | StatusUpdate::Title(_) => {}
        }
    }
}

/// A run shows only its own turn, and learns its end from the turn itself.
impl SessionViewer for AgentRun {
    fn replay(&self, _: &[Event], _: bool) {}

    fn follow(&self, _: &[Event]) {}

    fn end_turn(&self, _: Result<&TurnEnd, &TurnFailure>) {}
}

impl std::fmt::Debug for AgentRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentRun").field("id", &self.id).field("owner", &self.owner).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
