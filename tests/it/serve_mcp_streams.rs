//! MCP endpoints of `skein serve` on the wire, in both protocol eras: progress, cut streams, cancelled calls, and
//! messages that are wrong.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::serve_mcp::{begin, post, write_talker};
use crate::support::Sandbox;
use crate::support::model::{Answer, ScriptedModel};
use crate::support::serve::{Server, eventually, token};

const TALKER: &str = "/mcp/services/talker";

/// A client of one endpoint.
struct Caller<'a> {
    server: &'a Server,
    path: &'a str,
    token: &'a str,
    /// `None` in the era without sessions.
    session: Option<String>,
}

impl<'a> Caller<'a> {
    /// A client of each era.
    fn both(server: &'a Server, path: &'a str, token: &'a str) -> [Self; 2] {
        let session = begin(server, path, token);
        [Some(session), None].map(|session| Self { server, path, token, session })
    }

    /// Sends the head of a request and its body. The answer is not read.
    fn send(&self, method: &str, more: &[(&str, &str)], body: &str) -> TcpStream {
        let mut head = format!(
            "{method} {} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\nconnection: close\r\ncontent-length: {}\r\n",
            self.path,
            self.server.address,
            self.token,
            body.len()
        );
        for (name, value) in more {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut stream = self.server.connect();
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).expect("sent");
        stream
    }

    /// Calls a tool, and asks for its progress.
    fn call(&self, id: u64, tool: &str, arguments: &Value) -> TcpStream {
        let mut meta = json!({"progressToken": "mine"});
        if self.session.is_none() {
            meta = json!({
                "progressToken": "mine",
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string();
        match &self.session {
            Some(session) => self.send("POST", &[("mcp-session-id", session)], &body),
            None => {
                let version = ("mcp-protocol-version", "2026-07-28");
                self.send("POST", &[version, ("mcp-method", "tools/call"), ("mcp-name", tool)], &body)
            }
        }
    }

    /// Ends a call as its era does: with a message, or with the end of the connection.
    fn cancel(&self, id: u64, stream: TcpStream) {
        let Some(session) = &self.session else {
            drop(stream);
            return;
        };
        let params = json!({"requestId": id, "reason": "enough"});
        let message = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).to_string();
        assert_eq!(post(self.server, self.path, self.token, Some(session), &message).status, 202);
    }

    fn era(&self) -> &'static str {
        if self.session.is_some() { "with sessions" } else { "without sessions" }
    }
}

/// An event of a stream.
#[derive(Debug)]
struct SseEvent {
    id: String,
    /// `Null` for the event that begins a stream.
    message: Value,
}

/// The whole events in what was read of a stream.
fn events(read: &str) -> Vec<SseEvent> {
    let mut found: Vec<SseEvent> = Vec::new();
    for line in read.lines() {
        if let Some(data) = line.strip_prefix("data:") {
            let message = serde_json::from_str(data).unwrap_or(Value::Null);
            found.push(SseEvent { id: String::new(), message });
        } else if let (Some(id), Some(last)) = (line.strip_prefix("id: "), found.last_mut()) {
            last.id = id.to_owned();
        }
    }
    found
}

fn is_progress(event: &SseEvent) -> bool {
    event.message["method"] == "notifications/progress"
}

/// Reads until so many reports of progress have arrived, each with the empty line that ends it.
fn read_progress(stream: &mut TcpStream, count: usize) -> String {
    let mut read = String::new();
    let is_enough = |read: &str| {
        let (whole, _) = read.rsplit_once("\n\n").unwrap_or_default();
        events(whole).iter().filter(|event| is_progress(event)).count() >= count
    };
    while !is_enough(&read) {
        let mut buffer = [0; 4096];
        let size = stream.read(&mut buffer).expect("more of the stream");
        assert!(size > 0, "the stream ended: {read}");
        read.push_str(&String::from_utf8_lossy(&buffer[..size]));
    }
    read
}

fn read_whole(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the whole stream");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn root(sandbox: &Sandbox) -> String {
    sandbox.path("project").to_string_lossy().into_owned()
}

#[test]
fn a_call_reports_its_progress_and_then_ends() {
    let sandbox = Sandbox::new();
    write_talker(&sandbox, &["--talks"]);
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    for caller in Caller::both(&server, TALKER, &token) {
        let stream = caller.call(5, "sleep", &json!({"ms": 2000, "progress_every": 100}));
        let messages: Vec<_> = events(&read_whole(stream)).into_iter().map(|event| event.message).collect();
        let progress = messages.iter().filter(|message| message["method"] == "notifications/progress");
        let reported: Vec<_> = progress.map(|message| message["params"]["progress"].as_f64().unwrap()).collect();
        assert!(reported.len() >= 2 && reported.is_sorted(), "{}: {messages:?}", caller.era());
        let result = messages.last().expect("a result");
        assert_eq!((&result["id"], &result["result"]["content"][0]["text"]), (&json!(5), &json!("awake")), "{result}");
    }
}

/// Only the era with sessions has streams that go on. Each event arrives once, in order.
#[test]
fn a_cut_stream_goes_on_after_its_last_event() {
    let sandbox = Sandbox::new();
    write_talker(&sandbox, &["--talks"]);
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let [caller, _] = Caller::both(&server, TALKER, &token);
    let mut stream = caller.call(6, "sleep", &json!({"ms": 5000, "progress_every": 200}));
    let read = read_progress(&mut stream, 2);
    let (whole, _) = read.rsplit_once("\n\n").expect("whole events");
    let mut seen = events(whole);
    drop(stream);
    let last = seen.last().expect("an event").id.clone();
    let session = caller.session.as_deref().expect("a session");
    let resumed = caller.send("GET", &[("mcp-session-id", session), ("last-event-id", &last)], "");
    seen.extend(events(&read_whole(resumed)));
    let ids: BTreeSet<_> = seen.iter().map(|event| &event.id).collect();
    assert_eq!(ids.len(), seen.len(), "no event arrives twice: {seen:?}");
    let progress = seen.iter().filter(|event| is_progress(event));
    let reported: Vec<_> = progress.map(|event| event.message["params"]["progress"].as_f64().unwrap()).collect();
    assert!(reported.len() >= 5 && reported.is_sorted(), "{seen:?}");
    assert_eq!(seen.last().expect("a result").message["result"]["content"][0]["text"], "awake", "{seen:?}");
}

#[test]
fn a_cancelled_call_ends_in_its_service() {
    let sandbox = Sandbox::new();
    write_talker(&sandbox, &["--talks"]);
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    for (number, caller) in Caller::both(&server, TALKER, &token).iter().enumerate() {
        let file = sandbox.path(&format!("project/cancelled-{number}"));
        let mut stream = caller.call(7, "sleep", &json!({"ms": 60_000, "progress_every": 100, "cancelled": file}));
        read_progress(&mut stream, 1);
        caller.cancel(7, stream);
        eventually("the service knows", || file.exists());
    }
}

#[test]
fn a_cancelled_call_of_an_agent_ends_its_turn() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Hangs("half an answer"));
    let server = Server::launch(model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])));
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let running = |count: usize| {
        let line = format!("skein_sessions{{state=\"running\"}} {count}\n");
        server.get("/metrics", &token).body.contains(&line)
    };
    for caller in Caller::both(&server, "/mcp/agents", &token) {
        let mut stream = caller.call(8, "ask_goose_assistant", &json!({"prompt": "go"}));
        let read = read_progress(&mut stream, 1);
        assert!(read.contains("half an answer") && running(1), "{}: {read}", caller.era());
        caller.cancel(8, stream);
        eventually("the turn has ended", || running(0));
    }
}

/// Messages that are wrong get the protocol's error, and the session goes on.
#[test]
fn malformed_messages_get_errors_of_the_protocol() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    for path in ["/mcp/coding/security", "/mcp/services/memory", "/mcp/agents"] {
        let session = begin(&server, path, &token);
        let send = |body: &str| post(&server, path, &token, Some(&session), body);
        for (body, code, id) in [
            ("{nope", -32700, Value::Null),
            ("", -32700, Value::Null),
            ("7", -32600, Value::Null),
            ("[]", -32600, Value::Null),
            (r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":[]}"#, -32600, json!(3)),
        ] {
            let answer = send(body);
            assert_eq!(
                (answer.status, answer.header("content-type")),
                (400, Some("application/json")),
                "{path} {body}"
            );
            let message = answer.json();
            assert_eq!((&message["error"]["code"], &message["id"]), (&json!(code), &id), "{path} {body}: {message}");
        }
        for (body, code) in [
            (r#"{"jsonrpc":"2.0","id":4,"method":"no/such"}"#, -32601),
            (r#"{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":7}}"#, -32602),
            (r#"{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"no_such"}}"#, -32602),
        ] {
            let answer = send(body);
            let message = events(&answer.body).pop().unwrap_or_else(|| panic!("{path} {body}: {answer:?}")).message;
            assert_eq!((&message["error"]["code"], &message["id"]), (&json!(code), &json!(4)), "{path} {body}");
        }
        let listed = send(r#"{"jsonrpc":"2.0","id":5,"method":"tools/list"}"#);
        assert!(listed.status == 200 && listed.body.contains("\"tools\""), "{path}: {listed:?}");
    }
}
