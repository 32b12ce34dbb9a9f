//! What a tool answered, made short enough for a model's window; the whole is kept in a file that it can page through.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use super::Exchange;
use crate::conversation::Content;
use crate::tool::ToolOutcome;

/// Text of a tool's answer past this goes to a file that the model can page through.
const MAX_RESULT: usize = 50_000;

impl Exchange {
    /// The outcome with text that a context can hold; the whole is kept in a file.
    pub(super) fn shorten_outcome(&self, mut outcome: ToolOutcome, id: &str) -> ToolOutcome {
        for (nth, content) in outcome.content.iter_mut().enumerate() {
            let Content::Text(text) = content else { continue };
            if text.len() <= MAX_RESULT {
                continue;
            }
            let file = self.session.scratch.join(format!("result-{}-{nth}.txt", file_name(id)));
            let kept = keep(&file, text);
            let whole = match kept {
                Ok(()) => format!("the whole is in {}", file.display()),
                Err(error) => format!("the whole could not be kept: {error}"),
            };
            let (head, tail) = (floor(text, MAX_RESULT * 3 / 4), ceiling(text, text.len() - MAX_RESULT / 4));
            let left_out = tail - head;
            *text = format!("{}\n[… {left_out} bytes left out; {whole} …]\n{}", &text[..head], &text[tail..]);
        }
        outcome
    }
}

/// For the user alone: a result may hold what nobody else may read.
fn keep(file: &Path, text: &str) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
    if let Some(folder) = file.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut options = fs::OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600).open(file)?.write_all(text.as_bytes())
}

/// A model chooses the ids of its calls; in a file's name only harmless characters stay.
fn file_name(id: &str) -> String {
    id.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')).take(68).collect()
}

fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn ceiling(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}
