//! `skein mcp`: serves a mode's tools, the agents themselves, or one built-in service as an MCP server on stdio.

mod agents;
mod attach;
mod checked_lines;

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use clap::Args;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::io::stdio_pipes;
use rmcp::{ServerHandler, ServiceExt as _};
use tokio_util::sync::CancellationToken;

use super::folders::Folders;
use super::output::{CommandError, CommandOutput};
use super::permissions::RuleFlags;
use super::runtime::{self, CommandRuntime};
use super::standalone::{self, StandaloneError};
use super::{Global, audit_sink, services, workspace};
use crate::adapter::export::{BindingServer, SESSION_SERVICES, ToolNaming, about_mode, about_service};
use crate::answer_limit::AnswerLimit;
use crate::broker::{BindRequest, Binding};
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::manifest::ApprovalLevel;
use crate::project::ModeRequest;
use crate::tool::ask::NoAsker;

/// Bytes that are buffered in each direction.
const PIPE: usize = 64 << 10;
/// How long a client may take to read the remaining output after a failure.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct McpArgs {
    /// Serve the tools of this agent, or of agent/mode
    #[arg(long, short, required_unless_present_any = ["mode", "service", "agents", "attach", "attach_file"])]
    agent: Option<String>,
    /// Serve this mode instead of the default mode
    #[arg(long, short)]
    mode: Option<String>,
    /// Serve one built-in service with all its tools instead
    #[arg(long, value_name = "NAME", conflicts_with_all = ["agent", "mode"])]
    service: Option<String>,
    /// Serve the agents themselves, each mode as a tool
    ///
    /// Use -a and -m to limit the modes.
    #[arg(long, conflicts_with = "service")]
    agents: bool,
    /// With --agents, use this model instead of the profile's
    ///
    /// Give it as provider:model.
    #[arg(long, requires = "agents")]
    model: Option<String>,
    /// With --agents, also let sessions work below this folder
    #[arg(long, value_name = "DIR", requires = "agents")]
    root: Vec<PathBuf>,
    #[command(flatten)]
    rules: RuleFlags,
    /// Connect stdio to a mode of a running skein
    ///
    /// Skein starts this itself, with the socket and the token in the environment.
    #[arg(long, conflicts_with_all = ["agent", "mode", "service", "agents"])]
    attach: bool,
    /// Connect stdio to a required service of a running skein
    ///
    /// Skein gives this command to the services that it starts. The file contains the socket and a token that works
    /// once.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["agent", "mode", "service", "agents", "attach"])]
    attach_file: Option<PathBuf>,
}

impl McpArgs {
    fn mode_request(&self) -> ModeRequest {
        ModeRequest::new(self.agent.as_deref(), self.mode.as_deref())
    }

    /// Runs `--attach` or `--attach-file` in place of everything else. `None` if neither is set.
    pub(super) fn attach(&self) -> Option<Result<(), CommandError>> {
        match &self.attach_file {
            Some(file) => Some(attach::run_with_file(file)),
            None => self.attach.then(attach::run),
        }
    }
}

pub(super) fn run(
    args: &McpArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    if args.agents {
        return agents::run(args, global, folders, output);
    }
    let (plan, id, names, about) = match &args.service {
        Some(service) => {
            let (plan, id) = single_service_plan(service, global, folders, output)?;
            (plan, id, ToolNaming::Bare, about_service(service))
        }
        None => {
            let plan = workspace::plan(global, folders, output)?;
            let id = args.mode_request().select(&plan)?;
            let about = plan.mode(&id).map(|(mode, _)| mode.mode.description.clone()).unwrap_or_default();
            let about = about_mode(&id, &about);
            (plan, id, ToolNaming::Qualified, about)
        }
    };
    audit_sink::check_key(folders)?;
    let flag = global.approval;
    runtime::block_on(
        plan,
        global,
        folders,
        output,
        async move |started: &CommandRuntime, output: &mut CommandOutput| {
            let broker = started.runtime.broker().with_rules(args.rules.rules());
            let said = broker.plan().mode(&id).map_or(ApprovalLevel::Ask, |(mode, _)| broker.approval(mode));
            let approval = flag.unwrap_or(said.for_asking_client());
            let terms = BindRequest {
                session: Arc::clone(&started.session),
                approval: Some(approval),
                asker: Arc::new(NoAsker),
                client_services: Vec::new(),
            };
            let binding = broker.bind(&id, terms).await.map_err(|error| runtime::bind_failure(&error))?;
            binding.missing_services().iter().for_each(|missing| output.note(&missing.to_string()));
            let excluded: Vec<_> = SESSION_SERVICES.into_iter().filter(|name| has_tools(&binding, name)).collect();
            if !excluded.is_empty() {
                let names = excluded.join(" and ");
                output.note(&format!(
                    "the tools of {names} need a session and are left out; `skein mcp --agents` serves whole agents"
                ));
            }
            let export = BindingServer::new(Arc::new(binding), Arc::clone(&started.session), names, about);
            let export = export.without_services(&excluded);
            serve(export, std::future::pending()).await
        },
    )
}

fn has_tools(binding: &Binding, service: &str) -> bool {
    binding.tools().values().any(|tool| tool.service.as_str() == service)
}

/// Serves the client on stdio until it disconnects or `ended` completes.
async fn serve(handler: impl ServerHandler, ended: impl Future<Output = ()>) -> Result<(), CommandError> {
    // Each type of service would get its own copy of rmcp's code.
    let handler = handler.into_dyn();
    let failure = |error: &dyn std::fmt::Display| {
        CommandError::work(format!("the MCP client cannot be served: {error}"), "see the log")
    };
    let (input, output) = stdio_pipes();
    let (to_server, from_client) = tokio::io::duplex(PIPE);
    let (to_client, from_server) = tokio::io::duplex(PIPE);
    let (replies, lines) = tokio::sync::mpsc::channel(64);
    let (report, cut_off) = mpsc::channel();
    let transport = AnswerLimit::new(AsyncRwTransport::new_server(from_client, to_client), move |reason: &str| {
        drop(report.send(reason.to_owned()));
    });
    let served = async {
        let server = match handler.serve(transport).await {
            Ok(server) => server,
            // A client that disconnects before it initializes is not an error.
            Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(error) => return Err(failure(&error)),
        };
        let ended = server.waiting().await;
        if let Ok(reason) = cut_off.try_recv() {
            let problem = format!("the connection to the MCP client was ended: {reason}");
            return Err(CommandError::work(problem, "read each answer before you send many further requests"));
        }
        ended.map(drop).map_err(|error| failure(&error))
    };
    let checking = checked_lines::check(input, to_server, replies.clone());
    let failed = CancellationToken::new();
    let serving = async {
        let checked = async {
            checking.await;
            // The server ends by itself when its input has ended.
            std::future::pending().await
        };
        let served = tokio::select! {
            served = served => served,
            served = checked => served,
        };
        if served.is_err() {
            failed.cancel();
        }
        served
    };
    let writing = async {
        let copying = checked_lines::copy(from_server, replies);
        // After a failure, the client may have stopped reading.
        let abandoned = async {
            failed.cancelled().await;
            tokio::time::sleep(FLUSH_TIMEOUT).await;
        };
        tokio::select! {
            _ = async { tokio::join!(copying, checked_lines::write(lines, output)) } => {}
            () = abandoned => {}
        }
    };
    let connected = async { tokio::join!(serving, writing).0 };
    tokio::select! {
        biased;
        () = ended => Ok(()),
        served = connected => served,
    }
}

/// Returns the plan with an additional agent, whose only mode has the whole service.
fn single_service_plan(
    service: &str,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(Plan, ModeId), CommandError> {
    let plan = workspace::plan(global, folders, output)?;
    let entry = services::find(&plan, service)?;
    standalone::check(entry).map_err(|error| {
        let help = match error {
            StandaloneError::HasOwner { .. } => "choose another service",
            StandaloneError::Planned { .. } => "see `skein services`",
        };
        CommandError::usage(error.to_string(), help)
    })?;
    let plan = workspace::plan_with(global, folders, output, standalone::manifest(&entry.manifest.name))?;
    Ok((plan, standalone::mode()))
}
