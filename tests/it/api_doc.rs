//! The examples of docs/api.md, in one shell and in their order, against a real server.

use std::process::{Command, Stdio};

use regex::Regex;
use serde_json::{Value, json};

use crate::cli::code_blocks;
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::serve::{Server, token};
use crate::support::{Sandbox, full_tests, read, repository};

/// Printed before the output of each command.
const MARK: &str = "\n@@@\n";
/// Stands for parts that are left out.
const ANYTHING: &str = "…";

/// A command, and the output that the page promises.
#[derive(Debug)]
struct Example {
    command: String,
    promised: String,
}

/// Reads the examples of a `console api` block. A command goes on after `\` and `|`, and inside quotes.
fn examples(block: &str) -> Vec<Example> {
    let parts = format!("\n{block}");
    let parts = parts.split("\n$ ").skip(1).map(|part| {
        let (mut command, mut promised) = (String::new(), String::new());
        let mut is_whole = false;
        for line in part.lines() {
            let target = if is_whole { &mut promised } else { &mut command };
            target.push_str(line);
            target.push('\n');
            is_whole |= !line.ends_with(['\\', '|']) && command.matches('\'').count() % 2 == 0;
        }
        Example { command, promised: promised.trim().to_owned() }
    });
    parts.collect()
}

/// Returns whether a value is the promised one. `"…"` stands for any value, as a key for further fields, and at the end
/// of a list for further items. Ids and times only need the same form.
fn fits(promised: &Value, printed: &Value) -> bool {
    match (promised, printed) {
        (Value::String(text), _) if text == ANYTHING => true,
        (Value::String(promised), Value::String(printed)) => {
            let forms = [r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"];
            let same_form = |form: &&str| {
                let form = Regex::new(form).expect("a pattern");
                form.is_match(promised) && form.is_match(printed)
            };
            promised == printed || forms.iter().any(same_form)
        }
        (Value::Object(promised), Value::Object(printed)) => {
            let mut fields = promised.iter().filter(|(name, _)| *name != ANYTHING);
            let is_open = promised.contains_key(ANYTHING);
            (is_open || promised.len() == printed.len())
                && fields.all(|(name, value)| printed.get(name).is_some_and(|printed| fits(value, printed)))
        }
        (Value::Array(promised), Value::Array(printed)) => {
            let (items, is_open) = match promised.split_last() {
                Some((Value::String(last), items)) if last == ANYTHING => (items, true),
                _ => (&promised[..], false),
            };
            (items.len() == printed.len() || (is_open && items.len() < printed.len()))
                && items.iter().zip(printed).all(|(item, printed)| fits(item, printed))
        }
        (promised, printed) => promised == printed,
    }
}

/// Returns whether a text is the promised one: as JSON if both are, else with `…` for any text.
fn is_promised(promised: &str, printed: &str) -> bool {
    if let (Ok(promised), Ok(printed)) = (serde_json::from_str::<Value>(promised), serde_json::from_str(printed)) {
        return fits(&promised, &printed);
    }
    let pattern: Vec<_> = promised.split(ANYTHING).map(regex::escape).collect();
    let pattern = Regex::new(&format!("^{}$", pattern.join("(?s:.*)"))).expect("a pattern");
    pattern.is_match(printed)
}

fn model() -> ScriptedModel {
    ScriptedModel::new(|request| match asked(request) {
        _ if has_result(request) => Answer::Says(vec!["done".to_owned()]),
        words if words.contains("Take your time") => Answer::Hangs("I begin"),
        words if words.contains("Write a note") => {
            let arguments = json!({"path": "note.txt", "content": "a note\n"});
            Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
        }
        _ => Answer::Says(vec!["It sells shoes.".to_owned()]),
    })
}

#[expect(clippy::disallowed_methods, reason = "a shell with curl, which talks to the program under test")]
#[test]
fn the_examples_of_the_api_page_print_what_it_promises() {
    if !full_tests() {
        return;
    }
    let (sandbox, model) = (Sandbox::new(), model());
    let server = Server::launch(model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])));
    let root = sandbox.path("project").display().to_string();
    let token = token(&sandbox, "ci", &["--root", &root, "--approval", "ask"]);
    let blocks = code_blocks(&read(repository("docs/api.md")));
    let blocks = blocks.iter().filter(|(info, _)| info == "console api");
    let examples: Vec<_> = blocks.flat_map(|(_, block)| examples(block)).collect();
    assert!(examples.len() > 20, "{examples:?}");
    let script = examples.iter().map(|example| format!("printf '\\n@@@\\n'\n{}\n", example.command));
    let mut shell = Command::new("bash");
    shell.arg("-c").arg(script.collect::<String>()).stdin(Stdio::null());
    shell.env("SKEIN_URL", format!("http://{}", server.address)).env("SKEIN_TOKEN", token);
    let output = shell.output().expect("a shell");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let printed: Vec<_> = printed.split(MARK).skip(1).map(str::trim).collect();
    assert_eq!(printed.len(), examples.len(), "{}", String::from_utf8_lossy(&output.stderr));
    for (Example { command, promised }, printed) in examples.iter().zip(printed) {
        assert!(is_promised(promised, printed), "{command}prints\n{printed}\nand not\n{promised}");
    }
    assert_eq!(read(sandbox.path("project/note.txt")), "a note\n", "the question was answered");
}

/// Each path of the description of the REST API is in the table, and the other way round.
#[test]
fn the_api_page_lists_every_path() {
    let page = read(repository("docs/api.md"));
    let described: Value = serde_json::from_str(&read(repository("src/serve/rest/openapi.json"))).expect("JSON");
    for (path, methods) in described["paths"].as_object().expect("paths") {
        let path = path.replace("{name}", "NAME").replace("{run_id}", "ID").replace("{session_id}", "ID");
        for method in methods.as_object().expect("methods").keys() {
            let named = format!("`{} {path}`", method.to_uppercase());
            assert!(page.contains(&named), "{named}");
        }
    }
}

#[test]
fn examples_match_only_what_they_promise() {
    assert!(is_promised(r#"{"a": "…", "…": "…"}"#, r#"{"a":[1],"b":2}"#));
    assert!(!is_promised(r#"{"a": 1}"#, r#"{"a":1,"b":2}"#));
    assert!(!is_promised(r#"{"a": 1, "…": "…"}"#, r#"{"b":2}"#));
    assert!(is_promised(r#"[1, "…"]"#, "[1,2,3]") && !is_promised("[1]", "[1,2]"));
    assert!(is_promised("a…c", "a b\nc") && !is_promised("a…c", "a b"));
    let (one, two) = ("\"0b9a2c1e-5f0d-4c3b-9a52-6c1b7f3e8d10\"", "\"0b9a2c1e-0000-4000-8000-000000000001\"");
    assert!(is_promised(one, two) && !is_promised(one, "\"none\""));
}
