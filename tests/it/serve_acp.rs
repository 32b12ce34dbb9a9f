//! ACP connections of `skein serve` beyond what stdio has: whose they are, how large a message may be, what happens to a
//! client that is gone, and how they end.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use skein::agents::Event;
use skein::conversation::{Content, Message as StoredMessage, MessagePart, Role};
use skein::principal::{Principal, SessionFiles, SessionGrant, TokenLimits};
use skein::store::{NewEvent, NewSession, SessionStore};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::support::Sandbox;
use crate::support::model::{Answer, ScriptedModel};
use crate::support::serve::{HttpAnswer, PATIENCE, Server, bearer, eventually, token};

const JSON: (&str, &str) = ("content-type", "application/json");

pub(crate) fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {"protocolVersion": 1, "clientCapabilities": {}}})
}

/// Posts a message, on a connection if there is one.
pub(crate) fn post(server: &Server, token: &str, connection: Option<&str>, message: &str) -> HttpAnswer {
    let bearer = bearer(token);
    let mut headers = vec![JSON, ("authorization", bearer.as_str())];
    headers.extend(connection.map(|id| ("acp-connection-id", id)));
    server.request("POST", "/acp", &headers, message)
}

/// Opens a connection over HTTP.
pub(crate) fn open(server: &Server, token: &str) -> String {
    let answer = post(server, token, None, &initialize().to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["result"]["protocolVersion"], 1);
    answer.header("acp-connection-id").expect("a connection").to_owned()
}

pub(crate) fn delete(server: &Server, token: &str, connection: &str) -> HttpAnswer {
    let headers = [("authorization", &*bearer(token)), ("acp-connection-id", connection)];
    server.request("DELETE", "/acp", &headers, "").timeless()
}

/// A client over WebSocket.
pub(crate) struct Socket(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Socket {
    pub(crate) async fn connect(server: &Server, token: &str) -> Self {
        Self(tokio_tungstenite::connect_async(Self::request(server, token)).await.expect("a WebSocket").0)
    }

    /// Connects with a small receive buffer: what the client does not read soon waits at the server.
    async fn connect_with_small_buffer(server: &Server, token: &str) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 << 10).unwrap();
        let stream = socket.connect(server.address).await.expect("a connection");
        let stream = MaybeTlsStream::Plain(stream);
        Self(tokio_tungstenite::client_async(Self::request(server, token), stream).await.expect("a WebSocket").0)
    }

    fn request(server: &Server, token: &str) -> Request {
        let mut request = format!("ws://{}/acp", server.address).into_client_request().unwrap();
        request.headers_mut().insert("authorization", bearer(token).parse().unwrap());
        request
    }

    pub(crate) async fn say(&mut self, message: &Value) {
        self.0.send(Message::text(message.to_string())).await.expect("the server reads");
    }

    pub(crate) async fn ask(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        self.answer(id).await
    }

    pub(crate) async fn answer(&mut self, id: u64) -> Value {
        self.wait(|message| message["id"] == id && message.get("method").is_none()).await
    }

    pub(crate) async fn wait(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        let waiting = async {
            loop {
                let Some(Ok(Message::Text(text))) = self.0.next().await else { panic!("the connection ended") };
                let message: Value = serde_json::from_str(&text).expect("JSON");
                if fits(&message) {
                    return message;
                }
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("a message in time")
    }

    /// Sends a request; all messages until its answer, which is the last one.
    pub(crate) async fn ask_and_collect(&mut self, id: u64, method: &str, params: Value) -> Vec<Value> {
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        let mut messages = Vec::new();
        while !messages.last().is_some_and(|last: &Value| last["id"] == id && last.get("method").is_none()) {
            messages.push(self.wait(|_| true).await);
        }
        messages
    }

    /// The code with which the server closes the connection.
    pub(crate) async fn close_code(&mut self) -> u16 {
        let waiting = async {
            loop {
                match self.0.next().await {
                    Some(Ok(Message::Close(Some(frame)))) => return frame.code.into(),
                    Some(Ok(_)) => {}
                    other => panic!("a close frame, not {other:?}"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("the connection closes in time")
    }

    /// Waits for the end of the prompt 9. `None` if the connection ends first.
    pub(crate) async fn end(&mut self) -> Option<Value> {
        while let Some(Ok(message)) = self.0.next().await {
            let Message::Text(text) = message else { continue };
            let message: Value = serde_json::from_str(&text).expect("JSON");
            if message["id"] == 9 && message.get("method").is_none() {
                return Some(message);
            }
        }
        None
    }

    /// Initializes, and opens a session in the project.
    pub(crate) async fn session(&mut self, sandbox: &Sandbox) -> String {
        self.say(&initialize()).await;
        assert!(self.answer(0).await["result"].is_object());
        let opened = self.ask(1, "session/new", json!({"cwd": sandbox.path("project"), "mcpServers": []})).await;
        opened["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("a session, not {opened}")).to_owned()
    }
}

pub(crate) fn root(sandbox: &Sandbox) -> String {
    sandbox.path("project").to_string_lossy().into_owned()
}

/// A server whose model says one piece of its answer, and the other one when it is told to.
fn counting_server(sandbox: &Sandbox) -> (Server, mpsc::Sender<()>) {
    let (go, wait) = mpsc::channel();
    let wait = Arc::new(Mutex::new(wait));
    let pieces = || vec!["one ".to_owned(), "two".to_owned()];
    let model = ScriptedModel::new(move |_| Answer::Paced { pieces: pieces(), go: Arc::clone(&wait) });
    let command = sandbox.command(&["serve", "-a", "goose", "--listen", "127.0.0.1:0"]);
    (Server::launch(model.offered_to(command)), go)
}

/// A connection takes memory until it is closed or idle, also without an open request.
#[test]
fn too_many_acp_connections_over_http_must_wait() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--connections", "8"]);
    let own = token(&sandbox, "a", &[]);
    let connections: Vec<_> = (0..8).map(|_| open(&server, &own)).collect();
    let refused = post(&server, &own, None, &initialize().to_string());
    assert_eq!((refused.status, refused.body.as_str()), (503, "too many ACP connections\n"));
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(delete(&server, &own, &connections[0]).status, 202);
    eventually("there is room again", || post(&server, &own, None, &initialize().to_string()).status == 200);
}

/// Another token gets the answer of an id that never existed, byte for byte, also one of the same principal.
#[test]
fn a_connection_belongs_to_its_token() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let (own, same_name, other) = (token(&sandbox, "a", &[]), token(&sandbox, "a", &[]), token(&sandbox, "b", &[]));
    let connection = open(&server, &own);
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"session/list","params":{}}"#;
    for stranger in [&same_name, &other] {
        let unknown = post(&server, stranger, Some("connection-0"), list).timeless();
        assert_eq!(unknown.status, 404);
        assert_eq!(post(&server, stranger, Some(&connection), list).timeless(), unknown);
        assert_eq!(delete(&server, stranger, &connection), delete(&server, stranger, "connection-0"));
        let stream = |id: &str| {
            let headers =
                [("authorization", &*bearer(stranger)), ("acp-connection-id", id), ("accept", "text/event-stream")];
            server.request("GET", "/acp", &headers, "").timeless()
        };
        assert_eq!(stream(&connection), stream("connection-0"));
    }
    assert_eq!(post(&server, &own, Some(&connection), list).status, 202);
    assert_eq!(delete(&server, &own, &connection).status, 202);
    assert_eq!(post(&server, &own, Some(&connection), list).status, 404, "it is gone");
}

#[test]
fn requests_of_http_clients_have_a_form() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "a", &[]);
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"session/list","params":{}}"#;
    assert_eq!(post(&server, &token, None, list).status, 400, "a connection begins with initialize");
    assert_eq!(post(&server, &token, None, "{nope").status, 400);
    let bearer = bearer(&token);
    let plain = [("content-type", "text/plain"), ("authorization", bearer.as_str())];
    assert_eq!(server.request("POST", "/acp", &plain, list).status, 415);
    assert_eq!(server.request("GET", "/acp", &[("authorization", &bearer)], "").status, 406);
    let events = [("authorization", bearer.as_str()), ("accept", "text/event-stream")];
    assert_eq!(server.request("GET", "/acp", &events, "").status, 400, "without a connection");
    let put = server.request("PUT", "/acp", &[("authorization", &bearer)], "");
    assert_eq!((put.status, put.header("allow")), (405, Some("DELETE, GET, POST")));
    let connection = open(&server, &token);
    let mixed = [JSON, ("authorization", &bearer), ("acp-connection-id", &connection), ("acp-session-id", "other")];
    let prompt = r#"{"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"one","prompt":[]}}"#;
    assert_eq!(server.request("POST", "/acp", &mixed, prompt).status, 400);
    let failed = post(&server, &token, None, r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#);
    assert_eq!((failed.status, failed.header("acp-connection-id")), (200, None));
    assert_eq!(failed.json()["error"]["code"], -32602);
}

/// Malformed messages get the protocol's error, and the connection goes on.
#[tokio::test]
async fn malformed_messages_leave_the_connection_open() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let mut socket = Socket::connect(&server, &token(&sandbox, "a", &[])).await;
    socket.say(&initialize()).await;
    socket.answer(0).await;
    for (text, code) in [("{nope", -32700), ("7", -32600), ("", -32700), ("[]", -32600)] {
        socket.0.send(Message::text(text)).await.unwrap();
        let error = socket.wait(|message| message.get("error").is_some()).await;
        assert_eq!(error["error"]["code"], code, "{text}");
    }
    let unknown = socket.ask(5, "no/such", json!({})).await;
    assert_eq!(unknown["error"]["code"], -32601);
    let wrong = socket.ask(6, "session/new", json!({"cwd": 7})).await;
    assert_eq!(wrong["error"]["code"], -32602);
    socket.0.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    assert!(socket.ask(7, "session/list", json!({})).await["result"].is_object(), "binary messages are ignored");
}

#[tokio::test]
async fn a_message_that_is_too_large_closes_the_connection() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "a", &[]);
    let mut socket = Socket::connect(&server, &token).await;
    socket.say(&initialize()).await;
    socket.answer(0).await;
    socket.0.send(Message::text("x".repeat((16 << 20) + 1))).await.unwrap();
    assert_eq!(socket.close_code().await, 1009);
    assert_eq!(server.get("/agents", &token).status, 200);
}

/// A client that stops reading loses its connection; another client of the same server notices nothing.
#[tokio::test]
async fn a_client_that_stops_reading_loses_its_connection() {
    let sandbox = Sandbox::new();
    let many = || (0..4000).map(|_| "word ".repeat(1000)).collect();
    let model = ScriptedModel::new(move |request| match request.to_string().contains("a flood") {
        true => Answer::Says(many()),
        false => Answer::Says(vec!["done".to_owned()]),
    });
    let server =
        Server::launch(model.offered_to(sandbox.command(&["serve", "-a", "goose", "--listen", "127.0.0.1:0"])));
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let mut deaf = Socket::connect(&server, &token).await;
    let session = deaf.session(&sandbox).await;
    let prompt = |session: &str, text: &str| json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});
    let flood = prompt(&session, "a flood");
    deaf.say(&json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": flood})).await;
    let mut other = Socket::connect(&server, &token).await;
    let session = other.session(&sandbox).await;
    assert_eq!(other.ask(2, "session/prompt", prompt(&session, "hello")).await["result"]["stopReason"], "end_turn");
    let connections = || server.get("/metrics", &token).body.contains("skein_connections{kind=\"acp_websocket\"} 1\n");
    eventually("the connection of the deaf client is closed", connections);
}

/// Reads an event stream until the answer to a request has arrived.
fn read_answer(stream: &mut std::net::TcpStream, id: u64) -> Value {
    let mut text = String::new();
    loop {
        let mut buffer = [0; 4096];
        let count = std::io::Read::read(stream, &mut buffer).unwrap();
        assert!(count > 0, "the stream ended: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
        let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let mut messages = events.filter_map(|data| serde_json::from_str::<Value>(data).ok());
        if let Some(answer) = messages.find(|message| message["id"] == id) {
            return answer;
        }
    }
}

/// A model that says 6 MB.
fn flood() -> ScriptedModel {
    let many = || (0..1200).map(|_| "word ".repeat(1000)).collect();
    ScriptedModel::new(move |request| match request.to_string().contains("a flood") {
        true => Answer::Says(many()),
        false => Answer::Says(vec!["done".to_owned()]),
    })
}

/// An ACP client over HTTP.
struct HttpClient<'a> {
    server: &'a Server,
    token: &'a str,
    connection: String,
}

impl HttpClient<'_> {
    /// Opens an event stream, of the connection or of the session in `header`.
    fn subscribe(&self, header: &str) -> std::net::TcpStream {
        let head = format!(
            "GET /acp HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\naccept: text/event-stream\r\n\
             acp-connection-id: {}\r\n{header}\r\n",
            self.server.address, self.token, self.connection
        );
        let mut stream = self.server.connect();
        std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
        stream
    }

    fn send(&self, id: u64, method: &str, params: Value) -> u16 {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        post(self.server, self.token, Some(&self.connection), &message).status
    }

    /// Prompts four sessions for a flood, and returns their streams.
    fn prompt_four_sessions(&self, answers: &mut std::net::TcpStream, root: &str) -> Vec<std::net::TcpStream> {
        let prompt_session = |id| {
            assert_eq!(self.send(id, "session/new", json!({"cwd": root, "mcpServers": []})), 202);
            let session = read_answer(answers, id)["result"]["sessionId"].as_str().unwrap().to_owned();
            let stream = self.subscribe(&format!("acp-session-id: {session}\r\n"));
            let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "a flood"}]});
            assert_eq!(self.send(10 + id, "session/prompt", prompt), 202);
            stream
        };
        (1..=4).map(prompt_session).collect()
    }
}

/// The same over HTTP, where each session has a stream.
#[test]
fn a_client_that_leaves_its_streams_unread_is_removed() {
    let (sandbox, model) = (Sandbox::new(), flood());
    let server =
        Server::launch(model.offered_to(sandbox.command(&["serve", "-a", "goose", "--listen", "127.0.0.1:0"])));
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let client = HttpClient { server: &server, token: &token, connection: open(&server, &token) };
    let mut answers = client.subscribe("");
    let _unread = client.prompt_four_sessions(&mut answers, &root(&sandbox));
    let is_removed = || server.get("/metrics", &token).body.contains("skein_connections{kind=\"acp_http\"} 0\n");
    eventually("the connection is removed", is_removed);
    assert_eq!(client.send(20, "session/list", json!({})), 404);
}

/// The same for a client that reads one stream all the time. Less than the 32 MiB of a client that reads slowly wait.
#[test]
fn a_client_that_leaves_some_streams_unread_is_removed() {
    let (sandbox, model) = (Sandbox::new(), flood());
    let server =
        Server::launch(model.offered_to(sandbox.command(&["serve", "-a", "goose", "--listen", "127.0.0.1:0"])));
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let client = HttpClient { server: &server, token: &token, connection: open(&server, &token) };
    let mut answers = client.subscribe("");
    let _unread = client.prompt_four_sessions(&mut answers, &root(&sandbox));
    std::thread::spawn(move || std::io::copy(&mut answers, &mut std::io::sink()));
    eventually("the connection is removed", || client.send(20, "session/list", json!({})) == 404);
}

/// Stores a session of a principal in the project: `count` messages of `size` bytes.
pub(crate) async fn store_session(sandbox: &Sandbox, principal: &str, count: usize, size: usize) -> String {
    let grant = SessionGrant::new(Principal::new(principal).unwrap(), TokenLimits::default());
    let store = SessionStore::open(&sandbox.path("data")).unwrap().for_grant(&grant);
    let new = NewSession {
        cwd: std::fs::canonicalize(sandbox.path("project")).unwrap(),
        roots: Vec::new(),
        agent: "goose".to_owned(),
        mode: "assistant".to_owned(),
        model: "offline".to_owned(),
        approval: None,
        parent: None,
        files: SessionFiles::Server,
    };
    let id = store.create(new).await.unwrap();
    for place in 0..count {
        let role = if place.is_multiple_of(2) { Role::User } else { Role::Assistant };
        let parts = vec![MessagePart::Content(Content::text("x".repeat(size)))];
        let event = Event::Message { message: Arc::new(StoredMessage { role, parts }) };
        let body = serde_json::to_string(&event).unwrap();
        store.append(&id, NewEvent { kind: "message".into(), body, text: None });
    }
    store.flush(&id).await.unwrap();
    id
}

/// A session of 24 MiB takes this client 13 seconds, in which much more than 4 MiB wait for it all the time.
#[tokio::test]
async fn a_client_that_reads_slowly_gets_all_of_a_session() {
    let sandbox = Sandbox::new();
    let count = 384;
    let session = store_session(&sandbox, "a", count, 64 << 10).await;
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let mut slow = Socket::connect_with_small_buffer(&server, &token).await;
    slow.say(&initialize()).await;
    slow.answer(0).await;
    let params = json!({"sessionId": session, "cwd": sandbox.path("project"), "mcpServers": []});
    slow.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "session/load", "params": params})).await;
    let mut shown = 0;
    let answer = loop {
        let message = slow.wait(|_| true).await;
        if message["id"] == 1 {
            break message;
        }
        let kind = message["params"]["update"]["sessionUpdate"].as_str().unwrap_or_default();
        shown += usize::from(kind.ends_with("message_chunk"));
        // The pace of the client.
        tokio::time::sleep(Duration::from_millis(35)).await;
    };
    assert!(answer["result"].is_object(), "{answer}");
    assert_eq!(shown, count);
}

#[test]
fn an_idle_connection_is_removed_and_a_stream_keeps_it() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--idle", "4s"]);
    let token = token(&sandbox, "a", &[]);
    let (idle, kept) = (open(&server, &token), open(&server, &token));
    let headers = format!(
        "GET /acp HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\naccept: text/event-stream\r\n\
         acp-connection-id: {kept}\r\n\r\n",
        server.address
    );
    let mut stream = server.connect();
    std::io::Write::write_all(&mut stream, headers.as_bytes()).unwrap();
    // Asking for the connection would use it.
    std::thread::sleep(Duration::from_secs(8));
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"session/list","params":{}}"#;
    assert_eq!(post(&server, &token, Some(&idle), list).status, 404);
    assert_eq!(post(&server, &token, Some(&kept), list).status, 202);
    let mut beginning = vec![0; 12];
    std::io::Read::read_exact(&mut stream, &mut beginning).unwrap();
    assert_eq!(beginning, b"HTTP/1.1 200");
}

#[tokio::test]
async fn a_revoked_token_closes_its_connections() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let (revoked, other) = (token(&sandbox, "a", &[]), token(&sandbox, "a", &[]));
    let mut socket = Socket::connect(&server, &revoked).await;
    socket.say(&initialize()).await;
    socket.answer(0).await;
    let mut kept = Socket::connect(&server, &other).await;
    let connection = open(&server, &revoked);
    let id = revoked.split('_').nth(1).expect("an id").to_owned();
    assert_eq!(sandbox.skein(&["token", "revoke", &id]).code, 0);
    let begun = Instant::now();
    assert_eq!(socket.close_code().await, 1008);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(delete(&server, &revoked, &connection).status, 401);
    kept.say(&initialize()).await;
    assert!(kept.answer(0).await["result"].is_object(), "another token goes on");
}

#[tokio::test]
async fn sessions_and_turns_are_limited() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Hangs("…"));
    let server =
        Server::launch(model.offered_to(sandbox.command(&["serve", "-a", "goose", "--listen", "127.0.0.1:0"])));
    let token = token(&sandbox, "a", &["--root", &root(&sandbox), "--sessions", "2", "--turns", "1"]);
    let mut socket = Socket::connect(&server, &token).await;
    let first = socket.session(&sandbox).await;
    let params = json!({"cwd": sandbox.path("project"), "mcpServers": []});
    let second = socket.ask(2, "session/new", params.clone()).await["result"]["sessionId"].clone();
    assert!(second.is_string());
    assert!(socket.ask(3, "session/new", params.clone()).await["error"]["message"].is_string());
    let prompt = |session: &Value| json!({"sessionId": session, "prompt": [{"type": "text", "text": "go"}]});
    let begin = |id: u64, session: &Value| json!({"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": prompt(session)});
    socket.say(&begin(4, &json!(first))).await;
    socket.wait(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk").await;
    assert!(socket.ask(5, "session/prompt", prompt(&second)).await["error"]["message"].is_string());
    // Over HTTP the same limits are statuses.
    let connection = open(&server, &token);
    let new = json!({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": params}).to_string();
    for message in [new, begin(2, &second).to_string()] {
        let refused = post(&server, &token, Some(&connection), &message);
        assert_eq!(refused.status, 429, "{refused:?}");
        assert!(refused.header("retry-after").is_some());
    }
    socket.ask(6, "session/close", json!({"sessionId": first})).await;
    assert!(socket.ask(7, "session/new", params).await["result"].is_object(), "there is room again");
}

/// The number of sessions in memory, idle and running.
fn open_sessions(server: &Server, token: &str) -> (u64, u64) {
    let metrics = server.get("/metrics", token).body;
    let count = |state: &str| {
        let name = format!("skein_sessions{{state=\"{state}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).expect("a count")
    };
    (count("idle"), count("running"))
}

#[tokio::test]
async fn a_session_without_a_connection_leaves_memory() {
    let sandbox = Sandbox::new();
    let (server, go) = counting_server(&sandbox);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let mut socket = Socket::connect(&server, &token).await;
    let session = socket.session(&sandbox).await;
    let params = json!({"cwd": root(&sandbox), "mcpServers": []});
    assert!(socket.ask(2, "session/new", params).await["result"].is_object());
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "count"}]});
    socket.say(&json!({"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": prompt})).await;
    socket.wait(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk").await;
    assert_eq!(open_sessions(&server, &token), (1, 1));
    drop(socket);
    eventually("only the session with a turn is left", || open_sessions(&server, &token) == (0, 1));
    go.send(()).unwrap();
    eventually("no session is left", || open_sessions(&server, &token) == (0, 0));
    // The store has it.
    let mut socket = Socket::connect(&server, &token).await;
    socket.say(&initialize()).await;
    socket.answer(0).await;
    let load = json!({"sessionId": session, "cwd": root(&sandbox), "mcpServers": []});
    socket.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "session/load", "params": load})).await;
    socket.wait(|message| message.to_string().contains("one two")).await;
    socket.answer(1).await;
    assert_eq!(open_sessions(&server, &token), (1, 0));
    socket.ask(2, "session/close", json!({"sessionId": session})).await;
    eventually("no session is left", || open_sessions(&server, &token) == (0, 0));
}

#[tokio::test]
async fn a_remote_session_stays_within_its_token() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox), "--modes", "coding/*", "--approval", "ask"]);
    let mut socket = Socket::connect(&server, &token).await;
    socket.say(&initialize()).await;
    socket.answer(0).await;
    let servers = json!([{"name": "mine", "command": "/bin/true", "args": [], "env": []}]);
    let opened = socket.ask(4, "session/new", json!({"cwd": root(&sandbox), "mcpServers": servers})).await;
    let session = opened["result"]["sessionId"].clone();
    let modes = opened["result"]["modes"]["availableModes"].as_array().unwrap_or_else(|| panic!("{opened}"));
    assert!(modes.iter().all(|mode| mode["id"].as_str().unwrap().starts_with("coding/")), "{modes:?}");
    let mode = socket.ask(5, "session/set_mode", json!({"sessionId": session, "modeId": "goose/assistant"})).await;
    assert_eq!(mode["error"]["code"], -32602);
    let looser = json!({"sessionId": session, "configId": "approval", "value": "auto"});
    assert!(socket.ask(6, "session/set_config_option", looser).await["error"].is_object());
    let stricter = json!({"sessionId": session, "configId": "approval", "value": "read-only"});
    assert!(socket.ask(7, "session/set_config_option", stricter).await["result"].is_object());
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "hello"}]});
    socket.say(&json!({"jsonrpc": "2.0", "id": 8, "method": "session/prompt", "params": prompt})).await;
    let notice = socket.wait(|message| message.to_string().contains("`mine` is left out")).await;
    assert_eq!(notice["method"], "session/update");
}

/// Two principals: neither lists nor loads a session of the other, and the answer is that of an unknown id.
#[tokio::test]
async fn sessions_of_others_do_not_exist() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let project = root(&sandbox);
    let (one, two) = (token(&sandbox, "one", &["--root", &project]), token(&sandbox, "two", &["--root", &project]));
    let mut first = Socket::connect(&server, &one).await;
    let session = first.session(&sandbox).await;
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "hello"}]});
    first.ask(2, "session/prompt", prompt).await;
    assert_eq!(first.ask(3, "session/list", json!({})).await["result"]["sessions"].as_array().unwrap().len(), 1);
    let mut second = Socket::connect(&server, &two).await;
    second.say(&initialize()).await;
    second.answer(0).await;
    assert_eq!(second.ask(1, "session/list", json!({})).await["result"]["sessions"], json!([]));
    let load = |id: &str| json!({"sessionId": id, "cwd": project, "mcpServers": []});
    let unknown = "aaaaaaaaaaaaaaaaaaaa";
    let foreign = second.ask(2, "session/load", load(&session)).await["error"].to_string();
    let missing = second.ask(2, "session/load", load(unknown)).await["error"].to_string();
    assert_eq!(foreign.replace(&session, unknown), missing);
    second.ask(4, "session/delete", json!({"sessionId": session})).await;
    assert_eq!(first.ask(5, "session/list", json!({})).await["result"]["sessions"].as_array().unwrap().len(), 1);
}

/// The server cannot repeat an id that it cannot read.
#[test]
fn an_initialize_that_is_no_request_gets_an_error() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let own = token(&sandbox, "a", &[]);
    let params = json!({"protocolVersion": 1});
    for first in [
        json!({"id": 0, "method": "initialize", "params": params}),
        json!({"jsonrpc": "2.0", "id": [1], "method": "initialize", "params": params}),
    ] {
        let answer = post(&server, &own, None, &first.to_string());
        assert!(answer.body.contains("\"error\""), "{first}: {answer:?}");
    }
    let escaped = r#"{"jsonrpc":"2.0","id":"a\/b","method":"initialize","params":{"protocolVersion":1}}"#;
    assert_eq!(post(&server, &own, None, escaped).status, 200);
}

/// The turn of a deleted session ends, also if another client deletes it.
#[tokio::test]
async fn another_client_ends_the_turn_that_it_deletes() {
    let sandbox = Sandbox::new();
    let (server, _go) = counting_server(&sandbox);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let mut first = Socket::connect(&server, &token).await;
    let session = first.session(&sandbox).await;
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "count"}]});
    first.say(&json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": prompt})).await;
    first.wait(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk").await;
    let mut second = Socket::connect(&server, &token).await;
    second.say(&initialize()).await;
    second.answer(0).await;
    assert!(second.ask(1, "session/delete", json!({"sessionId": session})).await["result"].is_object());
    let ended = first.answer(2).await;
    assert_eq!(ended["result"]["stopReason"], "cancelled", "{ended}");
    assert_eq!(second.ask(2, "session/list", json!({})).await["result"]["sessions"], json!([]));
}

/// At the shutdown new turns are refused and running ones may end. Clients are told, and then disconnected.
#[tokio::test]
async fn a_shutdown_lets_turns_end() {
    let sandbox = Sandbox::new();
    let (mut server, go) = counting_server(&sandbox);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let mut socket = Socket::connect(&server, &token).await;
    let session = socket.session(&sandbox).await;
    let idle = socket.ask(2, "session/new", json!({"cwd": root(&sandbox), "mcpServers": []})).await;
    let prompt = |session: &Value| json!({"sessionId": session, "prompt": [{"type": "text", "text": "count"}]});
    let first = json!({"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": prompt(&json!(session))});
    socket.say(&first).await;
    socket.wait(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk").await;
    let connection = open(&server, &token);
    server.interrupt();
    socket.wait(|message| message["method"] == "_skein/shutdown").await;
    let ready = server.request("GET", "/readyz", &[], "");
    assert_eq!((ready.status, ready.header("retry-after").is_some()), (503, true));
    assert_eq!(server.request("GET", "/healthz", &[], "").status, 200);
    let refused = socket.ask(4, "session/prompt", prompt(&idle["result"]["sessionId"])).await;
    assert!(refused["error"]["data"]["retryAfter"].is_u64(), "{refused}");
    let over_http = post(&server, &token, Some(&connection), &first.to_string());
    assert_eq!((over_http.status, over_http.header("retry-after").is_some()), (503, true));
    go.send(()).unwrap();
    assert_eq!(socket.answer(3).await["result"]["stopReason"], "end_turn", "the turn had its time");
    assert_eq!(socket.close_code().await, 1001);
    assert_eq!(server.wait(), 0);
}

#[tokio::test]
async fn a_turn_that_takes_too_long_is_interrupted_and_stored() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Hangs("half an answer"));
    let mut command = sandbox.command(&["serve", "-a", "goose", "--listen", "127.0.0.1:0", "--drain", "1s"]);
    command.env("SKEIN_LOG", "");
    let mut server = Server::launch(model.offered_to(command));
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let mut socket = Socket::connect(&server, &token).await;
    let session = socket.session(&sandbox).await;
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "count"}]});
    socket.say(&json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": prompt})).await;
    socket.wait(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk").await;
    server.interrupt();
    assert_eq!(socket.answer(2).await["result"]["stopReason"], "cancelled");
    assert_eq!(socket.close_code().await, 1001);
    assert_eq!(server.wait(), 0);
    let server = Server::start(&sandbox, &[]);
    let mut socket = Socket::connect(&server, &token).await;
    socket.say(&initialize()).await;
    socket.answer(0).await;
    socket
        .say(&json!({"jsonrpc": "2.0", "id": 1, "method": "session/load",
        "params": {"sessionId": session, "cwd": root(&sandbox), "mcpServers": []}}))
        .await;
    socket.wait(|message| message.to_string().contains("half an answer")).await;
}
