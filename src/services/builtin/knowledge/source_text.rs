//! Reads values from the text of an item, and reports problems with their location. Text from a file is shown on one
//! line without invisible characters.

use serde_json::Value;

use super::answer;
use crate::manifest::{self, SourceFile};

/// Maximum bytes shown of a description.
const MAX_DESCRIPTION: usize = 1_000;
/// Maximum bytes shown of a path or another name from a project.
const MAX_SHOWN: usize = 300;
/// Help for an item without front matter.
pub(super) const FRONT: &str =
    "begin the file with a line `---`, then `name: …` and `description: …`, then a line `---`";

/// A problem in a text, not yet assigned to a file.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) at: Option<(usize, usize)>,
    pub(super) problem: String,
    pub(super) help: String,
}

impl Wrong {
    /// Sanitizes `problem`, because it may quote the text.
    pub(super) fn new(problem: impl AsRef<str>, help: impl Into<String>) -> Self {
        Self { at: None, problem: one_line(problem.as_ref()), help: help.into() }
    }

    /// Creates a problem located at the value of `path`, or at its nearest parent.
    pub(super) fn at(source: &SourceFile, path: &manifest::DocumentPath, problem: impl AsRef<str>, help: &str) -> Self {
        let at = source.place(path).span.map(|span| (span.line, span.column));
        Self { at, ..Self::new(problem, help) }
    }
}

pub(super) fn parse(source: &SourceFile) -> Result<Value, Wrong> {
    if source.text.trim().is_empty() {
        return Err(Wrong { at: Some((1, 1)), ..Wrong::new("it says nothing about itself", FRONT) });
    }
    manifest::parse(source).map_err(|found| Wrong {
        at: found.at.span.as_ref().map(|span| (span.line, span.column)),
        ..Wrong::new(found.problem, one_line(&found.help))
    })
}

/// Returns the text of a key as one line; `None` if the key is missing.
pub(super) fn text_of(source: &SourceFile, value: &Value, key: &str) -> Result<Option<String>, Wrong> {
    match &value[key] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(one_line(text))),
        _ => {
            let path = manifest::DocumentPath::root().key(key);
            Err(Wrong::at(source, &path, format!("`{key}` is not text"), "write it as text, in quotes if need be"))
        }
    }
}

/// Returns a sentence from a file on one line, without invisible characters and with a bounded length.
pub(super) fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    short(words.chars().filter(|c| !is_invisible(*c)).collect(), MAX_DESCRIPTION)
}

/// Returns a path, file name or key from a file on one line, with invisible characters replaced. The result is safe
/// to use as a label.
pub(super) fn display_name(name: &str) -> String {
    let seen = |c: char| if is_invisible(c) || (c.is_whitespace() && c != ' ') { '\u{FFFD}' } else { c };
    short(name.chars().map(seen).collect(), MAX_SHOWN)
}

fn short(text: String, bytes: usize) -> String {
    let head = answer::truncate(&text, bytes);
    if head.len() < text.len() { format!("{head}…") } else { text }
}

/// Returns whether a character is a control character, has no width or changes the text direction.
fn is_invisible(c: char) -> bool {
    c.is_control() || crate::text::is_invisible(c)
}
