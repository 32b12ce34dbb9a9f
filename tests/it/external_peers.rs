//! Agents of others as external agents of Skein: both SDKs, a second Skein, goose and OpenCode with a scripted model.
//! `peers.rs` shows what each does without Skein in between.

use serde_json::{Value, json};

use crate::support::acp::{Acp, of_kind, spoken};
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::outside::{manifest, mode};
use crate::support::peers::{self, Peer};
use crate::support::{Sandbox, full_tests};

/// A client in a session with this agent, which may read files and has a memory to use.
fn in_session(sandbox: &Sandbox, peer: &Peer) -> (Acp, String) {
    let modes = [mode("default", json!(["read", "memory"]), json!(["developer", "memory"]))];
    sandbox.install(&manifest("peer", peer, &modes));
    let mut client = Acp::start(sandbox);
    let session = client.session();
    client.set_mode(&session, "peer/default");
    (client, session)
}

fn questions(client: &Acp, mark: usize) -> Vec<Value> {
    let asked = client.heard()[mark..].iter().filter(|message| message["method"] == "session/request_permission");
    asked.map(|message| message["params"].clone()).collect()
}

fn assert_plays(peer: &Peer, prefix: &'static str, yes: &'static str) {
    let sandbox = Sandbox::new();
    sandbox.write("project/notes.txt", "A note.\n");
    let (mut client, session) = in_session(&sandbox, peer);
    let (reason, updates) = client.prompt(&session, "say one two");
    assert_eq!((reason.as_str(), spoken(&updates).as_str()), ("end_turn", "one two"));
    let file = sandbox.path("project/notes.txt");
    let (_, updates) = client.prompt(&session, &format!("read {}", file.display()));
    assert_eq!(spoken(&updates), "A note.\n");
    client.on_permission(yes);
    let mark = client.mark();
    let (_, updates) = client.prompt(&session, "permit Do it");
    assert_eq!(spoken(&updates), format!("chosen {yes}"));
    let options = questions(&client, mark)[0]["options"].to_string();
    assert!(options.contains(prefix), "its own answers: {options}");
    let mark = client.mark();
    let prompt = client.begin(&session, "hang");
    client.settle();
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled", "{:?}", client.updates(mark, &session));
}

#[test]
fn the_typescript_sdk() {
    if !full_tests() {
        return;
    }
    assert_plays(&peers::typescript(), "ts-", "ts-yes");
}

#[test]
fn the_python_sdk() {
    if !full_tests() {
        return;
    }
    assert_plays(&peers::python(), "py-", "py-yes");
}

/// A Skein in a Skein: its tools are its own, its questions are ours to ask, its sessions are taken up again.
#[test]
fn a_second_skein() {
    let sandbox = Sandbox::new();
    sandbox.write("project/notes.txt", "A note.\n");
    let peer = peers::skein(&sandbox);
    let (mut client, session) = in_session(&sandbox, &peer);
    let (_, updates) = client.prompt(&session, r#"/developer.read_file {"path": "notes.txt"}"#);
    assert!(spoken(&updates).contains("A note."), "{updates:#?}");
    let call = of_kind(&updates, "tool_call").pop().expect("its call is seen");
    assert_eq!((&call["name"], &call["kind"]), (&json!("developer__read_file"), &json!("read")));
    client.on_permission("allow_once");
    let mark = client.mark();
    client.prompt(&session, r#"/developer.shell {"command": "touch made"}"#);
    let question = questions(&client, mark).pop().expect("a question");
    assert!(
        question["options"].to_string().contains("`touch made` in this session"),
        "the inner one's own answers: {question}"
    );
    assert!(sandbox.path("project/made").exists());
    // What it can choose is under its name, and its modes are one of the options.
    let options = client.ask(
        "session/set_config_option",
        json!({"sessionId": session, "configId": "peer.mode", "value": "coding/security"}),
    );
    let inner =
        options["configOptions"].as_array().unwrap().iter().find(|option| option["id"] == "peer.mode").unwrap().clone();
    assert_eq!((&inner["currentValue"], &inner["name"]), (&json!("coding/security"), &json!("The peer: Mode")));
    client.finish();
    let mut client = Acp::start(&sandbox);
    let cwd = client.cwd();
    let opened = client.ask("session/load", json!({"sessionId": session, "cwd": cwd, "mcpServers": []}));
    let inner =
        opened["configOptions"].as_array().unwrap().iter().find(|option| option["id"] == "peer.mode").unwrap().clone();
    assert_eq!(inner["currentValue"], "coding/security", "the inner session was taken up again");
    let (_, updates) = client.prompt(&session, r#"/developer.read_file {"path": "notes.txt"}"#);
    assert!(spoken(&updates).contains("A note."), "{updates:#?}");
}

/// The inner Skein is handed the outer one's services as a server of its own, with what the mode admits.
#[test]
fn a_second_skein_uses_the_services_it_is_handed() {
    let sandbox = Sandbox::new();
    let (mut client, session) = in_session(&sandbox, &peers::skein(&sandbox));
    client.on_permission("allow_once");
    let (_, updates) =
        client.prompt(&session, r#"/skein.memory__remember_a759dab0 {"text": "the sky is blue", "scope": "project"}"#);
    assert!(!spoken(&updates).contains("no tool"), "{}", spoken(&updates));
    let (_, updates) = client.prompt(&session, "/skein.memory__list_memories_3cf05056 {}");
    assert!(spoken(&updates).contains("the sky is blue"), "{}", spoken(&updates));
    let (_, updates) = client.prompt(&session, r#"/skein.developer__shell {"command": "touch made"}"#);
    assert!(!sandbox.path("project/made").exists(), "{}", spoken(&updates));
}

/// Says `hello`, or calls the tool of this name once if the prompt says `call`.
fn scripted(tool: &'static str, arguments: Value) -> ScriptedModel {
    ScriptedModel::new(move |request| {
        let wishes = request["tools"].is_array() && asked(request).contains("call") && !has_result(request);
        match wishes {
            true => Answer::Calls { id: "call_1", tool, arguments: arguments.clone() },
            false if has_result(request) => Answer::Says(vec!["done".to_owned()]),
            false => Answer::Says(vec!["hel".to_owned(), "lo".to_owned()]),
        }
    })
}

/// The tools that a model was told of and that came from us.
fn handed(model: &ScriptedModel) -> Vec<String> {
    let requests = model.requests();
    let tools = requests.iter().find_map(|request| request["tools"].as_array()).expect("a request with tools").clone();
    let names = tools.iter().filter_map(|tool| tool["function"]["name"].as_str());
    let mut ours: Vec<_> = names.filter(|name| name.contains("skein")).map(str::to_owned).collect();
    ours.sort();
    ours
}

#[test]
fn goose() {
    if !full_tests() {
        return;
    }
    let model = scripted("skein__memory__remember", json!({"text": "from goose", "scope": "project"}));
    let sandbox = Sandbox::new();
    let (mut client, session) = in_session(&sandbox, &peers::goose(&model));
    let (reason, updates) = client.prompt(&session, "hi");
    assert_eq!((reason.as_str(), spoken(&updates).as_str()), ("end_turn", "hello"));
    let ours = handed(&model);
    assert!(ours.iter().any(|name| name.ends_with("memory__remember")), "{ours:?}");
    assert!(!ours.iter().any(|name| name.contains("shell") || name.contains("write_file")), "{ours:?}");
    // A call to a service of ours is judged by our binding, whatever goose's own mode says.
    client.on_permission("reject_once");
    let mark = client.mark();
    client.prompt(&session, "call it");
    assert_eq!(questions(&client, mark).len(), 1, "we ask");
    assert!(!sandbox.skein(&["run", "-a", "goose", "recall from"]).stdout.contains("from goose"));
    let modes =
        client.ask("session/set_config_option", json!({"sessionId": session, "configId": "approval", "value": "ask"}));
    assert!(modes["configOptions"].to_string().contains("\"peer.mode\""), "its modes are under its name: {modes}");
}

#[test]
fn opencode() {
    if !full_tests() {
        return;
    }
    let model = scripted("bash", json!({"command": "touch made", "description": "Makes a file"}));
    let sandbox = Sandbox::new();
    let (mut client, session) = in_session(&sandbox, &peers::opencode(&model));
    let (reason, updates) = client.prompt(&session, "hi");
    assert_eq!((reason.as_str(), spoken(&updates).as_str()), ("end_turn", "hello"));
    let ours = handed(&model);
    assert!(ours.iter().any(|name| name.ends_with("memory__remember")), "{ours:?}");
    client.on("session/request_permission", |params| {
        let no = params["options"].as_array()?.iter().find(|option| option["kind"] == "reject_once")?;
        Some(json!({"result": {"outcome": {"outcome": "selected", "optionId": no["optionId"]}}}))
    });
    let mark = client.mark();
    client.prompt(&session, "call it");
    assert_eq!(questions(&client, mark).len(), 1, "its own question reaches the user");
    assert!(!sandbox.path("project/made").exists(), "and a no is a no");
}
