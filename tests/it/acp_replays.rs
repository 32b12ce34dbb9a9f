//! What real editors sent in recorded sessions, sent again: every request is answered, and each editor finds the
//! options, modes and titles that it looks for. The fixtures hold the requests of the editors, as they were.

use serde_json::{Value, json};

use crate::support::Sandbox;
use crate::support::acp::{Acp, of_kind, selected};

fn recorded(client: &str) -> Vec<Value> {
    let path = format!("{}/tests/fixtures/clients/{client}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.lines().map(|line| serde_json::from_str(line).expect("a message")).collect()
}

/// The first tool call of a recorded prompt, in the words of the offline model. A model followed such a list.
fn offline_prompt(params: &Value) -> Option<String> {
    let texts = params["prompt"].as_array()?.iter().filter_map(|block| block["text"].as_str());
    let list = texts.into_iter().find_map(|text| text.split_once("LLM[")).map(|(_, list)| format!("[{list}"))?;
    let steps = serde_json::Deserializer::from_str(&list).into_iter::<Value>().next()?.ok()?;
    let call = steps.as_array()?.iter().find(|step| step["tool"].is_string())?;
    Some(format!("/developer.{} {}", call["tool"].as_str()?, call["args"]))
}

/// Replays the messages of an editor that answers questions with the first option of this kind. Returns the client.
fn replay(sandbox: &Sandbox, name: &str, kind: &'static str) -> (Acp, String) {
    sandbox.write("project/src/app.py", "print('Hello, world')\n");
    sandbox.write("project/notes.md", "milk\n");
    sandbox.write("project/README.md", "# Demo project\n");
    let mut client = Acp::launch(sandbox, sandbox.command(&["acp"]));
    client.on("session/request_permission", move |params| {
        let options = params["options"].as_array().expect("options");
        let of_kind: Vec<_> = options.iter().filter(|option| option["kind"] == kind).collect();
        assert_eq!(of_kind.len(), 1, "one option per kind: {options:?}");
        Some(selected(of_kind[0]["optionId"].as_str().expect("an id")))
    });
    client.on("fs/read_text_file", |params| {
        let text = std::fs::read_to_string(params["path"].as_str().expect("a path"));
        Some(match text {
            Ok(content) => json!({"result": {"content": content}}),
            Err(_) => json!({"error": {"code": -32002, "message": "not found"}}),
        })
    });
    client.on("fs/write_text_file", |params| {
        let (path, text) = (params["path"].as_str().expect("a path"), params["content"].as_str().expect("text"));
        std::fs::write(path, text).expect("written");
        Some(json!({"result": {}}))
    });
    let mut session = String::new();
    for message in recorded(name) {
        let (method, mut params) =
            (message["method"].as_str().expect("a method").to_owned(), message["params"].clone());
        if params.get("cwd").is_some() {
            params["cwd"] = json!(client.cwd());
        }
        if params.get("sessionId").is_some() {
            params["sessionId"] = json!(session);
        }
        match method.as_str() {
            "session/cancel" => client.notify(&method, params),
            "session/prompt" => {
                let text = offline_prompt(&params).unwrap_or_else(|| "list".to_owned());
                params["prompt"] = json!([{"type": "text", "text": text}]);
                client.ask(&method, params);
            }
            _ => {
                let answer = client.ask(&method, params);
                if let Some(id) = answer["sessionId"].as_str() {
                    session = id.to_owned();
                }
            }
        }
    }
    (client, session)
}

/// CodeCompanion shows one key per kind of option, and one diff.
#[test]
fn codecompanion_edits_and_resumes() {
    let sandbox = Sandbox::new();
    let (client, session) = replay(&sandbox, "codecompanion", "allow_once");
    let updates = client.updates(0, &session);
    for call in of_kind(&updates, "tool_call") {
        assert!(call["status"].is_string() && call["kind"].is_string(), "{call}");
    }
    for question in client.heard().iter().filter(|message| message["method"] == "session/request_permission") {
        let content = question["params"]["toolCall"]["content"].as_array().expect("content");
        assert!(content.iter().filter(|part| part["type"] == "diff").count() <= 1, "{question}");
    }
    assert!(!sandbox.path("config/config.yaml").exists(), "no key of the editor saves a rule");
}

/// avante's button for the session is the option of the kind `allow_always`.
#[test]
fn avante_allows_for_the_session() {
    let sandbox = Sandbox::new();
    let (client, _) = replay(&sandbox, "avante", "allow_always");
    let asked = client.heard().iter().find(|message| message["method"] == "session/request_permission");
    let options = &asked.expect("a question")["params"]["options"];
    assert!(options[1]["name"].as_str().unwrap_or_default().ends_with("in this session"), "{options}");
    assert!(!sandbox.path("config/config.yaml").exists(), "no button of the editor saves a rule");
}

/// agent-shell lists the values of the option `mode`, which must have no groups.
#[test]
fn agent_shell_lists_modes_and_sessions() {
    let sandbox = Sandbox::new();
    let (client, _) = replay(&sandbox, "agent-shell", "allow_once");
    let opened = client.heard().iter().find(|message| message["result"]["configOptions"].is_array());
    let options = opened.expect("options")["result"]["configOptions"].as_array().expect("options").clone();
    let mode = options.iter().find(|option| option["category"] == "mode").expect("a mode");
    assert!(mode["options"].as_array().expect("values").iter().all(|value| value["value"].is_string()), "{mode}");
}
