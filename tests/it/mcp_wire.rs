//! `skein mcp` on the wire: what is not JSON, what lacks its parameters or arguments, and the annotations that a service
//! gives its tools and results.

use serde_json::{Value, json};

use crate::client::Client;
use crate::support::{Sandbox, servers, service};

/// A mode with all that the test server has.
fn serve(sandbox: &Sandbox) -> Client {
    let command = json!({"command": servers::mcp_echo(), "args": ["--talks", "--prompts", "--resources"]});
    sandbox.write("config/services/parrot.yaml", &service("parrot", json!({"stdio": command})).to_string());
    let talk = json!({"version": 1, "kind": "agent", "name": "talk", "description": "Talks.",
        "metadata": {"dependencies": ["parrot"]}, "modes": [{"slug": "all", "description": "All of it.",
        "prompt": "talk.md", "tool_groups": ["parrot"], "dependencies": ["parrot"]}]});
    sandbox.write("config/agents/talk.yaml", &talk.to_string());
    sandbox.write("config/agents/talk.md", "You talk.\n");
    Client::connect(sandbox.command(&["mcp", "-a", "talk", "-m", "all"])).0
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
