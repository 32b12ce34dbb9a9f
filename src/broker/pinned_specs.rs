//! What a session was offered of services that are not ours: what each tool said about itself the first time, which is
//! what counts for the whole session, and what those who show its calls may tell of it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Binding;
use crate::ids::{ServiceName, ToolName};
use crate::tool::{SessionContext, ToolHints, ToolSpec};

/// What a tool of another's service says about itself, to be shown and never to be relied on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolClaims {
    pub service: String,
    pub title: Option<String>,
    pub hints: ToolHints,
    /// The page in which a host shows what the tool answers (MCP Apps).
    pub ui: Option<String>,
}

/// Kept with the session.
#[derive(Debug, Default)]
pub(super) struct PinnedSpecs {
    first: Mutex<HashMap<(ServiceName, ToolName), ToolSpec>>,
    /// By the name that the model sees.
    claims: Mutex<HashMap<String, ToolClaims>>,
}

impl PinnedSpecs {
    /// The tool as the session was offered it first.
    pub(super) fn first(&self, service: &ServiceName, spec: &ToolSpec) -> ToolSpec {
        let key = (service.clone(), spec.name.clone());
        lock(&self.first).entry(key).or_insert_with(|| spec.clone()).clone()
    }

    fn note(&self, name: &str, said: &ToolClaims) {
        lock(&self.claims).insert(name.to_owned(), said.clone());
    }
}

/// What is known of a tool that the session, or one that works for it, was offered; nothing if the tool is ours.
pub fn tool_claims(session: &SessionContext, name: &str) -> Option<ToolClaims> {
    lock(&session.state::<PinnedSpecs>().claims).get(name).cloned()
}

/// The address of an MCP app in `_meta` of a tool or of its answer.
pub fn ui_of(meta: Option<&serde_json::Value>) -> Option<String> {
    let meta = meta?;
    let uri = meta.pointer("/ui/resourceUri").or_else(|| meta.get("ui/resourceUri"))?.as_str()?;
    uri.starts_with("ui://").then(|| uri.to_owned())
}

impl Binding {
    /// Notes what its tools say, for whoever shows calls: in its session, and in those it works for.
    pub(super) fn record_claims(&self) {
        let mut binding = Some(self);
        while let Some(of) = binding {
            let offered = of.request.session.state::<PinnedSpecs>();
            for (name, tool) in self.tools.iter().filter(|(_, tool)| !tool.builtin) {
                let said = ToolClaims {
                    service: tool.service.to_string(),
                    title: tool.spec.title.clone(),
                    hints: tool.spec.hints,
                    ui: ui_of(tool.spec.meta.as_ref()),
                };
                offered.note(name, &said);
            }
            binding = of.policy.limits.parent.as_deref();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
