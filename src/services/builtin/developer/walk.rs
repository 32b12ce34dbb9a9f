//! Walks the files below a folder for `search`, `find_files` and `list_dir`. Skips files in `.gitignore`, `.git`
//! folders and hidden paths, and does not follow links.

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
