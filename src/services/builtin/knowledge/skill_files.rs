//! Lists the files of a skill and reads those in its folder.
//!
//! Invariant: links and `..` are resolved before a path is checked.

use std::fs;
use std::path::{Path, PathBuf};

use super::file::{KnowledgeFileError, MAX_FILE, contents};
use super::source_text::display_name;

const MAX_LISTED: usize = 100;
const MAX_DEPTH: usize = 6;

/// Returns the paths of the files in a skill's folder, except `SKILL.md`. Links are not followed. A name with line
/// breaks is shown sanitized and cannot be loaded.
pub(super) fn list(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    collect_files(folder, folder, 0, &mut files);
    files.retain(|file| file != "SKILL.md");
    files
}

fn collect_files(folder: &Path, root: &Path, depth: usize, files: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut entries: Vec<_> = entries.filter_map(Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type());
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        match kind {
            _ if hidden || files.len() >= MAX_LISTED => {}
            Ok(kind) if kind.is_dir() && depth < MAX_DEPTH => collect_files(&path, root, depth + 1, files),
            Ok(kind) if kind.is_file() => {
                files.extend(path.strip_prefix(root).ok().map(|below| display_name(&below.to_string_lossy())));
            }
            Ok(_) | Err(_) => {}
        }
    }
}

/// Reads a file below one of `folders`, whose paths are resolved. Returns its resolved path and its text.
pub(super) fn read(path: &Path, folders: &[PathBuf]) -> Result<(PathBuf, String), KnowledgeFileError> {
    let real = fs::canonicalize(path)?;
    if !folders.iter().any(|folder| real.starts_with(folder)) {
        return Err(KnowledgeFileError::Outside);
    }
    let bytes = contents(&real)?;
    let shown = || display_name(&real.to_string_lossy());
    if bytes.len() as u64 > MAX_FILE {
        return Err(KnowledgeFileError::TooLarge { path: shown() });
    }
    let text = String::from_utf8(bytes).map_err(|_| KnowledgeFileError::NotText { path: shown() })?;
    Ok((real, text))
}
