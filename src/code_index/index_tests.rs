//! Specifies the cache, and the order of what is found in many files.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use super::*;
use crate::code_index::testing::SourceTree;

fn source(path: &Path) -> CodeFile {
    let metadata = path.metadata().unwrap();
    CodeFile {
        path: path.to_owned(),
        language: SourceLanguage::of_path(path).unwrap(),
        size: metadata.len(),
        modified: metadata.modified().ok(),
    }
}

/// A file whose reads are counted.
struct CountedFile {
    path: PathBuf,
    cache: SymbolCache,
    reads: AtomicUsize,
    _folder: tempfile::TempDir,
}

impl CountedFile {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rs");
        Self { path, cache: SymbolCache::default(), reads: AtomicUsize::new(0), _folder: folder }
    }

    fn write(&self, text: &str, modified: SystemTime) {
        std::fs::write(&self.path, text).unwrap();
        std::fs::File::options().append(true).open(&self.path).unwrap().set_modified(modified).unwrap();
    }

    /// Returns the name of the first definition, and how often the file was read.
    fn look(&self) -> (String, usize) {
        let read = |path: &Path| {
            self.reads.fetch_add(1, Ordering::Relaxed);
            std::fs::read(path)
        };
        let access = SourceAccess { cache: &self.cache, read: &read, is_cancelled: &|| false };
        let index = CodeIndex::scan(access, &[source(&self.path)], None).unwrap();
        let name = index.symbols(0).definitions[0].name.to_string();
        (name, self.reads.swap(0, Ordering::Relaxed))
    }
}

#[test]
fn a_file_is_read_again_only_after_a_change() {
    let file = CountedFile::new();
    let past = SystemTime::now() - Duration::from_secs(60);
    file.write("fn one() {}", past);
    assert_eq!(file.look(), ("one".to_owned(), 2), "once for the words, once for the parser");
    assert_eq!(file.look(), ("one".to_owned(), 0));
    // The same size, another time.
    file.write("fn two() {}", past + Duration::from_secs(5));
    assert_eq!(file.look(), ("two".to_owned(), 2));
    assert_eq!(file.look(), ("two".to_owned(), 0));
}

#[test]
fn a_quick_change_with_the_same_size_and_time_is_noticed() {
    let file = CountedFile::new();
    let now = SystemTime::now();
    file.write("fn one() {}", now);
    assert_eq!(file.look().0, "one");
    assert_eq!(file.look(), ("one".to_owned(), 1), "the text is compared, but not parsed again");
    file.write("fn two() {}", now);
    assert_eq!(file.look().0, "two");
}

#[test]
fn a_file_without_a_time_is_read_each_time() {
    let file = CountedFile::new();
    file.write("fn one() {}", SystemTime::now());
    let read = |path: &Path| std::fs::read(path);
    let access = SourceAccess { cache: &file.cache, read: &read, is_cancelled: &|| false };
    let untimed = CodeFile { modified: None, ..source(&file.path) };
    for name in ["one", "two"] {
        std::fs::write(&file.path, format!("fn {name}() {{}}")).unwrap();
        let index = CodeIndex::scan(access, std::slice::from_ref(&untimed), None).unwrap();
        assert_eq!(&*index.symbols(0).definitions[0].name, name);
    }
}

#[test]
fn files_keep_their_order_and_unreadable_ones_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..50).map(|number| folder.path().join(format!("{number:02}.py"))).collect();
    for path in &paths {
        std::fs::write(path, "def f(): pass").unwrap();
    }
    let sources: Vec<_> = paths.iter().map(|path| source(path)).collect();
    std::fs::remove_file(&paths[7]).unwrap();
    let cache = SymbolCache::default();
    let access = SourceAccess { cache: &cache, read: &|path| std::fs::read(path), is_cancelled: &|| false };
    let index = CodeIndex::scan(access, &sources, None).unwrap();
    assert_eq!(index.unreadable, [paths[7].clone()]);
    assert_eq!(index.files.len(), 49);
    assert!(index.files.is_sorted_by_key(|file| file.source.path.clone()));
    // A file that disappears later has no symbols.
    std::fs::remove_file(&paths[8]).unwrap();
    assert_eq!((index.symbols(6).definitions.len(), index.symbols(7).definitions.len()), (1, 0));
}

#[test]
fn uses_are_found_in_the_order_of_the_files() {
    let text = |number: usize| {
        let call = if number.is_multiple_of(3) { "look()" } else { "'look'" };
        format!("def f():\n    {call}\n{}", "\n".repeat(number))
    };
    let files: Vec<_> = (0..30).map(|number| (format!("{number:02}.py"), text(number))).collect();
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let tree = SourceTree::new(&files);
    let expected: Vec<_> = (0..30).step_by(3).map(|number| (number, vec![2])).collect();
    tree.with_index(Some("look"), |index| {
        assert_eq!(index.focus_lines(usize::MAX), expected, "a string is no use");
    });
    tree.with_index(Some("look"), |index| {
        let some = index.focus_lines(2);
        assert_eq!(some, expected[..some.len()]);
        assert!(index.files.iter().any(|file| !file.is_parsed()), "the rest is not parsed");
    });
    tree.with_index(Some("other"), |index| assert!(index.focus_lines(usize::MAX).is_empty()));
}

#[test]
fn a_cancelled_index_is_none() {
    let cache = SymbolCache::default();
    let access = SourceAccess { cache: &cache, read: &|path| std::fs::read(path), is_cancelled: &|| true };
    assert!(CodeIndex::scan(access, &[], None).is_none());
}
