//! The server of an ACP connection over WebSocket, played by a test: it reads and answers only what the test says.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use super::serve::PATIENCE;

/// The end of one connection that the test speaks for.
pub(crate) struct ScriptedServer {
    socket: WebSocket<TcpStream>,
    asked: u64,
}

impl ScriptedServer {
    /// Waits for a connection.
    pub(crate) fn accept(listener: &TcpListener) -> Self {
        listener.set_nonblocking(true).expect("a socket");
        let deadline = Instant::now() + PATIENCE;
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => panic!("no client connects: {error}"),
            }
        };
        stream.set_nonblocking(false).expect("a socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { socket: tungstenite::accept(stream).expect("a WebSocket"), asked: 0 }
    }

    /// Waits for the next message.
    pub(crate) fn read(&mut self) -> Value {
        loop {
            if let Message::Text(text) = self.socket.read().expect("the client speaks") {
                return serde_json::from_str(&text).expect("JSON");
            }
        }
    }

    pub(crate) fn say(&mut self, message: &Value) {
        self.socket.send(Message::text(message.to_string())).expect("the client reads");
    }

    /// Answers the next message, which must be a request with this method.
    pub(crate) fn answer(&mut self, method: &str, result: Value) {
        let request = self.read();
        assert_eq!(request["method"], method, "{request}");
        self.say(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}));
    }

    /// Sends a request and returns its result.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        let message = self.response(method, params);
        message.get("result").unwrap_or_else(|| panic!("{method}: {message}")).clone()
    }

    /// Sends a request and returns the response, which may be an error.
    pub(crate) fn response(&mut self, method: &str, params: Value) -> Value {
        self.asked += 1;
        let id = format!("asked-{}", self.asked);
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            let message = self.read();
            if message["id"] == id.as_str() && message.get("method").is_none() {
                return message;
            }
        }
    }
}
