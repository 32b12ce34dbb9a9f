//! `/undo` and `/redo`: restore an earlier state of the session, and its files if the user agrees.

use std::path::Path;

use super::super::diff;
use super::super::output::{CommandError, QUIET, cut, display_line};
use super::super::session_flags::prompt_failure;
use super::Chat;
use super::calls::title;
use super::commands::LineAction;
use crate::checkpoint::FileDifference;
use crate::session::{PlannedRestore, RestoreFiles, RestoreTarget};

impl Chat<'_> {
    pub(super) async fn undo(&mut self) -> Result<LineAction, CommandError> {
        let planned = self.session.plan_restore(RestoreTarget::BeforeLastTurn).await;
        let Some(planned) = planned.map_err(|error| prompt_failure(&error))? else {
            self.screen.remark("there is nothing left to undo");
            return Ok(LineAction::Done);
        };
        let prompt = planned.prompt.clone();
        let first = prompt.lines().next().unwrap_or_default();
        let subject = format!("undone: {}", cut(&display_line(first), 60));
        // Read-only calls leave nothing to undo.
        let done = planned.calls.iter().filter(|call| !self.reading.contains(&call.name));
        let mut done: Vec<_> = done.map(|call| cut(&title(call), 60)).collect();
        done.dedup();
        if !self.restore(planned).await? {
            return Ok(LineAction::Done);
        }
        self.screen.remark(&subject);
        if !done.is_empty() {
            self.screen.remark(&format!("what these calls did elsewhere stays done: {}", done.join(", ")));
        }
        Ok(LineAction::Begin(prompt))
    }

    pub(super) async fn redo(&mut self) -> Result<(), CommandError> {
        let planned = self.session.plan_restore(RestoreTarget::Forward).await;
        if let Some(planned) = planned.map_err(|error| prompt_failure(&error))?
            && self.restore(planned).await?
        {
            self.screen.remark("the session is as it was before the undo");
        }
        Ok(())
    }

    /// Shows the files that would change, asks, and restores the history, whether the answer is yes or no. Returns false
    /// if Ctrl-C cancelled it, and nothing is restored.
    async fn restore(&mut self, planned: PlannedRestore) -> Result<bool, CommandError> {
        let (kept, back): (Vec<_>, Vec<_>) =
            planned.differences.iter().cloned().partition(|difference| difference.kept.is_some());
        for difference in &kept {
            if let Some(reason) = &difference.kept {
                self.remark_about(&difference.path, &reason.to_string());
            }
        }
        let files = if back.is_empty() { Some(RestoreFiles::Keep) } else { self.ask_about(&back).await };
        let Some(files) = files else {
            self.screen.remark("cancelled; nothing was changed");
            return Ok(false);
        };
        let report = self.session.restore(planned, files).await.map_err(|error| prompt_failure(&error))?;
        for file in report.kept.iter().filter(|file| !kept.iter().any(|kept| kept.path == file.path)) {
            self.remark_about(&file.path, &file.reason.to_string());
        }
        Ok(true)
    }

    /// Asks whether to restore the files. `None` if Ctrl-C cancels the question.
    async fn ask_about(&mut self, files: &[FileDifference]) -> Option<RestoreFiles> {
        for file in files {
            let path = display_line(&self.folders.display_path(&file.path));
            self.screen.print_text(&format!("  {path} {QUIET}{}{QUIET:#}\n", change_text(file)));
        }
        let what = if files.len() == 1 { "this file" } else { "these files" };
        self.screen.print_text(&format!("Put {what} back as before? "));
        let answer = self.yes().await;
        self.screen.print_text(match answer {
            Some(true) => "→ yes\n",
            Some(false) => "→ no\n",
            None => "\n",
        });
        answer.map(|yes| if yes { RestoreFiles::Unchanged } else { RestoreFiles::Keep })
    }

    fn remark_about(&self, path: &Path, reason: &str) {
        self.screen.remark(&display_line(&format!("{} {reason}", self.folders.display_path(path))));
    }
}

/// Returns what happens to a file in short: `+1 -2`, `removed` or `changed`.
fn change_text(file: &FileDifference) -> String {
    match (&file.now, &file.then) {
        _ if file.is_removal => "removed".to_owned(),
        (now, Some(then)) => {
            let (more, less) = diff::counts(now.as_deref(), then);
            format!("+{more} -{less}")
        }
        (_, None) => "changed".to_owned(),
    }
}
