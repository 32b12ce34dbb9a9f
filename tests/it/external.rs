//! Agents outside, as an editor and a terminal meet them: chosen like any other, heard without loss, asked in their own
//! words. `skein-acp-echo` does what its prompts say.

use serde_json::{Value, json};

use crate::support::Sandbox;
use crate::support::acp::{Acp, of_kind, said, selected, spoken};
use crate::support::outside::{manifest, mode};
use crate::support::peers::{Peer, echo};

/// An agent `echo` that may do nothing.
fn with_echo(flags: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.install(&manifest("echo", &echo(flags), &[mode("default", json!([]), json!([]))]));
    sandbox
}

/// A piece of text with an id of its message and something beside it, as some agents send them.
const FRAMED: &str = r#"rawupdate {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "framed"}, "messageId": "x1", "_meta": {"k": [1]}}"#;

fn is_framed(chunk: &Value) -> bool {
    chunk["messageId"] == "x1" && chunk["_meta"] == json!({"k": [1]})
}

/// A client in a session of `echo/default`.
fn in_echo(sandbox: &Sandbox) -> (Acp, String) {
    let mut client = Acp::start(sandbox);
    let session = client.session();
    client.set_mode(&session, "echo/default");
    (client, session)
}

#[test]
fn it_is_chosen_as_a_mode_and_answers() {
    let sandbox = with_echo(&[]);
    let mut client = Acp::start(&sandbox);
    let cwd = client.cwd();
    let opened = client.ask("session/new", json!({"cwd": cwd, "mcpServers": []}));
    let modes = opened["modes"]["availableModes"].as_array().unwrap();
    assert!(modes.iter().any(|mode| mode["id"] == "echo/default"), "{modes:#?}");
    let session = opened["sessionId"].as_str().unwrap().to_owned();
    client.set_mode(&session, "echo/default");
    let (reason, updates) = client.prompt(&session, "say one two three");
    assert_eq!((reason.as_str(), spoken(&updates).as_str()), ("end_turn", "one two three"));
    let (_, updates) = client.prompt(&session, "cwd");
    assert!(spoken(&updates).ends_with(&format!("session {}", client.cwd())), "{updates:#?}");
    let (_, updates) = client.prompt(&session, "recall");
    assert_eq!(spoken(&updates), "say one two three | cwd", "one session of its own for one of ours");
}

#[test]
fn what_it_tells_passes_through_without_loss() {
    let sandbox = with_echo(&[]);
    let (mut client, session) = in_echo(&sandbox);
    let (_, updates) = client.prompt(&session, "extra");
    let chunk = of_kind(&updates, "agent_message_chunk").pop().unwrap();
    assert_eq!(chunk["tint"], "blue", "a field that nobody knows: {chunk}");
    assert_eq!(chunk["_meta"], json!({"skein.test/mark": {"deep": [1, 2, 3]}}));
    assert_eq!(chunk["content"]["_meta"], json!({"skein.test/inner": true}));
    let (_, updates) = client.prompt(&session, FRAMED);
    assert!(of_kind(&updates, "agent_message_chunk").iter().all(is_framed), "{updates:#?}");
    assert_eq!(spoken(&updates), "framed");
    let (_, updates) = client.prompt(&session, "edit /tmp/a.rs");
    let call = of_kind(&updates, "tool_call").pop().unwrap();
    let diff = json!([{"type": "diff", "path": "/tmp/a.rs", "oldText": "old\n", "newText": "new\n"}]);
    assert_eq!((&call["kind"], &call["content"]), (&json!("edit"), &diff));
    let end = of_kind(&updates, "tool_call_update").pop().unwrap();
    assert_eq!((&end["status"], &end["rawOutput"]), (&json!("completed"), &json!({"changed": 1})));
    let (_, updates) = client.prompt(&session, "think hard");
    assert_eq!(said(&updates, "agent_thought_chunk"), "hard");
    let (_, updates) = client.prompt(&session, "plan");
    assert_eq!(of_kind(&updates, "plan")[0]["entries"][1]["content"], "leap");
    let (_, updates) = client.prompt(&session, "title Renamed");
    assert!(of_kind(&updates, "session_info_update").iter().any(|update| update["title"] == "Renamed"), "{updates:#?}");
    let (_, updates) = client.prompt(&session, r#"rawupdate {"sessionUpdate": "made_up", "x": 1}"#);
    assert!(updates.iter().all(|update| update["sessionUpdate"] != "made_up"), "no client knows it");
}

/// Many small pieces come out whole and in order.
#[test]
fn a_long_stream_is_whole() {
    let sandbox = with_echo(&[]);
    let (mut client, session) = in_echo(&sandbox);
    let (reason, updates) = client.prompt(&session, "burst 5000");
    let expected: String = (0..5000).map(|n| format!("d{n} ")).collect();
    assert_eq!((reason.as_str(), spoken(&updates) == expected), ("end_turn", true));
}

#[test]
fn a_loaded_session_shows_what_it_told() {
    let sandbox = with_echo(&["--resume"]);
    let state = sandbox.path("home/echo");
    std::fs::create_dir_all(&state).unwrap();
    let peer = Peer {
        env: vec![("SKEIN_ACP_ECHO_STATE".to_owned(), state.to_string_lossy().into_owned())],
        ..echo(&["--resume"])
    };
    sandbox.install(&manifest("echo", &peer, &[mode("default", json!([]), json!([]))]));
    let (mut client, session) = in_echo(&sandbox);
    client.prompt(&session, "say first words");
    client.prompt(&session, "extra");
    client.prompt(&session, FRAMED);
    client.prompt(&session, "edit /tmp/a.rs");
    client.finish();
    let mut client = Acp::start(&sandbox);
    let (cwd, mark) = (client.cwd(), client.mark());
    client.ask("session/load", json!({"sessionId": session, "cwd": cwd, "mcpServers": []}));
    let updates = client.updates(mark, &session);
    assert_eq!(said(&updates, "user_message_chunk"), format!("say first wordsextra{FRAMED}edit /tmp/a.rs"));
    assert_eq!(spoken(&updates), "first wordsextraframededited");
    assert!(of_kind(&updates, "agent_message_chunk").iter().any(is_framed), "{updates:#?}");
    assert!(of_kind(&updates, "agent_message_chunk").iter().any(|chunk| chunk["tint"] == "blue"), "{updates:#?}");
    assert_eq!(of_kind(&updates, "tool_call").len(), 1);
    let (_, updates) = client.prompt(&session, "recall");
    assert!(spoken(&updates).starts_with("say first words | extra | rawupdate"), "it went on with its own session");
}

#[test]
fn a_session_it_cannot_take_up_again_is_refused_clearly() {
    let sandbox = with_echo(&[]);
    let (mut client, session) = in_echo(&sandbox);
    client.prompt(&session, "say hello");
    client.finish();
    let mut client = Acp::start(&sandbox);
    let cwd = client.cwd();
    let error = client.refused("session/load", json!({"sessionId": session, "cwd": cwd, "mcpServers": []}));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("`echo` cannot resume an earlier session"), "{message}");
    assert!(message.contains("neither loads nor resumes") && message.contains("skein sessions show"), "{message}");
}

#[test]
fn its_modes_and_options_stand_under_its_name() {
    let sandbox = with_echo(&["--modes", "--options", "--commands"]);
    let (mut client, session) = in_echo(&sandbox);
    let set = |client: &mut Acp, option: &str, value: &str| {
        let params = json!({"sessionId": session, "configId": option, "value": value});
        client.ask("session/set_config_option", params)["configOptions"].clone()
    };
    let find = |options: &Value, id: &str| {
        options.as_array().unwrap().iter().find(|option| option["id"] == json!(id)).cloned().unwrap_or_default()
    };
    let options = set(&mut client, "echo.model", "large");
    assert_eq!(find(&options, "echo.model")["currentValue"], "large");
    assert_eq!(find(&options, "echo.model")["name"], "The echo: Model");
    let options = set(&mut client, "echo.mode", "code");
    assert_eq!(find(&options, "echo.mode")["currentValue"], "code");
    assert_eq!(find(&options, "mode")["currentValue"], "echo/default", "the session's own mode is ours");
    // What the agent changes by itself is told as the whole list.
    let mark = client.mark();
    client.prompt(&session, "mode ask");
    let told = client.wait(mark, "the options", |message| {
        message["params"]["update"]["sessionUpdate"] == "config_option_update"
            && find(&message["params"]["update"]["configOptions"], "echo.mode")["currentValue"] == "ask"
    });
    assert_eq!(find(&told["params"]["update"]["configOptions"], "mode")["currentValue"], "echo/default");
    client.wait(0, "its commands and ours", |message| {
        let commands = message["params"]["update"]["availableCommands"].to_string();
        commands.contains("shout") && commands.contains("tools")
    });
    let (_, updates) = client.prompt(&session, "/shout it");
    assert_eq!(spoken(&updates), "heard: /shout it", "a command of its goes to it as it is");
}

/// Its questions of consent reach the user with its own answers, whatever the level.
#[test]
fn its_questions_of_consent_go_to_the_user_in_its_own_words() {
    let sandbox = with_echo(&[]);
    let (mut client, session) = in_echo(&sandbox);
    for (approval, answer, chosen) in
        [("ask", "my-always", "my-always"), ("auto", "my-once", "my-once"), ("auto", "my-no", "my-no")]
    {
        client
            .ask("session/set_config_option", json!({"sessionId": session, "configId": "approval", "value": approval}));
        client.on_permission(answer);
        let mark = client.mark();
        let (_, updates) = client.prompt(&session, "permit Launch the thing");
        let asked = client.wait(mark, "the question", |message| message["method"] == "session/request_permission");
        let options: Vec<_> =
            asked["params"]["options"].as_array().unwrap().iter().map(|option| option["optionId"].clone()).collect();
        assert_eq!(options, ["my-once", "my-always", "my-no"]);
        assert_eq!(
            (&asked["params"]["sessionId"], &asked["params"]["toolCall"]["title"]),
            (&json!(session), &json!("Launch the thing"))
        );
        assert_eq!(spoken(&updates), format!("chosen {chosen}"), "{approval}");
    }
    for approval in ["read-only", "deny"] {
        client
            .ask("session/set_config_option", json!({"sessionId": session, "configId": "approval", "value": approval}));
        let mark = client.mark();
        let (_, updates) = client.prompt(&session, "permit Launch the thing");
        assert_eq!(spoken(&updates), "chosen my-no", "{approval}");
        assert!(!client.heard()[mark..].iter().any(|message| message["method"] == "session/request_permission"));
    }
}

/// A client that answers with something that was not offered has chosen nothing.
#[test]
fn an_answer_that_was_not_offered_is_no_consent() {
    let sandbox = with_echo(&[]);
    let (mut client, session) = in_echo(&sandbox);
    client.on("session/request_permission", |_| Some(selected("something else")));
    let (_, updates) = client.prompt(&session, "permit Launch the thing");
    assert_eq!(spoken(&updates), "chosen my-no");
}

#[test]
fn at_a_terminal_it_is_an_agent_like_any_other() {
    let sandbox = with_echo(&[]);
    let run = sandbox.skein(&["run", "-a", "echo", "say hello from outside"]);
    assert_eq!((run.code, run.stdout.trim()), (0, "hello from outside"), "{run:?}");
    let run = sandbox.skein(&["run", "-a", "echo", "permit Launch"]);
    assert!(run.stdout.contains("chosen my-no"), "nobody is there to ask: {run:?}");
    let run = sandbox.skein(&["run", "-a", "echo", "--json", "say hi"]);
    assert_eq!((&run.json()["text"], &run.json()["mode"]), (&json!("hi"), &json!("default")), "{run:?}");
    let shown = sandbox.skein(&["sessions", "list", "--json"]).json();
    assert_eq!(shown.as_array().map(Vec::len), Some(3));
    let run = sandbox.skein(&["run", "@echo/default say by name"]);
    assert!(run.stdout.contains("by name"), "{run:?}");
}

#[test]
fn a_refused_permission_request_counts() {
    let sandbox = with_echo(&[]);
    let run = sandbox.skein(&["run", "-a", "echo", "--json", "permit-untitled Launch"]);
    let refused = serde_json::from_str::<Value>(&run.stdout).unwrap()["refused_calls"].clone();
    assert_eq!((run.code, &refused[0]["tool"]), (5, &json!("Launch")), "{run:?}");
    assert_eq!(refused.as_array().map(Vec::len), Some(1), "{run:?}");
    assert!(run.stderr.contains("asked about `Launch`; it was refused: no user allowed it"), "{run:?}");
}

/// The talk so far is told to an agent that did not hear it.
#[test]
fn who_joins_a_talk_is_told_what_was_said() {
    let sandbox = with_echo(&[]);
    let mut client = Acp::start(&sandbox);
    let session = client.session();
    client.prompt(&session, "the password is mellon");
    client.set_mode(&session, "echo/default");
    let (_, updates) = client.prompt(&session, "and now?");
    assert!(spoken(&updates).contains("The user: the password is mellon"), "{updates:#?}");
    assert!(spoken(&updates).ends_with("and now?"));
    let (_, updates) = client.prompt(&session, "again");
    assert_eq!(spoken(&updates), "heard: again", "it is told once");
}

/// Chosen as the model of a mode of ours, it works on the turn with that mode's prompt and services.
#[test]
fn it_is_the_model_of_a_mode_of_ours() {
    let sandbox = with_echo(&[]);
    let run = sandbox.skein(&["run", "-a", "coding", "-m", "security", "--model", "acp:echo", "who are you?"]);
    assert!(run.code == 0 && run.stdout.contains("who are you?"), "{run:?}");
    assert!(run.stdout.contains("security"), "it was told what the mode says about itself: {run:?}");
    let run = sandbox.skein(&["run", "--model", "acp:nobody", "hello"]);
    assert!(run.code == 2 && run.stderr.contains("there is no external agent `nobody`"), "{run:?}");
}
