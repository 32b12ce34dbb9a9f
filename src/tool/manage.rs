//! Which services a session has beside those that its configuration enables, and the port to whoever changes that.
//!
//! Invariant: a port only. What a mode may use is decided by its manifest; nothing here can add to that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;

use super::CallContext;
use crate::ids::ServiceName;

/// What was enabled and disabled since the session began. Copies are the same one: a session that works for another
/// has the other's.
#[derive(Debug, Clone, Default)]
pub struct EnabledServices {
    services: Arc<Mutex<BTreeMap<ServiceName, bool>>>,
}

impl EnabledServices {
    /// Nothing if nobody said anything about it, and the configuration counts.
    pub fn of(&self, service: &ServiceName) -> Option<bool> {
        self.lock().get(service).copied()
    }

    pub fn set(&self, service: ServiceName, enabled: bool) {
        self.lock().insert(service, enabled);
    }

    /// As of now.
    pub fn all(&self) -> BTreeMap<ServiceName, bool> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ServiceName, bool>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever manages the services of a session. An `Err` says what is wrong and what to do, for the model.
pub trait ServiceManager: Send + Sync {
    /// The services that fit the words, the best first; all of them without words.
    fn search(&self, words: &str, context: &CallContext) -> Vec<ServiceSummary>;

    /// Starts the service once to see that it works, and then enables it.
    fn enable<'a>(&'a self, service: &'a str, context: &'a CallContext)
    -> BoxFuture<'a, Result<ServiceChange, String>>;

    fn disable(&self, service: &str, context: &CallContext) -> Result<ServiceChange, String>;

    /// What enabled services offer to be read; of one, or of all.
    fn resources<'a>(
        &'a self,
        service: Option<&'a str>,
        context: &'a CallContext,
    ) -> BoxFuture<'a, Result<Vec<ResourceListing>, String>>;

    /// The contents of a resource, in MCP's JSON.
    fn read<'a>(
        &'a self,
        service: &'a str,
        uri: &'a str,
        context: &'a CallContext,
    ) -> BoxFuture<'a, Result<Value, String>>;
}

/// A service that there is.
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
    /// Part of Skein: a mode has it by its manifest and in no other way.
    BuiltIn,
    /// The orchestrator's own.
    Owned,
    /// Not there yet.
    Planned,
}

/// What enabling or disabling a service did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceChange {
    pub service: ServiceName,
    pub enabled: bool,
    /// Of a service that was enabled.
    pub tools: Vec<String>,
    /// The modes that have it from now on, or have it no longer.
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
    /// Why they are not known.
    pub problem: Option<String>,
}
