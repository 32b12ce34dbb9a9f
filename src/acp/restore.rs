//! `/undo` and `/redo`: show what a restore would change, and make it when the user repeats the command with `yes`.

use std::path::Path;

use agent_client_protocol::v1::schema as acp;

use super::errors;
use crate::checkpoint::FileDifference;
use crate::session::{PlannedRestore, PromptError, RestoreFiles, RestoreReport, RestoreTarget, Session};
use crate::text::line_diff::LineDiff;
use crate::text::{code_block, code_span};

pub(super) const UNDO: &str = "undo";
pub(super) const UNDO_ABOUT: &str = "Go back to before the last turn, or before turn N, with its files";
pub(super) const UNDO_HINT: &str = "[N] [yes]";
pub(super) const REDO: &str = "redo";
pub(super) const REDO_ABOUT: &str = "Reverse the last undo";
pub(super) const REDO_HINT: &str = "[yes]";

/// The word that confirms what was shown.
const YES: &str = "yes";
/// Maximum lines of the difference to show.
const MAX_LINES: usize = 200;

/// Runs `/undo` or `/redo` with these arguments. Returns the answer in Markdown. Fails if an argument is unknown or a
/// turn runs.
pub(super) async fn run(session: &Session, name: &str, arguments: &str) -> Result<String, acp::Error> {
    let (target, confirmed) = parse(name, arguments)?;
    let planned = session.plan_restore(target).await.map_err(|error| failure(&error))?;
    let Some(planned) = planned else { return Ok("There is nothing left to undo.".to_owned()) };
    let cwd = session.context().cwd.clone();
    if !confirmed {
        let again = format!("/{name} {arguments}");
        return Ok(format!("{}\n`{} {YES}` does it.", describe(&planned, &cwd), again.trim_end()));
    }
    let report = session.restore(planned, RestoreFiles::Unchanged).await.map_err(|error| failure(&error))?;
    Ok(describe_report(name, &report, &cwd))
}

fn parse(name: &str, arguments: &str) -> Result<(RestoreTarget, bool), acp::Error> {
    let mut words: Vec<&str> = arguments.split_whitespace().collect();
    let confirmed = words.last() == Some(&YES);
    if confirmed {
        words.pop();
    }
    let turn = words.first().map(|word| word.parse::<usize>());
    match (name, turn, words.len()) {
        (REDO, None, _) => Ok((RestoreTarget::Forward, confirmed)),
        (UNDO, None, _) => Ok((RestoreTarget::BeforeLastTurn, confirmed)),
        (UNDO, Some(Ok(turn)), 1) => Ok((RestoreTarget::BeforeTurn(turn), confirmed)),
        (REDO, ..) => Err(errors::invalid_params(format!("/{REDO} takes only `{YES}`"))),
        _ => Err(errors::invalid_params(format!("/{UNDO} takes the number of a turn, and `{YES}`"))),
    }
}

/// Renders the difference that a restore makes.
fn describe(planned: &PlannedRestore, cwd: &Path) -> String {
    let first = planned.prompt.lines().next().unwrap_or_default();
    let mut text = match first {
        "" => "The history goes forward to before the undo.\n".to_owned(),
        first => format!("The history goes back to before {}.\n", code_span(first)),
    };
    let (kept, changed): (Vec<_>, Vec<_>) =
        planned.differences.iter().partition(|difference| difference.kept.is_some());
    if changed.is_empty() {
        text.push_str("\nNo file changes.\n");
    } else {
        text.push_str("\nThese files change:\n\n");
        let lines: Vec<String> = changed.iter().flat_map(|difference| diff_lines(difference, cwd)).collect();
        let mut shown = lines[..lines.len().min(MAX_LINES)].join("\n");
        if lines.len() > MAX_LINES {
            shown.push_str(&format!("\n… {} more lines", lines.len() - MAX_LINES));
        }
        text.push_str(&code_block("diff", &shown));
        text.push('\n');
    }
    for difference in kept {
        if let Some(reason) = &difference.kept {
            text.push_str(&format!("- {} {reason}\n", code_span(&path_text(&difference.path, cwd))));
        }
    }
    text
}

fn describe_report(name: &str, report: &RestoreReport, cwd: &Path) -> String {
    let files = if report.restored == 1 { "1 file".to_owned() } else { format!("{} files", report.restored) };
    let back = if name == UNDO { format!(" `/{REDO}` reverses this.") } else { String::new() };
    let mut text = format!("The history and {files} are restored.{back} The editor may still show the later turns.\n");
    for file in &report.kept {
        text.push_str(&format!("- {} {}\n", code_span(&path_text(&file.path, cwd)), file.reason));
    }
    text
}

fn diff_lines(difference: &FileDifference, cwd: &Path) -> Vec<String> {
    let path = path_text(&difference.path, cwd);
    let removed = if difference.is_removal { " (removed)" } else { "" };
    if difference.now.is_none() && difference.then.is_none() {
        return vec![format!("{path}{removed}: no text")];
    }
    let (now, then) = (difference.now.as_deref().unwrap_or_default(), difference.then.as_deref().unwrap_or_default());
    let header = format!("{path}{removed}");
    let shown = LineDiff::new(now, then, None).format(2, Some((&path, &header)));
    shown.lines().map(str::to_owned).collect()
}

fn path_text(path: &Path, cwd: &Path) -> String {
    let below = path.strip_prefix(cwd).unwrap_or(path);
    crate::tool::strip_to_line(&below.display().to_string())
}

fn failure(error: &PromptError) -> acp::Error {
    match error {
        PromptError::Record(error) => errors::session(error),
        error => errors::prompt(error),
    }
}
