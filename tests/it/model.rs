//! A scripted model behind real HTTP. It answers each request as it was told to, and keeps what it was asked.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// What the scripted model does when it is asked.
pub(crate) enum Answer {
    /// Streams these pieces of a chat completion.
    Stream(Vec<Value>),
    /// The same, and then drops the connection.
    Cut(Vec<Value>),
    /// The same, each piece when it is let go.
    Slow(Vec<Value>, Receiver<()>),
    /// Streams these events of any dialect as they are, to an orderly end.
    Events(Vec<(&'static str, Value)>),
    /// Sends this and ends in order.
    Raw(&'static str, String),
    /// Sends this and resets the connection.
    Reset(String),
    /// Refuses with these headers.
    Status(u16, &'static str),
    /// Refuses in these words.
    Refuse(u16, &'static str),
}

/// A server that keeps every request: its headers and its body, as they came.
pub(crate) struct Model {
    pub(crate) address: String,
    pub(crate) requests: Arc<Mutex<Vec<(String, String)>>>,
}

impl Model {
    pub(crate) fn new(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/v1", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
        let kept = Arc::clone(&requests);
        std::thread::spawn(move || {
            for answer in answers {
                let Ok((stream, _)) = listener.accept() else { return };
                let request = receive(&stream);
                kept.lock().unwrap().push(request);
                // A client that has heard enough may be gone.
                drop(send(stream, &answer));
            }
        });
        Self { address, requests }
    }

    pub(crate) fn body(&self, index: usize) -> String {
        self.requests.lock().unwrap()[index].1.clone()
    }

    pub(crate) fn request(&self, index: usize) -> Value {
        serde_json::from_str(&self.body(index)).unwrap()
    }

    pub(crate) fn asked(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

fn receive(stream: &TcpStream) -> (String, String) {
    let mut reader = BufReader::new(stream);
    let mut headers = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
        headers.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (headers, String::from_utf8(body).unwrap())
}

fn send(mut stream: TcpStream, answer: &Answer) -> std::io::Result<()> {
    match answer {
        Answer::Status(status, headers) => refuse(&mut stream, *status, headers, r#"{"error":{"message":"scripted"}}"#),
        Answer::Refuse(status, body) => refuse(&mut stream, *status, "", body),
        Answer::Stream(pieces) => {
            begin(&mut stream, "text/event-stream")?;
            pieces.iter().try_for_each(|piece| chunk(&mut stream, &completion(piece)))?;
            end(&mut stream)
        }
        Answer::Slow(pieces, gate) => {
            begin(&mut stream, "text/event-stream")?;
            for piece in pieces {
                if gate.recv().is_err() {
                    return Ok(());
                }
                chunk(&mut stream, &completion(piece))?;
            }
            end(&mut stream)
        }
        Answer::Cut(pieces) => {
            begin(&mut stream, "text/event-stream")?;
            pieces.iter().try_for_each(|piece| chunk(&mut stream, &completion(piece)))
        }
        Answer::Events(events) => {
            begin(&mut stream, "text/event-stream")?;
            for (name, data) in events {
                let name = if name.is_empty() { String::new() } else { format!("event: {name}\n") };
                chunk(&mut stream, &format!("{name}data: {data}\n\n"))?;
            }
            stream.write_all(b"0\r\n\r\n")
        }
        Answer::Raw(kind, text) => {
            begin(&mut stream, kind)?;
            chunk(&mut stream, text)?;
            stream.write_all(b"0\r\n\r\n")
        }
        Answer::Reset(text) => {
            begin(&mut stream, "text/event-stream")?;
            chunk(&mut stream, text)?;
            // Closed without lingering, a connection is reset.
            stream.set_nonblocking(true)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            runtime.block_on(async { tokio::net::TcpStream::from_std(stream)?.set_zero_linger() })
        }
    }
}

fn refuse(stream: &mut TcpStream, status: u16, headers: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn begin(stream: &mut TcpStream, kind: &str) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
}

fn chunk(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
    write!(stream, "{:x}\r\n{text}\r\n", text.len())
}

pub(crate) fn completion(piece: &Value) -> String {
    let event = json!({"id": "c", "object": "chat.completion.chunk", "model": "scripted", "choices": [piece]});
    format!("data: {event}\n\n")
}

fn end(stream: &mut TcpStream) -> std::io::Result<()> {
    let usage = json!({"id": "c", "choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 60}}});
    chunk(stream, &format!("data: {usage}\n\n"))?;
    chunk(stream, "data: [DONE]\n\n")?;
    stream.write_all(b"0\r\n\r\n")
}

/// A piece of text of a chat completion.
pub(crate) fn text(text: &str) -> Value {
    json!({"index": 0, "delta": {"role": "assistant", "content": text}})
}

pub(crate) fn stop(reason: &str) -> Value {
    json!({"index": 0, "delta": {}, "finish_reason": reason})
}

pub(crate) fn says(words: &str) -> Vec<Value> {
    vec![text(words), stop("stop")]
}

pub(crate) fn calls(name: &str, arguments: &Value) -> Vec<Value> {
    wishes(&[("call_1", name, &arguments.to_string())])
}

/// Calls side by side, each as id, name and the text of its arguments.
pub(crate) fn wishes(wishes: &[(&str, &str, &str)]) -> Vec<Value> {
    let calls: Vec<_> = wishes
        .iter()
        .enumerate()
        .map(|(index, (id, name, arguments))| {
            json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        })
        .collect();
    vec![json!({"index": 0, "delta": {"role": "assistant", "tool_calls": calls}}), stop("tool_calls")]
}
