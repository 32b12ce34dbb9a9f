//! Keeps the services that a session enabled or disabled beyond its configuration, and defines the port that changes
//! them.
//!
//! Invariant: a port only. The manifest of a mode decides which services it may use; nothing here adds to that.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;

use super::{CallContext, Catalog, ServiceError};
use crate::ids::{AgentName, ServiceName};
use crate::manifest::ServiceEntry;

/// The services enabled or disabled since the session started. Clones share state, so a child session uses its
/// parent's.
#[derive(Debug, Clone, Default)]
pub struct EnabledServices {
    services: Arc<Mutex<BTreeMap<ServiceName, bool>>>,
    /// The services whose manifests the session wrote after its plan was made.
    added: Arc<Mutex<Vec<Arc<ServiceEntry>>>>,
}

impl EnabledServices {
    /// Returns whether the service is enabled. `None` if the session did not change it, so the configuration applies.
    pub fn of(&self, service: &ServiceName) -> Option<bool> {
        self.lock().get(service).copied()
    }

    pub fn set(&self, service: ServiceName, enabled: bool) {
        self.lock().insert(service, enabled);
    }

    /// Adds a service that the session's plan does not have, and enables it. Replaces one of the same name.
    pub fn add(&self, entry: Arc<ServiceEntry>) {
        let name = entry.manifest.name.clone();
        let mut added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        added.retain(|other| other.manifest.name != name);
        added.push(entry);
        drop(added);
        self.set(name, true);
    }

    /// Returns the services that the session added.
    pub fn new_services(&self) -> Vec<Arc<ServiceEntry>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a snapshot of all changes.
    pub fn all(&self) -> BTreeMap<ServiceName, bool> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ServiceName, bool>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a service cannot be changed or read. Each message is text for the model, with a remedy.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    #[error(
        "there is no service `{name}`{} `search_services` shows those there are",
        .near.as_ref().map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
    )]
    Unknown { name: String, near: Option<String> },
    #[error("`{name}` is the {owner}'s own: it can be neither enabled for others nor disabled")]
    Owned { name: String, owner: AgentName },
    #[error(
        "`{name}` is built in: a mode has it if its manifest asks for it, and in no other way ({}). Choose a mode by what \
         it has",
        if .modes.is_empty() { "none does now".to_owned() } else { .modes.join(", ") }
    )]
    BuiltIn { name: String, modes: Vec<String> },
    #[error("`{name}` is planned: there is nothing to start yet")]
    Planned { name: String },
    #[error("`{name}` is disabled; `enable_service` enables it, if the user agrees")]
    Disabled { name: String },
    #[error("`{name}` was not enabled: {source}")]
    NotEnabled { name: String, source: ServiceError },
    #[error("there is a service `{name}` already, in {file}; propose it with another `name`")]
    Taken { name: String, file: String },
    #[error("what it would become is not a valid manifest ({code} in docs/diagnostics.md); tell the user")]
    Invalid { code: &'static str },
    #[error("{0}; `list_resources` shows what can be read")]
    Read(#[source] ServiceError),
}

/// Manages the services of a session.
pub trait ServiceManager: Send + Sync {
    /// Returns the services that match the words, best first. Returns all services if there are no words.
    fn search(&self, words: &str, context: &CallContext) -> Vec<ServiceSummary>;

    /// Starts the service once to check that it works, then enables it.
    fn enable<'a>(
        &'a self,
        service: &'a str,
        context: &'a CallContext,
    ) -> BoxFuture<'a, Result<ServiceChange, ManageError>>;

    fn disable(&self, service: &str, context: &CallContext) -> Result<ServiceChange, ManageError>;

    /// Checks a manifest that is not written yet. Fails if it is invalid or its name is taken.
    fn check_manifest(&self, manifest: ManifestText, context: &CallContext) -> Result<ServiceEntry, ManageError>;

    /// Starts a service that is not enabled yet, and returns its catalog.
    fn probe<'a>(
        &'a self,
        entry: &'a ServiceEntry,
        context: &'a CallContext,
    ) -> BoxFuture<'a, Result<Arc<Catalog>, ManageError>>;

    /// Adds a service to the session, and enables it.
    fn add(&self, entry: ServiceEntry, context: &CallContext) -> ServiceChange;

    /// Lists the resources of one enabled service, or of all.
    fn resources<'a>(
        &'a self,
        service: Option<&'a str>,
        context: &'a CallContext,
    ) -> BoxFuture<'a, Result<Vec<ResourceListing>, ManageError>>;

    /// Reads the contents of a resource, in MCP's JSON.
    fn read<'a>(
        &'a self,
        service: &'a str,
        uri: &'a str,
        context: &'a CallContext,
    ) -> BoxFuture<'a, Result<Value, ManageError>>;
}

/// A service manifest that is not written yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestText {
    pub name: ServiceName,
    /// The file that it will be written to.
    pub file: PathBuf,
    pub text: String,
}

/// A known service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceSummary {
    pub service: ServiceName,
    pub description: String,
    pub state: ServiceState,
    /// The modes that have it, or would have it if it were enabled.
    pub modes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceState {
    Enabled,
    Disabled,
    /// Part of Skein; a mode has it only through its manifest.
    BuiltIn,
    /// Owned by the orchestrator.
    Owned,
    /// Not implemented yet.
    Planned,
}

/// The effect of enabling or disabling a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceChange {
    pub service: ServiceName,
    pub enabled: bool,
    /// The tools of a service that was enabled.
    pub tools: Vec<String>,
    /// The modes that gained or lost the service.
    pub modes: Vec<String>,
    /// The modes that cannot be entered without it.
    pub stopped: Vec<String>,
}

/// The resources of one service.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResourceListing {
    pub service: ServiceName,
    /// In MCP's JSON; those with `uriTemplate` are templates.
    pub resources: Vec<Value>,
    /// Why the service could not be inspected.
    pub problem: Option<String>,
}
