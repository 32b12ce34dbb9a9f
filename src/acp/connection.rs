//! Holds the state of one client connection: the client's capabilities and its open sessions.

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
use crate::agents::{Notifier as _, StatusUpdate};
use crate::broker::Binding;
use crate::conversation::Content;
use crate::graph::Plan;
use crate::project::load_project;
use crate::session::{Session, SessionError, Sessions};
use crate::task::TaskScope;
use crate::tool::Notice;

/// The connection to one client.
pub(super) struct ClientConnection {
    pub(super) server: AcpServer,
    pub(super) wire: ClientWriter,
    client: OnceLock<(acp::ClientCapabilities, ClientFeatures)>,
    sessions: tokio::sync::OnceCell<Sessions>,
    open: Mutex<HashMap<String, Arc<ClientSession>>>,
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    pub(super) tasks: TaskScope,
}

/// A session that was created, loaded or resumed on this connection and is not closed.
pub(super) struct ClientSession {
    pub(super) session: Arc<Session>,
    pub(super) project: Project,
    pub(super) messages: Arc<MessageIds>,
    /// The client supports boolean options.
    pub(super) knows_booleans: bool,
    /// All notices about missing services, sent or not, so that each is sent once.
    seen_notices: Mutex<HashSet<String>>,
    /// The commands that were sent to the client last.
    commands: Mutex<Option<acp::AvailableCommandsUpdate>>,
    /// External session ids whose option changes are already forwarded.
    forwarded_sessions: Mutex<HashSet<String>>,
    /// Notified when `commands` has changed; `commands::watch` waits for it.
    pub(super) commands_changed: Arc<Notify>,
    /// Cancelled when the session is closed here.
    pub(super) closed: CancellationToken,
    turn: Mutex<Option<TurnTokens>>,
    /// Serializes prompts and changes of the session in the order of their requests.
    order: Arc<tokio::sync::Mutex<()>>,
}

/// The tokens of a running turn: `cancel` stops it, `ended` is cancelled when it has ended.
#[derive(Clone, Default)]
struct TurnTokens {
    cancel: CancellationToken,
    ended: CancellationToken,
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

    /// Stores the client's capabilities and name. Only the first call has an effect.
    pub(super) fn set_client(&self, client: acp::ClientCapabilities, info: Option<&acp::Implementation>) {
        let features = ClientFeatures::of(&client, info);
        drop(self.client.set((client, features)));
    }

    pub(super) fn client(&self) -> acp::ClientCapabilities {
        self.client.get().map(|(client, _)| client.clone()).unwrap_or_default()
    }

    pub(super) fn features(&self) -> ClientFeatures {
        self.client.get().map(|(_, features)| *features).unwrap_or_default()
    }

    /// Returns the session store, which the first call opens. `initialize` does not need it and works even if it cannot
    /// be opened. After an error, the next call tries again.
    pub(super) async fn sessions(&self) -> Result<&Sessions, acp::Error> {
        let opened = self.sessions.get_or_try_init(|| (self.server.sessions)()).await;
        opened.map_err(|error| errors::internal_error(error.to_string()))
    }

    /// Locks a session id while a request opens or closes the session, so that it is open at most once.
    pub(super) async fn lock_session(&self, id: &acp::SessionId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = lock(&self.locks);
            // Only the map has the locks of other sessions that no request opens or closes now.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(id.0.to_string()).or_default())
        };
        lock.lock_owned().await
    }

    /// Loads the project of a folder. Fails with the diagnostics of `skein check` if its manifests have errors.
    pub(super) async fn project(&self, cwd: &Path) -> Result<Project, acp::Error> {
        load_project(&self.server.projects, cwd).await.map_err(|broken| errors::project_error(&broken))
    }

    /// Runs `work` outside the dispatch loop. Drops it if the client has disconnected and every turn has ended, so that
    /// a service that starts slowly does not delay the shutdown.
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

    /// Adds an open session of the project. `events` is the number of its events so far.
    pub(super) fn add(&self, session: Arc<Session>, project: &Project, events: usize) -> Arc<ClientSession> {
        let id = session.id().to_owned();
        let open = Arc::new(ClientSession {
            session,
            project: project.clone(),
            messages: Arc::new(MessageIds::after(events)),
            knows_booleans: knows_booleans(&self.client()),
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

    /// Closes a session: cancels its turn and waits for its end. `None` if the session is not open here.
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
            self.features(),
            Arc::clone(&open.messages),
        )
    }

    /// Takes the notices of the program, for the first session.
    pub(super) fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.server.notices))
    }

    /// Sends the pending notices, after the responses queued before. Does nothing for a client without notices, which
    /// gets them at the start of its next turn.
    pub(super) fn send_pending_notices(&self, client: &ConnectionTo<Client>, open: &ClientSession) {
        if !self.features().notices {
            return;
        }
        for notice in open.session.take_notices() {
            let notice = acp::SessionUpdate::Notice(acp::Notice::new(acp::NoticeSeverity::Warning, notice.text));
            let id = acp::SessionId::new(open.session.id());
            // Fails only if the client has disconnected.
            drop(client.send_notification(acp::SessionNotification::new(id, notice)));
        }
    }

    /// Sends the pending notices at the start of a turn.
    pub(super) fn show_pending_notices(&self, open: &ClientSession) {
        let notices = open.session.take_notices();
        if notices.is_empty() {
            return;
        }
        let updates = self.updates(open);
        for notice in notices {
            if self.features().notices {
                updates.status(StatusUpdate::Notice(notice));
            } else {
                // Many clients fold thoughts away, and these notices explain why tools are missing.
                updates.show_piece(&Content::text(format!("> {}\n\n", notice.text.replace('\n', "\n>\n> "))));
            }
        }
    }

    /// Ends all turns and tasks after the client has disconnected.
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

    /// Enters the session's mode and queues a notice for each missing service, once per session. Fails if the mode
    /// cannot be bound or its external agent opens no session.
    pub(super) async fn enter(&self) -> Result<Arc<Binding>, SessionError> {
        let binding = self.session.binding().await?;
        self.session.open_external_session().await?;
        let mut noted = lock(&self.seen_notices);
        let notices = binding.missing_service_notices().filter(|notice| noted.insert(notice.clone()));
        notices.for_each(|notice| self.session.queue_notice(Notice::new(notice)));
        drop(noted);
        Ok(binding)
    }

    /// Registers an external session id. Returns `None` if it was registered before, otherwise whether it is the first
    /// one.
    pub(super) fn register_external_session(&self, id: &str) -> Option<bool> {
        let mut forwarded = lock(&self.forwarded_sessions);
        let first = forwarded.is_empty();
        forwarded.insert(id.to_owned()).then_some(first)
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
    pub(super) fn begin(self: &Arc<Self>) -> Result<RunningTurn, acp::Error> {
        let mut turn = lock(&self.turn);
        if turn.is_some() {
            return Err(errors::invalid_request(
                "the session is still busy with the prompt before; cancel it, or wait",
            ));
        }
        let tokens = turn.insert(TurnTokens::default()).clone();
        let ended = Some(tokens.ended.clone().drop_guard());
        Ok(RunningTurn { open: Arc::clone(self), turn: tokens, ended })
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
        self.session.close();
    }
}

/// A guard for a running turn. Dropping it ends the turn.
pub(super) struct RunningTurn {
    open: Arc<ClientSession>,
    turn: TurnTokens,
    ended: Option<DropGuard>,
}

impl RunningTurn {
    pub(super) fn cancel(&self) -> &CancellationToken {
        &self.turn.cancel
    }

    /// Frees the session for the next prompt. Callers that wait for the end of this turn wait until the returned guard
    /// is dropped.
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
