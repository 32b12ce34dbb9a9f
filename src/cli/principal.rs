//! `skein principal`: deletes a principal with everything that Skein keeps for it, and lists its rules.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::folders::Folders;
use super::output::{CommandError, CommandOutput, display_line};
use super::principal_rules::PrincipalRules;
use super::retention;
use super::runtime::{self, session_failure};
use super::store_failure::store_failure;
use super::store_flag::StoreFlag;
use crate::agents::TurnLimits;
use crate::permissions::SourcedRule;
use crate::principal::Principal;
use crate::store::{OpenSessionPolicy, StorePlace};

#[derive(Debug, Args)]
pub(super) struct PrincipalArgs {
    #[command(flatten)]
    store: StoreFlag,
    #[command(subcommand)]
    command: PrincipalCommand,
}

#[derive(Debug, Subcommand)]
enum PrincipalCommand {
    /// Delete the sessions, memories, tokens and files of a principal
    ///
    /// Also deletes its usage, corrections, rules, apps, and the key of its pseudonym. The audit log keeps its entries and
    /// still verifies, but they can no longer be traced back to a name. There is no way to undo this.
    Delete(DeleteArgs),
    /// List the rules that a principal keeps with "always" answers
    Rules(RulesArgs),
}

#[derive(Debug, Args)]
struct RulesArgs {
    /// Name of the principal, from `skein token list`
    name: String,
    /// Remove the rule with this number from the store
    #[arg(long, value_name = "N")]
    remove: Option<i64>,
}

#[derive(Debug, Args)]
struct DeleteArgs {
    /// Name of the principal, from `skein token list`
    name: String,
    /// Also delete sessions that are open; their turns fail
    #[arg(long)]
    force: bool,
    /// Also delete its files in this folder of all replicas
    #[arg(long, value_name = "PATH")]
    shared_dir: Option<PathBuf>,
}

pub(super) fn run(args: &PrincipalArgs, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    let place = args.store.place(folders, output)?;
    match &args.command {
        PrincipalCommand::Delete(args) => {
            let policy = if args.force { OpenSessionPolicy::Remove } else { OpenSessionPolicy::Refuse };
            let shared = args.shared_dir.as_ref().map(|folder| folders.cwd.join(folder));
            let folders = Folders { shared, ..folders.clone() };
            delete(&parse_name(&args.name)?, policy, &place, &folders, output)
        }
        PrincipalCommand::Rules(args) => {
            let folders = folders.of_principal(&parse_name(&args.name)?, &folders.cwd);
            match args.remove {
                Some(id) => remove_rule(id, &place, &folders, output),
                None => list_rules(&place, &folders, output),
            }
        }
    }
}

fn parse_name(name: &str) -> Result<Principal, CommandError> {
    Principal::new(name).map_err(|error| {
        CommandError::usage(display_line(&error.to_string()), "`skein token list` shows names of principals")
    })
}

fn list_rules(place: &StorePlace, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    let rules = PrincipalRules::new(place).rules(folders)?;
    if rules.is_empty() {
        output.note(&format!("`{}` keeps no rules", folders.principal));
    }
    for SourcedRule { rule, origin } in &rules {
        output.line(&display_line(&format!("{rule}  {origin}")));
    }
    Ok(())
}

fn remove_rule(id: i64, place: &StorePlace, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    let consents = place.consents().map_err(|error| store_failure(&error))?.of(folders.principal.clone());
    if !consents.remove(id).map_err(|error| store_failure(&error))? {
        let (problem, owner) = (format!("`{}` has no rule {id} in {place}", folders.principal), &folders.principal);
        return Err(CommandError::usage(display_line(&problem), format!("`skein principal rules {owner}` lists them")));
    }
    output.line(&format!("removed rule {id} of {}", folders.principal));
    Ok(())
}

fn delete(
    principal: &Principal,
    policy: OpenSessionPolicy,
    place: &StorePlace,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let tokio = tokio.map_err(|error| CommandError::work(format!("no async runtime: {error}"), "check the limits"))?;
    let sessions = place.sessions().map_err(|error| store_failure(&error))?;
    let sessions = runtime::sessions(sessions, TurnLimits::default(), folders);
    let mut left = retention::finish_removals(&tokio, &sessions, place, output)?;
    let removed = tokio.block_on(sessions.remove_principal(place, principal, policy));
    let (removed, own_left) = removed.map_err(|error| session_failure(&error))?;
    let has_files = remove_folder(&principal.folder(&folders.data))?;
    if removed.is_empty() && !has_files {
        let problem = format!("{place} has nothing of `{principal}`");
        return Err(CommandError::usage(display_line(&problem), "`skein token list` shows names of principals"));
    }
    let count = removed.sessions.len();
    output.line(&display_line(&format!("deleted `{principal}` from {place}, with {count} sessions")));
    left.extend(own_left);
    retention::check_left(&left)
}

/// Returns false if there is no such folder.
fn remove_folder(folder: &Path) -> Result<bool, CommandError> {
    match std::fs::remove_dir_all(folder) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => {
            let problem = format!("{} cannot be removed: {error}", display_line(&folder.display().to_string()));
            Err(CommandError::work(problem, "remove the folder yourself; the rest is deleted"))
        }
    }
}
