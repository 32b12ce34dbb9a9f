//! What is not there is not promised: planned services, replaced agents, tools that need a session.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::Sandbox;
use crate::support::acp::Acp;

const AGENT: &str = "version: 1
kind: agent
name: painter
description: Draws.
metadata: {dependencies: [developer, plotter]}
modes:
  - {slug: draw, description: Draws., prompt: p.md, tool_groups: [read, plot], dependencies: [developer, plotter]}
  - slug: sketch
    description: Draws if it can.
    prompt: p.md
    tool_groups: [read, plot]
    dependencies: [developer, {name: plotter, optional: true}]
";

const SERVICE: &str = "version: 1
kind: service
name: plotter
description: Plots.
status: planned
transport: {stdio: {command: plotter}}
groups: {plot: [draw]}
";

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("config/services/plotter.yaml", SERVICE);
    sandbox.write("config/agents/painter.yaml", AGENT);
    sandbox.write("config/agents/p.md", "You draw.\n");
    sandbox
}

#[test]
fn check_reports_a_required_service_that_is_planned() {
    let sandbox = sandbox();
    let check = sandbox.skein(&["check", "-q"]);
    assert_eq!(check.code, 0, "{}", check.whole());
    assert_eq!(check.stderr.matches("warning[W210]").count(), 1, "{}", check.stderr);
    assert!(check.stderr.contains("mode `draw` depends on `plotter`, which is only planned"), "{}", check.stderr);
}

#[test]
fn a_mode_without_its_required_service_cannot_be_entered() {
    let sandbox = sandbox();
    let said = "`painter/draw` cannot be entered: it depends on the service `plotter`, which is only planned";
    for command in
        [&["run", "-a", "painter/draw", "list"][..], &["mcp", "-a", "painter/draw"], &["tools", "-a", "painter/draw"]]
    {
        let run = sandbox.skein(command);
        assert_eq!((run.code, run.stderr.contains(said)), (1, true), "{command:?}: {}", run.whole());
    }
    let mut client = Acp::able(&sandbox, &["-a", "painter/draw"], &json!({}));
    let session = client.session();
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "list"}]});
    let error = client.refused("session/prompt", prompt);
    assert!(error.to_string().contains(said), "{error}");
    // An optional one is only shown.
    let optional = sandbox.skein(&["tools", "-a", "painter/sketch"]);
    assert!(optional.code == 0 && optional.stdout.contains("absent: it is planned"), "{}", optional.whole());
    assert_eq!(sandbox.skein(&["run", "-a", "painter/sketch", "list"]).code, 0);
}

#[test]
fn new_warns_that_an_agent_replaces_a_built_in_one() {
    let sandbox = Sandbox::new();
    let new = sandbox.skein(&["new", "agent", "goose", "--user"]);
    assert!(new.code == 0 && new.stderr.contains("it replaces the built-in agent `goose`"), "{}", new.whole());
    let other = sandbox.skein(&["new", "agent", "gander", "--user", "--json"]);
    assert_eq!(other.json()["replaces"], Value::Null);
    assert!(!other.stderr.contains("replaces"), "{}", other.whole());
}

#[test]
fn the_orchestrator_serves_only_tools_that_work() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["mcp", "-a", "orchestrator"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut ask = |id: u64, method: &str, params: Value| -> Value {
        writeln!(stdin, "{}", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).unwrap();
        loop {
            let answer: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            if answer["id"] == id {
                return answer;
            }
        }
    };
    let hello =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    ask(0, "initialize", hello);
    let tools = ask(1, "tools/list", json!({}))["result"]["tools"].clone();
    let names: Vec<_> = tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["chatrecall__read_session", "chatrecall__search_sessions", "knowledge__load"]);
    for (id, tool, arguments) in
        [(2, "chatrecall__search_sessions", json!({"query": "retry"})), (3, "knowledge__load", json!({}))]
    {
        let answer = ask(id, "tools/call", json!({"name": tool, "arguments": arguments}));
        assert!(answer["result"]["isError"] != json!(true) && answer["error"].is_null(), "{tool}: {answer}");
    }
    let hidden = ask(4, "tools/call", json!({"name": "summon__delegate", "arguments": {"task": "x"}}));
    assert_eq!(hidden["error"]["code"], -32602, "{hidden}");
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the tools of summon and extensionmanager need a session"), "{said}");
}
