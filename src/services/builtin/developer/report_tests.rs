//! What is told of the files that calls touch.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::services::builtin::developer::testing::Workshop;
use crate::tool::Activity;

fn place(path: PathBuf, line: Option<u32>) -> Activity {
    Activity::Location { path, line }
}

fn changed(path: PathBuf, before: Option<&str>, after: &str) -> Activity {
    Activity::Changed { path, before: before.map(str::to_owned), after: after.to_owned() }
}

#[tokio::test]
async fn a_call_that_looks_tells_where_it_looks() {
    let workshop = Workshop::new();
    let file = workshop.put("src/a.rs", "one\ntwo\n");
    let folder = workshop.path("src");
    for (tool, arguments, expected) in [
        ("read_file", json!({"path": "src/../src/a.rs", "line": 2}), place(file.clone(), Some(2))),
        ("read_file", json!({"path": file}), place(file.clone(), None)),
        ("list_dir", json!({"path": "src"}), place(folder.clone(), None)),
        ("find_files", json!({"path": "src", "glob": "*"}), place(folder.clone(), None)),
        ("search", json!({"path": "src", "pattern": "one"}), place(file.clone(), Some(1))),
        ("search", json!({"pattern": "two"}), place(file.clone(), Some(2))),
    ] {
        let (said, told) = workshop.call_told(tool, arguments).await;
        said.ok();
        assert_eq!(told, [expected], "{tool}");
    }
    let (_, told) = workshop.call_told("read_file", json!({"path": "../outside/f"})).await;
    assert_eq!(told, [], "a place that is refused is not told");
}

#[tokio::test]
async fn file_change_reports_before_after_and_first_changed_line() {
    let workshop = Workshop::new();
    let told = async |tool, arguments: Value| {
        let (said, told) = workshop.call_told(tool, arguments).await;
        said.ok();
        told
    };
    let file = workshop.path("new/f");
    let write = |content: &str| json!({"path": "new/f", "content": content});
    let edit = json!({"path": "new/f", "edits": [{"before": "c", "after": "C"}]});
    let undo = || json!({"path": "new/f"});
    for (tool, arguments, line, before, after) in [
        ("write_file", write("a\nb\n"), 1, None, "a\nb\n"),
        ("write_file", write("a\nb\nc\n"), 3, Some("a\nb\n"), "a\nb\nc\n"),
        ("edit_file", edit, 3, Some("a\nb\nc\n"), "a\nb\nC\n"),
        ("undo_edit", undo(), 3, Some("a\nb\nC\n"), "a\nb\nc\n"),
        // The line after the last one is gone, so the last one is told.
        ("undo_edit", undo(), 2, Some("a\nb\nc\n"), "a\nb\n"),
        ("undo_edit", undo(), 1, Some("a\nb\n"), ""),
    ] {
        let expected = [place(file.clone(), Some(line)), changed(file.clone(), before, after)];
        assert_eq!(told(tool, arguments).await, expected, "{tool}");
    }
    let (_, told) = workshop.call_told("edit_file", json!({"path": "new/f", "edits": []})).await;
    assert_eq!(told, [], "what was refused has changed nothing");
}

#[tokio::test]
async fn of_a_large_file_only_the_changed_part_is_told() {
    let workshop = Workshop::new();
    let text: String = (1..=20_000).map(|number| format!("line {number}\n")).collect();
    let file = workshop.put("large", &text);
    let edit = json!({"path": "large", "edits": [{"before": "line 10000\n", "after": "ten\nthousand\n"}]});
    let (_, told) = workshop.call_told("edit_file", edit).await;
    let around = |middle: &str| {
        let (above, below) = ("line 9997\nline 9998\nline 9999\n", "line 10001\nline 10002\nline 10003\n");
        format!("[... 96.5 kB left out]\n{above}{middle}{below}[... 107.3 kB left out]\n")
    };
    let expected = [
        place(file.clone(), Some(10_000)),
        changed(file.clone(), Some(&around("line 10000\n")), &around("ten\nthousand\n")),
    ];
    assert_eq!(told, expected);
    let arguments = json!({"path": "large", "content": "x".repeat(200_000), "overwrite": true});
    let (_, told) = workshop.call_told("write_file", arguments).await;
    let [_, Activity::Changed { before: Some(before), after, .. }] = told.as_slice() else { panic!("{told:?}") };
    for part in [before, after] {
        assert!(part.len() < (64 << 10) + 100 && part.ends_with(" kB left out]\n"), "{} bytes", part.len());
    }
}

#[tokio::test]
async fn places_are_told_as_the_session_names_them() {
    let mut workshop = Workshop::new();
    workshop.put("f", "text");
    let link = workshop.folder.path().join("linked");
    std::os::unix::fs::symlink(workshop.path(""), &link).unwrap();
    workshop.session = crate::tool::SessionContext::new("s2", link.clone(), Vec::new(), workshop.outside());
    let (said, told) = workshop.call_told("read_file", json!({"path": "f"})).await;
    said.ok();
    assert_eq!(told, [place(link.join("f"), None)]);
}
