//! Agents of others, each by itself: what they do before Skein is between, so that a test of both can tell who is wrong.

use serde_json::json;

use crate::support::http::{HttpServer, Reply};
use crate::support::peers::{Direct, echo};
use crate::support::{Sandbox, files_below, read, repository};

#[test]
fn echo_does_what_its_prompts_say() {
    let sandbox = Sandbox::new();
    sandbox.write("project/notes.txt", "A note.\n");
    let (mut client, hello) = Direct::start(&sandbox, &echo(&["--garbage"]));
    assert_eq!(hello["agentCapabilities"]["loadSession"], false);
    let session = client.session(json!([]));
    assert_eq!(client.prompt(&session, "say one two"), "one two");
    assert_eq!(client.heard.len(), 4, "a chunk a word, and a stray answer before each: {:#?}", client.heard);
    assert_eq!(client.prompt(&session, "burst 3"), "d0 d1 d2 ");
    assert_eq!(client.prompt(&session, "recall"), "say one two | burst 3");
    let file = sandbox.path("project/notes.txt");
    assert_eq!(client.prompt(&session, &format!("read {}", file.display())), "A note.\n");
    assert_eq!(client.prompt(&session, &format!("write {} new", file.display())), "written");
    assert_eq!(read(file), "new");
    assert_eq!(client.prompt(&session, "permit Do it"), "chosen my-once");
    assert!(client.was_asked("session/request_permission"));
    assert_eq!(client.prompt(&session, "run ls"), "error -32601: nobody offered that");
    assert_eq!(client.prompt(&session, "env KEY"), "not set");
}

#[test]
fn echo_remembers_its_sessions_where_there_is_a_folder_for_them() {
    let sandbox = Sandbox::new();
    let mut peer = echo(&["--load", "--resume"]);
    peer.env.push(("SKEIN_ACP_ECHO_STATE".to_owned(), sandbox.path("home").display().to_string()));
    let (mut client, _) = Direct::start(&sandbox, &peer);
    let session = client.session(json!([]));
    client.prompt(&session, "say hello");
    drop(client);
    let params = json!({"sessionId": session, "cwd": sandbox.path("project"), "mcpServers": []});
    let (mut client, _) = Direct::start(&sandbox, &peer);
    assert!(client.ask("session/load", params.clone())["result"].is_object());
    assert_eq!(
        (client.said("user_message_chunk"), client.said("agent_message_chunk")),
        ("say hello".into(), "hello".into())
    );
    drop(client);
    let (mut client, _) = Direct::start(&sandbox, &peer);
    assert!(client.ask("session/resume", params)["result"].is_object());
    assert_eq!((client.heard.len(), client.prompt(&session, "recall")), (0, "say hello".to_owned()));
}

#[test]
fn echo_uses_the_server_it_is_given_and_shows_no_secret_of_it() {
    let sandbox = Sandbox::new();
    let (mut client, _) = Direct::start(&sandbox, &echo(&[]));
    let env = json!([{"name": "KEY", "value": "hidden"}]);
    let server = json!({"name": "s", "command": env!("CARGO_BIN_EXE_skein-mcp-echo"), "args": [], "env": env});
    let session = client.session(json!([server]));
    assert!(client.prompt(&session, "tools").starts_with("echo add env"));
    assert!(client.prompt(&session, r#"tool echo {"text": "hi"}"#).contains(r#""text":"hi""#));
    assert_eq!(client.prompt(&session, "tool nothing"), "error -32602: unknown tool: nothing");
    let servers = client.prompt(&session, "servers");
    assert!(servers.contains("KEY") && !servers.contains("hidden"), "{servers}");
}

#[tokio::test]
async fn echo_reaches_a_server_over_http() {
    let server = HttpServer::start(|request| {
        assert!(request.head.contains("X-Key: hidden"), "{}", request.head);
        let result = match request.body["method"].as_str() {
            Some("tools/list") => json!({"tools": [{"name": "far", "inputSchema": {"type": "object"}}]}),
            _ => json!({}),
        };
        Reply::Json(json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result}))
    })
    .await;
    let headers = json!([{"name": "X-Key", "value": "hidden"}]);
    let servers = json!([{"type": "http", "name": "s", "url": server.url, "headers": headers}]);
    let said = tokio::task::spawn_blocking(move || {
        let (mut client, hello) = Direct::start(&Sandbox::new(), &echo(&["--http"]));
        assert_eq!(hello["agentCapabilities"]["mcpCapabilities"]["http"], true);
        let session = client.session(servers);
        client.prompt(&session, "tools")
    });
    assert_eq!(said.await.expect("the client ends"), "far");
}

#[test]
fn a_manifest_for_a_peer_passes_the_check() {
    let sandbox = Sandbox::new();
    let manifest = json!({"version": 1, "kind": "agent", "name": "echo", "description": "Says it back.",
        "runtime": echo(&["--load"]).runtime(), "modes": [{"slug": "default", "description": "As it is."}]});
    sandbox.write("config/agents/echo.json", &manifest.to_string());
    let check = sandbox.skein(&["check", "--json"]).json();
    assert_eq!((&check["errors"], &check["warnings"]), (&json!(0), &json!(0)), "{check:#}");
}

#[test]
fn echo_takes_nobody_in_before_they_have_logged_in() {
    let (mut client, hello) = Direct::start(&Sandbox::new(), &echo(&["--auth"]));
    assert_eq!(hello["authMethods"].as_array().map(Vec::len), Some(2));
    let params = json!({"cwd": "/", "mcpServers": []});
    assert_eq!(client.ask("session/new", params.clone())["error"]["code"], -32000);
    client.ask("authenticate", json!({"methodId": "key"}));
    assert!(client.ask("session/new", params)["result"]["sessionId"].is_string());
}

/// docs/external-agents.md shows these; none is compiled in, and looking at one starts nothing.
#[test]
fn the_examples_of_external_agents_are_valid_and_start_nothing() {
    let docs = read(repository("docs/external-agents.md"));
    let files = files_below(&repository("manifests/examples"));
    assert_eq!(files.len(), 5);
    for file in files {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(docs.contains(&format!("(../manifests/examples/{name})")), "{name} is in the docs");
        let sandbox = Sandbox::new();
        // Whoever starts something leaves a mark.
        for program in ["npx", "uvx", "goose"] {
            sandbox.write(&format!("bin/{program}"), "#!/bin/sh\ntouch \"$HOME/started\"\n");
            let path = sandbox.path(&format!("bin/{program}"));
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a program");
        }
        let manifest = file.to_string_lossy().into_owned();
        for args in [vec!["check", "--json", &manifest], vec!["--manifests", &manifest, "agents", "--json"]] {
            let mut command = sandbox.command(&args);
            command.env("PATH", format!("{}:/usr/bin:/bin", sandbox.path("bin").display()));
            let output = command.output().expect("the program starts");
            let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert!(output.status.success(), "{name}: {told:#}");
            assert!(told.get("warnings").is_none_or(|warnings| warnings == 0), "{name}: {told:#}");
        }
        assert!(!sandbox.path("home/started").exists(), "{name} started something");
    }
}
