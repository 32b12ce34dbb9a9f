//! Specifies the cache: a file is parsed again when it changes, and only then.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use super::*;

fn source(path: &Path) -> CodeFile {
    let metadata = path.metadata().unwrap();
    CodeFile {
        path: path.to_owned(),
        language: SourceLanguage::of_path(path).unwrap(),
        size: metadata.len(),
        modified: metadata.modified().ok(),
    }
}

#[test]
fn a_file_is_read_again_only_after_a_change() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rs");
    let (cache, reads) = (SymbolCache::default(), AtomicUsize::new(0));
    let read = |path: &Path| {
        reads.fetch_add(1, Ordering::Relaxed);
        std::fs::read(path)
    };
    let names = |index: &CodeIndex| index.files[0].symbols.definitions[0].name.to_string();
    std::fs::write(&path, "fn one() {}").unwrap();
    let build = || CodeIndex::build(&cache, &[source(&path)], &read, &|| false).unwrap();
    assert_eq!((names(&build()), names(&build())), ("one".to_owned(), "one".to_owned()));
    assert_eq!(reads.load(Ordering::Relaxed), 1);
    // The same size, another time.
    std::fs::write(&path, "fn two() {}").unwrap();
    let later = SystemTime::now() + Duration::from_secs(5);
    std::fs::File::open(&path).unwrap().set_modified(later).unwrap();
    assert_eq!(names(&build()), "two");
    assert_eq!(reads.load(Ordering::Relaxed), 2);
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
    let index = CodeIndex::build(&SymbolCache::default(), &sources, &|path| std::fs::read(path), &|| false).unwrap();
    assert_eq!(index.unreadable, [paths[7].clone()]);
    assert_eq!(index.files.len(), 49);
    assert!(index.files.is_sorted_by_key(|file| file.path.clone()));
}

#[test]
fn uses_are_found_in_the_order_of_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..30).map(|number| folder.path().join(format!("{number:02}.py"))).collect();
    for (number, path) in paths.iter().enumerate() {
        let call = if number % 3 == 0 { "look()" } else { "'look'" };
        std::fs::write(path, format!("def f():\n    {call}\n{}", "\n".repeat(number))).unwrap();
    }
    let sources: Vec<_> = paths.iter().map(|path| source(path)).collect();
    let read = |path: &Path| std::fs::read(path);
    let index = CodeIndex::build(&SymbolCache::default(), &sources, &read, &|| false).unwrap();
    let found = index.lines_with_name("look", &read, &|| false);
    let expected: Vec<_> = (0..30).step_by(3).map(|number| (number, vec![2])).collect();
    assert_eq!(found, expected, "a string is no use");
    assert!(index.lines_with_name("other", &read, &|| false).is_empty());
    assert!(index.lines_with_name("look", &read, &|| true).is_empty());
}

#[test]
fn a_cancelled_index_is_none() {
    let index = CodeIndex::build(&SymbolCache::default(), &[], &|path| std::fs::read(path), &|| true);
    assert!(index.is_none());
}
