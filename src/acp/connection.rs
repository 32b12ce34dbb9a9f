//! One client: what it can do, and the sessions that are open on its connection.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use agent_client_protocol::Client;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema as acp;
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::updates::{ClientFeatures, MessageIds, Updates};
use super::wire::ClientWriter;
use super::{AcpServer, Project, errors};
use crate::broker::Binding;
use crate::graph::Plan;
use crate::session::{Session, SessionError, Sessions};
use crate::task::TaskScope;

/// See the module.
pub(super) struct ClientConnection {
    pub(super) server: AcpServer,
    pub(super) wire: ClientWriter,
    client: OnceLock<acp::ClientCapabilities>,
    sessions: tokio::sync::OnceCell<Sessions>,
    open: Mutex<HashMap<String, Arc<ClientSession>>>,
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    pub(super) tasks: TaskScope,
}

/// A session that was created, loaded or resumed here, and not closed.
pub(super) struct ClientSession {
    pub(super) session: Arc<Session>,
    pub(super) project: Project,
    pub(super) messages: Arc<MessageIds>,
    /// The client shows options that are on or off.
    pub(super) knows_booleans: bool,
    /// What the user should hear and has not.
    pending_notices: Mutex<Vec<String>>,
    /// What was noted about services, told or not.
    seen_notices: Mutex<HashSet<String>>,
    /// The commands that the client was told last.
    commands: Mutex<Option<acp::AvailableCommandsUpdate>>,
    /// What agents outside call the session whose changes the client is told.
    forwarded_sessions: Mutex<HashSet<String>>,
    /// Told when those have changed.
    pub(super) commands_changed: Arc<Notify>,
    /// The session is no longer open here.
    pub(super) closed: CancellationToken,
    turn: Mutex<Option<TurnTokens>>,
    /// Whoever changes a session or prompts it does so in the order of the requests.
    order: Arc<tokio::sync::Mutex<()>>,
}

/// A turn that runs.
#[derive(Clone, Default)]
struct TurnTokens {
    cancel: CancellationToken,
    ended: CancellationToken,
}

/// A place in the order of a session's requests. Taken in the dispatch loop, waited for outside of it.
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

impl ClientConnection {
    pub(super) fn new(front: AcpServer, wire: ClientWriter) -> Arc<Self> {
        Arc::new(Self {
            server: front,
            wire,
            client: OnceLock::new(),
            sessions: tokio::sync::OnceCell::new(),
            open: Mutex::default(),
            locks: Mutex::default(),
            tasks: TaskScope::new(),
        })
    }

    /// What the client said about itself counts from its first word.
    pub(super) fn set_client(&self, client: acp::ClientCapabilities) {
        drop(self.client.set(client));
    }

    pub(super) fn client(&self) -> acp::ClientCapabilities {
        self.client.get().cloned().unwrap_or_default()
    }

    /// The store of sessions; a client is greeted before it is open, and even if it cannot be. What is mended
    /// meanwhile is found the next time.
    pub(super) async fn sessions(&self) -> Result<&Sessions, acp::Error> {
        self.sessions.get_or_try_init(|| (self.server.sessions)()).await.map_err(errors::internal_error)
    }

    /// Held by whoever opens or closes the session of this id, so that one session is one thing.
    pub(super) async fn lock_session(&self, id: &acp::SessionId) -> OwnedMutexGuard<()> {
        let lock = Arc::clone(lock(&self.locks).entry(id.0.to_string()).or_default());
        lock.lock_owned().await
    }

    /// What holds in a folder. The same words as `skein check` if that is nothing good.
    pub(super) async fn project(&self, cwd: &Path) -> Result<Project, acp::Error> {
        let (projects, cwd) = (Arc::clone(&self.server.projects), cwd.to_owned());
        let opened = tokio::task::spawn_blocking(move || projects.open(&cwd)).await;
        let opened = opened.map_err(|error| errors::internal_error(error.to_string()))?;
        opened.map_err(|broken| errors::project_error(&broken))
    }

    /// Runs until done, apart from the dispatch loop. What is not done when the client has gone and every turn has
    /// ended is dropped: a service that is slow to start keeps nobody.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let ended = self.tasks.cancelled().clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = work => {}
                () = ended.cancelled() => {}
            }
        });
    }

    pub(super) fn session(&self, id: &acp::SessionId) -> Result<Arc<ClientSession>, acp::Error> {
        self.all_open().get(&*id.0).cloned().ok_or_else(|| errors::session_not_open(&id.0))
    }

    /// `events`: how many the session has had so far.
    pub(super) fn add(
        &self,
        live: Arc<Session>,
        project: Project,
        untold: Vec<String>,
        events: usize,
    ) -> Arc<ClientSession> {
        let id = live.id().to_owned();
        let open = Arc::new(ClientSession {
            session: live,
            project,
            messages: Arc::new(MessageIds::after(events)),
            knows_booleans: knows_booleans(&self.client()),
            pending_notices: Mutex::new(untold),
            seen_notices: Mutex::default(),
            commands: Mutex::default(),
            forwarded_sessions: Mutex::default(),
            commands_changed: Arc::default(),
            closed: CancellationToken::new(),
            turn: Mutex::default(),
            order: Arc::default(),
        });
        self.all_open().insert(id, Arc::clone(&open));
        open
    }

    /// Cancels what the session does, waits for its end, and lets go of it.
    pub(super) async fn close(&self, id: &acp::SessionId) -> Option<Arc<ClientSession>> {
        let open = self.all_open().remove(&*id.0)?;
        open.stop().await;
        Some(open)
    }

    pub(super) fn updates(&self, open: &ClientSession) -> Updates {
        Updates::new(
            self.wire.clone(),
            &open.session,
            Arc::clone(open.plan()),
            ClientFeatures::of(&self.client()),
            Arc::clone(&open.messages),
        )
    }

    /// Tells what is still untold, behind whatever was answered before. Only a client with notices hears it outside
    /// a turn; others do when the next one begins.
    pub(super) fn send_pending_notices(&self, client: &ConnectionTo<Client>, open: &ClientSession) {
        if !ClientFeatures::of(&self.client()).notices {
            return;
        }
        for text in open.take_pending_notices() {
            let notice = acp::SessionUpdate::Notice(acp::Notice::new(acp::NoticeSeverity::Warning, text));
            let id = acp::SessionId::new(open.session.id());
            // A client that went away hears nothing more.
            drop(client.send_notification(acp::SessionNotification::new(id, notice)));
        }
    }

    /// The same at the beginning of a turn.
    pub(super) fn show_pending_notices(&self, open: &ClientSession) {
        let untold = open.take_pending_notices();
        if untold.is_empty() {
            return;
        }
        let updates = self.updates(open);
        for text in untold {
            updates.notice(acp::NoticeSeverity::Warning, &text);
        }
    }

    /// The client has gone: whatever still runs for it ends.
    pub(super) async fn end(&self) {
        let open: Vec<_> = self.all_open().drain().map(|(_, open)| open).collect();
        futures::future::join_all(open.iter().map(|open| open.stop())).await;
        self.tasks.stop().await;
    }

    fn all_open(&self) -> MutexGuard<'_, HashMap<String, Arc<ClientSession>>> {
        lock(&self.open)
    }
}

impl ClientSession {
    pub(super) fn plan(&self) -> &Arc<Plan> {
        self.project.broker.plan()
    }

    /// Enters the mode, and notes what it does without; each is told once.
    pub(super) async fn enter(&self) -> Result<Arc<Binding>, SessionError> {
        let binding = self.session.binding().await?;
        self.session.open_external_session().await?;
        let missed = binding.missing_services().iter().filter(|absent| absent.is_expected());
        let notes = missed.map(|absent| format!("the service {} is not there: {}", absent.service, absent.reason));
        let mut noted = lock(&self.seen_notices);
        lock(&self.pending_notices).extend(notes.filter(|note| noted.insert(note.clone())));
        drop(noted);
        Ok(binding)
    }

    /// For the first who asks about an agent's session: whether it is the first of all.
    pub(super) fn register_external_session(&self, seat: &str) -> Option<bool> {
        let mut attended = lock(&self.forwarded_sessions);
        let first = attended.is_empty();
        attended.insert(seat.to_owned()).then_some(first)
    }

    pub(super) fn set_commands(&self, update: &acp::AvailableCommandsUpdate) {
        let before = lock(&self.commands).replace(update.clone());
        if before.as_ref() != Some(update) {
            self.commands_changed.notify_one();
        }
    }

    pub(super) fn commands(&self) -> Option<acp::AvailableCommandsUpdate> {
        lock(&self.commands).clone()
    }

    fn take_pending_notices(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.pending_notices))
    }

    /// A place behind all requests for this session that came before.
    pub(super) fn ticket(&self) -> RequestTicket {
        use futures::FutureExt as _;
        let mut waiting: futures::future::BoxFuture<'static, _> = Box::pin(Arc::clone(&self.order).lock_owned());
        // The first look is what takes the place in the queue.
        let taken = (&mut waiting).now_or_never();
        RequestTicket { waiting, taken }
    }

    /// Marks the session as busy, from the moment its prompt is read: a cancel that follows at once finds it.
    pub(super) fn begin(self: &Arc<Self>) -> Result<RunningTurn, acp::Error> {
        let mut turn = lock(&self.turn);
        if turn.is_some() {
            return Err(errors::invalid_request(
                "the session is still busy with the prompt before; cancel it, or wait",
            ));
        }
        let begun = turn.insert(TurnTokens::default()).clone();
        let ended = Some(begun.ended.clone().drop_guard());
        Ok(RunningTurn { open: Arc::clone(self), turn: begun, ended })
    }

    pub(super) fn cancel(&self) {
        if let Some(turn) = &*lock(&self.turn) {
            turn.cancel.cancel();
        }
    }

    async fn stop(&self) {
        self.closed.cancel();
        let turn = lock(&self.turn).clone();
        if let Some(turn) = turn {
            turn.cancel.cancel();
            turn.ended.cancelled().await;
        }
        if let Some(delegator) = self.session.context().delegator.get() {
            delegator.stop();
        }
    }
}

/// The right to run a turn; it ends with this.
pub(super) struct RunningTurn {
    open: Arc<ClientSession>,
    turn: TurnTokens,
    ended: Option<DropGuard>,
}

impl RunningTurn {
    pub(super) fn cancel(&self) -> &CancellationToken {
        &self.turn.cancel
    }

    /// Another prompt may begin. Whoever waits for the end of this one waits until what is given is gone, too.
    pub(super) fn end(mut self) -> Option<DropGuard> {
        self.ended.take()
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

fn knows_booleans(client: &acp::ClientCapabilities) -> bool {
    let options = client.session.as_ref().and_then(|session| session.config_options.as_ref());
    options.is_some_and(|options| options.boolean.is_some())
}
