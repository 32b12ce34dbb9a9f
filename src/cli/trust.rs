//! `skein trust`: shows what a project would have Skein use, and stores the user's consent to exactly that state.

mod view;

use std::io::{BufRead as _, IsTerminal as _};

use clap::Args;
use serde_json::json;

use super::Global;
use super::folders::Folders;
use super::output::{CommandError, CommandOutput, display_line};
use super::workspace::trust_failure;
use crate::principal::Principal;
use crate::trust::{ProjectFiles, TrustState, TrustStore};
pub(super) use view::access_lines;
use view::describe;

#[derive(Debug, Args)]
pub(super) struct TrustArgs {
    /// Trust without asking
    #[arg(long, short)]
    yes: bool,
    /// Revoke the trust
    #[arg(long, conflicts_with = "yes")]
    revoke: bool,
    /// Trust it for the sessions of this principal of `skein serve`
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// Only print whether the project is trusted
    #[arg(long, conflicts_with_all = ["yes", "revoke"])]
    status: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(
    args: &TrustArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let project = ProjectFiles::find(&folders.cwd).map_err(|error| trust_failure(&error))?;
    let Some(project) = project else {
        let help = "`skein new agent NAME` makes one";
        return Err(CommandError::usage("there is no .skein/ or .mcp.json here or in a folder above", help));
    };
    let folders = &of_named_principal(args, folders)?;
    let mut store = TrustStore::open(&folders.own_data()).map_err(|error| trust_failure(&error))?;
    if args.revoke {
        store.revoke(&project).map_err(|error| trust_failure(&error))?;
    } else if !args.status && store.trust_of(&project) != TrustState::Trusted {
        describe(&project, &store, global, folders, output)?;
        if !args.yes && !confirm(USE_FILES, output)? {
            return Err(CommandError::work("the project was not trusted", "answer y, or pass --yes"));
        }
        store.trust(&project).map_err(|error| trust_failure(&error))?;
    }
    let trust = store.trust_of(&project);
    if args.json {
        let changes: Vec<_> =
            store.changes(&project).iter().map(|(file, since)| json!({"file": file, "since": since})).collect();
        let files: Vec<_> = project.files.keys().map(|path| path.display().to_string()).collect();
        output.json(&json!({
            "project": project.root.display().to_string(), "trust": trust, "hash": project.hash, "files": files,
            "changes": changes,
        }));
    } else {
        let says = match trust {
            TrustState::Trusted => "trusted as it is now; any change of these files ends that",
            TrustState::Changed => "changed since it was trusted: not used",
            TrustState::Unknown => "not trusted: not used",
        };
        output.line(&format!("{}: {says}", display_line(&project.root.display().to_string())));
    }
    Ok(())
}

/// Returns the folders of the principal that the arguments name, by default `local`. Fails if it is no name.
fn of_named_principal(args: &TrustArgs, folders: &Folders) -> Result<Folders, CommandError> {
    let Some(name) = &args.principal else { return Ok(folders.clone()) };
    let principal = Principal::new(name).map_err(|error| {
        let help = "`skein token list` shows the names; leave --principal out for yourself";
        CommandError::usage(display_line(&error.to_string()), help)
    })?;
    Ok(folders.of_principal(&principal, &folders.cwd))
}

/// Asks the user at a terminal about a project that is not trusted. If the user declines, the command prints a note and
/// continues without the project.
pub(super) fn offer(global: &Global, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Ok(());
    }
    // The manifest loader reports files that cannot be read.
    let Ok(Some(project)) = ProjectFiles::find(&folders.cwd) else { return Ok(()) };
    let mut store = TrustStore::open(&folders.data).map_err(|error| trust_failure(&error))?;
    if store.trust_of(&project) == TrustState::Trusted {
        return Ok(());
    }
    describe(&project, &store, global, folders, output)?;
    if confirm(USE_FILES, output)? {
        store.trust(&project).map_err(|error| trust_failure(&error))?;
    }
    Ok(())
}

const USE_FILES: &str = "Use these files?";

/// Asks a yes-or-no question; the default is no. Fails without a terminal.
pub(super) fn confirm(question: &str, output: &mut CommandOutput) -> Result<bool, CommandError> {
    if !std::io::stdin().is_terminal() {
        return Err(CommandError::usage("there is no terminal to ask on", "look at the files, then pass --yes"));
    }
    // Discard input typed before the question was visible.
    rustix::termios::tcflush(std::io::stdin(), rustix::termios::QueueSelector::IFlush).map_err(|error| {
        CommandError::work(format!("no terminal to ask: {error}"), "look at the files, then pass --yes")
    })?;
    output.aside(&format!("{question} [y/N] "));
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    Ok(read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes"))
}
