//! Implements `list_dir`: shows a folder as a tree, folders first, with the size of each file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::tool::CallContext;

use super::text::looks_binary;
use super::{output, paths, report, walk};
use crate::services::builtin::answer::{ToolRefusal, ToolReply, count, size, text};

const MAX_ENTRIES: usize = 1_000;
/// Lines are counted in files up to this size, while the sum stays below [`MAX_COUNTED`].
const MAX_FILE: u64 = 1 << 20;
const MAX_COUNTED: u64 = 32 << 20;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListDir {
    /// Default: working directory
    path: Option<String>,
    /// Levels, default 2
    #[schemars(range(min = 1, max = 10))]
    depth: Option<usize>,
}

#[derive(Debug, Default)]
struct Folder {
    folders: BTreeMap<OsString, Folder>,
    files: BTreeMap<OsString, String>,
}

pub(super) fn list_dir(call: &CallContext, request: &ListDir) -> ToolReply {
    let place = paths::target(call, request.path.as_deref().unwrap_or("."))?;
    let shown = paths::display_path(&call.session, &place);
    let metadata = place.symlink_metadata().map_err(|error| ToolRefusal::io("list", &shown, &error))?;
    if !metadata.is_dir() {
        return Err(ToolRefusal::new(format!("`{shown}` is a file; use `read_file`")));
    }
    walk::check_folder(&place, "list", &shown)?;
    report::place(call, &place, None);
    let depth = request.depth.unwrap_or(2).clamp(1, 10);
    let mut tree = Folder::default();
    let mut entries = 0;
    let mut budget = MAX_COUNTED;
    let mut complete = true;
    let mut unreadable = walk::UnreadableEntries::default();
    let roots = paths::roots(&call.session);
    for entry in walk::walk_folder(&call.session, &place).max_depth(Some(depth)).build() {
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
        let Ok(relative) = entry.path().strip_prefix(&place) else { continue };
        let Some(name) = relative.file_name() else { continue };
        if entries == MAX_ENTRIES {
            complete = false;
            break;
        }
        entries += 1;
        let parent = relative.parent().into_iter().flat_map(Path::components);
        let folder =
            parent.fold(&mut tree, |folder, part| folder.folders.entry(part.as_os_str().to_owned()).or_default());
        if entry.file_type().is_some_and(|kind| kind.is_dir()) {
            folder.folders.entry(name.to_owned()).or_default();
        } else {
            folder.files.insert(name.to_owned(), describe(&roots, entry.path(), &mut budget));
        }
    }
    let mut listing = format!("{shown}/\n");
    draw(&tree, 1, &mut listing);
    if entries == 0 {
        listing.push_str("  (empty, or all of it is ignored)\n");
    }
    if !complete {
        listing.push_str(&format!("[stopped after {MAX_ENTRIES} entries; list a folder below, or use `find_files`]\n"));
    }
    listing.push_str(&unreadable.line());
    Ok(text(output::excerpt(&listing)))
}

fn draw(folder: &Folder, depth: usize, listing: &mut String) {
    let indent = "  ".repeat(depth);
    for (name, folder) in &folder.folders {
        listing.push_str(&format!("{indent}{}/\n", paths::printable(&name.to_string_lossy())));
        draw(folder, depth + 1, listing);
    }
    for (name, description) in &folder.files {
        listing.push_str(&format!("{indent}{}{description}\n", paths::printable(&name.to_string_lossy())));
    }
}

/// Returns the number of lines of a text, the size of any other file, or the target of a link.
fn describe(roots: &[PathBuf], path: &Path, budget: &mut u64) -> String {
    let Ok(metadata) = path.symlink_metadata() else { return String::new() };
    if metadata.is_symlink() {
        let target = path.read_link().unwrap_or_default();
        return format!(" -> {}", paths::printable(&target.to_string_lossy()));
    }
    if !metadata.is_file() {
        return "  (special)".to_owned();
    }
    let length = metadata.len();
    if length <= MAX_FILE
        && let Some(rest) = budget.checked_sub(length)
        && let Some(lines) = lines(roots, path)
    {
        *budget = rest;
        return format!("  {}", count(lines, "line"));
    }
    format!("  {}", size(length))
}

fn lines(roots: &[PathBuf], path: &Path) -> Option<usize> {
    let mut bytes = Vec::new();
    paths::open(roots, path).ok()?.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
    let unfinished = bytes.last().is_some_and(|byte| *byte != b'\n');
    (!looks_binary(&bytes)).then(|| bytes.iter().filter(|byte| **byte == b'\n').count() + usize::from(unfinished))
}
