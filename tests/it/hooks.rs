//! Hooks of a config, as real commands: what they receive, refuse and add, and what they cannot do.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Client;
use crate::model::{Answer, Model, calls, says};
use crate::support::acp::{Acp, selected};
use crate::support::model::{self as scripted, ScriptedModel, has_result};
use crate::support::{Run, Sandbox, read};

/// A config with one hook for each event and command.
fn config(hooks: &[(&str, &str)]) -> String {
    groups(&hooks.iter().map(|(event, command)| (*event, json!({"hooks": [{"command": command}]}))).collect::<Vec<_>>())
}

/// A config with these groups of hooks. JSON is YAML, too.
fn groups(groups: &[(&str, Value)]) -> String {
    let mut hooks = json!({});
    for (event, group) in groups {
        let entry = &mut hooks[*event];
        match entry.as_array_mut() {
            Some(known) => known.push(group.clone()),
            None => *entry = json!([group]),
        }
    }
    format!("version: 1\nhooks: {hooks}\n")
}

fn sandbox(hooks: &[(&str, &str)]) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("config/config.yaml", &config(hooks));
    sandbox
}

/// Runs one command of the shell in `coding/backend`.
fn shell(sandbox: &Sandbox, flags: &[&str], command: &str) -> Run {
    let prompt = format!("/developer.shell {}", json!({"command": command}));
    sandbox.skein(&[&["run", "-a", "coding", "-m", "backend"], flags, &[&prompt]].concat())
}

const AUTO: [&str; 2] = ["--approval", "auto"];
const BACKEND: [&str; 6] = ["-a", "coding", "-m", "backend", "--approval", "auto"];

fn prompt(model: &Model, sandbox: &Sandbox, text: &str) -> Run {
    model.run(sandbox, &[&BACKEND[..], &[text]].concat())
}

fn exists(sandbox: &Sandbox, file: &str) -> bool {
    sandbox.path(&format!("project/{file}")).exists()
}

#[test]
fn exit_code_two_refuses_a_call_and_the_model_reads_why() {
    let sandbox = Sandbox::new();
    let guard = json!({"matcher": "developer__shell", "hooks": [
        {"type": "command", "command": "cat > seen.json; echo 'no shell today' >&2; exit 2", "timeout": 20},
    ]});
    sandbox.write("config/config.yaml", &groups(&[("PreToolUse", guard)]));
    let wish = calls("developer__shell", &json!({"command": "touch made"}));
    let model = Model::new(vec![Answer::Stream(wish), Answer::Stream(says("I could not."))]);
    let run = prompt(&model, &sandbox, "make it");
    assert_eq!((run.code, exists(&sandbox, "made")), (5, false), "{}", run.whole());
    assert!(!run.stderr.contains("--approval auto"), "the level is auto: {}", run.whole());
    let answer = model.body(1);
    assert!(answer.contains("`developer__shell` was not called: a hook refused: no shell today"), "{answer}");
    let seen: Value = serde_json::from_str(&read(sandbox.path("project/seen.json"))).unwrap();
    assert_eq!(seen["hook_event_name"], "PreToolUse");
    assert_eq!(seen["tool_name"], "developer__shell");
    assert_eq!(seen["tool_input"], json!({"command": "touch made"}));
    assert_eq!((&seen["mode"], &seen["approval"]), (&json!("coding/backend"), &json!("auto")));
    assert!(seen["session_id"].is_string() && seen["tool_use_id"].is_string(), "{seen}");
    assert!(seen["cwd"].as_str().is_some_and(|cwd| cwd.ends_with("/project")), "{seen}");
}

#[test]
fn matcher_selects_calls_also_by_names_of_claude_code() {
    for (matcher, refused) in [("Bash", true), ("mcp__developer__.*", true), ("developer__write_file", false)] {
        let sandbox = Sandbox::new();
        let guard = json!({"matcher": matcher, "hooks": [{"command": "exit 2"}]});
        sandbox.write("config/config.yaml", &groups(&[("PreToolUse", guard)]));
        let run = shell(&sandbox, &AUTO, "touch made");
        assert_eq!(exists(&sandbox, "made"), !refused, "{matcher}: {}", run.whole());
    }
}

#[test]
fn a_hook_that_allows_does_not_answer_the_question() {
    let allow = r#"echo '{"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}'"#;
    let sandbox = sandbox(&[("PreToolUse", allow)]);
    let run = shell(&sandbox, &[], "touch made");
    assert_eq!((run.code, exists(&sandbox, "made")), (5, false), "{}", run.whole());
    assert!(run.stderr.contains("--approval auto"), "{}", run.whole());
}

#[test]
fn a_hook_can_ask_the_user_at_every_level() {
    let ask =
        r#"echo '{"hookSpecificOutput": {"permissionDecision": "ask", "permissionDecisionReason": "it writes"}}'"#;
    let sandbox = sandbox(&[("PreToolUse", ask)]);
    let run = shell(&sandbox, &AUTO, "touch made");
    assert_eq!((run.code, exists(&sandbox, "made")), (5, false), "{}", run.whole());
    assert!(run.whole().contains("a hook asks for your decision: it writes"), "{}", run.whole());
    let mut client = Acp::able(&sandbox, &["-a", "coding/backend", "--approval", "auto"], &json!({}));
    let requests: Rc<RefCell<Vec<Value>>> = Rc::default();
    let asked = Rc::clone(&requests);
    client.on("session/request_permission", move |params| {
        asked.borrow_mut().push(params.clone());
        Some(selected("allow_once"))
    });
    let session = client.session();
    client.prompt(&session, "run touch made");
    assert_eq!((requests.borrow().len(), exists(&sandbox, "made")), (1, true), "{:?}", requests.borrow());
}

#[test]
fn hooks_add_text_for_the_model() {
    let start = r#"echo '{"hookSpecificOutput": {"additionalContext": "the branch is main"}}'"#;
    let after =
        r#"echo '{"hookSpecificOutput": {"additionalContext": "it is formatted"}, "systemMessage": "formatted"}'"#;
    let sandbox =
        sandbox(&[("SessionStart", start), ("UserPromptSubmit", "echo it is Monday"), ("PostToolUse", after)]);
    let wish = calls("developer__shell", &json!({"command": "echo done"}));
    let model = Model::new(vec![Answer::Stream(wish), Answer::Stream(says("ok"))]);
    let run = prompt(&model, &sandbox, "go");
    assert_eq!(run.code, 0, "{}", run.whole());
    let first = model.body(0);
    assert!(first.contains("the branch is main") && first.contains("it is Monday"), "{first}");
    let second = model.request(1);
    let result = second["messages"].as_array().unwrap().last().unwrap()["content"].to_string();
    assert!(result.contains("done") && result.contains("A hook of the user adds: it is formatted"), "{result}");
    assert!(run.stderr.contains("formatted"), "the user reads the message: {}", run.whole());
}

#[test]
fn refused_prompt_reaches_no_model() {
    let sandbox = sandbox(&[("UserPromptSubmit", "grep -q password && { echo 'no secrets' >&2; exit 2; }; exit 0")]);
    let model = Model::new(vec![Answer::Stream(says("hello"))]);
    let refused = prompt(&model, &sandbox, "my password is x");
    assert_eq!((refused.code, model.asked()), (1, 0), "{}", refused.whole());
    assert!(refused.stderr.contains("the prompt was not sent: a hook refused: no secrets"), "{}", refused.whole());
    let run = prompt(&model, &sandbox, "hi");
    assert_eq!((run.code, run.stdout.trim()), (0, "hello"), "{}", run.whole());
    let mut client = Acp::able(&sandbox, &["-a", "coding/backend"], &json!({}));
    let session = client.session();
    let text = json!([{"type": "text", "text": "the password"}]);
    let error = client.refused("session/prompt", json!({"sessionId": session, "prompt": text}));
    assert!(error["message"].as_str().is_some_and(|text| text.contains("no secrets")), "{error}");
}

#[test]
fn text_of_the_session_start_waits_for_an_accepted_prompt() {
    let refuse = "grep -q password && { echo 'no secrets' >&2; exit 2; }; exit 0";
    let sandbox =
        sandbox(&[("SessionStart", "echo started >> starts; echo the branch is main"), ("UserPromptSubmit", refuse)]);
    let model = ScriptedModel::new(|_| scripted::Answer::Says(vec!["hello".to_owned()]));
    let command = model.offered_to(sandbox.command(&["acp", "-a", "coding/backend"]));
    let mut client = Acp::launch(&sandbox, command);
    client.introduce(&json!({}));
    let session = client.session();
    let text = json!([{"type": "text", "text": "the password"}]);
    client.refused("session/prompt", json!({"sessionId": session, "prompt": text}));
    // It passes the hooks, and then names no mode.
    let text = json!([{"type": "text", "text": "@coding/nothing do it"}]);
    client.refused("session/prompt", json!({"sessionId": session, "prompt": text}));
    client.prompt(&session, "hi");
    client.prompt(&session, "and now?");
    for words in ["hi", "and now?"] {
        let requests = model.requests();
        let request = requests.iter().find(|request| scripted::asked(request).contains(words)).expect("a request");
        let messages = request["messages"].to_string();
        assert_eq!(messages.matches("the branch is main").count(), 1, "{words}: {messages}");
    }
    assert_eq!(read(sandbox.path("project/starts")), "started\n", "the hook ran once");
}

#[test]
fn a_hook_that_fails_is_reported_and_blocks_only_if_it_says_so() {
    for (hook, says) in [
        (json!({"command": "echo broken >&2; exit 1"}), "it ended with exit code 1: broken"),
        (json!({"command": "sleep 60", "timeout": 1}), "it did not end within 1 s"),
        (json!({"command": "echo '{oops'"}), "its output is not the JSON of a hook"),
    ] {
        for block in [false, true] {
            let sandbox = Sandbox::new();
            let mut hook = hook.clone();
            if block {
                hook["onFailure"] = json!("block");
            }
            sandbox.write("config/config.yaml", &groups(&[("PreToolUse", json!({"hooks": [hook]}))]));
            let began = Instant::now();
            let run = shell(&sandbox, &AUTO, "touch made");
            assert!(began.elapsed() < Duration::from_secs(30), "the hook was ended");
            assert!(run.stderr.contains("The hook `") && run.stderr.contains(says), "{says}: {}", run.whole());
            assert!(run.stderr.contains("config.yaml:2:"), "its place is named: {}", run.whole());
            assert_eq!(exists(&sandbox, "made"), !block, "{says}: {}", run.whole());
        }
    }
}

#[test]
fn a_hook_at_the_end_lets_the_model_continue() {
    let stop = "grep -q '\"stop_hook_active\":true' || { echo 'run the tests first' >&2; exit 2; }";
    let sandbox = sandbox(&[("Stop", stop)]);
    let model = Model::new(vec![Answer::Stream(says("Finished.")), Answer::Stream(says("Tested."))]);
    let run = prompt(&model, &sandbox, "write it");
    assert_eq!((run.code, model.asked()), (0, 2), "{}", run.whole());
    assert!(model.body(1).contains("run the tests first"), "{}", model.body(1));
    assert!(run.stdout.contains("Tested."), "{}", run.whole());
}

#[test]
fn a_turn_does_not_continue_for_ever() {
    let sandbox = sandbox(&[("Stop", "echo again >&2; exit 2")]);
    let model = Model::new((0..20).map(|_| Answer::Stream(says("Done."))).collect());
    let run = prompt(&model, &sandbox, "write it");
    assert_eq!((run.code, model.asked()), (0, 6), "{}", run.whole());
    assert!(run.stderr.contains("A hook extended the turn 5 times"), "{}", run.whole());
}

#[test]
fn hooks_run_at_the_start_and_the_end_of_a_session() {
    let sandbox = sandbox(&[("SessionStart", "cat > started.json"), ("SessionEnd", "cat > ended.json")]);
    let model = Model::new(vec![Answer::Stream(says("one")), Answer::Stream(says("two"))]);
    let source =
        || serde_json::from_str::<Value>(&read(sandbox.path("project/started.json"))).unwrap()["source"].clone();
    let run = prompt(&model, &sandbox, "hi");
    assert_eq!((run.code, source()), (0, json!("startup")), "{}", run.whole());
    let ended: Value = serde_json::from_str(&read(sandbox.path("project/ended.json"))).unwrap();
    assert_eq!((&ended["hook_event_name"], &ended["reason"]), (&json!("SessionEnd"), &json!("other")));
    let again = model.run(&sandbox, &["-c", "hi again"]);
    assert_eq!((again.code, source()), (0, json!("resume")), "{}", again.whole());
}

#[test]
fn hooks_run_in_the_sandbox_of_the_mode() {
    let sandbox = Sandbox::outside_tmp();
    let layers = &sandbox.skein(&["sandbox", "--explain", "--json"]).json()["layers"];
    if layers["namespaces"] != "available" {
        return;
    }
    sandbox.write("home/.ssh/id", "SECRET");
    let line = "cat \"$HOME/.ssh/id\" > inside 2>/dev/null; echo x > ../outside 2>/dev/null; exit 0";
    sandbox.write("config/config.yaml", &config(&[("PreToolUse", line)]));
    let run = shell(&sandbox, &AUTO, "true");
    assert_eq!((run.code, exists(&sandbox, "inside")), (0, true), "{}", run.whole());
    assert_eq!(read(sandbox.path("project/inside")), "");
    assert!(!sandbox.path("outside").exists());
    let off = shell(&sandbox, &["--approval", "auto", "--sandbox", "off"], "true");
    assert_eq!(read(sandbox.path("project/inside")), "SECRET", "without a sandbox it can: {}", off.whole());
}

#[test]
fn hook_scripts_of_the_user_are_readable_in_the_sandbox() {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("config/hooks/guard.sh", "echo 'the script refused' >&2\nexit 2\n");
    let script = sandbox.path("config/hooks/guard.sh");
    sandbox.write("config/config.yaml", &config(&[("PreToolUse", &format!("sh {}", script.display()))]));
    let run = shell(&sandbox, &AUTO, "touch made");
    assert_eq!((run.code, exists(&sandbox, "made")), (5, false), "{}", run.whole());
    assert!(run.whole().contains("the script refused"), "{}", run.whole());
}

#[test]
fn projects_hook_refuses_once_the_project_is_trusted() {
    let sandbox = Sandbox::new();
    sandbox.write("project/.skein/guard.sh", "grep -q 'touch made' && { echo 'not here' >&2; exit 2; }; exit 0\n");
    sandbox.write("project/.skein/config.yaml", &config(&[("PreToolUse", "sh .skein/guard.sh")]));
    let before = shell(&sandbox, &AUTO, "touch early");
    assert!(exists(&sandbox, "early"), "without trust it does not run: {}", before.whole());
    let trust = sandbox.skein(&["trust", "--yes"]);
    assert_eq!(trust.code, 0, "{}", trust.whole());
    assert!(trust.whole().contains("hook PreToolUse runs, and may refuse: sh .skein/guard.sh"), "{}", trust.whole());
    let run = shell(&sandbox, &AUTO, "touch made");
    assert_eq!((run.code, exists(&sandbox, "made")), (5, false), "{}", run.whole());
    assert!(run.whole().contains("a hook of the project refused: not here"), "{}", run.whole());
    let other = shell(&sandbox, &AUTO, "touch other");
    assert_eq!((other.code, exists(&sandbox, "other")), (0, true), "{}", other.whole());
}

#[test]
fn projects_hook_adds_nothing_and_writes_nothing() {
    let sandbox = Sandbox::outside_tmp();
    let layers = sandbox.skein(&["sandbox", "--explain", "--json"]).json()["layers"].clone();
    let hook = "echo x > written; echo injected text";
    sandbox.write("project/.skein/config.yaml", &config(&[("UserPromptSubmit", hook)]));
    assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
    let model = Model::new(vec![Answer::Stream(says("hello"))]);
    let run = prompt(&model, &sandbox, "hi");
    assert_eq!(run.code, 0, "{}", run.whole());
    assert!(!model.body(0).contains("injected text"), "{}", model.body(0));
    assert!(layers["namespaces"] != "available" || !exists(&sandbox, "written"), "{}", run.whole());
}

#[test]
fn doctor_lists_hooks() {
    let sandbox = sandbox(&[("Stop", "./notify")]);
    let run = sandbox.skein(&["doctor"]);
    assert!(run.stdout.contains("hook: Stop: ./notify ([TMP]/config/config.yaml:2:"), "{}", run.whole());
    let listed = &sandbox.skein(&["doctor", "--json"]).json()["hooks"][0];
    assert_eq!((&listed["event"], &listed["project"]), (&json!("Stop"), &json!(false)));
}

#[test]
fn hooks_apply_to_calls_of_mcp_clients() {
    let sandbox = sandbox(&[("PreToolUse", "echo 'not over MCP' >&2; exit 2")]);
    let mut client = Client::connect(sandbox.command(&["mcp", "-a", "coding", "-m", "backend"])).0;
    let outcome = client.call("developer__shell", json!({"command": "touch made"}));
    assert_eq!((&outcome["isError"], exists(&sandbox, "made")), (&json!(true), false), "{outcome}");
    assert!(outcome["content"].to_string().contains("a hook refused: not over MCP"), "{outcome}");
}

#[test]
fn hooks_apply_to_calls_of_delegated_tasks() {
    let sandbox = Sandbox::new();
    let guard = json!({"matcher": "developer__shell", "hooks": [{"command": "echo 'not even delegated' >&2; exit 2"}]});
    sandbox.write("config/config.yaml", &groups(&[("PreToolUse", guard)]));
    let is_orchestrator = |request: &Value| request["messages"][0].to_string().contains("orchestrator in mode auto");
    let model = ScriptedModel::new(move |request| match (is_orchestrator(request), has_result(request)) {
        (true, false) => {
            let task = json!({"task": "touch a file", "agent": "coding", "mode": "backend"});
            scripted::Answer::Calls { id: "d1", tool: "summon__delegate", arguments: task }
        }
        (false, false) => {
            let arguments = json!({"command": "touch made"});
            scripted::Answer::Calls { id: "s1", tool: "developer__shell", arguments }
        }
        (_, true) => scripted::Answer::Says(vec!["Over.".to_owned()]),
    });
    let acp = sandbox.command(&["acp", "-a", "orchestrator", "--approval", "auto"]);
    let mut client = Acp::launch(&sandbox, model.offered_to(acp));
    client.introduce(&json!({}));
    let session = client.session();
    assert_eq!(client.prompt(&session, "@orchestrator have it done").0, "end_turn");
    assert!(!exists(&sandbox, "made"));
    let requests = model.requests();
    let child = requests.iter().rfind(|request| !is_orchestrator(request)).expect("a request of the child");
    assert!(child["messages"].to_string().contains("a hook refused: not even delegated"), "{child}");
}
