//! Derives a preview of a call from its arguments, for the permission request.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::FileTarget;
use crate::root_files::RootedPath;

/// Files larger than this are not read for a preview.
const MAX_PREVIEW: u64 = 256 << 10;

#[derive(Debug, Clone, PartialEq)]
pub enum Preview {
    /// The whole command line.
    Command(String),
    /// The file, or the part of it that changes.
    Change { path: PathBuf, before: Option<String>, after: String },
}

/// Returns the previews of a call. `target` is the file it works on.
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
            // Show the content that would be lost. A file that is too large is shown as new.
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

/// Reads the file at this resolved path. `None` if it is not text or larger than [`MAX_PREVIEW`].
fn text_of(path: &Path) -> Option<String> {
    let file = RootedPath::open(&[PathBuf::from("/")], path).and_then(|path| path.read()).ok()?;
    let mut text = String::new();
    let length = file.take(MAX_PREVIEW + 1).read_to_string(&mut text).ok()?;
    (length as u64 <= MAX_PREVIEW).then_some(text)
}

/// Returns the argument that describes a call best: what it runs, reads, fetches or searches.
pub fn subject(arguments: &Value) -> Option<&str> {
    ["command", "path", "url", "pattern", "query", "task", "name"]
        .iter()
        .find_map(|key| arguments.get(key).and_then(Value::as_str))
}
