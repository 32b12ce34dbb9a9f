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
/// Maximum bytes of the ended runs of one principal.
const MAX_ENDED_BYTES: usize = 32 << 20;

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
            .filter_map(|known| Some((known.end_time()?, known.id.clone(), known.size_at_end())))
            .collect();
        ended.sort();
        let mut bytes = 0;
        for (place, (_, id, size)) in ended.iter().rev().enumerate() {
            bytes += size;
            // The newest stays, also if it is larger, because its client may not have read it.
            if place >= MAX_ENDED || (place > 0 && bytes > MAX_ENDED_BYTES) {
                runs.remove(id);
            }
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tokio_util::sync::CancellationToken;

    use super::super::run::RunOwner;
    use super::*;
    use crate::agents::{Notifier as _, StatusUpdate};
    use crate::principal::{Principal, TokenLimits};
    use crate::session::{SessionRoots, TurnFailure};

    fn grant(principal: &str) -> SessionGrant {
        let limits = TokenLimits { roots: vec![PathBuf::from("/srv")], ..TokenLimits::default() };
        SessionGrant::new(Principal::new(principal).unwrap(), limits)
    }

    /// Adds a run that has not ended.
    fn add_run(table: &RunTable, principal: &str) -> Arc<AgentRun> {
        let owner = RunOwner {
            principal: Principal::new(principal).unwrap(),
            token: "000000000000".to_owned(),
            agent: "coding-backend".to_owned(),
            mode: "coding/backend".parse().unwrap(),
            session: "s".to_owned(),
            roots: SessionRoots::here(PathBuf::from("/srv/shop"), Vec::new()),
        };
        let run = Arc::new(AgentRun::new(owner, CancellationToken::new()));
        table.add(&run);
        run
    }

    fn add_ended(table: &RunTable, principal: &str) -> Arc<AgentRun> {
        let run = add_run(table, principal);
        run.finish(Err(&TurnFailure("no model".to_owned())));
        run
    }

    #[test]
    fn the_oldest_ended_run_of_a_principal_makes_room() {
        let table = RunTable::default();
        let of_ben = add_ended(&table, "ben");
        let running = add_run(&table, "ana");
        let ended: Vec<_> = (0..=MAX_ENDED).map(|_| add_ended(&table, "ana")).collect();
        let newest = add_run(&table, "ana");
        // Runs that ended in the same millisecond are in the order of their ids.
        let oldest = ended.iter().min_by_key(|run| (run.end_time(), run.id.clone())).unwrap();
        let ana = grant("ana");
        let is_kept = |run: &AgentRun| table.find(&run.id, &ana).is_some();
        let forgotten: Vec<_> = ended.iter().filter(|run| !is_kept(run)).map(|run| &run.id).collect();
        assert_eq!(forgotten, [&oldest.id]);
        assert!(is_kept(&running) && is_kept(&newest), "only ended runs count");
        assert!(table.find(&of_ben.id, &grant("ben")).is_some(), "those of others do not");
    }

    #[test]
    fn the_bytes_of_the_ended_runs_of_a_principal_are_limited() {
        let table = RunTable::default();
        // The output and the events have the text.
        let text = "x".repeat(MAX_ENDED_BYTES / 2);
        let add_large = || {
            let run = add_run(&table, "ana");
            run.status(StatusUpdate::Text(text.clone()));
            run.finish(Err(&TurnFailure("no model".to_owned())));
            std::thread::sleep(std::time::Duration::from_millis(2));
            run
        };
        let (first, of_ben) = (add_large(), add_ended(&table, "ben"));
        let running = add_run(&table, "ana");
        let ana = grant("ana");
        let is_kept = |run: &AgentRun| table.find(&run.id, &ana).is_some();
        assert!(is_kept(&first), "the newest stays");
        let second = add_large();
        let last = add_run(&table, "ana");
        assert_eq!([&first, &second, &running, &last].map(|run| is_kept(run)), [false, true, true, true]);
        assert!(table.find(&of_ben.id, &grant("ben")).is_some());
    }
}
