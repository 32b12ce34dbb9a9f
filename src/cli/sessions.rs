//! `skein sessions`: lists, shows, exports, counts, deletes, searches and restores stored sessions.

mod restore;
mod stats;
mod transcript;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::folders::Folders;
use super::output::{BOLD, CommandError, CommandOutput, QUIET, display_line};
use super::private_files::write_export;
use super::retention;
use super::runtime;
use super::store_failure::store_failure;
use crate::agents::TurnLimits;
use crate::checkpoint::CheckpointError;
use crate::clock;
use crate::ids::nearest;
use crate::session::SessionError;
use crate::store::{FolderFilter, ListFilter, SearchHit, SessionStore, StoredSession, project_root};

/// Maximum characters of a search snippet to show.
const MAX_SNIPPET: usize = 300;

#[derive(Debug, Args)]
pub(super) struct SessionsArgs {
    #[command(subcommand)]
    command: SessionsCommand,
    /// Print the result as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum SessionsCommand {
    /// List the sessions of this project, newest first
    List {
        /// List sessions of every folder
        #[arg(long)]
        all: bool,
        /// List child sessions of this one, by id or prefix
        #[arg(long, value_name = "ID", conflicts_with = "all")]
        of: Option<String>,
        /// Limit the number of results
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
    },
    /// Show the messages and calls of a session
    Show {
        /// Session id or a prefix of it
        id: String,
    },
    /// Export a session as complete JSON or readable Markdown
    Export {
        /// Session id or a prefix of it
        id: String,
        #[arg(long, value_enum, default_value_t = ExportFormat::Json, conflicts_with = "json")]
        format: ExportFormat,
        /// Write to this file instead of stdout
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Replace the file if it exists
        #[arg(long, requires = "output")]
        force: bool,
    },
    /// Delete sessions permanently
    Delete {
        /// Session ids or prefixes of them
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Restore an earlier state of a session and of the files that it changed
    Restore(restore::RestoreArgs),
    /// Show turns, tokens, cost, tools and times
    Stats(stats::StatsArgs),
    /// Search the messages of this project
    Search {
        /// Words that must all occur in one message
        #[arg(required = true)]
        words: Vec<String>,
        /// Search in every folder
        #[arg(long)]
        all: bool,
        /// Limit the number of results
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
    },
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ExportFormat {
    Json,
    Markdown,
}

pub(super) fn run(args: &SessionsArgs, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime =
        runtime.map_err(|error| CommandError::work(format!("no async runtime: {error}"), "check the limits"))?;
    runtime.block_on(async {
        let sessions = folders.store.sessions().map_err(|error| store_failure(&error))?;
        match &args.command {
            SessionsCommand::List { all, of, limit } => {
                let filter = match of {
                    Some(id) => ListFilter { parent: Some(find(&sessions, id).await?.id), ..ListFilter::default() },
                    None => ListFilter { within: folder_filter(*all, folders), ..ListFilter::default() },
                };
                list(&sessions, ListFilter { limit: Some(*limit), ..filter }, args.json, output).await
            }
            SessionsCommand::Show { id } => show(&sessions, id, args.json, output).await,
            SessionsCommand::Export { id, format, output: file, force } => {
                // The parser sees the conflict only if `--json` comes after `export`.
                if args.json && matches!(format, ExportFormat::Markdown) {
                    let problem = "`--json` and `--format markdown` exclude each other";
                    return Err(CommandError::usage(problem, "leave one of them out"));
                }
                let text = export(&sessions, id, *format).await?;
                match file {
                    Some(file) => write_file(file, &text, *force, output),
                    None => {
                        output.text(&text);
                        Ok(())
                    }
                }
            }
            SessionsCommand::Delete { ids } => delete(&sessions, ids, args.json, folders, output).await,
            SessionsCommand::Restore(restored) => {
                let session = find(&sessions, &restored.id).await?;
                let whole = runtime::sessions(sessions.clone(), TurnLimits::default(), folders);
                restore::run(&whole, &session, restored, args.json, folders, output).await
            }
            SessionsCommand::Stats(counted) => {
                let chosen = match &counted.id {
                    Some(id) => vec![find(&sessions, id).await?],
                    None => {
                        let filter =
                            ListFilter { within: folder_filter(counted.all, folders), ..ListFilter::default() };
                        sessions.list(filter).await.map_err(|error| store_failure(&error))?
                    }
                };
                stats::run(&sessions, &chosen, counted, args.json, output).await
            }
            SessionsCommand::Search { words, all, limit } => {
                search(&sessions, &words.join(" "), *all, *limit, args.json, folders, output).await
            }
        }
    })
}

/// Returns a filter for the current repository, or for the working directory outside a repository.
fn folder_filter(all: bool, folders: &Folders) -> FolderFilter {
    if all { FolderFilter::Anywhere } else { FolderFilter::Below(project_root(&folders.cwd)) }
}

async fn list(
    sessions: &SessionStore,
    filter: ListFilter,
    json: bool,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let (all, of) = (filter.within == FolderFilter::Anywhere && filter.parent.is_none(), filter.parent.is_some());
    let found = sessions.list(filter).await.map_err(|error| store_failure(&error))?;
    if json {
        print_json(&json!(found), output);
        return Ok(());
    }
    if found.is_empty() {
        output.note(if of {
            "no session worked for this one"
        } else if all {
            "there are no sessions yet"
        } else {
            "no sessions in this project; --all lists every folder's"
        });
    }
    for session in &found {
        let StoredSession { id, agent, mode, .. } = session;
        output.line(&format!("{BOLD}{id}{BOLD:#}  {}", title(session.title.as_deref())));
        let mut about = format!("{}/{}, {}", display_line(agent), display_line(mode), clock::ago(session.updated_at));
        if all {
            about.push_str(&format!(", {}", display_line(&session.cwd.to_string_lossy())));
        }
        output.line(&format!("  {QUIET}{about}{QUIET:#}"));
    }
    Ok(())
}

fn title(title: Option<&str>) -> String {
    title.map_or_else(|| format!("{QUIET}(no title){QUIET:#}"), display_line)
}

async fn show(sessions: &SessionStore, id: &str, json: bool, output: &mut CommandOutput) -> Result<(), CommandError> {
    let session = find(sessions, id).await?;
    let events = sessions.events(&session.id).await.map_err(|error| store_failure(&error))?;
    if json {
        output.text(&transcript::json(&session, &events));
    } else {
        transcript::show(&session, &events, output);
    }
    Ok(())
}

async fn export(sessions: &SessionStore, id: &str, format: ExportFormat) -> Result<String, CommandError> {
    let session = find(sessions, id).await?;
    let events = sessions.events(&session.id).await.map_err(|error| store_failure(&error))?;
    Ok(match format {
        ExportFormat::Json => transcript::json(&session, &events),
        ExportFormat::Markdown => transcript::markdown(&session, &events),
    })
}

/// Writes a file for the user, and prints its name.
fn write_file(file: &Path, text: &str, force: bool, output: &mut CommandOutput) -> Result<(), CommandError> {
    write_export(file, text, force)?;
    output.note(&format!("wrote {}", display_line(&file.to_string_lossy())));
    Ok(())
}

async fn delete(
    sessions: &SessionStore,
    ids: &[String],
    json: bool,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    // Also deletes the files that the sessions' tools left behind.
    let whole = runtime::sessions(sessions.clone(), TurnLimits::default(), folders);
    // Look up all sessions first, so that a wrong id deletes none.
    let mut found = Vec::new();
    for id in ids {
        let session = find(sessions, id).await?;
        if !found.contains(&session) {
            found.push(session);
        }
    }
    // A running turn would lose its newest messages. The turns of child sessions are part of those of their parents.
    let holders: BTreeSet<_> = found.iter().map(|session| session.parent.as_ref().unwrap_or(&session.id)).collect();
    let mut holds = Vec::new();
    for id in holders {
        holds.push(whole.hold_for_deletion(id).await.map_err(|error| deletion_failure(id, &error))?);
    }
    let (mut deleted, mut left) = (Vec::new(), Vec::new());
    for session in &found {
        if let Some(files) = whole.delete(&session.id).await.map_err(|error| runtime::session_failure(&error))? {
            deleted.push(session);
            left.extend(files);
        }
    }
    drop(holds);
    if json {
        let ids: Vec<_> = deleted.iter().map(|session| &session.id).collect();
        print_json(&json!({"deleted": ids}), output);
    } else {
        for session in &deleted {
            output.line(&format!("deleted {}  {}", session.id, title(session.title.as_deref())));
        }
    }
    retention::check_left(&left)
}

fn deletion_failure(id: &str, error: &SessionError) -> CommandError {
    match error {
        SessionError::Checkpoint(CheckpointError::Running) => CommandError::work(
            format!("nothing was deleted: a turn or a restore of the session `{id}` runs, maybe in another process"),
            "wait until it ends, or cancel the turn",
        ),
        error => runtime::session_failure(error),
    }
}

async fn search(
    sessions: &SessionStore,
    words: &str,
    all: bool,
    limit: usize,
    json: bool,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let hits =
        sessions.search(words, folder_filter(all, folders), limit).await.map_err(|error| store_failure(&error))?;
    if json {
        print_json(&json!(hits), output);
        return Ok(());
    }
    if hits.is_empty() {
        output.note(if all {
            "nothing was found"
        } else {
            "nothing was found in this project; --all looks in every folder"
        });
    }
    for SearchHit { session, title: of, at, snippet, .. } in &hits {
        let about = format!("{}, {}", title(of.as_deref()), clock::ago(*at));
        // SQLite limits a snippet by words, and one word may be a whole file.
        let snippet = display_line(snippet);
        let short: String = snippet.chars().take(MAX_SNIPPET).collect();
        let more = if short.len() < snippet.len() { "…" } else { "" };
        output.line(&format!("{BOLD}{session}{BOLD:#}  {about}\n  {short}{more}"));
    }
    Ok(())
}

/// Returns the session with this id or prefix. The error suggests the nearest id.
async fn find(sessions: &SessionStore, id: &str) -> Result<StoredSession, CommandError> {
    let found = match sessions.resolve(id).await.map_err(|error| store_failure(&error))? {
        Some(id) => sessions.find(&id).await.map_err(|error| store_failure(&error))?,
        None => None,
    };
    if let Some(session) = found {
        return Ok(session);
    }
    let known = sessions.list(ListFilter::default()).await.map_err(|error| store_failure(&error))?;
    let help = match nearest(id, known.iter().map(|session| session.id.as_str())) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`skein sessions list --all` shows those that there are".to_owned(),
    };
    Err(CommandError::no_session(id, help))
}

/// Prints JSON with control characters escaped, so that they do not reach the terminal.
fn print_json(value: &Value, output: &mut CommandOutput) {
    output.json(value);
}
