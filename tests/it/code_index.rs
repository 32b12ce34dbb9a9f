//! The index of source files against Universal Ctags, on two real code bases: this one, and packages from PyPI.

#![expect(clippy::disallowed_methods, reason = "a test starts other programs and waits for them")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use skein::code_index::{DefinitionKind, SourceLanguage, SymbolParser};

use crate::support::full_tests;

/// Definitions of functions and types: file, line and name.
type Tags = BTreeSet<(PathBuf, u64, String)>;

#[test]
fn rust_definitions_equal_those_of_ctags() {
    if !full_tests() {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    compare(&folder, "rs", "--kinds-Rust=fPsgi", 0.97);
}

#[test]
fn python_definitions_equal_those_of_ctags() {
    if !full_tests() {
        return;
    }
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/venv/lib");
    let python = std::fs::read_dir(&venv).unwrap().next().unwrap().unwrap().path();
    compare(&python.join("site-packages/pydantic"), "py", "--kinds-Python=cfm", 0.99);
}

/// Compares functions, methods and types in both directions.
fn compare(folder: &Path, extension: &str, kinds: &str, min_agreement: f64) {
    let theirs = ctags(folder, extension, kinds);
    let ours = indexed(folder, extension);
    assert!(theirs.len() > 500, "ctags finds only {} definitions", theirs.len());
    let (missing, extra): (Vec<_>, Vec<_>) = (theirs.difference(&ours).collect(), ours.difference(&theirs).collect());
    #[expect(clippy::cast_precision_loss, reason = "counts of definitions are small")]
    let agreement = 1.0 - (missing.len().max(extra.len()) as f64) / (theirs.len() as f64);
    assert!(
        agreement >= min_agreement,
        "{agreement:.3} agreement of {}; missing {}: {:#?}; extra {}: {:#?}",
        theirs.len(),
        missing.len(),
        missing.iter().take(20).collect::<Vec<_>>(),
        extra.len(),
        extra.iter().take(20).collect::<Vec<_>>()
    );
}

fn ctags(folder: &Path, extension: &str, kinds: &str) -> Tags {
    let output = Command::new("ctags")
        .args(["-R", "--output-format=json", "--fields=+n", kinds, "-f", "-"])
        .arg(folder)
        .output()
        .expect("ctags runs (Debian package universal-ctags)");
    let text = String::from_utf8(output.stdout).unwrap();
    let tags = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let tag = |tag: Value| {
        let path = PathBuf::from(tag["path"].as_str()?);
        let is_wanted = path.extension().is_some_and(|end| end == extension);
        is_wanted.then_some((path, tag["line"].as_u64()?, tag["name"].as_str()?.to_owned()))
    };
    tags.filter_map(tag).collect()
}

fn indexed(folder: &Path, extension: &str) -> Tags {
    let mut tags = Tags::new();
    let mut parser = SymbolParser::default();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == extension) {
                let language = SourceLanguage::of_path(&path).unwrap();
                let symbols = parser.parse(language, &std::fs::read(&path).unwrap(), &|| false).unwrap();
                let is_wanted = |kind: DefinitionKind| {
                    kind.is_callable() && kind != DefinitionKind::Macro
                        || matches!(
                            kind,
                            DefinitionKind::Class
                                | DefinitionKind::Enum
                                | DefinitionKind::Interface
                                | DefinitionKind::Struct
                        )
                };
                let wanted = symbols.definitions.iter().filter(|known| is_wanted(known.kind));
                tags.extend(wanted.map(|known| (path.clone(), u64::from(known.first_line), known.name.to_string())));
            }
        }
    }
    tags
}
