//! An HTTP server on loopback that answers from a closure, and remembers what it was asked.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// The first line and the headers, as they came.
    pub(crate) head: String,
    pub(crate) body: Value,
    /// The body as it came, for bodies that are not JSON.
    pub(crate) text: String,
}

impl Request {
    /// The method and the target: `GET`, `/mcp?x=y`.
    pub(crate) fn line(&self) -> (&str, &str) {
        let mut words = self.head.split(' ');
        (words.next().unwrap_or_default(), words.next().unwrap_or_default())
    }

    pub(crate) fn header(&self, wanted: &str) -> Option<&str> {
        let headers = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        headers.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim())
    }
}

pub(crate) enum Reply {
    Json(Value),
    /// A stream with these events, each as it is.
    Events(Vec<String>),
    /// A stream with this text, whose events have names.
    Stream(String),
    /// This status, with nothing in it.
    Status(u16),
    Redirect(String),
    /// This status, these lines of headers, and this body.
    Full(u16, String, Value),
    /// The connection stays open, and nothing comes.
    Never,
}

pub(crate) struct HttpServer {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Request>>>,
    /// Dropping it ends the server.
    _serving: JoinSet<()>,
}

impl HttpServer {
    pub(crate) async fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let mut serving = JoinSet::new();
        let (heard, answer) = (Arc::clone(&requests), Arc::new(answer));
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (heard, answer) = (Arc::clone(&heard), Arc::clone(&answer));
                connections.spawn(async move {
                    // A client that goes away in the middle is none of the server's business.
                    drop(serve(stream, &heard, &*answer).await);
                });
            }
        });
        Self { url, requests, _serving: serving }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("the requests").clone()
    }

    /// How often this MCP method was asked for.
    pub(crate) fn asked(&self, method: &str) -> usize {
        self.requests().iter().filter(|request| request.body["method"] == json!(method)).count()
    }
}

async fn serve(
    mut stream: TcpStream,
    heard: &Mutex<Vec<Request>>,
    answer: &(dyn Fn(&Request) -> Reply + Send + Sync),
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    let (head, length) = loop {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        bytes.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            break (head.to_owned(), length.unwrap_or(0));
        }
    };
    let begin = head.len() + 4;
    while bytes.len() < begin + length {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await?;
        bytes.extend_from_slice(&buffer[..read]);
    }
    let body = serde_json::from_slice(&bytes[begin..]).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes[begin..]).into_owned();
    let request = Request { head, body, text };
    heard.lock().expect("the requests").push(request.clone());
    let (status, headers, body) = match answer(&request) {
        Reply::Json(value) => (200, "content-type: application/json\r\n".to_owned(), value.to_string()),
        Reply::Events(events) => {
            let events = events.iter().map(|event| format!("data: {event}\n\n")).collect();
            (200, "content-type: text/event-stream\r\n".to_owned(), events)
        }
        Reply::Stream(text) => (200, "content-type: text/event-stream\r\n".to_owned(), text),
        Reply::Status(status) => (status, String::new(), String::new()),
        Reply::Redirect(to) => (307, format!("location: {to}\r\n"), String::new()),
        Reply::Full(status, headers, body) => {
            (status, format!("content-type: application/json\r\n{headers}"), body.to_string())
        }
        Reply::Never => std::future::pending().await,
    };
    let length = body.len();
    let text = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

/// What a good MCP server of the old era with one tool, `greet`, answers; `call` answers its calls.
pub(crate) fn good_server(request: &Request, call: impl Fn() -> Reply) -> Reply {
    let id = &request.body["id"];
    let result = |result: Value| Reply::Json(json!({"jsonrpc": "2.0", "id": id, "result": result}));
    match request.body["method"].as_str() {
        Some("initialize") => result(json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "http", "version": "0"},
        })),
        Some("tools/list") => result(json!({"tools": [{"name": "greet", "inputSchema": {"type": "object"}}]})),
        Some("tools/call") => call(),
        Some(_) if id.is_null() => Reply::Status(202),
        Some(_) => {
            Reply::Json(json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "method not found"}}))
        }
        // The stream of the old era, which a server need not have.
        None => Reply::Status(405),
    }
}

/// The answer of `greet`.
pub(crate) fn greeting(request: &Request) -> Reply {
    let result = json!({"content": [{"type": "text", "text": "hello"}]});
    Reply::Json(json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result}))
}
