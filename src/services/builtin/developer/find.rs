//! Implements `find_files`: finds files by glob, newest first.

use std::time::SystemTime;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::tool::CallContext;

use super::{paths, report, walk};
use crate::services::builtin::answer::{ToolRefusal, ToolReply, count, text};

const MAX_SHOWN: usize = 500;
/// Maximum number of matches that are collected.
const MAX_FOUND: usize = 100_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FindFiles {
    /// E.g. `*.rs`, `src/**/*_test.py`
    #[schemars(length(min = 1))]
    glob: String,
    /// Folder to search
    path: Option<String>,
}

pub(super) fn find_files(call: &CallContext, request: &FindFiles) -> ToolReply {
    let glob = walk::glob(&request.glob)?;
    let place = paths::target(call, request.path.as_deref().unwrap_or("."))?;
    let shown = paths::display_path(&call.session, &place);
    if !place.is_dir() {
        return Err(ToolRefusal::new(format!("`{shown}` is not a folder; give one that exists, or leave `path` out")));
    }
    walk::check_folder(&place, "search", &shown)?;
    report::place(call, &place, None);
    let mut found = Vec::new();
    let mut looked_at = 0;
    let mut unreadable = walk::UnreadableEntries::default();
    for entry in walk::walk_folder(&call.session, &place).build() {
        if call.cancel.is_cancelled() {
            return Err(ToolRefusal::new("the call was cancelled"));
        }
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                unreadable.add(&error);
                continue;
            }
        };
        if entry.file_type().is_none_or(|kind| kind.is_dir()) {
            continue;
        }
        looked_at += 1;
        if found.len() < MAX_FOUND && entry.path().strip_prefix(&place).is_ok_and(|path| glob.is_match(path)) {
            let modified = entry.metadata().ok().and_then(|metadata| metadata.modified().ok());
            found.push((modified.unwrap_or(SystemTime::UNIX_EPOCH), entry.into_path()));
        }
    }
    if found.is_empty() {
        return Ok(text(format!(
            "none of the {} below `{shown}` matches `{}` (ignored files are left out){}",
            count(looked_at, "file"),
            paths::printable(&request.glob),
            unreadable.after_line()
        )));
    }
    // Newest first; files with equal times by name.
    found.sort_by(|(left_time, left), (right_time, right)| right_time.cmp(left_time).then_with(|| left.cmp(right)));
    let mut listing: String =
        found.iter().take(MAX_SHOWN).map(|(_, path)| paths::display_path(&call.session, path) + "\n").collect();
    if found.len() > MAX_SHOWN {
        listing.push_str(&format!("[{} more; narrow the glob or the path]\n", found.len() - MAX_SHOWN));
    }
    listing.push_str(&unreadable.line());
    Ok(text(listing))
}
