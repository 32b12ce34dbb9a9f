//! `skein store`: moves all stored data between files, databases and exports, and removes old sessions.

use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::folders::Folders;
use super::output::{CommandError, CommandOutput, display_line};
use super::retention;
use super::runtime::{self, StopSignals, session_failure, wait_for_signal};
use super::store_failure::store_failure;
use super::store_flag::{StoreFlag, database_on_command_line};
use crate::agents::TurnLimits;
use crate::store::{RetentionPolicy, StorePlace, StoreTotals, export_store, import_store, migrate_store};

#[derive(Debug, Args)]
pub(super) struct StoreArgs {
    #[command(flatten)]
    store: StoreFlag,
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Copy everything to another store, which must be empty
    ///
    /// Stop all servers first. If SKEIN_STORE_KEY is set, texts are encrypted in the target. The source keeps its data.
    Migrate {
        /// Copy to this PostgreSQL database or data folder
        #[arg(long, value_name = "URL|DIR")]
        to: String,
        /// Do not encrypt texts in the target
        #[arg(long)]
        plain: bool,
    },
    /// Write everything to a file, which has texts unencrypted
    Export {
        /// The file to create
        file: PathBuf,
    },
    /// Read an exported file into the store, which must be empty
    ///
    /// Stop all servers first. If SKEIN_STORE_KEY is set, texts are encrypted in the store.
    Import {
        /// The file that `skein store export` wrote
        file: PathBuf,
        /// Do not encrypt texts in the store
        #[arg(long)]
        plain: bool,
    },
    /// Remove the sessions that `store.retention` does not keep
    Prune,
}

pub(super) fn run(args: &StoreArgs, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    let place = args.store.place(folders, output)?;
    match &args.command {
        StoreCommand::Migrate { to, plain } => {
            let target = encrypt_unless(*plain, target_place(to, folders, output)?);
            let totals = migrate_store(&place, &target).map_err(|error| store_failure(&error))?;
            print_totals(&format!("copied {place} to {target}"), &totals, output);
            Ok(())
        }
        StoreCommand::Export { file } => export(&place, &folders.cwd.join(file), output),
        StoreCommand::Import { file, plain } => {
            let (file, target) = (folders.cwd.join(file), encrypt_unless(*plain, place));
            let name = file.display().to_string();
            let open = || std::fs::File::open(&file).map(BufReader::new);
            let totals = import_store(&name, open, &target).map_err(|error| store_failure(&error))?;
            print_totals(&format!("imported {} into {target}", file.display()), &totals, output);
            Ok(())
        }
        StoreCommand::Prune => prune(&place, folders, output),
    }
}

/// Returns the place that `--to` names.
fn target_place(to: &str, folders: &Folders, output: &mut CommandOutput) -> Result<StorePlace, CommandError> {
    if to.contains("://") {
        return database_on_command_line("--to", to, folders, output);
    }
    Ok(StorePlace::files(folders.cwd.join(to)).with_key(folders.store.key().cloned()))
}

fn encrypt_unless(plain: bool, place: StorePlace) -> StorePlace {
    if plain { place.with_key(None) } else { place }
}

fn export(place: &StorePlace, file: &Path, output: &mut CommandOutput) -> Result<(), CommandError> {
    let tokio = async_runtime()?;
    let written = tokio.block_on(write_export(place, file));
    // After a signal, the thread that reads the store still runs.
    tokio.shutdown_background();
    let totals = written?;
    if place.key().is_some() {
        output.note("the texts in the file are not encrypted; remove it when you no longer need it");
    }
    print_totals(&format!("exported {place} to {}", file.display()), &totals, output);
    Ok(())
}

/// Writes a new file that only the user can read. Leaves no part of it behind if it fails or a signal ends it.
async fn write_export(place: &StorePlace, file: &Path) -> Result<StoreTotals, CommandError> {
    let unwritable = |error: &std::io::Error| {
        let problem = format!("{} cannot be written: {error}", display_line(&file.display().to_string()));
        CommandError::work(problem, "name a new file in a folder that you can write to")
    };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Listens before the file exists.
    let interrupted = wait_for_signal(StopSignals::Anything);
    // The name says what it is, because nothing removes it if the machine stops or the process is killed.
    let mut name = tempfile::Builder::new();
    name.prefix("skein-export-").suffix(".partial");
    let new = name.tempfile_in(folder).map_err(|error| unwritable(&error))?;
    let (source, target) = (place.clone(), new.as_file().try_clone().map_err(|error| unwritable(&error))?);
    let writing = tokio::task::spawn_blocking(move || export_store(&source, &mut BufWriter::new(target)));
    let written = tokio::select! {
        biased;
        failure = interrupted => return Err(failure),
        written = writing => written,
    };
    let broken =
        |error: tokio::task::JoinError| CommandError::work(format!("the export broke off: {error}"), "see the log");
    let totals = written.map_err(broken)?.map_err(|error| store_failure(&error))?;
    new.as_file().sync_all().map_err(|error| unwritable(&error))?;
    drop(new.persist_noclobber(file).map_err(|error| unwritable(&error.error))?);
    Ok(totals)
}

fn async_runtime() -> Result<tokio::runtime::Runtime, CommandError> {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build();
    tokio.map_err(|error| CommandError::work(format!("no async runtime: {error}"), "check the limits"))
}

fn print_totals(what: &str, totals: &StoreTotals, output: &mut CommandOutput) {
    output.line(&display_line(what));
    for (table, count) in &totals.counts {
        output.line(&format!("  {table}: {count}"));
    }
    output.line(&format!("  checksum: sha256:{}", totals.checksum));
}

fn prune(place: &StorePlace, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    let policy = retention::policy(folders)
        .map_err(|error| CommandError::usage(display_line(&error.to_string()), "see `skein check`"))?;
    let tokio = async_runtime()?;
    let sessions = place.sessions().map_err(|error| store_failure(&error))?;
    let sessions = runtime::sessions(sessions, TurnLimits::default(), folders);
    let mut left = retention::finish_removals(&tokio, &sessions, place, output)?;
    if policy == RetentionPolicy::default() {
        retention::check_left(&left)?;
        let problem = "`store.retention` in your config.yaml has neither `days` nor `sessions`";
        return Err(CommandError::usage(problem, "add `store: {retention: {days: 90}}`"));
    }
    let removed = tokio.block_on(sessions.remove_expired(place, policy));
    let (count, own_left) = removed.map_err(|error| session_failure(&error))?;
    output.line(&format!("removed {count} sessions"));
    left.extend(own_left);
    retention::check_left(&left)
}
