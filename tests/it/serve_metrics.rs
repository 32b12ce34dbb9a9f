//! Metrics of `skein serve`, as Prometheus reads them.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::model::{Answer, ScriptedModel};
use crate::support::serve::{Server, bearer, token};
use crate::support::{Sandbox, full_tests, installed};

/// `promtool` reports syntax errors and also names, types and help texts that Prometheus discourages.
#[expect(clippy::disallowed_methods, reason = "another program, which reads what the one under test says")]
#[test]
fn promtool_accepts_the_metrics() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Says(vec!["done".to_owned()]));
    let server = Server::launch(model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])));
    let root = sandbox.path("project").display().to_string();
    let token = token(&sandbox, "ci", &["--root", &root]);
    let run = json!({"agent_name": "goose-assistant", "input": [{"parts": [{"content": "go"}]}]}).to_string();
    let ran = server.request("POST", "/runs", &[("authorization", &bearer(&token))], &run);
    assert_eq!(ran.status, 200, "{ran:?}");
    let metrics = server.get("/metrics", &token).body;
    assert!(metrics.contains("skein_turns_total{reason=\"end_turn\"} 1"), "{metrics}");
    let tasks = metrics.lines().find_map(|line| line.strip_prefix("skein_tasks ")?.parse().ok());
    assert!(tasks > Some(0), "{metrics}");
    let mut command = Command::new(installed("tests/debian/usr/bin/promtool"));
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = command.spawn().expect("promtool starts");
    // Dropping its stdin ends the text.
    promtool.stdin.take().expect("its stdin").write_all(metrics.as_bytes()).expect("promtool reads");
    let checked = promtool.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && said.is_empty(), "{said}");
}
