//! Large inputs against the whole program: a client that stops reading, a model that streams a gigabyte, a server with
//! 100,000 tools, a session of 100,000 events. Each leaves memory below a stated limit, and other sessions work.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skein::agents::Event;
use skein::conversation::{Content, Message, MessagePart, Role};
use skein::principal::SessionFiles;
use skein::store::{NewEvent, NewSession, SessionStore};

use crate::external_life::kilobytes;
use crate::serve_acp::{Socket, root};
use crate::support::acp::{Acp, spoken};
use crate::support::model::{Answer, ScriptedModel, asked};
use crate::support::serve::{PATIENCE, Server, eventually, token};
use crate::support::{Sandbox, servers};

/// Kilobytes of a debug build at its peak. An idle one takes about 90 MB.
const MEMORY: u64 = 300 << 10;
/// The same where the input itself is large: the events of the session, the list of the server.
const MEMORY_FOR_LARGE_INPUT: u64 = 500 << 10;
const MANY: usize = 100_000;

/// Fails if the process ever took more than `limit` kilobytes.
fn check_peak(pid: u32, limit: u64) {
    let peak = kilobytes(pid, "VmHWM");
    assert!(peak < limit, "{peak} kB at the peak, and {limit} are allowed");
}

/// A model that says `bytes` to a prompt with `flood`, and `hello` to others. Also the count of what it has sent.
fn flooding_model(bytes: u64) -> (ScriptedModel, Arc<AtomicU64>) {
    let sent: Arc<AtomicU64> = Arc::default();
    let counter = Arc::clone(&sent);
    let model = ScriptedModel::new(move |request| match asked(request).contains("flood") {
        true => Answer::Floods { bytes, sent: Arc::clone(&counter) },
        false => Answer::Says(vec!["hello".to_owned()]),
    });
    (model, sent)
}

#[test]
fn a_model_that_streams_a_gigabyte_is_cut_off() {
    let sandbox = Sandbox::new();
    let (model, sent) = flooding_model(1 << 30);
    let mut client = Acp::launch(&sandbox, model.offered_to(sandbox.command(&["acp", "-a", "goose"])));
    client.introduce(&json!({}));
    let (flooded, other) = (client.session(), client.session());
    let prompt = client.begin(&flooded, "a flood, please");
    let (reason, updates) = client.prompt(&other, "a word, please");
    assert_eq!((reason.as_str(), spoken(&updates).as_str()), ("end_turn", "hello"));
    let answer = client.answer(&prompt);
    let problem = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer} is no error"));
    assert!(problem.contains("longer than 8 MiB"), "{problem}");
    // What was on its way when Skein hung up counts as sent.
    let sent = sent.load(Ordering::SeqCst);
    assert!(sent < 64 << 20, "the model has sent {sent} bytes");
    check_peak(client.pid(), MEMORY);
    for (session, text) in [(&flooded, "/tools"), (&other, "another word, please")] {
        assert_eq!(client.prompt(session, text).0, "end_turn", "{text}");
    }
}

/// Four answers of 6 MiB are more than the connection takes. The client loses it, and finds its sessions later.
#[tokio::test]
async fn a_client_that_stops_reading_takes_bounded_memory() {
    let sandbox = Sandbox::new();
    let (model, sent) = flooding_model(6 << 20);
    let serve = sandbox.command(&["serve", "-a", "goose", "--listen", "127.0.0.1:0"]);
    let server = Server::launch(model.offered_to(serve));
    let token = token(&sandbox, "a", &["--root", &root(&sandbox)]);
    let prompt = |session: &str, text: &str| json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});
    let mut deaf = Socket::connect(&server, &token).await;
    let mut sessions = vec![deaf.session(&sandbox).await];
    for id in 2..5 {
        let opened = deaf.ask(id, "session/new", json!({"cwd": sandbox.path("project"), "mcpServers": []})).await;
        sessions.push(opened["result"]["sessionId"].as_str().unwrap().to_owned());
    }
    for (id, session) in (10..).zip(&sessions) {
        let params = prompt(session, "a flood, please");
        deaf.say(&json!({"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": params})).await;
    }
    let mut other = Socket::connect(&server, &token).await;
    let session = other.session(&sandbox).await;
    let begun = Instant::now();
    for id in 2.. {
        let answer = other.ask(id, "session/prompt", prompt(&session, "a word, please")).await;
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        let metrics = server.get("/metrics", &token).body;
        if metrics.contains("skein_connections{kind=\"acp_websocket\"} 1\n") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "the client that does not read keeps its connection:\n{metrics}");
    }
    check_peak(server.pid(), MEMORY);
    drop(deaf);
    // The turns go on without a client, and the store has their answers.
    eventually("the model has said all", || sent.load(Ordering::SeqCst) >= 4 * (6 << 20));
    for (id, session) in (1_000..).zip(&sessions) {
        let params = json!({"sessionId": session, "cwd": sandbox.path("project"), "mcpServers": []});
        let answer = other.ask(id, "session/load", params).await;
        assert!(answer["result"].is_object(), "{answer}");
    }
    check_peak(server.pid(), MEMORY);
}

#[test]
fn a_server_with_100_000_tools_offers_2_000_and_a_warning() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let other = client.session();
    let count = MANY.to_string();
    let large = json!({"name": "large", "command": servers::mcp_echo(), "args": ["--tools", count], "env": []});
    let session = client.session_with(json!([large]));
    let (_, updates) = client.prompt(&session, "/tools");
    let listed = spoken(&updates);
    let tools = listed.matches("`large__").count();
    assert!(listed.contains("`large__tool_1999`") && !listed.contains("`large__tool_2000`"), "{tools} tools");
    let (_, updates) = client.prompt(&session, r#"/large.echo {"text": "here"}"#);
    assert!(spoken(&updates).contains("here"), "{updates:#?}");
    let truncated = |line: &&Value| line["fields"]["message"] == "list of the server truncated";
    let log = sandbox.log();
    let warning = log.iter().find(truncated).expect("a warning in the log");
    assert_eq!((&warning["level"], &warning["fields"]["kept"]), (&json!("WARN"), &json!(2_000)), "{warning}");
    assert_eq!(warning["fields"]["list"], "list_tools", "{warning}");
    let (reason, _) = client.prompt(&other, "/tools");
    assert_eq!(reason, "end_turn");
    check_peak(client.pid(), MEMORY_FOR_LARGE_INPUT);
}

/// Stores a session of so many events: prompts and answers in turn.
fn store_long_session(sandbox: &Sandbox, events: usize) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = SessionStore::open(&sandbox.path("data")).unwrap();
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
        for place in 0..events {
            let role = if place.is_multiple_of(2) { Role::User } else { Role::Assistant };
            let parts = vec![MessagePart::Content(Content::text(format!("message {place}")))];
            let event = Event::Message { message: Arc::new(Message { role, parts }) };
            let body = serde_json::to_string(&event).unwrap();
            store.append(&id, NewEvent { kind: "message".into(), body, text: None });
        }
        store.flush(&id).await.unwrap();
        id
    })
}

/// `skein acp` with a client that counts updates and does not look into them: a check of each would take minutes.
struct CountingClient {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl CountingClient {
    fn start(sandbox: &Sandbox) -> Self {
        let mut command = sandbox.command(&["acp"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let (sender, lines) = channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, stdin, lines }
    }

    fn send(&mut self, id: u64, method: &str, params: &Value) {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        writeln!(self.stdin, "{message}").and_then(|()| self.stdin.flush()).unwrap();
    }

    /// The result of a request, and the number of updates before it that contain `text`.
    fn result(&self, id: u64, text: &str) -> (Value, usize) {
        let mut updates = 0;
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(60)).expect("a line in time");
            if line.contains(r#""method":"session/update""#) {
                updates += usize::from(line.contains(text));
                continue;
            }
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id {
                assert!(message["result"].is_object(), "{message}");
                return (message["result"].clone(), updates);
            }
        }
    }
}

impl Drop for CountingClient {
    fn drop(&mut self) {
        // It must end with the test.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_session_of_100_000_events_loads_and_goes_on() {
    let sandbox = Sandbox::new();
    let long = store_long_session(&sandbox, MANY);
    let mut client = CountingClient::start(&sandbox);
    client.send(1, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
    client.result(1, "");
    let cwd = sandbox.path("project");
    client.send(2, "session/new", &json!({"cwd": cwd, "mcpServers": []}));
    let (opened, _) = client.result(2, "");
    client.send(3, "session/load", &json!({"sessionId": long, "cwd": cwd, "mcpServers": []}));
    let (_, updates) = client.result(3, r#""text":"message "#);
    assert_eq!(updates, MANY, "every message is shown");
    let short = opened["sessionId"].as_str().unwrap();
    for (id, session) in [(4, short), (5, long.as_str())] {
        let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "/tools"}]});
        client.send(id, "session/prompt", &prompt);
        let (ended, updates) = client.result(id, "developer__read_file");
        assert!(ended["stopReason"] == "end_turn" && updates > 0, "{ended}");
    }
    check_peak(client.child.id(), MEMORY_FOR_LARGE_INPUT);
    let database = sandbox.path("data/sessions.db").metadata().unwrap().len();
    assert!(database < 100 << 20, "{database} bytes for {MANY} events");
}
