//! `skein report`: what agents did, changed, asked and spent in a period, and what was refused.

mod html;
mod summary;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::folders::Folders;
use super::output::{CommandError, CommandOutput, display_line};
use super::period_start::parse_since;
use super::private_files::write_export;
use super::store_failure::store_failure;
use super::store_flag::StoreFlag;
use crate::agents::Event;
use crate::clock;
use crate::principal::{Principal, SessionGrant, TokenLimits};
use crate::store::{
    AuditFilter, Cursor, FolderFilter, ListFilter, SessionStore, StoreError, StoredSession, project_root,
};
use summary::ActivityReport;

/// Sessions that are read at once.
const PAGE: usize = 200;

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// Start of the period, as in `7d`, `12h` or `2026-11-15`
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = parse_since)]
    since: u64,
    /// Report on sessions of every folder
    #[arg(long)]
    all: bool,
    /// Report on the sessions of one principal
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// Format of the report
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    format: ReportFormat,
    /// Write to this file instead of stdout
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "output")]
    force: bool,
    #[command(flatten)]
    store: StoreFlag,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ReportFormat {
    Text,
    Json,
    /// One page with charts, without links to anything outside
    Html,
}

pub(super) fn run(args: &ReportArgs, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime =
        runtime.map_err(|error| CommandError::work(format!("no async runtime: {error}"), "check the limits"))?;
    let place = args.store.place(folders, output)?;
    let report = runtime.block_on(async {
        let store = place.sessions().map_err(|error| store_failure(&error))?;
        let within = if args.all { FolderFilter::Anywhere } else { FolderFilter::Below(project_root(&folders.cwd)) };
        let names = store.principals().await.map_err(|error| store_failure(&error))?;
        let names = select_principals(names, args.principal.as_deref())?;
        collect(&store, args, names, within).await.map_err(|error| store_failure(&error))
    })?;
    if args.output.is_none() {
        match args.format {
            ReportFormat::Text => output.text(&text::render(&report)),
            ReportFormat::Json => output.json(&json!(report)),
            ReportFormat::Html => output.text(&html_page(&report)?),
        }
        if report.sessions == 0 && !args.all {
            output.note("no session of this project was used in this period; --all reports on every folder");
        }
        return Ok(());
    }
    let text = match args.format {
        ReportFormat::Text => anstream::adapter::strip_str(&text::render(&report)).to_string(),
        ReportFormat::Json => format!("{:#}\n", json!(report)),
        ReportFormat::Html => html_page(&report)?,
    };
    if let Some(file) = &args.output {
        write_export(file, &text, args.force)?;
        output.note(&format!("wrote {}", display_line(&file.to_string_lossy())));
    }
    Ok(())
}

fn html_page(report: &ActivityReport) -> Result<String, CommandError> {
    html::render(report).map_err(|error| {
        let problem = format!("a chart of the report cannot be drawn: {error}");
        CommandError::work(problem, "use `--format text` or `--format json`")
    })
}

/// Returns the principals to report on: all, or the one that a flag names. Fails if it has no session.
fn select_principals(known: Vec<String>, wanted: Option<&str>) -> Result<Vec<String>, CommandError> {
    let Some(wanted) = wanted else { return Ok(known) };
    if known.iter().any(|name| name == wanted) {
        return Ok(vec![wanted.to_owned()]);
    }
    let help = match known.as_slice() {
        [] => "no principal has a session yet".to_owned(),
        known => format!("there are: {}", display_line(&known.join(", "))),
    };
    Err(CommandError::usage(format!("no session of the principal `{}` is stored", display_line(wanted)), help))
}

/// Returns a handle to all sessions of a principal.
fn store_of(store: &SessionStore, name: &str) -> Result<SessionStore, StoreError> {
    if Principal::local().name() == name {
        return Ok(store.clone());
    }
    let principal = Principal::new(name).map_err(|error| StoreError::Failed(error.to_string()))?;
    let limits = TokenLimits { roots: vec![PathBuf::from("/")], ..TokenLimits::default() };
    Ok(store.for_grant(&SessionGrant::new(principal, limits)))
}

/// Reads the sessions of these principals that were used in the period, their child sessions, and the decisions in them.
/// As with `skein audit`, who can open the store sees what it has of every principal.
async fn collect(
    store: &SessionStore,
    args: &ReportArgs,
    principals: Vec<String>,
    within: FolderFilter,
) -> Result<ActivityReport, StoreError> {
    let mut report = ActivityReport::new(args.since, clock::now());
    let mut ids = BTreeSet::new();
    for name in &principals {
        let store = store_of(store, name)?;
        for session in used_sessions(&store, args.since, &within).await? {
            let children = ListFilter { parent: Some(session.id.clone()), ..ListFilter::default() };
            for child in store.list(children).await? {
                add_session(&store, name, &child, &mut report).await?;
                ids.insert(child.id);
            }
            add_session(&store, name, &session, &mut report).await?;
            // What a child session spent is part of this.
            for spent in store.spending(&session.id, args.since).await? {
                report.add_spending(name, spent);
            }
            ids.insert(session.id);
        }
    }
    let names: BTreeMap<_, _> = store.audit_names().await?.into_iter().collect();
    let filter = AuditFilter { since: Some(args.since), ..AuditFilter::default() };
    for entry in store.audit_entries(filter).await? {
        let principal = names.get(&entry.pseudonym).map(String::as_str);
        let is_selected = args.principal.is_none() || args.principal.as_deref() == principal;
        // Clients without a stored session have no folder, so only the report on every folder has them.
        if is_selected && (within == FolderFilter::Anywhere || ids.contains(&entry.session)) {
            report.add_decision(principal, &entry);
        }
    }
    report.finish();
    Ok(report)
}

/// Returns the top-level sessions that changed since then. The list is sorted by that time.
async fn used_sessions(
    store: &SessionStore,
    since: u64,
    within: &FolderFilter,
) -> Result<Vec<StoredSession>, StoreError> {
    let mut used = Vec::new();
    let mut after: Option<Cursor> = None;
    loop {
        let filter = ListFilter { within: within.clone(), after, limit: Some(PAGE), ..ListFilter::default() };
        let page = store.list(filter).await?;
        let (count, last) = (page.len(), page.last().map(Cursor::from));
        used.extend(page.into_iter().filter(|session| session.updated_at >= since));
        after = last.filter(|last| count == PAGE && last.updated_at >= since);
        if after.is_none() {
            return Ok(used);
        }
    }
}

async fn add_session(
    store: &SessionStore,
    principal: &str,
    session: &StoredSession,
    report: &mut ActivityReport,
) -> Result<(), StoreError> {
    report.add_session(principal, session);
    for stored in store.events(&session.id).await? {
        if stored.at < report.since {
            continue;
        }
        match serde_json::from_str::<Event>(&stored.body) {
            Ok(event) => report.add_event(principal, session, stored.at, &event),
            Err(_) => report.unreadable_events += 1,
        }
    }
    Ok(())
}
