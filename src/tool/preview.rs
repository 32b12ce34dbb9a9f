//! Describes a call for the permission request: the command it runs or the change it makes to a file.

use std::path::PathBuf;

use serde_json::{Map, Value};

/// The change that a call would make to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// The file as the client names it.
    pub path: PathBuf,
    /// The text before the change; `None` if the file does not exist. The whole text, unless the file is very large.
    pub before: Option<String>,
    /// The text after the change, to the same extent.
    pub after: String,
    /// The first changed line; starts at 1.
    pub line: u32,
}

/// Returns the command line that a call runs. `None` if it runs none.
pub fn command(arguments: &Map<String, Value>) -> Option<&str> {
    arguments.get("command").and_then(Value::as_str)
}

/// A script that a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptText<'a> {
    pub language: &'a str,
    pub text: &'a str,
}

/// Returns the script that a call runs. `None` unless the call has the arguments `script` and `language`.
pub fn script(arguments: &Map<String, Value>) -> Option<ScriptText<'_>> {
    let text = |name: &str| arguments.get(name).and_then(Value::as_str);
    Some(ScriptText { language: text("language")?, text: text("script")? })
}

/// Returns the argument that describes a call best: what it runs, reads, fetches or searches.
pub fn subject(arguments: &Value) -> Option<&str> {
    ["command", "script", "path", "url", "pattern", "query", "task", "name"]
        .iter()
        .find_map(|key| arguments.get(key).and_then(Value::as_str))
}
