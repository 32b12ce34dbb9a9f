//! Every mode served to an MCP client: the list is what the wiring table says, and nothing else can be called.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use serde_json::{Value, json};
use skein::manifest::{Layer, Manifests, Readiness, Root};

use crate::support::{Sandbox, read, repository, table};

/// The rows of the wiring table for `coding` and for `goose/analyst`: group names and services by mode.
fn rows() -> Vec<(String, Vec<String>, Vec<String>)> {
    let page = read(repository("docs/manifests.md"));
    let rows = table(&page, &["agent/mode", "tool_groups", "dependencies"]).into_iter();
    rows.filter(|row| row[0].starts_with("coding/") || row[0] == "goose/analyst")
        .map(|row| {
            // `{group: edit, files: …}` counts as its group: which files it is narrowed to is tested elsewhere.
            let narrowed = regex::Regex::new(r"\{group: (\w+), files: `[^`]*`\}").unwrap();
            let remark = regex::Regex::new(r"\(no [^)]*\)").unwrap();
            let groups = remark.replace_all(&narrowed.replace_all(&row[1], "$1"), "").into_owned();
            let names =
                |cell: &str| cell.split(',').map(|name| name.replace("(optional)", "").trim().to_owned()).collect();
            (row[0].clone(), names(&groups), names(&row[2]))
        })
        .collect()
}

/// The rule, written down a second time: a group's tools of the services a mode depends on, or all of a service.
fn expected(manifests: &Manifests, groups: &[String], services: &[String]) -> BTreeSet<String> {
    let mut tools = BTreeSet::new();
    for service in services {
        let manifest = &manifests.services[service.as_str()].manifest;
        if manifest.status == Readiness::Planned {
            continue;
        }
        for (group, names) in &manifest.groups {
            let listed = groups.iter().any(|name| name == group.as_str());
            let whole = groups.iter().any(|name| name == service);
            if listed || whole {
                tools.extend(names.iter().map(|tool| format!("{service}__{tool}")));
            }
        }
    }
    tools
}

/// Sends requests to a server and waits for an answer to each.
fn ask(sandbox: &Sandbox, mode: &str, requests: &[Value]) -> BTreeMap<u64, Value> {
    let mut command = sandbox.command(&["mcp", "-a", mode]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    for message in [&hello, &ready].into_iter().chain(requests) {
        writeln!(stdin, "{message}").unwrap();
    }
    let mut answers = BTreeMap::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let answer: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if let Some(id) = answer["id"].as_u64() {
            answers.insert(id, answer);
        }
        if answers.len() == requests.len() + 1 {
            break;
        }
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
    answers
}

#[test]
fn each_mode_offers_only_its_row_of_the_table() {
    let (manifests, _) = skein::manifest::load(&[(Layer::Builtin, Root::Builtin)]);
    let every: BTreeSet<String> = manifests
        .services
        .values()
        .flat_map(|entry| {
            let tools: BTreeSet<_> = entry.manifest.groups.values().flatten().collect();
            tools.into_iter().map(|tool| format!("{}__{tool}", entry.manifest.name)).collect::<Vec<_>>()
        })
        .collect();
    let rows = rows();
    assert_eq!(rows.len(), 9);
    for (mode, groups, services) in rows {
        let sandbox = Sandbox::new();
        let expected = expected(&manifests, &groups, &services);
        let forbidden: Vec<_> = every.difference(&expected).collect();
        let arguments = json!({"path": "forced.txt", "content": "x", "command": "touch forced.txt", "text": "x"});
        let mut requests = vec![json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})];
        for (index, tool) in forbidden.iter().enumerate() {
            let params = json!({"name": tool, "arguments": arguments});
            requests.push(json!({"jsonrpc": "2.0", "id": index + 2, "method": "tools/call", "params": params}));
        }
        let answers = ask(&sandbox, &mode, &requests);
        let instructions = answers[&0]["result"]["instructions"].as_str().unwrap();
        assert!(instructions.contains(&mode), "the instructions name the mode: {instructions}");
        for (name, word) in [("developer__shell", "shell"), ("developer__edit_file", "edit_file")] {
            assert_eq!(instructions.contains(word), expected.contains(name), "{mode}: {instructions}");
        }
        let tools = answers[&1]["result"]["tools"].as_array().unwrap();
        let offered: BTreeSet<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect();
        assert_eq!(offered, expected, "{mode}");
        for (id, answer) in answers.iter().filter(|(id, _)| **id > 1) {
            assert!(answer["error"].is_object(), "{} in {mode}: {answer}", requests[*id as usize - 1]);
        }
        assert!(!sandbox.path("project/forced.txt").exists(), "{mode}");
    }
}

#[test]
fn a_mode_that_only_reads_cannot_be_made_to_write() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "as it was\n");
    let attempts = [
        ("developer__write_file", json!({"path": "a.txt", "content": "x", "overwrite": true})),
        ("developer__edit_file", json!({"path": "a.txt", "edits": [{"before": "as", "after": "x"}]})),
        ("developer__shell", json!({"command": "echo x > a.txt"})),
        ("write_file", json!({"path": "a.txt", "content": "x"})),
        ("developer.write_file", json!({"path": "a.txt", "content": "x"})),
        ("developer__read_file", json!({"path": "a.txt", "command": "echo x > a.txt"})),
    ];
    let requests: Vec<_> = attempts
        .iter()
        .enumerate()
        .map(|(index, (name, arguments))| {
            let params = json!({"name": name, "arguments": arguments});
            json!({"jsonrpc": "2.0", "id": index + 1, "method": "tools/call", "params": params})
        })
        .collect();
    let answers = ask(&sandbox, "coding/security", &requests);
    for answer in answers.values().skip(1) {
        assert!(answer["error"].is_object() || answer["result"]["isError"] == json!(true), "{answer}");
    }
    assert_eq!(read(sandbox.path("project/a.txt")), "as it was\n");
}
