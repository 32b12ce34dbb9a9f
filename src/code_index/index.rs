//! Parses many files at once and remembers the results until a file changes.

use std::cmp::Reverse;
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
        // The largest first, so that no thread is left alone with a long one.
        let mut order: Vec<usize> = (0..sources.len()).collect();
        order.sort_by_key(|index| sources.get(*index).map(|source| Reverse(source.size)));
        let parse = |parser: &mut SymbolParser, index: usize| {
            let source = sources.get(index)?;
            (!is_cancelled()).then(|| parse_file(cache, source, parser, read, is_cancelled))
        };
        let mut parsed = parse_in_threads(&order, &parse);
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

    /// Returns the lines that contain an identifier with this name, with the index of their file. Files without the text
    /// are not parsed, and files that cannot be read are left out. Ends early if `is_cancelled` returns true.
    pub fn lines_with_name(
        &self,
        name: &str,
        read: &(dyn Fn(&Path) -> io::Result<Vec<u8>> + Sync),
        is_cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Vec<(usize, Vec<u32>)> {
        let finder = memchr::memmem::Finder::new(name.as_bytes());
        let order: Vec<usize> = (0..self.files.len()).collect();
        let find = |parser: &mut SymbolParser, index: usize| {
            let file = self.files.get(index).filter(|_| !is_cancelled())?;
            let source = read(&file.path).ok().filter(|source| finder.find(source).is_some());
            let lines =
                source.and_then(|source| parser.lines_with_name(file.language, &source, name, &|| is_cancelled()));
            Some(lines.unwrap_or_default())
        };
        let mut found = parse_in_threads(&order, &find);
        found.retain(|(_, lines)| !lines.is_empty());
        found.sort_by_key(|(index, _)| *index);
        found
    }
}

/// Works on files in several threads, in this order, until `work` returns `None`. Returns the results with the indices of
/// the files, in any order.
fn parse_in_threads<T: Send>(
    order: &[usize],
    work: &(dyn Fn(&mut SymbolParser, usize) -> Option<T> + Sync),
) -> Vec<(usize, T)> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut parser = SymbolParser::default();
        let mut done = Vec::new();
        while let Some(index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some(result) = work(&mut parser, *index) else { break };
            done.push((*index, result));
        }
        done
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS).min(order.len().max(1));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        // A worker that panicked delivers nothing; its files are missing.
        workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect()
    })
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
