//! Limits of turns, sessions, profiles and principals: what ends, what is said, and what stays.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::acp::{Acp, spoken};
use crate::support::model::{Answer, ScriptedModel, has_result};
use crate::support::{Run, Sandbox};

/// A user with this config, whose model costs a dollar for each request. Each answer has 107 tokens.
fn sandbox(config: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    let prices = "models: {'openai:scripted': {input: 10000, output: 0}}";
    sandbox.write("config/config.yaml", &format!("version: 1\n{config}\n{prices}\n"));
    sandbox
}

/// A model that never ends a turn.
fn restless() -> ScriptedModel {
    ScriptedModel::new(|_| Answer::Calls { id: "c", tool: "developer__list_dir", arguments: json!({"path": "."}) })
}

fn talkative() -> ScriptedModel {
    ScriptedModel::new(|_| Answer::Says(vec!["done".to_owned()]))
}

fn run(sandbox: &Sandbox, model: &ScriptedModel, args: &[&str]) -> Run {
    let all: Vec<_> = ["run", "-a", "goose/assistant"].iter().chain(args).copied().collect();
    let output = model.offered_to(sandbox.command(&all)).output().expect("the program starts");
    Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn each_limit_of_a_turn_ends_it_with_its_reason() {
    for (limit, requests, reason) in [
        ("requests: 2", 2, "2 of 2 model requests"),
        ("tokens: 200", 2, "214 of 200 tokens"),
        ("cost: 3 USD", 3, "3.00 of 3.00 USD"),
    ] {
        let sandbox = sandbox(&format!("limits: {{turn: {{{limit}}}}}"));
        let model = restless();
        let ended = run(&sandbox, &model, &["look around"]);
        let expected = format!("the limit of this turn is reached: {reason} (`limits.turn` in ");
        assert!(ended.code == 1 && ended.stderr.contains(&expected), "{}", ended.whole());
        assert!(ended.stderr.contains("config.yaml:2)"), "{}", ended.whole());
        assert_eq!(model.requests().len(), requests, "{limit}");
    }
}

#[test]
fn work_before_the_limit_is_kept() {
    let sandbox = sandbox("limits: {turn: {requests: 1}}");
    sandbox.write("project/found.txt", "");
    let model = restless();
    assert_eq!(run(&sandbox, &model, &["look around"]).code, 1);
    let again = talkative();
    assert_eq!(run(&sandbox, &again, &["-c", "and now?"]).code, 0);
    let shown = again.requests()[0]["messages"].to_string();
    assert!(shown.contains("found.txt") && shown.contains("look around"), "{shown}");
}

#[test]
fn an_editor_gets_a_notice_and_then_the_stop_reason() {
    let sandbox = sandbox("limits: {turn: {tokens: 130}}");
    let model = restless();
    let mut client = Acp::launch(&sandbox, model.offered_to(sandbox.command(&["acp", "-a", "goose"])));
    client.introduce(&json!({}));
    let session = client.session();
    let mark = client.mark();
    let (reason, _) = client.prompt(&session, "look around");
    assert_eq!(reason, "max_turn_requests");
    let heard: String = client.heard()[mark..].iter().map(Value::to_string).collect();
    let notice = "the limit of this turn is used to 82 %: 107 of 130 tokens";
    assert_eq!(heard.matches(notice).count(), 1, "{heard}");
    assert!(heard.contains("the limit of this turn is reached: 214 of 130 tokens"), "{heard}");
    assert_eq!(model.requests().len(), 2);
}

#[test]
fn a_session_keeps_its_count_across_processes() {
    let sandbox = sandbox("limits: {session: {requests: 2}}");
    let model = talkative();
    assert_eq!(run(&sandbox, &model, &["one"]).code, 0);
    assert_eq!(run(&sandbox, &model, &["-c", "two"]).code, 0);
    let third = run(&sandbox, &model, &["-c", "three"]);
    let expected = "the limit of this session is reached: 2 of 2 model requests";
    assert!(third.code == 1 && third.stderr.contains(expected), "{}", third.whole());
    assert_eq!(model.requests().len(), 2, "the third prompt reached no model");
    assert_eq!(run(&sandbox, &model, &["another session"]).code, 0);
}

#[test]
fn all_sessions_of_a_principal_count() {
    let sandbox = sandbox("limits: {principal: {cost: 2 USD, per: month}}");
    let model = talkative();
    for prompt in ["one", "two"] {
        assert_eq!(run(&sandbox, &model, &[prompt]).code, 0);
    }
    let third = run(&sandbox, &model, &["three"]);
    let expected = "the limit of `local` for this month is reached: 2.00 of 2.00 USD (`limits.principal` in ";
    assert!(third.code == 1 && third.stderr.contains(expected), "{}", third.whole());
}

#[test]
fn all_sessions_of_a_profile_count() {
    let sandbox = sandbox("profiles: {default: {limits: {requests: 1}}, other: {}}");
    let model = talkative();
    assert_eq!(run(&sandbox, &model, &["one"]).code, 0);
    let second = run(&sandbox, &model, &["two"]);
    let expected = "the limit of the profile `default` for today is reached: 1 of 1 model requests";
    assert!(second.code == 1 && second.stderr.contains(expected), "{}", second.whole());
    assert_eq!(run(&sandbox, &model, &["--profile", "other", "three"]).code, 0);
}

#[test]
fn a_project_only_adds_a_stricter_limit() {
    for (user, project, requests) in [(3, 1, 1), (1, 3, 1)] {
        let sandbox = sandbox(&format!("limits: {{turn: {{requests: {user}}}}}"));
        let config = format!("version: 1\nlimits: {{turn: {{requests: {project}}}}}\n");
        sandbox.write("project/.skein/config.yaml", &config);
        assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
        let model = restless();
        assert_eq!(run(&sandbox, &model, &["look around"]).code, 1);
        assert_eq!(model.requests().len(), requests, "{user} {project}");
    }
}

#[test]
fn a_managed_limit_counts_before_a_looser_one() {
    let sandbox = sandbox("limits: {turn: {requests: 50}, principal: {requests: 50}}");
    sandbox.write("project/managed.yaml", "version: 1\nlimits: {turn: {requests: 1}}\n");
    let model = restless();
    let ended = run(&sandbox, &model, &["--managed", "managed.yaml", "--max-turns", "50", "look around"]);
    let expected = "1 of 1 model requests (the managed setting `limits` (managed.yaml:2))";
    assert!(ended.code == 1 && ended.stderr.contains(expected), "{}", ended.whole());
    assert_eq!(model.requests().len(), 1);
}

#[test]
fn nothing_raises_a_managed_limit() {
    let looser = "limits: {turn: {requests: 50}, session: {requests: 50}, principal: {requests: 50, per: month}}";
    let of_profile = "profiles: {default: {limits: {requests: 50}}}";
    for managed in ["turn: {requests: 1}", "session: {requests: 1}", "principal: {requests: 1, per: day}"] {
        let flags: &[&str] = &["--max-turns", "50"];
        for (user, project, flags) in [(looser, "", &flags[..0]), ("", looser, &flags[..0]), (of_profile, "", flags)] {
            let sandbox = sandbox(user);
            sandbox.write("project/managed.yaml", &format!("version: 1\nlimits: {{{managed}}}\n"));
            if !project.is_empty() {
                sandbox.write("project/.skein/config.yaml", &format!("version: 1\n{project}\n"));
                assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
            }
            let model = restless();
            let args = [&["--managed", "managed.yaml"][..], flags, &["look around"][..]].concat();
            let ended = run(&sandbox, &model, &args);
            let expected = "1 of 1 model requests (the managed setting `limits` (managed.yaml:2))";
            assert!(ended.code == 1 && ended.stderr.contains(expected), "{managed}: {}", ended.whole());
            assert_eq!(model.requests().len(), 1, "{managed}");
        }
    }
}

#[test]
fn delegated_work_counts() {
    let sandbox = sandbox("limits: {turn: {requests: 4}}");
    let model = ScriptedModel::new(|request| {
        let is_orchestrator = request["messages"][0].to_string().contains("You are orchestrator in mode auto");
        match (is_orchestrator, has_result(request)) {
            (true, false) => {
                let task = json!({"task": "look around", "agent": "goose", "mode": "assistant"});
                Answer::Calls { id: "d", tool: "summon__delegate", arguments: task }
            }
            (true, true) => Answer::Says(vec!["joined".to_owned()]),
            (false, _) => Answer::Calls { id: "c", tool: "developer__list_dir", arguments: json!({"path": "."}) },
        }
    });
    let mut client = Acp::launch(&sandbox, model.offered_to(sandbox.command(&["acp", "-a", "orchestrator"])));
    client.introduce(&json!({}));
    let session = client.session();
    let (reason, updates) = client.prompt(&session, "@orchestrator have someone look around");
    assert_eq!(reason, "max_turn_requests", "{}", spoken(&updates));
    assert_eq!(model.requests().len(), 4, "one of the orchestrator, three of the child session");
}

#[test]
fn time_ends_a_turn_and_keeps_what_was_said() {
    let sandbox = sandbox("limits: {turn: {time: 6s}}");
    let model = ScriptedModel::new(|_| Answer::Hangs("so far so good"));
    let start = Instant::now();
    let ended = run(&sandbox, &model, &["think"]);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert!(
        ended.code == 1 && ended.stderr.contains("the limit of this turn is reached: 6 seconds"),
        "{}",
        ended.whole()
    );
    let again = talkative();
    assert_eq!(run(&sandbox, &again, &["-c", "and now?"]).code, 0);
    assert!(again.requests()[0]["messages"].to_string().contains("so far so good"));
}

/// The provider reports tokens at the end of an answer, which this one does not reach.
#[test]
fn an_answer_that_was_stopped_counts() {
    let sandbox = sandbox("limits: {turn: {time: 6s}, session: {tokens: 50}}");
    let model = ScriptedModel::new(|_| Answer::Hangs("so far so good"));
    let stopped = run(&sandbox, &model, &["think"]);
    assert!(stopped.stderr.contains("the limit of this turn is reached: 6 seconds"), "{}", stopped.whole());
    let listed = sandbox.skein(&["sessions", "list", "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    assert!(listed[0]["input"].as_u64().is_some_and(|input| input > 50), "{listed}");
    let again = talkative();
    let refused = run(&sandbox, &again, &["-c", "and now?"]);
    assert!(
        refused.code == 1
            && refused.stderr.contains("the limit of this session is reached")
            && refused.stderr.contains("of 50 tokens"),
        "{}",
        refused.whole()
    );
    assert!(again.requests().is_empty());
}

#[test]
fn a_cost_limit_needs_a_price() {
    let sandbox = Sandbox::new();
    sandbox.write("config/config.yaml", "version: 1\nlimits: {turn: {cost: 1 USD}}\n");
    let model = talkative();
    let ended = run(&sandbox, &model, &["hello"]);
    assert!(
        ended.code == 1 && ended.stderr.contains("its price is unknown and the cost is limited"),
        "{}",
        ended.whole()
    );
    assert!(model.requests().is_empty());
}
