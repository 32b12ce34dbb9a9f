//! Reloads manifests and settings while a command runs: at SIGHUP, and for a server as soon as a file changes. Turns use
//! what is loaded when they begin.

use std::sync::Arc;
use std::time::Duration;

use super::runtime::{Hangup, Hangups};
use super::workspace_loader::WorkspaceLoader;
use crate::task::TaskScope;

/// How often a server looks for changed files.
const INTERVAL: Duration = Duration::from_secs(1);

/// What makes a command reload. Each turn and each new session look for changed files as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReloadTriggers {
    Signal,
    SignalAndFiles,
}

/// Reloads at each trigger until the scope ends.
pub(super) fn watch(loader: &Arc<WorkspaceLoader>, triggers: ReloadTriggers, scope: &TaskScope) {
    let (loader, ended) = (Arc::clone(loader), scope.cancelled().clone());
    let mut hangups = Hangups::listen();
    let mut files = (triggers == ReloadTriggers::SignalAndFiles).then(|| loader.common_files());
    scope.spawn(async move {
        loop {
            let is_signal = tokio::select! {
                () = ended.cancelled() => return,
                hangup = hangups.recv() => match hangup {
                    Hangup::Reload => true,
                    Hangup::TerminalGone => continue,
                },
                () = tokio::time::sleep(INTERVAL), if triggers == ReloadTriggers::SignalAndFiles => false,
            };
            let loader = Arc::clone(&loader);
            let work = tokio::task::spawn_blocking(move || {
                let now = loader.common_files();
                match is_signal {
                    true => {
                        tracing::info!("SIGHUP: manifests and settings are read again");
                        loader.reload();
                    }
                    false if files.as_ref().is_some_and(|before| *before != now) => loader.reload_changed(),
                    false => {}
                }
                Some(now)
            });
            // Fails only if reading panics; the next attempt then compares with nothing.
            files = work.await.unwrap_or_default();
        }
    });
}
