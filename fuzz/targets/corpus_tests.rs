//! Runs each target of the fuzzer with the inputs that are checked in.

#[path = "table.rs"]
mod targets;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use targets::TARGETS;

fn entries(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn no_target_fails_with_an_input_of_its_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let folders: BTreeSet<_> = TARGETS.iter().map(|(name, _)| corpus.join(name)).collect();
    assert_eq!(entries(&corpus), folders, "left fuzz/corpus, right the targets");
    let mut failed = Vec::new();
    for (name, target) in TARGETS {
        let inputs = entries(&corpus.join(name));
        assert!(!inputs.is_empty(), "{name} has inputs");
        for input in inputs {
            let bytes = fs::read(&input).unwrap();
            if std::panic::catch_unwind(|| target(&bytes)).is_err() {
                failed.push(input);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}; the messages above say why");
}
