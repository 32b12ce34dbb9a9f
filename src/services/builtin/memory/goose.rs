//! Imports goose's memories: a folder of `<category>.txt` files, entries separated by blank lines, each with an
//! optional first line of `# tags`.

use std::path::{Path, PathBuf};

use crate::secrets;
use crate::store::{MemoryOwner, NewMemory, StoreError, StorePlace};

/// The result of an import.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ImportedMemories {
    /// Category and text of each imported memory.
    pub kept: Vec<(String, String)>,
    /// File and reason for each entry that was left out.
    pub left_out: Vec<(String, String)>,
}

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("cannot read {file}: {problem}")]
    Unreadable { file: String, problem: String },
    #[error("{folder} is no folder of goose's memories: {source}")]
    Foreign { folder: String, source: ForeignFolderError },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a folder does not contain goose's memories.
#[derive(Debug, thiserror::Error)]
pub enum ForeignFolderError {
    #[error("goose keeps nothing but CATEGORY.txt files in one, and there is `{0}`")]
    OtherFile(String),
    #[error("there is no CATEGORY.txt in it")]
    NoCategory,
}

/// Imports every file of `folder` into the store of memories; the files stay unchanged. A second import adds nothing.
/// If `write` is false, only reports what would be imported.
pub fn import(
    folder: &Path,
    place: &StorePlace,
    project: &Path,
    scope: MemoryOwner,
    write: bool,
) -> Result<ImportedMemories, ImportError> {
    let unreadable = |path: &Path, error: &std::io::Error| ImportError::Unreadable {
        file: path.display().to_string(),
        problem: error.to_string(),
    };
    let entries = std::fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
    let files = categories(entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
        .map_err(|source| ImportError::Foreign { folder: folder.display().to_string(), source })?;
    let store = write.then(|| place.memories()).transpose()?;
    let mut imported = ImportedMemories::default();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(|error| unreadable(&file, &error))?;
        let category = file.file_stem().map(|stem| stem.to_string_lossy().to_lowercase()).unwrap_or_default();
        for (tags, entry) in entries_of(&text) {
            if let Some(reason) = secrets::find_secret(&entry) {
                imported
                    .left_out
                    .push((file.display().to_string(), format!("an entry holds what looks like {reason}")));
                continue;
            }
            let tags: Vec<_> = std::iter::once(category.clone()).chain(tags).collect();
            if let Some(store) = &store {
                store.remember(project, &NewMemory { text: &entry, tags: &tags, scope, source: "goose" })?;
            }
            imported.kept.push((category.clone(), entry));
        }
    }
    Ok(imported)
}

/// Returns the category files of a folder. Fails if it contains anything else: an entry without tags looks like any
/// text, so only the other files distinguish memories from notes. Hidden files are ignored.
fn categories(mut files: Vec<PathBuf>) -> Result<Vec<PathBuf>, ForeignFolderError> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    files.retain(|path| !name(path).starts_with('.'));
    files.sort();
    let is_category = |path: &Path| {
        let is_file = path.symlink_metadata().is_ok_and(|metadata| metadata.is_file());
        is_file && path.extension().is_some_and(|extension| extension == "txt")
    };
    if let Some(other) = files.iter().find(|path| !is_category(path)) {
        return Err(ForeignFolderError::OtherFile(name(other)));
    }
    if files.is_empty() { Err(ForeignFolderError::NoCategory) } else { Ok(files) }
}

fn entries_of(text: &str) -> Vec<(Vec<String>, String)> {
    let text = text.replace("\r\n", "\n");
    let blocks = text.split("\n\n").map(str::trim).filter(|block| !block.is_empty());
    let entry = |block: &str| {
        let (first, rest) = block.split_once('\n').unwrap_or((block, ""));
        match first.strip_prefix('#') {
            Some(tags) if !rest.trim().is_empty() => {
                (tags.split_whitespace().map(str::to_lowercase).collect(), rest.trim().to_owned())
            }
            _ => (Vec::new(), block.to_owned()),
        }
    };
    blocks.map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_with_equal_tags_are_all_kept_and_twice_is_once() {
        let folder = tempfile::tempdir().unwrap();
        let memory = folder.path().join("memory");
        std::fs::create_dir(&memory).unwrap();
        let text =
            "# style code\nuse tabs\n\n# style code\nno semicolons\n\nplain entry\nof two lines\n\npassword: hunter2\n";
        std::fs::write(memory.join("prefs.txt"), text).unwrap();
        let place = StorePlace::files(folder.path());
        let import = || import(&memory, &place, Path::new("/p"), MemoryOwner::User, true).unwrap();
        let first = import();
        assert_eq!((first.kept.len(), first.left_out.len()), (3, 1));
        import();
        let store = place.memories().unwrap();
        let all = store.recall(Path::new("/p"), &crate::store::MemoryFilter::default()).unwrap();
        let mut texts: Vec<_> = all.iter().map(|memory| memory.text.as_str()).collect();
        texts.sort_unstable();
        assert_eq!(texts, ["no semicolons", "plain entry\nof two lines", "use tabs"]);
        assert!(all.iter().all(|memory| memory.tags.contains(&"prefs".to_owned())));
    }
}
