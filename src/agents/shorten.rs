//! Shortens the result of a tool to fit a model's window, and stores the complete text in a file that the model can
//! read in parts.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use super::Exchange;
use crate::conversation::Content;
use crate::tool::ToolOutcome;

/// Maximum bytes of text in a tool result. Longer text goes to a file that the model can read in parts.
const MAX_RESULT: usize = 50_000;

impl Exchange {
    /// Shortens every text that is longer than `MAX_RESULT`, and stores the complete text in a file.
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

/// Writes a file that only the user can read, because a result may be private.
fn keep(file: &Path, text: &str) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
    if let Some(folder) = file.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut options = fs::OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600).open(file)?.write_all(text.as_bytes())
}

/// Removes unsafe characters from a call id, which a model may have chosen, for use in a file name.
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
