//! MCP endpoints of `skein serve`: the tools of a mode, one service, and agents. Real clients of both protocol eras, and
//! raw HTTP for what belongs to a token.

#![expect(clippy::expect_used, reason = "what a test cannot go on without ends it")]

use std::collections::BTreeSet;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, GetPromptRequestParams, InputRequiredResult,
    ProtocolVersion, ReadResourceRequestParams,
};
use rmcp::service::RunningService;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientServiceExt as _, RoleClient};
use serde_json::{Value, json};
use skein::network;

use crate::client::Client;
use crate::reload::write_helper;
use crate::support::mcp_client::{AnswerClient, ERAS, HeardQuestions, accepts};
use crate::support::model::{Answer, ScriptedModel, has_result};
use crate::support::serve::{HttpAnswer, Server, bearer, eventually, token};
use crate::support::{Sandbox, arguments, read, servers};

/// A connected client that allows everything it is asked.
struct Connected {
    client: RunningService<RoleClient, AnswerClient>,
    heard: HeardQuestions,
}

impl Connected {
    async fn open(server: &Server, path: &str, token: &str, version: ProtocolVersion) -> Self {
        // The client of rmcp needs a TLS library, which this installs.
        drop(network::client_builder());
        let mut config = StreamableHttpClientTransportConfig::with_uri(format!("http://{}{path}", server.address));
        config.auth_header = Some(token.to_owned());
        let (handler, heard) = AnswerClient::new(version, || accepts("allow"));
        let lifecycle = handler.lifecycle();
        let transport = StreamableHttpClientTransport::from_config(config);
        let client = handler.serve_with_lifecycle(transport, lifecycle).await.expect("served");
        Self { client, heard }
    }

    async fn tools(&self) -> BTreeSet<String> {
        let listed = self.client.list_all_tools().await.expect("tools");
        listed.iter().map(|tool| tool.name.to_string()).collect()
    }

    async fn call(&self, tool: &'static str, with: Value) -> CallToolResult {
        let call = CallToolRequestParams::new(tool).with_arguments(arguments(with));
        self.client.call_tool(call).await.expect("a result")
    }

    /// Whether a call is refused, in either way.
    async fn refuses(&self, tool: &'static str, with: Value) -> bool {
        let call = CallToolRequestParams::new(tool).with_arguments(arguments(with));
        match self.client.call_tool(call).await {
            Ok(result) => result.is_error == Some(true),
            Err(_) => true,
        }
    }

    fn questions(&self) -> usize {
        std::mem::take(&mut *self.heard.lock().expect("what was heard")).len()
    }
}

fn text(result: &CallToolResult) -> String {
    let texts = result.content.iter().filter_map(|block| block.as_text().map(|text| text.text.clone()));
    texts.collect::<Vec<_>>().join("\n")
}

fn root(sandbox: &Sandbox) -> String {
    sandbox.path("project").to_string_lossy().into_owned()
}

fn set(names: Vec<String>) -> BTreeSet<String> {
    names.into_iter().collect()
}

pub(crate) fn hello() -> String {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}})
    .to_string()
}

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;

/// Sends a message to an endpoint, in a session if there is one.
fn send(server: &Server, method: &str, path: &str, token: &str, session: Option<&str>, body: &str) -> HttpAnswer {
    let bearer = bearer(token);
    let accept = ("accept", "application/json, text/event-stream");
    let mut headers = vec![("content-type", "application/json"), accept, ("authorization", bearer.as_str())];
    headers.extend(session.map(|id| ("mcp-session-id", id)));
    server.request(method, path, &headers, body).timeless()
}

pub(crate) fn post(server: &Server, path: &str, token: &str, session: Option<&str>, body: &str) -> HttpAnswer {
    send(server, "POST", path, token, session, body)
}

/// Begins a session of the protocol.
pub(crate) fn begin(server: &Server, path: &str, token: &str) -> String {
    let answer = post(server, path, token, None, &hello());
    assert_eq!(answer.status, 200, "{answer:?}");
    let session = answer.header("mcp-session-id").expect("a session").to_owned();
    let ready = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert_eq!(post(server, path, token, Some(&session), ready).status, 202);
    session
}

#[tokio::test]
async fn a_mode_has_the_tools_that_it_has_on_stdio() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "as it is\n");
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let (mut stdio, _) = Client::connect(sandbox.command(&["mcp", "-a", "coding/security"]));
    let expected = set(stdio.tools());
    assert!(expected.contains("developer__read_file") && !expected.contains("developer__write_file"), "{expected:?}");
    for version in ERAS {
        let client = Connected::open(&server, "/mcp/coding/security", &token, version.clone()).await;
        assert_eq!(client.tools().await, expected, "{version}");
        let file = client.call("developer__read_file", json!({"path": "a.txt"})).await;
        assert!(text(&file).contains("as it is"), "{version}: {file:?}");
        assert!(client.refuses("developer__write_file", json!({"path": "b.txt", "content": "x"})).await, "{version}");
    }
    assert!(!sandbox.path("project/b.txt").exists());
}

#[tokio::test]
async fn a_service_keeps_the_names_of_its_tools() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox), "--modes", "coding/qa", "--services", "dev*"]);
    let (mut stdio, _) = Client::connect(sandbox.command(&["mcp", "--service", "developer"]));
    let expected = set(stdio.tools());
    assert!(expected.contains("write_file"), "{expected:?}");
    for version in ERAS {
        let client = Connected::open(&server, "/mcp/services/developer", &token, version.clone()).await;
        assert_eq!(client.tools().await, expected, "{version}");
        let name = format!("{version}.txt");
        let made = client.call("write_file", json!({"path": name, "content": "made\n"})).await;
        assert_ne!(made.is_error, Some(true), "{version}: {made:?}");
        assert_eq!(read(sandbox.path("project").join(name)), "made\n", "relative to the first root");
    }
}

/// `ask` becomes `auto`, because the client asks its own user. Stricter levels of the token stay.
#[tokio::test]
async fn the_level_of_the_token_applies_first() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    for (level, runs) in [("ask", true), ("smart", true), ("read-only", false), ("deny", false)] {
        let token = token(&sandbox, "a", &["--root", &root(&sandbox), "--approval", level]);
        let name = format!("{level}.txt");
        for (path, tool) in
            [("/mcp/coding/backend", "developer__write_file"), ("/mcp/services/developer", "write_file")]
        {
            let client = Connected::open(&server, path, &token, ProtocolVersion::V_2025_11_25).await;
            let with = json!({"path": name, "content": "x", "overwrite": true});
            assert_eq!(client.refuses(tool, with).await, !runs, "{level} {path}");
            assert_eq!(client.questions(), 0, "{level} {path}");
        }
        assert_eq!(sandbox.path("project").join(name).exists(), runs, "{level}");
    }
}

/// Tools work below the roots of the token and nowhere else.
#[tokio::test]
async fn files_outside_the_roots_are_out_of_reach() {
    let sandbox = Sandbox::new();
    sandbox.write("other/secret.txt", "secret\n");
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let client = Connected::open(&server, "/mcp/services/developer", &token, ProtocolVersion::V_2025_11_25).await;
    for path in [sandbox.path("other/secret.txt"), "../other/secret.txt".into()] {
        assert!(client.refuses("read_file", json!({"path": path})).await, "{}", path.display());
    }
}

/// Without a root, each endpoint has an empty folder, which no other token sees.
#[tokio::test]
async fn without_a_root_tools_work_in_an_empty_folder() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let (one, two) = (token(&sandbox, "one", &[]), token(&sandbox, "two", &[]));
    let first = Connected::open(&server, "/mcp/services/developer", &one, ProtocolVersion::V_2025_11_25).await;
    let made = first.call("write_file", json!({"path": "made.txt", "content": "made\n"})).await;
    assert_ne!(made.is_error, Some(true), "{made:?}");
    let second = Connected::open(&server, "/mcp/services/developer", &two, ProtocolVersion::V_2025_11_25).await;
    assert!(second.refuses("read_file", json!({"path": "made.txt"})).await);
    assert!(!sandbox.path("project/made.txt").exists());
}

/// What a token does not reach is answered like what does not exist, byte for byte.
#[test]
fn an_endpoint_outside_the_token_does_not_exist() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox), "--modes", "coding/qa"]);
    let unknown = post(&server, "/mcp/no/such", &token, None, &hello());
    assert_eq!(unknown.status, 404);
    for path in [
        "/mcp/coding/backend",
        "/mcp/goose/assistant",
        "/mcp/goose/judge",
        "/mcp/services/developer",
        "/mcp/services/no-such",
        "/mcp/services/a/b",
        "/mcp/coding",
        "/mcp/coding/qa/more",
    ] {
        assert_eq!(post(&server, path, &token, None, &hello()), unknown, "{path}");
    }
    begin(&server, "/mcp/coding/qa", &token);
    let whole = crate::support::serve::token(&sandbox, "b", &["--root", &root(&sandbox)]);
    assert_eq!(post(&server, "/mcp/goose/judge", &whole, None, &hello()), unknown, "an internal mode");
    begin(&server, "/mcp/services/developer", &whole);
}

/// Another token gets the answer of a session that never existed, also one of the same principal.
#[test]
fn a_session_of_the_protocol_belongs_to_its_token() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let folder = root(&sandbox);
    let flags = ["--root", folder.as_str()];
    let (own, same_name, other) =
        (token(&sandbox, "a", &flags), token(&sandbox, "a", &flags), token(&sandbox, "b", &flags));
    let path = "/mcp/coding/security";
    let session = begin(&server, path, &own);
    for stranger in [&same_name, &other] {
        for method in ["POST", "GET", "DELETE"] {
            let body = if method == "POST" { LIST } else { "" };
            let unknown = send(&server, method, path, stranger, Some("no-such-session"), body);
            assert_eq!(unknown.status, 404, "{method}");
            assert_eq!(send(&server, method, path, stranger, Some(&session), body), unknown, "{method}");
        }
    }
    let elsewhere = post(&server, "/mcp/coding/qa", &own, Some(&session), LIST);
    assert_eq!(elsewhere.status, 404, "a session belongs to one endpoint");
    assert_eq!(post(&server, path, &own, Some(&session), LIST).status, 200);
    assert_eq!(send(&server, "DELETE", path, &own, Some(&session), "").status, 202);
    assert_eq!(post(&server, path, &own, Some(&session), LIST).status, 404, "it is gone");
}

#[test]
fn an_idle_session_expires_and_a_stream_keeps_it() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--idle", "4s"]);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let path = "/mcp/coding/security";
    let (idle, kept) = (begin(&server, path, &token), begin(&server, path, &token));
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\naccept: text/event-stream\r\n\
         mcp-session-id: {kept}\r\n\r\n",
        server.address
    );
    let mut stream = server.connect();
    std::io::Write::write_all(&mut stream, head.as_bytes()).expect("sent");
    // Asking for a session would use it.
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(post(&server, path, &token, Some(&idle), LIST).status, 404);
    assert_eq!(post(&server, path, &token, Some(&kept), LIST).status, 200);
}

#[test]
fn a_revoked_token_ends_its_sessions() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let path = "/mcp/coding/security";
    let session = begin(&server, path, &token);
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\naccept: text/event-stream\r\n\
         mcp-session-id: {session}\r\nconnection: close\r\n\r\n",
        server.address
    );
    let mut stream = server.connect();
    std::io::Write::write_all(&mut stream, head.as_bytes()).expect("sent");
    let id = token.split('_').nth(1).expect("an id");
    assert_eq!(sandbox.skein(&["token", "revoke", id]).code, 0);
    eventually("the token is refused", || post(&server, path, &token, Some(&session), LIST).status == 401);
    // The stream ends, so that all of it can be read.
    assert_eq!(HttpAnswer::read(&mut stream).status, 200);
}

/// New sessions have the tools of the changed mode. The tools of an open session do not change.
#[test]
fn a_changed_mode_applies_to_new_sessions() {
    let sandbox = Sandbox::new();
    write_helper(&sandbox, "config/agents", "[read, edit]");
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let path = "/mcp/helper/main";
    let can_write = |session: &str| {
        let answer = post(&server, path, &token, Some(session), LIST);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body.contains("developer__write_file")
    };
    let old = begin(&server, path, &token);
    write_helper(&sandbox, "config/agents", "[read]");
    let new = begin(&server, path, &token);
    assert_eq!((can_write(&old), can_write(&new)), (true, false));
    assert_eq!(send(&server, "DELETE", path, &token, Some(&old), "").status, 202);
    std::fs::remove_file(sandbox.path("config/agents/helper.yaml")).expect("removed");
    assert_eq!(post(&server, path, &token, None, &hello()).status, 404, "the mode is gone");
    assert!(!can_write(&new), "its session goes on");
}

#[test]
fn open_endpoints_count_as_sessions() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--idle", "4s"]);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox), "--sessions", "1"]);
    begin(&server, "/mcp/coding/security", &token);
    let refused = post(&server, "/mcp/coding/qa", &token, None, &hello());
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.header("retry-after").is_some());
    eventually("the unused endpoint has closed", || {
        post(&server, "/mcp/coding/qa", &token, None, &hello()).status == 200
    });
}

/// Wants to write a file, and says what came of it.
fn writer() -> ScriptedModel {
    ScriptedModel::new(|request| {
        if has_result(request) {
            return Answer::Says(vec!["done".to_owned()]);
        }
        let arguments = json!({"path": "made.txt", "content": "made\n"});
        Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
    })
}

#[tokio::test]
async fn agents_are_tools_and_their_questions_are_elicitations() {
    for version in ERAS {
        let (sandbox, model) = (Sandbox::new(), writer());
        let server = Server::launch(model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])));
        let limited = token(&sandbox, "a", &["--root", &root(&sandbox), "--modes", "coding/*", "--approval", "ask"]);
        let client = Connected::open(&server, "/mcp/agents", &limited, version.clone()).await;
        let tools = client.tools().await;
        assert!(tools.contains("ask_coding_backend"), "{tools:?}");
        assert!(tools.iter().all(|name| name.starts_with("ask_coding_")), "{tools:?}");
        let done = client.call("ask_coding_backend", json!({"prompt": "write it"})).await;
        assert_eq!(done.is_error, Some(false), "{version}: {done:?}");
        assert_eq!(client.questions(), 1, "{version}");
        assert_eq!(read(sandbox.path("project/made.txt")), "made\n", "{version}");
        let session = done.structured_content.expect("an outcome")["session"].as_str().expect("an id").to_owned();
        let again = client.call("ask_coding_backend", json!({"prompt": "go on", "session": session})).await;
        assert_eq!(again.is_error, Some(false), "{version}: {again:?}");
        // The session does not exist for another principal.
        let other = token(&sandbox, "b", &["--root", &root(&sandbox)]);
        let stranger = Connected::open(&server, "/mcp/agents", &other, version.clone()).await;
        let unknown = stranger.call("ask_coding_backend", json!({"prompt": "go on", "session": session})).await;
        assert!(text(&unknown).contains("there is no session"), "{version}: {unknown:?}");
    }
}

/// Adds a service that asks the user.
pub(crate) fn write_talker(sandbox: &Sandbox, flags: &[&str]) {
    let program = json!({"command": servers::mcp_echo(), "args": flags});
    let manifest = json!({
        "version": 1, "kind": "service", "name": "talker", "description": "Asks the user.",
        "transport": {"stdio": program}, "groups": {"talk": ["*"]},
    });
    sandbox.write("config/services/talker.json", &manifest.to_string());
}

/// A form of a service and a permission request both reach the client that made the call, in both eras. The other client
/// of the same token hears nothing.
#[tokio::test]
async fn questions_of_tools_reach_the_client_that_calls() {
    for version in ERAS {
        let sandbox = Sandbox::new();
        write_talker(&sandbox, &["--talks"]);
        let server = Server::start(&sandbox, &[]);
        let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
        let client = Connected::open(&server, "/mcp/services/talker", &token, version.clone()).await;
        let other = Connected::open(&server, "/mcp/services/talker", &token, version.clone()).await;
        let asked = client.call("ask", json!({"what": "form"})).await;
        assert!(text(&asked).contains("accept"), "{version}: {asked:?}");
        assert_eq!((client.questions(), other.questions()), (1, 0), "{version}");

        let developer = Connected::open(&server, "/mcp/services/developer", &token, version.clone()).await;
        let path = ".agents/skills/made/SKILL.md";
        let made = developer.call("write_file", json!({"path": path, "content": "made\n"})).await;
        assert_eq!(developer.questions(), 1, "{version}: a protected path needs consent: {made:?}");
        assert_eq!(read(sandbox.path("project").join(path)), "made\n", "{version}");
    }
}

/// A prompt and a resource may need an answer of the user, too.
#[tokio::test]
async fn questions_of_prompts_and_resources_reach_the_client() {
    for version in ERAS {
        let sandbox = Sandbox::new();
        write_talker(&sandbox, &["--talks", "--prompts", "--resources"]);
        let server = Server::start(&sandbox, &[]);
        let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
        let client = Connected::open(&server, "/mcp/services/talker", &token, version.clone()).await;
        let prompt = GetPromptRequestParams::new("show").with_arguments(arguments(json!({"file": "ask"})));
        let prompt = client.client.get_prompt(prompt).await.expect("a prompt");
        assert!(json!(prompt.messages).to_string().contains("accept"), "{version}: {prompt:?}");
        assert_eq!(client.questions(), 1, "{version}");
        let page = ReadResourceRequestParams::new("echo://pages/ask");
        let page = client.client.read_resource(page).await.expect("a resource");
        assert!(json!(page.contents).to_string().contains("accept"), "{version}: {page:?}");
        assert_eq!(client.questions(), 1, "{version}");
        // Those without a question work as before.
        let plain = client.client.read_resource(ReadResourceRequestParams::new("echo://page")).await;
        assert!(json!(plain.expect("a resource").contents).to_string().contains("the text of"), "{version}");
        assert_eq!(client.questions(), 0, "{version}");
    }
}

/// A client that calls on and never answers gets an error, and other principals notice nothing.
#[tokio::test]
async fn calls_that_wait_for_answers_are_limited() {
    let sandbox = Sandbox::new();
    write_talker(&sandbox, &["--talks", "--newer"]);
    let server = Server::start(&sandbox, &[]);
    let open = async |name: &str| {
        let token = token(&sandbox, name, &["--root", &root(&sandbox)]);
        Connected::open(&server, "/mcp/services/talker", &token, ProtocolVersion::V_2026_07_28).await
    };
    let ask = async |client: &Connected| {
        let call = CallToolRequestParams::new("ask").with_arguments(arguments(json!({"what": "form"})));
        client.client.call_tool_once(call).await
    };
    let (client, again) = (open("a").await, open("a").await);
    for number in 0..32 {
        let asked = ask(if number % 2 == 0 { &client } else { &again }).await;
        assert!(matches!(asked, Ok(CallToolResponse::InputRequired(_))), "{number}: {asked:?}");
    }
    let refused = ask(&client).await.expect_err("too many calls wait").to_string();
    assert!(refused.contains("32 of your calls wait for answers: answer one of them"), "{refused}");
    let other = open("b").await;
    assert!(
        matches!(ask(&other).await, Ok(CallToolResponse::InputRequired(_))),
        "another principal has its own places"
    );
}

/// Asks an agent that wants to write a file, in the newer era. Returns the questions and their state.
async fn ask_writer(client: &Connected) -> InputRequiredResult {
    match client.client.call_tool_once(write_it()).await {
        Ok(CallToolResponse::InputRequired(required)) => required,
        other => panic!("a question: {other:?}"),
    }
}

fn write_it() -> CallToolRequestParams {
    CallToolRequestParams::new("ask_coding_backend").with_arguments(arguments(json!({"prompt": "write it"})))
}

/// The request with the answers to questions.
fn answered(required: &InputRequiredResult, answers: impl Fn(&str) -> Value) -> CallToolRequestParams {
    let mut call = write_it();
    call.request_state = required.request_state.clone();
    let keys = required.input_requests.iter().flatten().map(|(key, _)| key.clone());
    call.input_responses = Some(keys.map(|key| (key.clone(), answers(&key))).collect());
    call
}

#[tokio::test]
async fn a_question_can_be_answered_during_the_shutdown() {
    let (sandbox, model) = (Sandbox::new(), writer());
    let serve = ["serve", "--listen", "127.0.0.1:0", "--drain", "10m"];
    let mut server = Server::launch(model.offered_to(sandbox.command(&serve)));
    let token = token(&sandbox, "a", &["--root", &root(&sandbox), "--approval", "ask"]);
    let client = Connected::open(&server, "/mcp/agents", &token, ProtocolVersion::V_2026_07_28).await;
    let required = ask_writer(&client).await;
    server.interrupt();
    eventually("the shutdown has begun", || server.request("GET", "/readyz", &[], "").status == 503);
    client.client.call_tool_once(write_it()).await.expect_err("no new turn begins");
    let done = client.client.call_tool_once(answered(&required, |_| json!(accepts("allow")))).await;
    assert!(matches!(&done, Ok(CallToolResponse::Complete(result)) if result.is_error == Some(false)), "{done:?}");
    assert_eq!(read(sandbox.path("project/made.txt")), "made\n");
    assert_eq!(server.wait(), 0, "the server does not wait for more");
}

/// Turns that wait share the places of a principal with calls of tools.
#[tokio::test]
async fn turns_that_wait_for_answers_are_limited() {
    let (sandbox, model) = (Sandbox::new(), writer());
    let server = Server::launch(model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])));
    let token = token(&sandbox, "a", &["--root", &root(&sandbox), "--approval", "ask"]);
    let client = Connected::open(&server, "/mcp/agents", &token, ProtocolVersion::V_2026_07_28).await;
    let mut waiting = Vec::new();
    for _ in 0..32 {
        waiting.push(ask_writer(&client).await);
    }
    let refused = client.client.call_tool_once(write_it()).await.expect_err("too many turns wait").to_string();
    assert!(refused.contains("32 of your calls wait for answers: answer one of them"), "{refused}");
    let line = "skein_sessions{state=\"running\"} 32\n";
    eventually("the refused turn has ended", || server.get("/metrics", &token).body.contains(line));
    let done = client.client.call_tool_once(answered(&waiting[0], |_| json!(accepts("allow")))).await;
    assert!(matches!(done, Ok(CallToolResponse::Complete(_))), "{done:?}");
    ask_writer(&client).await;
}

/// Answers belong to the tool that was called, and a question without an answer is asked again.
#[tokio::test]
async fn answers_to_an_agent_must_fit_its_questions() {
    let (sandbox, model) = (Sandbox::new(), writer());
    let server = Server::launch(model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])));
    let token = token(&sandbox, "a", &["--root", &root(&sandbox), "--approval", "ask"]);
    let client = Connected::open(&server, "/mcp/agents", &token, ProtocolVersion::V_2026_07_28).await;
    let required = ask_writer(&client).await;
    let allow = |_: &str| json!(accepts("allow"));
    let mut elsewhere = answered(&required, allow);
    elsewhere.name = "ask_coding_qa".into();
    let refused = client.client.call_tool_once(elsewhere).await.expect_err("another tool").to_string();
    assert!(refused.contains("nothing waits for these answers"), "{refused}");
    let mut empty = answered(&required, allow);
    empty.input_responses = None;
    let again = match client.client.call_tool_once(empty).await {
        Ok(CallToolResponse::InputRequired(again)) => again,
        other => panic!("the question again: {other:?}"),
    };
    assert_eq!(json!(again.input_requests), json!(required.input_requests));
    assert!(!sandbox.path("project/made.txt").exists());
    let done = client.client.call_tool_once(answered(&again, allow)).await;
    assert!(matches!(&done, Ok(CallToolResponse::Complete(result)) if result.is_error == Some(false)), "{done:?}");
    assert_eq!(read(sandbox.path("project/made.txt")), "made\n");
}

/// A folder outside the roots is refused without a question, and the answer does not say whether it exists.
#[tokio::test]
async fn agents_stay_below_the_roots_of_the_token() {
    let (sandbox, model) = (Sandbox::new(), writer());
    sandbox.write("other/a.txt", "a\n");
    let server = Server::launch(model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])));
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let client = Connected::open(&server, "/mcp/agents", &token, ProtocolVersion::V_2025_11_25).await;
    for folder in ["other", "missing"] {
        let folder = sandbox.path(folder);
        let refused = client.call("ask_coding_backend", json!({"prompt": "write it", "cwd": folder})).await;
        assert_eq!(refused.is_error, Some(true), "{refused:?}");
        let expected = format!("`{}` is not below a folder of your token", folder.display());
        assert!(text(&refused).contains(&expected), "{refused:?}");
    }
    assert_eq!(client.questions(), 0);
    assert!(!sandbox.path("other/made.txt").exists());
}

#[test]
fn mcp_needs_a_token() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let accept = ("accept", "application/json, text/event-stream");
    for path in ["/mcp/agents", "/mcp/coding/qa", "/mcp/services/developer", "/mcp/no/such"] {
        let answer = server.request("POST", path, &[("content-type", "application/json"), accept], &hello());
        assert_eq!(answer.status, 401, "{path}");
    }
}
