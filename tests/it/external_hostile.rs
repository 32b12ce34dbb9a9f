//! Whatever an agent outside sends, the client hears only what the protocol knows, and nothing runs that the mode does
//! not admit. The client of these tests checks every line it hears.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

use crate::support::Sandbox;
use crate::support::acp::{Acp, spoken};
use crate::support::outside::{manifest, mode};
use crate::support::peers::echo;

/// Any JSON, with a liking for the words of the protocol.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop::sample::select(WORDS.to_vec()).prop_map(Value::from),
    ];
    let keys = prop::sample::select(KEYS.to_vec()).prop_map(str::to_owned);
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(keys.clone(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

const KEYS: [&str; 24] = [
    "sessionUpdate",
    "content",
    "type",
    "text",
    "toolCallId",
    "title",
    "status",
    "kind",
    "locations",
    "path",
    "line",
    "rawInput",
    "rawOutput",
    "entries",
    "priority",
    "uri",
    "name",
    "data",
    "mimeType",
    "resource",
    "newText",
    "terminalId",
    "_meta",
    "used",
];
const WORDS: [&str; 20] = [
    "agent_message_chunk",
    "user_message_chunk",
    "agent_thought_chunk",
    "tool_call",
    "tool_call_update",
    "plan",
    "usage_update",
    "notice",
    "session_info_update",
    "compaction_update",
    "subagent_update",
    "current_mode_update",
    "config_option_update",
    "available_commands_update",
    "text",
    "image",
    "diff",
    "terminal",
    "completed",
    "resource_link",
];
const METHODS: [&str; 14] = [
    "fs/read_text_file",
    "fs/write_text_file",
    "terminal/create",
    "terminal/output",
    "terminal/kill",
    "terminal/release",
    "terminal/wait_for_exit",
    "session/request_permission",
    "elicitation/create",
    "session/prompt",
    "initialize",
    "_own/method",
    "mcp/message",
    "session/new",
];

/// A line that the agent sends in its turn: an update, a request, a notification, an answer nobody asked for, or anything.
fn any_line(file: String) -> impl Strategy<Value = String> {
    let update = (prop::sample::select(WORDS.to_vec()), any_json()).prop_map(|(kind, mut update)| {
        if !update.is_object() {
            update = json!({"content": update});
        }
        update["sessionUpdate"] = json!(kind);
        json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "$SESSION", "update": update}})
    });
    let request =
        (prop::sample::select(METHODS.to_vec()), any_json(), any::<u32>()).prop_map(move |(method, params, id)| {
            let mut params = if params.is_object() { params } else { json!({"x": params}) };
            params["sessionId"] = json!("$SESSION");
            params["path"] = json!(file);
            params["content"] = json!("overwritten");
            params["command"] = json!("touch");
            params["args"] = json!([file]);
            json!({"jsonrpc": "2.0", "id": format!("theirs-{id}"), "method": method, "params": params})
        });
    let stray = any_json().prop_map(|result| json!({"jsonrpc": "2.0", "id": 4_000_000_000_u64, "result": result}));
    let bare = (prop::sample::select(METHODS.to_vec()), any_json()).prop_map(
        |(method, params)| json!({"jsonrpc": "2.0", "id": "bare", "method": method, "params": [params, "$SESSION"]}),
    );
    let list = Just(json!({"jsonrpc": "2.0", "method": "session/update", "params": ["$SESSION"]}));
    let options = any_json().prop_map(|options| {
        let update = json!({"sessionUpdate": "config_option_update", "configOptions": [options, "boom"]});
        json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "$SESSION", "update": update}})
    });
    prop_oneof![4 => update, 1 => bare, 1 => list, 1 => options, 3 => request, 1 => stray, 1 => any_json()]
        .prop_map(|line| line.to_string())
}

#[test]
fn hostile_agent_stays_in_protocol_and_in_scope() {
    let sandbox = Sandbox::new();
    let echoing = manifest("echo", &echo(&[]), &[mode("default", json!(["read"]), json!(["developer"]))]);
    sandbox.install(&echoing);
    sandbox.write("project/kept.txt", "as it was");
    let file = sandbox.path("project/kept.txt");
    let mut client = Acp::start(&sandbox);
    // Nobody consents to anything, so whatever runs has found another way.
    client.on_permission("reject_once");
    let session = client.session();
    client.set_mode(&session, "echo/default");
    let name = file.to_string_lossy().into_owned();
    let client = std::cell::RefCell::new(client);
    let config = Config { cases: 300, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&any_line(name), |line| {
            let mut client = client.borrow_mut();
            // Each line is checked against the protocol's types where it is heard.
            let (reason, _) = client.prompt(&session, &format!("raw {line}"));
            prop_assert_eq!(reason, "end_turn");
            prop_assert_eq!(std::fs::read_to_string(&file).unwrap(), "as it was");
            Ok(())
        })
        .unwrap();
    let (_, updates) = client.borrow_mut().prompt(&session, "say still here");
    assert_eq!(spoken(&updates), "still here");
    assert_eq!(std::fs::read_dir(sandbox.path("project")).unwrap().count(), 1, "nothing was made");
}
