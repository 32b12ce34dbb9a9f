//! Counts the open sessions, running turns and requests of each token.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{SessionGrant, TokenGrant};

/// The time over which requests are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// The use of one token in this process.
#[derive(Debug, Default)]
pub(super) struct TokenUsage {
    sessions: Arc<AtomicU32>,
    turns: Arc<AtomicU32>,
    /// The times of the requests in the last [`WINDOW`], oldest first.
    requests: Mutex<VecDeque<Instant>>,
}

/// One counted session or turn. Dropping it ends the count.
#[derive(Debug)]
pub struct UsagePermit {
    counter: Arc<AtomicU32>,
}

impl Drop for UsagePermit {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Ordering::AcqRel);
    }
}

impl TokenUsage {
    /// Returns `None` if the limit is reached.
    pub(super) fn open_session(&self, limit: Option<u32>) -> Option<UsagePermit> {
        take(&self.sessions, limit)
    }

    /// Returns `None` if the limit is reached.
    pub(super) fn begin_turn(&self, limit: Option<u32>) -> Option<UsagePermit> {
        take(&self.turns, limit)
    }

    pub(super) fn count_request(&self, limit: Option<u32>, now: Instant) -> Result<(), Duration> {
        let Some(limit) = limit else { return Ok(()) };
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        while requests.front().is_some_and(|at| now.saturating_duration_since(*at) >= WINDOW) {
            requests.pop_front();
        }
        if requests.len() < usize::try_from(limit).unwrap_or(usize::MAX) {
            requests.push_back(now);
            return Ok(());
        }
        let oldest = requests.front().map_or(Duration::ZERO, |at| now.saturating_duration_since(*at));
        Err(WINDOW.saturating_sub(oldest))
    }

    /// Returns whether a request of the last [`WINDOW`] is counted.
    fn has_requests(&self, now: Instant) -> bool {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.back().is_some_and(|at| now.saturating_duration_since(*at) < WINDOW)
    }
}

fn take(counter: &Arc<AtomicU32>, limit: Option<u32>) -> Option<UsagePermit> {
    let next = |count: u32| (count < limit.unwrap_or(u32::MAX)).then_some(count + 1);
    counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()?;
    Some(UsagePermit { counter: Arc::clone(counter) })
}

/// Turns verified tokens into grants. The grants of one token share their counts and their end.
#[derive(Debug, Default)]
pub struct GrantRegistry {
    /// By the id of the token.
    tokens: Mutex<HashMap<String, RegisteredToken>>,
}

/// What the grants of one token share.
#[derive(Debug, Default)]
struct RegisteredToken {
    usage: Arc<TokenUsage>,
    /// Cancelled when the token ends.
    ended: CancellationToken,
}

impl GrantRegistry {
    /// Returns a grant of the token. A token that has ended and is valid again gets a new end.
    pub fn grant(&self, token: &TokenGrant) -> SessionGrant {
        let mut tokens = self.tokens();
        let registered = tokens.entry(token.id.clone()).or_default();
        if registered.ended.is_cancelled() {
            registered.ended = CancellationToken::new();
        }
        SessionGrant {
            principal: token.principal.clone(),
            limits: Arc::new(token.limits.clone()),
            usage: Arc::clone(&registered.usage),
            ended: registered.ended.clone(),
        }
    }

    /// Returns the ids of the tokens that have a grant in use: by a request, a connection or a session. Forgets the
    /// others, except for those whose requests still count.
    pub fn ids_in_use(&self, now: Instant) -> Vec<String> {
        let mut tokens = self.tokens();
        // One reference is the registry's own.
        let is_used = |token: &RegisteredToken| Arc::strong_count(&token.usage) > 1;
        tokens.retain(|_, token| is_used(token) || token.usage.has_requests(now));
        tokens.iter().filter(|(_, token)| is_used(token)).map(|(id, _)| id.clone()).collect()
    }

    /// Ends all grants of a token: its connections close, and the turns of its sessions are cancelled. Returns false if
    /// they have ended already.
    pub fn end(&self, id: &str) -> bool {
        let tokens = self.tokens();
        let Some(token) = tokens.get(id).filter(|token| !token.ended.is_cancelled()) else { return false };
        token.ended.cancel();
        true
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<String, RegisteredToken>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
