//! `skein-bare-stream`: the least that an ACP agent does with the answer of a model. It reads the events, parses each
//! delta and writes it as one line of JSON. It has one thread and knows no tools, no history and no provider errors.
//! `scripts/bench --floor` compares its CPU time with that of `skein acp`.

use std::borrow::Cow;
use std::error::Error;
use std::io::{self, BufRead, BufReader, BufWriter, Read as _, Write};
use std::net::TcpStream;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let base = std::env::var("OPENAI_BASE_URL")?;
    let (host, path) =
        base.strip_prefix("http://").and_then(|rest| rest.split_once('/')).ok_or("no http:// address")?;
    let mut model = ModelConnection::open(host, path)?;
    let mut output = BufWriter::with_capacity(256 << 10, io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let Some(id) = request.get("id") else { continue };
        let result = match request["method"].as_str() {
            Some("initialize") => json!({"protocolVersion": 1}),
            Some("session/new") => json!({"sessionId": "bare"}),
            Some("session/prompt") => {
                let prompt = request["params"]["prompt"][0]["text"].as_str().ok_or("the prompt has no text")?;
                model.answer(prompt, &mut output)?;
                json!({"stopReason": "end_turn"})
            }
            _ => return Err(format!("unknown method: {request}").into()),
        };
        writeln!(output, "{}", json!({"jsonrpc": "2.0", "id": id, "result": result}))?;
        output.flush()?;
    }
    Ok(())
}

/// A connection that is used for all requests.
struct ModelConnection {
    host: String,
    path: String,
    stream: BufReader<TcpStream>,
    /// Used again for the size of each chunk.
    line: String,
}

impl ModelConnection {
    fn open(host: &str, path: &str) -> Outcome<Self> {
        let stream = TcpStream::connect(host)?;
        stream.set_nodelay(true)?;
        let (host, path) = (host.to_owned(), path.trim_end_matches('/').to_owned());
        Ok(Self { host, path, stream: BufReader::with_capacity(64 << 10, stream), line: String::new() })
    }

    /// Sends the prompt and writes each delta of the answer as one line.
    fn answer(&mut self, prompt: &str, output: &mut impl Write) -> Outcome<()> {
        let tools = json!([{"type": "function", "function": {"name": "bare__shell"}}]);
        let messages = json!([{"role": "user", "content": prompt}]);
        let body = json!({"model": "gpt-4o", "stream": true, "tools": tools, "messages": messages}).to_string();
        let head = format!("POST /{}/chat/completions HTTP/1.1\r\nhost: {}\r\n", self.path, self.host);
        let length = body.len();
        let request = format!("{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.skip_head()?;
        let (mut chunk, mut events) = (Vec::new(), EventReader::default());
        while self.read_chunk(&mut chunk, output)? {
            events.feed(&chunk, output)?;
        }
        Ok(())
    }

    fn skip_head(&mut self) -> Outcome<()> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        if !line.starts_with("HTTP/1.1 200") {
            return Err(format!("the model refused: {line}").into());
        }
        while !line.trim_end().is_empty() {
            line.clear();
            self.stream.read_line(&mut line)?;
        }
        Ok(())
    }

    /// Reads a chunk of the transfer. Returns false after the last one. Writes all lines before it waits for more.
    fn read_chunk(&mut self, chunk: &mut Vec<u8>, output: &mut impl Write) -> Outcome<bool> {
        if self.stream.buffer().is_empty() {
            output.flush()?;
        }
        self.line.clear();
        self.stream.read_line(&mut self.line)?;
        let size = usize::from_str_radix(self.line.trim_end(), 16)?;
        // The line end behind the data belongs to the chunk.
        chunk.resize(size + 2, 0);
        self.stream.read_exact(chunk)?;
        chunk.truncate(size);
        Ok(size > 0)
    }
}

/// Splits the bytes into events.
#[derive(Default)]
struct EventReader {
    rest: Vec<u8>,
}

impl EventReader {
    fn feed(&mut self, bytes: &[u8], output: &mut impl Write) -> Outcome<()> {
        self.rest.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(end) = memchr::memmem::find(&self.rest[start..], b"\n\n") {
            let event = &self.rest[start..start + end];
            start += end + 2;
            match event.strip_prefix(b"data: ") {
                None | Some(b"[DONE]") => {}
                Some(data) => write_delta(serde_json::from_slice(data)?, output)?,
            }
        }
        self.rest.drain(..start);
        Ok(())
    }
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: DeltaContent<'a>,
}

#[derive(Deserialize)]
struct DeltaContent<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
}

#[derive(Serialize)]
struct Line<'a> {
    jsonrpc: &'static str,
    method: &'static str,
    params: Params<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    session_id: &'static str,
    update: Update<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Update<'a> {
    session_update: &'static str,
    content: TextContent<'a>,
}

#[derive(Serialize)]
struct TextContent<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
}

fn write_delta(delta: Delta<'_>, output: &mut impl Write) -> Outcome<()> {
    for text in
        delta.choices.iter().filter_map(|choice| choice.delta.content.as_deref()).filter(|text| !text.is_empty())
    {
        let content = TextContent { kind: "text", text };
        let update = Update { session_update: "agent_message_chunk", content };
        let params = Params { session_id: "bare", update };
        serde_json::to_writer(&mut *output, &Line { jsonrpc: "2.0", method: "session/update", params })?;
        output.write_all(b"\n")?;
    }
    Ok(())
}
