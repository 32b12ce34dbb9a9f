//! What is found, and what is said when nothing is.

use serde_json::json;

use crate::services::builtin::developer::testing::Workshop;

fn workshop() -> Workshop {
    let workshop = Workshop::new();
    workshop.put(".gitignore", "ignored.rs\n");
    workshop.put("ignored.rs", "fn main() {}\n");
    workshop.put("src/a.rs", "use x;\nfn main() {\n    run(1);\n}\n");
    workshop.put("src/b.txt", "fn main in prose\r\n");
    workshop.put("data.bin", b"\0fn main");
    workshop
}

#[tokio::test]
async fn matches_are_grouped_by_file_with_line_numbers() {
    let workshop = workshop();
    let said = workshop.call("search", json!({"pattern": "fn \\w+"})).await.ok();
    assert_eq!(said.text, "src/a.rs\n2: fn main() {\n\nsrc/b.txt\n1: fn main in prose\n\n[2 matches in 2 files]\n");
    let said = workshop.call("search", json!({"pattern": "main", "glob": "*.rs", "context": 1})).await.ok();
    assert_eq!(said.text, "src/a.rs\n1- use x;\n2: fn main() {\n3-     run(1);\n\n[1 match in 1 file]\n");
    let said = workshop.call("search", json!({"pattern": "x;$", "path": "src/a.rs", "glob": "*.rs"})).await.ok();
    assert_eq!(said.text, "src/a.rs\n1: use x;\n\n[1 match in 1 file]\n");
}

#[tokio::test]
async fn plain_text_is_not_a_regex_and_a_bad_regex_explains_itself() {
    let workshop = workshop();
    let said = workshop.call("search", json!({"pattern": "run(1", "literal": true})).await.ok();
    assert!(said.text.contains("3:     run(1);"));
    let said = workshop.call("search", json!({"pattern": "run(1"})).await.refused("unclosed group");
    assert!(said.text.contains("`literal: true`"), "{}", said.text);
    workshop.call("search", json!({"pattern": "a\\nb"})).await.refused("in one line");
    let said = workshop.call("search", json!({"pattern": "(?i)FN MAIN", "path": "src"})).await.ok();
    assert!(said.text.contains("[2 matches in 2 files]"));
}

#[tokio::test]
async fn no_match_and_too_many_are_said() {
    let workshop = workshop();
    let said = workshop.call("search", json!({"pattern": "nowhere"})).await.ok();
    assert!(said.text.starts_with("no match in the 4 files searched in `.`"), "{}", said.text);
    workshop.put("many", "hit\n".repeat(300));
    let said = workshop.call("search", json!({"pattern": "hit", "max": 2})).await.ok();
    assert!(said.text.starts_with("many\n1: hit\n2: hit\n\n[2 matches in 1 file; there may be more"), "{}", said.text);
    workshop.put("wide", format!("{}\n", "w".repeat(5_000)));
    let said = workshop.call("search", json!({"pattern": "www"})).await.ok();
    assert!(said.text.contains(&format!("1: {} [...]\n", "w".repeat(400))));
    workshop.call("search", json!({"pattern": "x", "path": "none"})).await.refused("could not search `none`");
}

#[tokio::test]
async fn a_cancelled_search_ends() {
    let workshop = workshop();
    let call = crate::tool::CallContext::new(std::sync::Arc::clone(&workshop.session));
    call.cancel.cancel();
    workshop.call_with(call, "search", json!({"pattern": "x"})).await.refused("cancelled");
    let mut context = workshop.context();
    context.extensions.insert(crate::tool::CallContext::new(std::sync::Arc::clone(&workshop.session)));
    context.ct.cancel();
    workshop.call_in(context, "search", json!({"pattern": "x"})).await.refused("cancelled");
}
