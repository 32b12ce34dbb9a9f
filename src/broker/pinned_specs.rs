//! Pins the tool specs of third-party services. The spec that a session saw first stays in force for the whole session.
//! Also keeps what front ends may show about these tools.
//!
//! Invariant: a tool whose spec differs from the pinned one is not called in this session.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ids::{ServiceName, ToolName};
use crate::tool::{ToolHints, ToolSpec};

/// Unverified claims of a third-party tool about itself. For display only.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolClaims {
    pub service: String,
    pub title: Option<String>,
    pub hints: ToolHints,
    /// URI of the MCP app in which a host shows the tool's result.
    pub ui: Option<String>,
}

/// The pinned specs of a session.
#[derive(Debug, Default)]
pub(super) struct PinnedSpecs {
    first: Mutex<HashMap<(ServiceName, ToolName), ToolSpec>>,
    /// Keyed by the name the model sees.
    claims: Mutex<HashMap<String, ToolClaims>>,
}

impl PinnedSpecs {
    /// Returns the spec that the session saw first, and pins `spec` if it is the first.
    pub(super) fn first(&self, service: &ServiceName, spec: &ToolSpec) -> ToolSpec {
        let key = (service.clone(), spec.name.clone());
        lock(&self.first).entry(key).or_insert_with(|| spec.clone()).clone()
    }

    pub(super) fn set_claims(&self, name: &str, claims: &ToolClaims) {
        lock(&self.claims).insert(name.to_owned(), claims.clone());
    }

    /// Returns the claims of a tool of the session or of a child session. `None` if the tool is built in or unknown.
    pub(super) fn claims(&self, name: &str) -> Option<ToolClaims> {
        lock(&self.claims).get(name).cloned()
    }
}

/// Returns the URI of an MCP app from `_meta` of a tool or its result.
pub fn ui_of(meta: Option<&serde_json::Value>) -> Option<String> {
    let meta = meta?;
    let uri = meta.pointer("/ui/resourceUri").or_else(|| meta.get("ui/resourceUri"))?.as_str()?;
    uri.starts_with("ui://").then(|| uri.to_owned())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
