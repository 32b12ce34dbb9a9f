//! `skein acp`: serves ACP on stdio for editors, here or by forwarding to a server. Only protocol messages go to stdout.

mod connect;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use clap::Args;
use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::configure::ConfigureArgs;
use super::folders::Folders;
use super::keys::Keys;
use super::models::KnownModels;
use super::output::{CommandError, CommandOutput};
use super::rule_store::UserConfig;
use super::runtime::{self, CommandRuntime};
use super::session_flags::AgentFlags;
use super::upgrade::{self, Reader};
use super::{Global, configure, standalone, top_of_mind, tutorial, workspace};
use crate::acp::{self, AcpServer};
use crate::agents::{ExternalAgents, TurnLimits};
use crate::broker::Broker;
use crate::diagnostic::Severity;
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::llm::RequestQueues;
use crate::manifest::{ServiceEntry, Settings};
use crate::orchestrator::Orchestrator;
use crate::permissions::SourcedRule;
use crate::principal::{Principal, SessionGrant};
use crate::project::{Project, ProjectError, ProjectLoader};
use crate::store;
use crate::trust::ProjectFiles;

#[derive(Debug, Args)]
pub(super) struct AcpArgs {
    #[command(flatten)]
    speaker: AgentFlags,
    /// Forward to the `skein serve` at this URL instead
    ///
    /// The token comes from the environment variable `SKEIN_TOKEN`, or from --token-file. Agents, models and files are
    /// those of the server.
    #[arg(long, value_name = "URL", conflicts_with_all = ["agent", "mode", "unstable_fork", "setup"])]
    connect: Option<String>,
    /// Read the token for --connect from a file that only you can read
    #[arg(long, value_name = "FILE", requires = "connect")]
    token_file: Option<PathBuf>,
    /// Offer the unstable session/fork method
    #[arg(long)]
    unstable_fork: bool,
    /// Run `skein configure` instead
    #[arg(long)]
    setup: bool,
}

pub(super) fn run(
    args: &AcpArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    if args.setup {
        return configure::run(&ConfigureArgs::default(), global, folders, output);
    }
    // Each session uses the plan of its folder; the process itself has none.
    let plan = Plan::empty();
    if let Some(url) = &args.connect {
        let server = connect::ServerEndpoint::resolve(url, args.token_file.as_deref(), folders)?;
        return runtime::block_on(
            plan,
            global,
            folders,
            output,
            async |started: &CommandRuntime, _: &mut CommandOutput| {
                connect::run(&server, &started.interrupt_for(connect::GRACE)).await
            },
        );
    }
    runtime::block_on(plan, global, folders, output, async |started: &CommandRuntime, _: &mut CommandOutput| {
        let projects =
            Arc::new(WorkspaceLoader { flags: args.speaker.clone(), ..WorkspaceLoader::new(global, folders, started) });
        // The first session needs the manifests: read them while the client initializes.
        let (early, cwd) = (Arc::clone(&projects), folders.cwd.clone());
        drop(tokio::task::spawn_blocking(move || drop(early.open(&cwd, &Principal::local()))));
        let of_sessions = folders.clone();
        let open_sessions = move || {
            let folders = of_sessions.clone();
            async move {
                let data = folders.data.clone();
                let opened = tokio::task::spawn_blocking(move || store::SessionStore::open(&data)).await;
                let store = opened.map_err(|error| acp::SessionsError(error.into()))?;
                let store = store.map_err(|error| acp::SessionsError(error.into()))?;
                Ok(runtime::sessions(store, TurnLimits::default(), &folders))
            }
            .boxed()
        };
        let changes = upgrade::changes_once(folders, Reader::User);
        let front = AcpServer {
            notices: Mutex::new(changes.into_iter().collect()),
            sessions: Box::new(open_sessions),
            grant: SessionGrant::local(),
            projects,
            orchestrator: Orchestrator::new(folders.data.clone(), top_of_mind::from_environment(folders)),
            version: env!("CARGO_PKG_VERSION"),
            program: std::env::current_exe().unwrap_or_else(|_| "skein".into()),
            cwd: folders.cwd.clone(),
            approval: global.approval,
            checks: tutorial::check_variables(folders),
            fork: args.unstable_fork,
            draining: CancellationToken::new(),
            open_sessions: Arc::new(acp::SharedSessions::of_one_client()),
        };
        let served = acp::serve(front, std::io::stdin(), std::io::stdout(), started.interrupt()).await;
        served.map_err(|error| CommandError::work(format!("the connection broke: {error}"), "see the log"))
    })
}

/// Loads the manifests that apply in a folder, and reloads them when a file has changed.
pub(super) struct WorkspaceLoader {
    global: Global,
    folders: Folders,
    broker: Broker,
    outside: Arc<dyn ExternalAgents>,
    /// Agent, mode and model from the command line, for all sessions of this process.
    pub(super) flags: AgentFlags,
    pub(super) rules: Vec<SourcedRule>,
    known: Mutex<HashMap<Traces, Project>>,
    /// Shared by all projects, so that Skein waits only once for a keyring that does not answer.
    keys: Keys,
    /// Shared by all projects, because they share the providers' keys.
    queues: Arc<RequestQueues>,
}

/// Cache key of a plan: the files it was made from, with their times and sizes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Traces {
    principal: Principal,
    /// The project's root and the hash of its files.
    project: Option<(PathBuf, String)>,
    files: Vec<(PathBuf, Option<SystemTime>, u64)>,
}

impl ProjectLoader for WorkspaceLoader {
    fn open(&self, cwd: &Path, principal: &Principal) -> Result<Project, ProjectError> {
        let folders = self.folders.of_principal(principal, cwd);
        let traces = self.traces(&folders);
        // Held while manifests are read, so that concurrent callers wait and then find the cached project.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(project) = known.get(&traces) {
            return Ok(project.clone());
        }
        let broken = |failure: CommandError| ProjectError { problem: failure.problem(), diagnostics: Vec::new() };
        let (resolved, notes) = workspace::resolve_quietly(&self.global, &folders).map_err(broken)?;
        let mut rules = workspace::principal_rules(&folders).map_err(broken)?;
        rules.extend(self.rules.iter().cloned());
        let Some(plan) = resolved.plan else {
            let errors = resolved.diagnostics.iter().filter(|found| found.severity == Severity::Error);
            let first = errors.clone().next().map(|found| found.problem.clone()).unwrap_or_default();
            let problem = match errors.count() {
                1 => format!("the manifests have an error: {first}; run `skein check`"),
                count => format!("the manifests have {count} errors, the first: {first}; run `skein check`"),
            };
            return Err(ProjectError { problem, diagnostics: resolved.diagnostics });
        };
        let project = self.project(plan, rules, notes, &folders);
        known.insert(traces, project.clone());
        Ok(project)
    }
}

impl WorkspaceLoader {
    pub(super) fn new(global: &Global, folders: &Folders, started: &CommandRuntime) -> Self {
        Self {
            global: global.clone(),
            folders: folders.clone(),
            broker: started.runtime.broker().clone(),
            outside: started.runtime.external_agents(),
            flags: AgentFlags::default(),
            rules: Vec::new(),
            known: Mutex::default(),
            keys: Keys::of(folders),
            queues: Arc::default(),
        }
    }

    /// Returns the project of a folder with the whole service as its own mode. `None` if there is no such service, or it
    /// cannot stand alone. Fails if the manifests or settings have errors.
    pub(super) fn open_service(
        &self,
        cwd: &Path,
        principal: &Principal,
        service: &str,
    ) -> Result<Option<(Project, ModeId)>, ProjectError> {
        let project = self.open(cwd, principal)?;
        let usable = |entry: &&ServiceEntry| entry.enabled && standalone::check(entry).is_ok();
        let Some(entry) = project.broker.plan().service(service).filter(usable) else { return Ok(None) };
        let folders = self.folders.of_principal(principal, cwd);
        let broken = |problem: String| ProjectError { problem, diagnostics: Vec::new() };
        let manifest = standalone::manifest(&entry.manifest.name);
        let (resolved, _) =
            workspace::resolve_with(&self.global, &folders, manifest).map_err(|error| broken(error.problem()))?;
        let plan = resolved.plan.ok_or_else(|| broken("the manifests have errors; run `skein check`".to_owned()))?;
        let broker = project.broker.with_plan(Arc::new(plan));
        Ok(Some((Project { broker, ..project }, standalone::mode())))
    }

    fn project(&self, plan: Plan, rules: Vec<SourcedRule>, notes: Vec<String>, folders: &Folders) -> Project {
        let settings = Settings::of(plan.manifests());
        let others = settings.processor.iter().chain(settings.models.keys()).cloned().collect();
        Project {
            models: KnownModels::of(
                &settings,
                self.flags.model().as_ref(),
                None,
                self.keys.clone(),
                Arc::clone(&self.queues),
            ),
            mode: self.flags.mode_request(&settings),
            model: self.flags.model_or_default(&settings),
            others,
            broker: self.broker.with_plan(Arc::new(plan)).with_rules(rules),
            external_agents: Arc::clone(&self.outside),
            rules: Arc::new(UserConfig { folder: folders.rule_config() }),
            notes,
        }
    }

    fn traces(&self, folders: &Folders) -> Traces {
        let project = ProjectFiles::find(&folders.cwd).ok().flatten().map(|project| (project.root, project.hash));
        let mut files = Vec::new();
        // The trust store is one file in the principal's data folder.
        let mut own = vec![folders.config.clone(), folders.own_data().join("trust.json")];
        if !folders.principal.is_local() {
            own.push(folders.rule_config());
        }
        let named = self.global.manifests.iter().map(PathBuf::as_path).chain(self.global.profile_file());
        for place in own.iter().map(PathBuf::as_path).chain(named) {
            note(place, 0, &mut files);
        }
        Traces { principal: folders.principal.clone(), project, files }
    }
}

/// Collects every file below `path` with its modification time and size. Stops at a depth that manifests never exceed.
fn note(path: &Path, depth: usize, files: &mut Vec<(PathBuf, Option<SystemTime>, u64)>) {
    let Ok(metadata) = path.metadata() else { return };
    files.push((path.to_owned(), metadata.modified().ok(), metadata.len()));
    if !metadata.is_dir() || depth > 8 {
        return;
    }
    let entries = path.read_dir().into_iter().flatten().filter_map(Result::ok);
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().for_each(|path| note(path, depth + 1, files));
}
