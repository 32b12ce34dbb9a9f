//! Extracts file locations, diffs and MCP app links from the result of a third-party tool. Built-in tools report these
//! themselves.
//!
//! Invariant: only files below the folders of the session become locations, and nothing is guessed from text.

use std::path::{Component, Path, PathBuf};

use agent_client_protocol::v1::schema as acp;
use serde_json::{Map, Value};

use crate::conversation::{Content, resource};
use crate::tool::ToolOutcome;

const MAX_PLACES: usize = 20;
const MAX_DIFFS: usize = 20;
/// Longer texts, in bytes, are not shown as a diff.
const MAX_TEXT: usize = 256 << 10;
const MAX_DEPTH: usize = 6;
/// Maximum number of JSON values to visit in one result.
const MAX_VALUES: usize = 2_000;

const PATHS: [&str; 5] = ["path", "file", "filePath", "file_path", "filename"];
const BEFORE: [&str; 4] = ["oldText", "old_text", "oldContent", "before"];
const AFTER: [&str; 4] = ["newText", "new_text", "newContent", "after"];
const LINES: [&str; 4] = ["line", "lineNumber", "line_number", "startLine"];

/// Returns the existing files of the session that the result names: by absolute path in structured content, or by the
/// `file:` URI of a link or resource.
pub(super) fn places(outcome: &ToolOutcome, roots: &[PathBuf]) -> Vec<acp::ToolCallLocation> {
    let mut places: Vec<acp::ToolCallLocation> = Vec::new();
    let mut add = |path: PathBuf, line: Option<u32>| {
        let known = places.iter().any(|place| place.path == path);
        if !known && places.len() < MAX_PLACES && is_below(&path, roots) && path.exists() {
            places.push(acp::ToolCallLocation::new(path).line(line));
        }
    };
    for content in &outcome.content {
        let (Content::Link(value) | Content::Resource(value)) = content else { continue };
        if let Some(path) = resource(value)["uri"].as_str().and_then(file_of) {
            add(path, None);
        }
    }
    let mut left = MAX_VALUES;
    let mut objects = |object: &Map<String, Value>| {
        let line = LINES.iter().find_map(|key| object.get(*key)?.as_u64()).and_then(|line| u32::try_from(line).ok());
        let named = |key: &String| PATHS.contains(&key.as_str());
        for (key, value) in object {
            if let Some(path) = value.as_str().and_then(absolute) {
                add(path, line.filter(|_| named(key)));
            }
            for path in value.as_array().into_iter().flatten().filter_map(Value::as_str).filter_map(absolute) {
                add(path, None);
            }
        }
    };
    if let Some(structured) = &outcome.structured {
        walk(structured, 0, &mut left, &mut objects);
    }
    places
}

/// Returns the changes in the structured content of a successful result. A change is an object with a path below the
/// session's folders, the new text, and possibly the old one.
pub(super) fn diffs(outcome: &ToolOutcome, cwd: &Path, roots: &[PathBuf]) -> Vec<acp::ToolCallContent> {
    let mut diffs = Vec::new();
    let mut left = MAX_VALUES;
    let text = |object: &Map<String, Value>, keys: &[&str]| {
        let text = keys.iter().find_map(|key| object.get(*key)?.as_str()).filter(|text| text.len() <= MAX_TEXT);
        text.map(str::to_owned)
    };
    let mut objects = |object: &Map<String, Value>| {
        let path = PATHS.iter().find_map(|key| object.get(*key)?.as_str()).map(|path| cwd.join(path));
        let Some(path) = path.filter(|path| diffs.len() < MAX_DIFFS && is_below(path, roots)) else { return };
        if let Some(after) = text(object, &AFTER) {
            diffs.push(acp::ToolCallContent::Diff(acp::Diff::new(path, after).old_text(text(object, &BEFORE))));
        }
    };
    if let Some(structured) = outcome.structured.as_ref().filter(|_| !outcome.is_error) {
        walk(structured, 0, &mut left, &mut objects);
    }
    diffs
}

/// Returns a link to the page of an MCP app. A client that shows such pages can read it through Skein.
pub(super) fn app(uri: &str, title: &str) -> acp::ToolCallContent {
    let link = acp::ResourceLink::new(title, uri).mime_type("text/html;profile=mcp-app".to_owned());
    acp::ContentBlock::ResourceLink(link).into()
}

fn walk(value: &Value, depth: usize, left: &mut usize, objects: &mut impl FnMut(&Map<String, Value>)) {
    if depth > MAX_DEPTH || *left == 0 {
        return;
    }
    *left -= 1;
    match value {
        Value::Object(object) => {
            objects(object);
            object.values().for_each(|value| walk(value, depth + 1, left, objects));
        }
        Value::Array(items) => items.iter().for_each(|value| walk(value, depth + 1, left, objects)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn absolute(text: &str) -> Option<PathBuf> {
    (text.starts_with('/') && text.len() < 4_096 && !text.contains(['\n', '\0'])).then(|| PathBuf::from(text))
}

fn is_below(path: &Path, roots: &[PathBuf]) -> bool {
    let straight = !path.components().any(|part| matches!(part, Component::ParentDir));
    straight && roots.iter().any(|root| path.starts_with(root) && path != root)
}

/// Returns the path of a `file:` URI. `None` if it is malformed or refers to another host.
fn file_of(uri: &str) -> Option<PathBuf> {
    let path = uri.strip_prefix("file://")?;
    let path = path.strip_prefix("localhost").unwrap_or(path);
    let mut bytes = Vec::new();
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    absolute(&String::from_utf8(bytes).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(structured: Value) -> ToolOutcome {
        ToolOutcome { structured: Some(structured), ..ToolOutcome::text("done") }
    }

    #[test]
    fn only_files_of_the_session_that_are_there_become_places() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("project");
        std::fs::create_dir(&root).unwrap();
        let (a, b) = (root.join("a.rs"), root.join("b c.rs"));
        std::fs::write(&a, "").unwrap();
        std::fs::write(&b, "").unwrap();
        std::fs::write(folder.path().join("outside"), "").unwrap();
        let mut outcome = answer(json!({
            "matches": [{"path": a, "line": 7}, {"path": root.join("missing")}, {"path": "/etc/passwd"}],
            "around": root.join("../outside"),
        }));
        outcome.content.push(Content::Link(json!({"uri": format!("file://{}/b%20c.rs", root.display()), "name": "b"})));
        let found = places(&outcome, &[root]);
        let shown: Vec<_> = found.iter().map(|place| (place.path.clone(), place.line)).collect();
        assert_eq!(shown, [(b, None), (a, Some(7))]);
    }

    #[test]
    fn a_change_with_both_texts_is_a_diff() {
        let outcome = answer(
            json!({"edits": [{"path": "src/a.rs", "oldText": "a", "newText": "b"}, {"path": "/etc/x", "newText": "b"}]}),
        );
        let found = diffs(&outcome, Path::new("/p"), &[PathBuf::from("/p")]);
        assert_eq!(json!(found), json!([{"type": "diff", "path": "/p/src/a.rs", "oldText": "a", "newText": "b"}]));
        assert!(diffs(&ToolOutcome { is_error: true, ..outcome }, Path::new("/p"), &[PathBuf::from("/p")]).is_empty());
    }
}
