//! Asks the user about protected paths that processes in a sandbox have created.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ask::{ConsentSubject, PermissionRequest, PermissionResponse};
use super::{CallContext, Notice};
use crate::sandbox::{ProtectedPath, ProtectedWatch, UnsandboxedStart, quarantine};

/// The name that these requests have instead of a tool's name.
const NEW_PATH: &str = "sandbox:new-path";

/// Looks for new protected paths at the end of a turn. Background commands, services and external agents may have
/// created some.
pub async fn check_new_protected(call: &CallContext) {
    for watch in call.session.path_watches().all() {
        check_watch(call, &watch).await;
    }
}

/// Looks for protected paths that are new since the first sandbox of the session started, and asks the user about each.
/// Moves those without consent to quarantine. After a cancel, the next check asks. Returns sentences for the result of a
/// command; the user gets notices.
pub(crate) async fn check_watch(call: &CallContext, watch: &Arc<ProtectedWatch>) -> Vec<String> {
    let _check = watch.check.lock().await;
    let found = {
        let watch = Arc::clone(watch);
        tokio::task::spawn_blocking(move || watch.find_created()).await.unwrap_or_default()
    };
    let mut sentences = Vec::new();
    for (path, protected) in found {
        match ask(call, &protected).await {
            Some(true) => call.session.path_watches().accept(&path),
            Some(false) => sentences.push(withdraw(call, path, &protected, &watch.quarantine).await),
            // The user may have created it.
            None => call.session.notices.send(Notice::new(format!(
                "`{}` is new, and {}. Skein asks about it after your next prompt.",
                protected.shown, protected.reason
            ))),
        }
    }
    sentences
}

/// Notes what is there before a command that runs without a sandbox. `None` if the call has one.
pub(crate) async fn begin_unsandboxed(call: &CallContext) -> Option<UnsandboxedStart> {
    if call.sandbox().is_some() {
        return None;
    }
    let watches = call.session.path_watches().clone();
    tokio::task::spawn_blocking(move || watches.begin_unsandboxed()).await.unwrap_or_default()
}

/// Accepts the protected paths that a command without a sandbox created: the user consented to all that it does.
pub(crate) async fn accept_unsandboxed(call: &CallContext, start: Option<UnsandboxedStart>) {
    let Some(start) = start else { return };
    let watches = call.session.path_watches().clone();
    if tokio::task::spawn_blocking(move || watches.accept_unsandboxed(&start)).await.is_err() {
        tracing::warn!("the user is asked about the paths that a command without a sandbox created");
    }
}

/// Asks the user whether a new protected path may stay. `None` if the turn is cancelled.
async fn ask(call: &CallContext, protected: &ProtectedPath) -> Option<bool> {
    let Some(asker) = call.asker() else { return Some(false) };
    let mut arguments = serde_json::Map::new();
    arguments.insert("path".to_owned(), protected.shown.clone().into());
    let request = PermissionRequest {
        call: call.id.clone(),
        by: None,
        apart: None,
        chain: call.chain(),
        tool: NEW_PATH.to_owned(),
        title: Some(format!(
            "Keep {}, which a command created. If you refuse, Skein moves it to quarantine",
            protected.shown
        )),
        always: ConsentSubject::of(NEW_PATH, &arguments, false, None),
        arguments,
        target: None,
        change: None,
        protected: Some(protected.clone()),
        rule: None,
    };
    let _open = call.open_question();
    tokio::select! {
        biased;
        () = call.cancel.cancelled() => None,
        answer = asker.ask(request) => {
            Some(matches!(answer, PermissionResponse::Allow | PermissionResponse::AllowAlways))
        }
    }
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
        Err(error) => {
            call.session.notices.send(Notice::new(format!(
                "A command created `{shown}`, a protected path, without your consent: {reason}. Skein could not move it \
                 away: {error}. Look at it and remove it."
            )));
            format!(
                "the command created `{shown}`, a protected path: {reason}. Skein could not move it away: {error}; tell \
                 the user"
            )
        }
    }
}
