//! Sessions: a talk in a mode, with its history, its services and its record. Every front door opens them here.
//!
//! Invariant: knows no protocol and no terminal. What happened in a turn is in the store before anybody is told
//! that the turn has ended.

pub mod attachments;
mod child;
mod live;
mod outside;
mod recorder;
mod external;
mod setup;
pub mod slash;
mod turn;
mod undo;

pub use live::{PromptError, Session};
pub use turn::PendingTurn;
pub use undo::{ChangedFile, UndoneTurn};

use std::path::PathBuf;
use std::sync::Arc;

use crate::agents::{Event, ExternalAgentError, ExternalAgents, History, RecoveryPolicy, TurnLimits};
use crate::broker::{Asker, BindError, Broker};
use crate::ids::ModeId;
use crate::llm::{LlmError, Provider};
use crate::manifest::{ApprovalLevel, ServiceEntry};
use crate::sandbox::HiddenPaths;
use crate::store::{self, ListFilter, NewSession, StoreError, StoredSession};
use crate::tool::editor::Editor;

/// Opens sessions, new ones and stored ones. A cheap handle.
#[derive(Clone)]
pub struct Sessions {
    store: store::SessionStore,
    options: Arc<SessionOptions>,
}

/// Where a session's models come from.
pub trait ModelSource: Send + Sync {
    /// The model a user names.
    fn provider(&self, name: &str) -> Result<Arc<dyn Provider>, LlmError>;

    /// What keeps a talk going when the model's window is full, or it fails.
    fn recovery_policy(&self) -> Result<RecoveryPolicy, LlmError>;

    /// Who judges calls at the level `smart` of a session with this model: only ever a model that the user chose. None
    /// if there is no such model, or it cannot be used.
    fn judge(&self, model: &str) -> Option<Arc<dyn Provider>>;
}

#[derive(Debug)]
pub struct SessionOptions {
    pub limits: TurnLimits,
    /// Each session has its own folder below this one.
    pub scratch: PathBuf,
    /// What no session reads or writes with file tools.
    pub hidden: Arc<HiddenPaths>,
    pub os: &'static str,
}

/// Where a session works.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRoots {
    pub cwd: PathBuf,
    /// Folders beside it that it may reach.
    pub roots: Vec<PathBuf>,
}

/// What a user can choose, and change while the session lasts.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionSettings {
    pub mode: ModeId,
    /// As `provider:model`.
    pub model: String,
    /// Overrides what the mode and the config say.
    pub approval: Option<ApprovalLevel>,
}

/// What the front door supplies to a session.
#[derive(Clone)]
pub struct SessionPorts {
    pub broker: Broker,
    pub models: Arc<dyn ModelSource>,
    /// Runs agents that are programs of their own.
    pub external_agents: Arc<dyn ExternalAgents>,
    pub asker: Arc<dyn Asker>,
    pub editor: Option<Arc<dyn Editor>>,
    /// MCP servers that came with the session.
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
    #[error("the record of session `{id}` cannot be read: {reason}")]
    Record { id: String, reason: String },
}

/// A stored session, opened again.
pub struct ReopenedSession {
    pub session: Arc<Session>,
    pub stored: StoredSession,
    /// All that happened in it, in order.
    pub events: Vec<Event>,
}

impl Sessions {
    pub fn new(store: store::SessionStore, options: SessionOptions) -> Self {
        Self { store, options: Arc::new(options) }
    }

    pub fn store(&self) -> &store::SessionStore {
        &self.store
    }

    /// A new session. It is stored when this returns; its services start when they are first needed. `host` is
    /// told the session's id.
    pub async fn create(
        &self,
        place: SessionRoots,
        choice: SessionSettings,
        host: impl FnOnce(&str) -> SessionPorts,
    ) -> Result<Arc<Session>, SessionError> {
        self.create_for(None, place, choice, host).await
    }

    async fn create_for(
        &self,
        parent: Option<&str>,
        place: SessionRoots,
        choice: SessionSettings,
        host: impl FnOnce(&str) -> SessionPorts,
    ) -> Result<Arc<Session>, SessionError> {
        let new = NewSession {
            cwd: place.cwd.clone(),
            roots: place.roots.clone(),
            agent: choice.mode.agent.to_string(),
            mode: choice.mode.mode.to_string(),
            model: choice.model.clone(),
            // A level that came with the launch is for the launch; only what is chosen in the session is kept.
            approval: None,
            parent: parent.map(str::to_owned),
        };
        let id = self.store.create(new).await?;
        let host = host(&id);
        Ok(Session::new(self.clone(), id, place, choice, host, History::default(), None))
    }

    /// A stored session with its history, in its own folder. `roots` and `host` are given anew.
    pub async fn open(
        &self,
        id: &str,
        roots: Vec<PathBuf>,
        fallback: SessionSettings,
        host: impl FnOnce(&StoredSession) -> SessionPorts,
    ) -> Result<ReopenedSession, SessionError> {
        let stored = self.store.find(id).await?.ok_or_else(|| SessionError::Unknown(id.to_owned()))?;
        let events = self.events(id).await?;
        let host = host(&stored);
        let choice = choice_of(&stored, fallback, &host.broker);
        let place = SessionRoots { cwd: stored.cwd.clone(), roots };
        let history = History::from_events(&events);
        let live = Session::new(self.clone(), stored.id.clone(), place, choice, host, history, Some(&stored));
        live.restore_external_sessions(&events);
        Ok(ReopenedSession { session: live, stored, events })
    }

    /// All that happened in a session.
    pub async fn events(&self, id: &str) -> Result<Vec<Event>, SessionError> {
        let rows = self.store.events(id).await?;
        let decoded = rows.iter().map(|row| serde_json::from_str(&row.body));
        decoded
            .collect::<Result<_, _>>()
            .map_err(|error: serde_json::Error| SessionError::Record { id: id.to_owned(), reason: error.to_string() })
    }

    /// Takes a session out of the store, with those that worked for it and what their tools left behind.
    pub async fn delete(&self, id: &str) -> Result<bool, SessionError> {
        let children = ListFilter { parent: Some(id.to_owned()), ..ListFilter::default() };
        for child in self.store.list(children).await? {
            self.delete_one(&child.id).await?;
        }
        self.delete_one(id).await
    }

    async fn delete_one(&self, id: &str) -> Result<bool, SessionError> {
        let deleted = self.store.delete(id).await?;
        let scratch = self.scratch(id);
        if deleted && scratch.exists() {
            drop(tokio::fs::remove_dir_all(&scratch).await.inspect_err(|error| {
                tracing::warn!(folder = %scratch.display(), %error, "scratch files are left behind");
            }));
        }
        Ok(deleted)
    }

    fn paths_to_hide(&self) -> Arc<HiddenPaths> {
        Arc::clone(&self.options.hidden)
    }

    fn scratch(&self, id: &str) -> PathBuf {
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
        f.debug_struct("SessionPorts").field("brought", &self.client_services).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ReopenedSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReopenedSession").field("live", &self.session).finish_non_exhaustive()
    }
}

/// What was chosen when the session was last used. A mode that is gone meanwhile is replaced.
fn choice_of(stored: &StoredSession, fallback: SessionSettings, broker: &Broker) -> SessionSettings {
    let mode = format!("{}/{}", stored.agent, stored.mode).parse::<ModeId>().ok();
    let plan = broker.plan();
    let offered = |mode: &ModeId| plan.mode(mode).is_some_and(|(entry, _)| !entry.mode.internal);
    SessionSettings {
        mode: mode.filter(offered).unwrap_or(fallback.mode),
        model: stored.model.clone(),
        // What this launch says counts more than what was chosen once.
        approval: fallback.approval.or_else(|| stored.approval.as_deref().and_then(ApprovalLevel::from_name)),
    }
}
