//! The time of each kind of request to `analyze`, beside ctags on the same files, in one run.
//!
//! `cargo bench --bench analyze -- FOLDER…`; without a folder it uses `src`. It needs `ctags` (Universal Ctags).
//! Each request begins with an empty cache, except where the row says so. The list of the files is made before, for both
//! programs.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark that cannot be set up ends"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use skein::code_index::{
    CallDirection, CallGraph, CodeFile, CodeIndex, CodeRank, MAX_FILE_SIZE, SourceAccess, SourceLanguage, SymbolCache,
    SymbolName,
};

const ROUNDS: usize = 3;
/// The number of symbols that are asked for once, at equal distances in the list of all definitions.
const SYMBOLS: usize = 20;
/// As in the tool: lines with uses, steps of calls, definitions of one symbol, and definitions of one file.
const MAX_USES: usize = 101;
const DEPTH: usize = 2;
const MAX_DEFINITIONS: usize = 10;
const MAX_PER_FILE: usize = 8;

fn main() {
    // `cargo test` runs each benchmark once, with `--test`; `cargo bench` adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let folders = if arguments.is_empty() { vec!["src".to_owned()] } else { arguments };
    if Command::new("ctags").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        println!("not run: ctags is missing (Debian package universal-ctags)");
        return;
    }
    for folder in folders {
        measure(Path::new(&folder));
    }
}

/// What a request did.
#[derive(Clone, Copy)]
struct RequestWork {
    time: Duration,
    parsed: usize,
}

fn measure(folder: &Path) {
    let mut sources = Vec::new();
    list(folder, &mut sources);
    let list_file = tempfile::NamedTempFile::new().expect("a temporary file");
    let paths: Vec<_> = sources.iter().map(|source| source.path.to_string_lossy().into_owned()).collect();
    std::fs::write(list_file.path(), paths.join("\n")).expect("the list of files");
    let symbols = choose_symbols(&sources);

    let mut ctags = Vec::new();
    let (mut small, mut large, mut all, mut again) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut one = Vec::new();
    for _ in 0..ROUNDS {
        ctags.push(time(|| run_ctags(list_file.path())));
        small.push(overview(&sources, 2_000 * 4));
        large.push(overview(&sources, 10_000 * 4));
        one.push(outline_of_one(&sources));
        let cache = SymbolCache::default();
        all.push(parse_all(&cache, &sources));
        again.push(parse_all(&cache, &sources));
    }
    let mut focus: Vec<_> =
        symbols.iter().map(|name| (ask(&SymbolCache::default(), &sources, name), name.as_str())).collect();
    focus.sort_by_key(|(work, _)| work.time);
    ctags.sort();
    let ctags = ctags[ctags.len() / 2];
    let lines: u64 = index(&SymbolCache::default(), &sources, None, |index| {
        index.files.iter().map(|file| u64::from(file.lines())).sum()
    });
    println!("\n{}: {} files, {lines} lines; ctags {:.0} ms\n", folder.display(), sources.len(), millis(ctags));
    println!("| request | files parsed | time | time / ctags |");
    println!("|---|---|---|---|");
    let row = |title: &str, work: &RequestWork| {
        let ratio = work.time.as_secs_f64() / ctags.as_secs_f64();
        println!("| {title} | {} | {:.0} ms | {ratio:.2} |", work.parsed, millis(work.time));
    };
    row("overview, 2,000 tokens", &median(small));
    row("overview, 10,000 tokens", &median(large));
    row("outline of the largest file alone", &median(one));
    for (title, tenths) in [("median", 5), ("9 of 10 are faster", 9), ("slowest", 10)] {
        let at = (focus.len() * tenths / 10).min(focus.len() - 1);
        let (work, name) = &focus[at];
        row(&format!("one of {} symbols: {title} (`{name}`)", focus.len()), work);
    }
    row("all files parsed", &median(all));
    row("all files parsed, again with the cache", &median(again));
    let fast = focus.iter().filter(|(work, _)| work.time <= ctags * 3).count();
    println!("\n{fast} of {} symbols take at most 3 times the time of ctags", focus.len());
}

/// Returns names of definitions from the whole folder, each once.
fn choose_symbols(sources: &[CodeFile]) -> Vec<String> {
    let mut names: Vec<String> = index(&SymbolCache::default(), sources, None, |index| {
        let all: Vec<usize> = (0..index.files.len()).collect();
        index.parse(&all);
        let definitions = all.iter().flat_map(|file| &index.symbols(*file).definitions);
        definitions.map(|known| known.name.to_string()).collect()
    });
    let step = (names.len() / SYMBOLS).max(1);
    names = names.into_iter().step_by(step).collect();
    names.sort();
    names.dedup();
    names.truncate(SYMBOLS);
    names
}

fn index<T>(
    cache: &SymbolCache,
    sources: &[CodeFile],
    focus: Option<&str>,
    work: impl FnOnce(&CodeIndex<'_>) -> T,
) -> T {
    let access = SourceAccess { cache, read: &|path| std::fs::read(path), is_cancelled: &|| false };
    work(&CodeIndex::scan(access, sources, focus).expect("nothing cancels it"))
}

fn parsed_files(index: &CodeIndex<'_>) -> usize {
    index.files.iter().filter(|file| file.is_parsed()).count()
}

/// Does the work of an overview of so many bytes.
fn overview(sources: &[CodeFile], budget: usize) -> RequestWork {
    let begin = Instant::now();
    let parsed = index(&SymbolCache::default(), sources, None, |index| {
        // The tool does the same first: a small folder is shown whole.
        let headings: usize = sources.iter().map(|source| source.path.as_os_str().len() + 20).sum();
        let mut shown = 0;
        if headings <= budget {
            for file in index.parse_in_turn((0..index.files.len()).collect()) {
                shown += index.symbols(file).definitions.iter().map(|known| known.signature.len() + 16).sum::<usize>();
                if headings + shown > budget {
                    break;
                }
            }
        }
        let rank = CodeRank::new(index);
        let mut shown = 0;
        for file in index.parse_in_turn(rank.files.clone()) {
            let mut known: Vec<_> = index.symbols(file).definitions.iter().collect();
            known.sort_by(|left, right| rank.users(file, &right.name).total_cmp(&rank.users(file, &left.name)));
            let path = index.files[file].source.path.as_os_str().len() + 20;
            shown += path + known.iter().take(MAX_PER_FILE).map(|known| known.signature.len() + 16).sum::<usize>();
            if shown > budget {
                break;
            }
        }
        parsed_files(index)
    });
    RequestWork { time: begin.elapsed(), parsed }
}

/// Does the work of the outline of one file.
fn outline_of_one(sources: &[CodeFile]) -> RequestWork {
    let largest: Vec<_> = sources.iter().max_by_key(|source| source.size).cloned().into_iter().collect();
    parse_all(&SymbolCache::default(), &largest)
}

/// Does the work of a request for a symbol: its definitions, callers, callees and uses.
fn ask(cache: &SymbolCache, sources: &[CodeFile], name: &str) -> RequestWork {
    let begin = Instant::now();
    let parsed = index(cache, sources, Some(name), |index| {
        let graph = CallGraph::new(index);
        let symbol = SymbolName { container: None, name: name.to_owned() };
        let mut found = graph.find(&symbol, MAX_DEFINITIONS + 1);
        // The tool lists the definitions of such a name, and asks for the type.
        if found.len() > MAX_DEFINITIONS {
            found.clear();
        }
        for id in found {
            for direction in [CallDirection::Callers, CallDirection::Callees] {
                std::hint::black_box(graph.tree(id, direction, DEPTH));
            }
        }
        std::hint::black_box(index.focus_lines(MAX_USES));
        parsed_files(index)
    });
    RequestWork { time: begin.elapsed(), parsed }
}

fn parse_all(cache: &SymbolCache, sources: &[CodeFile]) -> RequestWork {
    let begin = Instant::now();
    let parsed = index(cache, sources, None, |index| {
        index.parse(&(0..index.files.len()).collect::<Vec<_>>());
        parsed_files(index)
    });
    RequestWork { time: begin.elapsed(), parsed }
}

fn run_ctags(list: &Path) {
    let status = Command::new("ctags").args(["-f", "/dev/null", "-L"]).arg(list).stderr(Stdio::null()).status();
    assert!(status.is_ok_and(|status| status.success()), "ctags failed");
}

fn list(folder: &Path, sources: &mut Vec<CodeFile>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_dir() {
            list(&path, sources);
        } else if let Some(language) = SourceLanguage::of_path(&path).filter(|_| metadata.len() <= MAX_FILE_SIZE) {
            sources.push(CodeFile { path, language, size: metadata.len(), modified: metadata.modified().ok() });
        }
    }
}

fn time(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

fn median(mut works: Vec<RequestWork>) -> RequestWork {
    works.sort_by_key(|work| work.time);
    let middle = works.len() / 2;
    works.swap_remove(middle)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
