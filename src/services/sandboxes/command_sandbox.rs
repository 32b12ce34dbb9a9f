//! What the result of a command reports about its sandbox: refused hosts and paths, and protected paths that it
//! created.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::SessionSandbox;
use crate::sandbox::proxy::{CommandNetwork, HostRefusal};
use crate::sandbox::{InstructionStamps, PathRefusal, ProtectedPath, ProtectedSnapshot, quarantine};
use crate::tool::ask::{ConsentSubject, PermissionRequest, PermissionResponse};
use crate::tool::{CallContext, Notice};

/// The tool name that requests about new protected paths have.
const SHELL: &str = "developer__shell";

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

    /// Looks for protected paths that are new since the sandbox started, and asks the user about each. Moves those
    /// without consent to quarantine. `is_known` returns true for paths that the session created with consent. Returns
    /// sentences for the result.
    pub(crate) async fn check_protected(&self, call: &CallContext, is_known: impl Fn(&Path) -> bool) -> Vec<String> {
        let Some(watch) = &self.sandbox.watch else { return Vec::new() };
        let folders = watch.folders.clone();
        let roots = call.session.roots.clone();
        let taken =
            tokio::task::spawn_blocking(move || (ProtectedSnapshot::take(&folders), InstructionStamps::take(&roots)));
        let Ok((later, stamps)) = taken.await else { return Vec::new() };
        let changed = self.stamps.changes_until(&stamps);
        let mut sentences: Vec<String> =
            changed.iter().map(|ProtectedPath { shown, reason, .. }| format!("changed `{shown}`: {reason}")).collect();
        // Two commands that end at the same time must not ask about the same path.
        let mut known = watch.known.lock().await;
        for (path, protected) in known.find_created(&later) {
            if is_known(&path) || consents(call, &protected).await {
                known.accept(&path);
            } else {
                sentences.push(withdraw(call, path, &protected, &watch.quarantine).await);
            }
        }
        sentences
    }
}

/// Asks the user whether a new protected path may stay.
async fn consents(call: &CallContext, protected: &ProtectedPath) -> bool {
    let Some(asker) = call.asker() else { return false };
    let mut arguments = serde_json::Map::new();
    arguments.insert("path".to_owned(), protected.shown.clone().into());
    let request = PermissionRequest {
        call: call.id.clone(),
        by: None,
        apart: None,
        chain: call.chain(),
        tool: SHELL.to_owned(),
        title: Some(format!("Keep {}, which a command created", protected.shown)),
        always: ConsentSubject::of(SHELL, &arguments, false, None),
        arguments,
        target: None,
        change: None,
        protected: Some(protected.clone()),
        rule: None,
    };
    let _open = call.open_question();
    let answer = tokio::select! {
        biased;
        () = call.cancel.cancelled() => PermissionResponse::Unavailable,
        answer = asker.ask(request) => answer,
    };
    matches!(answer, PermissionResponse::Allow | PermissionResponse::AllowAlways)
}

/// Moves a path without consent to quarantine. Returns a sentence for the result, and notifies the user.
async fn withdraw(call: &CallContext, path: PathBuf, protected: &ProtectedPath, folder: &Path) -> String {
    let ProtectedPath { shown, reason, .. } = protected;
    let folder = folder.to_owned();
    let moved = tokio::task::spawn_blocking(move || quarantine(&path, &folder)).await;
    match moved.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
        Ok(place) => {
            call.session.notices.send(Notice::new(format!(
                "A command created `{shown}`, a protected path, without your consent. Skein moved it to {}.",
                place.display()
            )));
            format!(
                "the command created `{shown}`, a protected path: {reason}. Without consent of the user, Skein moved it \
                 out of the project"
            )
        }
        Err(error) => format!(
            "the command created `{shown}`, a protected path: {reason}. Skein could not move it away: {error}; tell the \
             user"
        ),
    }
}
