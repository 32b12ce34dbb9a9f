//! A session that is open: it takes prompts, one at a time, and can be switched meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::recorder::{SessionRecorder, row};
use super::setup::SessionSetup;
use super::turn::PendingTurn;
use super::undo::{UndoneTurn, last_exchange};
use super::{SessionError, SessionPorts, SessionRoots, SessionSettings, Sessions};
use crate::agents::{Event, Exchange, History, Notifier, StatusUpdate};
use crate::broker::{BindError, Binding, Broker};
use crate::conversation::{Message, Role, Usage};
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::llm::{LlmError, Provider};
use crate::manifest::{ApprovalLevel, ServiceEntry};
use crate::store::{SessionChange, StoreError, StoredSession, UsageTotals};
use crate::tool::{SessionContext, is_hidden};

/// An open session.
pub struct Session {
    pub(super) sessions: Sessions,
    context: Arc<SessionContext>,
    /// Held while a turn runs.
    pub(super) history: Arc<tokio::sync::Mutex<History>>,
    /// How many events the history was made of. Another skein may have gone on with the session meanwhile.
    pub(super) events: Arc<AtomicU64>,
    setup: Mutex<Arc<SessionSetup>>,
    /// Held while a switch is prepared, so that of two the later one wins.
    switch: tokio::sync::Mutex<()>,
    title: Mutex<Option<String>>,
    usage: Mutex<UsageTotals>,
    /// Of the turn that runs.
    notifier: Mutex<Option<Arc<dyn Notifier>>>,
    /// What the turn that runs thinks with; a switch is for the next one.
    turn: Mutex<Option<Arc<SessionSetup>>>,
    /// What was spent for the turn that runs outside of its own requests.
    extra_usage: Mutex<Usage>,
    /// It works for nobody, and nobody for it.
    alone: AtomicBool,
}

/// Why a prompt was not even tried.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    #[error("the session is still busy with the prompt before; wait for its end, or cancel it")]
    Busy,
    #[error("{0}")]
    Misdirected(String),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Model(#[from] LlmError),
    #[error("the prompt of the mode cannot be filled in: {0}")]
    Prompt(String),
    #[error("the talk was not shortened: {0}")]
    NotCompacted(String),
    #[error("what happened could not be stored: {0}")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Record(#[from] SessionError),
}

impl Session {
    pub(super) fn new(
        sessions: Sessions,
        id: String,
        place: SessionRoots,
        choice: SessionSettings,
        host: SessionPorts,
        history: History,
        stored: Option<&StoredSession>,
    ) -> Arc<Self> {
        let scratch = sessions.scratch(&id);
        let session = SessionContext::in_editor(
            id,
            place.cwd,
            place.roots,
            scratch,
            sessions.paths_to_hide(),
            host.editor.clone(),
        );
        let setup = SessionSetup::new(choice, host, Arc::clone(&session));
        let spent = stored.map(|stored| stored.spent).unwrap_or_default();
        let live = Arc::new(Self {
            sessions,
            context: session,
            history: Arc::new(tokio::sync::Mutex::new(history)),
            events: Arc::new(AtomicU64::new(stored.map_or(0, |stored| stored.events))),
            setup: Mutex::new(Arc::new(setup)),
            switch: tokio::sync::Mutex::default(),
            title: Mutex::new(stored.and_then(|stored| stored.title.clone())),
            usage: Mutex::new(spent),
            notifier: Mutex::default(),
            turn: Mutex::default(),
            extra_usage: Mutex::default(),
            alone: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&live);
        live.context.warnings.listen(move |text| {
            let turn = weak.upgrade().and_then(|live| live.notifier());
            turn.map(|turn| turn.status(StatusUpdate::Notice(text))).is_some()
        });
        live
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

    /// What the model said last; empty if it said nothing, and while a turn runs.
    pub fn last_answer(&self) -> String {
        let Ok(history) = self.history.try_lock() else { return String::new() };
        // A model that said nothing leaves the prompt as the last message.
        let last = history.messages().last().filter(|message| message.role == Role::Assistant);
        last.map(|message| message.text()).unwrap_or_default()
    }

    /// What was said since the last prompt, with it; nothing while a turn runs.
    pub fn last_exchange(&self) -> Vec<Arc<Message>> {
        let Ok(history) = self.history.try_lock() else { return Vec::new() };
        let messages = history.messages();
        let from = messages.iter().rposition(|message| message.is_prompt()).unwrap_or(messages.len());
        messages[from..].to_vec()
    }

    /// The model and the prompt of goose/judge, if the user has a model that can be one.
    pub fn judge(&self) -> Option<(Arc<dyn Provider>, Arc<str>)> {
        self.setup().judge()
    }

    /// How large the model's window is, if that is known.
    pub fn window(&self) -> Option<u64> {
        self.setup().provider().ok()?.window()
    }

    /// What so many tokens cost; nothing if that is not known.
    pub fn cost_of(&self, usage: &Usage) -> Option<f64> {
        Some(self.setup().provider().ok()?.price()?.of(usage))
    }

    /// What the session has cost if the turn that runs has used `usage` so far; nothing if that is not known.
    pub fn cost_with(&self, usage: &Usage) -> Option<f64> {
        Some(self.usage_totals().cost.unwrap_or_default() + self.cost_of(usage)?)
    }

    /// What the session may use in its mode; its services are started if they do not run. If one of them has other tools
    /// than it had, the next turn has those.
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
        // A turn that runs keeps what it began with.
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

    /// Goes on in another mode, from the next turn. If a service that it needs cannot start, nothing changes.
    pub async fn set_mode(&self, mode: ModeId) -> Result<(), SessionError> {
        self.change(|choice| choice.mode = mode).await
    }

    pub async fn set_model(&self, model: String) -> Result<(), SessionError> {
        self.setup().provider_named(&model)?;
        self.change(|choice| choice.model = model).await
    }

    /// A stricter level holds at once, also for the turn that runs.
    pub async fn set_approval(&self, approval: ApprovalLevel) -> Result<(), SessionError> {
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
        // A level that came with the launch is for the launch: it is kept only if it was chosen just now.
        let approval = choice.approval.filter(|_| choice.approval != now.choice.approval);
        let change = SessionChange {
            agent: Some(choice.mode.agent.to_string()),
            mode: Some(choice.mode.mode.to_string()),
            model: Some(choice.model.clone()),
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

    /// Starts a turn with the session's current mode and model. Fails if another turn runs.
    pub fn begin(self: &Arc<Self>) -> Result<PendingTurn, PromptError> {
        let history = Arc::clone(&self.history).try_lock_owned().map_err(|_| PromptError::Busy)?;
        let setup = self.setup();
        self.set_turn_setup(Arc::clone(&setup));
        Ok(PendingTurn::new(Arc::clone(self), history, setup))
    }

    /// Returns true while a turn runs.
    pub fn is_busy(&self) -> bool {
        lock(&self.turn).is_some()
    }

    /// Who hears of the turn that runs, and records it.
    pub fn notifier(&self) -> Option<Arc<dyn Notifier>> {
        lock(&self.notifier).clone()
    }

    /// Shows the model the older part of the talk as a summary from now on, because the user asks for it.
    pub async fn compact(&self, front: Arc<dyn Notifier>, cancel: &CancellationToken) -> Result<usize, PromptError> {
        let mut history = self.history.try_lock().map_err(|_| PromptError::Busy)?;
        self.catch_up(&mut history).await?;
        if let Some((who, _)) = self.setup().external_agent() {
            return Err(PromptError::NotCompacted(format!("`{}` looks after its own window", who.name)));
        }
        let exchange = self.prepare(&self.setup(), "", &front).await?;
        let mut usage = Usage::default();
        let shortened = exchange.compact(&mut history, &mut usage, cancel).await;
        self.count(usage);
        self.finish_turn().await?;
        shortened.map_err(PromptError::NotCompacted)
    }

    /// Takes back the last prompt and everything that followed it, for the model and in the record. Nothing if there
    /// is no prompt left.
    pub async fn undo(&self) -> Result<Option<UndoneTurn>, PromptError> {
        let mut history = self.history.try_lock().map_err(|_| PromptError::Busy)?;
        let mut events = self.sessions.events(self.id()).await?;
        let Some((place, undone)) = last_exchange(&events) else { return Ok(None) };
        let event = Event::Undone { events: place };
        self.sessions.store.append(self.id(), row(&event));
        self.sessions.store.flush(self.id()).await?;
        events.push(event);
        *history = History::from_events(&events);
        self.events.store(events.len() as u64, Ordering::Relaxed);
        self.setup().external_sessions().forget();
        Ok(Some(undone))
    }

    /// Everything a turn needs, ready to begin.
    pub(super) async fn prepare(
        &self,
        setup: &SessionSetup,
        prompt: &str,
        front: &Arc<dyn Notifier>,
    ) -> Result<Exchange, PromptError> {
        let provider = setup.provider()?;
        let upkeep = setup.models().recovery_policy()?;
        let binding = setup.binding().await?;
        let options = &self.sessions.options;
        let system = setup.system(&binding, prompt, options.os).await.map_err(PromptError::Prompt)?;
        let recorder = self.recorder(front);
        let session = Arc::clone(&self.context);
        let exchange = Exchange::new(provider, binding, session, recorder, options.limits, system);
        Ok(exchange.with_recovery(upkeep))
    }

    pub(super) fn recorder(&self, front: &Arc<dyn Notifier>) -> Arc<dyn Notifier> {
        let recorder: Arc<dyn Notifier> = Arc::new(SessionRecorder {
            store: self.sessions.store.clone(),
            session: self.id().to_owned(),
            events: Arc::clone(&self.events),
            notifier: Arc::clone(front),
        });
        *lock(&self.notifier) = Some(Arc::clone(&recorder));
        recorder
    }

    /// Reads the history anew if somebody else has gone on with the session.
    pub(super) async fn catch_up(&self, history: &mut History) -> Result<(), PromptError> {
        let stored = self.sessions.store.find(self.id()).await?;
        let stored = stored.ok_or_else(|| StoreError::Gone { id: self.id().to_owned() })?;
        if stored.events != self.events.load(Ordering::Relaxed) {
            let whole = self.sessions.events(self.id()).await?;
            *history = History::from_events(&whole);
            self.events.store(whole.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Names the session after its first prompt. Returns the title if it is new.
    pub(super) fn name_after(&self, prompt: &str) -> Option<String> {
        let mut title = lock(&self.title);
        if title.is_some() {
            return None;
        }
        *title = title_of(prompt);
        self.sessions.store.change(self.id(), SessionChange { title: title.clone(), ..SessionChange::default() });
        title.clone()
    }

    /// Counts tokens that were spent for the session beside its own requests: with the turn that runs, if one does.
    pub fn spend(&self, usage: Usage) {
        if lock(&self.turn).is_some() {
            *lock(&self.extra_usage) += usage;
        } else {
            self.count(usage);
        }
    }

    /// What was spent beside the turn, which is counted with it.
    pub(super) fn take_extra_usage(&self) -> Usage {
        std::mem::take(&mut *lock(&self.extra_usage))
    }

    pub(super) fn set_turn_setup(&self, setup: Arc<SessionSetup>) {
        *lock(&self.turn) = Some(setup);
    }

    pub(super) fn clear_turn(&self) {
        *lock(&self.notifier) = None;
        *lock(&self.turn) = None;
    }

    /// What the turn that runs began with, or else what the session is set to.
    pub(super) fn turn_setup(&self) -> Arc<SessionSetup> {
        lock(&self.turn).clone().unwrap_or_else(|| self.setup())
    }

    pub(super) fn count(&self, usage: Usage) {
        let cost = self.cost_of(&usage);
        let more = UsageTotals { input: usage.input, output: usage.output, cached: usage.cached, cost };
        let mut spent = lock(&self.usage);
        spent.cost = cost.map(|cost| spent.cost.unwrap_or_default() + cost).or(spent.cost);
        spent.input += more.input;
        spent.output += more.output;
        spent.cached += more.cached;
        self.sessions.store.change(self.id(), SessionChange { spent: Some(more), ..SessionChange::default() });
    }

    /// Nobody hears of the turn any more; returns when the store has it.
    pub(super) async fn finish_turn(&self) -> Result<(), StoreError> {
        self.clear_turn();
        self.sessions.store.flush(self.id()).await
    }

    pub fn plan(&self) -> Arc<Plan> {
        Arc::clone(self.broker().plan())
    }

    pub fn broker(&self) -> Broker {
        self.setup().host().broker.clone()
    }

    /// MCP servers that came with the session.
    pub fn client_services(&self) -> Vec<Arc<ServiceEntry>> {
        self.setup().host().client_services.clone()
    }

    /// This session, the one it works for, and those that work for either.
    pub async fn family(&self) -> Vec<String> {
        let own = || vec![self.id().to_owned()];
        if self.alone.load(Ordering::Relaxed) {
            return own();
        }
        let family = self.sessions.store.family(self.id()).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the sessions that belong together could not be read");
            own()
        });
        self.alone.store(family == own(), Ordering::Relaxed);
        family
    }

    /// From now on others work for it.
    pub(super) fn not_alone(&self) {
        self.alone.store(false, Ordering::Relaxed);
    }

    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub(super) fn setup(&self) -> Arc<SessionSetup> {
        Arc::clone(&lock(&self.setup))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // What others do for it ends with it.
        if let Some(delegator) = self.context.delegator.get() {
            delegator.stop();
        }
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

/// The beginning of the first line that says something.
fn title_of(prompt: &str) -> Option<String> {
    const MAX: usize = 60;
    let line = prompt.lines().map(str::trim).find(|line| !line.is_empty())?;
    let line: String = line.chars().filter(|c| !c.is_control() && !is_hidden(*c)).collect();
    if line.chars().count() <= MAX {
        return Some(line);
    }
    let cut: String = line.chars().take(MAX).collect();
    let end = cut.rfind(' ').filter(|end| *end > MAX / 2).unwrap_or(cut.len());
    Some(format!("{}…", cut[..end].trim_end()))
}
