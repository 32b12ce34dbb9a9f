//! Hostile and odd names.

use std::os::unix::fs::symlink;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use crate::services::builtin::developer::testing::Workshop;
use crate::tool::SessionContext;

use super::*;

const REFUSED: &str = "is outside of what this session may reach";

#[tokio::test]
async fn no_file_tool_leaves_the_roots() {
    let workshop = Workshop::new();
    let secret = workshop.outside().join("secret");
    std::fs::write(&secret, "key\n").unwrap();
    symlink(&secret, workshop.path("link")).unwrap();
    symlink(workshop.outside(), workshop.path("folder")).unwrap();
    symlink("../outside/new", workshop.path("dangling")).unwrap();
    std::fs::create_dir(workshop.path("inner")).unwrap();
    let absolute = secret.to_str().unwrap().to_owned();
    for name in [
        "../outside/secret",
        "inner/../../outside/secret",
        "./.././outside/secret",
        absolute.as_str(),
        "link",
        "folder/secret",
        "folder/missing/deep",
        "folder/../outside/secret",
        "dangling",
        "/etc/passwd",
    ] {
        workshop.call("read_file", json!({"path": name})).await.refused(REFUSED);
        workshop.call("write_file", json!({"path": name, "content": "x", "overwrite": true})).await.refused(REFUSED);
        let edits = json!([{"before": "key", "after": "x"}]);
        workshop.call("edit_file", json!({"path": name, "edits": edits})).await.refused(REFUSED);
        workshop.call("undo_edit", json!({"path": name})).await.refused(REFUSED);
        workshop.call("list_dir", json!({"path": name})).await.refused(REFUSED);
        workshop.call("find_files", json!({"path": name, "glob": "*"})).await.refused(REFUSED);
        workshop.call("search", json!({"path": name, "pattern": "k"})).await.refused(REFUSED);
    }
    for tool in ["read_file", "list_dir", "undo_edit"] {
        workshop.call(tool, json!({"path": "missing/../../outside/secret"})).await.refused("does not exist");
    }
    workshop.call("write_file", json!({"path": "missing/../x", "content": ""})).await.refused("does not exist");
    assert_eq!(std::fs::read(&secret).unwrap(), b"key\n");
    assert_eq!(std::fs::read_dir(workshop.outside()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_refusal_names_the_roots() {
    let workshop = Workshop::new();
    let said = workshop.call("read_file", json!({"path": "/etc/passwd"})).await.refused(REFUSED);
    for root in &workshop.session.roots {
        assert!(said.text.contains(&root.canonicalize().unwrap().display().to_string()), "{}", said.text);
    }
}

#[tokio::test]
async fn hidden_paths_are_neither_read_nor_listed_nor_written() {
    // The home of a workshop is `home` in its working directory.
    let workshop = Workshop::new();
    workshop.put("home/.ssh/id_ed25519", "PRIVATE KEY\n");
    workshop.put("home/.ssh/known_hosts", "PRIVATE host\n");
    workshop.put("home/notes", "PRIVATE notes\n");
    symlink("home/.ssh", workshop.path("keys")).unwrap();
    for name in ["home/.ssh/id_ed25519", "keys/id_ed25519", "home/.SSH/new", "home/.aws/credentials"] {
        workshop.call("read_file", json!({"path": name})).await.refused("hidden path");
        workshop.call("write_file", json!({"path": name, "content": "x"})).await.refused("hidden path");
    }
    workshop.call("list_dir", json!({"path": "keys"})).await.refused("hidden path");
    workshop.call("search", json!({"path": "keys", "pattern": "P"})).await.refused("hidden path");
    workshop.call("read_file", json!({"path": "home/.ssh/known_hosts"})).await.ok();
    let found = workshop.call("search", json!({"pattern": "PRIVATE"})).await.ok().text;
    assert!(found.contains("notes") && !found.contains("KEY"), "{found}");
    let found = workshop.call("find_files", json!({"glob": "id_*"})).await.ok().text;
    assert!(found.starts_with("none of the"), "{found}");
    let listed = workshop.call("list_dir", json!({"depth": 5})).await.ok().text;
    assert!(listed.contains("notes") && !listed.contains("id_ed25519"), "{listed}");
}

#[tokio::test]
async fn a_call_touches_only_the_file_it_was_allowed_for() {
    let workshop = Workshop::new();
    workshop.put("notes.md", "old\n");
    workshop.put("main.rs", "fn main() {}\n");
    symlink("main.rs", workshop.path("link.md")).unwrap();
    let allowed = || {
        let target = workshop.path("notes.md").canonicalize().unwrap();
        CallContext::new(Arc::clone(&workshop.session)).with_targets([target])
    };
    let arguments = json!({"path": "link.md", "content": "x", "overwrite": true});
    workshop.call_with(allowed(), "write_file", arguments).await.refused("leads to");
    workshop.call_with(allowed(), "read_file", json!({"path": "link.md"})).await.refused("leads to");
    workshop.call_with(allowed(), "read_file", json!({"path": "notes.md"})).await.ok();
    assert_eq!(workshop.get("main.rs"), b"fn main() {}\n");
}

#[tokio::test]
async fn odd_names_are_answers_and_never_a_panic() {
    let workshop = Workshop::new();
    workshop.call("read_file", json!({"path": ""})).await.refused("empty");
    workshop.call("read_file", json!({"path": "a\0b"})).await.refused("NUL");
    workshop.call("write_file", json!({"path": "a\0b", "content": ""})).await.refused("NUL");
    workshop.call("read_file", json!({"path": "x".repeat(5000)})).await.refused("could not");
    workshop.put("file", "");
    workshop.call("read_file", json!({"path": "file/below"})).await.refused("could not");
    symlink("loop", workshop.path("loop")).unwrap();
    workshop.call("read_file", json!({"path": "loop"})).await.refused("too many links");
    workshop.call("write_file", json!({"path": "one\ntwo\u{1b}", "content": "odd\n"})).await.ok();
    let said = workshop.call("list_dir", json!({})).await.ok();
    assert!(said.text.contains("one\u{fffd}two\u{fffd}  1 line"), "{}", said.text);
}

#[tokio::test]
async fn links_within_the_roots_work_and_stay_links() {
    let workshop = Workshop::new();
    workshop.put("real/file", "one\n");
    symlink("real", workshop.path("folder")).unwrap();
    symlink("folder/file", workshop.path("link")).unwrap();
    workshop.call("read_file", json!({"path": "link"})).await.ok();
    let edits = json!([{"before": "one", "after": "two"}]);
    workshop.call("edit_file", json!({"path": "link", "edits": edits})).await.ok();
    assert_eq!(workshop.get("real/file"), b"two\n");
    assert!(workshop.path("link").is_symlink());
}

#[tokio::test]
async fn scratch_folder_and_symlinked_cwd_are_accessible() {
    let workshop = Workshop::new();
    std::fs::write(workshop.folder.path().join("scratch/log"), "long\n").unwrap();
    workshop.call("read_file", json!({"path": "../scratch/log"})).await.ok();
    let cwd = workshop.folder.path().join("cwd");
    symlink(workshop.path(""), &cwd).unwrap();
    let session = SessionContext::new("s2", cwd, Vec::new(), workshop.folder.path().join("gone"));
    workshop.put("a", "");
    assert_eq!(resolve(&session, "a").unwrap(), workshop.path("a").canonicalize().unwrap());
}

#[tokio::test]
async fn what_is_not_a_regular_file_is_not_opened() {
    let workshop = Workshop::new();
    let fifo = workshop.path("fifo");
    crate::test_fifo::make_fifo(&fifo);
    workshop.call("read_file", json!({"path": "fifo"})).await.refused("not a regular file");
    workshop.call("read_file", json!({"path": "."})).await.refused("is a folder");
    workshop.call("write_file", json!({"path": "fifo", "content": ""})).await.refused("not a regular file");
}

#[test]
fn a_link_put_in_place_after_the_check_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    std::fs::create_dir(root.join("real")).unwrap();
    std::fs::write(root.join("real/file"), "").unwrap();
    symlink("real", root.join("link")).unwrap();
    assert!(open(std::slice::from_ref(&root), &root.join("real/file")).is_ok());
    assert!(open(std::slice::from_ref(&root), &root.join("link/file")).is_err());
}

fn part() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("..".to_owned()),
        Just(".".to_owned()),
        Just(String::new()),
        Just("inner".to_owned()),
        Just("out".to_owned()),
        Just("up".to_owned()),
        Just("round".to_owned()),
        Just("new".to_owned()),
        "[a-z\\\\~ ]{1,3}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_path_never_leaves_the_roots(parts in proptest::collection::vec(part(), 0..8), absolute: bool) {
        let folder = tempfile::tempdir().unwrap();
        let project = folder.path().canonicalize().unwrap().join("project");
        std::fs::create_dir_all(project.join("inner")).unwrap();
        symlink("/", project.join("out")).unwrap();
        symlink("../..", project.join("inner/up")).unwrap();
        symlink("inner/../inner", project.join("round")).unwrap();
        let session: Arc<SessionContext> = SessionContext::new("s", project.clone(), Vec::new(), project.join("scratch"));
        let mut name = parts.join("/");
        if absolute {
            name = format!("{}/{name}", project.display());
        }
        if let Ok(place) = resolve(&session, &name) {
            prop_assert!(place.starts_with(&project), "{name} gave {}", place.display());
            prop_assert!(!place.components().any(|part| part == std::path::Component::ParentDir));
            // What exists of it is really there: no link is left in the path.
            let existing = place.ancestors().find(|place| place.exists()).unwrap();
            let real = existing.canonicalize().unwrap();
            prop_assert_eq!(real.as_path(), existing);
        }
    }
}
