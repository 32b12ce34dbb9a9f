//! Watches the ports of servers inside a sandbox, and forwards them to this machine after consent.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::debug;

use crate::sandbox::proxy::{InsideNetwork, PortForwards, PortGate};
use crate::sandbox::{CurrentGate, PortAccess, RunningSandbox, SandboxProcess};
use crate::task::TaskScope;
use crate::tool::{Notice, NoticeSink, SessionContext};

/// Time between two looks after a command started. It doubles up to the longest pause.
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The kernel chooses ports from here on for programs that name none, such as tests. Skein does not ask about them.
const FIRST_CHOSEN_PORT: u16 = 32768;

/// Forwards new ports of a sandbox. Dropping it closes all of them.
#[derive(Debug)]
pub(super) struct PortWatch {
    tasks: TaskScope,
    forwards: Arc<PortForwards>,
    /// Wakes the task, which holds the other end.
    changed: Arc<Notify>,
}

impl PortWatch {
    /// Starts to watch. `None` if the profile forwards no port, or if the sandbox has the network of the host, where a
    /// server needs no help.
    pub(super) fn start(sandbox: &RunningSandbox, gate: Arc<CurrentGate>, session: &SessionContext) -> Option<Self> {
        let (profile, process) = (sandbox.profile(), sandbox.process());
        let access = profile.ports.clone();
        if access == PortAccess::Off || process.namespaces().is_empty() {
            return None;
        }
        let inside = Arc::new(process.clone()) as Arc<dyn InsideNetwork>;
        let forwards = Arc::new(PortForwards::new(access.clone(), gate as Arc<dyn PortGate>, inside));
        // Relays lead from the sandbox to this machine.
        let relayed = profile.network.allow.iter().filter_map(|entry| entry.parse::<SocketAddr>().ok());
        let mut ignored: HashSet<u16> = relayed.map(|address| address.port()).collect();
        ignored.extend(process.proxy_address().map(|address| address.port()));
        let watch = Self { tasks: TaskScope::new(), forwards: Arc::clone(&forwards), changed: Arc::default() };
        let watcher = Watcher {
            access,
            process: process.clone(),
            forwards,
            notices: Arc::clone(&session.notices),
            tasks: watch.tasks.clone(),
        };
        let changed = Arc::clone(&watch.changed);
        watch.tasks.spawn(async move { watcher.run(&changed, ignored).await });
        Some(watch)
    }

    /// Looks soon and then more often, because a command starts.
    pub(super) fn expect_change(&self) {
        self.changed.notify_one();
    }
}

impl Drop for PortWatch {
    fn drop(&mut self) {
        self.tasks.cancel();
        self.forwards.cancel();
    }
}

struct Watcher {
    access: PortAccess,
    process: SandboxProcess,
    forwards: Arc<PortForwards>,
    notices: Arc<dyn NoticeSink>,
    tasks: TaskScope,
}

impl Watcher {
    /// Looks for new ports until the sandbox ends. A port must be open at two looks: short-lived servers are not worth a
    /// question.
    async fn run(&self, changed: &Notify, mut known: HashSet<u16>) {
        let mut pause = SHORTEST_PAUSE;
        let mut next = Instant::now() + pause;
        let mut seen: HashSet<u16> = HashSet::new();
        loop {
            tokio::select! {
                biased;
                () = self.tasks.cancelled().cancelled() => return,
                // A look takes the kernel milliseconds, and a command that has just started listens nowhere yet.
                () = changed.notified() => {
                    pause = SHORTEST_PAUSE;
                    next = next.min(Instant::now() + pause);
                    continue;
                }
                () = tokio::time::sleep_until(next) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
            let ports = match self.process.listening_ports().await {
                Ok(ports) => ports,
                Err(error) => {
                    debug!(%error, "cannot list the ports of a sandbox");
                    return;
                }
            };
            let ports: HashSet<u16> = ports.into_iter().filter(|port| self.is_wanted(*port)).collect();
            for port in ports.intersection(&seen).copied().filter(|port| known.insert(*port)).collect::<Vec<_>>() {
                self.forward(port);
            }
            if ports.iter().any(|port| !known.contains(port)) {
                pause = SHORTEST_PAUSE;
            }
            next = Instant::now() + pause;
            seen = ports;
        }
    }

    fn is_wanted(&self, port: u16) -> bool {
        match &self.access {
            PortAccess::Off => false,
            PortAccess::List(ports) => ports.contains(&port),
            PortAccess::Ask => port < FIRST_CHOSEN_PORT,
        }
    }

    /// Forwards a port on its own task: the user may take long to answer.
    fn forward(&self, port: u16) {
        let (forwards, notices) = (Arc::clone(&self.forwards), Arc::clone(&self.notices));
        let cancelled = self.tasks.cancelled().clone();
        self.tasks.spawn(async move {
            match cancelled.run_until_cancelled(forwards.forward(port)).await {
                Some(Ok(address)) => notices
                    .send(Notice::new(format!("Port {port} of the sandbox is open on this machine: http://{address}"))),
                Some(Err(error)) => debug!(%error, "a port is not forwarded"),
                None => {}
            }
        });
    }
}
