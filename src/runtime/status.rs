//! Reports the status of a running Skein process on a socket that only its user can open. `skein services` queries the
//! sockets of all processes.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::external::ExternalAgentPool;
use crate::services::Pool;
use crate::socket;
use crate::task::{TaskScope, alive_tasks};

/// The report of one running Skein process.
#[derive(Debug, Clone, PartialEq)]
pub struct StatusReport {
    pub pid: u32,
    /// `[{name, health, leases, restarts, last_error, tools, started_at, pid, memory_bytes}]`
    pub services: Vec<Value>,
    /// External agents: `[{name, health, pid, last_error}]`
    pub agents: Vec<Value>,
}

/// Serves the status socket of this process until the scope stops. Everything else works without it, so a failure is
/// only logged.
pub(super) fn serve(folder: &Path, pool: Pool, agents: ExternalAgentPool, scope: &TaskScope) {
    let path = folder.join(format!("{}.sock", std::process::id()));
    let listener = match socket::listen(&path) {
        Ok(listener) => listener,
        Err(error) => return tracing::warn!(%error, socket = %path.display(), "no status socket"),
    };
    let cancelled = scope.cancelled().clone();
    scope.spawn(async move {
        loop {
            let accepted = tokio::select! {
                biased;
                () = cancelled.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let Ok((mut stream, _)) = accepted else { continue };
            let services: Vec<_> = pool
                .status()
                .into_iter()
                .map(|(name, status)| {
                    let mut value = json!(status);
                    value["name"] = json!(name);
                    value
                })
                .collect();
            let agents = agents.status();
            let (pid, tasks) = (std::process::id(), alive_tasks());
            let report = json!({"pid": pid, "tasks": tasks, "services": services, "agents": agents}).to_string();
            // A client that hangs must not block the next one.
            drop(tokio::time::timeout(Duration::from_secs(1), stream.write_all(report.as_bytes())).await);
        }
        drop(fs::remove_file(&path));
    });
}

/// Queries every running Skein process. Removes sockets whose process has ended.
pub fn reports(folder: &Path) -> Vec<StatusReport> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "sock"));
    paths.sort();
    paths.iter().filter_map(|path| ask(path)).collect()
}

fn ask(path: &Path) -> Option<StatusReport> {
    let mut stream = socket::connect(path).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let value: Value = serde_json::from_str(&text).ok()?;
    let pid = value["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok())?;
    let list = |key: &str| value[key].as_array().cloned().unwrap_or_default();
    Some(StatusReport { pid, services: list("services"), agents: list("agents") })
}
