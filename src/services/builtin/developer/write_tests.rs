//! What may be overwritten, and what stays of the old file.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::services::builtin::developer::testing::Workshop;

#[tokio::test]
async fn new_file_is_created_with_folders_and_can_be_replaced() {
    let workshop = Workshop::new();
    let said = workshop.call("write_file", json!({"path": "a/b/c", "content": "one\ntwo\n"})).await.ok();
    assert_eq!(said.text, "created `a/b/c` (2 lines)");
    assert_eq!(said.data, json!({"created": true, "added": 2, "removed": 0}));
    let said = workshop.call("write_file", json!({"path": "a/b/c", "content": "one\n"})).await.ok();
    assert_eq!(said.text, "wrote `a/b/c` (+0 -1 lines)");
    assert_eq!(said.data["removed"], 1);
    let mode = workshop.path("a/b/c").metadata().unwrap().permissions().mode();
    assert_ne!(mode & 0o044, 0, "readable as other new files are: {mode:o}");
    workshop.call("write_file", json!({"path": "a/b", "content": ""})).await.refused("is a folder");
    workshop.call("write_file", json!({"path": "new/", "content": ""})).await.refused("is a folder");
}

#[tokio::test]
async fn a_file_that_was_not_read_or_has_changed_is_not_overwritten() {
    let workshop = Workshop::new();
    workshop.put("f", "old\n");
    let write = async |overwrite: bool| {
        workshop.call("write_file", json!({"path": "f", "content": "new\n", "overwrite": overwrite})).await
    };
    write(false).await.refused("was not read in this session");
    assert_eq!(workshop.get("f"), b"old\n");
    workshop.call("read_file", json!({"path": "f"})).await.ok();
    workshop.put("f", "odd\n");
    write(false).await.refused("was changed on disk since it was read");
    write(true).await.refused("was changed on disk since it was read");
    assert_eq!(workshop.get("f"), b"odd\n");
    workshop.call("read_file", json!({"path": "f"})).await.ok();
    write(false).await.ok();
    assert_eq!(workshop.get("f"), b"new\n");
    workshop.put("g", "old\n");
    workshop.call("write_file", json!({"path": "g", "content": "new\n", "overwrite": true})).await.ok();
    workshop.call("undo_edit", json!({"path": "g"})).await.ok();
    assert_eq!(workshop.get("g"), b"old\n");
    workshop.call("write_file", json!({"path": "g", "content": ""})).await.refused("was not read");
}

#[tokio::test]
async fn mode_line_ends_and_encoding_are_kept() {
    let workshop = Workshop::new();
    let path = workshop.put("f", "a\r\nb\r\n");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4750)).unwrap();
    let write = async |content: &str| {
        workshop.call("write_file", json!({"path": "f", "content": content, "overwrite": true})).await.ok()
    };
    write("x\ny\n").await;
    assert_eq!(workshop.get("f"), b"x\r\ny\r\n");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o4750);
    for (old, content, new) in [
        (&b"\xef\xbb\xbfa"[..], "b", &b"\xef\xbb\xbfb"[..]),
        (b"\xef\xbb\xbfa", "\u{feff}b", b"\xef\xbb\xbfb"),
        (b"\xfe\xff\0a", "b", b"\xfe\xff\0b"),
        (b"caf\xe9", "\u{e9}", b"\xe9"),
        (b"caf\xe9", "€", "€".as_bytes()),
        (b"\0binary", "text", b"text"),
    ] {
        std::fs::write(&path, old).unwrap();
        workshop.call("read_file", json!({"path": "f"})).await.ok();
        write(content).await;
        assert_eq!(workshop.get("f"), new);
    }
}

#[tokio::test]
async fn a_write_that_fails_changes_nothing() {
    let workshop = Workshop::new();
    workshop.put("file", "x");
    workshop.call("write_file", json!({"path": "file/below/f", "content": ""})).await.refused("could not");
    std::fs::set_permissions(workshop.path("file"), std::fs::Permissions::from_mode(0o444)).unwrap();
    let arguments = json!({"path": "file", "content": "y", "overwrite": true});
    workshop.call("write_file", arguments).await.refused("the file is read-only");
    assert_eq!(workshop.get("file"), b"x");
    let name = "n".repeat(300);
    workshop.call("write_file", json!({"path": format!("made/{name}"), "content": ""})).await.refused("could not");
    assert_eq!(std::fs::read_dir(workshop.path("")).unwrap().count(), 1);
}
