//! Taking over what goose remembers: a folder of `<category>.txt` files, entries separated by blank lines, each
//! with an optional first line of `# tags`.

use std::path::Path;

use super::secrets;
use crate::store::{Memories, NewMemory, Reach, StoreError};

/// What was taken over, and what was not.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Imported {
    pub kept: usize,
    /// The file and why an entry of it was left out.
    pub left_out: Vec<(String, String)>,
}

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("cannot read {file}: {problem}")]
    Unreadable { file: String, problem: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reads every file of `folder` into the store in `data`; the files stay as they are. Doing it twice keeps
/// everything once. Without `write` it is only said what would be kept.
pub fn import(folder: &Path, data: &Path, project: &Path, scope: Reach, write: bool) -> Result<Imported, ImportError> {
    let unreadable = |path: &Path, error: &std::io::Error| ImportError::Unreadable {
        file: path.display().to_string(),
        problem: error.to_string(),
    };
    let store = write.then(|| Memories::open(&data.join("memory.db"))).transpose()?;
    let entries = std::fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
    let mut files: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    let mut imported = Imported::default();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(|error| unreadable(&file, &error))?;
        let category = file.file_stem().map(|stem| stem.to_string_lossy().to_lowercase()).unwrap_or_default();
        for (tags, entry) in entries_of(&text) {
            if let Some(reason) = secrets::found_in(&entry) {
                imported
                    .left_out
                    .push((file.display().to_string(), format!("an entry holds what looks like {reason}")));
                continue;
            }
            let tags: Vec<_> = std::iter::once(category.clone()).chain(tags).collect();
            if let Some(store) = &store {
                store.remember(project, &NewMemory { text: &entry, tags: &tags, scope, source: "goose" })?;
            }
            imported.kept += 1;
        }
    }
    Ok(imported)
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
        let import = || import(&memory, folder.path(), Path::new("/p"), Reach::User, true).unwrap();
        let first = import();
        assert_eq!((first.kept, first.left_out.len()), (3, 1));
        import();
        let store = Memories::open(&folder.path().join("memory.db")).unwrap();
        let all = store.recall(Path::new("/p"), &crate::store::Filter::default()).unwrap();
        let mut texts: Vec<_> = all.iter().map(|memory| memory.text.as_str()).collect();
        texts.sort_unstable();
        assert_eq!(texts, ["no semicolons", "plain entry\nof two lines", "use tabs"]);
        assert!(all.iter().all(|memory| memory.tags.contains(&"prefs".to_owned())));
    }
}
