//! `skein report`: what agents did, changed, asked and spent in a period, and what was refused.

mod html;
mod summary;
mod text;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::folders::Folders;
use super::output::{CommandError, CommandOutput, display_line};
use super::period_start::parse_since;
use super::private_files::write_private;
use super::store_failure::store_failure;
use super::store_flag::StoreFlag;
use crate::agents::Event;
use crate::clock;
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
    /// Format of the report
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    format: ReportFormat,
    /// Write to this file instead of stdout
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
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
        collect(&store, args.since, within).await.map_err(|error| store_failure(&error))
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
        write_private(file, &text).map_err(|error| {
            let problem = format!("{} cannot be written: {error}", display_line(&file.to_string_lossy()));
            CommandError::work(problem, "name another file")
        })?;
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

/// Reads the sessions that were used since then, their child sessions, and the decisions in them.
async fn collect(store: &SessionStore, since: u64, within: FolderFilter) -> Result<ActivityReport, StoreError> {
    let mut report = ActivityReport::new(since, clock::now());
    let mut ids = BTreeSet::new();
    for session in used_sessions(store, since, &within).await? {
        let children = ListFilter { parent: Some(session.id.clone()), ..ListFilter::default() };
        for child in store.list(children).await? {
            add_session(store, &child, &mut report).await?;
            ids.insert(child.id);
        }
        add_session(store, &session, &mut report).await?;
        ids.insert(session.id);
    }
    let filter = AuditFilter { since: Some(since), ..AuditFilter::default() };
    for entry in store.audit_entries(filter).await? {
        // Clients without a stored session have no folder, so only the report on every folder has them.
        if within == FolderFilter::Anywhere || ids.contains(&entry.session) {
            report.add_decision(&entry);
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
    session: &StoredSession,
    report: &mut ActivityReport,
) -> Result<(), StoreError> {
    report.add_session(session);
    for stored in store.events(&session.id).await? {
        if stored.at < report.since {
            continue;
        }
        match serde_json::from_str::<Event>(&stored.body) {
            Ok(event) => report.add_event(session, stored.at, &event),
            Err(_) => report.unreadable_events += 1,
        }
    }
    Ok(())
}
