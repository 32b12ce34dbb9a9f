//! `/undo`: the last prompt and what followed it are taken back; the files that it changed, if the user wants.

use super::super::diff;
use super::super::keyboard::Key;
use super::super::opening::prompt_failure;
use super::super::output::{BOLD, Failure, QUIET, cut, shown};
use super::Chat;
use super::commands::Meant;
use crate::session::Changed;

impl Chat<'_> {
    pub(super) async fn undo(&mut self) -> Result<Meant, Failure> {
        let undone = self.live.undo().await.map_err(|error| prompt_failure(&error))?;
        let Some(undone) = undone else {
            self.screen.remark("there is nothing left to take back");
            return Ok(Meant::Done);
        };
        let first = undone.prompt.lines().next().unwrap_or_default();
        self.screen.remark(&format!("taken back: {}", cut(&shown(first), 60)));
        let (back, changed): (Vec<_>, Vec<_>) = undone.files.iter().partition(|file| is_as_left(file));
        for file in &changed {
            self.screen.remark(&format!("{} has changed since and stays as it is", self.folders.shown(&file.path)));
        }
        if !back.is_empty() {
            self.put_back(&back).await;
        }
        // Whoever only looked has left nothing behind.
        let binding = self.live.binding().await.ok();
        let reads = |name: &String| {
            binding.as_ref().is_some_and(|binding| binding.tools().get(name).is_some_and(|tool| tool.read_only))
        };
        let mut done: Vec<_> = undone.calls.iter().filter(|name| !reads(name)).map(|name| shown(name)).collect();
        done.dedup();
        if !done.is_empty() {
            self.screen.remark(&format!("what these calls did stays done: {}", done.join(", ")));
        }
        Ok(Meant::Begin(undone.prompt))
    }

    async fn put_back(&mut self, files: &[&Changed]) {
        for file in files {
            let (more, less) = diff::counts(Some(&file.after), file.before.as_deref().unwrap_or_default());
            let how = if file.before.is_none() { "removed".to_owned() } else { format!("+{more} -{less}") };
            self.screen.say(&format!("  {} {QUIET}{how}{QUIET:#}\n", shown(&self.folders.shown(&file.path))));
        }
        self.keyboard.forget();
        let what = if files.len() == 1 { "this file" } else { "these files" };
        self.screen.say(&format!("Put {what} back as before? {BOLD}y{BOLD:#} yes · {BOLD}n{BOLD:#} no "));
        let yes = loop {
            match self.key().await {
                Some(Key::Letter('y' | 'Y')) => break true,
                Some(Key::Letter('n' | 'N') | Key::Escape) | None => break false,
                Some(Key::Letter(_) | Key::Enter) => {}
            }
        };
        self.screen.say(if yes { "→ yes\n" } else { "→ no\n" });
        for file in files.iter().filter(|_| yes) {
            let done = match &file.before {
                Some(before) => std::fs::write(&file.path, before),
                None => std::fs::remove_file(&file.path),
            };
            if let Err(error) = done {
                self.screen.remark(&format!("{} stays as it is: {error}", self.folders.shown(&file.path)));
            }
        }
    }
}

/// True if nobody has touched the file since the turn. Of large files only a part is known; they are never as left.
fn is_as_left(file: &Changed) -> bool {
    std::fs::read(&file.path).is_ok_and(|now| now == file.after.as_bytes())
}
