//! Implements an open session: its mode, history, services and event log. It runs one turn at a time, and its settings
//! can change while a turn runs.
//!
//! Invariant: uses no protocol and no terminal. The store has every event of a turn before the front end is notified of
//! its end.

mod alert_asker;
pub mod attachments;
mod checkpoints;
mod budgets;
mod child;
mod recorder;
mod reload;
mod external;
mod external_sessions;
mod hooks;
mod session_viewers;
mod managed_refusals;
mod metrics;
mod naming;
mod notices;
mod other_tokens;
mod ownership;
mod permitted_provider;
mod prompt_error;
mod restore;
mod sessions;
mod setup;
mod shared_ports;
pub mod slash;
mod spending;
mod state;
mod title;
mod turn;
pub mod tutorial;
mod undo;

pub use alert_asker::{AttentionSink, OpenRequest};
pub use metrics::SessionMetrics;
pub use naming::name_session;
pub use prompt_error::PromptError;
pub use restore::{PlannedRestore, RestoreFiles, RestoreReport, RestoreTarget};
pub use session_viewers::{LiveSession, SessionViewer, StaleEventsError, TurnFailure, ViewerId};
pub use sessions::{
    ModelSource, ReopenedSession, SessionAuditLog, SessionError, SessionOptions, SessionPorts, SessionRoots,
    SessionSettings, Sessions,
};
pub use shared_ports::{SharedAsker, SharedEditor};
pub use turn::PendingTurn;
pub use undo::TurnSummary;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::agents::{AbandonedThreads, BudgetMeter, CompactionError, Exchange, History, Notifier};
use crate::broker::{BindError, Binding, Broker};
use crate::conversation::{Content, Message, Role, Usage};
use crate::ids::{ModeId, ModelRef};
use crate::llm::Provider;
use crate::manifest::ApprovalLevel;
use crate::principal::{GrantError, UsagePermit};
use crate::store::{SessionChange, StateEntry, StoreError, StoredSession, UsageTotals};
use crate::tool::{Notice, NoticeSink, SessionContext, SessionContextPorts};
use alert_asker::AlertSettings;
use checkpoints::SessionCheckpoints;
use hooks::SessionHooks;
use metrics::CountGuard;
use notices::SessionNotices;
use recorder::SessionRecorder;
use setup::SessionSetup;
use state::SessionStateStore;
use title::title_of;

/// An open session.
pub struct Session {
    sessions: Sessions,
    context: Arc<SessionContext>,
    /// Locked while a turn runs.
    history: Arc<tokio::sync::Mutex<History>>,
    /// The clients that show the session.
    live: Arc<LiveSession>,
    /// Number of stored events that the history reflects. Another Skein process may have added more.
    events: Arc<AtomicU64>,
    setup: Mutex<Arc<SessionSetup>>,
    /// Locked while a switch is prepared, so that the later of two wins.
    switch: tokio::sync::Mutex<()>,
    title: Mutex<Option<String>>,
    usage: Mutex<UsageTotals>,
    /// Notices for the user, and the notifier of the running turn.
    notices: Arc<SessionNotices>,
    /// Setup of the running turn. A switch applies to the next one.
    turn: Mutex<Option<Arc<SessionSetup>>>,
    /// Threads of code execution that did not stop.
    abandoned_threads: Arc<AbandonedThreads>,
    /// Tokens spent for the running turn outside its own requests.
    extra_usage: Mutex<Usage>,
    /// True if the store has shown that the session has no parent and no children.
    alone: AtomicBool,
    /// Counts the work of the session and its children against their limits.
    meter: Arc<BudgetMeter>,
    /// How the user is notified of permission requests.
    alerts: AlertSettings,
    /// Counts the session for its token while it is open. `None` for a child session.
    permit: Option<UsagePermit>,
    /// The state of the files before and after each turn. `None` in a child session, and if checkpoints are off.
    checkpoints: Option<Arc<SessionCheckpoints>>,
    hooks: SessionHooks,
    span: crate::telemetry::WorkSpan,
    _counted: CountGuard,
}

/// The stored contents of a session that is opened again. Empty for a new one.
#[derive(Default)]
struct SessionContents {
    history: History,
    stored: Option<StoredSession>,
    /// The state of its services.
    state: Vec<StateEntry>,
    permit: Option<UsagePermit>,
    /// The meter of the parent. `None` if the session has no parent.
    meter: Option<Arc<BudgetMeter>>,
    alerts: AlertSettings,
}

impl Session {
    fn new(
        sessions: Sessions,
        id: String,
        place: SessionRoots,
        choice: SessionSettings,
        host: SessionPorts,
        SessionContents { history, stored, state, permit, meter, alerts }: SessionContents,
    ) -> Arc<Self> {
        let notices = Arc::new(SessionNotices::default());
        let ports = SessionContextPorts {
            editor: host.editor.clone(),
            notices: Arc::clone(&notices) as Arc<dyn NoticeSink>,
            state: Arc::new(SessionStateStore::new(sessions.store.clone(), id.clone(), state)),
            ..sessions.context_ports(&id)
        };
        let session = place.context(id, &sessions, ports);
        let own_meter = || Arc::new(BudgetMeter::new(Arc::clone(&notices) as Arc<dyn NoticeSink>));
        let meter = meter.unwrap_or_else(own_meter);
        let setup = SessionSetup::new(choice, host, Arc::clone(&session), Arc::clone(&meter));
        let hooks = SessionHooks::new(stored.is_some());
        let (title, usage, events) =
            stored.map(|stored| (stored.title, stored.spent, stored.events)).unwrap_or_default();
        let events = Arc::new(AtomicU64::new(events));
        let is_here = permit.is_some() && session.client_folders().is_none();
        let store = sessions.checkpoint_store().filter(|_| is_here);
        let checkpoints = store.map(|it| SessionCheckpoints::attach(it, sessions.paths_to_hide(), &session, &events));
        Arc::new(Self {
            span: crate::telemetry::WorkSpan::session(&session.id),
            _counted: sessions.metrics.open_session(),
            sessions,
            context: session,
            history: Arc::new(tokio::sync::Mutex::new(history)),
            live: Arc::default(),
            events,
            setup: Mutex::new(Arc::new(setup)),
            switch: tokio::sync::Mutex::default(),
            title: Mutex::new(title),
            usage: Mutex::new(usage),
            notices,
            turn: Mutex::default(),
            abandoned_threads: Arc::default(),
            extra_usage: Mutex::default(),
            alone: AtomicBool::new(false),
            meter,
            alerts,
            permit,
            checkpoints,
            hooks,
        })
    }

    pub fn id(&self) -> &str {
        &self.context.id
    }

    pub fn context(&self) -> &Arc<SessionContext> {
        &self.context
    }

    pub fn choice(&self) -> SessionSettings {
        self.setup().choice.clone()
    }

    pub fn title(&self) -> Option<String> {
        lock(&self.title).clone()
    }

    pub fn usage_totals(&self) -> UsageTotals {
        *lock(&self.usage)
    }

    pub fn live(&self) -> &Arc<LiveSession> {
        &self.live
    }

    /// Returns the number of events in the session's event log.
    pub fn event_count(&self) -> usize {
        usize::try_from(self.events.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// Returns the model's last answer. Empty if it gave none, and while a turn runs.
    pub fn last_answer(&self) -> String {
        let Ok(history) = self.history.try_lock() else { return String::new() };
        // Without an answer, the prompt is the last message.
        let last = history.messages().last().filter(|message| message.role == Role::Assistant);
        last.map(|message| message.text()).unwrap_or_default()
    }

    /// Returns the last prompt and the messages after it. Empty while a turn runs.
    pub fn last_exchange(&self) -> Vec<Arc<Message>> {
        let Ok(history) = self.history.try_lock() else { return Vec::new() };
        let messages = history.messages();
        let from = messages.iter().rposition(|message| message.is_prompt()).unwrap_or(messages.len());
        messages[from..].to_vec()
    }

    /// Returns the model and the prompt of `goose/judge`. `None` if the user has no suitable model.
    pub fn judge(&self) -> Option<(Arc<dyn Provider>, Arc<str>)> {
        self.setup().judge()
    }

    /// Returns the size of the model's context window. `None` if it is unknown.
    pub fn window(&self) -> Option<u64> {
        self.setup().provider().ok()?.window()
    }

    /// Returns the cost of `usage`. `None` if the price is unknown.
    pub fn cost_of(&self, usage: &Usage) -> Option<f64> {
        Some(self.setup().provider().ok()?.price()?.of(usage))
    }

    /// Returns the cost of the session if the running turn has used `usage` so far. `None` if the price is unknown.
    pub fn cost_with(&self, usage: &Usage) -> Option<f64> {
        Some(self.usage_totals().cost.unwrap_or_default() + self.cost_of(usage)?)
    }

    /// Returns the binding of the session's mode, and starts services that do not run. If the tools of a service have
    /// changed, the new ones apply from the next turn.
    pub async fn binding(&self) -> Result<Arc<Binding>, BindError> {
        let setup = self.setup();
        let binding = setup.binding().await?;
        if !binding.is_outdated().await {
            return Ok(binding);
        }
        let _switch = self.switch.lock().await;
        if !Arc::ptr_eq(&setup, &self.setup()) {
            return self.setup().binding().await;
        }
        // A running turn keeps its binding.
        let next = setup.with(setup.choice.clone());
        match next.binding().await {
            Ok(fresh) => {
                *lock(&self.setup) = Arc::new(next);
                Ok(fresh)
            }
            Err(error) => {
                tracing::warn!(%error, "the tools of a service have changed, and the old ones are kept");
                Ok(binding)
            }
        }
    }

    /// Switches to another mode from the next turn on. If a required service cannot start, it fails and changes
    /// nothing.
    pub async fn set_mode(&self, mode: ModeId) -> Result<(), SessionError> {
        self.change(|choice| choice.mode = mode).await
    }

    pub async fn set_model(&self, model: ModelRef) -> Result<(), SessionError> {
        self.setup().provider_named(&model)?;
        self.change(|choice| choice.model = model).await
    }

    /// Sets the approval level. A stricter level applies at once, also to the running turn. Fails if the level is looser
    /// than the grant or a managed setting admits.
    pub async fn set_approval(&self, approval: ApprovalLevel) -> Result<(), SessionError> {
        self.sessions.grant.check_approval(approval)?;
        let managed = self.plan().manifests().managed.check_approval(approval);
        managed.inspect_err(|refusal| self.record_refusal(refusal)).map_err(GrantError::from)?;
        self.setup().tighten(approval);
        self.change(|choice| choice.approval = Some(approval)).await
    }

    async fn change(&self, change: impl FnOnce(&mut SessionSettings)) -> Result<(), SessionError> {
        let _switch = self.switch.lock().await;
        let now = self.setup();
        let mut choice = now.choice.clone();
        change(&mut choice);
        if choice == now.choice {
            return Ok(());
        }
        // A level from the launch applies to this launch only; the store keeps a level chosen just now.
        let approval = choice.approval.filter(|_| choice.approval != now.choice.approval);
        let change = SessionChange {
            agent: Some(choice.mode.agent.to_string()),
            mode: Some(choice.mode.mode.to_string()),
            model: Some(choice.model.to_string()),
            approval: approval.map(|approval| approval.as_str().to_owned()),
            ..SessionChange::default()
        };
        let next = now.with(choice);
        next.binding().await?;
        self.ensure_external_session(&next, false).await?;
        *lock(&self.setup) = Arc::new(next);
        self.sessions.store.change(self.id(), change);
        Ok(())
    }

    /// Starts a turn with the session's current mode and model. Fails if another turn runs, or too many of its token.
    pub fn begin(self: &Arc<Self>) -> Result<PendingTurn, PromptError> {
        let history = Arc::clone(&self.history).try_lock_owned().map_err(|_| PromptError::Busy)?;
        // The turns of child sessions belong to the turn of their parent.
        let permit = self.permit.as_ref().map(|_| self.sessions.grant.begin_turn()).transpose()?;
        let setup = self.setup();
        self.set_turn_setup(Arc::clone(&setup));
        Ok(PendingTurn::new(Arc::clone(self), history, setup, permit))
    }

    /// Returns true while a turn runs.
    pub fn is_busy(&self) -> bool {
        lock(&self.turn).is_some()
    }

    /// Returns the notifier of the running turn, which also stores its events.
    pub fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        self.notices.notifier()
    }

    /// Queues a notice for the next turn. A front end that can show it earlier takes it with [`Self::take_notices`].
    pub fn queue_notice(&self, notice: Notice) {
        self.notices.queue(notice);
    }

    /// Takes the notices that wait for the next turn.
    pub fn take_notices(&self) -> Vec<Notice> {
        self.notices.take()
    }

    /// Replaces the older messages for the model by a summary, at the user's request. Returns the number of messages
    /// replaced. Fails if a turn runs, or if an external agent manages the context window.
    pub async fn compact(&self, front: Arc<dyn Notifier>, cancel: &CancellationToken) -> Result<usize, PromptError> {
        let mut history = self.history.try_lock().map_err(|_| PromptError::Busy)?;
        self.catch_up(&mut history).await?;
        if let Some((who, _)) = self.setup().external_agent() {
            return Err(CompactionError::External { agent: who.name().clone() }.into());
        }
        let exchange = self.prepare(&self.setup(), "", &front).await?;
        let mut usage = Usage::default();
        let shortened = exchange.compact(&mut history, &mut usage, cancel).await;
        self.count(usage);
        self.clear_turn();
        self.flush().await?;
        Ok(shortened?)
    }

    /// Prepares the exchange of a turn.
    async fn prepare(
        &self,
        setup: &SessionSetup,
        prompt: &str,
        front: &Arc<dyn Notifier>,
    ) -> Result<Exchange, PromptError> {
        let provider = setup.provider()?;
        let upkeep = setup.recovery_policy()?;
        let binding = setup.binding().await?;
        let options = &self.sessions.options;
        let system = setup.system(&binding, prompt, options.os).await.map_err(PromptError::Prompt)?;
        let session = Arc::clone(&self.context);
        let exchange = Exchange::new(provider, binding, session, self.recorder(front), options.limits, system);
        let exchange = exchange.with_recovery(upkeep).with_budget(Arc::clone(&self.meter));
        Ok(exchange.with_abandoned_threads(Arc::clone(&self.abandoned_threads)))
    }

    fn recorder(&self, front: &Arc<dyn Notifier>) -> Arc<dyn Notifier> {
        let recorder: Arc<dyn Notifier> =
            Arc::new(SessionRecorder::new(&self.sessions, self.id(), &self.events, front));
        self.notices.attach(Arc::clone(&recorder));
        recorder
    }

    /// Reloads the history if another process has continued the session. Adds what external agents sent after their
    /// turns, so that it comes before the next prompt. Sets the limits of the turn.
    async fn catch_up(&self, history: &mut History) -> Result<(), PromptError> {
        self.open_budgets().await?;
        let known = self.events.load(Ordering::Relaxed);
        let late = self.setup().external_sessions().take_late(history.messages().len());
        if self.events.load(Ordering::Relaxed) != known {
            self.flush().await?;
        }
        let stored = self.sessions.store.find_in_use(self.id()).await?;
        if stored.events != self.events.load(Ordering::Relaxed) {
            let whole = self.sessions.events(self.id()).await?;
            *history = History::from_events(&whole);
            self.events.store(whole.len() as u64, Ordering::Relaxed);
            self.live.set_start(whole.len());
        } else {
            late.into_iter().for_each(|message| history.push(message));
        }
        Ok(())
    }

    /// Names the session after its first prompt. Returns the title if it is new.
    fn name_after(&self, prompt: &[Content]) -> Option<String> {
        let mut title = lock(&self.title);
        if title.is_some() {
            return None;
        }
        *title = title_of(prompt);
        self.sessions.store.change(self.id(), SessionChange { title: title.clone(), ..SessionChange::default() });
        title.clone()
    }

    fn set_turn_setup(&self, setup: Arc<SessionSetup>) {
        *lock(&self.turn) = Some(setup);
    }

    fn clear_turn(&self) {
        self.notices.detach();
        self.context.set_turn_span(None);
        *lock(&self.turn) = None;
    }

    /// Returns the setup of the running turn, or the current one if no turn runs.
    fn turn_setup(&self) -> Arc<SessionSetup> {
        lock(&self.turn).clone().unwrap_or_else(|| self.setup())
    }

    /// Waits until the store has all events of the session.
    async fn flush(&self) -> Result<(), StoreError> {
        self.sessions.store.flush(self.id()).await
    }

    pub fn broker(&self) -> Broker {
        self.setup().host().broker.clone()
    }

    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Ends the delegated tasks of the session, its external sessions and the services that belong to it. The store
    /// keeps the session.
    pub fn close(&self) {
        self.run_end_hooks();
        if let Some(delegator) = self.context.delegator.get() {
            delegator.stop();
        }
        self.context.end();
        self.setup().external_sessions().close();
    }

    fn setup(&self) -> Arc<SessionSetup> {
        Arc::clone(&lock(&self.setup))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("id", &self.id()).field("choice", &self.choice()).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
