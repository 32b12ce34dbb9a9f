//! A client of the legacy MCP era, over a child process or over HTTP on this machine.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::{program, text_of};

pub(super) enum Mcp {
    Child { child: Child, input: ChildStdin, output: BufReader<ChildStdout>, next: u64 },
    Http { address: String, path: String, headers: Vec<(String, String)>, next: u64 },
}

impl Mcp {
    pub(super) fn connect(server: &Value) -> Result<Self, String> {
        let pairs = |key: &str| -> Vec<(String, String)> {
            let entries = server[key].as_array().into_iter().flatten();
            entries.map(|entry| (text_of(entry, "name").to_owned(), text_of(entry, "value").to_owned())).collect()
        };
        let mut mcp = if let Some(url) = server["url"].as_str() {
            let rest = url.strip_prefix("http://").ok_or("only http:// is known")?;
            let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
            Mcp::Http { address: address.to_owned(), path: format!("/{path}"), headers: pairs("headers"), next: 1 }
        } else {
            let args = server["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let mut command = program(text_of(server, "command"));
            command.args(args).envs(pairs("env")).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().map_err(|error| format!("{}: {error}", text_of(server, "command")))?;
            let pipes = (child.stdin.take(), child.stdout.take());
            let (Some(input), Some(output)) = pipes else { return Err("no pipes".to_owned()) };
            Mcp::Child { child, input, output: BufReader::new(output), next: 1 }
        };
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "skein-acp-echo", "version": "0"}});
        mcp.ask("initialize", hello)?;
        mcp.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(mcp)
    }

    pub(super) fn ask(&mut self, method: &str, params: Value) -> Result<Value, String> {
        let next = match self {
            Mcp::Child { next, .. } | Mcp::Http { next, .. } => next,
        };
        let id = *next;
        *next += 1;
        let lines = self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
        let messages =
            lines.lines().filter_map(|line| serde_json::from_str::<Value>(line.trim_start_matches("data:")).ok());
        let answer = messages.into_iter().find(|message| message["id"] == json!(id));
        let answer = answer.ok_or(format!("no answer to {method}: {lines}"))?;
        match answer.get("error") {
            Some(error) => Err(format!("error {}: {}", error["code"], text_of(error, "message"))),
            None => Ok(answer["result"].clone()),
        }
    }

    /// Sends a message, and gives what came back up to its answer, if it is a request.
    fn send(&mut self, message: &Value) -> Result<String, String> {
        self.exchange(message).map_err(|error| format!("the MCP server is gone: {error}"))
    }

    fn exchange(&mut self, message: &Value) -> std::io::Result<String> {
        let mut back = String::new();
        match self {
            Mcp::Child { input, output, .. } => {
                writeln!(input, "{message}")?;
                input.flush()?;
                // What else comes before the answer is a notification.
                while message.get("id").is_some() && !back.contains("\"result\"") && !back.contains("\"error\"") {
                    back.clear();
                    if output.read_line(&mut back)? == 0 {
                        break;
                    }
                }
            }
            Mcp::Http { address, path, headers, .. } => {
                let mut stream = TcpStream::connect(address.as_str())?;
                let body = message.to_string();
                let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                // Of version 1.0, so that the end of the answer is the end of the connection.
                write!(
                    stream,
                    "POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n\
                     Accept: application/json, text/event-stream\r\n{more}Content-Length: {}\r\n\r\n{body}",
                    body.len()
                )?;
                back = read_answer(stream)?;
                let session = back.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("mcp-session-id").then(|| value.trim().to_owned())
                });
                headers.extend(session.map(|id| ("Mcp-Session-Id".to_owned(), id)));
            }
        }
        Ok(back)
    }
}

/// The head and the body of an answer; without a length it ends with the connection.
fn read_answer(stream: TcpStream) -> std::io::Result<String> {
    let mut reader = BufReader::new(stream);
    let (mut back, mut length) = (String::new(), u64::MAX);
    loop {
        let mut line = String::new();
        let ended = reader.read_line(&mut line)? == 0 || line.trim().is_empty();
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(u64::MAX);
        }
        back.push_str(&line);
        if ended {
            break;
        }
    }
    reader.take(length).read_to_string(&mut back)?;
    Ok(back)
}

impl Drop for Mcp {
    fn drop(&mut self) {
        if let Mcp::Child { child, .. } = self {
            // It may have ended by itself.
            drop(child.kill().and_then(|()| child.wait()));
        }
    }
}
