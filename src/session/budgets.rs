//! Opens the limits of a turn: what managed files, configs and profiles state, and what is used already.
//!
//! Invariant: a child session uses the meter of its parent, so that delegated work counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::Session;
use crate::agents::{
    BudgetAccount, BudgetMeter, BudgetTally, BudgetUsage, StopReason, TurnBudgets, TurnEnd, UsageSink,
};
use crate::clock;
use crate::manifest::{BudgetPeriod, BudgetScope, Settings, StatedBudget};
use crate::principal::Principal;
use crate::store::{SessionStore, StoreError, UsageKey, UsageRow};

/// What the audit log says that a managed limit refuses.
const MODEL_REQUEST: &str = "model request";

/// The tallies that open sessions use. Sessions of one profile or principal share theirs.
#[derive(Debug, Default)]
pub(super) struct BudgetLedger {
    tallies: Mutex<HashMap<(Principal, UsageKey), Weak<BudgetTally>>>,
}

impl BudgetLedger {
    fn tally(&self, principal: &Principal, key: &UsageKey) -> Arc<BudgetTally> {
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        tallies.retain(|_, tally| tally.strong_count() > 0);
        let entry = tallies.entry((principal.clone(), key.clone())).or_default();
        entry.upgrade().unwrap_or_else(|| {
            let tally = Arc::default();
            *entry = Arc::downgrade(&tally);
            tally
        })
    }
}

impl Session {
    /// Returns the meter that counts the work of this session.
    pub(super) fn meter(&self) -> &Arc<BudgetMeter> {
        &self.meter
    }

    /// Cancels the turn with `cancel`, because a time limit of the front end is reached. Results of its calls name it.
    pub fn cancel_at_time_limit(&self, cancel: &CancellationToken) {
        self.meter.cancel_at_time_limit(cancel);
    }

    /// Returns true if the session works for another one, whose turn has the limits.
    pub(super) fn is_child(&self) -> bool {
        self.permit.is_none()
    }

    /// Runs the work of a turn, and cancels it with `cancel` when the time of its limits is used up. Counts the time. The
    /// audit log has a managed limit that ended the work.
    pub(super) async fn run_in_time(&self, work: impl Future<Output = TurnEnd>, cancel: &CancellationToken) -> TurnEnd {
        // The parent counts the time of its delegated work.
        if self.is_child() {
            return work.await;
        }
        let start = Instant::now();
        let mut work = std::pin::pin!(work);
        let end = tokio::select! {
            biased;
            end = &mut work => end,
            () = self.meter.watch_time(cancel) => work.await,
        };
        self.meter.count_time(start.elapsed());
        if matches!(end.ending, StopReason::Exhausted { .. })
            && let Some(setting) = self.meter.find_managed_limit()
        {
            self.record_managed(MODEL_REQUEST, &setting);
        }
        end
    }

    /// Sets the limits of a turn that starts, with what the store says is used. Fails if the store cannot be read.
    pub(super) async fn open_budgets(&self) -> Result<(), StoreError> {
        if self.is_child() {
            return Ok(());
        }
        let principal = self.context.principal();
        let day = clock::date(clock::now());
        let turn = Arc::<BudgetTally>::default();
        let mut stored: Vec<(UsageKey, Arc<BudgetTally>)> = Vec::new();
        let mut budgets = TurnBudgets { tallies: vec![Arc::clone(&turn)], ..TurnBudgets::default() };
        let all = Settings::of(self.plan().manifests()).budgets;
        for stated in all {
            let tally = match key(&stated.scope, self.id(), &day) {
                None => Arc::clone(&turn),
                Some(key) => match stored.iter().find(|(known, _)| *known == key) {
                    Some((_, tally)) => Arc::clone(tally),
                    None => {
                        let tally = self.sessions.ledger.tally(principal, &key);
                        tally.raise_to(usage_of(self.sessions.store.usage(key.clone()).await?));
                        budgets.tallies.push(Arc::clone(&tally));
                        stored.push((key, Arc::clone(&tally)));
                        tally
                    }
                },
            };
            let scope = describe(&stated.scope, principal);
            let StatedBudget { limits, source, is_managed, .. } = stated;
            budgets.accounts.push(BudgetAccount { tally, limits, scope, source, is_managed });
        }
        let keys: Vec<_> = stored.into_iter().map(|(key, _)| key).collect();
        if !keys.is_empty() {
            budgets.sink = Some(Arc::new(UsageWriter { store: self.sessions.store.clone(), keys }));
        }
        self.meter.open(budgets);
        Ok(())
    }
}

/// Returns the key of what the store counts. `None` for a turn, which is not stored.
fn key(scope: &BudgetScope, session: &str, day: &str) -> Option<UsageKey> {
    let (scope, period) = match scope {
        BudgetScope::Turn => return None,
        BudgetScope::Session => (format!("session:{session}"), String::new()),
        BudgetScope::Profile { name, period } => (format!("profile:{name}"), period.name_of(day)),
        BudgetScope::Principal(period) => ("principal".to_owned(), period.name_of(day)),
    };
    Some(UsageKey { scope, period })
}

fn describe(scope: &BudgetScope, principal: &Principal) -> String {
    let period_text = |period: &BudgetPeriod| match period {
        BudgetPeriod::Day => "today",
        BudgetPeriod::Month => "this month",
    };
    match scope {
        BudgetScope::Turn => "this turn".to_owned(),
        BudgetScope::Session => "this session".to_owned(),
        BudgetScope::Profile { name, period } => format!("the profile `{name}` for {}", period_text(period)),
        BudgetScope::Principal(period) => format!("`{principal}` for {}", period_text(period)),
    }
}

fn usage_of(row: UsageRow) -> BudgetUsage {
    let UsageRow { cost, tokens, requests, milliseconds } = row;
    BudgetUsage { cost, tokens, requests, time: Duration::from_millis(milliseconds) }
}

/// Adds what a turn uses to the store.
struct UsageWriter {
    store: SessionStore,
    keys: Vec<UsageKey>,
}

impl UsageSink for UsageWriter {
    fn add(&self, usage: BudgetUsage) {
        let BudgetUsage { cost, tokens, requests, time } = usage;
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let row = UsageRow { cost, tokens, requests, milliseconds };
        self.keys.iter().for_each(|key| self.store.add_usage(key.clone(), row));
    }
}
