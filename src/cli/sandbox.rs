//! `skein sandbox`: runs a command inside a sandbox profile, or explains which layers enforce the profile.

mod enter;
mod foreground;
pub(super) mod machine;
mod network;
mod new_paths;
mod signals;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use clap::{Args, Parser, ValueEnum};
use rustix::process::Signal;

use super::folders::Folders;
use super::output::{CommandError, CommandOutput};
use super::{Global, SandboxFlag, workspace};
use crate::process::minimal_environment;
use crate::project::ModeRequest;
use crate::sandbox::{
    CERTIFICATE_VARIABLES, CacheAccess, Enforcement, FileAccess, GitAccess, LayerRestriction, NetworkAccess,
    OtherHosts, PortAccess, ProtectedState, SandboxChild, SandboxCommand, SandboxContext, SandboxError, SandboxLimits,
    SandboxProcess, SandboxProfile, SingleSandbox, SpawnError, TerminalSession, TerminalUse, WritePath, explain,
    explain_text, probe_layers, protected_paths,
};
use foreground::Foreground;
use network::CommandProxy;
pub(super) use network::{ListOnly, host_resources};
use new_paths::NewPaths;
use signals::ForwardedSignals;

/// Exit codes as those of `env` and `timeout`.
const CANNOT_SET_UP: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
const SIGNALLED: i32 = 128;
const DEFAULT_PROCESSES: u32 = 4096;
const DEFAULT_FILES: FilesFlag = FilesFlag::Workspace;
const DEFAULT_NETWORK: &str = "off";

/// Variables of the terminal, which commands get in addition to the usual ones.
const TERMINAL_VARIABLES: [&str; 5] = ["TERM", "COLORTERM", "NO_COLOR", "CLICOLOR", "FORCE_COLOR"];

#[derive(Debug, Args)]
pub(super) struct SandboxArgs {
    /// Use the sandbox profile of a mode of this agent
    #[arg(long, short, conflicts_with_all = ["files", "write", "read", "hide", "network"])]
    agent: Option<String>,
    /// Choose the mode; default: the agent's default mode
    #[arg(long, short, requires = "agent")]
    mode: Option<String>,
    /// Set which files the command may write
    #[arg(long, value_enum, default_value_t = DEFAULT_FILES)]
    files: FilesFlag,
    /// Let the command write this path too
    #[arg(long, value_name = "PATH")]
    write: Vec<String>,
    /// Let the command read this path although it is hidden
    #[arg(long, value_name = "PATH")]
    read: Vec<String>,
    /// Hide this path from the command
    #[arg(long, value_name = "PATH")]
    hide: Vec<String>,
    /// Set which hosts the command reaches: off, on or a list
    #[arg(long, value_name = "HOSTS", default_value = DEFAULT_NETWORK)]
    network: String,
    /// Show which layer of the kernel enforces each line
    #[arg(long)]
    explain: bool,
    /// Print the explanation as JSON
    #[arg(long, requires = "explain")]
    json: bool,
    /// Enter a running sandbox, as Skein does in an editor's terminal
    #[arg(long, value_name = "ID", hide = true)]
    enter: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required_unless_present = "explain")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum FilesFlag {
    /// Write nothing, and read only system folders
    None,
    /// Write nothing
    ReadOnly,
    /// Write the current folder
    Workspace,
    /// Write everything but protected and hidden paths
    Full,
}

impl From<FilesFlag> for FileAccess {
    fn from(files: FilesFlag) -> Self {
        match files {
            FilesFlag::None => FileAccess::None,
            FilesFlag::ReadOnly => FileAccess::ReadOnly,
            FilesFlag::Workspace => FileAccess::Workspace,
            FilesFlag::Full => FileAccess::Full,
        }
    }
}

impl SandboxArgs {
    /// Returns the arguments of `skein sandbox -- COMMAND…`, without options. The program begins faster without the
    /// general parser.
    fn of_command(command: &[OsString]) -> Self {
        Self {
            agent: None,
            mode: None,
            files: DEFAULT_FILES,
            write: Vec::new(),
            read: Vec::new(),
            hide: Vec::new(),
            network: DEFAULT_NETWORK.to_owned(),
            explain: false,
            json: false,
            enter: None,
            command: command.to_vec(),
        }
    }

    /// Returns the profile of the mode or of the flags, with the enforcement of `--sandbox`.
    fn profile(
        &self,
        flag: Option<SandboxFlag>,
        global: Option<&Global>,
        folders: &Folders,
        output: &mut CommandOutput,
    ) -> Result<SandboxProfile, CommandError> {
        let profile = match (&self.agent, global) {
            (None, _) | (_, None) => {
                let profile = self.profile_of_flags();
                SandboxProfile { enforce: flag.map_or(profile.enforce, Enforcement::from), ..profile }
            }
            // The plan has applied `--sandbox`, within managed settings.
            (Some(agent), Some(global)) => {
                let plan = workspace::plan(global, folders, output)?;
                let id = ModeRequest::new(Some(agent), self.mode.as_deref()).find(&plan)?;
                let no_profile = || {
                    let help = "choose a mode with the tool group `command`, or state the limits with --files";
                    CommandError::usage(format!("mode `{id}` runs no commands, so it has no sandbox profile"), help)
                };
                plan.mode_sandbox(&id).cloned().ok_or_else(no_profile)?
            }
        };
        match profile.enforce {
            Enforcement::Required | Enforcement::Preferred => Ok(profile),
            Enforcement::Off => Err(CommandError::usage(
                "`skein sandbox` always uses a sandbox",
                "run the command without `skein sandbox`, or use `--sandbox preferred`",
            )),
        }
    }

    fn profile_of_flags(&self) -> SandboxProfile {
        SandboxProfile {
            files: self.files.into(),
            write: self.write.iter().map(|path| write_path(path)).collect(),
            read: self
                .read
                .iter()
                .map(|path| crate::sandbox::ReadPath { path: path.clone(), ask: Vec::new() })
                .collect(),
            hide: self.hide.clone(),
            network: network(&self.network),
            caches: CacheAccess::Private,
            git: GitAccess::Off,
            ports: PortAccess::Off,
            sockets: Vec::new(),
            devices: Vec::new(),
            limits: SandboxLimits { processes: Some(DEFAULT_PROCESSES), memory: None, file_size: None },
            enforce: Enforcement::Required,
        }
    }
}

fn write_path(text: &str) -> WritePath {
    if text == "git-ignored" { WritePath::GitIgnored } else { WritePath::Path(text.to_owned()) }
}

fn network(text: &str) -> NetworkAccess {
    let (allow, otherwise) = match text {
        "off" => (Vec::new(), OtherHosts::Off),
        "on" => (Vec::new(), OtherHosts::On),
        hosts => (hosts.split(',').map(str::to_owned).collect(), OtherHosts::Off),
    };
    NetworkAccess { allow, deny: Vec::new(), otherwise }
}

/// `skein sandbox` without a mode, as the only command. Parsing all commands takes longer than the rest of the start.
#[derive(Debug, Parser)]
#[command(name = "skein", no_binary_name = true, disable_help_flag = true)]
struct ShortCommandLine {
    #[arg(long)]
    sandbox: Option<SandboxFlag>,
    #[command(flatten)]
    args: SandboxArgs,
}

/// Runs `skein sandbox` if these are its arguments and they need no manifests. Returns `None` for every other command
/// line, also for one with an error, which is then reported for the whole program.
pub(super) fn run_short(arguments: &[OsString]) -> Option<ExitCode> {
    let (name, rest) = arguments.split_first()?;
    let has_variables = ["SKEIN_APPROVAL", "SKEIN_PROFILE"].iter().any(|name| std::env::var_os(name).is_some());
    if name != "sandbox" || has_variables {
        return None;
    }
    let ShortCommandLine { sandbox, args } = parse_short(rest)?;
    if args.agent.is_some() || args.explain || args.enter.is_some() {
        return None;
    }
    let folders = Folders::from_environment().ok()?;
    Some(finish(|output| start(&args, sandbox, None, &folders, output)))
}

/// Returns `None` if the arguments have an error.
fn parse_short(arguments: &[OsString]) -> Option<ShortCommandLine> {
    match arguments {
        [separator, command @ ..] if separator == "--" && !command.is_empty() => {
            Some(ShortCommandLine { sandbox: None, args: SandboxArgs::of_command(command) })
        }
        _ => ShortCommandLine::try_parse_from(arguments).ok(),
    }
}

/// Runs the command. Returns its exit code.
pub(super) fn run(args: &SandboxArgs, global: &Global, folders: &Folders) -> ExitCode {
    finish(|output| start(args, global.sandbox, Some(global), folders, output))
}

/// Prints an error of `start`.
fn finish(start: impl FnOnce(&mut CommandOutput) -> Result<u8, SandboxFailure>) -> ExitCode {
    let mut output = CommandOutput::default();
    let code = match start(&mut output) {
        Ok(code) => code,
        Err(failure) => {
            failure.error.print(&mut output);
            failure.code
        }
    };
    ExitCode::from(output.finish(code))
}

/// An error before the command runs.
struct SandboxFailure {
    code: u8,
    error: CommandError,
}

impl SandboxFailure {
    fn new(code: u8, problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self { code, error: CommandError::work(problem, help) }
    }
}

impl From<CommandError> for SandboxFailure {
    fn from(error: CommandError) -> Self {
        Self { code: CANNOT_SET_UP, error }
    }
}

impl From<SandboxError> for SandboxFailure {
    fn from(error: SandboxError) -> Self {
        let source = std::error::Error::source(&error).map_or_else(String::new, |source| format!(": {source}"));
        Self::new(CANNOT_SET_UP, format!("{error}{source}"), error.help())
    }
}

impl From<SpawnError> for SandboxFailure {
    fn from(error: SpawnError) -> Self {
        let (code, help) = match &error {
            SpawnError::NotFound { .. } => (NOT_FOUND, "check the name and PATH; hidden folders are not searched"),
            SpawnError::Program { .. } => (CANNOT_RUN, "check that the file is a program that you may run"),
            SpawnError::WorkingFolder { .. } => (CANNOT_RUN, "start in a folder that the sandbox shows"),
            SpawnError::Ended { .. } => (CANNOT_SET_UP, "run the command again"),
        };
        Self::new(code, error.to_string(), help)
    }
}

fn start(
    args: &SandboxArgs,
    flag: Option<SandboxFlag>,
    global: Option<&Global>,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<u8, SandboxFailure> {
    let mut profile = args.profile(flag, global, folders, output)?;
    let (restriction, enforcement) = test_settings()?;
    if enforcement == Enforcement::Preferred {
        profile.enforce = enforcement;
    }
    if args.explain {
        return explain_profile(&profile, &context(folders)?, &restriction, args.json, output);
    }
    let Some((program, rest)) = args.command.split_first() else {
        return Err(CommandError::usage("no command to run", "write it after `--`").into());
    };
    // There is no session whose user could be asked.
    profile.git = GitAccess::Off;
    profile.ports = PortAccess::Off;
    let watch = NewPaths::watch(&profile, &context(folders)?, folders).map_err(SandboxError::from)?;
    let code = run_command(program, rest, &profile, &restriction, folders, output)?;
    watch.withdraw(output);
    Ok(code)
}

fn run_command(
    program: &OsString,
    rest: &[OsString],
    profile: &SandboxProfile,
    restriction: &LayerRestriction,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<u8, SandboxFailure> {
    let single = SingleSandbox::start(profile, restriction, || context(folders))?;
    let foreground = Foreground::take();
    let duplicate = |fd: std::os::fd::BorrowedFd<'_>| {
        fd.try_clone_to_owned().map_err(|error| CommandError::work(error.to_string(), "check the limit of open files"))
    };
    let command = SandboxCommand {
        program: program.clone(),
        args: rest.to_vec(),
        env: environment(folders),
        cwd: folders.cwd.clone(),
        stdin: duplicate(io::stdin().as_fd())?,
        stdout: duplicate(io::stdout().as_fd())?,
        stderr: duplicate(io::stderr().as_fd())?,
        terminal: if foreground.is_some() { TerminalUse::Foreground } else { TerminalUse::None },
    };
    let mut notices = Vec::new();
    if let Some(single) = single {
        notices = single.notices().to_vec();
        notices.iter().for_each(|notice| output.note(notice));
        let pause = || foreground.iter().for_each(Foreground::pause);
        let on_pause = foreground.as_ref().map(|_| &pause as &dyn Fn());
        if let Some(status) = single.run(&command, on_pause)? {
            return Ok(exit_code(status));
        }
    }
    run_in_process(command, profile, &context(folders)?, restriction, &notices, foreground, output)
}

/// Runs the command in a sandbox process, which also machines with fewer layers have, and networks need. `notices` were
/// printed before.
fn run_in_process(
    command: SandboxCommand,
    profile: &SandboxProfile,
    context: &SandboxContext,
    restriction: &LayerRestriction,
    notices: &[String],
    foreground: Option<Foreground>,
    output: &mut CommandOutput,
) -> Result<u8, SandboxFailure> {
    let process = SandboxProcess::start(profile, context, restriction)?;
    for notice in process.notices().iter().filter(|notice| !notices.contains(notice)) {
        output.note(notice);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CommandError::work(error.to_string(), "check the limit of open files"))?;
    let proxy = {
        let _context = runtime.enter();
        let line = command.program.to_string_lossy().into_owned();
        CommandProxy::serve(&profile.network, process.take_ports(), line)?
    };
    let status = runtime.block_on(async {
        // A signal that arrives while the command starts is for the command.
        let signals = ForwardedSignals::listen()?;
        Ok::<_, SandboxFailure>(wait(process.spawn(command)?, signals, foreground.as_ref()).await)
    })?;
    drop(foreground);
    process.stop();
    if let Some(proxy) = proxy {
        for refusal in runtime.block_on(proxy.stop()) {
            output.note(&refusal);
        }
    }
    Ok(exit_code(status))
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| SIGNALLED + status.signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn context(folders: &Folders) -> Result<SandboxContext, SandboxFailure> {
    let program = std::env::current_exe().map_err(|error| {
        CommandError::work(
            format!("skein does not know its own program: {error}"),
            "check that skein itself can be run",
        )
    })?;
    Ok(SandboxContext {
        program,
        roots: vec![folders.cwd.clone()],
        home: folders.home.clone(),
        hidden: folders.paths_to_hide(),
        scratch: None,
        caches: folders.sandbox_caches(),
        runtime_folder: std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute()),
        readable: Vec::new(),
        sockets: Vec::new(),
        own_files: Vec::new(),
        visible: None,
        terminal: if io::stdin().is_terminal() { TerminalSession::Shared } else { TerminalSession::New },
    })
}

fn environment(folders: &Folders) -> BTreeMap<OsString, OsString> {
    let mut variables = minimal_environment(folders.environment());
    let names = TERMINAL_VARIABLES.iter().chain(&CERTIFICATE_VARIABLES);
    variables.extend(names.filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?))));
    variables
}

/// Reads the layers that a test excludes, and whether it accepts a weaker sandbox. Published programs always use all
/// layers and require them.
pub(super) fn test_settings() -> Result<(LayerRestriction, Enforcement), CommandError> {
    if !cfg!(debug_assertions) {
        return Ok((LayerRestriction::default(), Enforcement::Required));
    }
    let text = std::env::var("SKEIN_TEST_SANDBOX_LAYERS").unwrap_or_default();
    let (text, enforcement) = match text.strip_suffix(",preferred") {
        Some(text) => (text, Enforcement::Preferred),
        None => (text.as_str(), Enforcement::Required),
    };
    let unknown = || CommandError::usage(format!("unknown layers `{text}`"), "correct SKEIN_TEST_SANDBOX_LAYERS");
    Ok((LayerRestriction::parse(text).ok_or_else(unknown)?, enforcement))
}

fn explain_profile(
    profile: &SandboxProfile,
    context: &SandboxContext,
    restriction: &LayerRestriction,
    json: bool,
    output: &mut CommandOutput,
) -> Result<u8, SandboxFailure> {
    let layers = probe_layers(&context.program, &context.caches)?.restricted(restriction);
    let protected = match protected_paths(&context.roots).as_slice() {
        [] => ProtectedState::Absent,
        _ => ProtectedState::Exist,
    };
    let lines = explain(profile, &layers, protected);
    let holds = !lines.iter().any(|line| line.is_unenforced());
    if json {
        output.json(&serde_json::json!({"layers": layers, "lines": lines, "required_holds": holds}));
    } else {
        output.text(&explain_text(&lines));
        let version = layers.landlock_version;
        let namespaces = layers.namespaces.reason().unwrap_or("available");
        output.line(&format!("\nnamespaces: {namespaces}; Landlock: version {version}"));
        output.line(if holds { "`required` holds on this machine" } else { "`required` refuses on this machine" });
    }
    Ok(0)
}

/// Waits for the command, and forwards signals to it.
async fn wait(mut child: SandboxChild, mut signals: ForwardedSignals, foreground: Option<&Foreground>) -> ExitStatus {
    let mut pauses = 0;
    loop {
        tokio::select! {
            state = child.changed() => {
                if let Some(status) = state.ended {
                    return status;
                }
                if let Some(foreground) = foreground.filter(|_| state.pauses > pauses) {
                    foreground.pause();
                    child.signal(Signal::CONT.as_raw());
                }
                pauses = state.pauses;
            }
            signal = signals.next() => child.signal(signal.as_raw()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_without_options_is_parsed_like_any_other() {
        let arguments = ["--", "sh", "-c", "true", "--", "--files"].map(OsString::from);
        let parsed = ShortCommandLine::try_parse_from(&arguments).unwrap();
        let short = parse_short(&arguments).unwrap();
        assert_eq!(format!("{short:?}"), format!("{parsed:?}"));
        assert!(parse_short(&arguments[..1]).is_none(), "there is no command");
    }
}
