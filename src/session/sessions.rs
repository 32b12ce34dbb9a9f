//! Creates, stores and reopens sessions for every front end, and defines what a session is made from.

mod audit_log;
mod removal;
mod removal_record;

use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, PoisonError};

use super::alert_asker::{AlertAsker, AlertSettings, AttentionSink};
use super::budgets::BudgetLedger;
use super::metrics::SessionMetrics;
use super::{Session, SessionContents};
use crate::agents::{Event, ExternalAgentError, ExternalAgents, History, RecoveryPolicy, TurnLimits};
use crate::broker::{BindError, Broker};
use crate::checkpoint::{CheckpointError, CheckpointStore};
use crate::ids::{ModeId, ModelRef, random_id};
use crate::llm::{LlmError, Provider};
use crate::manifest::{ApprovalLevel, ServiceEntry, Settings, Transport};
use crate::principal::{GrantError, SessionFiles, SessionGrant};
use crate::sandbox::HiddenPaths;
use crate::store::{self, NewSession, StoreError, StoredSession};
use crate::tool::ask::Asker;
use crate::tool::editor::Editor;
use crate::tool::{ClientFolders, Notice, SessionContext, SessionContextPorts};
pub use audit_log::SessionAuditLog;

/// An event without content. It keeps the place of an event that is lost, because an undo counts the stored events.
pub(super) const EMPTY_EVENT: &str = r#"{"event":"relayed","told":null}"#;

/// Creates and reopens the sessions that a grant admits. Cheap to clone.
#[derive(Clone)]
pub struct Sessions {
    pub(super) store: store::SessionStore,
    pub(super) options: Arc<SessionOptions>,
    /// The owner of the sessions, and their limits.
    pub(super) grant: SessionGrant,
    pub(super) metrics: Arc<SessionMetrics>,
    /// What open sessions have used of their limits.
    pub(super) ledger: Arc<BudgetLedger>,
}

/// Provides the models of a session.
pub trait ModelSource: Send + Sync {
    /// Returns the model that the user names. Fails if it is unknown or unusable.
    fn provider(&self, name: &ModelRef) -> Result<Arc<dyn Provider>, LlmError>;

    /// Returns the policy for a full context window and for failed model requests.
    fn recovery_policy(&self) -> Result<RecoveryPolicy, LlmError>;

    /// Returns the models that replace `model` when it fails, in order. Fails if one is unknown or unusable.
    fn fallbacks(&self, _model: &ModelRef) -> Result<Vec<Arc<dyn Provider>>, LlmError> {
        Ok(Vec::new())
    }

    /// Returns the model that judges calls at the level `smart` in a session with `model`. It is always a model that
    /// the user chose. `None` if there is no such model or it cannot be used.
    fn judge(&self, model: &ModelRef) -> Option<Arc<dyn Provider>>;
}

#[derive(Debug)]
pub struct SessionOptions {
    pub limits: TurnLimits,
    /// Parent folder of the sessions' scratch folders.
    pub scratch: PathBuf,
    /// Paths that file tools never read or write.
    pub hidden: HiddenPaths,
    pub os: &'static str,
    /// The folder of the checkpoints. `None` if the sessions make none.
    pub checkpoints: Option<PathBuf>,
    /// Reaches a user who does not answer a permission request. `None`: nothing does.
    pub attention: Option<Arc<dyn AttentionSink>>,
}

/// The folders that a session works in.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRoots {
    pub cwd: PathBuf,
    /// Further folders that the session may access.
    pub roots: Vec<PathBuf>,
    /// Where the folders are.
    pub files: SessionFiles,
    /// The folder for temporary files. `None` for the usual one of the session.
    pub scratch: Option<PathBuf>,
}

impl SessionRoots {
    /// Returns folders of this machine.
    pub fn here(cwd: PathBuf, roots: Vec<PathBuf>) -> Self {
        Self { cwd, roots, files: SessionFiles::Server, scratch: None }
    }

    /// Returns the folders of an open session.
    pub fn of(context: &SessionContext) -> Self {
        match context.client_folders() {
            Some(client) => Self {
                cwd: client.cwd.clone(),
                roots: client.roots.iter().skip(1).cloned().collect(),
                files: SessionFiles::Client,
                scratch: None,
            },
            None if context.cwd == context.scratch => {
                Self { cwd: context.cwd.clone(), roots: Vec::new(), files: SessionFiles::Own, scratch: None }
            }
            // The first two roots are the session's working directory and its scratch folder.
            None => Self::here(context.cwd.clone(), context.roots.iter().skip(2).cloned().collect()),
        }
    }

    /// Returns the context of a session in these folders. Nothing on this machine uses the folder of a client, so that
    /// no service can read or change a folder of the same name here.
    pub(super) fn context(self, id: String, sessions: &Sessions, ports: SessionContextPorts) -> Arc<SessionContext> {
        let Self { cwd, roots, files, scratch: given } = self;
        let scratch = given.clone().unwrap_or_else(|| sessions.scratch(&id));
        let (cwd, roots, scratch, client) = match files {
            SessionFiles::Server => (cwd, roots, scratch, None),
            SessionFiles::Client => (scratch.clone(), Vec::new(), scratch, Some(ClientFolders::new(&cwd, &roots))),
            SessionFiles::Own => (cwd.clone(), Vec::new(), given.unwrap_or(cwd), None),
        };
        let context = SessionContext::with_ports(id, cwd, roots, scratch, SessionContextPorts { client, ..ports });
        if let Some(permit) = sessions.work_permit() {
            context.work_permit.get_or_init(|| permit);
        }
        context
    }
}

/// Settings that the user can change during a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionSettings {
    pub mode: ModeId,
    pub model: ModelRef,
    /// Overrides the level of the mode and of the configuration.
    pub approval: Option<ApprovalLevel>,
}

/// The ports that a front end passes to a session.
#[derive(Clone)]
pub struct SessionPorts {
    pub broker: Broker,
    pub models: Arc<dyn ModelSource>,
    /// Runs agents that are separate programs.
    pub external_agents: Arc<dyn ExternalAgents>,
    pub asker: Arc<dyn Asker>,
    pub editor: Option<Arc<dyn Editor>>,
    /// MCP servers that the client passed with the session.
    pub client_services: Vec<Arc<ServiceEntry>>,
}

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("there is no session `{0}`")]
    Unknown(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Model(#[from] LlmError),
    #[error(transparent)]
    External(#[from] ExternalAgentError),
    #[error(transparent)]
    Grant(#[from] GrantError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("the folder of the session cannot be created: {0}")]
    Folder(#[source] std::io::Error),
    #[error("the record of session `{id}` cannot be read: {reason}")]
    Record { id: String, reason: String },
}

impl SessionError {
    /// Returns true if the model has no key, which the user can fix with `skein configure`.
    pub fn is_missing_key(&self) -> bool {
        matches!(self, SessionError::Model(LlmError::MissingKey { .. }))
    }
}

/// A stored session that is open again.
pub struct ReopenedSession {
    pub session: Arc<Session>,
    pub stored: StoredSession,
    /// All its events, in order.
    pub events: Vec<Event>,
}

impl Sessions {
    pub fn new(store: store::SessionStore, options: SessionOptions) -> Self {
        let (metrics, ledger) = (Arc::default(), Arc::default());
        Self { store, options: Arc::new(options), grant: SessionGrant::local(), metrics, ledger }
    }

    /// Returns the sessions of another principal, within the limits of its token. Sessions, their children and all that
    /// their services keep belong to that principal.
    #[must_use]
    pub fn with_grant(&self, grant: SessionGrant) -> Self {
        Self { store: self.store.for_grant(&grant), grant, ..self.clone() }
    }

    pub fn grant(&self) -> &SessionGrant {
        &self.grant
    }

    /// Returns the counts of these sessions. Clones share them, also for other principals.
    pub fn metrics(&self) -> &Arc<SessionMetrics> {
        &self.metrics
    }

    pub fn store(&self) -> &store::SessionStore {
        &self.store
    }

    /// Returns a context for the calls of a client that has no session in the store. It works in the first root of the
    /// token; without one, in an empty folder. Fails if the folder cannot be created.
    pub fn tool_context(&self) -> std::io::Result<Arc<SessionContext>> {
        let id = random_id("client");
        let scratch = self.scratch(&id);
        let (cwd, others) = match self.grant.limits().roots.split_first() {
            Some((first, others)) => (first.clone(), others.to_vec()),
            None => {
                std::fs::create_dir_all(&scratch)?;
                (scratch.clone(), Vec::new())
            }
        };
        let ports = self.context_ports(&id);
        Ok(SessionContext::with_ports(id, cwd, others, scratch, ports))
    }

    /// Returns the ports of a context with this id, without an editor, notices and stored state.
    pub(super) fn context_ports(&self, id: &str) -> SessionContextPorts {
        SessionContextPorts {
            grant: self.grant.clone(),
            hidden: self.paths_to_hide(),
            audit: Arc::new(SessionAuditLog::new(self.store.clone(), id.to_owned())),
            ..SessionContextPorts::default()
        }
    }

    /// Creates a session and stores it. Its services start when they are first needed. `host` receives the session's
    /// id.
    pub async fn create(
        &self,
        place: SessionRoots,
        choice: SessionSettings,
        host: impl FnOnce(&str) -> SessionPorts,
    ) -> Result<Arc<Session>, SessionError> {
        if !self.grant.limits().admits_mode(&choice.mode) {
            return Err(BindError::UnknownMode(choice.mode).into());
        }
        self.create_for(None, place, choice, host).await
    }

    pub(super) async fn create_for(
        &self,
        parent: Option<&Session>,
        place: SessionRoots,
        choice: SessionSettings,
        host: impl FnOnce(&str) -> SessionPorts,
    ) -> Result<Arc<Session>, SessionError> {
        let place = self.check_roots(place)?;
        let files = place.files;
        let permit = parent.is_none().then(|| self.grant.open_session()).transpose()?;
        let new = NewSession {
            cwd: place.cwd.clone(),
            roots: place.roots.clone(),
            agent: choice.mode.agent.to_string(),
            mode: choice.mode.mode.to_string(),
            model: choice.model.to_string(),
            // A level from the launch applies to this launch only; the store keeps levels chosen in the session.
            approval: None,
            parent: parent.map(|parent| parent.id().to_owned()),
            files,
        };
        let (id, store) = self.store.create_owned(new).await?;
        let sessions = self.with_store(store);
        let (host, notices) = self.limit_ports(host(&id), files);
        // The requests of a child session are those of its parent.
        let alerts = AlertSettings::default();
        let host = if parent.is_none() { self.watch_requests(&id, &place, host, &alerts) } else { host };
        let meter = parent.map(|parent| Arc::clone(parent.meter()));
        let contents = SessionContents { permit, meter, alerts, ..SessionContents::default() };
        let choice = self.limit_settings(choice, &host.broker);
        let session = Session::new(sessions, id, place, choice, host, contents);
        notices.into_iter().for_each(|notice| session.queue_notice(notice));
        Ok(session)
    }

    /// Resolves the folders of a session. Fails if the grant does not admit one.
    fn check_roots(&self, place: SessionRoots) -> Result<SessionRoots, GrantError> {
        let SessionRoots { cwd, roots, files, scratch } = place;
        let roots = roots.iter().map(|root| self.grant.check_place(root, files)).collect::<Result<_, _>>()?;
        Ok(SessionRoots { cwd: self.grant.check_place(&cwd, files)?, roots, files, scratch })
    }

    /// Returns the folders of a session that names none: the first root of the token, or a new empty folder. Skein
    /// deletes the new folder with its session. Fails if it cannot be created.
    pub async fn default_roots(&self) -> Result<SessionRoots, SessionError> {
        if let Some(first) = self.grant.limits().roots.first() {
            return Ok(SessionRoots::here(first.clone(), Vec::new()));
        }
        let cwd = self.scratch(&random_id("folder"));
        tokio::fs::create_dir_all(&cwd).await.map_err(SessionError::Folder)?;
        Ok(SessionRoots { cwd, roots: Vec::new(), files: SessionFiles::Own, scratch: None })
    }

    /// Replaces a level that is looser than the grant or a managed setting admits.
    pub(super) fn limit_settings(&self, settings: SessionSettings, broker: &Broker) -> SessionSettings {
        let managed = &broker.plan().manifests().managed;
        let approval = settings.approval.map(|level| managed.tighten(self.grant.limits().tighten(level)));
        SessionSettings { approval, ..settings }
    }

    /// Limits what a front end passes: modes and levels of the broker, files of the client, and services that start a
    /// program. Returns a notice about each service that is left out.
    fn limit_ports(&self, mut ports: SessionPorts, files: SessionFiles) -> (SessionPorts, Vec<Notice>) {
        ports.broker = ports.broker.with_grant(&self.grant);
        if self.grant.is_remote() && files != SessionFiles::Client {
            // The client is on another machine, where the paths of this session lead to other files.
            ports.editor = None;
        }
        let mut notices = Vec::new();
        if !self.grant.limits().client_services {
            ports.client_services.retain(|entry| {
                let starts = matches!(entry.manifest.transport, Transport::Stdio(_));
                if starts {
                    let name = &entry.manifest.name;
                    let notice = format!("the MCP server `{name}` is left out: your token starts no programs here");
                    notices.push(Notice::new(notice));
                }
                !starts
            });
        }
        (ports, notices)
    }

    /// Lets the user be notified of permission requests that stay open, as `alerts` says. Sets it from the plan.
    fn watch_requests(
        &self,
        id: &str,
        place: &SessionRoots,
        ports: SessionPorts,
        alerts: &AlertSettings,
    ) -> SessionPorts {
        let Some(sink) = self.options.attention.clone() else { return ports };
        let settings = Settings::of(ports.broker.plan().manifests()).notifications;
        *alerts.lock().unwrap_or_else(PoisonError::into_inner) = settings;
        let asker = AlertAsker {
            asker: ports.asker,
            sink,
            settings: Arc::clone(alerts),
            session: id.to_owned(),
            principal: self.grant.principal().clone(),
            cwd: place.cwd.clone(),
        };
        SessionPorts { asker: Arc::new(asker), ..ports }
    }

    /// Reopens a stored session with its history and the state of its services, in its own folder. `roots` and `host` are not stored, so the caller
    /// passes them. Fails if there is no session `id`.
    pub async fn open(
        &self,
        id: &str,
        roots: Vec<PathBuf>,
        fallback: SessionSettings,
        host: impl FnOnce(&StoredSession) -> SessionPorts,
    ) -> Result<ReopenedSession, SessionError> {
        self.find(id).await?;
        // Marked before it is read: retention in another process may remove it until then.
        let _lease = match self.store.hold_stored(id).await {
            Ok(None) => return Err(SessionError::Unknown(id.to_owned())),
            Ok(lease) => lease,
            // With a full disk, a session can still be read. The writer marks it as soon as it can.
            Err(error) => {
                tracing::warn!(session = id, %error, "an open session could not be marked yet");
                None
            }
        };
        // From here on, no other replica writes the session.
        let sessions = self.own(id).await?;
        let stored = sessions.find(id).await?;
        let events = sessions.events(id).await?;
        let state = sessions.store.state(id).await?;
        let place = SessionRoots { cwd: stored.cwd.clone(), roots, files: stored.files, scratch: None };
        let place = self.check_roots(place)?;
        let permit = Some(self.grant.open_session()?);
        let (host, notices) = self.limit_ports(host(&stored), stored.files);
        let alerts = AlertSettings::default();
        let host = self.watch_requests(id, &place, host, &alerts);
        let choice = self.limit_settings(choice_of(&stored, fallback, &host.broker), &host.broker);
        let history = History::from_events(&events);
        let contents = SessionContents { history, stored: Some(stored.clone()), state, permit, meter: None, alerts };
        let session = Session::new(sessions, stored.id.clone(), place, choice, host, contents);
        session.restore_external_sessions(&events);
        notices.into_iter().for_each(|notice| session.queue_notice(notice));
        Ok(ReopenedSession { session, stored, events })
    }

    /// Returns a stored session. Fails if there is none.
    async fn find(&self, id: &str) -> Result<StoredSession, SessionError> {
        self.store.find(id).await?.ok_or_else(|| SessionError::Unknown(id.to_owned()))
    }

    /// Returns all events of a session, in order. Earlier versions stored nothing for an event with a file name that is
    /// not UTF-8; such an event has no content here. Fails if another one cannot be decoded.
    pub async fn events(&self, id: &str) -> Result<Vec<Event>, SessionError> {
        let rows = self.store.events(id).await?;
        let decoded = rows.iter().map(|row| {
            if !row.body.is_empty() {
                return serde_json::from_str(&row.body);
            }
            tracing::warn!(session = id, event = row.seq, kind = row.kind, "a stored event has no content");
            serde_json::from_str(EMPTY_EVENT)
        });
        decoded
            .collect::<Result<_, _>>()
            .map_err(|error: serde_json::Error| SessionError::Record { id: id.to_owned(), reason: error.to_string() })
    }

    /// Returns the store of the checkpoints. `None` if they are off.
    pub(super) fn checkpoint_store(&self) -> Option<CheckpointStore> {
        self.options.checkpoints.clone().map(CheckpointStore::new)
    }

    pub(super) fn paths_to_hide(&self) -> HiddenPaths {
        self.options.hidden.clone()
    }

    pub(super) fn scratch(&self, id: &str) -> PathBuf {
        self.options.scratch.join(id)
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("options", &self.options).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SessionPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionPorts").field("client_services", &self.client_services).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ReopenedSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReopenedSession").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Returns the settings from the session's last use. `fallback` replaces a mode that no longer exists.
fn choice_of(stored: &StoredSession, fallback: SessionSettings, broker: &Broker) -> SessionSettings {
    let mode = format!("{}/{}", stored.agent, stored.mode).parse::<ModeId>().ok();
    let plan = broker.plan();
    SessionSettings {
        mode: mode.filter(|mode| plan.is_selectable(mode)).unwrap_or(fallback.mode),
        model: ModelRef::from(stored.model.as_str()),
        // The level of this launch overrides the stored one.
        approval: fallback.approval.or_else(|| stored.approval.as_deref().and_then(ApprovalLevel::from_name)),
    }
}

/// Returns whether Skein made the folder below `scratch` for a session that names none.
fn is_inside(folder: &Path, scratch: &Path) -> bool {
    let goes_up = folder.components().any(|part| part == Component::ParentDir);
    folder.starts_with(scratch) && folder != scratch && !goes_up
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fork of a task's session has the worktree of the task as its folder.
    #[test]
    fn only_folders_that_skein_made_are_deleted_with_a_session() {
        let scratch = Path::new("/state/scratch");
        assert!(is_inside(Path::new("/state/scratch/folder-1"), scratch));
        assert!(!is_inside(Path::new("/data/worktrees/skein-task-1/work/skein-task-1/sub"), scratch));
        assert!(!is_inside(scratch, scratch));
        assert!(!is_inside(Path::new("/state/scratch/../../home"), scratch));
    }
}
