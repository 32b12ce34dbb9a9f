//! `skein acp`: serves ACP on stdio for editors, here or by forwarding to a server. Only protocol messages go to stdout.

mod connect;
mod local_terminals;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use clap::{Args, Parser};
use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::agent_flags::AgentFlags;
use super::configure::ConfigureArgs;
use super::folders::Folders;
use super::output::{CommandError, CommandOutput};
use super::reload::{self, ReloadTriggers};
use super::runtime::{self, CommandRuntime, StopSignals, WorkerThreads};
use super::upgrade::{self, Reader};
use super::workspace_loader::WorkspaceLoader;
use super::{Global, configure, managed_files, tutorial};
use crate::acp::{self, AcpServer};
use crate::agents::TurnLimits;
use crate::graph::Plan;
use crate::principal::SessionGrant;
use crate::process::minimal_environment;
use crate::task::TaskScope;
use local_terminals::{LocalTerminals, TerminalLimits};

#[derive(Debug, Args)]
pub(super) struct AcpArgs {
    #[command(flatten)]
    speaker: AgentFlags,
    /// Forward to the `skein serve` at this URL instead
    ///
    /// The token comes from the environment variable `SKEIN_TOKEN`, or from --token-file. Agents and models are those of
    /// the server. Files are those of the editor, unless a root of the token contains the folder.
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

/// The flags of `skein acp` without those of other commands.
#[derive(Debug, Parser)]
struct AcpCommandLine {
    #[command(flatten)]
    global: Global,
    #[command(flatten)]
    args: AcpArgs,
}

/// Parses arguments that begin with `acp`. Editors start this command often, and the definitions of all commands take
/// longer than the rest of the parser. Returns `None` for another command, and for a request for help or an error, which
/// need these definitions.
pub(super) fn parse_short(arguments: &[OsString]) -> Option<(Global, AcpArgs)> {
    if arguments.first()? != "acp" {
        return None;
    }
    AcpCommandLine::try_parse_from(arguments).ok().map(|AcpCommandLine { global, args }| (global, args))
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
        let limits = TerminalLimits::of(managed_files::empty_plan(global, folders)?.manifests());
        return runtime::block_on(
            plan,
            global,
            folders,
            output,
            async |started: &CommandRuntime, _: &mut CommandOutput| {
                let launcher = started.runtime.pool().sandbox_launcher().cloned();
                let environment = minimal_environment(folders.environment());
                let (terminals, answers) = LocalTerminals::new(launcher, environment, limits);
                connect::run(&server, terminals, answers, &started.interrupt_for(connect::GRACE)).await
            },
        );
    }
    runtime::block_on_until(
        StopSignals::Terminal,
        WorkerThreads::None,
        plan,
        global,
        folders,
        output,
        async |started: &CommandRuntime, _: &mut CommandOutput| {
            let mut projects = WorkspaceLoader::new(global, folders, started);
            projects.flags = args.speaker.clone();
            let projects = Arc::new(projects);
            let background = TaskScope::new();
            reload::watch(&projects, ReloadTriggers::Signal, &background);
            let of_sessions = folders.clone();
            let open_sessions = move || {
                let folders = of_sessions.clone();
                async move {
                    let place = folders.store.clone();
                    let opened = tokio::task::spawn_blocking(move || place.sessions()).await;
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
                orchestrator: runtime::orchestrator(folders, started.hidden.clone()),
                version: env!("CARGO_PKG_VERSION"),
                program: std::env::current_exe().unwrap_or_else(|_| "skein".into()),
                cwd: folders.cwd.clone(),
                approval: global.approval,
                checks: tutorial::check_variables(folders),
                fork: args.unstable_fork,
                draining: CancellationToken::new(),
                open_sessions: Arc::new(acp::SharedSessions::of_one_client()),
            };
            let served = acp::serve(front, started.interrupt()).await;
            background.stop().await;
            served.map_err(|error| CommandError::work(format!("the connection broke: {error}"), "see the log"))
        },
    )
}
