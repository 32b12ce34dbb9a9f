//! `processor: [a, b]`: the next model answers after a failure or an overload, the user is told, and no answer changes
//! its author.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::acp::{Acp, spoken};
use crate::support::model::{Answer, ScriptedModel, has_result};
use crate::support::{Run, Sandbox};

/// A user whose profile asks `openai:first`, then `spare:second`.
fn sandbox(spare: &ScriptedModel) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write(
        "config/config.yaml",
        &format!(
            "version: 1\nproviders: {{spare: {{base_url: '{}'}}}}\n\
             profiles: {{default: {{processor: ['openai:first', 'spare:second']}}}}\n",
            spare.address()
        ),
    );
    sandbox
}

fn run(sandbox: &Sandbox, first: &ScriptedModel, args: &[&str]) -> Run {
    let all: Vec<_> = ["run", "-a", "goose/assistant"].iter().chain(args).copied().collect();
    let mut command = sandbox.command(&all);
    command.env("OPENAI_BASE_URL", first.address()).env("OPENAI_API_KEY", "a-key");
    let output = command.output().expect("the program starts");
    Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn second() -> ScriptedModel {
    ScriptedModel::new(|_| Answer::Says(vec!["from the second".to_owned()]))
}

#[test]
fn the_next_model_answers_after_a_failure_or_overload() {
    for (status, requests) in [(429, 1), (503, 2), (500, 2)] {
        let (first, spare) = (ScriptedModel::new(move |_| Answer::Status(status)), second());
        let ended = run(&sandbox(&spare), &first, &["hello"]);
        assert_eq!((ended.code, ended.stdout.trim()), (0, "from the second"), "{}", ended.whole());
        assert!(ended.stderr.contains("`spare:second` answers instead until this turn ends"), "{}", ended.whole());
        assert!(ended.stderr.contains("the model `openai:first` failed"), "{}", ended.whole());
        assert_eq!((first.requests().len(), spare.requests().len()), (requests, 1), "{status}");
        assert_eq!(spare.requests()[0]["model"], "second");
    }
}

#[test]
fn the_next_model_answers_for_one_without_credit() {
    for (status, body) in
        [(429, r#"{"error":{"code":"insufficient_quota"}}"#), (402, r#"{"error":{"message":"Insufficient Balance"}}"#)]
    {
        let (first, spare) = (ScriptedModel::new(move |_| Answer::Refuses(status, body)), second());
        let sandbox = sandbox(&spare);
        let ended = run(&sandbox, &first, &["hello"]);
        assert_eq!((ended.code, ended.stdout.trim()), (0, "from the second"), "{}", ended.whole());
        // Without another model, the turn ends at once.
        let ended = run(&sandbox, &first, &["--model", "openai:other", "hello"]);
        assert!(ended.code == 1 && ended.stderr.contains(&status.to_string()), "{}", ended.whole());
        assert_eq!((first.requests().len(), spare.requests().len()), (2, 1));
    }
}

#[test]
fn an_editor_is_told_which_model_answers() {
    let (first, spare) = (ScriptedModel::new(|_| Answer::Status(429)), second());
    let sandbox = sandbox(&spare);
    let mut command = sandbox.command(&["acp", "-a", "goose"]);
    command.env("OPENAI_BASE_URL", first.address()).env("OPENAI_API_KEY", "a-key");
    let mut client = Acp::launch(&sandbox, command);
    client.introduce(&json!({}));
    let session = client.session();
    let (reason, updates) = client.prompt(&session, "hello");
    assert_eq!((reason.as_str(), spoken(&updates).as_str()), ("end_turn", "from the second"));
    let heard: String = updates.iter().map(Value::to_string).collect();
    assert!(heard.contains("`spare:second` answers instead until this turn ends"), "{heard}");
}

#[test]
fn no_answer_changes_its_author() {
    let count = AtomicUsize::new(0);
    let first = ScriptedModel::new(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => Answer::Breaks("This is the begin"),
        1..=2 => Answer::Status(503),
        _ => Answer::Says(vec!["ning and the end.".to_owned()]),
    });
    let spare = second();
    let ended = run(&sandbox(&spare), &first, &["hello"]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "This is the beginning and the end."), "{}", ended.whole());
    assert!(spare.requests().is_empty() && !ended.stderr.contains("answers instead"), "{}", ended.whole());
}

#[test]
fn the_rest_of_the_turn_stays_with_the_model_that_answered() {
    let first = ScriptedModel::new(|_| Answer::Status(429));
    let spare = ScriptedModel::new(|request| match has_result(request) {
        false => Answer::Calls { id: "c", tool: "developer__list_dir", arguments: json!({"path": "."}) },
        true => Answer::Says(vec!["looked".to_owned()]),
    });
    let sandbox = sandbox(&spare);
    let ended = run(&sandbox, &first, &["look around"]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "looked"), "{}", ended.whole());
    assert_eq!((first.requests().len(), spare.requests().len()), (1, 2));
    // The next turn begins with the first model again.
    assert_eq!(run(&sandbox, &first, &["-c", "and now?"]).code, 0);
    assert_eq!(first.requests().len(), 2);
}

#[test]
fn a_request_that_is_wrong_stays_a_failure() {
    let (first, spare) = (ScriptedModel::new(|_| Answer::Status(401)), second());
    let ended = run(&sandbox(&spare), &first, &["hello"]);
    assert!(ended.code == 1 && spare.requests().is_empty(), "{}", ended.whole());
}

#[test]
fn a_model_that_the_user_names_has_no_fallback() {
    let (first, spare) = (ScriptedModel::new(|_| Answer::Status(503)), second());
    let ended = run(&sandbox(&spare), &first, &["--model", "openai:other", "hello"]);
    assert!(ended.code == 1 && ended.stderr.contains("it was asked 5 times"), "{}", ended.whole());
    assert!(spare.requests().is_empty());
}

#[test]
fn when_all_models_fail_the_turn_fails_with_the_last_reason() {
    let (first, spare) = (ScriptedModel::new(|_| Answer::Status(429)), ScriptedModel::new(|_| Answer::Status(400)));
    let ended = run(&sandbox(&spare), &first, &["hello"]);
    assert!(ended.code == 1 && ended.stderr.contains("the model `spare:second` failed"), "{}", ended.whole());
}

#[test]
fn a_fallback_that_cannot_be_used_is_reported_at_once() {
    let first = second();
    let sandbox = Sandbox::new();
    sandbox.write(
        "config/config.yaml",
        "version: 1\nprofiles: {default: {processor: ['openai:first', 'anthropic:second']}}\n",
    );
    let ended = run(&sandbox, &first, &["hello"]);
    assert!(ended.code == 2 && ended.stderr.contains("ANTHROPIC_API_KEY"), "{}", ended.whole());
    sandbox.write("config/config.yaml", "version: 1\nprofiles: {default: {processor: ['openai:first', 'opnai:b']}}\n");
    let checked = sandbox.skein(&["check"]);
    assert!(checked.whole().contains("[W205]: there is no provider `opnai`"), "{}", checked.whole());
}
