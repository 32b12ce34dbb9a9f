//! Holds the state of one client connection: the client's capabilities and its open sessions.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use agent_client_protocol::Client;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema as acp;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::shared_session::{SharedSession, next_viewer_id};
use super::updates::{ClientFeatures, MessageIds, Updates};
use super::wire::ClientWriter;
use super::{AcpServer, Project, SessionsError, errors};
use crate::agents::{Notifier as _, StatusUpdate, TurnEnd};
use crate::broker::Binding;
use crate::conversation::Content;
use crate::graph::Plan;
use crate::principal::{GrantError, SessionFiles, SessionGrant, UsagePermit};
use crate::project::load_project;
use crate::session::{Session, SessionError, Sessions, ViewerId};
use crate::task::TaskScope;
use crate::tool::Notice;

/// The connection to one client.
pub(super) struct ClientConnection {
    /// Identifies the connection among those of this process.
    pub(super) id: ViewerId,
    pub(super) server: AcpServer,
    pub(super) wire: ClientWriter,
    client: OnceLock<(acp::ClientCapabilities, ClientFeatures)>,
    sessions: tokio::sync::OnceCell<Sessions>,
    open: Mutex<HashMap<String, Arc<ClientSession>>>,
    pub(super) tasks: TaskScope,
}

/// A session that was created, loaded or resumed on this connection and is not closed.
pub(super) struct ClientSession {
    pub(super) session: Arc<Session>,
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
    /// Shows the events of the session to this client.
    pub(super) viewer: Arc<Updates>,
    /// What all connections share that show the session.
    pub(super) shared: Arc<SharedSession>,
    /// What was known of the last turn when the session was shown here.
    pub(super) shown_turn: OnceLock<ShownTurn>,
    /// The grant of this client. The session may be open with that of another token.
    pub(super) grant: SessionGrant,
    /// Counts the session for the token of this client, if another one opened it.
    permit: Option<Arc<UsagePermit>>,
}

/// The last turn of a session, as a client that loads the session learns it.
#[derive(Debug)]
pub(super) enum ShownTurn {
    Running,
    Ended(TurnEnd),
    /// Its prompt is stored, and its end is not.
    Interrupted,
}

impl ClientConnection {
    pub(super) fn new(front: AcpServer, wire: ClientWriter) -> Arc<Self> {
        Arc::new(Self {
            id: next_viewer_id(),
            server: front,
            wire,
            client: OnceLock::new(),
            sessions: tokio::sync::OnceCell::new(),
            open: Mutex::default(),
            tasks: TaskScope::new(),
        })
    }

    /// Stores the client's capabilities and name. Only the first call has an effect.
    pub(super) fn set_client(&self, client: acp::ClientCapabilities, info: Option<&acp::Implementation>) {
        let features = ClientFeatures::of(&client, info);
        drop(self.client.set((client, features)));
    }

    pub(super) fn is_initialized(&self) -> bool {
        self.client.get().is_some()
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
        let open = async || Ok((self.server.sessions)().await?.with_grant(self.server.grant.clone()));
        let opened: Result<_, SessionsError> = self.sessions.get_or_try_init(open).await;
        opened.map_err(|error| errors::internal_error(error.to_string()))
    }

    /// Loads the project of a session's folder. Fails with the errors and warnings of
    /// `skein check` if its manifests have errors.
    pub(super) async fn project(&self, cwd: &Path, files: SessionFiles) -> Result<Project, acp::Error> {
        let project = load_project(&self.server.projects, cwd, files, &self.server.grant).await;
        project.map_err(|broken| errors::project_error(&broken))
    }

    /// Runs `work` outside the dispatch loop. Drops it if the client has disconnected and every turn has ended, so that
    /// a service that starts slowly does not delay the shutdown.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let ended = self.tasks.cancelled().clone();
        // The task moves it once, and would have room for it twice.
        let work = Box::pin(work);
        self.tasks.spawn(async move {
            tokio::select! {
                () = work => {}
                () = ended.cancelled() => {}
            }
        });
    }

    pub(super) fn session(&self, id: &acp::SessionId) -> Result<Arc<ClientSession>, acp::Error> {
        let open = self.all_open().get(&*id.0).cloned();
        // Another token may have switched to a mode that this one does not admit, or may have ended.
        let open = open.filter(|open| open.session.admits_client(&self.server.grant) && !open.session.is_ended());
        open.ok_or_else(|| errors::session_not_open(&id.0))
    }

    /// Counts a session that another token opened for the token of this client. `None` if this token opened it. Fails
    /// if the token has too many sessions.
    pub(super) fn count(&self, session: &Session) -> Result<Option<Arc<UsagePermit>>, GrantError> {
        if session.is_of_token(&self.server.grant) {
            return Ok(None);
        }
        let before = self.all_open().get(session.id()).and_then(|open| open.permit.clone());
        match before {
            Some(permit) => Ok(Some(permit)),
            None => Ok(Some(Arc::new(self.server.grant.open_session()?))),
        }
    }

    /// Shows a session on this connection from now on. `events` is the number of its events so far.
    pub(super) fn add(
        &self,
        shared: Arc<SharedSession>,
        permit: Option<Arc<UsagePermit>>,
        events: usize,
    ) -> Arc<ClientSession> {
        let session = Arc::clone(&shared.session);
        let id = session.id().to_owned();
        let messages = Arc::new(MessageIds::after(events));
        let viewer = Updates::new(self.wire.clone(), &session, self.features(), messages);
        let open = Arc::new(ClientSession {
            session,
            viewer: Arc::new(viewer),
            shared,
            knows_booleans: knows_booleans(&self.client()),
            seen_notices: Mutex::default(),
            commands: Mutex::default(),
            forwarded_sessions: Mutex::default(),
            commands_changed: Arc::default(),
            closed: CancellationToken::new(),
            shown_turn: OnceLock::new(),
            grant: self.server.grant.clone(),
            permit,
        });
        // A later opening of the same session replaces the earlier one.
        if let Some(earlier) = self.all_open().insert(id, Arc::clone(&open)) {
            earlier.closed.cancel();
        }
        open
    }

    /// Closes a session here. If no other connection shows it, cancels its turn and waits for its end. `None` if the
    /// session is not open here.
    pub(super) async fn close(&self, id: &acp::SessionId) -> Option<Arc<ClientSession>> {
        let open = self.all_open().remove(&*id.0)?;
        open.closed.cancel();
        if open.session.live().has_others(self.id) {
            open.leave(self, false).await;
        } else {
            // This client stays attached until then, so that it gets the end of every call.
            self.server.open_sessions.close(&open.shared).await;
            open.shared.detach(self.id);
        }
        Some(open)
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
        let updates = &open.viewer;
        for notice in notices {
            if self.features().notices {
                updates.status(StatusUpdate::Notice(notice));
            } else {
                // Many clients fold thoughts away, and these notices explain why tools are missing.
                updates.show_piece(&Content::text(format!("> {}\n\n", notice.text.replace('\n', "\n>\n> "))));
            }
        }
    }

    /// Ends all tasks after the client has disconnected, and all turns unless they outlast it.
    pub(super) async fn end(&self) {
        let open: Vec<_> = self.all_open().drain().map(|(_, open)| open).collect();
        futures::future::join_all(open.iter().map(|open| open.leave(self, self.server.open_sessions.keep_turns())))
            .await;
        self.tasks.stop().await;
    }

    fn all_open(&self) -> MutexGuard<'_, HashMap<String, Arc<ClientSession>>> {
        lock(&self.open)
    }
}

impl ClientSession {
    pub(super) fn plan(&self) -> Arc<Plan> {
        self.session.plan()
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

    /// Remembers the commands as those sent last. Returns whether they differ from the ones before.
    pub(super) fn set_commands(&self, update: &acp::AvailableCommandsUpdate) -> bool {
        let before = lock(&self.commands).replace(update.clone());
        let has_changed = before.as_ref() != Some(update);
        // `commands::watch` starts with the first ones.
        if has_changed && before.is_some() {
            self.commands_changed.notify_one();
        }
        has_changed
    }

    pub(super) fn commands(&self) -> Option<acp::AvailableCommandsUpdate> {
        lock(&self.commands).clone()
    }

    /// Leaves the session: stops showing it on this connection. The last connection also closes it. With `keep_turn`, a
    /// running turn continues until it ends.
    async fn leave(&self, connection: &ClientConnection, keep_turn: bool) {
        self.closed.cancel();
        let is_last = self.shared.detach(connection.id);
        if is_last && !(keep_turn && self.shared.is_busy()) {
            connection.server.open_sessions.close(&self.shared).await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn knows_booleans(client: &acp::ClientCapabilities) -> bool {
    let options = client.session.as_ref().and_then(|session| session.config_options.as_ref());
    options.is_some_and(|options| options.boolean.is_some())
}
