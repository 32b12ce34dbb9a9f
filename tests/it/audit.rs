//! The audit log: every decision is an entry without text, and every change of the log is found.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::acp::{Acp, selected};
use crate::support::model::{Answer, ScriptedModel, has_result};
use crate::support::serve::{Server, eventually, token};
use crate::support::{Run, Sandbox};

/// Runs one command of the shell in `coding/backend`.
fn shell(sandbox: &Sandbox, flags: &[&str], command: &str) -> Run {
    let prompt = format!("/developer.shell {}", json!({"command": command}));
    sandbox.skein(&[flags, &["run", "-a", "coding", "-m", "backend", &prompt]].concat())
}

fn entries(sandbox: &Sandbox, filter: &[&str]) -> Vec<Value> {
    let list = sandbox.skein(&[&["audit", "list", "--json"], filter].concat()).json();
    list.as_array().unwrap().clone()
}

/// The entries about the shell. A session also reads memories when it begins.
fn of_shell(sandbox: &Sandbox) -> Vec<Value> {
    let mut entries = entries(sandbox, &[]);
    entries.retain(|entry| entry["subject"] == "developer__shell");
    entries
}

/// Kind, decision, source and rule of each entry about the shell.
fn decisions(sandbox: &Sandbox) -> Vec<[String; 4]> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let row = |entry: &Value| ["kind", "decision", "source", "rule"].map(|field| text(&entry[field]));
    of_shell(sandbox).iter().map(row).collect()
}

fn row(kind: &str, decision: &str, source: &str, rule: &str) -> [String; 4] {
    [kind, decision, source, rule].map(str::to_owned)
}

fn lines(sandbox: &Sandbox) -> Vec<String> {
    let export = sandbox.skein(&["audit", "export"]);
    assert_eq!(export.code, 0, "{}", export.whole());
    export.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn calls_are_entries_with_the_level_or_rule_that_decided() {
    let sandbox = Sandbox::new();
    shell(&sandbox, &["--approval", "auto"], "touch made");
    assert_eq!(decisions(&sandbox), [row("call", "allow", "level", "auto")]);
    assert_eq!(entries(&sandbox, &[])[0]["sequence"], 1);
    let entry = of_shell(&sandbox).remove(0);
    assert_eq!(entry["actor"], "coding/backend");
    assert_eq!(entry["pseudonym"].as_str().map(str::len), Some(16));
    assert_eq!(entry["arguments"].as_str().map(str::len), Some(64), "an HMAC-SHA-256");

    let sandbox = Sandbox::new();
    let refused = shell(&sandbox, &["--approval", "read-only"], "touch made");
    assert_eq!(refused.code, 5, "{}", refused.whole());
    assert_eq!(decisions(&sandbox), [row("call", "refuse", "level", "read-only")]);

    let sandbox = Sandbox::new();
    let rule = "version: 1\npermissions:\n  - {tool: developer__shell, arguments: {command: 'touch *'}, then: deny}\n";
    sandbox.write("config/config.yaml", rule);
    shell(&sandbox, &["--approval", "auto"], "touch made");
    let decided = decisions(&sandbox);
    assert_eq!(decided.len(), 1, "{decided:?}");
    assert_eq!(decided[0][..3], row("call", "refuse", "rule", "")[..3]);
    assert!(decided[0][3].contains("config.yaml:3"), "{decided:?}");
}

#[test]
fn a_question_without_a_user_is_a_refusal() {
    let sandbox = Sandbox::new();
    shell(&sandbox, &["--approval", "ask"], "touch made");
    assert_eq!(decisions(&sandbox), [row("consent", "refuse", "no-user", ""), row("call", "refuse", "no-user", "ask")]);
}

#[test]
fn an_answer_of_the_user_is_an_entry_and_decides_the_call() {
    let sandbox = Sandbox::new();
    let mut client = Acp::able(&sandbox, &["-a", "coding/backend", "--approval", "ask"], &json!({}));
    client.on("session/request_permission", move |_| Some(selected("allow_once")));
    let session = client.session();
    client.prompt(&session, "run touch made");
    drop(client);
    assert_eq!(decisions(&sandbox), [row("consent", "allow", "user", ""), row("call", "allow", "user", "ask")]);
    let calls: Vec<_> = of_shell(&sandbox).iter().map(|entry| entry["call"].clone()).collect();
    assert!(calls[0].is_string() && calls[0] == calls[1], "both name the call: {calls:?}");
}

#[test]
fn a_hook_is_named_by_its_place() {
    let sandbox = Sandbox::new();
    let hooks = json!({"PreToolUse": [{"hooks": [{"command": "echo 'secret reason' >&2; exit 2"}]}]});
    sandbox.write("config/config.yaml", &format!("version: 1\nhooks: {hooks}\n"));
    shell(&sandbox, &["--approval", "auto"], "touch made");
    let hook = entries(&sandbox, &["--kind", "hook"]).remove(0);
    assert_eq!((&hook["subject"], &hook["decision"]), (&json!("PreToolUse"), &json!("refuse")));
    assert!(hook["rule"].as_str().is_some_and(|place| place.contains("config.yaml")), "{hook}");
    assert_eq!(decisions(&sandbox), [row("call", "refuse", "hook", "")]);
    assert!(!lines(&sandbox).concat().contains("secret reason"));
}

#[test]
fn a_refusal_by_a_managed_setting_names_it() {
    let sandbox = Sandbox::new();
    sandbox.write("project/managed.yaml", "version: 1\napproval: read-only\n");
    shell(&sandbox, &["--managed", "managed.yaml"], "touch made");
    let decided = decisions(&sandbox);
    assert_eq!(decided.len(), 1, "{decided:?}");
    assert_eq!(decided[0][..3], row("managed", "refuse", "managed", "")[..3]);
    assert!(decided[0][3].contains("the managed setting `approval`"), "{decided:?}");
}

/// Actor, subject and rule of each refusal by a managed setting.
fn managed_refusals(sandbox: &Sandbox) -> Vec<[String; 3]> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let row = |entry: &Value| ["actor", "subject", "rule"].map(|field| text(&entry[field]));
    let verified = sandbox.skein(&["audit", "verify"]);
    assert_eq!(verified.code, 0, "{}", verified.whole());
    entries(sandbox, &["--kind", "managed", "--decision", "refuse"]).iter().map(row).collect()
}

fn refusal(actor: &str, subject: &str, setting: &str) -> [String; 3] {
    [actor.to_owned(), subject.to_owned(), format!("the managed setting `{setting}` (managed.yaml:2)")]
}

fn managed(settings: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("project/managed.yaml", &format!("version: 1\n{settings}\n"));
    sandbox
}

#[test]
fn refusals_before_a_session_are_entries() {
    for (settings, args, subject, setting) in [
        ("agents: [goose]", &["run", "-a", "coding", "hello"][..], "coding", "agents"),
        ("agents: [goose]", &["run", "-a", "coding/backend", "hello"][..], "coding", "agents"),
        ("agents: [goose]", &["run", "-m", "coding/qa", "hello"][..], "coding", "agents"),
        ("agents: [goose]", &["mcp", "-a", "coding"][..], "coding", "agents"),
        ("agents: [goose]", &["route", "@coding/qa test it"][..], "coding/qa", "agents"),
        ("models: ['ollama:*']", &["run", "--model", "openai:a", "hello"][..], "openai:a", "models"),
        ("providers: [ollama]", &["run", "--model", "openai:a", "hello"][..], "openai:a", "providers"),
        ("services: [developer]", &["services", "enable", "memory"][..], "memory", "services"),
        ("approval: ask", &["--approval", "auto", "run", "-a", "goose", "hello"][..], "--approval auto", "approval"),
    ] {
        let sandbox = managed(settings);
        let mut command = sandbox.command(&[&["--managed", "managed.yaml"][..], args].concat());
        let output = command.env("OPENAI_API_KEY", "a-key").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(managed_refusals(&sandbox), [refusal("command", subject, setting)], "{args:?}: {said}");
    }
}

#[test]
fn a_managed_limit_that_ends_a_turn_is_an_entry() {
    let sandbox = managed("limits: {turn: {requests: 1}}");
    let model =
        ScriptedModel::new(|_| Answer::Calls { id: "c", tool: "developer__list_dir", arguments: json!({"path": "."}) });
    let command = sandbox.command(&["--managed", "managed.yaml", "run", "-a", "goose/assistant", "look around"]);
    let output = model.offered_to(command).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(managed_refusals(&sandbox), [refusal("goose/assistant", "model request", "limits")]);
}

#[test]
fn what_an_editor_is_refused_is_an_entry() {
    let sandbox = managed("agents: [goose]\napproval: ask");
    let command = sandbox.command(&["--managed", "managed.yaml", "acp", "-a", "coding"]);
    let mut client = Acp::launch(&sandbox, command);
    client.introduce(&json!({}));
    client.refused("session/new", json!({"cwd": sandbox.path("project"), "mcpServers": []}));
    eventually("the refusal is in the log", || managed_refusals(&sandbox) == [refusal("client", "coding", "agents")]);

    let sandbox = managed("agents: [goose]\napproval: ask");
    let mut client = Acp::launch(&sandbox, sandbox.command(&["--managed", "managed.yaml", "acp", "-a", "goose"]));
    client.introduce(&json!({}));
    let session = client.session();
    client.refused("session/set_mode", json!({"sessionId": session, "modeId": "coding/backend"}));
    let prompt = json!([{"type": "text", "text": "@coding/qa hello"}]);
    client.refused("session/prompt", json!({"sessionId": session, "prompt": prompt}));
    let level = json!({"sessionId": session, "configId": "approval", "value": "auto"});
    client.refused("session/set_config_option", level);
    let mut expected = [
        refusal("goose/assistant", "coding/backend", "agents"),
        refusal("goose/assistant", "coding/qa", "agents"),
        refusal("goose/assistant", "auto", "approval"),
    ];
    expected[2][2] = expected[2][2].replace(":2)", ":3)");
    eventually("all refusals are in the log", || managed_refusals(&sandbox) == expected);
    let sessions: Vec<_> = entries(&sandbox, &["--kind", "managed"]).iter().map(|of| of["session"].clone()).collect();
    assert!(sessions.iter().all(|id| *id == json!(session)), "in the chain of the session: {sessions:?}");
}

#[test]
fn what_a_server_refuses_its_clients_is_an_entry() {
    let sandbox = managed("agents: [goose]\nservices: [developer]");
    let server = Server::start(&sandbox, &["--managed", "managed.yaml"]);
    let token = token(&sandbox, "ci", &[]);
    assert_eq!(server.get("/agents/coding", &token).status, 404);
    assert_eq!(server.get("/agents/coding-qa", &token).status, 404);
    assert_eq!(server.get("/agents/nobody", &token).status, 404);
    let expected = [refusal("client", "coding/backend", "agents"), refusal("client", "coding/qa", "agents")];
    eventually("both refusals are in the log", || managed_refusals(&sandbox) == expected);
}

#[test]
fn the_log_has_no_text_and_its_lines_form_a_chain() {
    let sandbox = Sandbox::new();
    shell(&sandbox, &["--approval", "auto"], "echo marmalade > toast.txt");
    shell(&sandbox, &["--approval", "auto"], "cat toast.txt");
    let lines = lines(&sandbox);
    let text = lines.concat();
    assert!(!text.contains("marmalade") && !text.contains("toast"), "{text}");
    assert!(!text.contains("local"), "the principal has a pseudonym: {text}");
    let mut before: Option<(String, String)> = None;
    for line in &lines {
        let entry: Value = serde_json::from_str(line).unwrap();
        let session = entry["session"].as_str().unwrap().to_owned();
        let hash: [u8; 32] = Sha256::digest(line).into();
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        if let Some((_, expected)) = before.filter(|(other, _)| *other == session) {
            assert_eq!(entry["previous"], json!(expected));
        }
        before = Some((session, hash));
    }
    let verified = sandbox.skein(&["audit", "verify"]);
    assert_eq!(verified.code, 0, "{}", verified.whole());
    assert!(verified.stdout.contains("0 problems"), "{}", verified.whole());
}

#[test]
fn an_id_of_a_call_that_could_be_text_is_a_hash() {
    let sandbox = Sandbox::new();
    for id in ["call_7", "the marmalade of the user"] {
        let model = ScriptedModel::new(move |request| match has_result(request) {
            true => Answer::Says(vec!["done".to_owned()]),
            false => Answer::Calls { id, tool: "developer__shell", arguments: json!({"command": "true"}) },
        });
        let args = ["run", "-a", "coding", "-m", "backend", "--approval", "auto", "work"];
        let output = model.offered_to(sandbox.command(&args)).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let mut calls: Vec<_> = of_shell(&sandbox).iter().map(|entry| entry["call"].to_string()).collect();
    calls.sort();
    assert!(calls.len() == 2 && calls[0].starts_with("\"call-") && calls[1] == "\"call_7\"", "{calls:?}");
    assert!(!lines(&sandbox).concat().contains("marmalade"));
}

/// What verification says after the store was changed behind Skein's back, and the number of entries before.
fn verify_after(tampering: &str) -> (Run, usize) {
    let sandbox = Sandbox::new();
    let mut client = Acp::able(&sandbox, &["-a", "coding/backend", "--approval", "auto"], &json!({}));
    let session = client.session();
    for file in ["one", "two", "three"] {
        client.prompt(&session, &format!("run touch {file}"));
    }
    drop(client);
    let count = entries(&sandbox, &[]).len();
    assert!(count >= 3, "{count}");
    let connection = rusqlite::Connection::open(sandbox.path("data/sessions.db")).unwrap();
    connection.execute_batch(tampering).unwrap();
    drop(connection);
    (sandbox.skein(&["audit", "verify"]), count)
}

#[test]
fn verify_finds_a_changed_removed_or_cut_entry() {
    for (tampering, problem) in [
        ("UPDATE audit_entry SET decision = 'refuse' WHERE seq = 1", "entry 2 does not follow the entry before it"),
        ("DELETE FROM audit_entry WHERE seq = 2", "entry 2 is missing before entry 3"),
        ("DELETE FROM audit_entry WHERE seq > 1", "the end is cut off: 1 of N entries are left"),
        ("DELETE FROM audit_entry; DELETE FROM audit_head", "chains were removed as a whole: 0 of "),
    ] {
        let (run, count) = verify_after(tampering);
        let problem = problem.replace('N', &count.to_string());
        assert_eq!(run.code, 1, "{}", run.whole());
        assert!(run.stdout.contains(&problem), "{tampering}: {}", run.whole());
        assert!(run.stderr.contains("the audit log is not what Skein wrote"), "{}", run.whole());
    }
}

#[test]
fn decisions_outlive_their_session() {
    let sandbox = Sandbox::new();
    shell(&sandbox, &["--approval", "auto"], "touch made");
    let before = entries(&sandbox, &[]);
    let id = before[0]["session"].as_str().unwrap().to_owned();
    let deleted = sandbox.skein(&["sessions", "delete", &id]);
    assert_eq!(deleted.code, 0, "{}", deleted.whole());
    assert_eq!(entries(&sandbox, &["--session", &id]), before);
    let unknown = sandbox.skein(&["audit", "list", "--session", "zzz"]);
    assert_eq!(unknown.code, 4, "{}", unknown.whole());
}
