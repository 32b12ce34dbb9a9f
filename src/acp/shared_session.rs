//! Holds the sessions that are open in this process. Several connections may show one session.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use agent_client_protocol::v1::schema as acp;
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Project, errors};
use crate::principal::SessionGrant;
use crate::project::{ClientPorts, ProjectError, SessionProject};
use crate::session::{Session, SharedAsker, SharedEditor, ViewerId};
use crate::task::TaskScope;
use crate::tool::ask::Asker;

/// Returns an id for a client that shows sessions. No other client of this process has it.
pub fn next_viewer_id() -> ViewerId {
    static NEXT_ID: AtomicU64 = AtomicU64::new(0);
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// Watches all sessions of a process. Any client may open them. No method may block.
pub trait SessionObserver: std::fmt::Debug + Send + Sync {
    /// Returns an asker that is shown each question of a session, and may answer it before a client does.
    fn asker(&self, session: &Arc<Session>) -> Arc<dyn Asker>;

    /// Called when a session is open and clients can attach to it.
    fn session_opened(&self, open: &Arc<SharedSession>);
}

/// The open sessions that connections share.
#[derive(Debug)]
pub struct SharedSessions {
    sessions: Mutex<HashMap<String, Weak<SharedSession>>>,
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    ask_timeout: Duration,
    observer: Option<Arc<dyn SessionObserver>>,
}

impl SharedSessions {
    /// Creates the sessions of a process with one client. A turn ends with the connection.
    pub fn of_one_client() -> Self {
        Self::with_timeout(Duration::ZERO)
    }

    /// Creates the sessions of a server. A turn outlasts its connection, and its questions wait this long for one.
    pub fn with_timeout(ask_timeout: Duration) -> Self {
        Self { sessions: Mutex::default(), locks: Mutex::default(), ask_timeout, observer: None }
    }

    /// Notifies the observer of each session that is opened from now on.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn SessionObserver>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Returns how long a question of a turn waits for an answer.
    pub fn ask_timeout(&self) -> Duration {
        self.ask_timeout
    }

    /// Returns true if a turn outlasts its last connection.
    pub(super) fn keep_turns(&self) -> bool {
        !self.ask_timeout.is_zero()
    }

    /// Returns the ports of a new or reopened session. Clients attach to them later.
    pub fn ports(&self) -> SharedPorts {
        SharedPorts { asker: Arc::new(SharedAsker::new(self.ask_timeout)), editor: Arc::default() }
    }

    pub fn add(&self, session: Arc<Session>, project: Project, ports: SharedPorts) -> Arc<SharedSession> {
        let id = session.id().to_owned();
        if let Some(observer) = &self.observer {
            ports.asker.set_observer(observer.asker(&session));
        }
        let open = Arc::new(SharedSession {
            session,
            project: SessionProject::new(project),
            ports,
            turn: Mutex::default(),
            order: Arc::default(),
            tasks: TaskScope::new(),
        });
        {
            let mut sessions = lock(&self.sessions);
            sessions.retain(|_, open| open.strong_count() > 0);
            sessions.insert(id, Arc::downgrade(&open));
        }
        if let Some(observer) = &self.observer {
            observer.session_opened(&open);
        }
        open
    }

    /// Returns the sessions in which a turn runs.
    pub fn busy_sessions(&self) -> Vec<Arc<SharedSession>> {
        let open: Vec<_> = lock(&self.sessions).values().filter_map(Weak::upgrade).collect();
        open.into_iter().filter(|open| open.is_busy()).collect()
    }

    /// Returns the open session `id`. `None` if it is not open.
    pub fn find(&self, id: &str) -> Option<Arc<SharedSession>> {
        lock(&self.sessions).get(id)?.upgrade()
    }

    /// Returns the open session `id` for a client that would join it. Closes it first if its token has ended. `None` if
    /// it is not open any more. The caller has locked the session.
    pub async fn find_live(&self, id: &str) -> Option<Arc<SharedSession>> {
        let open = self.find(id)?;
        if open.session.is_ended() {
            self.close(&open).await;
            return None;
        }
        Some(open)
    }

    /// Locks a session id while a request opens or closes the session, so that it is open at most once.
    pub async fn lock_session(&self, id: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = lock(&self.locks);
            // Only the map has the locks of other sessions that no request opens or closes now.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(id.to_owned()).or_default())
        };
        lock.lock_owned().await
    }

    /// Cancels the turns of all sessions, with and without a connection, and waits for their ends.
    pub async fn interrupt_all(&self) {
        let open: Vec<_> = lock(&self.sessions).values().filter_map(Weak::upgrade).collect();
        futures::future::join_all(open.iter().map(|open| open.interrupt())).await;
    }

    /// Ends a session that no other connection shows: cancels its turn, waits for its end and closes the session.
    pub async fn close(&self, open: &SharedSession) {
        self.remove(open);
        open.interrupt().await;
        let is_external = open.session.is_external();
        open.session.close();
        // The close stores what an external agent said after its turn. A client may load the session next.
        if is_external && let Err(error) = open.session.sessions().store().flush(open.session.id()).await {
            tracing::warn!(session = open.session.id(), %error, "the last events of a session could not be stored");
        }
    }
}

impl SharedSessions {
    /// Removes a session, unless it was opened again meanwhile.
    fn remove(&self, open: &SharedSession) {
        let mut sessions = lock(&self.sessions);
        if sessions.get(open.session.id()).is_some_and(|known| std::ptr::eq(known.as_ptr(), open)) {
            sessions.remove(open.session.id());
        }
    }
}

/// The asker and the editor of a session. Every attached client adds its own.
#[derive(Debug, Clone)]
pub struct SharedPorts {
    asker: Arc<SharedAsker>,
    editor: Arc<SharedEditor>,
}

impl SharedPorts {
    /// Returns the ports that a session is opened with.
    pub fn of_session(&self) -> ClientPorts {
        let SharedPorts { asker, editor } = self.clone();
        ClientPorts { asker, editor: Some(editor) }
    }

    pub fn attach(&self, viewer: ViewerId, ports: ClientPorts) {
        self.editor.attach(viewer, ports.editor);
        self.asker.attach(viewer, ports.asker);
    }
}

/// A session that is open in this process.
pub struct SharedSession {
    pub session: Arc<Session>,
    /// What applies in the session's folder since the last time its files changed.
    project: SessionProject,
    pub ports: SharedPorts,
    turn: Mutex<Option<TurnTokens>>,
    /// Serializes prompts and changes of the session in the order of their requests.
    order: Arc<tokio::sync::Mutex<()>>,
    /// Runs the turns, which may outlast the connection that began them.
    tasks: TaskScope,
}

/// The tokens of a running turn: `cancel` stops it, `ended` is cancelled when it has ended.
#[derive(Clone)]
struct TurnTokens {
    cancel: CancellationToken,
    ended: CancellationToken,
    /// The version of the live session before the turn.
    version: u64,
}

/// A position in the queue of a session's requests. The dispatch loop takes it; the task of the request waits for it.
pub(super) struct RequestTicket {
    waiting: futures::future::BoxFuture<'static, OwnedMutexGuard<()>>,
    taken: Option<OwnedMutexGuard<()>>,
}

impl RequestTicket {
    pub(super) async fn wait(self) -> OwnedMutexGuard<()> {
        match self.taken {
            Some(guard) => guard,
            None => self.waiting.await,
        }
    }
}

impl SharedSession {
    pub(super) fn project(&self) -> Project {
        self.project.current()
    }

    /// Applies the manifests and settings of the session's folder if they have changed. Returns true if other ones apply
    /// from the next turn on. If they have errors, the old ones stay and the user gets a notice.
    pub async fn reload(&self, loaded: Result<Project, ProjectError>) -> bool {
        self.project.reload(&self.session, loaded).await
    }

    /// Returns a ticket after all earlier requests for this session.
    pub(super) fn ticket(&self) -> RequestTicket {
        use futures::FutureExt as _;
        let mut waiting: futures::future::BoxFuture<'static, _> = Box::pin(Arc::clone(&self.order).lock_owned());
        // The first poll enters the queue of the lock.
        let taken = (&mut waiting).now_or_never();
        RequestTicket { waiting, taken }
    }

    /// Marks the session as busy as soon as its prompt is read, so that a cancel right after it finds the turn. Fails
    /// if a turn is running.
    pub(super) fn begin(self: &Arc<Self>, grant: &SessionGrant) -> Result<RunningTurn, acp::Error> {
        self.try_begin(grant).ok_or_else(errors::busy)
    }

    /// Marks the session as busy with a turn of a client with this grant. The turn ends with the token of the client
    /// and with that of the session, also if no connection shows it. `None` if a turn is running.
    pub fn try_begin(self: &Arc<Self>, grant: &SessionGrant) -> Option<RunningTurn> {
        let mut turn = lock(&self.turn);
        if turn.is_some() {
            return None;
        }
        let cancel = self.session.sessions().grant().end_signal().child_token();
        let version = self.session.live().version();
        let tokens = turn.insert(TurnTokens { cancel, ended: CancellationToken::new(), version }).clone();
        if !self.session.is_of_token(grant) {
            let (token, TurnTokens { cancel, ended, .. }) = (grant.end_signal().clone(), tokens.clone());
            self.tasks.spawn(async move {
                tokio::select! {
                    () = ended.cancelled() => {}
                    () = token.cancelled() => cancel.cancel(),
                }
            });
        }
        let ended = Some(tokens.ended.clone().drop_guard());
        Some(RunningTurn { open: Arc::clone(self), turn: tokens, ended })
    }

    pub fn is_busy(&self) -> bool {
        lock(&self.turn).is_some()
    }

    /// Returns true until viewers get the end of the turn. `is_busy` stays true for a moment longer.
    pub fn is_running(&self) -> bool {
        // The version changes when viewers are shown the beginning, and when they are shown the end.
        lock(&self.turn).as_ref().is_some_and(|turn| self.session.live().version() < turn.version + 2)
    }

    /// Cancels the running turn. Does nothing if no turn runs.
    pub fn cancel(&self) {
        if let Some(turn) = &*lock(&self.turn) {
            turn.cancel.cancel();
        }
    }

    /// Cancels the turn and waits for its end.
    async fn interrupt(&self) {
        let turn = lock(&self.turn).clone();
        if let Some(turn) = turn {
            turn.cancel.cancel();
            turn.ended.cancelled().await;
        }
    }

    /// Runs the turn of a prompt. It does not end with the connection.
    pub(super) fn spawn(&self, turn: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(turn);
    }

    /// Removes a connection from the session. Returns true if no other connection shows it.
    pub fn detach(&self, viewer: ViewerId) -> bool {
        self.ports.asker.detach(viewer);
        self.ports.editor.detach(viewer);
        self.session.live().detach(viewer)
    }
}

impl std::fmt::Debug for SharedSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedSession").field("session", &self.session).finish_non_exhaustive()
    }
}

/// A guard for a running turn. Dropping it ends the turn.
pub struct RunningTurn {
    open: Arc<SharedSession>,
    turn: TurnTokens,
    ended: Option<DropGuard>,
}

impl RunningTurn {
    pub fn cancel(&self) -> &CancellationToken {
        &self.turn.cancel
    }

    /// Frees the session for the next prompt. Callers that wait for the end of this turn wait until the returned guard
    /// is dropped.
    pub(super) fn end(mut self) -> Option<DropGuard> {
        self.ended.take()
    }
}

impl std::fmt::Debug for RunningTurn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningTurn").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Drop for RunningTurn {
    fn drop(&mut self) {
        *lock(&self.open.turn) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
