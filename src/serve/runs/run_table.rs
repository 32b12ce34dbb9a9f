//! Keeps the runs of all principals, and removes old ones.
//!
//! Invariant: for a client, the runs of other principals do not exist.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::run::AgentRun;
use crate::clock;
use crate::principal::SessionGrant;

/// How long a run is kept after its end, in milliseconds.
const KEEP_TIME: u64 = 60 * 60 * 1_000;
/// Maximum number of ended runs of one principal.
const MAX_ENDED: usize = 200;

/// The runs, by their ids. They are in memory only: after a restart, the store still has their sessions.
#[derive(Default)]
pub(in crate::serve) struct RunTable {
    runs: Mutex<HashMap<String, Arc<AgentRun>>>,
}

impl RunTable {
    pub(super) fn add(&self, run: &Arc<AgentRun>) {
        let mut runs = self.runs();
        let now = clock::now();
        runs.retain(|_, known| known.end_time().is_none_or(|at| now.saturating_sub(at) < KEEP_TIME));
        let mut ended: Vec<_> = runs
            .values()
            .filter(|known| known.principal() == run.principal())
            .filter_map(|known| Some((known.end_time()?, known.id.clone())))
            .collect();
        ended.sort();
        let surplus = ended.len().saturating_sub(MAX_ENDED);
        for (_, id) in ended.drain(..surplus) {
            runs.remove(&id);
        }
        runs.insert(run.id.clone(), Arc::clone(run));
    }

    /// Returns a run. `None` if there is none, or it is not the client's.
    pub(in crate::serve) fn find(&self, id: &str, grant: &SessionGrant) -> Option<Arc<AgentRun>> {
        let run = self.runs().get(&id.to_ascii_lowercase()).cloned()?;
        run.is_visible(grant).then_some(run)
    }

    /// Returns the runs that the client may know, the last change first.
    pub(in crate::serve) fn list(&self, grant: &SessionGrant) -> Vec<Arc<AgentRun>> {
        let runs = self.runs();
        let mut visible: Vec<_> = runs.values().filter(|run| run.is_visible(grant)).map(Arc::clone).collect();
        drop(runs);
        visible.sort_by_cached_key(|run| (std::cmp::Reverse(run.change_time()), run.id.clone()));
        visible
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<String, Arc<AgentRun>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
