//! Runs the commands of a server on this machine, in a sandbox with the profile that the server sends.
//!
//! Invariant: the server can only narrow what its commands do here. No command runs without a sandbox, outside of the
//! folders that the editor gave its session, beyond the managed settings of this machine, or after the connection that
//! asked for it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use tokio::sync::{Semaphore, mpsc, watch};

use super::super::sandbox::ListOnly;
use crate::acp::{TerminalCall, TerminalCallRequest, TerminalCallRequestError, TerminalCreation, TerminalReply};
use crate::manifest::Manifests;
use crate::network::RemoteHost;
use crate::permissions::{RuleDecision, SourcedRule, config_rules, judge_host};
use crate::process::{CapturedCommand, CommandExit, Launch, Stdin};
use crate::sandbox::proxy::{HostAnswer, HostGate, HostQuestion, HostRecord, HostRuling};
use crate::sandbox::{
    CacheAccess, CurrentGate, ProtectedPath, ProtectedWatch, ProtectedWatches, RunningSandbox, SandboxFolders,
    SandboxLauncher, SandboxProfile, SandboxRequest, SandboxSettings, SandboxStartError, quarantine,
};
use crate::task::TaskScope;
use crate::tool::editor::{TerminalExit, TerminalSandboxRequest};

/// Maximum bytes of output that a terminal keeps.
const MAX_OUTPUT: u64 = 4 << 20;
/// Maximum number of terminals. One stays until the server releases it.
const MAX_TERMINALS: usize = 64;
/// Maximum number of calls of the server without an answer. Each terminal may have one that waits for its end.
const MAX_CALLS: usize = 128;
/// Maximum number of answers that the connection has not taken. Each may have the output of a terminal.
const MAX_ANSWERS: usize = 8;

/// Answers the questions that no rule answers. The server has asked the user about the command, and no question about a
/// host is possible here.
static NO_USER: ListOnly = ListOnly;

/// An answer for the server, with the number of the connection that it belongs to.
pub(super) type TerminalAnswer = (u64, String);

/// The commands that the server runs here. Clones share them.
#[derive(Clone)]
pub(super) struct LocalTerminals(Arc<TerminalHost>);

struct TerminalHost {
    /// `None`: no command runs.
    launcher: Option<SandboxLauncher>,
    environment: BTreeMap<OsString, OsString>,
    limits: Arc<TerminalLimits>,
    tasks: TaskScope,
    /// One permit for each call without an answer.
    calls: Arc<Semaphore>,
    answers: mpsc::Sender<TerminalAnswer>,
    table: Mutex<TerminalTable>,
}

/// What the managed settings of this machine leave of the server's profiles.
#[derive(Debug, Default)]
pub(super) struct TerminalLimits {
    sandbox: Vec<SandboxSettings>,
    /// Rules about hosts.
    rules: Vec<SourcedRule>,
}

impl TerminalLimits {
    pub(super) fn of(manifests: &Manifests) -> Self {
        let sandbox = manifests.managed.sandbox_configs().map(|config| config.all.clone()).collect();
        let mut rules = config_rules(manifests);
        rules.retain(|rule| rule.rule.host.is_some());
        Self { sandbox, rules }
    }
}

impl HostGate for TerminalLimits {
    fn rule(&self, host: &RemoteHost) -> HostRuling {
        match judge_host(&self.rules, host) {
            RuleDecision::Deny(rule) => HostRuling::Deny(rule.to_string()),
            RuleDecision::Ask { .. } => HostRuling::Ask,
            // The server's profile decides.
            RuleDecision::Allow(_) | RuleDecision::Silent => HostRuling::Silent,
        }
    }

    fn settle(&self, host: &RemoteHost) -> Option<HostAnswer> {
        NO_USER.settle(host)
    }

    fn ask(&self, question: HostQuestion) -> BoxFuture<'_, HostAnswer> {
        NO_USER.ask(question)
    }

    fn record(&self, record: &HostRecord) {
        NO_USER.record(record);
    }
}

#[derive(Default)]
struct TerminalTable {
    /// Counts connections.
    connection: u64,
    last: u64,
    open: HashMap<String, Arc<SandboxTerminal>>,
}

impl TerminalTable {
    /// Makes room for another terminal. At the limit, the oldest whose command has ended goes. Fails if all commands run.
    fn make_room(&mut self) -> Result<(), TerminalCallError> {
        if self.open.len() < MAX_TERMINALS {
            return Ok(());
        }
        let ended = self.open.iter().filter(|(_, terminal)| terminal.remarks.borrow().is_some());
        let oldest = ended.min_by_key(|(_, terminal)| terminal.number).map(|(id, _)| id.clone());
        self.open.remove(&oldest.ok_or(TerminalCallError::TooManyTerminals)?);
        Ok(())
    }
}

/// A command that runs or has ended.
struct SandboxTerminal {
    number: u64,
    command: CapturedCommand,
    /// Remarks about protected paths that the command created. `None` until it has ended and was checked.
    remarks: watch::Receiver<Option<Vec<String>>>,
}

/// Why a request of the server fails.
#[derive(Debug, thiserror::Error)]
enum TerminalCallError {
    #[error(transparent)]
    Request(#[from] TerminalCallRequestError),
    #[error("there is no terminal `{0}`")]
    Unknown(String),
    #[error("there are {MAX_TERMINALS} terminals already, whose commands run")]
    TooManyTerminals,
    #[error("commands run here only in a sandbox, and the server names none")]
    NoSandbox,
    #[error("the editor has no session with this id")]
    NoSession,
    #[error("`{}` is not a folder of the session", .0.display())]
    Folder(PathBuf),
    #[error("the command did not start: {0}")]
    Start(#[from] SandboxStartError),
    #[error("the connection was lost while the command started")]
    Lost,
    #[error("how the command ended is not known")]
    NoExit,
}

impl LocalTerminals {
    /// Returns the terminals, and the channel on which their answers arrive.
    pub(super) fn new(
        launcher: Option<SandboxLauncher>,
        environment: BTreeMap<OsString, OsString>,
        limits: TerminalLimits,
    ) -> (Self, mpsc::Receiver<TerminalAnswer>) {
        let (answers, received) = mpsc::channel(MAX_ANSWERS);
        let (limits, tasks, table) = (Arc::new(limits), TaskScope::new(), Mutex::default());
        let calls = Arc::new(Semaphore::new(MAX_CALLS));
        (Self(Arc::new(TerminalHost { launcher, environment, limits, tasks, calls, answers, table })), received)
    }

    /// Begins to answer a request of the server. Returns the answer at once if too many others have none.
    pub(super) fn receive(&self, call: TerminalCall) -> Option<String> {
        let Ok(permit) = Arc::clone(&self.0.calls).try_acquire_owned() else {
            return Some(call.refuse(&format!("{MAX_CALLS} calls have no answer yet; call again later")));
        };
        let host = Arc::clone(&self.0);
        let (connection, ending) = (host.lock().connection, host.tasks.cancelled().clone());
        self.0.tasks.spawn(async move {
            tokio::select! {
                () = host.reply(&call, connection) => {}
                () = ending.cancelled() => {}
            }
            drop(permit);
        });
        None
    }

    /// Returns true if the answer belongs to the connection of now.
    pub(super) fn is_current(&self, connection: u64) -> bool {
        self.0.lock().connection == connection
    }

    /// Ends all commands, because the connection that asked for them is lost.
    pub(super) fn disconnect(&self) {
        let mut table = self.0.lock();
        table.connection += 1;
        table.open.drain().for_each(|(_, terminal)| terminal.command.kill());
    }

    /// Ends all commands and waits for their ends.
    pub(super) async fn stop(&self) {
        self.disconnect();
        self.0.tasks.stop().await;
    }
}

impl TerminalHost {
    fn lock(&self) -> MutexGuard<'_, TerminalTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: &str) -> Result<Arc<SandboxTerminal>, TerminalCallError> {
        self.lock().open.get(id).cloned().ok_or_else(|| TerminalCallError::Unknown(id.to_owned()))
    }

    /// Sends the answer of a call. Waits until there is room for it.
    async fn reply(&self, call: &TerminalCall, connection: u64) {
        let (room, answered) = match call.request() {
            Ok(TerminalCallRequest::Output(id)) => {
                // The output is copied when the connection can take it.
                let room = self.answers.reserve().await;
                (room, self.find(&id).map(|terminal| terminal.output()))
            }
            Ok(request) => {
                let answered = self.answer(request, &call.folders, connection).await;
                (self.answers.reserve().await, answered)
            }
            Err(error) => (self.answers.reserve().await, Err(error.into())),
        };
        // Without a receiver the program ends.
        let Ok(room) = room else { return };
        let message = match answered {
            Ok(reply) => call.answer(&reply),
            Err(error) => call.refuse(&error.to_string()),
        };
        room.send((connection, message));
    }

    async fn answer(
        &self,
        request: TerminalCallRequest,
        folders: &[PathBuf],
        connection: u64,
    ) -> Result<TerminalReply, TerminalCallError> {
        match request {
            TerminalCallRequest::Create(creation) => self.create(*creation, folders, connection).await,
            TerminalCallRequest::Output(id) => Ok(self.find(&id)?.output()),
            TerminalCallRequest::WaitForExit(id) => self.find(&id)?.wait().await,
            TerminalCallRequest::Kill(id) => {
                self.find(&id)?.command.kill();
                Ok(TerminalReply::Done)
            }
            TerminalCallRequest::Release(id) => {
                let terminal = self.find(&id)?;
                self.lock().open.remove(&id);
                terminal.command.kill();
                Ok(TerminalReply::Done)
            }
        }
    }

    async fn create(
        &self,
        creation: TerminalCreation,
        folders: &[PathBuf],
        connection: u64,
    ) -> Result<TerminalReply, TerminalCallError> {
        let TerminalCreation { command, args, env: variables, cwd, output_byte_limit, sandbox } = creation;
        self.lock().make_room()?;
        let TerminalSandboxRequest { profile, read_only } = sandbox.ok_or(TerminalCallError::NoSandbox)?;
        let roots: Vec<PathBuf> = folders.iter().filter_map(|folder| folder.canonicalize().ok()).collect();
        let first = roots.first().ok_or(TerminalCallError::NoSession)?;
        let cwd = check_folder(cwd.as_deref().unwrap_or(first), &roots)?;
        let line = args.last().unwrap_or(&command).clone();
        let mut env = self.environment.clone();
        env.extend(variables.into_iter().map(|entry| (entry.name.into(), entry.value.into())));
        let launch = Launch {
            program: command.into(),
            args: args.into_iter().map(Into::into).collect(),
            env,
            cwd: Some(cwd),
            stdin: Stdin::Closed,
            launcher: None,
        };
        let launcher = self.launcher.as_ref().ok_or(SandboxStartError::NoLauncher)?;
        let readable = if read_only { roots.clone() } else { Vec::new() };
        let request = SandboxRequest {
            profile: Arc::new(local_profile(&profile, &self.limits.sandbox)),
            folders: SandboxFolders { roots: roots.clone(), readable, ..SandboxFolders::default() },
            gate: Arc::new(CurrentGate::new(Arc::clone(&self.limits) as Arc<dyn HostGate>)),
            servers: None,
            watches: Some(ProtectedWatches::default()),
        };
        let sandbox = RunningSandbox::start(launcher, request).await?;
        let created = sandbox.watch().cloned();
        let (group, pipes) = sandbox.spawn_alone(launch, &line).await?;
        let limit = output_limit(output_byte_limit);
        let (command, follow) = CapturedCommand::new(group, pipes, limit, self.tasks.cancelled().clone());
        let (checked, remarks) = watch::channel(None);
        self.tasks.spawn(async move {
            follow.await;
            let found = match created {
                Some(watch) => withdraw_created(watch).await,
                None => Vec::new(),
            };
            drop(checked.send(Some(found)));
        });
        let mut table = self.lock();
        if table.connection != connection {
            // Dropping the command ends it.
            return Err(TerminalCallError::Lost);
        }
        // Others may have started meanwhile.
        table.make_room()?;
        table.last += 1;
        let number = table.last;
        let id = format!("skein-{number}");
        table.open.insert(id.clone(), Arc::new(SandboxTerminal { number, command, remarks }));
        Ok(TerminalReply::Created(id))
    }
}

impl SandboxTerminal {
    fn output(&self) -> TerminalReply {
        let (mut text, truncated) = self.command.output();
        let remarks = self.remarks.borrow().clone();
        for remark in remarks.iter().flatten() {
            text.push_str(&format!("\n[{remark}]"));
        }
        // A command counts as running until its folders are checked.
        let exit = self.command.exit().filter(|_| remarks.is_some());
        TerminalReply::Output { text, truncated, exit: exit.map(exit_status) }
    }

    async fn wait(&self) -> Result<TerminalReply, TerminalCallError> {
        let mut remarks = self.remarks.clone();
        // Fails only if the program ends.
        drop(remarks.wait_for(Option::is_some).await.map_err(|_| TerminalCallError::NoExit)?);
        let exit = self.command.exit().ok_or(TerminalCallError::NoExit)?;
        Ok(TerminalReply::Exit(exit_status(exit)))
    }
}

/// Returns the bytes of output that a terminal keeps, if the server wants this many.
fn output_limit(wanted: Option<u64>) -> u64 {
    wanted.unwrap_or(MAX_OUTPUT).min(MAX_OUTPUT)
}

fn exit_status(CommandExit { code, signal }: CommandExit) -> TerminalExit {
    TerminalExit { code, signal: signal.map(|signal| signal.to_string()) }
}

/// Returns the folder with its links resolved. Fails if it is not below one of the session's folders.
fn check_folder(folder: &Path, roots: &[PathBuf]) -> Result<PathBuf, TerminalCallError> {
    let resolved = folder.canonicalize().ok().filter(|folder| roots.iter().any(|root| folder.starts_with(root)));
    resolved.ok_or_else(|| TerminalCallError::Folder(folder.to_owned()))
}

/// Returns what a profile of the server allows here. The server chooses neither paths outside the session's folders nor
/// addresses, sockets, devices or credentials of this user. The sandbox is always required. `managed` tightens it.
fn local_profile(profile: &SandboxProfile, managed: &[SandboxSettings]) -> SandboxProfile {
    let caches = if profile.caches == CacheAccess::Off { CacheAccess::Off } else { CacheAccess::Private };
    let mut local = SandboxProfile { caches, devices: Vec::new(), ..profile.for_remote() };
    // An address may be a service of this machine or of its network.
    local.network.allow.retain(|entry| entry.parse::<SocketAddr>().is_err() && entry.parse::<IpAddr>().is_err());
    managed.iter().fold(local, |profile, settings| settings.tighten(&profile))
}

/// Moves protected paths that a command created to quarantine, because no question is possible here. Returns a sentence
/// for each.
async fn withdraw_created(watch: Arc<ProtectedWatch>) -> Vec<String> {
    let moved = tokio::task::spawn_blocking(move || {
        let withdraw = |(path, protected): (PathBuf, ProtectedPath)| {
            let ProtectedPath { shown, reason, .. } = protected;
            match quarantine(&path, &watch.quarantine) {
                Ok(place) => {
                    tracing::warn!(path = %path.display(), to = %place.display(), "a command created a protected path");
                    format!(
                        "the command created `{shown}`, a protected path: {reason}. Skein moved it out of the project"
                    )
                }
                Err(error) => format!("the command created `{shown}`, a protected path, and it stays there: {error}"),
            }
        };
        watch.find_created().into_iter().map(withdraw).collect::<Vec<_>>()
    });
    moved.await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{ManagedFile, load_managed};
    use crate::sandbox::{Enforcement, FileAccess, GitAccess, PortAccess, ProfileOwner, ReadPath, WritePath};

    #[test]
    fn a_server_cannot_widen_the_sandbox_of_its_commands() {
        let path = |path: &str| WritePath::Path(path.to_owned());
        let mut wide = SandboxProfile {
            files: FileAccess::Full,
            write: vec![path("/etc"), path("~/notes"), path("dist/")],
            read: vec![ReadPath { path: "~/.ssh".to_owned(), ask: Vec::new() }],
            caches: CacheAccess::Shared,
            sockets: vec!["/run/docker.sock".to_owned()],
            enforce: Enforcement::Off,
            ..SandboxProfile::narrowest(ProfileOwner::Mode)
        };
        wide.network.allow = ["127.0.0.1:5432", "192.168.0.1", "example.com"].map(str::to_owned).to_vec();
        let mut narrow = SandboxProfile {
            files: FileAccess::Workspace,
            write: vec![path("dist/")],
            read: Vec::new(),
            caches: CacheAccess::Private,
            git: GitAccess::Off,
            ports: PortAccess::Off,
            sockets: Vec::new(),
            enforce: Enforcement::Required,
            ..wide.clone()
        };
        narrow.network.allow = vec!["example.com".to_owned()];
        assert_eq!(local_profile(&wide, &[]), narrow);
        assert_eq!(local_profile(&narrow, &[]), narrow, "what is narrow stays as it is");
        let managed = SandboxSettings { files: Some(FileAccess::ReadOnly), ..SandboxSettings::default() };
        assert_eq!(local_profile(&wide, &[managed]).files, FileAccess::ReadOnly, "an administrator narrows it further");
    }

    #[test]
    fn a_command_reaches_only_hosts_that_the_administrator_lists() {
        let file = ManagedFile { file: "managed.yaml".to_owned(), text: "version: 1\nhosts: [docs.rs]\n".to_owned() };
        let (manifests, found) = load_managed(&[], None, &[file]);
        assert!(found.is_empty(), "{found:?}");
        let limits = TerminalLimits::of(&manifests);
        let rule = |url: &str| limits.rule(&RemoteHost::of_url(url).expect("a host"));
        assert_eq!(rule("https://docs.rs/"), HostRuling::Silent);
        assert!(matches!(rule("https://example.com/"), HostRuling::Deny(_)));
        assert_eq!(
            TerminalLimits::default().rule(&RemoteHost::of_url("https://example.com/").expect("a host")),
            HostRuling::Silent
        );
    }

    #[test]
    fn a_command_starts_below_the_folders_of_its_session() {
        let base = tempfile::tempdir().expect("a folder");
        let base = base.path().canonicalize().expect("a folder");
        std::fs::create_dir_all(base.join("shop/src")).expect("created");
        std::fs::create_dir(base.join("other")).expect("created");
        std::os::unix::fs::symlink(base.join("other"), base.join("shop/link")).expect("linked");
        let roots = [base.join("shop")];
        for (folder, is_inside) in
            [("shop", true), ("shop/src", true), ("shop/link", false), ("other", false), ("shop/missing", false)]
        {
            assert_eq!(check_folder(&base.join(folder), &roots).is_ok(), is_inside, "{folder}");
        }
    }

    #[tokio::test]
    async fn calls_of_a_server_without_an_answer_are_limited() {
        let (terminals, mut answers) = LocalTerminals::new(None, BTreeMap::new(), TerminalLimits::default());
        let call = || TerminalCall {
            id: 1.into(),
            method: "terminal/output".to_owned(),
            params: serde_json::json!({"sessionId": "s", "terminalId": "t"}),
            folders: Vec::new(),
        };
        // No other task runs before the first wait.
        assert!((0..MAX_CALLS).all(|_| terminals.receive(call()).is_none()));
        let refused = terminals.receive(call()).expect("an answer at once");
        assert!(refused.contains("have no answer yet"), "{refused}");
        for _ in 0..MAX_CALLS {
            assert!(answers.recv().await.is_some_and(|(_, message)| message.contains("no terminal")));
        }
        terminals.stop().await;
    }

    #[tokio::test]
    async fn answers_that_the_connection_does_not_take_are_limited() {
        let (terminals, answers) = LocalTerminals::new(None, BTreeMap::new(), TerminalLimits::default());
        for _ in 0..2 * MAX_ANSWERS {
            let params = serde_json::json!({"sessionId": "s", "terminalId": "t"});
            let (method, folders) = ("terminal/output".to_owned(), Vec::new());
            assert!(terminals.receive(TerminalCall { id: 1.into(), method, params, folders }).is_none());
            tokio::task::yield_now().await;
        }
        assert_eq!(answers.len(), MAX_ANSWERS);
        terminals.stop().await;
    }

    #[test]
    fn a_server_may_choose_a_lower_limit_of_output() {
        assert_eq!([None, Some(100), Some(u64::MAX)].map(output_limit), [MAX_OUTPUT, 100, MAX_OUTPUT]);
    }
}
