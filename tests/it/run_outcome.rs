//! How `skein run` ends: exit codes and JSON for refused calls and failed tasks, token totals, attached files, folders.

use serde_json::{Value, json};

use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::{Run, Sandbox};

fn run(sandbox: &Sandbox, model: &ScriptedModel, args: &[&str]) -> Run {
    let output = model.offered_to(sandbox.command(&[&["run"], args].concat())).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn says(text: &str) -> Answer {
    Answer::Says(vec![text.to_owned()])
}

/// How many results of calls the request holds.
fn results(request: &Value) -> usize {
    request["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool").count()
}

/// A model whose first call is refused, and which then goes on with one that is not.
fn recovering() -> ScriptedModel {
    ScriptedModel::new(|request| match results(request) {
        0 => Answer::Calls { id: "c1", tool: "developer__shell", arguments: json!({"command": "touch made"}) },
        1 => Answer::Calls { id: "c2", tool: "developer__list_dir", arguments: json!({"path": "."}) },
        _ => says("I looked instead."),
    })
}

#[test]
fn a_refused_call_sets_the_exit_code_though_the_model_goes_on() {
    let sandbox = Sandbox::new();
    let model = recovering();
    let text = run(&sandbox, &model, &["-a", "coding/backend", "make it"]);
    assert_eq!((text.code, text.stdout.trim()), (5, "I looked instead."), "{}", text.whole());
    assert!(
        text.stderr.contains("1 tool call was refused:\n  developer__shell {\"command\":\"touch made\"}\n"),
        "{}",
        text.stderr
    );
    assert!(text.stderr.contains("--approval auto"), "{}", text.stderr);
    let json_run = run(&sandbox, &model, &["-a", "coding/backend", "--json", "make it"]);
    let said: Value = serde_json::from_str(&json_run.stdout).unwrap();
    assert_eq!((json_run.code, &said["stop_reason"]), (5, &json!("end_turn")));
    let refused = json!([{"tool": "developer__shell", "arguments": {"command": "touch made"}, "by": null}]);
    assert_eq!(said["refused_calls"], refused);
    assert!(said["error"].as_str().unwrap().starts_with("1 tool call was refused"), "{said}");
    let stream = run(&sandbox, &model, &["-a", "coding/backend", "--output", "stream-json", "make it"]);
    assert!(stream.code == 5 && stream.stderr.contains("touch made"), "{}", stream.whole());
    let allowed = run(&sandbox, &model, &["-a", "coding/backend", "--approval", "auto", "--json", "make it"]);
    let said: Value = serde_json::from_str(&allowed.stdout).unwrap();
    assert_eq!((allowed.code, &said["refused_calls"], &said["error"]), (0, &json!([]), &Value::Null));
}

#[test]
fn each_message_of_an_answer_begins_a_line() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| match results(request) {
        0 => {
            Answer::SaysAndCalls { text: "First I look.", tool: "developer__list_dir", arguments: json!({"path": "."}) }
        }
        _ => says("# Result"),
    });
    let text = run(&sandbox, &model, &["-a", "coding/backend", "look"]);
    assert_eq!((text.code, text.stdout.as_str()), (0, "First I look.\n# Result\n"), "{}", text.whole());
    assert!(!text.stderr.contains("\n\n"), "{}", text.stderr);
}

fn is_orchestrator(request: &Value) -> bool {
    request["messages"][0]["content"].to_string().contains("You are orchestrator in mode auto")
}

/// Hands two tasks over, and answers each as `work` says.
fn handing_over(work: impl Fn(&Value) -> Answer + Send + Sync + 'static) -> ScriptedModel {
    let task = |task: &str, mode: &str| json!({"task": task, "agent": "coding", "mode": mode});
    ScriptedModel::new(move |request| match (is_orchestrator(request), has_result(request)) {
        (true, false) => Answer::CallsMany(vec![
            ("d1", "summon__delegate", task("write the story", "pm")),
            ("d2", "summon__delegate", task("touch a file", "backend")),
        ]),
        (true, true) => says("Joined."),
        (false, _) => work(request),
    })
}

#[test]
fn token_totals_count_delegated_work() {
    let sandbox = Sandbox::new();
    let model = handing_over(|_| says("Done."));
    // Two requests of the orchestrator and one of each child, with 100 tokens in and 7 out.
    let text = run(&sandbox, &model, &["-a", "orchestrator", "@orchestrator do both"]);
    assert_eq!(text.code, 0, "{}", text.whole());
    assert!(text.stderr.contains("400 tokens in, 28 out"), "{}", text.stderr);
    let json_run = run(&sandbox, &model, &["-a", "orchestrator", "--json", "@orchestrator do both"]);
    let said: Value = serde_json::from_str(&json_run.stdout).unwrap();
    assert_eq!(said["usage"], json!({"input": 400, "output": 28, "cached": 0}));
    let states: Vec<_> = said["parts"].as_array().unwrap().iter().map(|part| &part["state"]).collect();
    assert_eq!(states, [&json!("done"), &json!("done")]);
}

#[test]
fn a_failed_part_sets_the_exit_code_and_is_listed() {
    let sandbox = Sandbox::new();
    let model =
        handing_over(
            |request| {
                if asked(request).contains("write the story") { Answer::Status(400) } else { says("Done.") }
            },
        );
    let run = run(&sandbox, &model, &["-a", "orchestrator", "--json", "@orchestrator do both"]);
    let said: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((run.code, &said["text"]), (1, &json!("Joined.")), "{}", run.whole());
    let parts = said["parts"].as_array().unwrap();
    assert_eq!((&parts[0]["mode"], &parts[0]["state"]), (&json!("coding/pm"), &json!("failed")));
    assert_eq!((&parts[1]["mode"], &parts[1]["state"]), (&json!("coding/backend"), &json!("done")));
    assert!(said["error"].as_str().unwrap().starts_with("1 of 2 tasks failed: `1` (coding/pm)"), "{said}");
    assert!(run.stderr.contains("error: 1 of 2 tasks failed"), "{}", run.stderr);
}

#[test]
fn a_call_refused_to_a_part_is_named_with_its_mode() {
    let sandbox = Sandbox::new();
    let model = handing_over(|request| match (asked(request).contains("touch"), has_result(request)) {
        (true, false) => {
            Answer::Calls { id: "s1", tool: "developer__shell", arguments: json!({"command": "touch made"}) }
        }
        _ => says("Done."),
    });
    let run = run(&sandbox, &model, &["-a", "orchestrator", "@orchestrator do both"]);
    assert_eq!(run.code, 5, "{}", run.whole());
    assert!(
        run.stderr.contains("\n  coding/backend: developer__shell {\"command\":\"touch made\"}\n"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_named_file_that_is_missing_is_an_error() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| says("ok"));
    let missing = run(&sandbox, &model, &["-a", "goose", "explain @notes/missing.txt, please"]);
    assert_eq!(missing.code, 2, "{}", missing.whole());
    assert!(missing.stderr.contains("there is no file `notes/missing.txt`"), "{}", missing.stderr);
    assert!(model.requests().is_empty(), "nothing is sent");
    let text = "@goose/assistant write to ann@example.com about @ann and @pytest.fixture";
    let sent = run(&sandbox, &model, &["-a", "goose", text]);
    assert_eq!(sent.code, 0, "{}", sent.whole());
    assert!(asked(&model.requests()[0]).contains("ann@example.com about @ann and @pytest.fixture"));
}

#[test]
fn an_added_folder_is_part_of_the_session() {
    let sandbox = Sandbox::new();
    sandbox.write("other/notes.txt", "the other notes\n");
    let read = |args: &[&str]| sandbox.skein(&[&["run"], args, &["read ../other/notes.txt"]].concat());
    let outside = read(&[]);
    assert!(!outside.stdout.contains("the other notes"), "{}", outside.whole());
    let inside = read(&["--add-dir", "../other"]);
    assert!(inside.code == 0 && inside.stdout.contains("the other notes"), "{}", inside.whole());
    let missing = read(&["--add-dir", "../gone"]);
    assert!(missing.code == 2 && missing.stderr.contains("there is no folder `../gone`"), "{}", missing.whole());
}
