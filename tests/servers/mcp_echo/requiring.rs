//! Tools that call the services which this one requires, as a program of the older era does.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::{append, program, refuse, say, tool};

pub(super) fn tools() -> Vec<Value> {
    let (string, object) = (json!({"type": "string"}), json!({"type": "object"}));
    let request = json!({"role": string, "method": string, "params": object});
    let mut later = request.clone();
    later["after"] = string.clone();
    later["file"] = string.clone();
    vec![
        tool("ask_required", "Sends a request to a required service.", request),
        tool("ask_required_later", "Answers, sends it when a file exists, and writes the answer.", later),
        tool("connect_again", "Uses the address of a required service once more.", json!({"role": string})),
    ]
}

/// The connections to required services, by role. Each stays open, because its address works once.
#[derive(Default)]
pub(super) struct RequiredServices(Arc<Mutex<HashMap<String, RequiredConnection>>>);

struct RequiredConnection {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    last_id: u64,
}

impl RequiredServices {
    /// True if the tool is one of these.
    pub(super) fn call(&self, id: &Value, params: &Value) -> bool {
        let arguments = params["arguments"].clone();
        let role = arguments["role"].as_str().unwrap_or_default().to_owned();
        match params["name"].as_str().unwrap_or_default() {
            "ask_required" => match self.ask(&role, &arguments) {
                Ok(answer) => say(id, &answer.to_string()),
                Err(problem) => refuse(id, -32603, &problem),
            },
            "ask_required_later" => {
                let connections = Self(Arc::clone(&self.0));
                say(id, "later");
                while !Path::new(arguments["after"].as_str().unwrap_or_default()).exists() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let answer = connections.ask(&role, &arguments).unwrap_or_else(Value::from);
                append(arguments["file"].as_str().unwrap_or_default(), &answer.to_string());
            }
            "connect_again" => match spawn(&role) {
                Ok(mut child) => {
                    drop(child.stdin.take());
                    let (mut said, mut complained) = (String::new(), String::new());
                    // Both end with the process.
                    drop(child.stdout.take().map(|mut pipe| pipe.read_to_string(&mut said)));
                    drop(child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut complained)));
                    drop(child.wait());
                    say(id, &format!("{said}{complained}"));
                }
                Err(problem) => refuse(id, -32603, &problem),
            },
            _ => return false,
        }
        true
    }

    /// Sends a request and returns its result or error. The first request for a role connects.
    fn ask(&self, role: &str, arguments: &Value) -> Result<Value, String> {
        let mut connections = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !connections.contains_key(role) {
            connections.insert(role.to_owned(), RequiredConnection::open(role)?);
        }
        let connection = connections.get_mut(role).ok_or("it was just inserted")?;
        connection.request(arguments["method"].as_str().unwrap_or_default(), &arguments["params"])
    }
}

impl RequiredConnection {
    fn open(role: &str) -> Result<Self, String> {
        let mut process = spawn(role)?;
        let stdin = process.stdin.take().ok_or("it has an input")?;
        let stdout = BufReader::new(process.stdout.take().ok_or("it has an output")?);
        let mut connection = Self { process, stdin, stdout, last_id: 0 };
        let client = json!({"name": "skein-mcp-echo", "version": "0"});
        let greeting = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        connection.request("initialize", &greeting)?;
        connection.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(connection)
    }

    fn send(&mut self, message: &Value) -> Result<(), String> {
        let sent = writeln!(self.stdin, "{message}").and_then(|()| self.stdin.flush());
        sent.map_err(|error| format!("it cannot be written to: {error}"))
    }

    fn request(&mut self, method: &str, params: &Value) -> Result<Value, String> {
        self.last_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}))?;
        let mut line = String::new();
        while self.stdout.read_line(&mut line).is_ok_and(|read| read > 0) {
            let message: Value = serde_json::from_str(&line).unwrap_or_default();
            if message["id"] == json!(self.last_id) {
                let answer = if message["error"].is_null() { "result" } else { "error" };
                return Ok(message[answer].clone());
            }
            line.clear();
        }
        Err("the connection has ended".to_owned())
    }
}

impl Drop for RequiredConnection {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Starts the command line of a role, as a shell does.
fn spawn(role: &str) -> Result<Child, String> {
    let variable = format!("SKEIN_REQUIRES_{}", role.to_uppercase().replace('-', "_"));
    let command = std::env::var(&variable).map_err(|_| format!("{variable} is not set"))?;
    let mut shell = program("sh");
    shell.args(["-c", &format!("exec {command}")]);
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A command of the environment of a client library, which passes little of its own on.
    shell.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    shell.spawn().map_err(|error| error.to_string())
}
