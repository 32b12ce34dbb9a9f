//! Limits the requests to a provider, and shares them between users and their sessions in turn.
//!
//! Invariant: a request that waits holds no place at the provider, and a request that is dropped gives its place back.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::task::TaskScope;

/// The time over which requests and tokens are counted.
const MINUTE: Duration = Duration::from_secs(60);
/// The pause after "too many requests" without a time. It doubles with each such answer in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The limits of one provider key. `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestLimits {
    /// Maximum requests at the same time. Without it, Skein learns the number from the provider's refusals.
    pub concurrency: Option<u32>,
    pub requests_per_minute: Option<u32>,
    pub tokens_per_minute: Option<u64>,
}

/// The principal and the session of a request. Requests take turns by principal, then by session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestOrigin {
    pub principal: Arc<str>,
    pub session: Arc<str>,
}

/// The queues of all provider keys of this process.
#[derive(Default)]
pub struct RequestQueues {
    queues: Mutex<HashMap<QueueKey, RequestQueue>>,
}

/// A provider key: the address and the API key.
type QueueKey = (String, Option<String>);

// Shows no key.
impl std::fmt::Debug for RequestQueues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestQueues").finish_non_exhaustive()
    }
}

impl RequestQueues {
    /// Returns the queue of this address and key. The latest limits apply.
    pub(super) fn queue(&self, address: &str, key: Option<&str>, limits: RequestLimits) -> RequestQueue {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.entry((address.to_owned(), key.map(str::to_owned))).or_default().clone();
        queue.lock().limits = limits;
        queue
    }
}

/// The queue of one provider key.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestQueue {
    state: Arc<Mutex<QueueState>>,
    tasks: TaskScope,
}

#[derive(Debug, Default)]
struct QueueState {
    limits: RequestLimits,
    /// Requests that hold a place.
    running: u32,
    /// The running requests that the provider has begun to answer.
    accepted: u32,
    /// The limit learnt from refusals. `None` until the first one.
    learnt: Option<u32>,
    /// Answers since the learnt limit last changed.
    answers: u32,
    /// Refusals in a row.
    refusals: u32,
    paused_until: Option<Instant>,
    /// The start of each request in the last minute.
    starts: VecDeque<Instant>,
    /// The tokens of each answer in the last minute.
    tokens: VecDeque<(Instant, u64)>,
    /// The waiting requests. The principal at the front is next, and within it the session at the front.
    principals: VecDeque<PrincipalQueue>,
    next_ticket: u64,
    /// When the timer that starts waiting requests fires.
    timer: Option<Instant>,
}

#[derive(Debug)]
struct PrincipalQueue {
    principal: Arc<str>,
    sessions: VecDeque<SessionQueue>,
}

#[derive(Debug)]
struct SessionQueue {
    session: Arc<str>,
    requests: VecDeque<WaitingRequest>,
}

#[derive(Debug)]
struct WaitingRequest {
    ticket: u64,
    start: oneshot::Sender<RequestPlace>,
}

impl RequestQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the queue. The place comes when it is this request's turn.
    pub(super) fn enter(&self, origin: &RequestOrigin) -> QueueTicket {
        let (start, place) = oneshot::channel();
        let ticket = self.lock().push(origin, start);
        self.start_waiting();
        QueueTicket { queue: self.clone(), ticket, place }
    }

    /// Starts the waiting requests that the limits admit now, and sets a timer for the others.
    fn start_waiting(&self) {
        let now = Instant::now();
        loop {
            let mut state = self.lock();
            if let Some(later) = state.next_start(now) {
                self.set_timer(&mut state, later);
                return;
            }
            if !state.has_free_place() {
                return;
            }
            let Some(request) = state.pop() else { return };
            state.running += 1;
            state.starts.push_back(now);
            drop(state);
            // A request that was cancelled drops its place, which gives it back.
            drop(request.start.send(RequestPlace { queue: self.clone(), accepted: false }));
        }
    }

    fn set_timer(&self, state: &mut QueueState, at: Instant) {
        let is_set = state.timer.is_some_and(|timer| timer <= at);
        if state.principals.is_empty() || is_set {
            return;
        }
        state.timer = Some(at);
        let queue = self.clone();
        self.tasks.spawn(async move {
            tokio::time::sleep_until(at).await;
            {
                let mut state = queue.lock();
                state.timer = state.timer.filter(|timer| *timer > at);
            }
            queue.start_waiting();
        });
    }
}

impl QueueState {
    fn push(&mut self, origin: &RequestOrigin, start: oneshot::Sender<RequestPlace>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let request = WaitingRequest { ticket, start };
        let at = self.principals.iter().position(|queue| queue.principal == origin.principal).unwrap_or_else(|| {
            let principal = Arc::clone(&origin.principal);
            self.principals.push_back(PrincipalQueue { principal, sessions: VecDeque::new() });
            self.principals.len() - 1
        });
        let sessions = &mut self.principals[at].sessions;
        match sessions.iter_mut().find(|queue| queue.session == origin.session) {
            Some(queue) => queue.requests.push_back(request),
            None => {
                sessions.push_back(SessionQueue { session: Arc::clone(&origin.session), requests: [request].into() });
            }
        }
        ticket
    }

    /// Takes the next request. Its principal and its session go to the end of their rows.
    fn pop(&mut self) -> Option<WaitingRequest> {
        let mut principal = self.principals.pop_front()?;
        let mut session = principal.sessions.pop_front()?;
        let request = session.requests.pop_front();
        if !session.requests.is_empty() {
            principal.sessions.push_back(session);
        }
        if !principal.sessions.is_empty() {
            self.principals.push_back(principal);
        }
        request
    }

    fn remove(&mut self, ticket: u64) {
        for principal in &mut self.principals {
            for session in &mut principal.sessions {
                session.requests.retain(|request| request.ticket != ticket);
            }
            principal.sessions.retain(|session| !session.requests.is_empty());
        }
        self.principals.retain(|principal| !principal.sessions.is_empty());
    }

    fn waiting(&self) -> usize {
        self.principals.iter().flat_map(|principal| &principal.sessions).map(|session| session.requests.len()).sum()
    }

    fn has_free_place(&self) -> bool {
        [self.limits.concurrency, self.learnt].into_iter().flatten().all(|limit| self.running < limit.max(1))
    }

    /// Returns when the next request may start, if a pause or a limit per minute forbids it now.
    fn next_start(&mut self, now: Instant) -> Option<Instant> {
        self.paused_until = self.paused_until.filter(|until| *until > now);
        let is_old = |at: &Instant| now.duration_since(*at) >= MINUTE;
        while self.starts.front().is_some_and(is_old) {
            self.starts.pop_front();
        }
        while self.tokens.front().is_some_and(|(at, _)| is_old(at)) {
            self.tokens.pop_front();
        }
        let requests = self.limits.requests_per_minute.and_then(|limit| {
            let over = (self.starts.len() + 1).checked_sub(limit.max(1) as usize)?;
            Some(*self.starts.get(over.checked_sub(1)?)? + MINUTE)
        });
        let tokens = self.limits.tokens_per_minute.and_then(|limit| {
            let mut sum: u64 = self.tokens.iter().map(|(_, count)| count).sum();
            let mut until = None;
            for (at, count) in &self.tokens {
                if sum < limit {
                    break;
                }
                sum -= count;
                until = Some(*at + MINUTE);
            }
            until
        });
        [self.paused_until, requests, tokens].into_iter().flatten().max()
    }

    /// Notes that the provider refused a request because there were too many.
    fn refuse(&mut self, retry_after: Option<Duration>) {
        self.refusals = self.refusals.saturating_add(1);
        let doubled = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.refusals.min(16) - 1));
        // A wait of zero helps once: the provider may send it with every refusal.
        let wait = retry_after.filter(|wait| !wait.is_zero() || self.refusals == 1);
        // After a longer wait the request would fail anyway, and other requests must learn that too.
        let until = Instant::now() + wait.unwrap_or(doubled.min(LONGEST_PAUSE)).min(MINUTE);
        self.paused_until = self.paused_until.max(Some(until));
        // What the provider answers at this moment is what it admits.
        self.learnt = Some(self.accepted.max(1).min(self.learnt.unwrap_or(u32::MAX)));
        self.answers = 0;
    }

    /// Notes a complete answer. The learnt limit grows by one when as many requests as it admits were answered.
    fn answer(&mut self, tokens: u64) {
        self.refusals = 0;
        self.answers += 1;
        self.tokens.push_back((Instant::now(), tokens));
        if let Some(learnt) = self.learnt.as_mut().filter(|learnt| self.answers >= **learnt) {
            *learnt += 1;
            self.answers = 0;
        }
    }
}

/// A request in the queue. Dropping it leaves the queue.
pub(super) struct QueueTicket {
    queue: RequestQueue,
    ticket: u64,
    place: oneshot::Receiver<RequestPlace>,
}

impl QueueTicket {
    /// Waits until the request may start.
    pub(super) async fn place(&mut self) -> RequestPlace {
        match (&mut self.place).await {
            Ok(place) => place,
            // The queue answers every ticket that it still holds.
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns how many requests wait at this provider key, this one included.
    pub(super) fn waiting(&self) -> usize {
        self.queue.lock().waiting()
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        self.queue.lock().remove(self.ticket);
    }
}

/// The right to have one request at the provider. Dropping it gives the place to the next request.
#[derive(Debug)]
pub(super) struct RequestPlace {
    queue: RequestQueue,
    accepted: bool,
}

impl RequestPlace {
    /// Notes that the provider began to answer.
    pub(super) fn note_start(&mut self) {
        if !std::mem::replace(&mut self.accepted, true) {
            self.queue.lock().accepted += 1;
        }
    }

    /// Notes that the answer is complete and how many tokens it cost.
    pub(super) fn note_answer(&mut self, tokens: u64) {
        self.queue.lock().answer(tokens);
    }

    /// Notes that the provider refused the request because there were too many. It may have begun to answer before.
    pub(super) fn note_refusal(&mut self, retry_after: Option<Duration>) {
        let mut state = self.queue.lock();
        state.accepted -= u32::from(std::mem::take(&mut self.accepted));
        state.refuse(retry_after);
    }
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        {
            let mut state = self.queue.lock();
            state.running -= 1;
            state.accepted -= u32::from(self.accepted);
        }
        self.queue.start_waiting();
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
