//! `skein mcp` on the wire: what is not JSON, what lacks its parameters or arguments, and the annotations that a service
//! gives its tools and results.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::client::Client;
use crate::support::{Sandbox, servers, service};

/// A mode with all that the test server has.
fn serve(sandbox: &Sandbox) -> Client {
    Client::connect(command(sandbox)).0
}

fn command(sandbox: &Sandbox) -> Command {
    let command = json!({"command": servers::mcp_echo(), "args": ["--talks", "--prompts", "--resources"]});
    sandbox.write("config/services/parrot.yaml", &service("parrot", json!({"stdio": command})).to_string());
    let talk = json!({"version": 1, "kind": "agent", "name": "talk", "description": "Talks.",
        "metadata": {"dependencies": ["parrot"]}, "modes": [{"slug": "all", "description": "All of it.",
        "prompt": "talk.md", "tool_groups": ["parrot"], "dependencies": ["parrot"]}]});
    sandbox.write("config/agents/talk.yaml", &talk.to_string());
    sandbox.write("config/agents/talk.md", "You talk.\n");
    sandbox.command(&["mcp", "-a", "talk", "-m", "all"])
}

#[test]
fn a_line_that_is_not_json_is_a_parse_error() {
    let sandbox = Sandbox::new();
    let mut client = serve(&sandbox);
    for line in ["{nope", "hello", "{\"jsonrpc\": \"2.0\", \"id\": 1,"] {
        client.send_line(line);
        let answer = client.next();
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32700), &Value::Null), "{line}: {answer}");
    }
    assert_eq!(client.call("parrot__echo", json!({"text": "still here"}))["content"][0]["text"], "still here");
}

#[test]
fn a_malformed_notification_gets_no_answer() {
    let sandbox = Sandbox::new();
    let mut client = serve(&sandbox);
    client.send_line(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":[1]}"#);
    client.send_line(r#"{"jsonrpc":"2.0","id":7.0,"method":"ping"}"#);
    let answer = client.next();
    assert_eq!((&answer["id"], &answer["result"]), (&json!(7), &json!({})), "{answer}");
}

#[test]
fn missing_parameters_and_arguments_are_invalid_params() {
    let sandbox = Sandbox::new();
    let mut client = serve(&sandbox);
    for (method, params, named) in [
        ("tools/call", json!({}), "`name`"),
        ("tools/call", json!({"name": "parrot__echo"}), "`text`"),
        ("tools/call", json!({"name": "parrot__echo", "arguments": {}}), "`text`"),
        ("tools/call", json!({"name": "parrot__add", "arguments": {"a": 1}}), "`b`"),
        ("tools/call", json!({"name": "parrot__nothing", "arguments": {}}), "`parrot__nothing`"),
        ("prompts/get", json!({}), "`name`"),
        ("resources/read", json!({}), "`uri`"),
    ] {
        let answer = client.request(method, params.clone());
        assert_eq!(answer["error"]["code"], -32602, "{method} {params}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(named), "{method} {params}: {message}");
    }
}

#[test]
fn annotations_of_tools_and_results_pass_through() {
    let sandbox = Sandbox::new();
    let mut client = serve(&sandbox);
    let listed = client.result("tools/list", json!({}));
    let tool = |name: &str| {
        let tools = listed["tools"].as_array().unwrap();
        tools
            .iter()
            .find(|tool| tool["name"] == format!("parrot__{name}"))
            .unwrap_or_else(|| panic!("{listed}"))
            .clone()
    };
    assert_eq!(tool("peek")["annotations"], json!({"readOnlyHint": true}));
    assert_eq!(tool("show_app")["annotations"], json!({"readOnlyHint": true, "openWorldHint": true}));
    assert_eq!(tool("wipe")["annotations"]["destructiveHint"], true);
    assert_eq!(
        (tool("wipe")["title"].clone(), tool("show_app")["title"].clone()),
        (json!("Wipe it all"), json!("Show the page"))
    );
    assert_eq!(tool("show_app")["_meta"]["ui"]["resourceUri"], "ui://echo/page");

    let result = client.call("parrot__kinds", json!({}));
    let for_user = json!({"audience": ["user"], "priority": 0.5});
    let annotations: Vec<_> = result["content"].as_array().unwrap().iter().map(|block| &block["annotations"]).collect();
    assert_eq!(json!(annotations), json!([for_user, for_user, null, for_user, null, for_user]), "{result}");
    assert_eq!(result["structuredContent"], json!({"answer": 42}));
}

#[test]
fn a_client_that_reads_no_answers_is_cut_off() {
    let sandbox = Sandbox::new();
    let mut command = command(&sandbox);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}});
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    writeln!(input, "{hello}\n{ready}").unwrap();
    let ping = |id: &u32| writeln!(input, "{}", json!({"jsonrpc": "2.0", "id": id, "method": "ping"})).is_ok();
    let sent = (1..200_000).take_while(ping).count();
    assert!((1_024..100_000).contains(&sent), "{sent}");
    let status = child.wait().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("it sends requests and does not read the answers"), "{said}");
}
