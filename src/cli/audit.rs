//! `skein audit`: lists, exports and verifies the decisions in the audit log.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use super::folders::Folders;
use super::output::{BOLD, CommandError, CommandOutput, QUIET, display_line};
use super::period_start::parse_since;
use super::private_files::write_export;
use super::store_failure::store_failure;
use super::store_flag::StoreFlag;
use crate::clock;
use crate::store::{AuditEntry, AuditFilter, SessionStore, StoreError};

#[derive(Debug, Args)]
pub(super) struct AuditArgs {
    #[command(flatten)]
    store: StoreFlag,
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// List decisions, oldest first
    List {
        #[command(flatten)]
        filter: FilterArgs,
        /// Limit the number of results to the newest
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Export decisions, one line of JSON each
    ///
    /// The SHA-256 of a line, without its line end, is in the next line of the same session.
    Export {
        #[command(flatten)]
        filter: FilterArgs,
        /// Write to this file instead of stdout
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Replace the file if it exists
        #[arg(long, requires = "output")]
        force: bool,
    },
    /// Verify that no entry was changed, removed, added or moved
    ///
    /// Exits with 1 if a chain differs from what Skein wrote.
    Verify {
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
struct FilterArgs {
    /// Select a session, by id or prefix
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Select decisions since then, as in `7d` or `2026-11-15`
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<u64>,
    /// Select one kind of decision
    #[arg(long, value_enum)]
    kind: Option<KindFlag>,
    /// Select one outcome
    #[arg(long, value_enum)]
    decision: Option<DecisionFlag>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum KindFlag {
    /// Calls, resources and prompts
    Call,
    /// Hosts that processes in a sandbox reach
    Host,
    /// Commands and uses of this machine outside the sandbox
    Escape,
    /// Answers of the user
    Consent,
    /// Hooks
    Hook,
    /// Refusals by managed settings
    Managed,
}

impl KindFlag {
    fn as_str(self) -> &'static str {
        match self {
            KindFlag::Call => "call",
            KindFlag::Host => "host",
            KindFlag::Escape => "escape",
            KindFlag::Consent => "consent",
            KindFlag::Hook => "hook",
            KindFlag::Managed => "managed",
        }
    }
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum DecisionFlag {
    Allow,
    Ask,
    Refuse,
}

impl DecisionFlag {
    fn as_str(self) -> &'static str {
        match self {
            DecisionFlag::Allow => "allow",
            DecisionFlag::Ask => "ask",
            DecisionFlag::Refuse => "refuse",
        }
    }
}

pub(super) fn run(args: &AuditArgs, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime =
        runtime.map_err(|error| CommandError::work(format!("no async runtime: {error}"), "check the limits"))?;
    let place = args.store.place(folders, output)?;
    runtime.block_on(async {
        let store = place.sessions().map_err(|error| store_failure(&error))?;
        match &args.command {
            AuditCommand::List { filter, limit, json } => {
                let filter = AuditFilter { limit: Some(*limit), ..select(&store, filter).await? };
                list(&store, filter, *json, output).await
            }
            AuditCommand::Export { filter, output: file, force } => {
                let filter = select(&store, filter).await?;
                export(&store, filter, file.as_deref(), *force, output).await
            }
            AuditCommand::Verify { json } => verify(&store, *json, output).await,
        }
    })
}

/// Returns the filter of the flags. Fails if no session, or more than one, starts with the given id.
async fn select(store: &SessionStore, args: &FilterArgs) -> Result<AuditFilter, CommandError> {
    let session = match &args.session {
        Some(prefix) => Some(find(store, prefix).await?),
        None => None,
    };
    Ok(AuditFilter {
        session,
        since: args.since,
        kind: args.kind.map(|kind| kind.as_str().to_owned()),
        decision: args.decision.map(|decision| decision.as_str().to_owned()),
        limit: None,
    })
}

/// Returns the id of the chain that starts with `prefix`. The log has sessions that are deleted.
async fn find(store: &SessionStore, prefix: &str) -> Result<String, CommandError> {
    let found = store.audit_sessions(prefix).await.map_err(|error| store_failure(&error))?;
    match found.as_slice() {
        [] => Err(CommandError::no_session(prefix, "`skein audit list` shows the sessions with decisions")),
        [only] => Ok(only.clone()),
        [first, ..] if *first == prefix.trim() => Ok(first.clone()),
        _ => {
            let error = StoreError::Ambiguous { prefix: prefix.to_owned(), candidates: found };
            Err(CommandError::usage(display_line(&error.to_string()), "type more of the id"))
        }
    }
}

async fn list(
    store: &SessionStore,
    filter: AuditFilter,
    json: bool,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let limit = filter.limit;
    let entries = store.audit_entries(filter).await.map_err(|error| store_failure(&error))?;
    if json {
        output.json(&json!(entries));
        return Ok(());
    }
    if entries.is_empty() {
        output.note("no decisions were recorded");
    }
    let names = store.audit_names().await.map_err(|error| store_failure(&error))?;
    let names: BTreeMap<_, _> = names.into_iter().collect();
    let mut session = "";
    for entry in &entries {
        if entry.session != session {
            session = &entry.session;
            let who = names.get(&entry.pseudonym).map_or(entry.pseudonym.as_str(), String::as_str);
            output.line(&format!("{BOLD}{}{BOLD:#}  {}", display_line(session), display_line(who)));
        }
        output.line(&entry_line(entry));
    }
    if Some(entries.len()) == limit {
        output.note("there may be older decisions; --limit shows more");
    }
    Ok(())
}

fn entry_line(entry: &AuditEntry) -> String {
    let AuditEntry { time, actor, kind, subject, decision, source, rule, .. } = entry;
    let rule = rule.as_deref().map(|rule| format!(" ({})", display_line(rule))).unwrap_or_default();
    format!(
        "  {QUIET}{}{QUIET:#}  {kind:<7}  {decision:<6}  {}  {QUIET}{} by {source}{rule}{QUIET:#}",
        clock::iso(*time),
        display_line(subject),
        display_line(actor)
    )
}

async fn export(
    store: &SessionStore,
    filter: AuditFilter,
    file: Option<&std::path::Path>,
    force: bool,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let mut entries = store.audit_entries(filter).await.map_err(|error| store_failure(&error))?;
    // The lines of a chain follow one another.
    entries.sort_by(|one, other| (&one.session, one.sequence).cmp(&(&other.session, other.sequence)));
    let text: String = entries.iter().map(|entry| entry.line() + "\n").collect();
    let Some(file) = file else {
        output.text(&text);
        return Ok(());
    };
    write_export(file, &text, force)?;
    output.note(&format!("wrote {} decisions to {}", entries.len(), display_line(&file.to_string_lossy())));
    Ok(())
}

async fn verify(store: &SessionStore, json: bool, output: &mut CommandOutput) -> Result<(), CommandError> {
    let report = store.verify_audit().await.map_err(|error| store_failure(&error))?;
    if json {
        output.json(&json!(report));
    } else {
        for finding in &report.findings {
            let chain = finding.session.as_deref().unwrap_or("all chains");
            output.line(&format!("{BOLD}{}{BOLD:#}  {}", display_line(chain), finding.problem));
        }
        let (chains, entries) = (report.chains, report.entries);
        output.line(&format!("{entries} entries in {chains} chains, {} problems", report.findings.len()));
    }
    if report.findings.is_empty() {
        return Ok(());
    }
    let problem = "the audit log is not what Skein wrote";
    Err(CommandError::work(problem, "compare it with an earlier `skein audit export`, or with a copy of the store"))
}
