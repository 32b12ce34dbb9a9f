//! Agents of others, each by itself: what they do before Skein is between, so that a test of both can tell who is wrong.

use serde_json::{Value, json};

use crate::support::http::{HttpServer, Reply};
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::peers::{self, Direct, Peer, echo};
use crate::support::{Sandbox, files_below, full_tests, read, repository, servers};

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
    let server = json!({"name": "s", "command": servers::mcp_echo(), "args": [], "env": env});
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
        let sandbox = Sandbox::new();
        let (mut client, hello) = Direct::start(&sandbox, &echo(&["--http"]));
        assert_eq!(hello["agentCapabilities"]["mcpCapabilities"]["http"], true);
        let session = client.session(servers);
        client.prompt(&session, "tools")
    });
    assert_eq!(said.await.expect("the client ends"), "far");
}

/// What the agents made with the SDKs do, whatever the language.
fn assert_plays(peer: &Peer, prefix: &str) {
    let sandbox = Sandbox::new();
    sandbox.write("project/notes.txt", "A note.\n");
    let (mut client, hello) = Direct::start(&sandbox, peer);
    assert_eq!(hello["agentInfo"]["name"], format!("skein-test-{prefix}"));
    let session = client.session(json!([]));
    assert_eq!(client.prompt(&session, "say one two"), "one two");
    assert_eq!(client.heard.len(), 2, "a chunk a word: {:#?}", client.heard);
    let file = sandbox.path("project/notes.txt");
    assert_eq!(client.prompt(&session, &format!("read {}", file.display())), "A note.\n");
    assert!(client.was_asked("fs/read_text_file"));
    assert_eq!(client.prompt(&session, "permit Do it"), format!("chosen {prefix}-yes"));
    assert!(client.was_asked("session/request_permission"));
}

#[test]
fn the_agent_of_the_typescript_sdk_works_by_itself() {
    if !full_tests() {
        return;
    }
    assert_plays(&peers::typescript(), "ts");
}

#[test]
fn the_agent_of_the_python_sdk_works_by_itself() {
    if !full_tests() {
        return;
    }
    assert_plays(&peers::python(), "py");
}

#[test]
fn a_second_skein_works_by_itself() {
    let sandbox = Sandbox::new();
    sandbox.write("project/notes.txt", "A note.\n");
    let (mut client, hello) = Direct::start(&sandbox, &peers::skein(&sandbox));
    assert_eq!(hello["agentCapabilities"]["loadSession"], true);
    let session = client.session(json!([]));
    assert!(client.prompt(&session, r#"/developer.read_file {"path": "notes.txt"}"#).contains("A note."));
}

/// Says `hello`, or calls the tool of this name once if the prompt says `call`.
fn scripted(tool: &'static str, arguments: Value) -> ScriptedModel {
    ScriptedModel::new(move |request| {
        // Titles and the like are asked for without tools.
        let wishes = request["tools"].is_array() && asked(request).contains("call") && !has_result(request);
        match wishes {
            true => Answer::Calls { id: "call_1", tool, arguments: arguments.clone() },
            false if has_result(request) => Answer::Says(vec!["done".to_owned()]),
            false => Answer::Says(vec!["hel".to_owned(), "lo".to_owned()]),
        }
    })
}

#[test]
fn goose_works_by_itself_with_a_scripted_model() {
    if !full_tests() {
        return;
    }
    let model = scripted("shell", json!({"command": "touch made"}));
    let sandbox = Sandbox::new();
    let (mut client, hello) = Direct::start(&sandbox, &peers::goose(&model));
    assert_eq!(hello["agentInfo"]["name"], "goose");
    let session = client.session(json!([]));
    assert_eq!(client.prompt(&session, "hi"), "hello");
    assert_eq!(client.prompt(&session, "call it"), "done");
    assert!(sandbox.path("project/made").exists(), "it has a shell of its own");
    assert!(!client.was_asked("session/request_permission"), "and asks nobody");
    client.ask("session/set_mode", json!({"sessionId": session, "modeId": "approve"}));
    assert_eq!(client.prompt(&session, "call it again"), "done");
    assert!(client.was_asked("session/request_permission"), "unless it is told to");
}

#[test]
fn opencode_works_by_itself_with_a_scripted_model() {
    if !full_tests() {
        return;
    }
    let model = scripted("bash", json!({"command": "touch made", "description": "Makes a file"}));
    let sandbox = Sandbox::new();
    let (mut client, hello) = Direct::start(&sandbox, &peers::opencode(&model));
    assert_eq!(hello["agentInfo"]["name"], "OpenCode");
    let session = client.session(json!([]));
    assert_eq!(client.prompt(&session, "hi"), "hello");
    assert_eq!(client.prompt(&session, "call it"), "done");
    assert!(client.was_asked("session/request_permission"), "it asks, as its settings say");
    assert!(sandbox.path("project/made").exists());
}

/// What a model is told of `skein-mcp-echo`, handed over as `s`.
fn names_of_echo(peer: impl FnOnce(&ScriptedModel) -> Peer) -> Vec<String> {
    let model = scripted("none", json!({}));
    let sandbox = Sandbox::new();
    let (mut client, _) = Direct::start(&sandbox, &peer(&model));
    let server = json!({"name": "s", "command": servers::mcp_echo(), "args": [], "env": []});
    let session = client.session(json!([server]));
    client.prompt(&session, "hi");
    let requests = model.requests();
    let tools = requests.iter().find_map(|request| request["tools"].as_array()).expect("a request with tools").clone();
    let names = tools.iter().filter_map(|tool| tool["function"]["name"].as_str());
    names.filter(|name| name.ends_with("echo")).map(str::to_owned).collect()
}

#[test]
fn goose_and_opencode_take_the_server_they_are_given() {
    if !full_tests() {
        return;
    }
    assert_eq!(names_of_echo(peers::goose), ["s__echo"]);
    assert_eq!(names_of_echo(peers::opencode), ["s_echo"]);
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
    let sandbox = Sandbox::new();
    let (mut client, hello) = Direct::start(&sandbox, &echo(&["--auth"]));
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
            // The sandbox opens its folders and the hosts of its provider, and nothing else.
            for agent in told.as_array().into_iter().flatten().filter(|agent| agent["external"] == true) {
                let profile = &agent["sandbox"];
                assert_eq!((&profile["files"], &profile["enforce"]), (&json!("workspace"), &json!("required")));
                assert_eq!(profile["network"]["otherwise"], "off", "{name}");
                let is_empty = |list: &serde_json::Value| list.as_array().is_none_or(Vec::is_empty);
                assert!(!is_empty(&profile["network"]["allow"]) && !is_empty(&profile["write"]), "{name}");
                assert!(is_empty(&profile["sockets"]) && is_empty(&profile["devices"]), "{name}");
            }
        }
        assert!(!sandbox.path("home/started").exists(), "{name} started something");
    }
}
