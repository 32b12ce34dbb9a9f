//! Walks the files below a folder for `search`, `find_files` and `list_dir`. Skips files in `.gitignore`, `.git`
//! folders and hidden paths, and does not follow links.

use std::io;
use std::path::Path;
use std::sync::Arc;

use globset::{GlobBuilder, GlobMatcher};
use ignore::WalkBuilder;

use super::paths::printable;
use crate::services::builtin::answer::ToolRefusal;
use crate::tool::SessionContext;

/// Returns a walk in name order.
pub(super) fn walk_folder(session: &Arc<SessionContext>, folder: &Path) -> WalkBuilder {
    let session = Arc::clone(session);
    let mut walk = WalkBuilder::new(folder);
    walk.hidden(false)
        // The user's git settings and the absence of a repository do not change the result.
        .git_global(false)
        .require_git(false)
        .follow_links(false)
        .sort_by_file_name(Ord::cmp)
        .filter_entry(move |entry| entry.file_name() != ".git" && session.find_hidden(entry.path()).is_none());
    walk
}

/// Fails if the folder cannot be read. A walk would find nothing in it, as in an empty one.
pub(super) fn check_folder(folder: &Path, attempt: &str, shown: &str) -> Result<(), ToolRefusal> {
    std::fs::read_dir(folder).map(drop).map_err(|error| ToolRefusal::io(attempt, shown, &error))
}

/// The number of files and folders below a folder that could not be read.
#[derive(Debug, Default)]
pub(super) struct UnreadableEntries(usize);

impl UnreadableEntries {
    /// Counts the entry of an error from a walk. Ignores entries that are gone since their folder was read.
    pub(super) fn add(&mut self, error: &ignore::Error) {
        self.0 += usize::from(error.io_error().is_none_or(|error| error.kind() != io::ErrorKind::NotFound));
    }

    /// Counts a file that could not be opened. Ignores files that are gone since their folder was read.
    pub(super) fn add_file(&mut self, error: &io::Error) {
        self.0 += usize::from(error.kind() != io::ErrorKind::NotFound);
    }

    pub(super) fn add_number(&mut self, number: usize) {
        self.0 += number;
    }

    /// Returns the line at the end of an answer; empty if everything could be read.
    pub(super) fn line(&self) -> String {
        match self.0 {
            0 => String::new(),
            1 => "[1 entry could not be read]\n".to_owned(),
            number => format!("[{number} entries could not be read]\n"),
        }
    }

    /// Returns the same after a text without a line break at its end.
    pub(super) fn after_line(&self) -> String {
        if self.0 == 0 { String::new() } else { format!("\n{}", self.line()) }
    }
}

/// Compiles a glob for paths relative to the walked folder. A glob without a `/` matches names at any depth.
pub(super) fn glob(pattern: &str) -> Result<GlobMatcher, ToolRefusal> {
    let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
    let anywhere = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
    let glob = GlobBuilder::new(anywhere.trim_start_matches('/')).literal_separator(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| {
        ToolRefusal::new(format!(
            "the glob `{}` is wrong: {}; examples: `*.rs`, `src/**/*.{{ts,tsx}}`",
            printable(pattern),
            error.kind()
        ))
    })
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
