//! Previews of changes: the whole file before and after, as the tool would write it.

use serde_json::json;

use super::preview;
use crate::services::builtin::developer::testing::Workshop;
use crate::tool::CallContext;

async fn change(
    workshop: &Workshop,
    tool: &str,
    arguments: serde_json::Value,
) -> Option<(Option<String>, String, u32)> {
    let serde_json::Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    let context = CallContext::new(std::sync::Arc::clone(&workshop.session));
    preview(tool, &arguments, &context).await.map(|change| (change.before, change.after, change.line))
}

#[tokio::test]
async fn several_edits_are_one_change_of_the_whole_file() {
    let workshop = Workshop::new();
    workshop.put("f", "a\nb\nc\nd\n");
    let edits = json!([{"before": "b", "after": "B"}, {"before": "d", "after": "D"}]);
    let shown = change(&workshop, "edit_file", json!({"path": "f", "edits": edits})).await;
    assert_eq!(shown, Some((Some("a\nb\nc\nd\n".to_owned()), "a\nB\nc\nD\n".to_owned(), 2)));
    assert_eq!(workshop.get("f"), b"a\nb\nc\nd\n", "nothing was changed");
}

#[tokio::test]
async fn a_preview_has_the_line_ends_of_the_file() {
    let workshop = Workshop::new();
    workshop.put("f", "a\r\nb\r\n");
    let written = change(&workshop, "write_file", json!({"path": "f", "content": "a\nc\n"})).await;
    assert_eq!(written, Some((Some("a\r\nb\r\n".to_owned()), "a\r\nc\r\n".to_owned(), 2)));
    let created = change(&workshop, "write_file", json!({"path": "new", "content": "x\n"})).await;
    assert_eq!(created, Some((None, "x\n".to_owned(), 1)));
}

#[tokio::test]
async fn a_change_of_a_large_file_is_shown_in_part() {
    let workshop = Workshop::new();
    let text = "line\n".repeat(400_000);
    workshop.put("f", format!("{text}old\n{text}"));
    let edits = json!([{"before": "old", "after": "new"}]);
    let (before, after, line) = change(&workshop, "edit_file", json!({"path": "f", "edits": edits})).await.unwrap();
    let part = |middle: &str| {
        let (around, mark) = ("line\nline\nline\n", "[... 1.9 MB left out]\n");
        format!("{mark}{around}{middle}{around}{mark}")
    };
    assert_eq!(before.unwrap(), part("old\n"));
    assert_eq!((after, line), (part("new\n"), 400_001));
}

#[tokio::test]
async fn an_edit_that_would_fail_has_no_preview() {
    let workshop = Workshop::new();
    workshop.put("f", "a\n");
    let edits = json!([{"before": "x", "after": "y"}]);
    assert_eq!(change(&workshop, "edit_file", json!({"path": "f", "edits": edits})).await, None);
    assert_eq!(change(&workshop, "read_file", json!({"path": "f"})).await, None);
}
