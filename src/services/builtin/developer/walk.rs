//! The files below a folder, as `search`, `find_files` and `list_dir` see them: what `.gitignore` names and
//! what git keeps for itself is left out, and so are hidden paths; links are not followed.

use std::path::Path;
use std::sync::Arc;

use globset::{GlobBuilder, GlobMatcher};
use ignore::WalkBuilder;

use super::paths::printable;
use crate::services::builtin::answer::ToolRefusal;
use crate::tool::SessionContext;

/// In the order of names.
pub(super) fn walk_folder(session: &Arc<SessionContext>, folder: &Path) -> WalkBuilder {
    let session = Arc::clone(session);
    let mut walk = WalkBuilder::new(folder);
    walk.hidden(false)
        // The same everywhere: neither the user's settings nor the lack of a repository change what is seen.
        .git_global(false)
        .require_git(false)
        .follow_links(false)
        .sort_by_file_name(Ord::cmp)
        .filter_entry(move |entry| entry.file_name() != ".git" && session.find_hidden(entry.path()).is_none());
    walk
}

/// Matches paths relative to the folder that is walked. A glob without a `/` matches names at any depth.
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
