//! What the result of a command reports about its sandbox: refused hosts and paths, and protected paths that it
//! created.

use std::path::Path;
use std::sync::Arc;

use super::SessionSandbox;
use crate::sandbox::proxy::{CommandNetwork, HostRefusal};
use crate::sandbox::{InstructionStamps, PathRefusal, ProtectedPath};
use crate::tool::CallContext;
use crate::tool::protected_check::check_watch;

/// The sandbox of one command.
#[derive(Debug)]
pub(crate) struct CommandSandbox {
    pub(super) sandbox: Arc<SessionSandbox>,
    /// What the command reaches; `None` if the network is off.
    pub(crate) network: Option<CommandNetwork>,
    /// The versions before the command.
    pub(super) stamps: InstructionStamps,
}

impl CommandSandbox {
    /// Returns the hosts that the sandbox has refused so far.
    pub(crate) fn host_refusals(&self) -> Vec<HostRefusal> {
        self.network.as_ref().map(CommandNetwork::refusals).unwrap_or_default()
    }

    /// Returns the paths in the error output that the sandbox probably refused.
    pub(crate) fn path_refusals(&self, errors: &str, cwd: &Path) -> Vec<PathRefusal> {
        self.sandbox.running.process().path_refusals(errors, cwd)
    }

    /// Looks for protected paths that are new since the first sandbox of the session started, and asks the user about
    /// each. Moves those without consent to quarantine. Returns sentences for the result.
    pub(crate) async fn check_protected(&self, call: &CallContext) -> Vec<String> {
        let Some(watch) = self.sandbox.running.watch() else { return Vec::new() };
        let roots = call.session.roots.clone();
        let Ok(stamps) = tokio::task::spawn_blocking(move || InstructionStamps::take(&roots)).await else {
            return Vec::new();
        };
        let changed = self.stamps.changes_until(&stamps);
        let mut sentences: Vec<String> =
            changed.iter().map(|ProtectedPath { shown, reason, .. }| format!("changed `{shown}`: {reason}")).collect();
        sentences.extend(check_watch(call, watch).await);
        sentences
    }
}
