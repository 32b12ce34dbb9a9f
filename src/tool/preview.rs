//! What a call would do, as far as its arguments show it to a person who is asked for consent.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::FileTarget;
use crate::root_files::RootedPath;

/// A larger file is not read to show what would become of it.
const MAX_PREVIEW: u64 = 256 << 10;

#[derive(Debug, Clone, PartialEq)]
pub enum Preview {
    /// This command line, whole.
    Command(String),
    /// This file, or the part of it that changes.
    Change { path: PathBuf, before: Option<String>, after: String },
}

/// `target` is the file that the call is about.
pub fn preview(tool: &str, arguments: &Value, target: Option<&FileTarget>) -> Vec<Preview> {
    if let Some(command) = arguments.get("command").and_then(Value::as_str) {
        return vec![Preview::Command(command.to_owned())];
    }
    let Some(target) = target else { return Vec::new() };
    let change = |before: Option<&str>, after: &str| Preview::Change {
        path: target.path.clone(),
        before: before.map(str::to_owned),
        after: after.to_owned(),
    };
    match tool {
        "developer__write_file" => {
            // What is there now is lost if it is allowed; a file that is too long to show is seen as new.
            let before = text_of(&target.real);
            arguments["content"].as_str().map(|after| change(before.as_deref(), after)).into_iter().collect()
        }
        "developer__edit_file" => {
            let edits = arguments["edits"].as_array().map(Vec::as_slice).unwrap_or_default();
            let pairs = edits.iter().filter_map(|edit| Some((edit["before"].as_str()?, edit["after"].as_str()?)));
            pairs.map(|(before, after)| change(Some(before), after)).collect()
        }
        _ => Vec::new(),
    }
}

/// A text of moderate size, if there is one at this resolved path.
fn text_of(path: &Path) -> Option<String> {
    let file = RootedPath::open(&[PathBuf::from("/")], path).and_then(|path| path.read()).ok()?;
    let mut text = String::new();
    let length = file.take(MAX_PREVIEW + 1).read_to_string(&mut text).ok()?;
    (length as u64 <= MAX_PREVIEW).then_some(text)
}

/// The argument that says most about a call: what it runs, reads, fetches or looks for.
pub fn subject(arguments: &Value) -> Option<&str> {
    ["command", "path", "url", "pattern", "query", "task", "name"]
        .iter()
        .find_map(|key| arguments.get(key).and_then(Value::as_str))
}
