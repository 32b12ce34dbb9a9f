//! Remembers the words and symbols of files until they change.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::language::SourceLanguage;
use super::symbols::FileSymbols;
use super::words::FileWords;

/// Maximum number of files in the cache. A full cache is emptied.
const MAX_CACHED_FILES: usize = 20_000;
/// Two changes within this time may leave the same time on a file, depending on the file system.
const TIME_STEP: Duration = Duration::from_secs(2);

/// A file to read. Size and time show whether it changed since the last time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeFile {
    pub path: PathBuf,
    pub language: SourceLanguage,
    pub size: u64,
    pub modified: Option<SystemTime>,
}

/// What is known of a file.
#[derive(Debug, Clone)]
pub(super) struct CachedFile {
    source: CodeFile,
    pub(super) words: Arc<FileWords>,
    pub(super) symbols: Option<Arc<FileSymbols>>,
    /// A later change shows in the time of the file. Otherwise the text is compared.
    pub(super) is_settled: bool,
}

impl CachedFile {
    /// Describes a file that was read after `now`.
    pub(super) fn new(source: &CodeFile, words: FileWords, now: SystemTime) -> Self {
        let file = Self { source: source.clone(), words: Arc::new(words), symbols: None, is_settled: false };
        file.settle(source, now)
    }

    /// Describes the same text, which was read again after `now`.
    pub(super) fn settle(self, source: &CodeFile, now: SystemTime) -> Self {
        let age = source.modified.and_then(|modified| now.duration_since(modified).ok());
        Self { source: source.clone(), is_settled: age.is_some_and(|age| age > TIME_STEP), ..self }
    }
}

/// The words and symbols of files that were read before.
#[derive(Debug, Default)]
pub struct SymbolCache(Mutex<HashMap<PathBuf, CachedFile>>);

impl SymbolCache {
    /// Returns what is known of a file, if its size and time are the same.
    pub(super) fn get(&self, file: &CodeFile) -> Option<CachedFile> {
        self.lock().get(&file.path).filter(|known| known.source == *file).cloned()
    }

    pub(super) fn insert(&self, file: &CodeFile, known: CachedFile) {
        let mut cache = self.lock();
        if cache.len() >= MAX_CACHED_FILES && !cache.contains_key(&file.path) {
            cache.clear();
        }
        cache.insert(file.path.clone(), known);
    }

    /// Adds the symbols of a file, if the cache still has these words.
    pub(super) fn add_symbols(&self, file: &CodeFile, words: &FileWords, symbols: &Arc<FileSymbols>) {
        let mut cache = self.lock();
        let is_same = |known: &&mut CachedFile| known.source == *file && known.words.content == words.content;
        if let Some(known) = cache.get_mut(&file.path).filter(is_same) {
            known.symbols = Some(Arc::clone(symbols));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, CachedFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: usize) -> CodeFile {
        CodeFile { path: format!("{number}.rs").into(), language: SourceLanguage::Rust, size: 0, modified: None }
    }

    fn insert(cache: &SymbolCache, number: usize) {
        let file = file(number);
        let words = FileWords::new(file.language, b"");
        cache.insert(&file, CachedFile::new(&file, words, SystemTime::UNIX_EPOCH));
    }

    #[test]
    fn a_full_cache_is_cleared_for_a_new_file() {
        let cache = SymbolCache::default();
        (0..MAX_CACHED_FILES).for_each(|number| insert(&cache, number));
        insert(&cache, 0);
        assert_eq!(cache.lock().len(), MAX_CACHED_FILES, "a file that was read again needs no room");
        insert(&cache, MAX_CACHED_FILES);
        assert_eq!(cache.lock().len(), 1);
        assert!(cache.get(&file(MAX_CACHED_FILES)).is_some());
    }
}
