//! Indices of small programs and real folders, for the tests.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::{CodeFile, CodeIndex, SourceAccess, SourceLanguage, SymbolCache};

/// Source files in memory.
pub(super) struct SourceTree {
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl SourceTree {
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        Self { files: files.iter().map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec())).collect() }
    }

    /// Reads the source files of a folder of this repository.
    pub(super) fn of_folder(folder: &str) -> Self {
        let mut files = BTreeMap::new();
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                } else if SourceLanguage::of_path(&path).is_some() {
                    files.insert(path.clone(), std::fs::read(&path).unwrap());
                }
            }
        }
        assert!(files.len() > 10, "{folder} has only {} files", files.len());
        Self { files }
    }

    /// Calls `work` with an index of all files, of which none is parsed.
    pub(super) fn with_index<T>(&self, focus: Option<&str>, work: impl FnOnce(&CodeIndex<'_>) -> T) -> T {
        let cache = SymbolCache::default();
        let read = |path: &Path| self.files.get(path).cloned().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        let access = SourceAccess { cache: &cache, read: &read, is_cancelled: &|| false };
        let source = |(path, text): (&PathBuf, &Vec<u8>)| CodeFile {
            path: path.clone(),
            language: SourceLanguage::of_path(path).unwrap(),
            size: text.len() as u64,
            modified: None,
        };
        let sources: Vec<_> = self.files.iter().map(source).collect();
        work(&CodeIndex::scan(access, &sources, focus).unwrap())
    }
}
