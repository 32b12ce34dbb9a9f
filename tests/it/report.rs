//! `skein report`: what sessions did in a period, as text, JSON and a page with charts.

use serde_json::json;

use crate::support::{Run, Sandbox, read};

fn call(sandbox: &Sandbox, flags: &[&str], tool: &str, arguments: &serde_json::Value) -> Run {
    let prompt = format!("/developer.{tool} {arguments}");
    sandbox.skein(&[flags, &["run", "-a", "coding", "-m", "backend", &prompt]].concat())
}

/// A project in which an agent wrote a file, and was refused a command.
fn used() -> Sandbox {
    let sandbox = Sandbox::new();
    let written =
        call(&sandbox, &["--approval", "auto"], "write_file", &json!({"path": "notes.txt", "content": "marmalade\n"}));
    assert_eq!(written.code, 0, "{}", written.whole());
    let refused = call(&sandbox, &["--approval", "read-only"], "shell", &json!({"command": "touch made"}));
    assert_eq!(refused.code, 5, "{}", refused.whole());
    sandbox
}

#[test]
fn a_report_counts_what_was_done_changed_and_refused() {
    let sandbox = used();
    let report = sandbox.skein(&["report", "--format", "json"]).json();
    assert_eq!((&report["sessions"], &report["turns"]), (&json!(2), &json!(2)), "{report}");
    assert_eq!(report["tools"]["developer__write_file"], json!({"calls": 1, "failures": 0, "refusals": 0}));
    assert_eq!(report["tools"]["developer__shell"]["refusals"], 1, "{report}");
    assert_eq!(report["modes"]["coding/backend"]["changes"], 1, "{report}");
    let files: Vec<_> = report["files"].as_object().unwrap().keys().collect();
    assert!(files.len() == 1 && files[0].ends_with("project/notes.txt"), "{files:?}");
    let refusal = json!([{"subject": "developer__shell", "source": "level", "rule": "read-only", "count": 1}]);
    assert_eq!(report["refusals"], refusal);
    assert!(!report.to_string().contains("marmalade"), "a report has no text of messages");
}

#[test]
fn a_report_is_text_by_default_and_a_page_on_request() {
    let sandbox = used();
    let text = sandbox.skein(&["report"]);
    assert_eq!(text.code, 0, "{}", text.whole());
    for part in ["2 sessions, 2 turns", "coding/backend", "notes.txt", "developer__shell  by level (read-only)"] {
        assert!(text.stdout.contains(part), "{part}: {}", text.whole());
    }
    let page = sandbox.skein(&["report", "--format", "html", "--output", "report.html"]);
    assert_eq!(page.code, 0, "{}", page.whole());
    let page = read(sandbox.path("project/report.html"));
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg") && !page.contains("<script"), "{page}");
    assert!(page.contains("developer__write_file"), "{page}");
}

#[test]
fn a_report_is_limited_to_a_period_and_a_project() {
    let sandbox = used();
    let none = sandbox.skein(&["report", "--since", "2999-01-01", "--format", "json"]).json();
    assert_eq!((&none["sessions"], &none["refusals"]), (&json!(0), &json!([])));
    sandbox.write("elsewhere/.keep", "");
    let mut command = sandbox.command(&["report", "--format", "json"]);
    let output = command.current_dir(sandbox.path("elsewhere")).output().unwrap();
    let elsewhere: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(elsewhere["sessions"], 0, "{elsewhere}");
    let mut command = sandbox.command(&["report", "--format", "json", "--all"]);
    let output = command.current_dir(sandbox.path("elsewhere")).output().unwrap();
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all["sessions"], 2, "{all}");
    let wrong = sandbox.skein(&["report", "--since", "soon"]);
    assert_eq!(wrong.code, 2, "{}", wrong.whole());
    assert!(wrong.stderr.contains("`7d`"), "{}", wrong.whole());
}

/// Changes the store behind Skein's back.
fn change_store(sandbox: &Sandbox, changes: &str) {
    rusqlite::Connection::open(sandbox.path("data/sessions.db")).unwrap().execute_batch(changes).unwrap();
}

/// One session spent a month ago and now.
#[test]
fn tokens_and_cost_are_those_of_the_period() {
    let sandbox = used();
    change_store(
        &sandbox,
        "UPDATE session SET input = 100, output = 10, cost = 0.5 WHERE id = (SELECT min(id) FROM session);
         UPDATE spending SET at = at - 2592000000;
         UPDATE session SET input = 107, output = 11, cost = 0.75 WHERE id = (SELECT min(id) FROM session);",
    );
    let spent = |since: &str| sandbox.skein(&["report", "--since", since, "--format", "json"]).json()["spent"].clone();
    assert_eq!(spent("7d"), json!({"input": 7, "output": 1, "cached": 0, "cost": 0.25}));
    assert_eq!(spent("60d"), json!({"input": 107, "output": 11, "cached": 0, "cost": 0.75}));
    let text = sandbox.skein(&["report"]);
    assert!(text.stdout.contains("spent 7 tokens in and 1 out, $0.25"), "{}", text.whole());
    let days = sandbox.skein(&["report", "--since", "60d", "--format", "json"]).json()["days"].clone();
    let tokens: Vec<_> = days.as_object().unwrap().values().filter_map(|day| day["tokens"].as_u64()).collect();
    assert_eq!(tokens, [110, 8], "{days}");
}

#[test]
fn a_report_groups_by_principal() {
    let sandbox = used();
    change_store(&sandbox, "UPDATE session SET principal = 'ci', input = 9 WHERE id = (SELECT max(id) FROM session);");
    let report = sandbox.skein(&["report", "--format", "json"]).json();
    assert_eq!((&report["sessions"], &report["turns"]), (&json!(2), &json!(2)), "all principals: {report}");
    let sessions = |name: &str| report["principals"][name]["sessions"].clone();
    assert_eq!((sessions("local"), sessions("ci")), (json!(1), json!(1)), "{report}");
    assert_eq!(report["principals"]["ci"]["spent"]["input"], 9, "{report}");
    let one = sandbox.skein(&["report", "--principal", "ci", "--format", "json"]).json();
    assert_eq!((&one["sessions"], &one["spent"]["input"]), (&json!(1), &json!(9)), "{one}");
    assert!(one["principals"]["local"].is_null(), "{one}");
    let text = sandbox.skein(&["report"]).stdout;
    assert!(text.contains("By principal") && text.contains("ci  1 sessions, 1 turns"), "{text}");
    let unknown = sandbox.skein(&["report", "--principal", "nobody"]);
    assert_eq!(unknown.code, 2, "{}", unknown.whole());
    assert!(unknown.stderr.contains("there are: ci, local"), "{}", unknown.whole());
}
