//! An MCP client that writes and reads the lines itself, so that what is tested is what is on the wire.

#![expect(clippy::expect_used, reason = "a client that is not answered ends the test")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Far more than anything here needs, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running server and what it has said that nobody has asked for yet.
pub(crate) struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Filled by a thread that reads the server's stdout.
    lines: Receiver<Value>,
    asked: u64,
    /// Notifications, in order.
    pub(crate) notifications: Vec<Value>,
}

impl Client {
    /// Starts the server and says nothing to it.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the server can be started");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (said, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not a message: {line}"));
                if said.send(message).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        Self { child, stdin, lines, asked: 0, notifications: Vec::new() }
    }

    /// Starts the server and performs the handshake of the older era.
    pub(crate) fn connect(command: Command) -> (Self, Value) {
        let mut client = Self::start(command);
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        let greeting = client.request("initialize", params);
        client.notify("notifications/initialized", json!({}));
        (client, greeting["result"].clone())
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.stdin.as_mut().expect("not closed"), "{message}").expect("the server reads");
    }

    /// Sends a line as it is, which need not be a message.
    pub(crate) fn send_line(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().expect("not closed"), "{line}").expect("the server reads");
    }

    pub(crate) fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Asks without waiting; returns the id.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> u64 {
        self.asked += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params}));
        self.asked
    }

    /// The next message of any kind.
    pub(crate) fn next(&mut self) -> Value {
        self.lines.recv_timeout(PATIENCE).expect("the server says something")
    }

    /// The next notification with this method.
    pub(crate) fn notified(&mut self, method: &str) -> Value {
        loop {
            let message = self.next();
            assert!(message["id"].is_null(), "an answer where {method} was expected: {message}");
            if message["method"] == method {
                return message;
            }
        }
    }

    /// The whole answer to a request; notifications on the way are kept.
    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params);
        loop {
            let message = self.next();
            if message["id"] == id {
                return message;
            }
            assert!(message["id"].is_null(), "an answer to something else: {message}");
            self.notifications.push(message);
        }
    }

    /// The result of a request that must succeed.
    pub(crate) fn result(&mut self, method: &str, params: Value) -> Value {
        let answer = self.request(method, params);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.result("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// The JSON that a tool answers as text.
    pub(crate) fn call_json(&mut self, tool: &str) -> Value {
        let result = self.call(tool, json!({}));
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        serde_json::from_str(text).unwrap_or_else(|_| panic!("{tool}: {result}"))
    }

    /// The names in a list, sorted.
    pub(crate) fn names(&mut self, method: &str, list: &str, key: &str) -> Vec<String> {
        let result = self.result(method, json!({}));
        let items = result[list].as_array().expect("a list").iter();
        let mut names: Vec<_> = items.map(|item| item[key].as_str().unwrap_or_default().to_owned()).collect();
        names.sort();
        names
    }

    pub(crate) fn tools(&mut self) -> Vec<String> {
        self.names("tools/list", "tools", "name")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Says no more, as a client that goes away does.
    pub(crate) fn hang_up(&mut self) {
        self.stdin = None;
    }

    /// Waits for the server to end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stdin = None;
        if std::thread::panicking() {
            drop(self.child.kill());
        }
        drop(self.child.wait());
    }
}
