//! Parses many files at once and remembers the results until a file changes.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use super::language::SourceLanguage;
use super::symbols::{FileSymbols, SymbolParser};

/// Larger files are left out: they are generated.
pub const MAX_FILE_SIZE: u64 = 1 << 20;
/// Maximum number of files in the cache. A full cache is emptied.
const MAX_CACHED_FILES: usize = 20_000;
const MAX_THREADS: usize = 8;

/// A file to parse. Size and time show whether it changed since the last time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeFile {
    pub path: PathBuf,
    pub language: SourceLanguage,
    pub size: u64,
    pub modified: Option<SystemTime>,
}

/// A parsed file.
#[derive(Debug, Clone)]
pub struct IndexedFile {
    pub path: PathBuf,
    pub language: SourceLanguage,
    pub symbols: Arc<FileSymbols>,
}

/// The parsed files of a folder.
#[derive(Debug, Default)]
pub struct CodeIndex {
    pub files: Vec<IndexedFile>,
    /// Files that could not be read.
    pub unreadable: Vec<PathBuf>,
}

/// The symbols of files that were parsed before.
#[derive(Debug, Default)]
pub struct SymbolCache(Mutex<HashMap<PathBuf, (CodeFile, Arc<FileSymbols>)>>);

impl SymbolCache {
    fn get(&self, file: &CodeFile) -> Option<Arc<FileSymbols>> {
        let cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, symbols) = cache.get(&file.path)?;
        // Without a time, a change cannot be noticed.
        (known == file && file.modified.is_some()).then(|| Arc::clone(symbols))
    }

    fn insert(&self, file: &CodeFile, symbols: &Arc<FileSymbols>) {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_CACHED_FILES {
            cache.clear();
        }
        cache.insert(file.path.clone(), (file.clone(), Arc::clone(symbols)));
    }
}

impl CodeIndex {
    /// Parses the files that the cache does not have. Returns `None` if `is_cancelled` returns true before the end.
    pub fn build(
        cache: &SymbolCache,
        sources: &[CodeFile],
        read: &(dyn Fn(&Path) -> io::Result<Vec<u8>> + Sync),
        is_cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Option<Self> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut parser = SymbolParser::default();
            let mut parsed = Vec::new();
            while let Some((index, source)) = take_next(&next, sources) {
                if is_cancelled() {
                    break;
                }
                parsed.push((index, parse_file(cache, source, &mut parser, read, is_cancelled)));
            }
            parsed
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let mut parsed: Vec<_> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            // A worker that panicked delivers nothing; its files are missing below.
            workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect()
        });
        if is_cancelled() {
            return None;
        }
        parsed.sort_by_key(|(index, _)| *index);
        let mut index = Self::default();
        for (source, (_, symbols)) in parsed.into_iter().filter_map(|(at, done)| Some((sources.get(at)?, (at, done)))) {
            match symbols {
                Ok(symbols) => {
                    index.files.push(IndexedFile { path: source.path.clone(), language: source.language, symbols });
                }
                Err(_) => index.unreadable.push(source.path.clone()),
            }
        }
        Some(index)
    }
}

fn take_next<'a>(next: &AtomicUsize, sources: &'a [CodeFile]) -> Option<(usize, &'a CodeFile)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((index, sources.get(index)?))
}

fn parse_file(
    cache: &SymbolCache,
    source: &CodeFile,
    parser: &mut SymbolParser,
    read: &(dyn Fn(&Path) -> io::Result<Vec<u8>> + Sync),
    is_cancelled: &(dyn Fn() -> bool + Sync),
) -> io::Result<Arc<FileSymbols>> {
    if let Some(symbols) = cache.get(source) {
        return Ok(symbols);
    }
    let bytes = read(&source.path)?;
    let symbols = parser
        .parse(source.language, &bytes, &|| is_cancelled())
        .map(Arc::new)
        .ok_or_else(|| io::Error::from(io::ErrorKind::Interrupted))?;
    cache.insert(source, &symbols);
    Ok(symbols)
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
