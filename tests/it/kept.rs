//! `skein run` keeps its sessions: gone on with, ended in order, and mended after an end that was none.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::model::{Answer, Model, calls, says};
use crate::support::{Sandbox, until};

/// What the model was shown of the talk, without the system prompt.
fn shown(model: &Model, index: usize) -> Vec<(String, String)> {
    let messages = model.request(index)["messages"].as_array().unwrap().clone();
    let text = |message: &Value| match &message["content"] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let talk = messages.iter().filter(|message| message["role"] != "system");
    talk.map(|message| (message["role"].as_str().unwrap().to_owned(), text(message))).collect()
}

fn sessions(sandbox: &Sandbox) -> Vec<Value> {
    sandbox.skein(&["sessions", "list", "--json"]).json().as_array().unwrap().clone()
}

fn last_event(sandbox: &Sandbox, id: &str) -> Value {
    let whole = sandbox.skein(&["sessions", "export", id]).json();
    whole["events"].as_array().unwrap().last().unwrap()["event"].clone()
}

#[test]
fn a_session_is_gone_on_with_and_the_model_hears_what_was_said() {
    let sandbox = Sandbox::new();
    let answers = ["blue, then", "as I said: blue", "blue again"];
    let model = Model::new(answers.map(|text| Answer::Stream(says(text))).into_iter().collect());
    let first = model.run(&sandbox, &["--json", "-m", "planner", "my colour is blue"]);
    assert_eq!(first.code, 0, "{}", first.whole());
    let id = first.json()["session"].as_str().unwrap().to_owned();
    let second = model.run(&sandbox, &["-c", "--json", "which colour?"]);
    assert_eq!((second.code, &second.json()["session"]), (0, &json!(id)), "{}", second.whole());
    assert_eq!(second.json()["mode"], "planner", "the mode is the session's");
    let talk = shown(&model, 1);
    let expected = [("user", "my colour is blue"), ("assistant", "blue, then"), ("user", "which colour?")];
    assert_eq!(talk, expected.map(|(role, text)| (role.to_owned(), text.to_owned())));
    let third = model.run(&sandbox, &["--resume", &id[..12], "-m", "specialist", "--json", "once more"]);
    assert_eq!(third.json()["mode"], "specialist", "the command line counts more: {}", third.whole());
    assert_eq!(shown(&model, 2).len(), 5);
    let kept = sessions(&sandbox);
    assert_eq!((kept.len(), &kept[0]["title"]), (1, &json!("my colour is blue")));
    assert_eq!((&kept[0]["input"], &kept[0]["output"]), (&json!(300), &json!(21)));
}

#[test]
fn a_session_that_is_not_there_is_exit_code_4() {
    let sandbox = Sandbox::new();
    for args in [["-c", "hi"].as_slice(), &["--resume", "nobody", "hi"]] {
        let run = sandbox.skein(&[&["run"], args].concat());
        assert_eq!(run.code, 4, "{}", run.whole());
        assert!(run.stderr.contains("help:"), "{}", run.whole());
    }
    assert!(sessions(&sandbox).is_empty());
}

#[test]
fn a_file_that_the_prompt_names_goes_along() {
    let sandbox = Sandbox::new();
    sandbox.write("project/notes.txt", "the needle is here");
    let model = Model::new(vec![Answer::Stream(says("seen"))]);
    let run = model.run(&sandbox, &["-m", "planner", "what is in @notes.txt?"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    let talk = shown(&model, 0);
    assert!(talk[0].1.contains("what is in @notes.txt?") && talk[0].1.contains("the needle is here"), "{talk:?}");
}

#[test]
fn a_turn_that_takes_too_long_is_ended_and_kept() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["run", "--approval", "auto", "--time-limit", "1s", "--json", "run sleep 60"]);
    let said: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((run.code, &said["stop_reason"]), (3, &json!("cancelled")), "{}", run.whole());
    let end = last_event(&sandbox, said["session"].as_str().unwrap());
    assert_eq!((&end["event"], &end["end"]["ending"]["reason"]), (&json!("turn_ended"), &json!("cancelled")));
}

#[test]
fn a_call_says_that_the_time_limit_ended_it() {
    let sandbox = Sandbox::new();
    let args = ["run", "--approval", "auto", "--time-limit", "5s", "--output", "stream-json", "run sleep 60"];
    let run = sandbox.skein(&args);
    assert_eq!(run.code, 3, "{}", run.whole());
    let ended = run.stdout.lines().find(|line| line.contains("\"event\":\"tool_ended\"")).unwrap();
    // The tool may answer itself before the turn does.
    let by_tool = ended.contains("cancelled, and ended with its process group");
    assert!(by_tool || ended.contains("the time limit was reached before this call was done"), "{ended}");
    assert!(!ended.contains("the user cancelled"), "{ended}");
}

/// A run that prints its events, stopped where its first call begins.
fn at_the_first_call(sandbox: &Sandbox, model: &Model) -> (Child, BufReader<std::process::ChildStdout>) {
    let args =
        ["run", "--model", "openai:scripted", "-a", "goose", "--approval", "auto", "--output", "stream-json", "wait"];
    let mut command = sandbox.command(&args);
    command.env("OPENAI_BASE_URL", &model.address).env("OPENAI_API_KEY", "x").stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("tool_started") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "a call begins");
    }
    (child, lines)
}

#[test]
fn ctrl_c_ends_the_turn_in_order() {
    let sandbox = Sandbox::new();
    let model = Model::new(vec![Answer::Stream(calls("developer__shell", &json!({"command": "sleep 60"})))]);
    let (mut child, lines) = at_the_first_call(&sandbox, &model);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let kinds: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["tool_ended", "message", "turn_ended"]);
    assert_eq!(events[2]["end"]["ending"]["reason"], "cancelled");
}

#[tokio::test]
async fn session_killed_during_a_call_can_be_resumed() {
    let sandbox = Sandbox::new();
    let sleep = calls("developer__shell", &json!({"command": "sleep 60"}));
    let model = Model::new(vec![Answer::Stream(sleep), Answer::Stream(says("so it was"))]);
    let (mut child, _lines) = at_the_first_call(&sandbox, &model);
    // What was queued before the call began is written without anybody waiting for it.
    until("the call is in the record", || {
        sessions(&sandbox).first().filter(|session| session["events"].as_u64() >= Some(3)).map(|_| ())
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
    let next = model.run(&sandbox, &["-c", "what happened?"]);
    assert_eq!(next.code, 0, "{}", next.whole());
    let talk = shown(&model, 1);
    let roles: Vec<_> = talk.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "user"]);
    assert!(talk[2].1.contains("skein ended before this call was done"), "{talk:?}");
}

#[test]
fn a_session_is_gone_on_with_where_it_began() {
    let sandbox = Sandbox::new();
    let first = sandbox.skein(&["run", "--json", "list ."]);
    let id = serde_json::from_str::<Value>(&first.stdout).unwrap()["session"].as_str().unwrap().to_owned();
    std::fs::create_dir(sandbox.path("project/inner")).unwrap();
    let mut elsewhere = sandbox.command(&["run", "--resume", &id, "list ."]);
    let output = elsewhere.current_dir(sandbox.path("project/inner")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("the session works in"));
}

#[test]
fn a_level_of_consent_that_came_with_a_run_is_not_the_sessions() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.skein(&["run", "--approval", "auto", "run touch one"]).code, 0);
    assert!(sandbox.path("project/one").exists());
    let second = sandbox.skein(&["run", "-c", "run touch two"]);
    assert_eq!(second.code, 5, "{}", second.whole());
    assert!(!sandbox.path("project/two").exists());
}

#[test]
fn text_through_a_pipe_chooses_no_files() {
    let sandbox = Sandbox::new();
    sandbox.write("project/notes.txt", "the needle is here");
    let model = Model::new(vec![Answer::Stream(says("seen"))]);
    let mut command = sandbox.command(&["run", "--model", "openai:scripted", "-m", "planner"]);
    command.env("OPENAI_BASE_URL", &model.address).env("OPENAI_API_KEY", "x").stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"what is in @notes.txt?").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!model.body(0).contains("needle"));
}
