//! A run: one turn of a session as programs see it, with its status, output and events.
//!
//! Invariant: a run that has ended does not change any more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::parts::RunPart;
use super::questions::{QuestionAnswer, RunQuestion};
use super::run_error::RunError;
use super::run_events::{EventLog, EventPosition, RunEvent, RunMessage, RunSnapshot, RunStatus};
use crate::agents::{Event, Notifier, StatusUpdate, StopReason, TurnEnd};
use crate::clock;
use crate::ids::ModeId;
use crate::principal::{Principal, SessionFiles, SessionGrant};
use crate::session::{SessionRoots, SessionViewer, TurnFailure};

/// What a run belongs to.
#[derive(Debug, Clone)]
pub(in crate::serve) struct RunOwner {
    pub(super) principal: Principal,
    /// The id of the token that started the run.
    pub(super) token: String,
    /// The agent's name in the API.
    pub(in crate::serve) agent: String,
    pub(super) mode: ModeId,
    /// The UUID of the session.
    pub(in crate::serve) session: String,
    /// The folders of the session.
    pub(super) roots: SessionRoots,
}

/// When a client has all events that it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::serve) enum StreamEnd {
    /// The run has ended, or has an open question.
    Stop,
    /// The run has ended.
    Terminal,
}

/// A run.
pub(in crate::serve) struct AgentRun {
    pub(in crate::serve) id: String,
    pub(in crate::serve) owner: RunOwner,
    pub(in crate::serve) created_at: u64,
    state: Mutex<RunState>,
    /// Counts changes. Streams and waiting requests subscribe to it.
    changes: watch::Sender<u64>,
    /// Cancels the turn.
    cancel: CancellationToken,
}

struct RunState {
    status: RunStatus,
    output: Vec<Arc<RunMessage>>,
    error: Option<String>,
    /// The time of the last change of the status.
    changed_at: u64,
    finished_at: Option<u64>,
    /// The bytes of memory that the output and the events take after the end.
    size_at_end: usize,
    events: EventLog,
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

impl RunState {
    fn snapshot(&self) -> RunSnapshot {
        let draft = self.message.as_ref().map(|draft| draft.text.clone());
        RunSnapshot { draft, ..self.snapshot_without_draft() }
    }

    fn snapshot_without_draft(&self) -> RunSnapshot {
        let question = self.questions.front().filter(|_| self.status == RunStatus::Awaiting);
        RunSnapshot {
            status: self.status,
            question: question.map(|question| Arc::clone(&question.message)),
            output: self.output.clone(),
            draft: None,
            error: self.error.clone(),
            changed_at: self.changed_at,
            finished_at: self.finished_at,
        }
    }

    /// Changes the status, and adds the event about it.
    fn set_status(&mut self, status: RunStatus) {
        self.status = status;
        self.changed_at = clock::now();
        // Clients have the draft from other events.
        let snapshot = self.snapshot_without_draft();
        self.events.push(RunEvent::Status(Box::new(snapshot)));
    }

    /// Begins a message, unless the agent writes one already.
    fn open_message(&mut self) {
        if self.message.is_none() {
            let created_at = clock::now();
            self.events.push(RunEvent::MessageCreated { created_at });
            self.message = Some(MessageDraft { created_at, text: String::new() });
        }
    }

    /// Ends the message that the agent writes, or adds a whole one.
    fn complete_message(&mut self, parts: Vec<RunPart>) {
        if parts.is_empty() && self.message.is_none() {
            return;
        }
        self.open_message();
        let Some(draft) = self.message.take() else { return };
        let index = self.output.len();
        // Clients have the text that was streamed.
        for part in parts.iter().filter(|part| draft.text.is_empty() || !part.is_text()) {
            self.events.push(RunEvent::Part { index, part: part.clone() });
        }
        let parts = if parts.is_empty() { vec![RunPart::Text(draft.text)] } else { parts };
        let message = RunMessage { parts, created_at: draft.created_at, completed_at: clock::now() };
        let message = Arc::new(message);
        self.events.push(RunEvent::MessageCompleted(Arc::clone(&message)));
        self.output.push(message);
    }

    /// Shows the first question, or that there is none any more.
    fn show_question(&mut self) {
        if self.status.is_terminal() || self.status == RunStatus::Cancelling {
            return;
        }
        self.set_status(if self.questions.is_empty() { RunStatus::InProgress } else { RunStatus::Awaiting });
    }
}

impl AgentRun {
    /// Creates a run whose turn `cancel` ends.
    pub(super) fn new(owner: RunOwner, cancel: CancellationToken) -> Self {
        let created_at = clock::now();
        let mut state = RunState {
            status: RunStatus::Created,
            output: Vec::new(),
            error: None,
            changed_at: created_at,
            finished_at: None,
            size_at_end: 0,
            events: EventLog::default(),
            message: None,
            questions: VecDeque::new(),
            next_question: 0,
        };
        state.set_status(RunStatus::Created);
        let (id, changes) = (crate::ids::random_uuid(), watch::Sender::new(0));
        Self { id, owner, created_at, state: Mutex::new(state), changes, cancel }
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

    /// Returns the time of the last change of the status.
    pub(super) fn change_time(&self) -> u64 {
        self.state().changed_at
    }

    pub(in crate::serve) fn snapshot(&self) -> RunSnapshot {
        self.state().snapshot()
    }

    /// Returns the run, and the position of the first event after this moment.
    pub(in crate::serve) fn snapshot_with_position(&self) -> (RunSnapshot, EventPosition) {
        let state = self.state();
        (state.snapshot(), state.events.end())
    }

    /// Returns all events so far.
    pub(in crate::serve) fn events(&self) -> Vec<RunEvent> {
        self.state().events.all().to_vec()
    }

    /// Returns the position after all events so far.
    pub(in crate::serve) fn event_end(&self) -> EventPosition {
        self.state().events.end()
    }

    /// Returns the bytes of memory that the output and the events take. Zero if the run has not ended.
    pub(super) fn size_at_end(&self) -> usize {
        self.state().size_at_end
    }

    /// Marks the run as working.
    pub(super) fn start(&self) {
        self.update(|state| state.set_status(RunStatus::InProgress));
    }

    /// Ends the run. Does nothing if it has ended. The error is the reason why the turn failed.
    pub(super) fn finish(&self, end: Result<&TurnEnd, &TurnFailure>) {
        let (status, problem) = match end {
            Err(failure) => (RunStatus::Failed, Some(failure.0.clone())),
            Ok(TurnEnd { ending, .. }) => match ending {
                StopReason::EndTurn | StopReason::MaxTokens | StopReason::Refusal | StopReason::CallRefused { .. } => {
                    (RunStatus::Completed, None)
                }
                StopReason::Cancelled => (RunStatus::Cancelled, None),
                StopReason::Exhausted { why } | StopReason::Failed { why, .. } => {
                    (RunStatus::Failed, Some(why.clone()))
                }
            },
        };
        self.update_running(|state| {
            // A turn that was cut off has written a part of its message.
            if let Some(draft) = &state.message {
                let parts = vec![RunPart::Text(draft.text.clone())];
                state.complete_message(parts);
            }
            state.questions.clear();
            state.error = problem;
            state.finished_at = Some(clock::now());
            state.set_status(status);
            state.size_at_end = state.events.size() + state.output.iter().map(|message| message.size()).sum::<usize>();
        });
    }

    /// Asks the turn to end. Fails if the run has ended.
    pub(in crate::serve) fn cancel(&self) -> Result<(), RunError> {
        self.update(|state| {
            if state.status.is_terminal() {
                let status = state.status.as_str();
                return Err(RunError::WrongState(format!("the run is {status} and cannot be cancelled")));
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
                state.show_question();
            }
            number
        });
        (number, receiver)
    }

    /// Withdraws a question. Does nothing if it was answered.
    pub(super) fn withdraw(&self, number: u64) {
        self.update(|state| {
            let place = state.questions.iter().position(|question| question.message.number == number);
            let Some(place) = place else { return };
            state.questions.remove(place);
            if place == 0 {
                state.show_question();
            }
        });
    }

    /// Answers the question that clients see. Fails if there is none, or the text is no answer to it.
    pub(super) fn resume(&self, text: &str) -> Result<(), RunError> {
        self.update(|state| {
            let Some(question) = state.questions.front().filter(|_| state.status == RunStatus::Awaiting) else {
                let status = state.status.as_str();
                return Err(RunError::WrongState(format!("the run is {status} and has no open question")));
            };
            let answer = question.options.read(text)?;
            if let Some(question) = state.questions.pop_front() {
                // Fails only if the turn no longer waits for it.
                drop(question.answer.send(answer));
            }
            state.show_question();
            Ok(())
        })
    }

    /// Waits until the run has ended, or has an open question.
    pub(in crate::serve) async fn wait_for_stop(&self) {
        self.wait_until(RunStatus::is_stop).await;
    }

    /// Waits until the run has ended.
    pub(in crate::serve) async fn wait_for_end(&self) {
        self.wait_until(RunStatus::is_terminal).await;
    }

    async fn wait_until(&self, is_reached: fn(RunStatus) -> bool) {
        let mut changes = self.changes.subscribe();
        while !is_reached(self.state().status) {
            // Fails only if the run is dropped, and this borrows it.
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits for the event at this position. Returns also the position after it. `None` if `end` comes before there is
    /// one.
    pub(in crate::serve) async fn next_event(
        &self,
        position: EventPosition,
        end: StreamEnd,
    ) -> Option<(RunEvent, EventPosition)> {
        let mut changes = self.changes.subscribe();
        loop {
            {
                let state = self.state();
                if let Some(next) = state.events.next(position) {
                    return Some(next);
                }
                let has_ended = match end {
                    StreamEnd::Stop => state.status.is_stop(),
                    StreamEnd::Terminal => state.status.is_terminal(),
                };
                if has_ended {
                    return None;
                }
            }
            changes.changed().await.ok()?;
        }
    }

    /// Adds text that the agent writes.
    fn stream_text(&self, text: &str) {
        self.update_running(|state| {
            state.open_message();
            if let Some(draft) = &mut state.message {
                draft.text.push_str(text);
            }
            let index = state.output.len();
            state.events.push_text(index, text);
        });
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
                let parts = RunPart::all_of(message);
                if !parts.is_empty() {
                    self.update_running(|state| state.complete_message(parts));
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
                state.events.push(RunEvent::Notice(notice.text));
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
