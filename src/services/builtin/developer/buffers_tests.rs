//! Files by way of the editor: what it is asked, what counts, and what happens when it fails.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::services::builtin::developer::fake_editor::{FakeEditor, Fault};
use crate::services::builtin::developer::testing::{Said, Workshop};
use crate::tool::editor::EditorCapabilities;
use crate::tool::{Activity, CallContext};

fn workshop(editor: FakeEditor) -> (Workshop, Arc<FakeEditor>) {
    let editor = Arc::new(editor);
    (Workshop::shown_in(Some(editor.clone())), editor)
}

async fn read(workshop: &Workshop, path: &str) -> Said {
    workshop.call("read_file", json!({"path": path})).await
}

fn edit(before: &str, after: &str) -> Value {
    json!({"path": "f", "edits": [{"before": before, "after": after}]})
}

#[tokio::test]
async fn an_unsaved_buffer_is_what_is_read() {
    let (workshop, editor) = workshop(FakeEditor::lending_files());
    let file = workshop.put("f", "saved\n");
    editor.type_into(&file, "typed\nmore\n");
    let said = workshop.call("read_file", json!({"path": "f", "line": 2})).await.ok();
    assert_eq!(said.text, "    2\tmore\n");
    assert_eq!(editor.asked(), ["read f"]);
    let said = workshop.call("search", json!({"pattern": "typed"})).await.ok();
    assert!(said.text.starts_with("no match"), "search reads the disk: {}", said.text);
}

#[tokio::test]
async fn edit_goes_through_the_editor_and_shows_the_buffer_text() {
    let (workshop, editor) = workshop(FakeEditor::lending_files());
    let file = workshop.put("f", "saved\n");
    editor.type_into(&file, "typed\nmore\n");
    let (said, told) = workshop.call_told("edit_file", edit("more", "less")).await;
    assert!(said.ok().text.ends_with(" typed\n-more\n+less\n"));
    let expected = Activity::Changed {
        path: file.clone(),
        before: Some("typed\nmore\n".to_owned()),
        after: "typed\nless\n".to_owned(),
    };
    assert_eq!(told, [Activity::Location { path: file.clone(), line: Some(2) }, expected]);
    assert_eq!(editor.asked(), ["read f", "write f", "read f"]);
    assert_eq!((workshop.get("f"), editor.buffer(&file)), (b"typed\nless\n".to_vec(), None));
    workshop.call("undo_edit", json!({"path": "f"})).await.ok();
    assert_eq!(workshop.get("f"), b"typed\nmore\n", "back to what the user had, not to what was saved");
}

#[tokio::test]
async fn what_the_user_types_after_the_reading_is_a_change() {
    let (workshop, editor) = workshop(FakeEditor::lending_files());
    let file = workshop.put("f", "one\n");
    let write = || json!({"path": "f", "content": "new\n"});
    read(&workshop, "f").await.ok();
    editor.type_into(&file, "two\n");
    workshop.call("write_file", write()).await.refused("was changed in the editor since it was read");
    read(&workshop, "f").await.ok();
    workshop.call("write_file", write()).await.ok();
    assert_eq!(workshop.get("f"), b"new\n");
    editor.type_into(&file, "three\n");
    workshop.call("undo_edit", json!({"path": "f"})).await.refused("changed by another program");
    assert_eq!((workshop.get("f"), editor.buffer(&file)), (b"new\n".to_vec(), Some("three\n".to_owned())));
}

#[tokio::test]
async fn editor_writes_a_new_file_and_undo_removes_its_folders() {
    let (workshop, editor) = workshop(FakeEditor::lending_files());
    workshop.call("write_file", json!({"path": "new/deep/f", "content": "x\n"})).await.ok();
    assert_eq!(editor.asked(), ["read f", "write f", "read f"]);
    assert_eq!(workshop.get("new/deep/f"), b"x\n");
    workshop.call("undo_edit", json!({"path": "new/deep/f"})).await.ok();
    assert!(!workshop.path("new").exists());
    editor.type_into(&workshop.path("g"), "never saved");
    workshop.call("write_file", json!({"path": "g", "content": ""})).await.refused("was never saved");
    for fault in [Fault::Fails, Fault::Hangs] {
        editor.fault(|faults| faults.write = fault);
        workshop.call("write_file", json!({"path": "other/f", "content": "ours\n"})).await.ok();
        assert_eq!(workshop.get("other/f"), b"ours\n", "{fault:?}");
        workshop.call("undo_edit", json!({"path": "other/f"})).await.ok();
        assert!(!workshop.path("other").exists(), "{fault:?}");
    }
}

#[tokio::test]
async fn a_failing_or_silent_editor_is_read_around() {
    for (fault, reason) in [(Fault::Fails, "it is out of order"), (Fault::Hangs, "the editor gave no answer within")] {
        let (workshop, editor) = workshop(FakeEditor::lending_files());
        let file = workshop.put("f", "saved\n");
        editor.type_into(&file, "typed\n");
        editor.fault(|faults| faults.read = fault);
        let said = read(&workshop, "f").await.ok();
        assert!(said.text.starts_with("    1\tsaved\n[as it is on disk: "), "{}", said.text);
        assert!(said.text.contains(reason), "{}", said.text);
        editor.asked();
        workshop.call("edit_file", edit("saved", "edited")).await.ok();
        assert_eq!(workshop.get("f"), b"edited\n");
        assert_eq!(editor.asked(), ["read f"], "who does not show a file does not get to write it");
    }
}

#[tokio::test]
async fn failed_editor_write_goes_to_disk_only_without_unsaved_text() {
    for fault in [Fault::Fails, Fault::Hangs] {
        let (workshop, editor) = workshop(FakeEditor::lending_files());
        let file = workshop.put("f", "one\n");
        editor.fault(|faults| faults.write = fault);
        workshop.call("edit_file", edit("one", "two")).await.ok();
        assert_eq!(workshop.get("f"), b"two\n");
        workshop.call("undo_edit", json!({"path": "f"})).await.ok();
        assert_eq!(workshop.get("f"), b"one\n");
        editor.type_into(&file, "one\nand more\n");
        let (said, told) = workshop.call_told("edit_file", edit("one", "two")).await;
        said.refused("unsaved changes in the editor").clone().refused("ask the user to save the file");
        assert_eq!(told, [], "nothing was changed");
        let content = json!({"path": "f", "content": "x", "overwrite": true});
        workshop.call("write_file", content).await.refused("unsaved changes in the editor");
        assert_eq!(workshop.get("f"), b"one\n");
        workshop.call("undo_edit", json!({"path": "f"})).await.refused("no edit of `f`");
    }
}

#[tokio::test]
async fn an_editor_may_lend_its_files_only_to_read_or_only_to_write() {
    let abilities = EditorCapabilities { read: true, ..EditorCapabilities::default() };
    let (workshop, editor) = workshop(FakeEditor { abilities, ..FakeEditor::default() });
    let file = workshop.put("f", "one\n");
    workshop.call("edit_file", edit("one", "two")).await.ok();
    assert_eq!(workshop.get("f"), b"two\n");
    editor.type_into(&file, "typed\n");
    workshop.call("edit_file", edit("typed", "x")).await.refused("it only lends its files to read");
    let abilities = EditorCapabilities { write: true, ..EditorCapabilities::default() };
    let (workshop, editor) = self::workshop(FakeEditor { abilities, ..FakeEditor::default() });
    workshop.put("f", "one\n");
    workshop.call("edit_file", edit("one", "two")).await.ok();
    workshop.call("undo_edit", json!({"path": "f"})).await.ok();
    assert_eq!((workshop.get("f"), editor.asked()), (b"one\n".to_vec(), vec!["write f".to_owned(); 2]));
}

#[tokio::test]
async fn line_ends_and_mark_stay_whatever_the_editor_shows_of_them() {
    for without_cr in [false, true] {
        let (workshop, editor) = workshop(FakeEditor { without_cr, ..FakeEditor::lending_files() });
        for fault in [Fault::Never, Fault::Fails] {
            editor.fault(|faults| faults.write = fault);
            workshop.put("f", "\u{feff}a\r\nb\r\n");
            workshop.call("edit_file", edit("a\nb", "a\nx\nb")).await.ok();
            assert_eq!(workshop.get("f"), "\u{feff}a\r\nx\r\nb\r\n".as_bytes(), "{without_cr} {fault:?}");
            workshop.call("undo_edit", json!({"path": "f"})).await.ok();
            assert_eq!(workshop.get("f"), "\u{feff}a\r\nb\r\n".as_bytes(), "{without_cr} {fault:?}");
            let content = json!({"path": "f", "content": "new\nlines\n", "overwrite": true});
            workshop.call("write_file", content).await.ok();
            assert_eq!(workshop.get("f"), "\u{feff}new\r\nlines\r\n".as_bytes(), "{without_cr} {fault:?}");
        }
    }
}

#[tokio::test]
async fn what_the_editor_makes_of_a_text_is_what_is_told() {
    let on_save: Option<fn(&str) -> String> = Some(|text| text.replace("( ", "("));
    let (workshop, _editor) = workshop(FakeEditor { on_save, ..FakeEditor::lending_files() });
    workshop.put("f", "call()\n");
    let (said, told) = workshop.call_told("edit_file", edit("call()", "call( 1)")).await;
    assert!(said.ok().text.ends_with("+call(1)\n[the editor has changed the text again, as by formatting it]"));
    assert!(matches!(&told[1], Activity::Changed { after, .. } if after == "call(1)\n"), "{told:?}");
    workshop.call("undo_edit", json!({"path": "f"})).await.ok();
    assert_eq!(workshop.get("f"), b"call()\n");
    read(&workshop, "f").await.ok();
    let content = || json!({"path": "f", "content": "call( 2)\n"});
    assert!(workshop.call("write_file", content()).await.ok().text.contains("has changed the text again"));
    workshop.call("write_file", content()).await.refused("was changed in the editor since it was read");
}

#[tokio::test]
async fn what_is_no_plain_text_stays_on_disk() {
    let (workshop, editor) = workshop(FakeEditor::lending_files());
    for (name, bytes) in [
        ("latin", &b"caf\xe9\n"[..]),
        ("wide", b"\xff\xfea\0\n\0"),
        ("picture", b"\x89PNG\r\n\x1a\n\0"),
        ("binary", b"\x7fELF\0\0"),
        ("book.ipynb", br#"{"cells": []}"#),
    ] {
        workshop.put(name, bytes);
        read(&workshop, name).await.ok();
        workshop.call("write_file", json!({"path": name, "content": "e\n"})).await.ok();
        assert_eq!(editor.asked(), [] as [String; 0], "{name}");
        workshop.call("undo_edit", json!({"path": name})).await.ok();
        let asked = editor.asked();
        assert!(asked.iter().all(|question| question.starts_with("read")), "no way back through it: {asked:?}");
        assert_eq!(workshop.get(name), bytes);
    }
    let log = workshop.session.scratch.join("shell.log");
    std::fs::write(&log, "ours\n").unwrap();
    workshop.call("read_file", json!({"path": log})).await.ok();
    assert_eq!(editor.asked(), [] as [String; 0]);
}

#[tokio::test]
async fn what_may_not_be_touched_never_reaches_the_editor() {
    let (workshop, editor) = workshop(FakeEditor::lending_files());
    std::fs::write(workshop.outside().join("f"), "secret").unwrap();
    std::os::unix::fs::symlink(workshop.outside().join("f"), workshop.path("link")).unwrap();
    std::os::unix::fs::symlink(workshop.outside(), workshop.path("folder")).unwrap();
    let outside = workshop.outside().join("f");
    for path in ["../outside/f", "link", "folder/f", "folder/new", outside.to_str().unwrap()] {
        for (tool, arguments) in [
            ("read_file", json!({"path": path})),
            ("write_file", json!({"path": path, "content": "x", "overwrite": true})),
            ("edit_file", json!({"path": path, "edits": [{"before": "secret", "after": "x"}]})),
            ("undo_edit", json!({"path": path})),
        ] {
            workshop.call(tool, arguments).await.refused("is outside of what this session may reach");
        }
    }
    read(&workshop, "missing").await.refused("No such file");
    assert_eq!(editor.asked(), [] as [String; 0]);
    let file = workshop.put("f", "fixed\n");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o444)).unwrap();
    workshop.call("edit_file", edit("fixed", "x")).await.refused("the file is read-only");
    assert_eq!(editor.asked(), ["read f"], "a read-only file is not written by the editor either");
}

#[tokio::test]
async fn cancelling_a_call_ends_its_waiting_for_the_editor() {
    let patience = Some(Duration::from_secs(3600));
    let (workshop, editor) = workshop(FakeEditor { patience, ..FakeEditor::lending_files() });
    editor.fault(|faults| faults.read = Fault::Hangs);
    workshop.put("f", "one\n");
    for (tool, arguments) in [("read_file", json!({"path": "f"})), ("edit_file", edit("one", "two"))] {
        let call = CallContext::new(Arc::clone(&workshop.session));
        let cancel = call.cancel.clone();
        let (said, ()) = tokio::join!(workshop.call_with(call, tool, arguments), async {
            editor.heard.notified().await;
            cancel.cancel();
        });
        said.refused("the call was cancelled; nothing was done");
    }
    assert_eq!(workshop.get("f"), b"one\n");
}
