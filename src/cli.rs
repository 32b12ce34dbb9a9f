//! The command line: reads arguments, environment and folders, calls the library, prints, and chooses the exit code.
//!
//! Invariant: only this module prints, reads the environment or exits. No other module uses it.

mod acp;
mod agent_flags;
mod agents;
mod app_gallery;
mod apps;
mod attach;
mod attention;
mod audit;
mod audit_sink;
mod chat;
mod check;
mod configure;
mod consent;
mod console;
mod diff;
mod doctor;
mod elicit;
mod environment;
mod folders;
mod graph;
mod import;
mod rule_store;
mod keyboard;
mod keys;
mod logging;
mod logins;
mod managed_files;
mod mcp;
mod models;
mod new;
mod session_flags;
mod open_browser;
mod output;
mod permissions;
mod principal;
mod principal_rules;
mod private_files;
mod progress;
mod recipe;
mod report;
#[cfg(test)]
mod reference_tests;
mod reload;
mod retention;
mod route;
mod run;
mod sandbox;
mod serve;
mod server_setup;
mod services;
mod sessions;
mod settings_file;
mod period_start;
mod standalone;
mod store;
mod store_failure;
mod store_flag;
mod runtime;
mod telemetry;
mod token;
mod tools;
mod top_of_mind;
mod upgrade;
mod trust;
mod tutorial;
mod whole_file;
mod workspace;
mod workspace_loader;
mod wrap;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::PossibleValue;
use clap::error::{ContextKind, ContextValue};
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::manifest::ApprovalLevel;
use crate::sandbox::Enforcement;
use crate::services::BuiltinRegistry;
use folders::Folders;
use output::{CommandError, CommandOutput};

/// The least number of arenas of the memory allocator.
const MIN_ARENAS: usize = 2;

/// Serve many agents, each mode with exactly its services
#[derive(Debug, Parser)]
#[command(name = "skein", version, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "New to Skein? `skein tutorial` teaches it step by step.")]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Args)]
struct Global {
    /// Also read manifests from this folder or file
    ///
    /// These manifests override all others.
    #[arg(long, value_name = "DIR", global = true)]
    manifests: Vec<PathBuf>,
    /// Set when tool calls need consent, for every mode
    #[arg(long, value_name = "LEVEL", global = true, env = "SKEIN_APPROVAL")]
    approval: Option<ApprovalLevel>,
    /// Set whether processes must run in their sandbox
    #[arg(long, value_name = "ENFORCEMENT", global = true)]
    sandbox: Option<SandboxFlag>,
    /// Use this profile of your config, or the one in this file
    ///
    /// A value with a slash, or that ends with .yaml, .yml or .json, is a file.
    #[arg(long, value_name = "NAME", global = true, env = "SKEIN_PROFILE")]
    profile: Option<String>,
    /// Also apply the managed settings in this file
    ///
    /// They tighten those of /etc/skein/config.yaml, which always apply.
    #[arg(long, value_name = "FILE", global = true)]
    managed: Option<PathBuf>,
    /// Record service requests and answers in this file
    #[arg(long, value_name = "FILE", global = true)]
    record: Option<PathBuf>,
    /// Answer from a recording instead of starting services
    #[arg(long, value_name = "FILE", global = true, conflicts_with = "record")]
    replay: Option<PathBuf>,
    #[arg(skip)]
    built_in: BuiltinServices,
}

impl Global {
    /// Returns the file that `--profile` names. `None` if it names a profile of a config, or nothing.
    fn profile_file(&self) -> Option<&Path> {
        let value = self.profile.as_deref()?;
        let is_file = value.contains('/') || [".yaml", ".yml", ".json"].iter().any(|ending| value.ends_with(ending));
        is_file.then(|| Path::new(value))
    }
}

/// The compiled-in services, and the manifests of those that do not ship with Skein. [`main_with`] sets both.
#[derive(Debug, Clone, Default)]
struct BuiltinServices {
    registry: BuiltinRegistry,
    manifests: BTreeMap<PathBuf, Vec<u8>>,
}

impl clap::ValueEnum for ApprovalLevel {
    fn value_variants<'a>() -> &'a [Self] {
        &ApprovalLevel::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            ApprovalLevel::Auto => "Run every call",
            ApprovalLevel::Ask => "Ask about calls that are not read-only",
            ApprovalLevel::Smart => "Ask unless a judge finds the call read-only",
            ApprovalLevel::ReadOnly => "Refuse calls that are not read-only",
            ApprovalLevel::Deny => "Refuse every call",
        };
        Some(PossibleValue::new(self.as_str()).help(help))
    }
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum SandboxFlag {
    /// Start no process whose profile this machine cannot enforce
    Required,
    /// Enforce what this machine can, with a notice
    Preferred,
    /// Start every process without a sandbox
    Off,
}

impl From<SandboxFlag> for Enforcement {
    fn from(flag: SandboxFlag) -> Self {
        match flag {
            SandboxFlag::Required => Enforcement::Required,
            SandboxFlag::Preferred => Enforcement::Preferred,
            SandboxFlag::Off => Enforcement::Off,
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the Agent Client Protocol on stdio, for editors
    Acp(acp::AcpArgs),
    /// Serve clients over HTTP, each with a token
    Serve(serve::ServeArgs),
    /// See and control agents in your browser
    Console(console::ConsoleArgs),
    /// Run one prompt and print the answer
    Run(run::RunArgs),
    /// Start an interactive session
    Chat(chat::ChatArgs),
    /// Show which mode a prompt is routed to, and why
    Route(route::RouteArgs),
    /// Validate manifests and the service graph
    ///
    /// Exits with 6 if there is an error.
    Check(check::CheckArgs),
    /// Show the service graph
    Graph(graph::GraphArgs),
    /// List agents and their modes, or show one
    Agents(agents::AgentsArgs),
    /// List services
    Services(services::ServicesArgs),
    /// List, show, export, delete and search stored sessions
    Sessions(sessions::SessionsArgs),
    /// List, export and verify the audit log of decisions
    Audit(audit::AuditArgs),
    /// Report what agents did, changed, asked and spent
    Report(report::ReportArgs),
    /// List, open and export the apps that modes have made
    Apps(apps::AppsArgs),
    /// Show the tools of a mode, and why others are excluded
    Tools(tools::ToolsArgs),
    /// List permission rules, or show the decision for a call
    Permissions(permissions::PermissionsArgs),
    /// Serve tools, agents or one service as an MCP server on stdio
    Mcp(mcp::McpArgs),
    /// Run a command inside a sandbox
    ///
    /// Exits with the command's code, or 128+N for signal N. The code is 125 if the sandbox cannot be set up, 126 if the
    /// command cannot run, and 127 if it is not found.
    Sandbox(sandbox::SandboxArgs),
    /// Write a manifest template
    New(new::NewArgs),
    /// Import a goose config, MCP servers from JSON, or memories
    ///
    /// Reads a goose config.yaml, a JSON file with MCP servers, or goose's memories.
    Import(import::ImportArgs),
    /// Choose a model, store its key, and test it
    Configure(configure::ConfigureArgs),
    /// Find problems in this set-up and show their fixes
    ///
    /// Exits with 1 if there is an error.
    Doctor(doctor::DoctorArgs),
    /// Trust this project's .skein/ and .mcp.json as they are now
    Trust(trust::TrustArgs),
    /// Walk through a tutorial and check each step, or list them
    Tutorial(tutorial::TutorialArgs),
    /// Create, list and revoke tokens for `skein serve`
    Token(token::TokenArgs),
    /// Delete everything of a principal of `skein serve`, or list its rules
    Principal(principal::PrincipalArgs),
    /// Move stored data to another store, or remove old sessions
    Store(store::StoreArgs),
    /// Print a shell completion script
    Completions { shell: clap_complete::Shell },
    /// Write a man page of each command to a folder
    ///
    /// `scripts/release` runs this command.
    #[command(hide = true)]
    ManPages { folder: PathBuf },
    /// Stop processes that a killed skein left behind
    ///
    /// Skein starts this command itself.
    #[command(hide = true)]
    Reaper,
}

impl Command {
    /// Returns the command's name as typed, for the log. Arguments are left out because they may contain secrets.
    fn name(&self) -> &'static str {
        match self {
            Command::Acp(_) => "acp",
            Command::Serve(_) => "serve",
            Command::Console(_) => "console",
            Command::Run(_) => "run",
            Command::Chat(_) => "chat",
            Command::Route(_) => "route",
            Command::Check(_) => "check",
            Command::Graph(_) => "graph",
            Command::Agents(_) => "agents",
            Command::Services(_) => "services",
            Command::Sessions(_) => "sessions",
            Command::Audit(_) => "audit",
            Command::Report(_) => "report",
            Command::Apps(_) => "apps",
            Command::Tools(_) => "tools",
            Command::Permissions(_) => "permissions",
            Command::Mcp(_) => "mcp",
            Command::Sandbox(_) => "sandbox",
            Command::New(_) => "new",
            Command::Import(_) => "import",
            Command::Configure(_) => "configure",
            Command::Doctor(_) => "doctor",
            Command::Trust(_) => "trust",
            Command::Tutorial(_) => "tutorial",
            Command::Token(_) => "token",
            Command::Principal(_) => "principal",
            Command::Store(_) => "store",
            Command::Completions { .. } => "completions",
            Command::ManPages { .. } => "man-pages",
            Command::Reaper => "reaper",
        }
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    // Making the built-in services takes longer than these.
    run_without_services(&arguments).unwrap_or_else(|| main_with(BuiltinRegistry::builtin(), &[]))
}

/// Runs the parts of the program that use no manifests and must start quickly. Returns `None` if the arguments name
/// another part.
fn run_without_services(arguments: &[OsString]) -> Option<ExitCode> {
    let first = arguments.first()?;
    // The sandbox process has one thread and gets no arguments, no environment and no separate limits.
    if first == crate::sandbox::SANDBOX_PROCESS_ARGUMENT {
        return Some(crate::sandbox::run_sandbox_process());
    }
    // Helpers of git inside a sandbox.
    if let Some(code) = crate::sandbox::git::run_inside(arguments) {
        return Some(code);
    }
    if let Err(failure) = harden() {
        return Some(end_with(&failure));
    }
    // The parser of documents gets no arguments and no environment.
    if first == crate::services::DOCUMENT_PARSER_ARGUMENT {
        let parsed = crate::services::run_document_parser(std::io::stdin().lock(), std::io::stdout().lock());
        return Some(if parsed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    sandbox::run_short(arguments)
}

/// Returns how many arenas the memory allocator may use. The commands that serve many clients have as many threads as
/// there are processors; the threads for work that blocks share the arenas.
fn memory_arenas(command: &Command) -> usize {
    match command {
        Command::Serve(_) | Command::Console(_) => {
            std::thread::available_parallelism().map_or(MIN_ARENAS, |count| count.get().max(MIN_ARENAS))
        }
        _ => MIN_ARENAS,
    }
}

fn harden() -> Result<(), CommandError> {
    crate::process::harden().map_err(|error| {
        let problem = format!("skein cannot protect its own memory: {error}");
        CommandError::work(problem, "check the limits and the security policy it runs under")
    })
}

/// Runs the program with these built-in services. `manifests` holds a display path and a text for each service that
/// does not ship with Skein.
pub fn main_with(registry: BuiltinRegistry, manifests: &[(&str, &str)]) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(code) = run_without_services(&arguments) {
        return code;
    }
    if let Err(failure) = harden() {
        return end_with(&failure);
    }
    let manifests = manifests.iter().map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec())).collect();
    let short = acp::parse_short(&arguments).map(|(global, args)| Cli { global, command: Command::Acp(args) });
    let cli = match short.map_or_else(Cli::try_parse, Ok) {
        Ok(mut cli) => {
            cli.global.built_in = BuiltinServices { registry, manifests };
            cli
        }
        Err(error) => {
            let error = without_internal_commands(error);
            // Clap prints help to stdout and errors to stderr, and has the exit code of each.
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            let mut output = CommandOutput::default();
            output.note_write(error.print());
            // Clap names the flag in its error, but the value came from the environment variable.
            let is_flag = |arg: OsString| arg.to_string_lossy().starts_with("--approval");
            let value = error.get(ContextKind::InvalidValue).map(ToString::to_string);
            if value.is_some() && value == std::env::var("SKEIN_APPROVAL").ok() && !std::env::args_os().any(is_flag) {
                output.note("this value comes from the environment variable SKEIN_APPROVAL");
            }
            return ExitCode::from(output.finish(code));
        }
    };
    if let Command::Reaper = cli.command {
        // The reaper starts without an environment, so it has no folders to log to and must not create any.
        crate::process::run_reaper(std::io::stdin());
        return ExitCode::SUCCESS;
    }
    // `skein mcp --attach` does not run in the user's environment, so it has no folders either.
    if let Command::Mcp(args) = &cli.command
        && let Some(ended) = args.attach()
    {
        return ended.map_or_else(|failure| end_with(&failure), |()| ExitCode::SUCCESS);
    }
    // A process that enters a sandbox has one thread and needs no folders.
    if let Command::Sandbox(args) = &cli.command
        && let Some(code) = args.enter()
    {
        return code;
    }
    let mut output = CommandOutput::default();
    // These need no folders.
    if let Some(described) = describe_command_line(&cli.command, &mut output) {
        return match described {
            Ok(()) => ExitCode::from(output.finish(0)),
            Err(failure) => end_with(&failure),
        };
    }
    let folders = match Folders::from_environment() {
        Ok(folders) => folders,
        Err(error) => return end_with(&error.failure()),
    };
    // The exit code is the command's, and there is nothing to log.
    if let Command::Sandbox(args) = &cli.command {
        return sandbox::run(args, &cli.global, &folders);
    }
    // The log may start a thread.
    crate::process::limit_arenas(memory_arenas(&cli.command));
    // `doctor` changes nothing: it only reports files that other users can access.
    let protected = if let Command::Doctor(_) = cli.command { Ok(()) } else { private_files::protect(&folders) };
    let (warning, export) = logging::start(&cli.global, &folders);
    if let Some(warning) = warning {
        output.note(&warning);
    }
    if let Err(error) = protected {
        tracing::warn!(%error, "what skein keeps could not be closed to other users");
    }
    if !matches!(cli.command, Command::Doctor(_)) {
        upgrade::record_new_user(&folders);
    }
    let command = cli.command.name();
    let code = match run(cli, &folders, &mut output) {
        Ok(()) => 0,
        Err(failure) => {
            audit_sink::record_refusal(&failure, &folders);
            failure.print(&mut output);
            failure.code()
        }
    };
    let code = output.finish(code);
    tracing::info!(command, code, "command finished");
    // Waits for the receiver of telemetry.
    drop(export);
    ExitCode::from(code)
}

/// Removes hidden commands from the suggestions of a parse error.
fn without_internal_commands(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::Strings(mut names)) = error.remove(ContextKind::SuggestedSubcommand) else { return error };
    names.retain(|name| Cli::command().find_subcommand(name).is_none_or(|command| !command.is_hide_set()));
    if !names.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
    }
    error
}

/// Prints an error that occurs before a command starts, and returns its exit code.
fn end_with(failure: &CommandError) -> ExitCode {
    let mut output = CommandOutput::default();
    failure.print(&mut output);
    ExitCode::from(output.finish(failure.code()))
}

fn run(cli: Cli, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    let global = &cli.global;
    match cli.command {
        Command::Acp(args) => acp::run(&args, global, folders, output),
        Command::Serve(args) => serve::run(&args, global, folders, output),
        Command::Console(args) => console::run(&args, global, folders, output),
        Command::Run(args) => run::run(&args, global, folders, output),
        Command::Chat(args) => chat::run(&args, global, folders, output),
        Command::Route(args) => route::run(&args, global, folders, output),
        Command::Check(args) => check::run(&args, global, folders, output),
        Command::Graph(args) => graph::run(&args, global, folders, output),
        Command::Agents(args) => agents::run(&args, global, folders, output),
        Command::Services(args) => services::run(&args, global, folders, output),
        Command::Sessions(args) => sessions::run(&args, folders, output),
        Command::Audit(args) => audit::run(&args, folders, output),
        Command::Report(args) => report::run(&args, folders, output),
        Command::Apps(args) => apps::run(&args, folders, output),
        Command::Tools(args) => tools::run(&args, global, folders, output),
        Command::Permissions(args) => permissions::run(&args, global, folders, output),
        Command::Mcp(args) => mcp::run(&args, global, folders, output),
        Command::New(args) => new::run(&args, folders, output),
        Command::Import(args) => import::run(&args, global, folders, output),
        Command::Configure(args) => configure::run(&args, global, folders, output),
        Command::Doctor(args) => doctor::run(&args, global, folders, output),
        Command::Trust(args) => trust::run(&args, global, folders, output),
        Command::Tutorial(args) => tutorial::run(&args, folders, output),
        Command::Token(args) => token::run(&args, global, folders, output),
        Command::Principal(args) => principal::run(&args, folders, output),
        Command::Store(args) => store::run(&args, folders, output),
        Command::Completions { .. } | Command::ManPages { .. } | Command::Reaper | Command::Sandbox(_) => Ok(()),
    }
}

/// Prints or writes a description of the command line. `None` for every other command.
fn describe_command_line(command: &Command, output: &mut CommandOutput) -> Option<Result<(), CommandError>> {
    match command {
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "skein", &mut script);
            output.text(&String::from_utf8_lossy(&script));
            Some(Ok(()))
        }
        Command::ManPages { folder } => Some(write_man_pages(folder)),
        _ => None,
    }
}

/// Writes one man page per command, without the hidden ones. Fails if a file cannot be written.
fn write_man_pages(folder: &Path) -> Result<(), CommandError> {
    clap_mangen::generate_to(Cli::command(), folder).map_err(|error| {
        let problem = format!("cannot write man pages to `{}`: {error}", folder.display());
        CommandError::work(problem, "name a folder that exists and that you can write to")
    })
}
