//! Renders a finished tool call as one line: its title, duration and output size. Shows diffs and to-do lists; folds
//! other output, which `/show` unfolds.

use std::path::Path;
use std::time::Duration;

use anstyle::AnsiColor;
use serde_json::Value;
use unicode_width::UnicodeWidthStr as _;

use super::super::diff;
use super::super::output::{BOLD, QUIET, cut, display_line, verbatim};
use super::super::wrap::{Margin, Wrap};
use crate::agents::ROUTE;
use crate::conversation::ToolUse;
use crate::tool::{Activity, StepStatus, TodoStep, ToolOutcome, path_line, subject};

/// Diff lines that are shown before the rest is folded.
const MAX_DIFF: usize = 16;

/// Title columns to keep before the details after it are dropped.
const ENOUGH: usize = 36;

/// A tool call that has ended.
#[derive(Debug)]
pub(super) struct FinishedCall {
    pub(super) call: ToolUse,
    /// The caller, if it is not the session's model.
    pub(super) by: Option<String>,
    pub(super) outcome: ToolOutcome,
    pub(super) activity: Vec<Activity>,
    /// `None` if the call never ran.
    pub(super) took: Option<Duration>,
}

impl FinishedCall {
    /// Renders the call folded; `/show number` unfolds it.
    pub(super) fn render_folded(&self, number: usize, width: usize, cwd: &Path) -> String {
        let (green, red) = (AnsiColor::Green.on_default(), AnsiColor::Red.on_default());
        let mark = if self.outcome.is_error { format!("{red}✗{red:#}") } else { format!("{green}●{green:#}") };
        let mut about = Vec::new();
        if let Some(took) = self.took.filter(|took| *took >= Duration::from_millis(100)) {
            about.push(format!("{:.1} s", took.as_secs_f64()));
        }
        let text = self.outcome.all_text();
        let changes: Vec<_> = self.activity.iter().filter(|activity| is_shown(activity)).collect();
        if let [Activity::Changed { before, after, .. }] = changes.as_slice() {
            about.push(counts(before.as_deref(), after));
        } else if changes.is_empty() && !self.outcome.is_error {
            about.push(match text.trim_end().lines().count() {
                1 => "1 line".to_owned(),
                count => format!("{count} lines"),
            });
        }
        about.push(format!("/show {number}"));
        if self.call.name == ROUTE {
            return self.route(width);
        }
        let by = self.by.as_ref().map(|by| format!("{}: ", display_line(by))).unwrap_or_default();
        let title = by + &self.title(cwd);
        let room = |about: &str| width.saturating_sub(2 + 2 + about.width());
        // If both do not fit, the title takes precedence over the details.
        let whole = about.join(" · ");
        let fits = title.width().min(ENOUGH) <= room(&whole);
        let about = if fits { whole } else { about.pop().unwrap_or_default() };
        let title = cut(&title, room(&about));
        let mut out = format!("{mark} {title}  {QUIET}{about}{QUIET:#}\n");
        if self.outcome.is_error {
            let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed and said nothing");
            out.push_str(&format!("  {red}{}{red:#}\n", cut(&display_line(first), width.saturating_sub(2))));
        }
        for change in &changes {
            if let (Activity::Changed { path, before, after }, true) = (change, changes.len() > 1) {
                let path = path.strip_prefix(cwd).unwrap_or(path).to_string_lossy();
                let path = cut(&display_line(&path), width.saturating_sub(24));
                out.push_str(&format!("  {path} {QUIET}{}{QUIET:#}\n", counts(before.as_deref(), after)));
            }
            out.push_str(&set(change, width));
        }
        out
    }

    /// Returns the title with the path of the file that was used, which the arguments may spell differently.
    fn title(&self, cwd: &Path) -> String {
        let file = self.activity.iter().find_map(|activity| match activity {
            Activity::Location { path, .. } | Activity::Changed { path, .. } => Some(path),
            Activity::Running | Activity::Progress(_) | Activity::TodoList(_) | Activity::Terminal { .. } => None,
        });
        match file.filter(|_| self.call.arguments.get("path").is_some()) {
            Some(file) => {
                let file = file.strip_prefix(cwd).unwrap_or(file).to_string_lossy().into_owned();
                let file = if file.is_empty() { "." } else { &file };
                format!("{} {}", display_line(&self.call.name), path_line(file))
            }
            None => title(&self.call),
        }
    }

    /// Renders the route of a prompt with its reason, or the parts of a plan.
    fn route(&self, width: usize) -> String {
        let plans: String = self.activity.iter().map(|plan| set(plan, width)).collect();
        if !plans.is_empty() {
            return plans;
        }
        let mut wrap = Wrap::default();
        wrap.begin(Margin { first: "→ ".to_owned(), next: "  ".to_owned(), width: 2 });
        wrap.push(&display_line(&self.outcome.all_text()), QUIET, width);
        wrap.end(width);
        wrap.take()
    }

    /// Renders the call with all its arguments and output.
    pub(super) fn render_unfolded(&self) -> String {
        let mut out = format!("{BOLD}{}{BOLD:#}\n", display_line(&self.call.name));
        let mut arguments = self.call.arguments.clone();
        for key in ["command", "code"] {
            if let Some(lines) = arguments.get(key).and_then(Value::as_str).map(str::to_owned) {
                lines.lines().for_each(|line| out.push_str(&format!("  {}\n", verbatim(line))));
                arguments.as_object_mut().map(|arguments| arguments.remove(key));
            }
        }
        if arguments.as_object().is_none_or(|arguments| !arguments.is_empty()) {
            let text = format!("{arguments:#}");
            text.lines().for_each(|line| out.push_str(&format!("  {QUIET}{}{QUIET:#}\n", verbatim(line))));
        }
        for activity in &self.activity {
            if let Activity::Changed { path, before, after } = activity {
                out.push_str(&format!("{BOLD}{}{BOLD:#}\n", display_line(&path.to_string_lossy())));
                diff::lines(before.as_deref(), after, usize::MAX)
                    .iter()
                    .for_each(|line| out.push_str(&format!("{line}\n")));
            }
        }
        self.outcome.all_text().lines().for_each(|line| out.push_str(&format!("{}\n", verbatim(line))));
        out
    }
}

fn counts(before: Option<&str>, after: &str) -> String {
    let (more, less) = diff::counts(before, after);
    format!("{}+{more} -{less}", if before.is_none() { "new file, " } else { "" })
}

/// Renders a diff of at most `MAX_DIFF` lines, or a to-do list.
fn set(activity: &Activity, width: usize) -> String {
    match activity {
        Activity::Changed { before, after, .. } => {
            let lines = diff::lines(before.as_deref(), after, width.saturating_sub(1));
            let few = if lines.len() > MAX_DIFF { MAX_DIFF - 1 } else { lines.len() };
            let mut out: String = lines[..few].iter().map(|line| format!(" {line}\n")).collect();
            if few < lines.len() {
                out.push_str(&format!("      {QUIET}… {} more lines{QUIET:#}\n", lines.len() - few));
            }
            out
        }
        Activity::TodoList(steps) => steps.iter().map(|line| step(line, width)).collect(),
        _ => String::new(),
    }
}

fn is_shown(activity: &Activity) -> bool {
    matches!(activity, Activity::Changed { .. } | Activity::TodoList(_))
}

fn step(step: &TodoStep, width: usize) -> String {
    let text = cut(&display_line(&step.text), width.saturating_sub(4));
    match step.status {
        StepStatus::Pending => format!("  ☐ {text}\n"),
        StepStatus::InProgress => format!("  {BOLD}▸ {text}{BOLD:#}\n"),
        StepStatus::Completed => format!("  {QUIET}☑ {text}{QUIET:#}\n"),
    }
}

/// Returns the tool's name, as permission rules have it, and the subject of the call.
pub(super) fn title(call: &ToolUse) -> String {
    let to = call.arguments["to"].as_str().filter(|_| call.name == ROUTE);
    let about = to
        .or_else(|| subject(&call.arguments))
        .map(|about| display_line(&about.trim().replace('\n', " ⏎ ")))
        .unwrap_or_default();
    format!("{} {about}", display_line(&call.name)).trim_end().to_owned()
}
