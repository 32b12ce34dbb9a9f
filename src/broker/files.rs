//! Enforces `{group, files: REGEX}` rules. A call is admitted only if every path among its arguments matches, once it
//! is absolute and its links are resolved.
//!
//! Invariant: such a rule never admits a call without a path, or a tool that takes a command line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use regex::Regex;
use serde_json::{Map, Value};

use crate::root_files::{self, ResolveError};
use crate::tool::{ClientFolders, SessionContext, ToolSpec};

/// An argument is a path if its name, or the last part of its name, is one of these words.
const PATH_WORDS: [&str; 36] = [
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
    "pathname",
    "filenames",
    "filepaths",
    "dirs",
    "directories",
    "folders",
    "sources",
    "destinations",
    "targets",
    "uri",
    "uris",
    "location",
    "root",
    "roots",
    "cwd",
    "output",
    "outfile",
    "outdir",
    "link",
    "save",
];
/// A tool with such an argument can reach any file through it.
const COMMAND_WORDS: [&str; 8] = ["command", "commands", "cmd", "script", "code", "shell", "argv", "program"];

/// Paths that resolve differently in each process.
const PER_PROCESS_PATHS: [&str; 6] =
    ["/proc/self", "/proc/thread-self", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"];

/// The folder against which the called service resolves relative paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RelativeBase {
    /// The session's working directory, which Skein passes to the service.
    ToSession,
    /// The folder of the session at its client. Nothing of it is on this machine.
    AtClient,
    /// The folder in which the service was started, which Skein does not know.
    Elsewhere,
}

/// Returns whether the tool takes a command line, so that no `files` rule can restrict it.
pub(super) fn takes_command_line(tool: &ToolSpec) -> bool {
    tool.input_schema.iter().any(|(key, value)| declares_command(key, value))
}

/// A schema may declare arguments at any depth.
fn declares_command(key: &str, value: &Value) -> bool {
    match value {
        Value::Object(object) if key == "properties" => {
            let named = object.keys().any(|name| ends_in(name, &COMMAND_WORDS));
            named || object.values().any(|value| declares_command("", value))
        }
        Value::Object(object) => object.iter().any(|(key, value)| declares_command(key, value)),
        Value::Array(items) => items.iter().any(|item| declares_command("", item)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// The reason why a call may not use a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("a path holds a NUL character")]
    Nul,
    #[error("`{0}` is relative, and the service may mean another folder: write it absolute")]
    Relative(String),
    /// Only the service knows how it expands these: `~` may be a home folder, `%2e` a dot.
    #[error("`{0}` is not a plain path; write it absolute, or relative to the working directory")]
    NotPlain(String),
    #[error("`{0}` goes through a link that leads nowhere")]
    Dangling(String),
    #[error("`{0}` means something else to the service than to skein")]
    OfProcess(String),
    #[error("`{path}` cannot be resolved: {reason}")]
    Unresolved { path: String, reason: String },
    #[error("the path `{0}` has characters that do not show; write it without them")]
    Invisible(String),
    #[error(
        "`{shown}` is not for file tools: `{hidden}` is a hidden path, because it holds credentials or private data. Ask \
         the user for what you need to know"
    )]
    Hidden { shown: String, hidden: String },
    #[error("this mode may use the tool on certain files only, and `{argument}` could reach others")]
    CommandLine { argument: String },
    #[error("this mode may use the tool on certain files only, and the call names none")]
    NoPath,
    /// No `files` rule admits the path.
    #[error(
        "`{shown}` is not among the files this mode may use the tool on: {}",
        .patterns.iter().map(|pattern| format!("`{pattern}`")).collect::<Vec<_>>().join(" or ")
    )]
    Excluded { shown: String, patterns: Vec<String> },
    #[error("`{0}` is not UTF-8")]
    NotUtf8(String),
    #[error("`{0}` is outside of the folders of this session")]
    OutsideRoots(String),
}

/// The paths of one call. Each spelling is resolved once, so that every decision about the call concerns the same
/// files.
#[derive(Debug)]
pub(super) struct CallPaths<'a> {
    pub(super) session: &'a SessionContext,
    relative: RelativeBase,
    resolved: Mutex<BTreeMap<String, Result<PathBuf, PathError>>>,
}

impl<'a> CallPaths<'a> {
    pub(super) fn new(session: &'a SessionContext, relative: RelativeBase) -> Self {
        Self { session, relative, resolved: Mutex::default() }
    }

    /// Resolves a path, and caches the result.
    pub(super) fn resolve(&self, path: &str) -> Result<PathBuf, PathError> {
        let mut resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = resolved.entry(path.to_owned());
        entry.or_insert_with(|| resolve_in(path, self.session, self.relative)).clone()
    }

    /// Returns whether a resolved path is a folder of this machine.
    pub(super) fn is_folder(&self, real: &Path) -> bool {
        self.relative != RelativeBase::AtClient && real.is_dir()
    }
}

/// Checks every path of a call against the patterns. The error names the excluded path, for the model.
pub(super) fn check(
    arguments: &Map<String, Value>,
    patterns: &[Regex],
    of_call: &CallPaths<'_>,
) -> Result<(), PathError> {
    let mut paths = Vec::new();
    collect(arguments, false, &mut paths)?;
    if paths.is_empty() {
        return Err(PathError::NoPath);
    }
    for path in paths {
        let real = of_call.resolve(path)?;
        let shown = below(&real, of_call.session);
        if !patterns.iter().any(|pattern| pattern.is_match(&shown)) {
            let patterns = patterns.iter().map(ToString::to_string).collect();
            return Err(PathError::Excluded { shown, patterns });
        }
    }
    Ok(())
}

/// Resolves a path. Fails if the result is not below one of the session's roots.
pub fn within(path: &Path, session: &SessionContext) -> Result<PathBuf, PathError> {
    let text = path.to_str().ok_or_else(|| PathError::NotUtf8(path.display().to_string()))?;
    let real = resolve(text, &session.cwd, RelativeBase::ToSession)?;
    let below = |root: &PathBuf| std::fs::canonicalize(root).is_ok_and(|root| real.starts_with(root));
    if session.roots.iter().any(below) && session.admits_path(&real) {
        return Ok(real);
    }
    Err(PathError::OutsideRoots(path.display().to_string()))
}

/// Returns the resolved files that a call names. Omits paths that cannot be resolved.
pub(super) fn files_in_call(arguments: &Map<String, Value>, session: &SessionContext) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    if collect(arguments, false, &mut paths).is_err() {
        return Vec::new();
    }
    let relative = match session.client_folders() {
        Some(_) => RelativeBase::AtClient,
        None => RelativeBase::ToSession,
    };
    paths.into_iter().filter_map(|path| resolve_in(path, session, relative).ok()).collect()
}

/// Returns every argument that may be a path, even if another argument is a command line.
pub(super) fn all_named(arguments: &Map<String, Value>) -> Vec<&str> {
    fn visit<'a>(value: &'a Value, is_path: bool, paths: &mut Vec<&'a str>) {
        match value {
            Value::String(text) if is_path => paths.push(text),
            Value::Array(items) => items.iter().for_each(|item| visit(item, is_path, paths)),
            Value::Object(object) => visit_all(object, is_path, paths),
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    fn visit_all<'a>(arguments: &'a Map<String, Value>, inherited: bool, paths: &mut Vec<&'a str>) {
        for (name, value) in arguments {
            let is_path = names_path(name);
            if inherited && !is_path {
                paths.push(name);
            }
            visit(value, inherited || is_path, paths);
        }
    }
    let mut paths = Vec::new();
    visit_all(arguments, false, &mut paths);
    paths
}

/// Collects the paths of a call. `inherited` is true below an argument that is a path.
fn collect<'a>(arguments: &'a Map<String, Value>, inherited: bool, paths: &mut Vec<&'a str>) -> Result<(), PathError> {
    for (name, value) in arguments {
        // A tool may accept arguments that its schema does not declare.
        if ends_in(name, &COMMAND_WORDS) {
            return Err(PathError::CommandLine { argument: name.clone() });
        }
        let is_path = ends_in(name, &PATH_WORDS);
        // `{"files": {"src/main.rs": "…"}}`
        if inherited && !is_path {
            paths.push(name);
        }
        collect_value(value, inherited || is_path, paths)?;
    }
    Ok(())
}

fn collect_value<'a>(value: &'a Value, is_path: bool, paths: &mut Vec<&'a str>) -> Result<(), PathError> {
    match value {
        Value::String(text) if is_path => paths.push(text),
        Value::Array(items) => items.iter().try_for_each(|item| collect_value(item, is_path, paths))?,
        Value::Object(object) => collect(object, is_path, paths)?,
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    Ok(())
}

pub(super) fn names_path(argument: &str) -> bool {
    ends_in(argument, &PATH_WORDS)
}

pub(super) fn names_command(argument: &str) -> bool {
    ends_in(argument, &COMMAND_WORDS)
}

/// Matches the last word of a name: `file_path`, `filePath` and `path` end in `path`. `file_name` counts as `filename`.
fn ends_in(name: &str, words: &[&str]) -> bool {
    let joined: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    if ["filename", "pathname"].iter().any(|word| joined.ends_with(word) && words.contains(word)) {
        return true;
    }
    let last = name.rsplit(['_', '-', '.']).next().unwrap_or(name);
    let camel = last.rfind(|c: char| c.is_ascii_uppercase()).map_or(last, |start| &last[start..]);
    [last, camel].iter().any(|part| words.contains(&part.to_ascii_lowercase().as_str()))
}

/// Resolves a path as the called service does.
fn resolve_in(path: &str, session: &SessionContext, relative: RelativeBase) -> Result<PathBuf, PathError> {
    match session.client_folders().filter(|_| relative == RelativeBase::AtClient) {
        Some(client) => resolve_at_client(path, client),
        None => resolve(path, &session.cwd, relative),
    }
}

/// Resolves a path at the client, as text. Fails if it is not below the folders of the session.
fn resolve_at_client(path: &str, client: &ClientFolders) -> Result<PathBuf, PathError> {
    if path.contains('\0') {
        return Err(PathError::Nul);
    }
    if path.starts_with('~') || path.contains("://") || path.to_ascii_lowercase().starts_with("file:") {
        return Err(PathError::NotPlain(path.to_owned()));
    }
    let resolved = client.resolve(path);
    if client.contains(&resolved) { Ok(resolved) } else { Err(PathError::OutsideRoots(path.to_owned())) }
}

/// Makes a path absolute and resolves `..` and links as the system does. Parts that do not exist yet stay as written.
pub(super) fn resolve(path: &str, cwd: &Path, relative: RelativeBase) -> Result<PathBuf, PathError> {
    if path.contains('\0') {
        return Err(PathError::Nul);
    }
    if relative == RelativeBase::Elsewhere && !Path::new(path).is_absolute() {
        return Err(PathError::Relative(path.to_owned()));
    }
    if path.starts_with('~') || path.contains("://") || path.to_ascii_lowercase().starts_with("file:") {
        return Err(PathError::NotPlain(path.to_owned()));
    }
    let of_a_process = |prefix: &Path| PER_PROCESS_PATHS.iter().any(|own| prefix == Path::new(own));
    let admits = |prefix: &Path| relative == RelativeBase::ToSession || !of_a_process(prefix);
    match root_files::resolve_checked(&cwd.join(path), admits) {
        Ok(resolved) if resolved.dangling => Err(PathError::Dangling(path.to_owned())),
        Ok(resolved) => Ok(resolved.path),
        Err(ResolveError::Excluded(_)) => Err(PathError::OfProcess(path.to_owned())),
        Err(error) => Err(PathError::Unresolved { path: path.to_owned(), reason: error.to_string() }),
    }
}

/// Returns the roots of the session with links resolved, on this machine and at the client.
pub(super) fn all_roots(session: &SessionContext) -> Vec<PathBuf> {
    let here = session.roots.iter().filter_map(|root| std::fs::canonicalize(root).ok());
    let at_client = session.client_folders().map(|client| client.roots.as_slice()).unwrap_or_default();
    here.chain(at_client.iter().cloned()).collect()
}

/// Returns the path relative to the session root that contains it, so that folders above a project do not affect
/// matching.
pub(super) fn below(real: &Path, session: &SessionContext) -> String {
    let roots = all_roots(session).into_iter();
    let inside = roots.filter_map(|root| real.strip_prefix(&root).ok().map(Path::to_owned));
    let shortest = inside.min_by_key(|path| path.as_os_str().len());
    shortest.unwrap_or_else(|| real.to_owned()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn session() -> (tempfile::TempDir, std::sync::Arc<SessionContext>) {
        let folder = tempfile::tempdir().expect("a folder");
        let project = folder.path().join("tests/project");
        std::fs::create_dir_all(project.join("docs")).expect("created");
        std::fs::create_dir_all(project.join("src")).expect("created");
        let session = SessionContext::new("s", project, Vec::new(), folder.path().join("scratch"));
        (folder, session)
    }

    fn allowed(session: &SessionContext, pattern: &str, arguments: Value) -> bool {
        let pattern = Regex::new(pattern).expect("a pattern");
        let arguments = arguments.as_object().expect("an object");
        check(arguments, &[pattern], &CallPaths::new(session, RelativeBase::ToSession)).is_ok()
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
        assert!(!allowed(&session, r"\.md$", json!({"path": "a.md", "file_name": "b.rs"})));
        assert!(!allowed(&session, r"\.md$", json!({"path": "a.md", "output": "b.rs"})));
        assert!(!allowed(&session, r"\.md$", json!({"files": {"b.rs": "a.md"}})));
    }

    #[test]
    fn a_call_that_could_reach_any_file_is_not_allowed() {
        let (_folder, session) = session();
        assert!(!allowed(&session, r"\.md$", json!({"path": "a.md", "command": "rm b.rs"})));
        assert!(!allowed(&session, r"\.md$", json!({"path": "a.md", "options": {"shellScript": "rm b.rs"}})));
        for path in ["~/a.md", "file:///etc/%2e%2e/a.md", "FILE:a.md", "https://example.org/a.md"] {
            assert!(!allowed(&session, r"\.md$", json!({"path": path})), "{path}");
        }
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
