//! `skein-bench-model`: a scripted model that costs next to nothing, because its time is part of each measurement. It is
//! an OpenAI-compatible server on a free port of 127.0.0.1, which it prints. `benches/acp/model.py` builds and starts it.
//!
//! The last `bench:WORD` in a request says what the answer is. So there is no state, and many sessions can prompt at once:
//!
//! - `bench:say`: one delta
//! - `bench:stream:20000`: so many deltas, as fast as the client takes them
//! - `bench:pace:20:500`: so many deltas, one every so many milliseconds
//! - `bench:tool`: one call of the offered tool whose name ends in `shell`, then one delta
//! - `bench:tool:NAME`: the same with the offered tool whose name ends in `NAME`, called without arguments
//!
//! It searches requests as bytes. `GET /last` returns the body of the last request with tools.

use std::collections::HashMap;
use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

const MODELS: &str = r#"{"object":"list","data":[{"id":"gpt-4o","object":"model","created":1,"owned_by":"bench"}]}"#;
const SIDE: &str = r#"{"id":"1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"title"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;
const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

static SAY: LazyLock<Arc<[u8]>> = LazyLock::new(|| answer(&delta(r#"{"content":"hello"}"#), "stop"));
static DONE: LazyLock<Arc<[u8]>> = LazyLock::new(|| answer(&delta(r#"{"content":"done"}"#), "stop"));
static WORD: LazyLock<String> = LazyLock::new(|| delta(r#"{"content":"word "}"#));
static STREAMS: LazyLock<Mutex<HashMap<usize, Arc<[u8]>>>> = LazyLock::new(Mutex::default);
static LAST: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn main() -> Outcome<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut output = std::io::stdout();
    writeln!(output, "{}", listener.local_addr()?.port())?;
    output.flush()?;
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || {
            // The client ends the connection, or the measurement fails and says why.
            serve(stream).ok();
        });
    }
    Ok(())
}

/// Answers the requests of one connection.
fn serve(mut stream: TcpStream) -> Outcome<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(256 << 10);
    loop {
        while let Some(body) = find(&buffer, b"\r\n\r\n").map(|end| end + 4) {
            let end = body + content_length(&buffer[..body])?;
            if buffer.len() < end {
                break;
            }
            reply(&mut stream, &buffer[..body], &buffer[body..end])?;
            buffer.drain(..end);
        }
        let length = buffer.len();
        buffer.resize(length + (64 << 10), 0);
        let count = stream.read(&mut buffer[length..])?;
        buffer.truncate(length + count);
        if count == 0 {
            return Ok(());
        }
    }
}

fn content_length(head: &[u8]) -> Outcome<usize> {
    for line in std::str::from_utf8(head)?.lines() {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            return Ok(value.trim().parse()?);
        }
    }
    Ok(0)
}

fn reply(stream: &mut TcpStream, head: &[u8], body: &[u8]) -> Outcome<()> {
    if head.starts_with(b"GET /last") {
        let last = LAST.lock().unwrap_or_else(PoisonError::into_inner).clone();
        return Ok(stream.write_all(&whole(&last))?);
    }
    if head.starts_with(b"GET") {
        return Ok(stream.write_all(&whole(MODELS.as_bytes()))?);
    }
    // Titles and summaries are requested without tools.
    if rfind(body, b"\"tools\"").is_none() {
        let side = if has_field(body, "stream", "true") { SAY.to_vec() } else { whole(SIDE.as_bytes()) };
        return Ok(stream.write_all(&side)?);
    }
    body.clone_into(&mut LAST.lock().unwrap_or_else(PoisonError::into_inner));
    let at = rfind(body, b"bench:").ok_or("the request has no bench:WORD")?;
    let end = body[at..].iter().position(|byte| !byte.is_ascii_alphanumeric() && !b":_".contains(byte));
    let word = std::str::from_utf8(&body[at..end.map_or(body.len(), |end| at + end)])?;
    let mut parts = word.split(':').skip(1);
    let (what, first, second) = (parts.next(), parts.next(), parts.next());
    match (what, first, second) {
        (Some("say"), None, None) => stream.write_all(&SAY)?,
        (Some("stream"), Some(count), None) => stream.write_all(&many(count.parse()?))?,
        (Some("pace"), Some(count), Some(milliseconds)) => {
            pace(stream, count.parse()?, Duration::from_millis(milliseconds.parse()?))?;
        }
        // A result behind the prompt: the call was made.
        (Some("tool"), _, None) if has_field(&body[at..], "role", "\"tool\"") => stream.write_all(&DONE)?,
        (Some("tool"), name, None) => stream.write_all(&call(body, name)?)?,
        _ => return Err(format!("unknown word: {word}").into()),
    }
    Ok(())
}

/// Sends one delta at a time. Each is due at a fixed time, so that a late one delays no other.
fn pace(stream: &mut TcpStream, count: u32, pause: Duration) -> Outcome<()> {
    stream.write_all(format!("{HEAD}{}", begin()).as_bytes())?;
    let begun = Instant::now();
    for number in 1..=count {
        thread::sleep((begun + pause * number).saturating_duration_since(Instant::now()));
        stream.write_all(WORD.as_bytes())?;
    }
    Ok(stream.write_all(end("stop").as_bytes())?)
}

fn many(count: usize) -> Arc<[u8]> {
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(streams.entry(count).or_insert_with(|| answer(&WORD.repeat(count), "stop")))
}

/// A call of the offered tool whose name ends in `wanted`, or in `shell`.
fn call(body: &[u8], wanted: Option<&str>) -> Outcome<Arc<[u8]>> {
    let text = std::str::from_utf8(body)?;
    let suffix = wanted.unwrap_or("shell");
    let mut names = text.split("\"name\"").skip(1).filter_map(|rest| {
        let rest = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
        rest.split_once('"').map(|(name, _)| name)
    });
    let name = names.find(|name| name.ends_with(suffix)).ok_or_else(|| format!("no tool ends in `{suffix}`"))?;
    let arguments = if wanted.is_some() { "{}" } else { r#"{\"command\":\"echo bench\"}"# };
    let calls = format!(
        r#"{{"tool_calls":[{{"index":0,"id":"call_1","type":"function","function":{{"name":"{name}","arguments":"{arguments}"}}}}]}}"#
    );
    Ok(answer(&delta(&calls), "tool_calls"))
}

fn answer(deltas: &str, reason: &str) -> Arc<[u8]> {
    format!("{HEAD}{}{deltas}{}", begin(), end(reason)).into_bytes().into()
}

fn begin() -> String {
    delta(r#"{"role":"assistant","content":""}"#)
}

fn end(reason: &str) -> String {
    let finish = choices(&format!(r#"{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}"#), "null");
    let usage = choices("", r#"{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}"#);
    format!("{finish}{usage}{}0\r\n\r\n", event("[DONE]"))
}

fn delta(content: &str) -> String {
    choices(&format!(r#"{{"index":0,"delta":{content},"finish_reason":null}}"#), "null")
}

fn choices(choices: &str, usage: &str) -> String {
    event(&format!(
        r#"{{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{choices}],"usage":{usage}}}"#
    ))
}

/// An event, as a chunk of a body.
fn event(data: &str) -> String {
    format!("{:x}\r\ndata: {data}\n\n\r\n", "data: \n\n".len() + data.len())
}

fn whole(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Whether a field of some object has this value.
fn has_field(json: &[u8], name: &str, value: &str) -> bool {
    let quoted = format!("\"{name}\"");
    let mut rest = json;
    while let Some(at) = find(rest, quoted.as_bytes()) {
        rest = &rest[at + quoted.len()..];
        if let Some(behind) = rest.trim_ascii_start().strip_prefix(b":")
            && behind.trim_ascii_start().starts_with(value.as_bytes())
        {
            return true;
        }
    }
    false
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn rfind(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).rposition(|window| window == part)
}
