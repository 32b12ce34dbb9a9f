//! `/undo`: removes the last prompt and its answer from the session, and restores the changed files if the user agrees.

use anyhow::{anyhow, ensure};

use super::super::diff;
use super::super::output::{CommandError, QUIET, cut, display_line};
use super::super::session_flags::prompt_failure;
use super::super::whole_file::replace;
use super::Chat;
use super::calls::title;
use super::commands::LineAction;
use crate::session::ChangedFile;

const CHANGED: &str = "has changed since and stays as it is";

impl Chat<'_> {
    pub(super) async fn undo(&mut self) -> Result<LineAction, CommandError> {
        let undone = self.session.undo().await.map_err(|error| prompt_failure(&error))?;
        let Some(undone) = undone else {
            self.screen.remark("there is nothing left to undo");
            return Ok(LineAction::Done);
        };
        let first = undone.prompt.lines().next().unwrap_or_default();
        self.screen.remark(&format!("undone: {}", cut(&display_line(first), 60)));
        let (back, changed): (Vec<_>, Vec<_>) = undone.files.iter().partition(|file| is_as_left(file));
        for file in &changed {
            self.screen.remark(&format!("{} {CHANGED}", self.folders.display_path(&file.path)));
        }
        if !back.is_empty() {
            self.put_back(&back).await;
        }
        // Read-only calls leave nothing to undo.
        let done = undone.calls.iter().filter(|call| !self.reading.contains(&call.name));
        let mut done: Vec<_> = done.map(|call| cut(&title(call), 60)).collect();
        done.dedup();
        if !done.is_empty() {
            self.screen.remark(&format!("what these calls did stays done: {}", done.join(", ")));
        }
        Ok(LineAction::Begin(undone.prompt))
    }

    async fn put_back(&mut self, files: &[&ChangedFile]) {
        for file in files {
            let (more, less) = diff::counts(Some(&file.after), file.before.as_deref().unwrap_or_default());
            let how = if file.before.is_none() { "removed".to_owned() } else { format!("+{more} -{less}") };
            self.screen.print_text(&format!(
                "  {} {QUIET}{how}{QUIET:#}\n",
                display_line(&self.folders.display_path(&file.path))
            ));
        }
        let what = if files.len() == 1 { "this file" } else { "these files" };
        self.screen.print_text(&format!("Put {what} back as before? "));
        let yes = self.yes().await;
        self.screen.print_text(if yes { "→ yes\n" } else { "→ no\n" });
        for file in files.iter().filter(|_| yes) {
            if let Err(why) = put_back(file) {
                self.screen.remark(&format!("{} {why}", self.folders.display_path(&file.path)));
            }
        }
    }
}

/// Restores a file. Fails if it was changed since, which may have happened while the user was asked.
fn put_back(file: &ChangedFile) -> anyhow::Result<()> {
    ensure!(is_as_left(file), CHANGED);
    let done = match &file.before {
        Some(before) => file.path.metadata().and_then(|there| replace(&file.path, before, there.permissions())),
        None => std::fs::remove_file(&file.path),
    };
    done.map_err(|error| anyhow!("stays as it is: {error}"))
}

/// Returns true if the file has not changed since the turn. Large files are recorded only in part, so this is always
/// false for them.
fn is_as_left(file: &ChangedFile) -> bool {
    std::fs::read(&file.path).is_ok_and(|now| now == file.after.as_bytes())
}
