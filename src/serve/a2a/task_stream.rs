//! The events of a task: first the task as it is, then its changes until it stops.

use std::sync::Arc;

use futures::Stream;
use serde_json::{Value, json};

use super::super::event_stream::{self, KEEP_ALIVE};
use super::super::runs::{AgentRun, EventPosition, RunEvent, RunSnapshot, StreamEnd};
use super::task_json;

/// What a client gets of a task.
pub(super) struct TaskStream {
    run: Arc<AgentRun>,
    /// The task at the beginning. `None` when it is sent.
    snapshot: Option<RunSnapshot>,
    /// The position of the next event.
    position: EventPosition,
    end: StreamEnd,
    /// The message in the output whose beginning the client has.
    begun: Option<usize>,
}

impl TaskStream {
    /// Begins with the task as it is now, and ends at `end`. After the first change, it ends at the next stop.
    pub(super) fn new(run: Arc<AgentRun>, end: StreamEnd) -> Self {
        let (snapshot, position) = run.snapshot_with_position();
        let has_draft = snapshot.draft.as_ref().is_some_and(|text| !text.is_empty());
        let begun = has_draft.then_some(snapshot.output.len());
        Self { run, snapshot: Some(snapshot), position, end, begun }
    }

    /// Returns the events as answers to the request with this id.
    pub(super) fn into_events(self, id: Value) -> impl Stream<Item = String> + Send + 'static {
        futures::stream::unfold((self, id), |(mut stream, id)| async move {
            let text = match stream.next().await? {
                Some(result) => event_stream::data(&json!({"jsonrpc": "2.0", "id": id, "result": result})),
                None => event_stream::COMMENT.to_owned(),
            };
            Some((text, (stream, id)))
        })
    }

    /// Returns the next event. The inner `None` means that the stream is only kept open.
    async fn next(&mut self) -> Option<Option<Value>> {
        if let Some(snapshot) = self.snapshot.take() {
            return Some(Some(json!({"task": task_json::snapshot(&self.run, &snapshot)})));
        }
        loop {
            let next = self.run.next_event(self.position, self.end);
            let Ok(event) = tokio::time::timeout(KEEP_ALIVE, next).await else { return Some(None) };
            let (event, position) = event?;
            self.position = position;
            // The task continues, so its next stop ends the stream.
            self.end = StreamEnd::Stop;
            if let Some(value) = self.write(&event) {
                return Some(Some(value));
            }
        }
    }

    /// Writes an event. `None` if clients do not see it.
    fn write(&mut self, event: &RunEvent) -> Option<Value> {
        match event {
            RunEvent::Status(state) => Some(task_json::status_update(&self.run, &task_json::status(&self.run, state))),
            RunEvent::Part { index, part } => {
                let update = task_json::artifact_update(&self.run, *index, part, self.begun != Some(*index))?;
                self.begun = Some(*index);
                Some(update)
            }
            RunEvent::Notice(text) => Some(task_json::notice(&self.run, self.position.event, text)),
            RunEvent::MessageCreated { .. } | RunEvent::MessageCompleted(_) => None,
        }
    }
}
