//! Edits and their undoing.

use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::services::builtin::developer::testing::{Workshop, block_on};

async fn edit(workshop: &Workshop, edits: Value) -> crate::services::builtin::developer::testing::Said {
    workshop.call("edit_file", json!({"path": "f", "edits": edits})).await
}

#[tokio::test]
async fn an_edit_returns_a_diff_and_keeps_the_mode() {
    let workshop = Workshop::new();
    let path = workshop.put("f", "one\ntwo\nthree\n");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o751)).unwrap();
    let said = edit(&workshop, json!([{"before": "two", "after": "2\n2b"}])).await.ok();
    let diff = "--- a/f\n+++ b/f\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n+2b\n three\n";
    assert_eq!(said.text, diff);
    assert_eq!(said.data, json!({"diff": diff, "added": 2, "removed": 1}));
    assert_eq!(workshop.get("f"), b"one\n2\n2b\nthree\n");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o751);
    assert_eq!(std::fs::read_dir(workshop.path("")).unwrap().count(), 1, "no temporary file is left");
}

#[tokio::test]
async fn several_edits_are_made_in_order_or_not_at_all() {
    let workshop = Workshop::new();
    workshop.put("f", "a\nb\n");
    edit(&workshop, json!([{"before": "a", "after": "x"}, {"before": "x\nb", "after": "y"}])).await.ok();
    assert_eq!(workshop.get("f"), b"y\n");
    edit(&workshop, json!([{"before": "y", "after": "z"}, {"before": "nope", "after": ""}]))
        .await
        .refused("edit 2 of 2: `before` was not found");
    assert_eq!(workshop.get("f"), b"y\n");
}

#[tokio::test]
async fn what_is_not_found_or_not_unique_is_explained() {
    let workshop = Workshop::new();
    workshop.put("f", "let a = 1;\nlet b = 2;\nlet a = 1;\n");
    edit(&workshop, json!([{"before": "let b  = 2", "after": ""}])).await.refused("    2\tlet b = 2;");
    edit(&workshop, json!([{"before": "let a = 1;", "after": ""}])).await.refused("found 2 times, at lines 1, 3");
    edit(&workshop, json!([{"before": "", "after": "x"}])).await.refused("`before` is empty");
    edit(&workshop, json!([{"before": "let", "after": "let"}])).await.refused("are the same");
    edit(&workshop, json!([])).await.refused("no edit to make");
    edit(&workshop, json!([{"before": "b", "after": "c"}, {"before": "c", "after": "b"}]))
        .await
        .refused("change nothing");
    edit(&workshop, json!([{"before": "let a = 1;\n", "after": "", "all": true}])).await.ok();
    assert_eq!(workshop.get("f"), b"let b = 2;\n");
    workshop.put("f", [0, 1]);
    edit(&workshop, json!([{"before": "a", "after": "b"}])).await.refused("is a binary file");
}

#[tokio::test]
async fn edits_cannot_grow_a_file_over_the_limit() {
    let workshop = Workshop::new();
    let text = "a".repeat(60);
    workshop.put("f", &text);
    // Sixty matches times two to the power of forty: no machine could hold the result.
    let doubling = json!({"before": "a", "after": "aa", "all": true});
    let bomb = edit(&workshop, json!(vec![doubling.clone(); 40])).await;
    bomb.refused("the text would grow to 31457280 bytes by this edit, and at most 16777216 are possible");
    let single = json!({"before": text, "after": "b".repeat((16 << 20) + 1)});
    edit(&workshop, json!([single])).await.refused("the text would grow to 16777217 bytes");
    edit(&workshop, json!(vec![doubling; 101])).await.refused("101 edits are too many for one call; make at most 100");
    assert_eq!(workshop.get("f"), text.as_bytes());
    let whole = super::Replacement { before: text.clone(), after: "b".repeat(100), all: false };
    assert_eq!(super::apply(&text, &[whole], 100).expect("as long as the limit").len(), 100);
}

#[tokio::test]
async fn line_ends_and_encodings_stay_as_they_were() {
    let workshop = Workshop::new();
    workshop.put("f", "one\r\ntwo\r\nthree\r\n");
    edit(&workshop, json!([{"before": "one\ntwo", "after": "1\n2\n2b"}])).await.ok();
    assert_eq!(workshop.get("f"), b"1\r\n2\r\n2b\r\nthree\r\n");
    workshop.put("f", "a\r\nb {\r\n}\r\n");
    edit(&workshop, json!([{"before": "\n}", "after": "\n  c\n}"}])).await.ok();
    assert_eq!(workshop.get("f"), b"a\r\nb {\r\n  c\r\n}\r\n");
    workshop.put("f", "a\nb\nc\r\nd\n");
    edit(&workshop, json!([{"before": "c\nd", "after": "x\ny"}, {"before": "a\nb", "after": "1\n2"}])).await.ok();
    assert_eq!(workshop.get("f"), b"1\n2\nx\r\ny\n");
    workshop.put("f", b"\xff\xfea\0");
    edit(&workshop, json!([{"before": "a", "after": "ä"}])).await.ok();
    assert_eq!(workshop.get("f"), b"\xff\xfe\xe4\0");
    workshop.put("f", b"caf\xe9");
    edit(&workshop, json!([{"before": "é", "after": "è"}])).await.ok();
    assert_eq!(workshop.get("f"), b"caf\xe8");
    edit(&workshop, json!([{"before": "è", "after": "€"}])).await.refused("Latin-1");
}

#[tokio::test]
async fn undo_goes_back_edit_by_edit_and_not_over_others_changes() {
    let workshop = Workshop::new();
    workshop.put("f", "1\n");
    edit(&workshop, json!([{"before": "1", "after": "2"}])).await.ok();
    edit(&workshop, json!([{"before": "2", "after": "3"}])).await.ok();
    let undo = async || workshop.call("undo_edit", json!({"path": "f"})).await;
    let said = undo().await.ok();
    assert!(said.text.starts_with("undone (1 earlier edit left)\n--- a/f"), "{}", said.text);
    assert_eq!(workshop.get("f"), b"2\n");
    workshop.put("f", "other\n");
    undo().await.refused("changed by another program");
    workshop.put("f", "2\n");
    undo().await.ok();
    assert_eq!(workshop.get("f"), b"1\n");
    undo().await.refused("no edit of `f`");
}

#[tokio::test]
async fn undo_removes_a_file_that_was_created_and_its_folders() {
    let workshop = Workshop::new();
    workshop.call("write_file", json!({"path": "new/deep/f", "content": "x"})).await.ok();
    workshop.call("undo_edit", json!({"path": "new/deep/f"})).await.ok();
    assert!(!workshop.path("new").exists());
    workshop.call("write_file", json!({"path": "new/f", "content": "x"})).await.ok();
    workshop.put("new/mine", "x");
    workshop.call("undo_edit", json!({"path": "new/f"})).await.ok();
    assert!(!workshop.path("new/f").exists() && workshop.path("new/mine").exists());
}

#[tokio::test]
async fn another_session_has_a_journal_of_its_own() {
    let workshop = Workshop::new();
    workshop.put("f", "1");
    edit(&workshop, json!([{"before": "1", "after": "2"}])).await.ok();
    let session = crate::tool::SessionContext::new("s2", workshop.path(""), Vec::new(), workshop.outside());
    let call = crate::tool::CallContext::new(session);
    workshop.call_with(call, "undo_edit", json!({"path": "f"})).await.refused("no edit of `f` in this session");
}

fn contents() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![Just("a"), Just("b"), Just("ab"), Just("ä"), Just("")];
    let end = prop_oneof![Just("\n"), Just("\r\n")];
    let text = proptest::collection::vec((line, end), 0..8)
        .prop_map(|lines| lines.into_iter().map(|(line, end)| format!("{line}{end}")).collect::<String>().into_bytes());
    (prop_oneof![Just(&b""[..]), Just(&b"\xef\xbb\xbf"[..]), Just(&b"\xe9"[..])], text)
        .prop_map(|(mark, text)| [mark, &text].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn edits_are_all_or_none_and_undo_restores_every_byte(
        contents in contents(),
        edits in proptest::collection::vec(("[abä\n]{1,3}", "[abcä\n]{0,3}", any::<bool>()), 1..4),
    ) {
        block_on(async {
            let workshop = Workshop::new();
            workshop.put("f", &contents);
            let edits: Vec<Value> = edits
                .iter()
                .map(|(before, after, all)| json!({"before": before, "after": after, "all": all}))
                .collect();
            let said = edit(&workshop, Value::from(edits)).await;
            if said.is_error {
                assert_eq!(workshop.get("f"), contents, "{}", said.text);
                workshop.call("undo_edit", json!({"path": "f"})).await.refused("no edit");
            } else {
                assert_ne!(workshop.get("f"), contents);
                workshop.call("undo_edit", json!({"path": "f"})).await.ok();
                assert_eq!(workshop.get("f"), contents);
            }
        });
    }
}
