//! The gate of a running sandbox, which its holder can replace.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;

use super::consent::ConsentRefusal;
use super::gate::SandboxGate;
use super::git::{GitGate, GitRequest};
use super::proxy::{HostAnswer, HostGate, HostQuestion, HostRecord, HostRuling, PortGate, Proxy, limit_work};
use crate::network::RemoteHost;

/// Passes questions to the gate of the latest call, because the approval level may change while a sandbox runs.
pub struct CurrentGate {
    gate: Mutex<GateParts>,
    /// The number of open questions.
    asking: watch::Sender<usize>,
}

#[derive(Clone)]
struct GateParts {
    hosts: Arc<dyn HostGate>,
    /// `None` if no session can be asked about git and ports.
    session: Option<Arc<dyn SandboxGate>>,
}

impl std::fmt::Debug for CurrentGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CurrentGate").field("asking", &*self.asking.borrow()).finish_non_exhaustive()
    }
}

impl CurrentGate {
    /// A gate that decides about hosts, and refuses git's credentials and ports.
    pub fn new(gate: Arc<dyn HostGate>) -> Self {
        Self::with(GateParts { hosts: gate, session: None })
    }

    /// The gate of a session, which decides about everything.
    pub fn of_session(gate: Arc<dyn SandboxGate>) -> Self {
        let hosts = Arc::clone(&gate) as Arc<dyn HostGate>;
        Self::with(GateParts { hosts, session: Some(gate) })
    }

    fn with(parts: GateParts) -> Self {
        Self { gate: Mutex::new(parts), asking: watch::Sender::new(0) }
    }

    /// Replaces the gate. Questions that are open stay with the earlier one.
    pub fn set(&self, gate: Arc<dyn HostGate>) {
        *self.lock() = GateParts { hosts: gate, session: None };
    }

    /// Replaces the gate of a session. Questions that are open stay with the earlier one.
    pub fn set_session(&self, gate: Arc<dyn SandboxGate>) {
        let hosts = Arc::clone(&gate) as Arc<dyn HostGate>;
        *self.lock() = GateParts { hosts, session: Some(gate) };
    }

    /// Runs `work` with a time limit that stops while the user is asked, for at most five minutes in total. Returns
    /// `None` if the limit is over.
    pub async fn limit<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        limit_work(limit, self.asking.subscribe(), work).await
    }

    fn get(&self) -> Arc<dyn HostGate> {
        Arc::clone(&self.lock().hosts)
    }

    /// Returns the gate of the session. Fails if there is none.
    fn session(&self) -> Result<Arc<dyn SandboxGate>, ConsentRefusal> {
        let session = self.lock().session.clone();
        session.ok_or_else(|| ConsentRefusal { reason: "there is no session whose user could be asked".to_owned() })
    }

    fn lock(&self) -> MutexGuard<'_, GateParts> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostGate for CurrentGate {
    fn rule(&self, host: &RemoteHost) -> HostRuling {
        self.get().rule(host)
    }

    fn settle(&self, host: &RemoteHost) -> Option<HostAnswer> {
        self.get().settle(host)
    }

    fn ask(&self, question: HostQuestion) -> BoxFuture<'_, HostAnswer> {
        let gate = self.get();
        Box::pin(async move {
            let _question = QuestionCount::new(&self.asking);
            gate.ask(question).await
        })
    }

    fn record(&self, record: &HostRecord) {
        self.get().record(record);
    }
}

/// Counts a question until it is dropped.
struct QuestionCount<'a>(&'a watch::Sender<usize>);

impl<'a> QuestionCount<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for QuestionCount<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl PortGate for CurrentGate {
    fn ask(&self, port: u16) -> BoxFuture<'_, Result<(), ConsentRefusal>> {
        Box::pin(async move {
            let gate = self.session()?;
            PortGate::ask(gate.as_ref(), port).await
        })
    }
}

/// Asks about credentials of git. The time limits of commands stop meanwhile.
pub(super) struct PausingGate {
    pub(super) gate: Arc<CurrentGate>,
    /// `None` if the network is off; then no time limit stops.
    pub(super) proxy: Option<Proxy>,
}

impl GitGate for PausingGate {
    fn ask(&self, request: GitRequest) -> BoxFuture<'_, Result<(), ConsentRefusal>> {
        Box::pin(async move {
            let gate = self.gate.session()?;
            let _count = QuestionCount::new(&self.gate.asking);
            let _pause = self.proxy.as_ref().map(Proxy::pause_commands);
            GitGate::ask(gate.as_ref(), request).await
        })
    }
}
