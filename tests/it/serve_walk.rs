//! A walk over every endpoint of `skein serve` with two principals: neither sees, loads, searches, recalls or receives
//! anything of the other. Routes, MCP endpoints and ACP requests come from the source: one without a case here fails.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};

use regex::Regex;
use serde_json::{Value, json};

use crate::serve_acp::{self, Socket, initialize, root};
use crate::serve_mcp;
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::serve::{HttpAnswer, Server, bearer, token};
use crate::support::{Sandbox, files_below, read, repository};

/// A word that is in everything that Ann has, and in no request of Bob.
const MARK: &str = "zebra";
/// The word by which Bob looks for it.
const CLUE: &str = "noon";
const UNKNOWN: &str = "aaaaaaaaaaaaaaaaaaaa";
const UNKNOWN_UUID: &str = "00000000-0000-4000-8000-000000000000";
const AGENT: &str = "goose-assistant";
/// The app of Ann.
const APP: &str = "zebra-timer";

/// The code of the server.
fn server_code() -> String {
    let files = files_below(&repository("src/serve")).into_iter().chain([repository("src/serve.rs")]);
    files.filter(|file| file.extension().is_some_and(|extension| extension == "rs")).map(read).collect()
}

fn find_all(pattern: &str, text: &str) -> BTreeSet<String> {
    Regex::new(pattern).unwrap().captures_iter(text).map(|found| found[1].to_owned()).collect()
}

/// The routes of the server, as its code adds them.
fn routes() -> BTreeSet<String> {
    let code = server_code();
    for other in [".nest(", ".nest_service(", ".route_service(", ".fallback_service("] {
        assert!(!code.contains(other), "the walk does not find routes that `{other}` adds");
    }
    let found = find_all(r#"\.route\(\s*"([^"]+)""#, &code);
    let others = find_all(r#"\.route\(\s*([^"\s][^,)\s]*)"#, &code);
    assert_eq!(others, BTreeSet::from(["output".to_owned()]), "each route is a text; this one is another method");
    found
}

/// The kinds of MCP endpoints.
fn mcp_endpoints() -> BTreeSet<String> {
    let code = read(repository("src/serve/mcp.rs"));
    let variants = code.split("enum EndpointName {").nth(1).and_then(|rest| rest.split('}').next()).unwrap();
    find_all(r"(?m)^\s+([A-Z]\w+)", variants)
}

/// The requests and notifications of ACP that clients may send.
fn acp_requests() -> BTreeSet<String> {
    find_all(r"acp::(\w+Request|CancelNotification)\b", &read(repository("src/acp/dispatch.rs")))
}

/// A server with data of Ann, and two clients.
struct Walk {
    sandbox: Sandbox,
    server: Server,
    model: ScriptedModel,
    ann: String,
    bob: String,
    /// Ann's session, in which a client of hers is attached.
    session: String,
    /// Ann's run that has ended, and its session.
    run: Value,
    /// Ann's connection over HTTP.
    connection: String,
    first: Socket,
    second: Socket,
    /// The number of the last request of each client.
    count: u64,
}

/// Ann has a memory, an app, a text on top of mind, a consent, a trusted project, sessions and runs.
async fn begin() -> Walk {
    let sandbox = Sandbox::new();
    let project = root(&sandbox);
    sandbox.write("data/principals/ann/top-of-mind.md", "Think of the zebra at noon.");
    let rule = format!("{{tool: developer__write_file, project: {project:?}, then: allow}}");
    sandbox.write("data/principals/ann/config/config.yaml", &format!("version: 1\npermissions:\n  - {rule}\n"));
    let agent = "version: 1\nkind: agent\nname: zebra\ndescription: A zebra.\n\
                 modes: [{slug: one, description: One zebra., prompt: one.md}]\n";
    sandbox.write("project/.skein/agents/zebra.yaml", agent);
    sandbox.write("project/.skein/agents/one.md", "You are a zebra.\n");
    let trusted = sandbox.skein(&["trust", "--yes", "--principal", "ann"]);
    assert_eq!(trusted.code, 0, "{}", trusted.whole());
    let model = ScriptedModel::new(|request| match asked(request) {
        words if words.contains("write") && !has_result(request) => {
            let arguments = json!({"path": "new.txt", "content": "new\n", "overwrite": true});
            Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
        }
        words => Answer::Says(vec![words]),
    });
    let command = sandbox.command(&["serve", "-a", "goose", "--listen", "127.0.0.1:0", "--unstable-fork"]);
    let server = Server::launch(model.offered_to(command));
    let (ann, bob) = (
        token(&sandbox, "ann", &["--root", &project, "--approval", "ask"]),
        token(&sandbox, "bob", &["--root", &project, "--approval", "ask"]),
    );
    let mut first = Socket::connect(&server, &ann).await;
    let session = first.session(&sandbox).await;
    let mut second = Socket::connect(&server, &bob).await;
    second.say(&initialize()).await;
    second.answer(0).await;
    let connection = serve_acp::open(&server, &ann);
    let mut walk = Walk {
        session: session.clone(),
        run: Value::Null,
        count: 10,
        sandbox,
        server,
        model,
        ann,
        bob,
        connection,
        first,
        second,
    };
    walk.prompt_as_ann(&session, "the zebra is at noon").await;
    walk.run = walk.post(&walk.ann, "/runs", &new_run("a zebra runs at noon", None)).json();
    assert_eq!(walk.run["status"], "completed", "{}", walk.run);
    walk.keep_data_of_services();
    walk
}

fn new_run(text: &str, session: Option<&str>) -> Value {
    let input = json!([{"role": "user", "parts": [{"content": text}]}]);
    json!({"agent_name": AGENT, "mode": "sync", "input": input, "session_id": session})
}

impl Walk {
    fn post(&self, token: &str, path: &str, body: &Value) -> HttpAnswer {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        self.server.request("POST", path, &[("authorization", &bearer(token))], &text)
    }

    /// Calls a tool of a service over MCP; the whole answer.
    fn call(&self, token: &str, service: &str, tool: &str, arguments: Value) -> String {
        let path = format!("/mcp/services/{service}");
        let session = serve_mcp::begin(&self.server, &path, token);
        let params = json!({"name": tool, "arguments": arguments});
        let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}).to_string();
        let answer = serve_mcp::post(&self.server, &path, token, Some(&session), &call);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    }

    fn keep_data_of_services(&self) {
        let memory = json!({"text": "the zebra is fed at noon", "scope": "user"});
        self.call(&self.ann, "memory", "remember", memory);
        let html = "<!doctype html>\n<html lang=\"en\"><head><title>Zebra</title></head><body>noon</body></html>\n";
        let app = json!({"name": APP, "prd": "counts to noon", "html": html});
        self.call(&self.ann, "apps", "create_app", app);
    }

    async fn ask_as_ann(&mut self, method: &str, params: Value) -> Vec<Value> {
        self.count += 1;
        self.first.ask_and_collect(self.count, method, params).await
    }

    /// Sends a request as Bob. No message that arrives until its answer may be about Ann's data.
    async fn ask_as_bob(&mut self, method: &str, params: Value) -> Value {
        self.count += 1;
        let mut messages = self.second.ask_and_collect(self.count, method, params).await;
        assert!(!json!(messages).to_string().contains(MARK), "{method}: {messages:#?}");
        let mut answer = messages.pop().unwrap();
        answer.as_object_mut().unwrap().remove("id");
        answer
    }

    async fn prompt_as_ann(&mut self, session: &str, text: &str) -> Vec<Value> {
        let prompt = json!([{"type": "text", "text": text}]);
        self.ask_as_ann("session/prompt", json!({"sessionId": session, "prompt": prompt})).await
    }

    /// Sends a request about Ann's session as Bob. The answer must be that for an unknown session.
    async fn compare(&mut self, method: &str, params: impl Fn(&str) -> Value) {
        let session = self.session.clone();
        let foreign = self.ask_as_bob(method, params(&session)).await.to_string();
        let unknown = self.ask_as_bob(method, params(UNKNOWN)).await.to_string();
        assert_eq!(foreign.replace(&session, UNKNOWN), unknown, "{method}");
    }

    /// A request of Bob with an id of Ann, and one with an unknown id: the answers are equal, byte for byte.
    fn compare_http(&self, method: &str, path: impl Fn(&str) -> String, own: &str, unknown: &str, body: &Value) {
        let request = |token: &str, id: &str| {
            let text = if body.is_null() { String::new() } else { body.to_string() };
            self.server.request(method, &path(id), &[("authorization", &bearer(token))], &text).timeless()
        };
        let foreign = request(&self.bob, own);
        assert_eq!(foreign, request(&self.bob, unknown), "{method} {}", path(own));
        assert_eq!(foreign.status, 404, "{method} {}: {foreign:?}", path(own));
    }

    /// Reads a path as Bob. The answer is not about Ann's data.
    fn read_as_bob(&self, path: &str) {
        let answer = self.server.get(path, &self.bob);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        assert!(!answer.body.to_lowercase().contains(MARK), "{path}: {}", answer.body);
    }

    /// The cookie of a browser in which Bob has logged in to the console.
    fn cookie_of_bob(&self) -> String {
        let form = format!("token={}", self.bob);
        let login = self.server.request("POST", "/console/login", &[("sec-fetch-site", "same-origin")], &form);
        login.header("set-cookie").and_then(|cookie| cookie.split(';').next()).expect("a cookie").to_owned()
    }

    /// Visits a path of the console in a browser of Bob. The answer is not about Ann's data, and with the ids of her
    /// session, mode and app it is that of unknown ones.
    fn visit_console(&self, route: &str) {
        let cookie = self.cookie_of_bob();
        let get = |session: &str, name: &str, mode: &str| {
            let path = route.replace("{id}", session).replace("{name}", name).replace("{agent}", name);
            let path = path.replace("{mode}", mode).replace("{number}", "0");
            self.server.request("GET", &path, &[("cookie", &cookie)], "").timeless()
        };
        // Her app has another name than her agent.
        for name in [MARK, APP] {
            let answer = get(&self.session, name, "one");
            assert!(!answer.body.to_lowercase().contains(MARK), "{route}: {}", answer.body);
            // A path without ids is the same twice, and the page of the health counts requests.
            if route.contains('{') {
                assert_eq!(answer, get(UNKNOWN, "unknown", "none"), "{route}");
            }
        }
    }

    fn folder(&self) -> String {
        root(&self.sandbox)
    }
}

/// The id of a run or of its session.
fn id_of(run: &Value, key: &str) -> String {
    run[key].as_str().unwrap_or_else(|| panic!("{key} of {run}")).to_owned()
}

#[tokio::test]
async fn no_endpoint_leads_to_data_of_another_principal() {
    let mut walk = begin().await;
    for route in routes() {
        visit(&mut walk, &route).await;
    }
    // Nothing that Bob did has changed Ann's data.
    let session = walk.session.clone();
    let loaded = walk.ask_as_ann("session/list", json!({})).await.pop().unwrap();
    assert!(loaded.to_string().contains(&session), "{loaded}");
    assert!(walk.call(&walk.ann, "memory", "recall", json!({"query": CLUE})).contains(MARK));
    assert!(walk.call(&walk.ann, "apps", "list_apps", json!({})).contains(MARK));
    assert_eq!(walk.server.get(&format!("/runs/{}", id_of(&walk.run, "run_id")), &walk.ann).json(), walk.run);
}

/// Visits a route as Bob.
async fn visit(walk: &mut Walk, route: &str) {
    let (run, session) = (id_of(&walk.run, "run_id"), id_of(&walk.run, "session_id"));
    match route {
        "/healthz" | "/readyz" | "/ping" | "/openapi.json" | "/metrics" => walk.read_as_bob(route),
        "/agents" => {
            let of_ann = walk.server.get(route, &walk.ann).body;
            assert!(of_ann.contains(MARK), "she trusts the project: {of_ann}");
            walk.read_as_bob(route);
        }
        "/agents/{name}" => {
            let path = |name: &str| format!("/agents/{name}");
            assert_eq!(walk.server.get(&path("zebra-one"), &walk.ann).status, 200);
            walk.compare_http("GET", path, "zebra-one", "no-such", &Value::Null);
        }
        "/runs" => {
            // A session of Ann is unknown to Bob, so the run begins a new one under this id.
            let before = walk.model.requests().len();
            let answer = walk.post(&walk.bob, route, &new_run("what is at noon?", Some(&session)));
            assert!(answer.status == 200 && !answer.body.contains(MARK), "{answer:?}");
            let requests = json!(walk.model.requests()[before..]).to_string();
            assert!(requests.contains(CLUE) && !requests.contains(MARK), "{requests}");
        }
        "/runs/{id}" => {
            let path = |id: &str| format!("/runs/{id}");
            walk.compare_http("GET", path, &run, UNKNOWN_UUID, &Value::Null);
            let message = json!({"parts": [{"content": "allow"}]});
            let allow = json!({"mode": "sync", "await_resume": {"type": "message", "message": message}});
            walk.compare_http("POST", path, &run, UNKNOWN_UUID, &allow);
        }
        "/runs/{id}/cancel" => {
            walk.compare_http("POST", |id| format!("/runs/{id}/cancel"), &run, UNKNOWN_UUID, &Value::Null);
        }
        "/runs/{id}/events" => {
            walk.compare_http("GET", |id| format!("/runs/{id}/events"), &run, UNKNOWN_UUID, &Value::Null);
        }
        "/sessions/{id}" => {
            // The route before has given Bob a session with the id of the first run.
            let run = walk.post(&walk.ann, "/runs", &new_run("another zebra at noon", None)).json();
            let other = id_of(&run, "session_id");
            assert_eq!(walk.server.get(&format!("/sessions/{other}"), &walk.ann).status, 200);
            walk.compare_http("GET", |id| format!("/sessions/{id}"), &other, UNKNOWN_UUID, &Value::Null);
        }
        "/acp" => {
            visit_connection(walk);
            for request in acp_requests() {
                visit_acp(walk, &request).await;
            }
        }
        "/mcp/{*path}" => {
            for endpoint in mcp_endpoints() {
                visit_mcp(walk, &endpoint);
            }
        }
        "/.well-known/agent-card.json" => walk.read_as_bob(route),
        // This server has no issuer to name.
        "/.well-known/oauth-protected-resource" => assert_eq!(walk.server.get(route, &walk.bob).status, 404),
        "/.well-known/oauth-protected-resource/{*resource}" => {
            let path = |mode: &str| format!("/.well-known/oauth-protected-resource/mcp/{mode}");
            walk.compare_http("GET", path, "zebra/one", "no/such", &Value::Null);
        }
        "/a2a/{agent}" => {
            walk.compare_http("POST", |agent| format!("/a2a/{agent}"), "zebra-one", "no-such", &Value::Null);
            visit_a2a(walk, &run, &session);
        }
        "/a2a/{agent}/.well-known/agent-card.json" => {
            let path = |agent: &str| format!("/a2a/{agent}/.well-known/agent-card.json");
            assert_eq!(walk.server.get(&path("zebra-one"), &walk.ann).status, 200);
            walk.compare_http("GET", path, "zebra-one", "no-such", &Value::Null);
            walk.read_as_bob(&path("orchestrator"));
        }
        "/" => assert_eq!(walk.server.request("GET", route, &[], "").status, 303),
        "/console/events" => visit_events(walk).await,
        route if route.starts_with("/console") => walk.visit_console(route),
        _ => panic!("the walk has no case for the route `{route}`: add one that compares two principals"),
    }
}

/// Watches a session of Ann and one of Bob in a browser of Bob, while both have a turn. Only his own is shown.
async fn visit_events(walk: &mut Walk) {
    let new = json!({"cwd": walk.folder(), "mcpServers": []});
    let own = id_of(&walk.ask_as_bob("session/new", new).await["result"], "sessionId");
    let prompt = |text: &str| json!({"sessionId": own, "prompt": [{"type": "text", "text": text}]});
    // The store has a session from its first prompt on.
    assert!(walk.ask_as_bob("session/prompt", prompt("hello")).await["result"].is_object());
    let foreign = walk.session.clone();
    let (cookie, address) = (walk.cookie_of_bob(), walk.server.address);
    let head = format!("GET /console/events?watch={foreign}&watch={own} HTTP/1.1\r\nhost: {address}\r\n");
    let mut stream = walk.server.connect();
    write!(stream, "{head}cookie: {cookie}\r\n\r\n").unwrap();
    let mut seen = String::new();
    let mut read_until = |word: &str| {
        while !seen.contains(word) {
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the stream ended before {word}: {seen}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        seen.clone()
    };
    read_until("\"kind\":\"snapshot\"");
    walk.prompt_as_ann(&foreign, "the zebra is at noon").await;
    assert!(walk.ask_as_bob("session/prompt", prompt("good morning")).await["result"].is_object());
    let seen = read_until("\"kind\":\"ended\"");
    assert!(seen.contains(&own) && !seen.contains(&foreign) && !seen.contains(MARK), "{seen}");
}

/// Asks about a task and a context of Ann over A2A as Bob.
fn visit_a2a(walk: &Walk, task: &str, context: &str) {
    let ask = |method: &str, params: Value| {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let headers = [("authorization", &*bearer(&walk.bob)), ("a2a-version", "1.0")];
        walk.server.request("POST", &format!("/a2a/{AGENT}"), &headers, &body).timeless()
    };
    let message = |task: &str| {
        let parts = json!([{"text": "allow"}]);
        json!({"message": {"messageId": "1", "role": "ROLE_USER", "taskId": task, "parts": parts}})
    };
    let named = |task: &str| json!({"id": task});
    for method in ["GetTask", "CancelTask", "SubscribeToTask"] {
        assert_eq!(ask(method, named(task)), ask(method, named(UNKNOWN_UUID)), "{method}");
    }
    assert_eq!(ask("GetTask", named(task)).json()["error"]["code"], -32001);
    for method in ["SendMessage", "SendStreamingMessage"] {
        assert_eq!(ask(method, message(task)), ask(method, message(UNKNOWN_UUID)), "{method}");
    }
    let listed = |context: &str| ask("ListTasks", json!({"contextId": context}));
    assert_eq!(listed(context), listed(UNKNOWN_UUID));
    let all = ask("ListTasks", json!({"includeArtifacts": true}));
    assert!(!all.body.contains(MARK), "{all:?}");
}

/// Uses Ann's connection over HTTP as Bob.
fn visit_connection(walk: &Walk) {
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"session/list","params":{}}"#;
    let post = |id: &str| serve_acp::post(&walk.server, &walk.bob, Some(id), list).timeless();
    assert_eq!(post(&walk.connection), post("connection-0"));
    let delete = |id: &str| serve_acp::delete(&walk.server, &walk.bob, id);
    assert_eq!(delete(&walk.connection), delete("connection-0"));
    let stream = |id: &str| {
        let headers = [
            ("authorization", &*bearer(&walk.bob)),
            ("acp-connection-id", id),
            ("acp-session-id", &walk.session),
            ("accept", "text/event-stream"),
        ];
        walk.server.request("GET", "/acp", &headers, "").timeless()
    };
    assert_eq!(stream(&walk.connection), stream("connection-0"));
    assert_eq!(serve_acp::post(&walk.server, &walk.ann, Some(&walk.connection), list).status, 202, "it is still hers");
}

/// Sends one kind of ACP request as Bob.
async fn visit_acp(walk: &mut Walk, request: &str) {
    let folder = walk.folder();
    let open = |id: &str| json!({"sessionId": id, "cwd": folder, "mcpServers": []});
    match request {
        // Bob's connection began with it, and `ask_as_bob` checks what arrives.
        "InitializeRequest" => {}
        "AuthenticateRequest" => drop(walk.ask_as_bob("authenticate", json!({"methodId": "none"})).await),
        "LogoutRequest" => drop(walk.ask_as_bob("logout", json!({})).await),
        "NewSessionRequest" => {
            let new = json!({"cwd": folder, "mcpServers": []});
            let of_ann = json!(walk.ask_as_ann("session/new", new.clone()).await).to_string();
            assert!(of_ann.contains("zebra/one"), "she trusts the project: {of_ann}");
            assert!(walk.ask_as_bob("session/new", new).await["result"].is_object());
        }
        "ListSessionsRequest" => {
            let listed = walk.ask_as_bob("session/list", json!({})).await.to_string();
            assert!(!listed.contains(&walk.session), "{listed}");
        }
        "LoadSessionRequest" => walk.compare("session/load", open).await,
        "ResumeSessionRequest" => walk.compare("session/resume", open).await,
        "ForkSessionRequest" => walk.compare("session/fork", open).await,
        "CloseSessionRequest" => walk.compare("session/close", |id| json!({"sessionId": id})).await,
        "DeleteSessionRequest" => walk.compare("session/delete", |id| json!({"sessionId": id})).await,
        "SetSessionModeRequest" => {
            walk.compare("session/set_mode", |id| json!({"sessionId": id, "modeId": "coding/qa"})).await;
        }
        "SetSessionConfigOptionRequest" => {
            let set = |id: &str| json!({"sessionId": id, "configId": "approval", "value": "deny"});
            walk.compare("session/set_config_option", set).await;
        }
        "PromptRequest" => {
            let prompt = |id: &str| json!({"sessionId": id, "prompt": [{"type": "text", "text": "what is at noon?"}]});
            walk.compare("session/prompt", prompt).await;
            visit_prompts(walk).await;
        }
        "CancelNotification" => {
            let cancel = json!({"sessionId": walk.session});
            walk.second.say(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": cancel})).await;
        }
        _ => panic!("the walk has no case for the ACP request `{request}`: add one that compares two principals"),
    }
}

/// The same prompt of both principals: what the model is given, and which calls need consent.
async fn visit_prompts(walk: &mut Walk) {
    let new = json!({"cwd": walk.folder(), "mcpServers": []});
    let opened = walk.ask_as_ann("session/new", new.clone()).await.pop().unwrap();
    let of_ann = id_of(&opened["result"], "sessionId");
    let of_bob = id_of(&walk.ask_as_bob("session/new", new).await["result"], "sessionId");
    let prompt = |session: &str, text: &str| json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});
    // Top of mind, memories, earlier sessions.
    let before = walk.model.requests().len();
    walk.prompt_as_ann(&of_ann, "what is at noon?").await;
    let given = json!(walk.model.requests()[before..]).to_string();
    assert!(given.contains("Think of the zebra"), "{given}");
    let before = walk.model.requests().len();
    let answer = walk.ask_as_bob("session/prompt", prompt(&of_bob, "what is at noon?")).await;
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    let given = json!(walk.model.requests()[before..]).to_string();
    assert!(given.contains(CLUE) && !given.contains(MARK), "{given}");
    // Consents.
    let asks = |messages: &[Value]| messages.iter().any(|message| message["method"] == "session/request_permission");
    let messages = walk.prompt_as_ann(&of_ann, "write it").await;
    assert!(!asks(&messages), "she has allowed it in this project: {messages:#?}");
    walk.count += 1;
    let params = prompt(&of_bob, "write it");
    let request = json!({"jsonrpc": "2.0", "id": walk.count, "method": "session/prompt", "params": params});
    walk.second.say(&request).await;
    let question = walk.second.wait(|message| message["method"] == "session/request_permission").await;
    let refusal = json!({"outcome": {"outcome": "cancelled"}});
    walk.second.say(&json!({"jsonrpc": "2.0", "id": question["id"], "result": refusal})).await;
    walk.second.answer(walk.count).await;
}

/// The result or the error of a call, which arrives as JSON or as an event.
fn result_of(answer: &HttpAnswer) -> String {
    let lines = answer.body.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let messages: Vec<Value> = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
    let found = messages.into_iter().find(|message: &Value| message["id"] == 2);
    found.unwrap_or_else(|| panic!("an answer in {answer:?}")).to_string()
}

/// Uses one kind of MCP endpoint as Bob.
fn visit_mcp(walk: &Walk, endpoint: &str) {
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let foreign_session = |path: &str| {
        let session = serve_mcp::begin(&walk.server, path, &walk.ann);
        let post = |id: &str| serve_mcp::post(&walk.server, path, &walk.bob, Some(id), list);
        assert_eq!(post(&session), post("no-such-session"), "{path}");
        assert_eq!(serve_mcp::post(&walk.server, path, &walk.ann, Some(&session), list).status, 200);
    };
    match endpoint {
        "Mode" => {
            foreign_session("/mcp/coding/security");
            // A mode of a project that only Ann trusts.
            let of_ann = serve_mcp::post(&walk.server, "/mcp/zebra/one", &walk.ann, None, &serve_mcp::hello());
            assert_eq!(of_ann.status, 200, "{of_ann:?}");
            let hello = |path: &str| serve_mcp::post(&walk.server, path, &walk.bob, None, &serve_mcp::hello());
            assert_eq!(hello("/mcp/zebra/one"), hello("/mcp/no/such"));
        }
        "Service" => {
            foreign_session("/mcp/services/memory");
            for (service, tool, arguments) in [
                ("memory", "recall", json!({"query": CLUE})),
                ("memory", "list_memories", json!({})),
                ("apps", "list_apps", json!({})),
            ] {
                let of_ann = walk.call(&walk.ann, service, tool, arguments.clone());
                assert!(of_ann.contains(MARK), "{service} {tool}: {of_ann}");
                let of_bob = walk.call(&walk.bob, service, tool, arguments);
                assert!(!of_bob.contains(MARK), "{service} {tool}: {of_bob}");
            }
            walk.call(&walk.bob, "memory", "forget", json!({"id": 1}));
        }
        "Agents" => {
            foreign_session("/mcp/agents");
            let ask = |session: &str| {
                let protocol = serve_mcp::begin(&walk.server, "/mcp/agents", &walk.bob);
                let arguments = json!({"prompt": "go on", "session": session});
                let params = json!({"name": "ask_goose_assistant", "arguments": arguments});
                let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}).to_string();
                let answer = serve_mcp::post(&walk.server, "/mcp/agents", &walk.bob, Some(&protocol), &call);
                assert_eq!(answer.status, 200, "{answer:?}");
                result_of(&answer).replace(session, UNKNOWN)
            };
            let foreign = ask(&walk.session);
            assert!(foreign.contains("there is no session"), "{foreign}");
            assert_eq!(foreign, ask(UNKNOWN));
        }
        _ => panic!("the walk has no case for the MCP endpoint `{endpoint}`: add one that compares two principals"),
    }
}

/// The description of the REST API names no path that the walk does not find.
#[test]
fn every_described_path_is_a_route() {
    let plain = |path: &str| Regex::new(r"\{\w+\}").unwrap().replace_all(path, "{}").into_owned();
    let known: BTreeSet<_> = routes().iter().map(|route| plain(route)).collect();
    let described: Value = serde_json::from_str(&read(repository("src/serve/rest/openapi.json"))).unwrap();
    for path in described["paths"].as_object().unwrap().keys() {
        assert!(known.contains(&plain(path)), "{path} in {known:?}");
    }
}

/// A wrong route that one principal corrects is still wrong for the other.
#[tokio::test]
async fn corrections_belong_to_a_principal() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["-a", "orchestrator"]);
    let folder = root(&sandbox);
    let text = "handle the whole ledger matter end to end";
    let route = async |socket: &mut Socket, id: u64, session: &str| {
        let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});
        let messages = socket.ask_and_collect(id, "session/prompt", prompt).await;
        let updates = messages.iter().map(|message| &message["params"]["update"]);
        let begun =
            updates.into_iter().find(|update| update["sessionUpdate"] == "tool_call" && update["name"] == "route");
        begun.map(|update| update["title"].as_str().unwrap_or_default().to_owned())
    };
    let mut sockets = Vec::new();
    for name in ["ann", "bob"] {
        let token = token(&sandbox, name, &["--root", &folder]);
        let mut socket = Socket::connect(&server, &token).await;
        let session = socket.session(&sandbox).await;
        assert_eq!(route(&mut socket, 2, &session).await.as_deref(), Some("Route to goose/assistant"), "{name}");
        sockets.push((socket, session));
    }
    let (ann, session) = &mut sockets[0];
    let mode = json!({"sessionId": session, "modeId": "coding/qa"});
    assert!(ann.ask(3, "session/set_mode", mode).await["result"].is_object());
    route(ann, 4, session).await;
    for ((socket, _), expected) in sockets.iter_mut().zip(["Route to coding/qa", "Route to goose/assistant"]) {
        let opened = socket.ask(5, "session/new", json!({"cwd": folder, "mcpServers": []})).await;
        let session = id_of(&opened["result"], "sessionId");
        assert_eq!(route(socket, 6, &session).await.as_deref(), Some(expected));
    }
}
