//! The service as a whole: its catalogue, and what holds for every tool.

use std::sync::Arc;

use rmcp::ServerHandler as _;
use serde_json::{Value, json};

use crate::tool::CallContext;

use super::testing::Workshop;

#[tokio::test]
async fn the_tools_have_schemas_of_few_bytes() {
    let workshop = Workshop::new();
    let tools = workshop.handler().tool_router.list_all();
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    assert_eq!(
        names,
        [
            "analyze",
            "edit_file",
            "find_files",
            "list_dir",
            "read_file",
            "search",
            "shell",
            "shell_output",
            "shell_stop",
            "undo_edit",
            "update_plan",
            "write_file"
        ]
    );
    let seen: Vec<Value> = tools
        .iter()
        .map(|tool| json!({"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}))
        .collect();
    let seen = serde_json::to_string(&seen).unwrap();
    assert!(seen.len() < 5_200, "{} bytes: {seen}", seen.len());
    for noise in ["$schema", "$ref", "$defs", "title", "null", "format", "nullable"] {
        assert!(!seen.contains(&format!("\"{noise}\"")), "{noise} in {seen}");
    }
    for kept in ["\"maximum\":600", "\"minLength\":1", "\"in_progress\""] {
        assert!(seen.contains(kept), "{kept} not in {seen}");
    }
}

#[tokio::test]
async fn every_tool_says_what_it_may_do() {
    let workshop = Workshop::new();
    for tool in workshop.handler().tool_router.list_all() {
        let hints = tool.annotations.unwrap();
        let all = [hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint];
        assert!(all.iter().all(Option::is_some), "{}: {all:?}", tool.name);
        let changes = ["shell", "shell_stop", "write_file", "edit_file", "undo_edit"].contains(&tool.name.as_ref());
        assert_eq!(hints.read_only_hint, Some(!changes), "{}", tool.name);
    }
}

#[tokio::test]
async fn a_call_without_a_session_and_wrong_arguments_are_answers() {
    let workshop = Workshop::new();
    let said = workshop.call_in(workshop.context(), "read_file", json!({"path": "a"})).await;
    said.refused("without a session");
    workshop.call("read_file", json!({"path": "a", "colour": 1})).await.refused("unknown field `colour`");
    workshop.call("edit_file", json!({})).await.refused("missing field `path`");
}

#[tokio::test]
async fn a_call_that_was_cancelled_before_it_began_does_nothing() {
    let workshop = Workshop::new();
    for (tool, arguments) in
        [("shell", json!({"command": "touch made"})), ("write_file", json!({"path": "made", "content": ""}))]
    {
        let call = CallContext::new(Arc::clone(&workshop.session));
        call.cancel.cancel();
        workshop.call_with(call, tool, arguments.clone()).await.refused("cancelled");
        let mut context = workshop.context();
        context.extensions.insert(CallContext::new(Arc::clone(&workshop.session)));
        context.ct.cancel();
        workshop.call_in(context, tool, arguments).await.refused("cancelled");
    }
    assert!(!workshop.path("made").exists());
}

#[tokio::test]
async fn the_plan_is_told_to_whoever_shows_the_call() {
    let workshop = Workshop::new();
    let steps = json!([
        {"text": "look", "status": "completed", "priority": "high"},
        {"text": "write", "status": "in_progress"},
        {"text": "test", "status": "pending"},
    ]);
    let (said, told) = workshop.call_told("update_plan", json!({"steps": steps})).await;
    let said = said.ok();
    assert_eq!((said.text.as_str(), &said.data), ("1 of 3 steps done; now: write", &json!({"steps": steps})));
    assert_eq!(serde_json::to_value(told).unwrap(), json!([{"plan": steps}]));
    for (steps, reason) in [
        (json!([{"text": " ", "status": "pending"}]), "needs a text"),
        (json!([{"text": "a", "status": "done"}]), "in_progress"),
    ] {
        let (said, told) = workshop.call_told("update_plan", json!({"steps": steps})).await;
        said.refused(reason);
        assert_eq!(told, [], "a refused plan is no plan");
    }
}

#[tokio::test]
async fn the_service_says_in_a_few_lines_how_to_use_it() {
    let info = Workshop::new().handler().get_info();
    assert_eq!(info.server_info.name, "developer");
    let instructions = info.instructions.unwrap();
    assert_eq!(instructions.lines().count(), 4, "{instructions}");
    assert!(instructions.lines().all(|line| line.ends_with('.') && !line.starts_with(' ')), "{instructions}");
}
