//! The time to index a folder of source files, beside ctags on the same files, in one run.
//!
//! `cargo bench --bench analyze -- FOLDER…`; without a folder it uses `src`. It needs `ctags` (Universal Ctags).

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark that cannot be set up ends"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use skein::code_index::{CodeFile, CodeIndex, MAX_FILE_SIZE, SourceLanguage, SymbolCache};

const ROUNDS: usize = 7;

fn main() {
    // `cargo test` runs each benchmark once, with `--test`; `cargo bench` adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let folders = if arguments.is_empty() { vec!["src".to_owned()] } else { arguments };
    if Command::new("ctags").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        println!("not run: ctags is missing (Debian package universal-ctags)");
        return;
    }
    println!("| folder | files | lines | definitions | index | changed nothing | ctags | index / ctags |");
    println!("|---|---|---|---|---|---|---|---|");
    for folder in folders {
        measure(Path::new(&folder));
    }
}

fn measure(folder: &Path) {
    let mut sources = Vec::new();
    list(folder, &mut sources);
    let list_file = tempfile::NamedTempFile::new().expect("a temporary file");
    let paths: Vec<_> = sources.iter().map(|source| source.path.to_string_lossy().into_owned()).collect();
    std::fs::write(list_file.path(), paths.join("\n")).expect("the list of files");
    let (mut cold, mut warm, mut ctags) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = CodeIndex::default();
    for _ in 0..ROUNDS {
        let cache = SymbolCache::default();
        cold.push(time(|| last = index(&cache, &sources)));
        warm.push(time(|| last = index(&cache, &sources)));
        ctags.push(time(|| run_ctags(list_file.path())));
    }
    let lines: u64 = last.files.iter().map(|file| u64::from(file.symbols.lines)).sum();
    let definitions: usize = last.files.iter().map(|file| file.symbols.definitions.len()).sum();
    let (cold, warm, ctags) = (median(cold), median(warm), median(ctags));
    println!(
        "| {} | {} | {lines} | {definitions} | {:.0} ms | {:.1} ms | {:.0} ms | {:.2} |",
        folder.display(),
        last.files.len(),
        cold.as_secs_f64() * 1e3,
        warm.as_secs_f64() * 1e3,
        ctags.as_secs_f64() * 1e3,
        cold.as_secs_f64() / ctags.as_secs_f64(),
    );
}

fn index(cache: &SymbolCache, sources: &[CodeFile]) -> CodeIndex {
    CodeIndex::build(cache, sources, &|path| std::fs::read(path), &|| false).expect("nothing cancels it")
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

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
