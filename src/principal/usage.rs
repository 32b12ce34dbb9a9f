//! Counts the open sessions, running turns and requests of each token.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
}

fn take(counter: &Arc<AtomicU32>, limit: Option<u32>) -> Option<UsagePermit> {
    let next = |count: u32| (count < limit.unwrap_or(u32::MAX)).then_some(count + 1);
    counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()?;
    Some(UsagePermit { counter: Arc::clone(counter) })
}

/// Turns verified tokens into grants. The grants of one token share their counts.
#[derive(Debug, Default)]
pub struct GrantRegistry {
    /// By the id of the token.
    usages: Mutex<HashMap<String, Arc<TokenUsage>>>,
}

impl GrantRegistry {
    pub fn grant(&self, token: &TokenGrant) -> SessionGrant {
        let mut usages = self.usages.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = Arc::clone(usages.entry(token.id.clone()).or_default());
        SessionGrant { principal: token.principal.clone(), limits: Arc::new(token.limits.clone()), usage }
    }
}
