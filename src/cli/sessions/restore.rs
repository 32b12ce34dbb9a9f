//! `skein sessions restore`: shows what an earlier state of a session differs in, and restores it if the user agrees.

use clap::Args;
use serde_json::json;

use super::super::folders::Folders;
use super::super::output::{BOLD, CommandError, CommandOutput, QUIET, cut, display_line};
use super::super::runtime::session_failure;
use super::super::wrap::screen_width;
use super::super::{diff, trust};
use crate::checkpoint::{FileDifference, KeepReason};
use crate::session::{PlannedRestore, RestoreFiles, RestoreReport, RestoreTarget, Sessions};
use crate::store::StoredSession;

/// Maximum lines of the difference of one file to show.
const MAX_LINES: usize = 60;

#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    /// Session id or a prefix of it
    pub(super) id: String,
    /// Restore the state before this turn; without it, before the last one
    #[arg(long, value_name = "N", conflicts_with = "forward")]
    turn: Option<usize>,
    /// Reverse the last restore
    #[arg(long)]
    forward: bool,
    /// Also restore files that have changed since
    #[arg(long)]
    force: bool,
    /// Restore without asking
    #[arg(long)]
    yes: bool,
    /// List the turns and change nothing
    #[arg(long, conflicts_with_all = ["turn", "forward", "force", "yes"])]
    list: bool,
}

/// Runs the command on a stored session.
pub(super) async fn run(
    sessions: &Sessions,
    session: &StoredSession,
    args: &RestoreArgs,
    json: bool,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    if let Some(parent) = &session.parent {
        let problem = format!("the session {} worked for another one, whose turn it belongs to", session.id);
        return Err(CommandError::usage(problem, format!("restore the session {parent}")));
    }
    if args.list {
        return list_turns(sessions, session, json, output).await;
    }
    if json && !args.yes {
        return Err(CommandError::usage(
            "--json cannot ask for consent",
            "look at the difference first, then pass --yes",
        ));
    }
    let target = match args.turn {
        _ if args.forward => RestoreTarget::Forward,
        Some(turn) => RestoreTarget::BeforeTurn(turn),
        None => RestoreTarget::BeforeLastTurn,
    };
    let planned = sessions.plan_restore(&session.id, target).await.map_err(|error| session_failure(&error))?;
    let Some(planned) = planned else {
        return Err(CommandError::usage("there is no turn left to undo", "--list shows the turns of the session"));
    };
    if !json {
        show(&planned, args.force, folders, output);
    }
    if !args.yes && !trust::confirm("Restore this?", output)? {
        output.note("nothing was changed");
        return Ok(());
    }
    let files = if args.force { RestoreFiles::All } else { RestoreFiles::Unchanged };
    let report = sessions.restore(planned, files).await.map_err(|error| session_failure(&error))?;
    if json {
        let kept = report.kept.iter().map(|file| json!({"path": file.path, "reason": file.reason.to_string()}));
        let kept: Vec<_> = kept.collect();
        output.json(&json!({"session": session.id, "restored": report.restored, "kept": kept}));
    } else {
        show_report(&report, session, args, folders, output);
    }
    Ok(())
}

async fn list_turns(
    sessions: &Sessions,
    session: &StoredSession,
    json: bool,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let turns = sessions.turns(&session.id).await.map_err(|error| session_failure(&error))?;
    if json {
        let turns = turns.iter();
        let turns: Vec<_> =
            turns.map(|turn| json!({"turn": turn.number, "prompt": turn.prompt, "undone": !turn.is_active})).collect();
        output.json(&json!(turns));
        return Ok(());
    }
    for turn in &turns {
        let first = cut(&display_line(turn.prompt.lines().next().unwrap_or_default()), 80);
        let undone = if turn.is_active { String::new() } else { format!("  {QUIET}undone{QUIET:#}") };
        output.line(&format!("{BOLD}{:>4}{BOLD:#}  {first}{undone}", turn.number));
    }
    Ok(())
}

/// Prints what the restore would change.
fn show(planned: &PlannedRestore, force: bool, folders: &Folders, output: &mut CommandOutput) {
    match planned.prompt.lines().next() {
        Some(first) => output.line(&format!("back to before: {}", cut(&display_line(first), 80))),
        None => output.line("forward to before the last restore"),
    }
    for difference in &planned.differences {
        let path = display_line(&folders.display_path(&difference.path));
        match &difference.kept {
            Some(reason) if !force || *reason != KeepReason::ChangedSince => {
                output.line(&format!("{BOLD}{path}{BOLD:#} {QUIET}{reason}{QUIET:#}"))
            }
            Some(_) | None => {
                output.line(&format!("{BOLD}{path}{BOLD:#}{}", if difference.is_removal { " removed" } else { "" }));
                difference_lines(difference).iter().for_each(|line| output.line(line));
            }
        }
    }
    if planned.differences.is_empty() {
        output.note("no file changes");
    }
    if planned.gaps() > 0 {
        output.note(&format!("{} not covered, besides ignored files", files(planned.gaps())));
    }
}

fn difference_lines(difference: &FileDifference) -> Vec<String> {
    if difference.now.is_none() && difference.then.is_none() {
        return vec![format!("{QUIET}   no text{QUIET:#}")];
    }
    let then = difference.then.as_deref().unwrap_or_default();
    let mut lines = diff::lines(difference.now.as_deref(), then, screen_width());
    if lines.len() > MAX_LINES {
        let more = lines.len() - MAX_LINES;
        lines.truncate(MAX_LINES);
        lines.push(format!("{QUIET}   … {more} more lines{QUIET:#}"));
    }
    lines
}

fn show_report(
    report: &RestoreReport,
    session: &StoredSession,
    args: &RestoreArgs,
    folders: &Folders,
    output: &mut CommandOutput,
) {
    for file in &report.kept {
        output.note(&display_line(&format!("{} {}", folders.display_path(&file.path), file.reason)));
    }
    output.line(&format!("restored the history and {}", files(report.restored)));
    if !args.forward {
        output.note(&format!("`skein sessions restore {} --forward` reverses this", session.id));
    }
}

fn files(count: usize) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}
