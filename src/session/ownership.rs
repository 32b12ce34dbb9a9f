//! Keeps a session with this process while it is open, if several replicas share its store. Ends its turn when another
//! replica may have taken it over.
//!
//! Invariant: a turn that another replica began never continues. The new owner stores it as interrupted.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::recorder::row;
use super::{Session, SessionError, Sessions};
use crate::agents::{Event, StopReason, TurnEnd};
use crate::conversation::{ToolUse, Usage};
use crate::store::{OwnerHandle, SessionClaim, SessionStore, StoreError};
use crate::tool::{ToolOutcome, WorkPermit, WorkRefusal};

/// The reason for the end of a turn whose process has ended.
const INTERRUPTED: &str = "turn interrupted: the replica that ran it has ended";
/// The outcome of a call that was running then.
const MAY_HAVE_RUN: &str =
    "the replica that ran this call has ended; the call may have run: check before you try again";

/// Asks the claim of a session whether work may start.
struct OwnerPermit(Arc<OwnerHandle>);

impl WorkPermit for OwnerPermit {
    fn admit(&self) -> BoxFuture<'_, Result<(), WorkRefusal>> {
        Box::pin(async move { self.0.admit_work().await.map_err(|error| WorkRefusal(error.to_string())) })
    }
}

impl Sessions {
    /// Returns the same sessions, which write through another handle to the store.
    pub(super) fn with_store(&self, store: SessionStore) -> Self {
        Self { store, ..self.clone() }
    }

    /// Returns the permit for the work of a session that writes through this store. `None` if no other process can take
    /// it over.
    pub(super) fn work_permit(&self) -> Option<Arc<dyn WorkPermit>> {
        let owner = self.store.ownership()?;
        Some(Arc::new(OwnerPermit(Arc::clone(owner))))
    }

    /// Claims a session for this process and returns the sessions that may write it. If the last owner left a turn
    /// without an end, stores the end. Fails if another replica has the session.
    pub(super) async fn own(&self, id: &str) -> Result<Self, SessionError> {
        let sessions = match self.store.claim(id).await? {
            SessionClaim::Own(store) => self.with_store(store),
            SessionClaim::Elsewhere(peer) => {
                let replica = peer.id.to_string();
                return Err(StoreError::OwnedElsewhere { id: id.to_owned(), replica }.into());
            }
        };
        let Some(owner) = sessions.store.ownership().cloned() else { return Ok(sessions) };
        let mut settled = owner.settle().await;
        if !*settled {
            let missing = missing_events(&sessions.events(id).await?);
            if !missing.is_empty() {
                missing.iter().for_each(|event| sessions.store.append(id, row(event)));
                sessions.store.flush(id).await?;
            }
            *settled = true;
        }
        drop(settled);
        Ok(sessions)
    }
}

impl Session {
    /// Returns true if another replica may have the session. Nothing runs in it here any more.
    pub fn is_taken(&self) -> bool {
        self.sessions.store.ownership().is_some_and(|owner| owner.check().is_err())
    }

    /// Fails if another replica may have the session.
    pub(super) fn check_owned(&self) -> Result<(), StoreError> {
        self.sessions.store.ownership().map_or(Ok(()), |owner| owner.check())
    }

    /// Waits until this process may start work for the session. Fails if another replica may have the session.
    pub(super) async fn admit_work(&self) -> Result<(), StoreError> {
        match self.sessions.store.ownership() {
            Some(owner) => owner.admit_work().await,
            None => Ok(()),
        }
    }

    /// Runs the work of a turn. Cancels it when another replica may have the session.
    pub(super) async fn run_while_owned<T>(&self, work: impl Future<Output = T>, cancel: &CancellationToken) -> T {
        let Some(owner) = self.sessions.store.ownership() else { return work.await };
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => done,
            () = owner.end_signal().cancelled() => {
                tracing::warn!(session = self.id(), "another replica may have the session; its turn ends here");
                cancel.cancel();
                work.await
            }
        }
    }
}

/// Returns the events that end a turn whose process has ended: an outcome for each call without one, and the end of the
/// turn. Empty if the last turn has an end.
fn missing_events(events: &[Event]) -> Vec<Event> {
    let is_edge = |event: &Event| match event {
        Event::TurnEnded { .. } | Event::Undone { .. } => true,
        Event::Message { message } => message.is_prompt(),
        Event::ToolStarted { .. }
        | Event::ToolEnded { .. }
        | Event::Compacted { .. }
        | Event::External { .. }
        | Event::ExternalSessionOpened { .. } => false,
    };
    let Some(begin) = events.iter().rposition(is_edge) else { return Vec::new() };
    if !matches!(events[begin], Event::Message { .. }) {
        return Vec::new();
    }
    let mut open: Vec<&ToolUse> = Vec::new();
    for event in events[begin..].iter().flat_map(Event::native_events) {
        match event {
            Event::ToolStarted { call, .. } => open.push(call),
            Event::ToolEnded { id, .. } => open.retain(|call| call.id != *id),
            Event::Message { .. }
            | Event::Compacted { .. }
            | Event::TurnEnded { .. }
            | Event::External { .. }
            | Event::ExternalSessionOpened { .. }
            | Event::Undone { .. } => {}
        }
    }
    let ended = open.into_iter().map(|call| Event::ToolEnded {
        id: call.id.clone(),
        name: call.name.clone(),
        outcome: ToolOutcome::error(MAY_HAVE_RUN),
        activity: Vec::new(),
    });
    let end = TurnEnd { ending: StopReason::failure(INTERRUPTED), usage: Usage::default() };
    ended.chain([Event::TurnEnded { end }]).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conversation::{Content, Message};

    fn prompt(text: &str) -> Event {
        Event::Message { message: Arc::new(Message::user(vec![Content::text(text)])) }
    }

    fn started(id: &str) -> Event {
        let call = ToolUse::new(id.to_owned(), "shell".to_owned(), json!({}));
        Event::ToolStarted { call, by: None }
    }

    fn ended(id: &str) -> Event {
        let (id, name) = (id.to_owned(), "shell".to_owned());
        Event::ToolEnded { id, name, outcome: ToolOutcome::text("done"), activity: Vec::new() }
    }

    fn end() -> Event {
        Event::TurnEnded { end: TurnEnd { ending: StopReason::EndTurn, usage: Usage::default() } }
    }

    #[test]
    fn a_turn_with_an_end_gets_no_other() {
        for events in [vec![], vec![prompt("a"), end()], vec![prompt("a"), Event::Undone { events: 0 }]] {
            assert!(missing_events(&events).is_empty(), "{events:?}");
        }
    }

    #[test]
    fn an_interrupted_turn_says_that_its_call_may_have_run() {
        let events = [prompt("a"), end(), prompt("b"), started("1"), ended("1"), started("2")];
        let missing = missing_events(&events);
        let [Event::ToolEnded { id, outcome, .. }, Event::TurnEnded { end }] = missing.as_slice() else {
            panic!("{missing:?}");
        };
        assert_eq!(id, "2");
        assert!(outcome.all_text().contains("may have run"), "{outcome:?}");
        assert!(matches!(&end.ending, StopReason::Failed { why, .. } if why.contains("turn interrupted")));
    }
}
