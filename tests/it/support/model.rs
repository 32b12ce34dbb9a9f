//! A language model made of a closure, reached over real HTTP in the OpenAI dialect. It answers many at once.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use serde_json::{Value, json};

/// What it does when it is asked.
pub(crate) enum Answer {
    /// Says these pieces, one delta each.
    Says(Vec<String>),
    /// Wishes for this call.
    Calls {
        id: &'static str,
        tool: &'static str,
        arguments: Value,
    },
    /// Wishes for these calls at once: id, tool, arguments.
    CallsMany(Vec<(&'static str, &'static str, Value)>),
    /// Says this, and wishes for this call.
    SaysAndCalls {
        text: &'static str,
        tool: &'static str,
        arguments: Value,
    },
    /// Says this, and then nothing more while the connection lasts.
    Hangs(&'static str),
    /// Says this, and then the connection breaks.
    Breaks(&'static str),
    /// Says the first piece, and each further one when it is told to.
    Paced {
        pieces: Vec<String>,
        go: Arc<Mutex<mpsc::Receiver<()>>>,
    },
    /// Says so many bytes in pieces of 64 KiB, as fast as they are read, and counts those that were sent.
    Floods {
        bytes: u64,
        sent: Arc<AtomicU64>,
    },
    Status(u16),
    /// Refuses with this status and body.
    Refuses(u16, &'static str),
}

pub(crate) struct ScriptedModel {
    address: String,
    requests: Arc<Mutex<Vec<Value>>>,
    answered: Arc<AtomicUsize>,
    keys: Arc<Mutex<Vec<String>>>,
}

impl ScriptedModel {
    pub(crate) fn new(answer: impl Fn(&Value) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = format!("http://{}/v1", listener.local_addr().expect("an address"));
        let requests: Arc<Mutex<Vec<Value>>> = Arc::default();
        let answered: Arc<AtomicUsize> = Arc::default();
        let keys: Arc<Mutex<Vec<String>>> = Arc::default();
        let (kept, count, answer) = (Arc::clone(&requests), Arc::clone(&answered), Arc::new(answer));
        let shown = Arc::clone(&keys);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, count, answer) = (Arc::clone(&kept), Arc::clone(&count), Arc::clone(&answer));
                let shown = Arc::clone(&shown);
                std::thread::spawn(move || {
                    let (key, request) = receive(&stream);
                    if request.is_null() {
                        return drop(send_models(stream));
                    }
                    shown.lock().expect("the keys").push(key);
                    kept.lock().expect("the requests").push(request.clone());
                    // Whoever is cancelled hangs up.
                    drop(send(stream, &answer(&request)));
                    count.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, requests, answered, keys }
    }

    /// The program will find this model as `openai:scripted`.
    pub(crate) fn offered_to(&self, mut command: Command) -> Command {
        command.env("SKEIN_MODEL", "openai:scripted").env("OPENAI_BASE_URL", &self.address);
        command.env("OPENAI_API_KEY", "a-key-for-a-test");
        command
    }

    /// Where it listens, as `OPENAI_BASE_URL` names it.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// How many answers it has said to their end.
    pub(crate) fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }

    /// What came as `authorization` with each request.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.keys.lock().expect("the keys").clone()
    }

    pub(crate) fn requests(&self) -> Vec<Value> {
        self.requests.lock().expect("the requests").clone()
    }
}

/// The last words of the user in a request.
pub(crate) fn asked(request: &Value) -> String {
    let messages = request["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let user = messages.iter().rev().find(|message| message["role"] == "user");
    user.map(|message| message["content"].to_string()).unwrap_or_default()
}

/// Whether the model is told what came of its call.
pub(crate) fn has_result(request: &Value) -> bool {
    request["messages"].as_array().and_then(|messages| messages.last()).is_some_and(|last| last["role"] == "tool")
}

/// The key that came along, and the request.
fn receive(stream: &TcpStream) -> (String, Value) {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    let mut key = String::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if let Some((_, value)) = line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
            value.trim().clone_into(&mut key);
        }
        if line.trim().is_empty() {
            break;
        }
    }
    // Whoever asks for nothing asks which models there are.
    if length == 0 {
        return (key, Value::Null);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    (key, serde_json::from_slice(&body).expect("JSON"))
}

fn send_models(mut stream: TcpStream) -> std::io::Result<()> {
    let models = json!({"object": "list", "data": [{"id": "scripted", "object": "model", "owned_by": "test"}]});
    let body = models.to_string();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
    write!(stream, "{head}\r\nconnection: close\r\n\r\n{body}")
}

fn send(mut stream: TcpStream, answer: &Answer) -> std::io::Result<()> {
    let (deltas, reason) = match answer {
        Answer::Says(pieces) => (pieces.iter().map(|piece| json!({"content": piece})).collect(), "stop"),
        Answer::Paced { pieces, .. } => (pieces.iter().map(|piece| json!({"content": piece})).collect(), "stop"),
        Answer::Hangs(text) | Answer::Breaks(text) => (vec![json!({"content": text})], ""),
        Answer::Calls { id, tool, arguments } => {
            let function = json!({"name": tool, "arguments": arguments.to_string()});
            let call = json!({"index": 0, "id": id, "type": "function", "function": function});
            (vec![json!({"role": "assistant", "tool_calls": [call]})], "tool_calls")
        }
        Answer::CallsMany(calls) => {
            let call = |(at, (id, tool, arguments)): (usize, &(&str, &str, Value))| {
                let function = json!({"name": tool, "arguments": arguments.to_string()});
                json!({"index": at, "id": id, "type": "function", "function": function})
            };
            let calls: Vec<_> = calls.iter().enumerate().map(call).collect();
            (vec![json!({"role": "assistant", "tool_calls": calls})], "tool_calls")
        }
        Answer::SaysAndCalls { text, tool, arguments } => {
            let function = json!({"name": tool, "arguments": arguments.to_string()});
            let call = json!({"index": 0, "id": "c1", "type": "function", "function": function});
            (vec![json!({"content": text}), json!({"tool_calls": [call]})], "tool_calls")
        }
        Answer::Floods { .. } => (Vec::new(), "stop"),
        Answer::Status(status) => {
            return send(stream, &Answer::Refuses(*status, r#"{"error":{"message":"scripted"}}"#));
        }
        Answer::Refuses(status, body) => {
            let length = body.len();
            let head = format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}");
            return write!(stream, "{head}\r\nconnection: close\r\n\r\n{body}");
        }
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked";
    write!(stream, "{head}\r\nconnection: close\r\n\r\n")?;
    if let Answer::Floods { bytes, sent } = answer {
        flood(&mut stream, *bytes, sent)?;
    }
    let chunk = |stream: &mut TcpStream, event: &Value| {
        let text = format!("data: {event}\n\n");
        write!(stream, "{:x}\r\n{text}\r\n", text.len())
    };
    for (at, delta) in deltas.into_iter().enumerate() {
        if let (Answer::Paced { go, .. }, true) = (answer, at > 0) {
            // Without anybody to tell it, it says all.
            go.lock().expect("the signal").recv().unwrap_or_default();
        }
        chunk(&mut stream, &json!({"id": "c", "choices": [{"index": 0, "delta": delta}]}))?;
    }
    if let Answer::Breaks(_) = answer {
        return Ok(());
    }
    if reason.is_empty() {
        // Nothing is read until the other side hangs up.
        return stream.read(&mut [0; 1]).map(drop);
    }
    chunk(&mut stream, &json!({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))?;
    let usage = json!({"prompt_tokens": 100, "completion_tokens": 7});
    chunk(&mut stream, &json!({"id": "c", "choices": [], "usage": usage}))?;
    write!(stream, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
}

/// Fails when the other side hangs up.
fn flood(stream: &mut TcpStream, bytes: u64, sent: &AtomicU64) -> std::io::Result<()> {
    const PIECE: u64 = 64 << 10;
    let text = "word ".repeat(usize::try_from(PIECE / 5).expect("a size"));
    let event = format!("data: {}\n\n", json!({"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]}));
    let chunk = format!("{:x}\r\n{event}\r\n", event.len());
    for _ in 0..bytes / PIECE {
        stream.write_all(chunk.as_bytes())?;
        sent.fetch_add(PIECE, Ordering::SeqCst);
    }
    Ok(())
}
