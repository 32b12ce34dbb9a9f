//! What an agent outside can reach through Skein: what its mode admits, and nothing else.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::support::acp::{Acp, of_kind, said, spoken};
use crate::support::outside::{manifest, mode};
use crate::support::peers::{Peer, echo};
use crate::support::{Sandbox, servers};

/// An agent `echo` with a mode for each way to be held.
fn fenced(flags: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new();
    let notes = json!({"group": "edit", "files": r"\.md$"});
    let modes = [
        mode("nothing", json!([]), json!([])),
        mode("reader", json!(["read", "memory"]), json!(["developer", "memory"])),
        mode("writer", json!(["read", notes]), json!(["developer"])),
        mode("runner", json!(["read", "edit", "command"]), json!(["developer"])),
    ];
    sandbox.install(&manifest("echo", &echo(flags), &modes));
    sandbox.write("project/a.txt", "one\ntwo\nthree\n");
    sandbox
}

fn in_mode(sandbox: &Sandbox, mode: &str) -> (Acp, String) {
    let mut client = Acp::start(sandbox);
    let session = client.session();
    client.set_mode(&session, &format!("echo/{mode}"));
    (client, session)
}

fn path(sandbox: &Sandbox, file: &str) -> String {
    sandbox.path(&format!("project/{file}")).to_string_lossy().into_owned()
}

#[test]
fn reading_and_writing_are_what_the_mode_says() {
    let sandbox = fenced(&[]);
    let file = path(&sandbox, "a.txt");
    let (mut client, session) = in_mode(&sandbox, "nothing");
    for command in [format!("read {file}"), format!("write {file} gone"), "run echo hi".to_owned()] {
        let (_, updates) = client.prompt(&session, &command);
        assert!(spoken(&updates).contains("error -32601"), "{command}: {}", spoken(&updates));
    }
    let sandbox = fenced(&[]);
    let file = path(&sandbox, "a.txt");
    let (mut client, session) = in_mode(&sandbox, "reader");
    let (_, updates) = client.prompt(&session, &format!("read {file} 2 1"));
    assert_eq!(spoken(&updates), "two\n");
    let (_, updates) = client.prompt(&session, &format!("write {file} gone"));
    assert!(spoken(&updates).contains("error -32601"), "{}", spoken(&updates));
    let sandbox = fenced(&[]);
    let (file, note) = (path(&sandbox, "a.txt"), path(&sandbox, "note.md"));
    let (mut client, session) = in_mode(&sandbox, "writer");
    client.on_permission("allow_once");
    let (_, updates) = client.prompt(&session, &format!("write {note} # Notes"));
    assert_eq!(spoken(&updates), "written");
    assert_eq!(std::fs::read_to_string(&note).unwrap(), "# Notes");
    let (_, updates) = client.prompt(&session, &format!("write {file} gone"));
    assert!(spoken(&updates).contains("not among the files"), "a `files` rule holds: {}", spoken(&updates));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\nthree\n");
}

#[test]
fn nothing_outside_of_the_sessions_folders_is_read_or_written() {
    let sandbox = fenced(&[]);
    sandbox.write("home/secret", "mellon");
    std::os::unix::fs::symlink(sandbox.path("home"), sandbox.path("project/link")).unwrap();
    let (mut client, session) = in_mode(&sandbox, "runner");
    client.on_permission("allow_once");
    let secret = sandbox.path("home/secret").to_string_lossy().into_owned();
    for file in [secret, path(&sandbox, "link/secret"), path(&sandbox, "../home/secret"), "/etc/hostname".to_owned()] {
        let (_, updates) = client.prompt(&session, &format!("read {file}"));
        assert!(spoken(&updates).contains("outside of the folders"), "{file}: {}", spoken(&updates));
        let (_, updates) = client.prompt(&session, &format!("write {file} x"));
        assert!(spoken(&updates).contains("outside of the folders"), "{file}: {}", spoken(&updates));
    }
    let (_, updates) = client.prompt(&session, "read a.txt");
    assert!(spoken(&updates).contains("not an absolute path"), "{}", spoken(&updates));
    assert_eq!(std::fs::read_to_string(sandbox.path("home/secret")).unwrap(), "mellon");
}

/// A write is asked about, with what it would do, and a refusal holds.
#[test]
fn what_it_writes_and_runs_needs_the_users_consent() {
    let sandbox = fenced(&[]);
    let file = path(&sandbox, "a.txt");
    let (mut client, session) = in_mode(&sandbox, "runner");
    client.on_permission("reject_once");
    let mark = client.mark();
    let (_, updates) = client.prompt(&session, &format!("write {file} gone"));
    assert!(spoken(&updates).contains("the user refused"), "{}", spoken(&updates));
    let asked = client.wait(mark, "the question", |message| message["method"] == "session/request_permission");
    let diff = &asked["params"]["toolCall"]["content"][0];
    assert_eq!((&diff["type"], &diff["newText"]), (&json!("diff"), &json!("gone")), "{asked}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\nthree\n");
    let mark = client.mark();
    let (_, updates) = client.prompt(&session, "run touch made.txt");
    assert!(spoken(&updates).contains("the user refused"), "{}", spoken(&updates));
    let asked = client.wait(mark, "the question", |message| message["method"] == "session/request_permission");
    assert!(asked["params"]["toolCall"]["content"].to_string().contains("touch made.txt"), "{asked}");
    client.on_permission("allow_once");
    let (_, updates) = client.prompt(&session, "run touch made.txt");
    assert_eq!(spoken(&updates), "exit 0: ");
    assert!(sandbox.path("project/made.txt").exists());
    // Rules speak of its commands as of any other.
    client
        .ask("session/set_config_option", json!({"sessionId": session, "configId": "approval", "value": "read-only"}));
    let (_, updates) = client.prompt(&session, "run touch more.txt");
    assert!(spoken(&updates).contains("read-only"), "{}", spoken(&updates));
    assert!(!sandbox.path("project/more.txt").exists());
}

/// A loaded session has its words and the requests that the user was asked about in the order in which they came.
#[test]
fn a_loaded_session_keeps_the_order_of_words_and_requests() {
    let sandbox = fenced(&["--resume"]);
    let (state, file) = (sandbox.path("home/echo"), path(&sandbox, "new.txt"));
    std::fs::create_dir_all(&state).unwrap();
    let env = vec![("SKEIN_ACP_ECHO_STATE".to_owned(), state.to_string_lossy().into_owned())];
    let runner = mode("runner", json!(["read", "edit", "command"]), json!(["developer"]));
    sandbox.install(&manifest("echo", &Peer { env, ..echo(&["--resume"]) }, &[runner]));
    let (mut client, session) = in_mode(&sandbox, "runner");
    client.on_permission("allow_once");
    let order = |updates: &[Value]| {
        let kinds = updates.iter().filter_map(|update| match update["sessionUpdate"].as_str()? {
            "agent_message_chunk" => update["content"]["text"].as_str().map(str::to_owned),
            kind @ "tool_call" => Some(kind.to_owned()),
            _ => None,
        });
        kinds.collect::<Vec<_>>()
    };
    let (_, updates) = client.prompt(&session, &format!("after I write: write {file} x"));
    assert_eq!(order(&updates), ["I write", "tool_call", "written"]);
    client.ask("session/close", json!({"sessionId": session}));
    let (cwd, mark) = (client.cwd(), client.mark());
    client.ask("session/load", json!({"sessionId": session, "cwd": cwd, "mcpServers": []}));
    assert_eq!(order(&client.updates(mark, &session)), ["I write", "tool_call", "written"]);
}

#[test]
fn a_command_says_what_it_says_and_leaves_nothing() {
    let sandbox = fenced(&[]);
    let (mut client, session) = in_mode(&sandbox, "runner");
    client.on_permission("allow_once");
    let (_, updates) = client.prompt(&session, "run cat a.txt");
    assert_eq!(spoken(&updates), "exit 0: one\ntwo\nthree\n");
    let call = of_kind(&updates, "tool_call").into_iter().find(|call| call["title"] == "cat").expect("its own call");
    assert_eq!(call["content"][0]["type"], "content", "a terminal of ours is none that the client knows: {call}");
    client.ask("session/set_config_option", json!({"sessionId": session, "configId": "approval", "value": "auto"}));
    let prompt = client.begin(&session, "run sleep 611");
    client.until("it runs", |client| !client.running("sleep 611").is_empty());
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
    client.ask("session/close", json!({"sessionId": session}));
    client.until("it is gone", |client| client.running("sleep 611").is_empty());
}

#[test]
fn an_external_agent_has_a_limited_number_of_terminals() {
    let sandbox = fenced(&[]);
    let (mut client, session) = in_mode(&sandbox, "runner");
    client.ask("session/set_config_option", json!({"sessionId": session, "configId": "approval", "value": "auto"}));
    let (_, updates) = client.prompt(&session, "terminals 33");
    assert_eq!(spoken(&updates), "error -32603: there are 32 terminals already; release some");
    client.ask("session/close", json!({"sessionId": session}));
    client.until("they are gone", |client| client.running("sleep 613").is_empty());
}

#[test]
fn pages_of_an_external_agent_are_limited() {
    let sandbox = fenced(&[]);
    let capabilities = json!({"session": {"notices": {}}, "elicitation": {"form": {}, "url": {}}});
    let mut client = Acp::able(&sandbox, &[], &capabilities);
    client.on("elicitation/create", |_| Some(json!({"result": {"action": "accept"}})));
    let session = client.session();
    client.set_mode(&session, "echo/runner");
    let mut open = |numbers: &str| {
        let mark = client.mark();
        let (_, updates) = client.prompt(&session, &format!("pages {numbers}"));
        client.settle();
        let done = client.heard()[mark..].iter().filter(|message| message["method"] == "elicitation/complete");
        (spoken(&updates), done.count())
    };
    assert_eq!(open("101 101 101 0"), ("accepted 101".to_owned(), 100), "a page that is not offered takes no place");
    assert_eq!(open("0 100 0 0"), ("accepted 100".to_owned(), 0));
    assert_eq!(open("0 1 1 1024"), ("accepted 1".to_owned(), 1), "the oldest page makes room");
    let (refused, _) = open("0 1 1 1025");
    assert!(refused.starts_with("error -32602"), "{refused}");
}

#[test]
fn only_the_end_of_the_output_of_a_terminal_is_kept() {
    let sandbox = fenced(&[]);
    let (mut client, session) = in_mode(&sandbox, "runner");
    client.on_permission("allow_once");
    let (_, updates) = client.prompt(&session, "run seq 200000");
    let shown = spoken(&updates);
    let output = shown.strip_prefix("exit 0: ").expect("it ends well");
    assert_eq!(output.len(), 1 << 20);
    assert!(output.ends_with("\n199999\n200000\n"), "the end is missing");
}

/// Where the editor lends its files, the agent sees what the user sees.
#[test]
fn the_editors_files_are_lent_on() {
    let sandbox = fenced(&[]);
    let file = path(&sandbox, "a.txt");
    let mut client = Acp::able(&sandbox, &[], &json!({"fs": {"readTextFile": true, "writeTextFile": true}}));
    let written: Rc<RefCell<Vec<Value>>> = Rc::default();
    let kept = Rc::clone(&written);
    client.on("fs/read_text_file", |_| Some(json!({"result": {"content": "not saved yet\n"}})));
    client.on("fs/write_text_file", move |params| {
        kept.borrow_mut().push(params.clone());
        Some(json!({"result": {}}))
    });
    client.on_permission("allow_once");
    let session = client.session();
    client.set_mode(&session, "echo/runner");
    let (_, updates) = client.prompt(&session, &format!("read {file}"));
    assert_eq!(spoken(&updates), "not saved yet\n");
    client.prompt(&session, &format!("write {file} new"));
    let written = written.borrow();
    assert_eq!(
        (&written[0]["path"], &written[0]["content"], &written[0]["sessionId"]),
        (&json!(file), &json!("new"), &json!(session))
    );
}

/// The services of its mode reach it as one MCP server, and what is not in the mode does not exist there.
#[test]
fn its_services_are_one_server_with_what_the_mode_admits() {
    for (flags, transport) in [(&[][..], "stdio"), (&["--http"][..], "http")] {
        let sandbox = fenced(flags);
        let mut whole = manifest(
            "echo",
            &echo(flags),
            &[mode("reader", json!(["read", "memory"]), json!(["developer", "memory"]))],
        );
        whole["runtime"]["acp"]["mcp"] = json!(transport);
        sandbox.install(&whole);
        let (mut client, session) = in_mode(&sandbox, "reader");
        let (_, updates) = client.prompt(&session, "servers");
        let servers: Value = serde_json::from_str(&spoken(&updates)).unwrap();
        assert_eq!((servers.as_array().map(Vec::len), &servers[0]["name"]), (Some(1), &json!("skein")), "{servers}");
        let (_, updates) = client.prompt(&session, "tools");
        let tools = spoken(&updates);
        let expected = "developer__analyze developer__find_files developer__list_dir developer__read_file developer__search \
                        developer__update_plan memory__forget memory__list_memories memory__recall memory__remember";
        assert_eq!(tools, expected, "over {transport}");
        let (_, updates) =
            client.prompt(&session, &format!(r#"tool developer__read_file {{"path": "{}"}}"#, path(&sandbox, "a.txt")));
        assert!(spoken(&updates).contains("two"), "{}", spoken(&updates));
        let (_, updates) = client.prompt(&session, r#"tool developer__shell {"command": "touch made.txt"}"#);
        assert!(!spoken(&updates).contains("exit 0"), "{}", spoken(&updates));
        assert!(!sandbox.path("project/made.txt").exists());
        // What needs consent is asked of the same user.
        client.on_permission("reject_once");
        let mark = client.mark();
        client.prompt(&session, r#"tool memory__remember {"text": "the sky is green", "scope": "project"}"#);
        client.wait(mark, "the question", |message| message["method"] == "session/request_permission");
        client.on_permission("allow_once");
        client.prompt(&session, r#"tool memory__remember {"text": "the sky is blue", "scope": "project"}"#);
        let (_, updates) = client.prompt(&session, r#"tool memory__list_memories {}"#);
        assert!(spoken(&updates).contains("blue") && !spoken(&updates).contains("green"), "{}", spoken(&updates));
    }
}

/// It is given a few variables, those its manifest names, and none of ours beside them.
#[test]
fn its_environment_is_minimal() {
    let key = concat!("hidden", "-from-it");
    let sandbox = Sandbox::new().with("OPENAI_API_KEY", key).with("NOTES_TOKEN", "wanted").with("PLAIN", "also");
    let mut whole = manifest("echo", &echo(&[]), &[mode("default", json!([]), json!([]))]);
    whole["runtime"]["acp"]["inherit"] = json!(["PLAIN", "NOT_SET"]);
    whole["runtime"]["acp"]["env"] = json!({"TOKEN": "${env:NOTES_TOKEN}"});
    sandbox.install(&whole);
    let run = sandbox.skein(&["run", "-a", "echo", "env"]);
    // How the program is found when it has left its process group; it says nothing else.
    let names: Vec<_> = run.stdout.split_whitespace().filter(|name| *name != "SKEIN_PROCESS_SCOPE").collect();
    assert!(names.contains(&"TOKEN") && names.contains(&"PLAIN") && names.contains(&"PATH"), "{run:?}");
    assert!(
        !names.iter().any(|name| name.starts_with("SKEIN") || name.contains("OPENAI") || *name == "NOTES_TOKEN"),
        "{run:?}"
    );
    // What it was given is not in the log, also if it says it itself.
    sandbox.skein(&["run", "-a", "echo", "stderr the token is wanted"]);
    let log = serde_json::to_string(&sandbox.log()).unwrap();
    assert!(log.contains("the token is ${env:"), "its stderr is in the log, without secrets: {log}");
}

#[test]
fn missing_required_dependency_prevents_the_start() {
    let sandbox = Sandbox::new();
    let broken = json!({"version": 1, "kind": "service", "name": "broken", "description": "Does not start.", "transport": {"stdio": {"command": "no-such-program"}}});
    sandbox.install(&broken);
    let optional = json!({"type": "tool", "name": "broken", "optional": true});
    let modes =
        [mode("needs", json!(["broken"]), json!(["broken"])), mode("likes", json!(["broken"]), json!([optional]))];
    let mut whole = manifest("echo", &echo(&[]), &modes);
    whole["metadata"]["dependencies"] = json!(["broken"]);
    sandbox.install(&whole);
    let mut client = Acp::able(&sandbox, &[], &json!({"session": {"notices": {}}}));
    let session = client.session();
    let error = client.refused("session/set_mode", json!({"sessionId": session, "modeId": "echo/needs"}));
    assert!(error["message"].as_str().unwrap().contains("there is no program `no-such-program`"), "{error}");
    assert!(client.running(&format!("{} ", servers::acp_echo())).is_empty(), "it was not launched");
    client.set_mode(&session, "echo/likes");
    let notice = client.wait_update(0, &session, "notice");
    assert!(notice.to_string().contains("service `broken` is unavailable"), "{notice}");
    let (_, updates) = client.prompt(&session, "say still here");
    assert_eq!(spoken(&updates), "still here");
}

#[test]
fn a_question_with_fields_reaches_the_user_or_is_cancelled() {
    let sandbox = fenced(&[]);
    let (mut client, session) = in_mode(&sandbox, "nothing");
    let (_, updates) = client.prompt(&session, "elicit");
    assert!(
        spoken(&updates).starts_with("cancel") || spoken(&updates).starts_with("decline"),
        "{}",
        said(&updates, "agent_message_chunk")
    );
}

/// Another command than the one that runs is not what is judged.
#[test]
fn no_rule_is_talked_past_by_the_name_of_a_variable() {
    let sandbox = fenced(&[]);
    let rule = json!({"tool": "developer__shell", "arguments": {"command": "git status*"}, "then": "allow"});
    sandbox.write("config/config.yaml", &json!({"version": 1, "permissions": [rule]}).to_string());
    let (mut client, session) = in_mode(&sandbox, "runner");
    client.on_permission("reject_once");
    for name in ["git status X", "git status #", "\\ngit status"] {
        let params = json!({"sessionId": "$SESSION", "command": "touch", "args": [path(&sandbox, "made")], "env": [{"name": name, "value": ""}]});
        let request = json!({"jsonrpc": "2.0", "id": "x", "method": "terminal/create", "params": params});
        client.prompt(&session, &format!("raw {request}"));
    }
    let (_, updates) = client.prompt(&session, "run touch made");
    assert!(spoken(&updates).contains("refused"), "{}", spoken(&updates));
    assert!(!sandbox.path("project/made").exists());
}

/// What nobody has prompted does nothing, also through the server that it was handed.
#[test]
fn nothing_is_done_for_it_outside_of_a_turn() {
    let sandbox = fenced(&[]);
    let (mut client, first) = in_mode(&sandbox, "runner");
    client.ask("session/set_config_option", json!({"sessionId": first, "configId": "approval", "value": "auto"}));
    // The other one asks in the name of a session that nobody has prompted.
    let second = client.session();
    client.set_mode(&second, "echo/runner");
    let (_, updates) = client.prompt(&second, "pid");
    let other = format!("echo-{}-1", spoken(&updates));
    let params = json!({"sessionId": other, "path": path(&sandbox, "made"), "content": "x"});
    let request = json!({"jsonrpc": "2.0", "id": "x", "method": "fs/write_text_file", "params": params});
    client.prompt(&second, &format!("raw {request}"));
    let (_, updates) = client.prompt(&first, "say I am the other one");
    assert_eq!(spoken(&updates), "I am the other one");
    assert!(!sandbox.path("project/made").exists());
}

/// Issue 16, point 7: it renamed the call that the user was being asked about, because it could guess the id.
#[test]
fn it_cannot_change_the_call_that_the_user_is_asked_about() {
    let sandbox = fenced(&[]);
    let (mut client, session) = in_mode(&sandbox, "runner");
    client.on_permission("allow_once");
    let mark = client.mark();
    let (_, updates) = client.prompt(&session, &format!("forge {} text", path(&sandbox, "note.md")));
    assert_eq!(spoken(&updates), "written");
    let asked = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
    let id = &asked["params"]["toolCall"]["toolCallId"];
    let (ours, forged): (Vec<_>, Vec<_>) = updates
        .iter()
        .filter(|update| update["toolCallId"].is_string())
        .partition(|update| update["toolCallId"] == *id);
    assert!(!forged.is_empty() && forged.iter().all(|update| update["toolCallId"].as_str().unwrap().contains('/')));
    assert!(ours.len() >= 2 && ours.iter().all(|update| update["title"] != "Harmless"), "{ours:#?}");
    // Its own questions name its own calls, under the id that the client knows.
    client.on_permission("my-once");
    let mark = client.mark();
    let (_, updates) = client.prompt(&session, "permit Deploy");
    let asked = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
    assert_eq!(asked["params"]["toolCall"]["toolCallId"], of_kind(&updates, "tool_call")[0]["toolCallId"]);
}
