//! What a user chooses in a session of `skein acp`: mode, model, approval. The numbers in the comments are those of the
//! assertions for a conformant agent.

use serde_json::{Value, json};

use crate::support::Sandbox;
use crate::support::acp::{Acp, spoken};

fn set_up(client: &mut Acp) -> (String, Value) {
    let (cwd, mark) = (client.cwd(), client.mark());
    let answer = client.ask("session/new", json!({"cwd": cwd, "mcpServers": []}));
    let id = answer["sessionId"].as_str().unwrap().to_owned();
    client.wait_update(mark, &id, "available_commands_update");
    (id, answer)
}

fn option<'a>(options: &'a Value, id: &str) -> &'a Value {
    let found = options.as_array().unwrap().iter().find(|option| option["id"] == json!(id));
    found.unwrap_or_else(|| panic!("no option {id} in {options}"))
}

/// The values of an option, which has no groups: agent-shell cannot show them.
fn values(option: &Value) -> Vec<&str> {
    option["options"].as_array().unwrap().iter().map(|value| value["value"].as_str().unwrap()).collect()
}

/// 32, 33, 35: what is current can be chosen, nothing is boolean, and internal modes are nowhere.
#[test]
pub(crate) fn what_is_current_can_be_chosen() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let (_, answer) = set_up(&mut client);
    let modes: Vec<_> =
        answer["modes"]["availableModes"].as_array().unwrap().iter().map(|mode| mode["id"].as_str().unwrap()).collect();
    assert_eq!(answer["modes"]["currentModeId"], "goose/assistant");
    assert!(modes.contains(&"goose/assistant") && modes.contains(&"coding/security"), "{modes:?}");
    assert!(!modes.contains(&"goose/judge"), "{modes:?}");
    let options = &answer["configOptions"];
    for option in options.as_array().unwrap() {
        assert_eq!(option["type"], "select", "{option}");
        assert!(values(option).contains(&option["currentValue"].as_str().unwrap()), "{option}");
    }
    let mode = option(options, "mode");
    assert_eq!((&mode["category"], values(mode)), (&json!("mode"), modes));
    let named = |id: &str| {
        let found = mode["options"].as_array().unwrap().iter().find(|value| value["value"] == json!(id));
        found.unwrap_or_else(|| panic!("no {id} in {mode}"))["name"].clone()
    };
    assert_eq!(named("coding/backend"), "Coding: Backend engineer");
    assert_eq!(named("goose/assistant"), "Goose: Assistant");
    assert_eq!(named("orchestrator/auto"), "Auto");
    assert_eq!(option(options, "model")["category"], "model");
    assert_eq!(option(options, "model")["currentValue"], "offline");
    let approval = option(options, "approval");
    assert_eq!(values(approval), ["auto", "ask", "smart", "read-only", "deny"]);
    assert_eq!((&approval["category"], &approval["options"][1]["name"]), (&json!("_approval"), &json!("Ask first")));
}

/// 32, 36: each of the two ways to set the mode is heard on the other.
#[test]
pub(crate) fn modes_and_options_are_in_step() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let (session, _) = set_up(&mut client);
    let mark = client.mark();
    client.set_mode(&session, "coding/pm");
    let told = client.wait_update(mark, &session, "config_option_update");
    assert_eq!(option(&told["configOptions"], "mode")["currentValue"], "coding/pm");
    assert_eq!(client.wait_update(mark, &session, "current_mode_update")["currentModeId"], "coding/pm");
    let mark = client.mark();
    let params = json!({"sessionId": session, "configId": "mode", "value": "coding/backend"});
    let answer = client.ask("session/set_config_option", params);
    assert_eq!(option(&answer["configOptions"], "mode")["currentValue"], "coding/backend");
    assert_eq!(client.wait_update(mark, &session, "current_mode_update")["currentModeId"], "coding/backend");
}

/// 34: the answer to a choice is the whole list with the new value.
#[test]
pub(crate) fn the_answer_to_a_choice_is_the_whole_list() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let (session, answer) = set_up(&mut client);
    let count = answer["configOptions"].as_array().unwrap().len();
    for value in ["deny", "auto", "read-only", "smart", "ask"] {
        let params = json!({"sessionId": session, "configId": "approval", "value": value});
        let answer = client.ask("session/set_config_option", params);
        assert_eq!(answer["configOptions"].as_array().unwrap().len(), count);
        assert_eq!(option(&answer["configOptions"], "approval")["currentValue"], value);
    }
}

/// The level of approval that was chosen is the one that holds.
#[test]
pub(crate) fn approval_is_what_was_chosen() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let (session, _) = set_up(&mut client);
    let choose = |client: &mut Acp, value: &str| {
        client.ask("session/set_config_option", json!({"sessionId": session, "configId": "approval", "value": value}));
        client.prompt(&session, "run touch made; echo done").1
    };
    // Nobody scripted a permission, so a question would fail the test.
    choose(&mut client, "read-only");
    assert!(!sandbox.path("project/made").exists());
    choose(&mut client, "deny");
    assert!(!sandbox.path("project/made").exists());
    assert!(spoken(&choose(&mut client, "auto")).contains("done"));
    assert!(sandbox.path("project/made").exists());
}

/// 32: what is not there cannot be chosen, and the choice stays.
#[test]
pub(crate) fn what_is_unknown_cannot_be_chosen() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let (session, answer) = set_up(&mut client);
    for mode in ["goose/judge", "goose/nothing", "nobody/assistant", "assistant", "", "goose/assistant "] {
        let params = json!({"sessionId": session, "modeId": mode});
        assert_eq!(client.refused("session/set_mode", params)["code"], -32602, "{mode}");
    }
    for (id, value) in [
        ("colour", json!("red")),
        ("mode", json!("goose/judge")),
        ("model", json!("nobody:x")),
        ("approval", json!("sometimes")),
    ] {
        let params = json!({"sessionId": session, "configId": id, "value": value});
        assert_eq!(client.refused("session/set_config_option", params)["code"], -32602, "{id}");
    }
    let params = json!({"sessionId": session, "configId": "mode", "type": "boolean", "value": true});
    assert_eq!(client.refused("session/set_config_option", params)["code"], -32602);
    let params = json!({"sessionId": session, "configId": "approval", "value": "ask"});
    let options = client.ask("session/set_config_option", params)["configOptions"].clone();
    assert_eq!(option(&options, "mode"), option(&answer["configOptions"], "mode"));
}

/// `--agent` and `--mode` say where new sessions of one launch begin.
#[test]
pub(crate) fn the_command_line_says_where_sessions_begin() {
    let sandbox = Sandbox::new();
    for (args, mode) in [
        (vec!["--agent", "coding"], "coding/backend"),
        (vec!["--agent", "coding", "--mode", "security"], "coding/security"),
        (vec!["--mode", "planner"], "goose/planner"),
    ] {
        let mut client = Acp::able(&sandbox, &args, &json!({}));
        let (_, answer) = set_up(&mut client);
        assert_eq!(answer["modes"]["currentModeId"], mode, "{args:?}");
        assert_eq!(option(&answer["configOptions"], "mode")["currentValue"], mode);
    }
    for args in [["--agent", "nobody"], ["--mode", "judge"]] {
        let mut client = Acp::able(&sandbox, &args, &json!({}));
        let params = json!({"cwd": client.cwd(), "mcpServers": []});
        let error = client.refused("session/new", params);
        assert_eq!(error["code"], -32602, "{args:?}");
        assert!(error["message"].as_str().unwrap().contains(args[1]), "{error}");
    }
}

/// A switch that is read before a prompt holds for it, though its answer was not waited for.
#[test]
pub(crate) fn a_prompt_runs_in_the_mode_that_was_set_before_it() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let (session, _) = set_up(&mut client);
    for mode in ["coding/pm", "goose/assistant", "coding/backend", "goose/planner"] {
        let mark = client.mark();
        let set = client.send("session/set_mode", json!({"sessionId": session, "modeId": mode}));
        let prompt = client.begin(&session, "/tools");
        client.result(&set);
        assert_eq!(client.ended(&prompt), "end_turn");
        let said = spoken(&client.updates(mark, &session));
        assert!(said.starts_with(&format!("**{mode}**")), "{mode}: {said}");
    }
}

/// A switch in the middle of a turn is answered at once, and holds from the next turn.
#[test]
pub(crate) fn a_switch_in_a_turn_holds_from_the_next() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on("session/request_permission", |_| None);
    let (session, _) = set_up(&mut client);
    let mark = client.mark();
    let prompt = client.begin(&session, "run echo still here");
    let asked = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
    // Without a shell, and without waiting for the turn.
    client.set_mode(&session, "goose/planner");
    client.reply(&asked["id"], crate::support::acp::selected("allow_once"));
    assert_eq!(client.ended(&prompt), "end_turn");
    assert!(spoken(&client.updates(mark, &session)).contains("still here"));
    let (_, updates) = client.prompt(&session, "run echo still here");
    assert!(spoken(&updates).contains("which this mode does not have"), "{updates:#?}");
}

const NEEDY: &str = "version: 1
kind: agent
name: needy
description: Needs what is not there.
metadata: {dependencies: [clock]}
modes:
  - {slug: late, description: Tells the time., prompt: needy.md, tool_groups: [clock], dependencies: [clock]}
";

/// A mode whose service cannot start is refused with the reason, and the old one stays.
#[test]
pub(crate) fn a_mode_that_cannot_be_entered_is_refused() {
    let sandbox = Sandbox::new();
    let clock = json!({"version": 1, "kind": "service", "name": "clock", "description": "Tells the time.",
        "transport": {"stdio": {"command": "/no/such/clock", "args": []}}, "groups": {"clock": ["now"]}});
    sandbox.write("config/services/clock.yaml", &clock.to_string());
    sandbox.write("config/agents/needy.yaml", NEEDY);
    sandbox.write("config/agents/needy.md", "You tell the time.\n");
    let checked = sandbox.skein(&["check"]);
    assert_eq!(checked.code, 0, "{}", checked.whole());
    let mut client = Acp::start(&sandbox);
    let (session, _) = set_up(&mut client);
    let mark = client.mark();
    let error = client.refused("session/set_mode", json!({"sessionId": session, "modeId": "needy/late"}));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("clock") && message.contains("/no/such/clock"), "{error}");
    let (_, updates) = client.prompt(&session, "/tools");
    assert!(spoken(&updates).contains("**goose/assistant**"), "{updates:#?}");
    let changed = client.updates(mark, &session);
    assert!(!changed.iter().any(|update| update["sessionUpdate"] == "current_mode_update"), "{changed:#?}");
    let params = json!({"sessionId": session, "configId": "mode", "value": "needy/late"});
    assert!(client.refused("session/set_config_option", params)["message"].as_str().unwrap().contains("clock"));
}

/// The level of a launch is for the launch: a switch of mode does not make it the session's, and the next launch's
/// own level holds for what is loaded.
#[test]
pub(crate) fn the_level_of_a_launch_is_not_kept_and_the_next_ones_holds() {
    let sandbox = Sandbox::new();
    let mut loose = Acp::able(&sandbox, &["--approval", "auto"], &json!({}));
    let (session, _) = set_up(&mut loose);
    loose.set_mode(&session, "coding/backend");
    loose.prompt(&session, "hello");
    loose.finish();
    for (args, expected) in [([].as_slice(), "ask"), (&["--approval", "deny"], "deny")] {
        let mut later = Acp::able(&sandbox, args, &json!({}));
        let loaded = later.ask("session/load", json!({"sessionId": session, "cwd": later.cwd(), "mcpServers": []}));
        assert_eq!(option(&loaded["configOptions"], "approval")["currentValue"], expected);
        assert_eq!(loaded["modes"]["currentModeId"], "coding/backend");
        later.finish();
    }
}
