//! `skein mcp --agents`: serves agents as tools of an MCP server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{McpArgs, serve};
use crate::adapter::suspension_slots::SuspensionSlots;
use crate::agents::TurnLimits;
use crate::cli::environment::variable;
use crate::cli::folders::Folders;
use crate::cli::output::{CommandError, CommandOutput};
use crate::cli::runtime::{self, CommandRuntime};
use crate::cli::store_failure::store_failure;
use crate::cli::workspace_loader::WorkspaceLoader;
use crate::cli::{Global, workspace};
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::mcp_server::{AgentMcpServer, McpServerConfig};
use crate::project::find_agent;

pub(super) fn run(
    args: &McpArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let plan = workspace::plan(global, folders, output)?;
    check_selection(args, &plan)?;
    let roots = args.root.iter().map(|root| existing(root)).collect::<Result<Vec<_>, _>>()?;
    let request = args.mode_request();
    let offers = |mode: &ModeId| {
        request.agent().is_none_or(|agent| agent == mode.agent.as_str())
            && request.mode().is_none_or(|slug| slug == mode.mode.as_str())
    };
    let store = folders.store.sessions().map_err(|error| store_failure(&error))?;
    // Each session uses the plan of its folder; the process itself has none.
    runtime::block_on(
        Plan::empty(),
        global,
        folders,
        output,
        async |started: &CommandRuntime, _: &mut CommandOutput| {
            let mut projects = WorkspaceLoader::new(global, folders, started);
            projects.flags.model = args.model.clone().or_else(|| variable("SKEIN_MODEL"));
            projects.rules = args.rules.rules();
            let front = McpServerConfig {
                sessions: runtime::sessions(store, TurnLimits::default(), folders),
                projects: Arc::new(projects),
                orchestrator: runtime::orchestrator(folders, started.hidden.clone()),
                cwd: folders.cwd.clone(),
                roots,
                approval: global.approval,
                suspended: SuspensionSlots::default(),
            };
            let served = AgentMcpServer::new(front, &plan, offers);
            let interrupt = started.interrupt();
            let ended = serve(served.clone(), interrupt.cancelled()).await;
            served.stop().await;
            if interrupt.is_cancelled() { Err(CommandError::Interrupted) } else { ended }
        },
    )
}

/// Returns the root with links resolved. Fails if it is not an existing folder.
fn existing(root: &Path) -> Result<PathBuf, CommandError> {
    let folder = root.canonicalize().ok().filter(|folder| folder.is_dir());
    folder.ok_or_else(|| {
        CommandError::usage(
            format!("`{}` is not a folder that exists", root.display()),
            "name an existing folder with `--root`",
        )
    })
}

/// Fails if the agent or mode on the command line does not exist or cannot be selected.
fn check_selection(args: &McpArgs, plan: &Plan) -> Result<(), CommandError> {
    let request = args.mode_request();
    if request.mode().is_some() {
        return Ok(request.select(plan).map(drop)?);
    }
    let Some(name) = request.agent() else { return Ok(()) };
    let agent = find_agent(plan, name)?;
    if !plan.selectable_modes().any(|(offered, _)| offered.manifest.name == agent.manifest.name) {
        let problem = format!("the agent `{name}` has no mode that this skein can run");
        return Err(CommandError::usage(problem, "choose another agent"));
    }
    Ok(())
}
