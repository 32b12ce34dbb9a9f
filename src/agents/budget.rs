//! Counts what work with models uses, and ends it at its limits.
//!
//! Invariant: every request of a session and of its child sessions passes a [`MeteredProvider`](super::MeteredProvider)
//! with the meter of the top-level session, so that delegated work, routing and compaction count.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::conversation::Usage;
use crate::manifest::{BudgetLimits, DollarAmount, TokenCount};
use crate::tool::{LogNotices, Notice, NoticeSink};

/// The share of a limit at which the user gets a notice, in percent.
const NOTICE_PERCENT: u32 = 80;

/// What work has used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BudgetUsage {
    /// In US dollars.
    pub cost: f64,
    pub tokens: u64,
    pub requests: u64,
    pub time: Duration,
}

impl std::ops::AddAssign for BudgetUsage {
    fn add_assign(&mut self, other: Self) {
        self.cost += other.cost;
        self.tokens += other.tokens;
        self.requests += other.requests;
        self.time += other.time;
    }
}

/// What one turn, session, profile or principal has used. All sessions that it covers share it.
#[derive(Debug, Default)]
pub struct BudgetTally {
    state: Mutex<TallyState>,
}

#[derive(Debug, Default)]
struct TallyState {
    used: BudgetUsage,
    /// Requests that a model has not begun to answer.
    waiting: u64,
    /// The limits about which the user has a notice.
    noticed: BTreeSet<String>,
}

impl BudgetTally {
    fn lock(&self) -> MutexGuard<'_, TallyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn usage(&self) -> BudgetUsage {
        self.lock().used
    }

    /// Raises the use to what the store has, which includes that of other processes.
    pub fn raise_to(&self, stored: BudgetUsage) {
        let mut state = self.lock();
        let used = state.used;
        state.used = BudgetUsage {
            cost: used.cost.max(stored.cost),
            tokens: used.tokens.max(stored.tokens),
            requests: used.requests.max(stored.requests),
            time: used.time.max(stored.time),
        };
    }
}

/// Limits and the tally that they apply to.
#[derive(Debug, Clone)]
pub struct BudgetAccount {
    pub tally: Arc<BudgetTally>,
    pub limits: BudgetLimits,
    /// What the limits cover, as `this turn`.
    pub scope: String,
    /// The setting that states them.
    pub source: String,
    /// True if it is a managed setting.
    pub is_managed: bool,
}

impl BudgetAccount {
    /// Returns the limit that is reached, as text. `None` if there is none.
    fn find_limit(&self) -> Option<String> {
        let state = self.tally.lock();
        let used = BudgetUsage { requests: state.used.requests + state.waiting, ..state.used };
        self.parts(&used).into_iter().find(|part| part.share >= 1.0).map(|part| self.describe("is reached", &part))
    }

    /// Returns the notice about a limit that is nearly reached. `None` if there is none, or the user has it.
    fn new_notice(&self) -> Option<String> {
        let mut state = self.tally.lock();
        let part = self.parts(&state.used).into_iter().find(|part| part.share * 100.0 >= f64::from(NOTICE_PERCENT))?;
        let is_new = state.noticed.insert(format!("{} {}", self.source, part.unit));
        is_new.then(|| self.describe(&used_to(part.share), &part))
    }

    fn describe(&self, what: &str, part: &BudgetPart) -> String {
        let BudgetPart { used, limit, unit, .. } = part;
        format!("the limit of {} {what}: {used} of {limit} {unit} ({})", self.scope, self.source)
    }

    #[allow(clippy::cast_precision_loss, reason = "no session has enough tokens to lose precision")]
    fn parts(&self, used: &BudgetUsage) -> Vec<BudgetPart> {
        let BudgetLimits { cost, tokens, requests, time } = self.limits;
        let cost = cost.map(DollarAmount::dollars).map(|limit| BudgetPart {
            share: share(used.cost, limit),
            used: format!("{:.2}", used.cost),
            limit: format!("{limit:.2}"),
            unit: "USD",
        });
        let tokens = tokens.map(TokenCount::tokens).map(|limit| BudgetPart {
            share: share(used.tokens as f64, limit as f64),
            used: used.tokens.to_string(),
            limit: limit.to_string(),
            unit: "tokens",
        });
        let requests = requests.map(|limit| BudgetPart {
            share: share(used.requests as f64, f64::from(limit)),
            used: used.requests.to_string(),
            limit: limit.to_string(),
            unit: "model requests",
        });
        let time = time.map(|limit| BudgetPart {
            share: share(used.time.as_secs_f64(), limit.duration().as_secs_f64()),
            used: used.time.as_secs().to_string(),
            limit: limit.duration().as_secs().to_string(),
            unit: "seconds",
        });
        [cost, tokens, requests, time].into_iter().flatten().collect()
    }
}

/// One limited quantity.
struct BudgetPart {
    /// The used share of the limit.
    share: f64,
    used: String,
    limit: String,
    unit: &'static str,
}

/// Returns the used share. A limit of zero is always reached.
fn share(used: f64, limit: f64) -> f64 {
    if limit > 0.0 { used / limit } else { 1.0 }
}

/// Describes the used share of a limit, from the share of the notice on. Rounds down, so that 100 % means that it is
/// reached.
fn used_to(share: f64) -> String {
    format!("is used to {} %", (share * 100.0).floor().max(f64::from(NOTICE_PERCENT)))
}

/// Stores what work uses, so that it counts in later sessions and other processes. Must not block.
pub trait UsageSink: Send + Sync {
    fn add(&self, usage: BudgetUsage);
}

/// The limits that apply to a turn.
#[derive(Default)]
pub struct TurnBudgets {
    pub accounts: Vec<BudgetAccount>,
    /// Each tally once, also those without a limit.
    pub tallies: Vec<Arc<BudgetTally>>,
    /// `None`: nothing is stored.
    pub sink: Option<Arc<dyn UsageSink>>,
}

impl TurnBudgets {
    fn add(&self, usage: BudgetUsage) {
        self.tallies.iter().for_each(|tally| tally.lock().used += usage);
        if let Some(sink) = &self.sink {
            sink.add(usage);
        }
    }
}

impl std::fmt::Debug for TurnBudgets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TurnBudgets").field("accounts", &self.accounts).finish_non_exhaustive()
    }
}

/// Counts the work of a session and its child sessions against the limits of the current turn.
pub struct BudgetMeter {
    budgets: Mutex<TurnBudgets>,
    notices: Arc<dyn NoticeSink>,
    /// The limit of time that ended the turn.
    time_reached: Mutex<Option<String>>,
    /// A time limit of the front end ended the turn.
    front_time_reached: AtomicBool,
}

impl Default for BudgetMeter {
    fn default() -> Self {
        Self::new(Arc::new(LogNotices))
    }
}

impl BudgetMeter {
    /// Creates a meter without limits.
    pub fn new(notices: Arc<dyn NoticeSink>) -> Self {
        Self {
            budgets: Mutex::default(),
            notices,
            time_reached: Mutex::default(),
            front_time_reached: AtomicBool::new(false),
        }
    }

    fn budgets(&self) -> MutexGuard<'_, TurnBudgets> {
        self.budgets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the limits of a turn that starts.
    pub fn open(&self, budgets: TurnBudgets) {
        *self.budgets() = budgets;
        *self.time_reached.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.front_time_reached.store(false, Ordering::Relaxed);
    }

    /// Returns the limit that is reached, as text. `None` if work may continue.
    pub fn limit_reached(&self) -> Option<String> {
        self.time_reached().or_else(|| self.budgets().accounts.iter().find_map(BudgetAccount::find_limit))
    }

    /// Returns the managed setting whose limit is reached. `None` if there is none.
    pub fn find_managed_limit(&self) -> Option<String> {
        let budgets = self.budgets();
        let reached = budgets.accounts.iter().find(|account| account.is_managed && account.find_limit().is_some());
        reached.map(|account| account.source.clone())
    }

    /// Returns the limit of time that ended the turn. `None` if none did.
    pub fn time_reached(&self) -> Option<String> {
        self.time_reached.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Cancels the turn because a time limit of the front end is reached.
    pub fn cancel_at_time_limit(&self, cancel: &CancellationToken) {
        self.front_time_reached.store(true, Ordering::Relaxed);
        cancel.cancel();
    }

    /// Returns true if a time limit ended the turn.
    pub(super) fn is_out_of_time(&self) -> bool {
        self.front_time_reached.load(Ordering::Relaxed) || self.time_reached().is_some()
    }

    /// Returns the setting that limits the cost. `None` if none does.
    pub(super) fn cost_limit(&self) -> Option<String> {
        let budgets = self.budgets();
        budgets.accounts.iter().find(|account| account.limits.cost.is_some()).map(|account| account.source.clone())
    }

    /// Enters a request that no model has begun to answer. It counts towards the limit of requests while it waits.
    pub(super) fn enter(&self) -> MeterTicket {
        let tallies = self.budgets().tallies.clone();
        tallies.iter().for_each(|tally| tally.lock().waiting += 1);
        MeterTicket { tallies }
    }

    /// Counts a request that a model has begun to answer.
    pub(super) fn count_request(&self) {
        self.add(BudgetUsage { requests: 1, ..BudgetUsage::default() });
    }

    /// Counts the tokens and the cost of an answer.
    pub fn count_answer(&self, usage: &Usage, cost: Option<f64>) {
        let tokens = usage.input + usage.output;
        self.add(BudgetUsage { cost: cost.unwrap_or_default(), tokens, ..BudgetUsage::default() });
    }

    /// Counts the time of a turn.
    pub fn count_time(&self, time: Duration) {
        // `watch_time` has sent the notice.
        self.budgets().add(BudgetUsage { time, ..BudgetUsage::default() });
    }

    /// Counts, and sends a notice about each limit that is nearly reached.
    fn add(&self, usage: BudgetUsage) {
        let notices: Vec<_> = {
            let budgets = self.budgets();
            budgets.add(usage);
            budgets.accounts.iter().filter_map(BudgetAccount::new_notice).collect()
        };
        notices.into_iter().for_each(|notice| self.notices.send(Notice::new(notice)));
    }

    /// Cancels the turn when its time is used up, and then returns. Never returns if no time is limited.
    pub async fn watch_time(&self, cancel: &CancellationToken) {
        let Some((left, account)) = self.shortest_time() else { return std::future::pending().await };
        let limit = account.limits.time.map(|limit| limit.duration()).unwrap_or_default();
        let until_notice = left.saturating_sub(limit * (100 - NOTICE_PERCENT) / 100);
        tokio::time::sleep(until_notice).await;
        let seconds = limit.as_secs();
        let (scope, source) = (&account.scope, &account.source);
        // Earlier turns may have used more than the share of the notice.
        let used = limit.saturating_sub(left - until_notice);
        let used_to = used_to(share(used.as_secs_f64(), limit.as_secs_f64()));
        let notice = format!("the limit of {scope} {used_to} of {seconds} seconds ({source})");
        self.notices.send(Notice::new(notice));
        tokio::time::sleep(left - until_notice).await;
        let reached = format!("the limit of {scope} is reached: {seconds} seconds ({source})");
        *self.time_reached.lock().unwrap_or_else(PoisonError::into_inner) = Some(reached);
        cancel.cancel();
    }

    /// Returns the least time that is left, and its limit. `None` if no time is limited.
    fn shortest_time(&self) -> Option<(Duration, BudgetAccount)> {
        let budgets = self.budgets();
        let left = budgets.accounts.iter().filter_map(|account| {
            let limit = account.limits.time?.duration();
            Some((limit.saturating_sub(account.tally.usage().time), account))
        });
        left.min_by_key(|(left, _)| *left).map(|(left, account)| (left, account.clone()))
    }
}

impl std::fmt::Debug for BudgetMeter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BudgetMeter").field("accounts", &self.budgets().accounts).finish_non_exhaustive()
    }
}

/// A request that waits for its answer. Dropping it ends the wait.
pub(super) struct MeterTicket {
    tallies: Vec<Arc<BudgetTally>>,
}

impl Drop for MeterTicket {
    fn drop(&mut self) {
        for tally in &self.tallies {
            let mut state = tally.lock();
            state.waiting = state.waiting.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Default)]
    struct Shown(Mutex<Vec<String>>);

    impl NoticeSink for Shown {
        fn send(&self, notice: Notice) {
            self.0.lock().unwrap().push(notice.text);
        }
    }

    fn meter(limits: serde_json::Value) -> (BudgetMeter, Arc<Shown>) {
        let shown = Arc::new(Shown::default());
        let meter = BudgetMeter::new(Arc::clone(&shown) as Arc<dyn NoticeSink>);
        let tally = Arc::<BudgetTally>::default();
        let account = BudgetAccount {
            tally: Arc::clone(&tally),
            limits: serde_json::from_value(limits).unwrap(),
            scope: "this turn".to_owned(),
            source: "`limits.turn` in config.yaml:2".to_owned(),
            is_managed: false,
        };
        meter.open(TurnBudgets { accounts: vec![account], tallies: vec![tally], sink: None });
        (meter, shown)
    }

    #[test]
    fn a_notice_comes_once_and_then_the_limit() {
        let (meter, shown) = meter(json!({"tokens": 100}));
        let use_tokens = |input| meter.count_answer(&Usage { input, ..Usage::default() }, None);
        use_tokens(79);
        assert_eq!((meter.limit_reached(), shown.0.lock().unwrap().len()), (None, 0));
        use_tokens(1);
        use_tokens(1);
        let notice = "the limit of this turn is used to 80 %: 80 of 100 tokens (`limits.turn` in config.yaml:2)";
        assert_eq!(*shown.0.lock().unwrap(), [notice]);
        use_tokens(19);
        let reached = "the limit of this turn is reached: 100 of 100 tokens (`limits.turn` in config.yaml:2)";
        assert_eq!(meter.limit_reached().as_deref(), Some(reached));
    }

    #[tokio::test(start_paused = true)]
    async fn a_notice_has_the_real_share() {
        let (meter, shown) = meter(json!({"requests": 1, "time": "10s"}));
        meter.count_request();
        meter.count_time(Duration::from_secs(9));
        meter.watch_time(&CancellationToken::new()).await;
        let shown = shown.0.lock().unwrap();
        assert!(shown[0].contains("is used to 100 %: 1 of 1 model requests"), "{shown:?}");
        assert!(shown[1].contains("is used to 90 % of 10 seconds"), "{shown:?}");
    }

    #[test]
    fn a_waiting_request_counts_until_it_fails() {
        let (meter, _) = meter(json!({"requests": 1}));
        let ticket = meter.enter();
        assert!(meter.limit_reached().is_some());
        drop(ticket);
        assert_eq!(meter.limit_reached(), None);
        meter.count_request();
        assert!(meter.limit_reached().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_is_used_up_cancels_the_turn() {
        let (meter, shown) = meter(json!({"time": "10s"}));
        let cancel = CancellationToken::new();
        let start = tokio::time::Instant::now();
        meter.watch_time(&cancel).await;
        assert_eq!(start.elapsed(), Duration::from_secs(10));
        assert!(cancel.is_cancelled() && meter.time_reached().is_some());
        assert_eq!(shown.0.lock().unwrap().len(), 1);
    }
}
