//! Resolves paths from a model to files in the session's roots.
//!
//! Every link is resolved before the path is compared with the roots. The result contains no link and no `..`.
//! Files are opened so that a link created after the check is an error.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::root_files::{self, ResolveError, RootedPath};
use crate::tool::{CallContext, ClientFolders, SessionContext};

use crate::services::builtin::answer::ToolRefusal;

/// Resolves the file that a tool reads or writes: at the client if it has the files of the session, else here. Fails if
/// the result is not a file for which the call was approved.
pub(super) fn file_target(call: &CallContext, name: &str) -> Result<PathBuf, ToolRefusal> {
    match call.session.client_folders() {
        Some(client) => check_target(call, name, resolve_at_client(client, name)?),
        None => target(call, name),
    }
}

/// Resolves `name` like [`resolve`]. Fails if the result is not a file for which the call was approved.
pub(in crate::services::builtin) fn target(call: &CallContext, name: &str) -> Result<PathBuf, ToolRefusal> {
    check_target(call, name, resolve(&call.session, name)?)
}

fn check_target(call: &CallContext, name: &str, place: PathBuf) -> Result<PathBuf, ToolRefusal> {
    if call.targets().is_none_or(|targets| targets.contains(&place)) {
        return Ok(place);
    }
    Err(ToolRefusal::new(format!(
        "`{}` leads to `{}` now, and the call was allowed for another file; nothing was done",
        printable(name),
        printable(&place.to_string_lossy()),
    )))
}

/// Resolves `name` in this session. Fails if the path is hidden or not below one of the session's roots.
pub(in crate::services::builtin) fn resolve(session: &SessionContext, name: &str) -> Result<PathBuf, ToolRefusal> {
    if name.is_empty() {
        return Err(ToolRefusal::new("the path is empty; `.` means the working directory"));
    }
    if name.contains('\0') {
        return Err(ToolRefusal::new("a path cannot contain a NUL character"));
    }
    let place = follow(&session.cwd.join(name)).map_err(|error| match error {
        ResolveError::Io(error) => ToolRefusal::io("resolve the path", &printable(name), &error),
        error => ToolRefusal::new(format!("could not resolve the path `{}`: {error}", printable(name))),
    })?;
    if let Some(hidden) = session.find_hidden(&place) {
        return Err(ToolRefusal::new(format!(
            "`{}` is not for file tools: `{}` is a hidden path, because it holds credentials or private data. Ask the \
             user for what you need to know",
            printable(name),
            printable(&hidden.to_string_lossy()),
        )));
    }
    if roots(session).iter().any(|root| place.starts_with(root)) && session.admits_path(&place) {
        return Ok(place);
    }
    Err(ToolRefusal::new(format!(
        "`{}` is outside of what this session may reach: {}. Use a path below one of these, or ask the user to add the folder",
        printable(name),
        roots(session).iter().map(|root| format!("`{}`", root.display())).collect::<Vec<_>>().join(", "),
    )))
}

/// Resolves `name` at the client. Fails if the path is not below one of the session's folders there.
fn resolve_at_client(client: &ClientFolders, name: &str) -> Result<PathBuf, ToolRefusal> {
    let place = client.resolve(name);
    if client.contains(&place) {
        return Ok(place);
    }
    let folders: Vec<_> = client.roots.iter().map(|root| format!("`{}`", root.display())).collect();
    let folders = folders.join(", ");
    Err(ToolRefusal::new(format!("`{}` is outside of the folders of this session: {folders}", printable(name))))
}

/// Formats a path for messages, relative to the working directory if it is below it.
pub(in crate::services::builtin) fn display_path(session: &SessionContext, place: &Path) -> String {
    let cwd = match session.client_folders() {
        Some(client) => client.cwd.clone(),
        None => follow(&session.cwd).unwrap_or_else(|_| session.cwd.clone()),
    };
    match place.strip_prefix(&cwd) {
        Ok(rest) if rest.as_os_str().is_empty() => ".".to_owned(),
        Ok(rest) => printable(&rest.to_string_lossy()),
        Err(_) => printable(&place.to_string_lossy()),
    }
}

/// Returns the path as the session names it: below a root as it was given, which may contain a link. An editor
/// knows its files by these names.
pub(in crate::services::builtin) fn session_path(session: &SessionContext, place: &Path) -> PathBuf {
    if session.client_folders().is_some() {
        return place.to_owned();
    }
    let below = |root: &PathBuf| {
        let rest = place.strip_prefix(follow(root).ok()?).ok()?;
        Some(if rest.as_os_str().is_empty() { root.clone() } else { root.join(rest) })
    };
    session.roots.iter().find_map(below).unwrap_or_else(|| place.to_owned())
}

/// Returns a name on one line, with control characters replaced.
pub(in crate::services::builtin) fn printable(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

/// Opens a path from [`resolve`] for access that does not follow links.
pub(in crate::services::builtin) fn anchor(session: &SessionContext, place: &Path) -> io::Result<RootedPath> {
    RootedPath::open(&roots(session), place)
}

/// Opens a regular file below one of the resolved roots.
pub(super) fn open(roots: &[PathBuf], place: &Path) -> io::Result<File> {
    RootedPath::open(roots, place)?.read()
}

/// Returns the session's roots, resolved.
pub(super) fn roots(session: &SessionContext) -> Vec<PathBuf> {
    let mut roots = Vec::new();
    for root in &session.roots {
        // A root that cannot be resolved is ignored.
        if let Ok(root) = follow(root)
            && !roots.contains(&root)
        {
            roots.push(root);
        }
    }
    roots
}

/// Resolves every link of an absolute path. Keeps components that do not exist.
fn follow(path: &Path) -> Result<PathBuf, ResolveError> {
    Ok(root_files::resolve(path)?.path)
}

#[cfg(test)]
#[path = "paths_tests.rs"]
mod tests;
