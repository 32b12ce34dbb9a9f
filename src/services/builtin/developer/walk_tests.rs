//! What is said about folders and files that cannot be read. The path of the folder is longer than the kernel accepts,
//! because permissions do not stop root.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, mkdirat, openat};
use serde_json::json;

use super::{UnreadableEntries, check_folder};
use crate::services::builtin::developer::testing::Workshop;

/// The levels of folders below `deep`, each with this many letters.
const LEVELS: usize = 20;
const LETTERS: usize = 250;
/// The end of an answer about a folder with `deep`.
const LINE: &str = "[1 entry could not be read]\n";

/// Makes `deep`, whose last folders have too long a path, and returns the path of the last one.
fn workshop_with_deep_folder() -> (Workshop, PathBuf) {
    let workshop = Workshop::new();
    let mut path = workshop.path("deep");
    std::fs::create_dir(&path).unwrap();
    let mut folder = File::open(&path).unwrap();
    let name = "d".repeat(LETTERS);
    for _ in 0..LEVELS {
        mkdirat(&folder, &name, Mode::RWXU).unwrap();
        folder = openat(&folder, &name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap().into();
        path.push(&name);
    }
    (workshop, path)
}

#[tokio::test]
async fn answers_name_the_number_of_unreadable_entries() {
    let (workshop, _) = workshop_with_deep_folder();
    workshop.put("a.rs", "fn main() {}\n");
    for (tool, arguments) in [
        ("search", json!({"pattern": "main"})),
        ("search", json!({"pattern": "nowhere"})),
        ("find_files", json!({"glob": "*.rs"})),
        ("find_files", json!({"glob": "*.none"})),
        ("analyze", json!({})),
        ("analyze", json!({"path": "deep"})),
        ("analyze", json!({"focus": "main"})),
    ] {
        let said = workshop.call(tool, arguments.clone()).await.ok();
        assert!(said.text.ends_with(LINE), "{tool} {arguments}: {}", said.text);
    }
    let half = ["deep".to_owned()].into_iter().chain(vec!["d".repeat(LETTERS); LEVELS / 2]).collect::<Vec<_>>();
    let said = workshop.call("list_dir", json!({"path": half.join("/"), "depth": 10})).await.ok();
    assert!(said.text.ends_with(LINE), "{}", said.text);
    let said = workshop.call("search", json!({"pattern": "main", "path": "a.rs"})).await.ok();
    assert!(!said.text.contains("could not"), "{}", said.text);
}

#[tokio::test]
async fn an_unreadable_folder_is_an_error() {
    let (workshop, last) = workshop_with_deep_folder();
    assert!(check_folder(&workshop.path("deep"), "list", "deep").is_ok());
    let refusal = check_folder(&last, "list", "deep/d").expect_err("its path is too long");
    assert!(format!("{refusal:?}").contains("could not list `deep/d`"), "{refusal:?}");
}

#[test]
fn entries_that_are_gone_do_not_count() {
    let failed = |kind: io::ErrorKind| ignore::Error::Io(kind.into());
    let mut unreadable = UnreadableEntries::default();
    unreadable.add(&failed(io::ErrorKind::NotFound));
    unreadable.add_file(&io::ErrorKind::NotFound.into());
    assert_eq!(unreadable.line(), "");
    unreadable.add(&failed(io::ErrorKind::PermissionDenied));
    unreadable.add_file(&io::ErrorKind::PermissionDenied.into());
    assert_eq!(unreadable.line(), "[2 entries could not be read]\n");
}
