//! What a call would do, as far as its arguments show it to a person who is asked for consent.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A larger file is not read to show what would become of it.
const MAX_PREVIEW: u64 = 256 << 10;

#[derive(Debug, Clone, PartialEq)]
pub enum Preview {
    /// This command line, whole.
    Command(String),
    /// This file, or the part of it that changes.
    Change { path: PathBuf, before: Option<String>, after: String },
}

pub fn preview(tool: &str, arguments: &Value, cwd: &Path) -> Vec<Preview> {
    if let Some(command) = arguments.get("command").and_then(Value::as_str) {
        return vec![Preview::Command(command.to_owned())];
    }
    let Some(path) = arguments.get("path").and_then(Value::as_str).map(|path| cwd.join(path)) else {
        return Vec::new();
    };
    let change = |before: Option<&str>, after: &str| Preview::Change {
        path: path.clone(),
        before: before.map(str::to_owned),
        after: after.to_owned(),
    };
    match tool {
        "developer__write_file" => {
            // What is there now is lost if it is allowed; a file that is too long to show is seen as new.
            let small = path.metadata().is_ok_and(|file| file.is_file() && file.len() <= MAX_PREVIEW);
            let before = small.then(|| std::fs::read_to_string(&path).ok()).flatten();
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

/// The argument that says most about a call: what it runs, reads, fetches or looks for.
pub fn subject(arguments: &Value) -> Option<&str> {
    ["command", "path", "url", "pattern", "query", "task", "name"]
        .iter()
        .find_map(|key| arguments.get(key).and_then(Value::as_str))
}
