//! Reads the words of many files, and parses only those files that an answer needs.
//!
//! An answer is the same as if all files were parsed: the words of a file tell what it cannot contain, and every file
//! that they do not rule out is parsed.

use std::cmp::Reverse;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use super::language::SourceLanguage;
use super::symbol_cache::{CachedFile, CodeFile, SymbolCache};
use super::symbols::{FileSymbols, SymbolParser};
use super::words::{FileWords, NameWords, content_of};

/// Larger files are left out: they are generated.
pub const MAX_FILE_SIZE: u64 = 1 << 20;
const MAX_THREADS: usize = 8;
/// How many files are parsed at once when an answer may end before the last.
const BATCH: usize = 8;

/// How an index reaches files.
#[derive(Clone, Copy)]
pub struct SourceAccess<'a> {
    pub cache: &'a SymbolCache,
    pub read: &'a (dyn Fn(&Path) -> io::Result<Vec<u8>> + Sync),
    pub is_cancelled: &'a (dyn Fn() -> bool + Sync),
}

impl std::fmt::Debug for SourceAccess<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceAccess").field("cache", &self.cache).finish_non_exhaustive()
    }
}

/// A file whose words are known. It is parsed when an answer needs it.
#[derive(Debug)]
pub struct IndexedFile {
    pub source: CodeFile,
    pub(super) words: Arc<FileWords>,
    parsed: OnceLock<ParsedFile>,
}

impl IndexedFile {
    pub fn lines(&self) -> u32 {
        self.words.lines
    }

    /// Returns true if the file was parsed, now or before.
    pub fn is_parsed(&self) -> bool {
        self.parsed.get().is_some()
    }
}

#[derive(Debug, Default)]
struct ParsedFile {
    symbols: Arc<FileSymbols>,
    /// The lines with the focus of the index. `None` if the symbols are from the cache.
    focus_lines: Option<Vec<u32>>,
}

/// The source files of a folder.
#[derive(Debug)]
pub struct CodeIndex<'a> {
    pub files: Vec<IndexedFile>,
    /// Files that could not be read.
    pub unreadable: Vec<PathBuf>,
    access: SourceAccess<'a>,
    /// The name whose uses are collected when a file is parsed.
    focus: Option<&'a str>,
    /// Parsers that are not in use. Each thread takes one.
    parsers: Mutex<Vec<SymbolParser>>,
}

impl<'a> CodeIndex<'a> {
    /// Reads the words of the files that the cache does not have. Returns `None` if the work is cancelled before the
    /// end.
    pub fn scan(access: SourceAccess<'a>, sources: &[CodeFile], focus: Option<&'a str>) -> Option<Self> {
        let scan = |index: usize| {
            let source = sources.get(index)?;
            (!(access.is_cancelled)()).then(|| scan_file(&access, source))
        };
        let mut known = run_in_threads(&largest_first((0..sources.len()).collect(), |at| sources.get(at)), &scan);
        if (access.is_cancelled)() {
            return None;
        }
        known.sort_by_key(|(at, _)| *at);
        let mut index = Self { files: Vec::new(), unreadable: Vec::new(), access, focus, parsers: Mutex::default() };
        for (source, known) in known.into_iter().filter_map(|(at, known)| Some((sources.get(at)?.clone(), known))) {
            match known {
                Ok(CachedFile { words, symbols, .. }) => {
                    let parsed = symbols.map(|symbols| ParsedFile { symbols, focus_lines: None });
                    index.files.push(IndexedFile {
                        source,
                        words,
                        parsed: parsed.map(OnceLock::from).unwrap_or_default(),
                    });
                }
                Err(_) => index.unreadable.push(source.path),
            }
        }
        Some(index)
    }

    /// Returns the symbols of a file, which is parsed the first time. A file that disappeared has none.
    pub fn symbols(&self, file: usize) -> &FileSymbols {
        static NOTHING: FileSymbols = FileSymbols::EMPTY;
        self.parse_once(file).map_or(&NOTHING, |parsed| &parsed.symbols)
    }

    /// Parses these files in several threads.
    pub fn parse(&self, files: &[usize]) {
        let is_new = |file: &usize| self.files.get(*file).is_some_and(|known| !known.is_parsed());
        let new: Vec<usize> = files.iter().copied().filter(is_new).collect();
        let order = largest_first(new, |at| self.files.get(at).map(|file| &file.source));
        run_in_threads(&order, &|file| self.parse_once(file).map(|_| ()));
    }

    /// Returns these files, and parses them a few at a time.
    pub fn parse_in_turn(&self, files: Vec<usize>) -> impl Iterator<Item = usize> {
        (0..files.len()).map_while(move |at| {
            if at % BATCH == 0 {
                self.parse(files.get(at..(at + BATCH).min(files.len())).unwrap_or_default());
            }
            files.get(at).copied()
        })
    }

    /// Returns the lines that contain an identifier with the name of the focus, with their file, in order. Ends after the
    /// files with the first `max` lines.
    pub fn focus_lines(&self, max: usize) -> Vec<(usize, Vec<u32>)> {
        let Some(name) = self.focus.map(NameWords::new) else { return Vec::new() };
        let mut found = Vec::new();
        let mut lines = 0;
        for files in self.files_that(|file| name.may_occur(&file.words)).chunks(BATCH) {
            let mut batch = run_in_threads(files, &|file| self.focus_lines_of(file));
            batch.retain(|(_, lines)| !lines.is_empty());
            batch.sort_unstable();
            lines += batch.iter().map(|(_, lines)| lines.len()).sum::<usize>();
            found.append(&mut batch);
            if lines >= max {
                break;
            }
        }
        found
    }

    fn focus_lines_of(&self, file: usize) -> Option<Vec<u32>> {
        let lines = match self.parse_once(file)?.focus_lines.clone() {
            Some(lines) => Some(lines),
            // The cache has no lines of names.
            None => self.parse_file(self.files.get(file)?).and_then(|parsed| parsed.focus_lines),
        };
        Some(lines.unwrap_or_default())
    }

    pub(super) fn files_that(&self, is_wanted: impl Fn(&IndexedFile) -> bool) -> Vec<usize> {
        let files = self.files.iter().enumerate().filter(|(_, file)| is_wanted(file));
        files.map(|(at, _)| at).collect()
    }

    /// Returns the files whose text passes a test. It reads all files, except those that cannot be read.
    pub(super) fn files_with_text(&self, is_wanted: &(dyn Fn(SourceLanguage, &[u8]) -> bool + Sync)) -> Vec<usize> {
        let order: Vec<usize> = (0..self.files.len()).collect();
        let test = |at: usize| {
            let file = self.files.get(at).filter(|_| !(self.access.is_cancelled)())?;
            Some((self.access.read)(&file.source.path).is_ok_and(|text| is_wanted(file.source.language, &text)))
        };
        let mut found = run_in_threads(&order, &test);
        found.retain(|(_, is_wanted)| *is_wanted);
        found.sort_unstable();
        found.into_iter().map(|(at, _)| at).collect()
    }

    fn parse_once(&self, file: usize) -> Option<&ParsedFile> {
        let file = self.files.get(file)?;
        Some(file.parsed.get_or_init(|| self.parse_file(file).unwrap_or_default()))
    }

    /// Returns `None` if the file cannot be read, or if the work is cancelled.
    fn parse_file(&self, file: &IndexedFile) -> Option<ParsedFile> {
        let source = &file.source;
        let bytes = (self.access.read)(&source.path).ok()?;
        let mut parser = self.lock_parsers().pop().unwrap_or_default();
        let parsed = parser.parse_with_focus(source.language, &bytes, self.focus, &|| (self.access.is_cancelled)());
        self.lock_parsers().push(parser);
        let (symbols, lines) = parsed?;
        let symbols = Arc::new(symbols);
        // A file that changed since its words were read is read again next time.
        if content_of(&bytes) == file.words.content {
            self.access.cache.add_symbols(source, &file.words, &symbols);
        }
        Some(ParsedFile { symbols, focus_lines: Some(lines) })
    }

    fn lock_parsers(&self) -> std::sync::MutexGuard<'_, Vec<SymbolParser>> {
        self.parsers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn scan_file(access: &SourceAccess<'_>, source: &CodeFile) -> io::Result<CachedFile> {
    let known = access.cache.get(source);
    if let Some(known) = known.as_ref().filter(|known| known.is_settled) {
        return Ok(known.clone());
    }
    let now = SystemTime::now();
    let bytes = (access.read)(&source.path)?;
    let known = match known.filter(|known| known.words.content == content_of(&bytes)) {
        Some(known) => known.settle(source, now),
        None => CachedFile::new(source, FileWords::new(source.language, &bytes), now),
    };
    access.cache.insert(source, known.clone());
    Ok(known)
}

/// Orders files so that no thread is left alone with a long one at the end.
fn largest_first<'b>(mut files: Vec<usize>, source: impl Fn(usize) -> Option<&'b CodeFile>) -> Vec<usize> {
    files.sort_by_key(|at| Reverse(source(*at).map(|source| source.size)));
    files
}

/// Works on files in several threads, in this order, until `work` returns `None`. Returns the results with the indices of
/// the files, in any order.
fn run_in_threads<T: Send>(order: &[usize], work: &(dyn Fn(usize) -> Option<T> + Sync)) -> Vec<(usize, T)> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        while let Some(index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some(result) = work(*index) else { break };
            done.push((*index, result));
        }
        done
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS).min(order.len());
    if threads < 2 {
        return run();
    }
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let mut done = run();
        // A worker that panicked delivers nothing; its files are missing.
        done.extend(workers.into_iter().filter_map(|worker| worker.join().ok()).flatten());
        done
    })
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
