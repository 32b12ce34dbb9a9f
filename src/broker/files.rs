//! `{group, files: REGEX}`: a call is admitted only if every path among its arguments matches, after it was
//! made absolute and its links were resolved.
//!
//! Invariant: a call without a path, and a tool that takes a command line, is never admitted by such a rule.

use std::path::{Component, Path, PathBuf};

use regex::Regex;
use serde_json::{Map, Value};

use crate::tool::{Session, ToolSpec};

/// Arguments with one of these words as their name, or as its last part, are paths.
const PATH_WORDS: [&str; 16] = [
    "path",
    "paths",
    "file",
    "files",
    "filename",
    "filepath",
    "dir",
    "directory",
    "folder",
    "source",
    "src",
    "destination",
    "dest",
    "target",
    "from",
    "to",
];
/// A tool with such an argument can reach any file through it.
const COMMAND_WORDS: [&str; 8] = ["command", "commands", "cmd", "script", "code", "shell", "argv", "program"];

/// True for a tool that no `files` rule can hold.
pub(super) fn takes_command_line(tool: &ToolSpec) -> bool {
    let properties = tool.input_schema.get("properties").and_then(Value::as_object);
    properties.is_some_and(|properties| properties.keys().any(|name| ends_in(name, &COMMAND_WORDS)))
}

/// `Err` says which path is not allowed, for the model.
pub(super) fn check(arguments: &Map<String, Value>, patterns: &[&Regex], session: &Session) -> Result<(), String> {
    let mut paths = Vec::new();
    collect(arguments, false, &mut paths);
    if paths.is_empty() {
        return Err("this mode may use the tool on certain files only, and the call names none".to_owned());
    }
    for path in paths {
        let real = resolve(path, &session.cwd)?;
        let shown = below(&real, session);
        if !patterns.iter().any(|pattern| pattern.is_match(&shown)) {
            let patterns: Vec<_> = patterns.iter().map(|pattern| format!("`{pattern}`")).collect();
            return Err(format!(
                "`{shown}` is not among the files this mode may use the tool on: {}",
                patterns.join(" or ")
            ));
        }
    }
    Ok(())
}

fn collect<'a>(arguments: &'a Map<String, Value>, inherited: bool, paths: &mut Vec<&'a str>) {
    for (name, value) in arguments {
        collect_value(value, inherited || ends_in(name, &PATH_WORDS), paths);
    }
}

fn collect_value<'a>(value: &'a Value, is_path: bool, paths: &mut Vec<&'a str>) {
    match value {
        Value::String(text) if is_path => paths.push(text),
        Value::Array(items) => items.iter().for_each(|item| collect_value(item, is_path, paths)),
        Value::Object(object) => collect(object, is_path, paths),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// `file_path`, `filePath` and `path` all end in `path`.
fn ends_in(name: &str, words: &[&str]) -> bool {
    let last = name.rsplit(['_', '-', '.']).next().unwrap_or(name);
    let camel = last.rfind(|c: char| c.is_ascii_uppercase()).map_or(last, |start| &last[start..]);
    [last, camel].iter().any(|part| words.contains(&part.to_ascii_lowercase().as_str()))
}

/// Absolute, with `..` and links resolved as the system would; what does not exist yet is taken as written.
fn resolve(path: &str, cwd: &Path) -> Result<PathBuf, String> {
    let path = path.strip_prefix("file://").unwrap_or(path);
    if path.contains('\0') {
        return Err("a path holds a NUL character".to_owned());
    }
    let mut real = PathBuf::from("/");
    for component in cwd.join(path).components() {
        match component {
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
            Component::ParentDir => {
                real.pop();
            }
            Component::Normal(part) => {
                real.push(part);
                // One component at a time: `link/..` must leave where the link leads, not where it stands.
                if let Ok(resolved) = std::fs::canonicalize(&real) {
                    real = resolved;
                } else if std::fs::symlink_metadata(&real).is_ok_and(|metadata| metadata.is_symlink()) {
                    return Err(format!("`{path}` goes through a link that leads nowhere"));
                }
            }
        }
    }
    Ok(real)
}

/// Relative to the session's root it lies in, so that the folders above a project decide nothing.
fn below(real: &Path, session: &Session) -> String {
    let roots = session.roots.iter().filter_map(|root| std::fs::canonicalize(root).ok());
    let inside = roots.filter_map(|root| real.strip_prefix(&root).ok().map(Path::to_owned));
    let shortest = inside.min_by_key(|path| path.as_os_str().len());
    shortest.unwrap_or_else(|| real.to_owned()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn session() -> (tempfile::TempDir, std::sync::Arc<Session>) {
        let folder = tempfile::tempdir().expect("a folder");
        let project = folder.path().join("tests/project");
        std::fs::create_dir_all(project.join("docs")).expect("created");
        std::fs::create_dir_all(project.join("src")).expect("created");
        let session = Session::new("s", project, Vec::new(), folder.path().join("scratch"));
        (folder, session)
    }

    fn allowed(session: &Session, pattern: &str, arguments: Value) -> bool {
        let pattern = Regex::new(pattern).expect("a pattern");
        check(arguments.as_object().expect("an object"), &[&pattern], session).is_ok()
    }

    #[test]
    fn every_path_must_match() {
        let (_folder, session) = session();
        assert!(allowed(&session, r"\.md$", json!({"path": "docs/a.md"})));
        assert!(!allowed(&session, r"\.md$", json!({"path": "docs/a.rs"})));
        assert!(!allowed(&session, r"\.md$", json!({"source": "a.md", "destination": "b.rs"})));
        assert!(!allowed(&session, r"\.md$", json!({"edits": [{"file_path": "a.md"}, {"filePath": "b.rs"}]})));
        assert!(!allowed(&session, r"\.md$", json!({"text": "no path at all"})));
        assert!(!allowed(&session, r"\.md$", json!({})));
    }

    #[test]
    fn a_folder_above_the_project_decides_nothing() {
        let (_folder, session) = session();
        assert!(!allowed(&session, r"(^|/)tests?/", json!({"path": "src/lib.rs"})));
        assert!(allowed(&session, r"(^|/)tests?/", json!({"path": "tests/lib.rs"})));
        assert!(!allowed(&session, r"(^|/)tests?/", json!({"path": "tests/../src/lib.rs"})));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_judged_by_where_it_leads() {
        let (_folder, session) = session();
        std::fs::write(session.cwd.join("src/main.rs"), "").expect("written");
        std::os::unix::fs::symlink(session.cwd.join("src/main.rs"), session.cwd.join("docs/a.md")).expect("linked");
        std::os::unix::fs::symlink(session.cwd.join("src"), session.cwd.join("docs.md")).expect("linked");
        std::os::unix::fs::symlink("/nowhere/x.md", session.cwd.join("docs/b.md")).expect("linked");
        assert!(!allowed(&session, r"\.md$", json!({"path": "docs/a.md"})));
        assert!(!allowed(&session, r"\.md", json!({"path": "docs.md/main.rs"})));
        assert!(!allowed(&session, r"\.md$", json!({"path": "docs/b.md"})));
    }
}
