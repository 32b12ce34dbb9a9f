//! An ACP client that works on the lines of the wire, so that a test can say what is on it and in which order.
//!
//! Invariant: every line the agent writes is one JSON-RPC message that fits the protocol's own types without
//! losing a key; every answer belongs to one question; nothing is asked of the client that the test did not script,
//! and nothing is told that it did not say it understands.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agent_client_protocol::v1::schema as acp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::remote::{self, RemoteInput, Transport};
use super::serve::{Server, terminate};
use super::{Sandbox, processes_of};

/// How long the agent may be silent before a test gives up on it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A field that no protocol knows, which the tests let an agent outside add.
const FOREIGN: &str = "tint";

type Script = Box<dyn FnMut(&Value) -> Option<Value>>;

/// What the client writes to.
enum AgentInput {
    Stdin(ChildStdin),
    Remote(RemoteInput),
}

/// `skein acp` as a child, and its client. Over another transport the child is `skein serve`.
pub(crate) struct Acp {
    child: Child,
    /// The server behind the child, which ends with the client.
    server: Option<Server>,
    stdin: Option<AgentInput>,
    lines: Receiver<Vec<u8>>,
    /// Whoever holds it keeps the client from reading.
    ears: Arc<Mutex<()>>,
    /// Both sides, for whoever must find out what went wrong.
    transcript: Vec<String>,
    heard: Vec<Value>,
    /// The method of every request that is not answered yet, by its id.
    asked: HashMap<String, String>,
    scripts: HashMap<&'static str, Script>,
    next: i64,
    /// What the client said it can do.
    capabilities: Value,
    project: PathBuf,
    home: PathBuf,
    stderr: PathBuf,
}

impl Acp {
    /// A client that can do nothing beyond the basics, introduced.
    pub(crate) fn start(sandbox: &Sandbox) -> Self {
        Self::able(sandbox, &[], &json!({}))
    }

    /// The same, with flags for the agent and capabilities of the client.
    pub(crate) fn able(sandbox: &Sandbox, args: &[&str], capabilities: &Value) -> Self {
        let mut client = Self::launch(sandbox, sandbox.command(&[&["acp"], args].concat()));
        client.introduce(capabilities);
        client
    }

    /// Starts the agent and says nothing.
    pub(crate) fn launch(sandbox: &Sandbox, mut command: Command) -> Self {
        let (home, stderr) = (sandbox.path("home"), sandbox.path("stderr"));
        let errors = File::options().create(true).append(true).open(&stderr).expect("a file for stderr");
        // The variable marks every process that comes of this one.
        command.env("TMPDIR", &home).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let (sender, lines) = channel();
        let ears: Arc<Mutex<()>> = Arc::default();
        let hearing = Arc::clone(&ears);
        let mut server = None;
        if remote::transport() == Transport::Connect {
            let (serving, forwarding) = remote::forward(&command);
            let errors = File::options().append(true).open(&stderr).expect("a file for stderr");
            command = forwarding;
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
            server = Some(serving);
        }
        let (child, stdin) = match remote::transport() {
            Transport::Stdio | Transport::Connect => {
                let mut child = command.spawn().expect("the agent starts");
                read_lines(child.stdout.take().expect("its stdout"), sender, hearing);
                let stdin = child.stdin.take().expect("its stdin");
                (child, AgentInput::Stdin(stdin))
            }
            Transport::WebSocket | Transport::Http => {
                let (child, input) = remote::connect(&command, sender, hearing);
                (child, AgentInput::Remote(input))
            }
        };
        Self {
            stdin: Some(stdin),
            child,
            server,
            lines,
            ears,
            transcript: Vec::new(),
            heard: Vec::new(),
            asked: HashMap::new(),
            scripts: HashMap::new(),
            next: 0,
            capabilities: json!({}),
            project: sandbox.path("project"),
            home,
            stderr,
        }
    }

    pub(crate) fn introduce(&mut self, capabilities: &Value) -> Value {
        self.capabilities = capabilities.clone();
        self.ask("initialize", json!({"protocolVersion": 1, "clientCapabilities": capabilities}))
    }

    /// While this is locked, the client reads nothing.
    pub(crate) fn ears(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.ears)
    }

    /// Answers requests of the agent; `None` leaves one open for `reply`.
    pub(crate) fn on(&mut self, method: &'static str, script: impl FnMut(&Value) -> Option<Value> + 'static) {
        self.scripts.insert(method, Box::new(script));
    }

    /// Whoever is asked for permission chooses this option.
    pub(crate) fn on_permission(&mut self, option: &'static str) {
        self.on("session/request_permission", move |_| Some(selected(option)));
    }

    /// These bytes, as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(500)]);
        self.transcript.push(format!("> {}", shown.trim_end()));
        match self.stdin.as_mut().expect("stdin is open") {
            AgentInput::Stdin(stdin) => {
                stdin.write_all(bytes).and_then(|()| stdin.flush()).expect("the agent reads");
            }
            AgentInput::Remote(input) => input.send(bytes.to_vec()).expect("the agent reads"),
        }
    }

    pub(crate) fn say(&mut self, message: &Value) {
        if let (Some(method), Some(id)) = (message["method"].as_str(), message.get("id")) {
            self.asked.insert(id.to_string(), method.to_owned());
        }
        self.raw(format!("{message}\n").as_bytes());
    }

    /// A request; its id.
    pub(crate) fn send(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = json!(self.next);
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    pub(crate) fn notify(&mut self, method: &str, params: Value) {
        self.say(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    pub(crate) fn reply(&mut self, id: &Value, mut reply: Value) {
        reply["jsonrpc"] = json!("2.0");
        reply["id"] = id.clone();
        self.say(&reply);
    }

    /// The whole answer to a request, whenever it comes.
    pub(crate) fn answer(&mut self, id: &Value) -> Value {
        self.wait(0, &format!("the answer to {id}"), |message| message.get("method").is_none() && message["id"] == *id)
    }

    /// The result of a request that works.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        self.result(&id)
    }

    pub(crate) fn result(&mut self, id: &Value) -> Value {
        let answer = self.answer(id);
        answer.get("result").unwrap_or_else(|| panic!("{answer} is no result")).clone()
    }

    /// The error of a request that does not.
    pub(crate) fn refused(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        let answer = self.answer(&id);
        answer.get("error").unwrap_or_else(|| panic!("{method}: {answer} is no error")).clone()
    }

    /// A place in what was heard so far.
    pub(crate) fn mark(&self) -> usize {
        self.heard.len()
    }

    pub(crate) fn heard(&self) -> &[Value] {
        &self.heard
    }

    /// The first message since `mark` that fits, heard already or not yet.
    pub(crate) fn wait(&mut self, mark: usize, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let mut at = mark;
        loop {
            while at < self.heard.len() {
                if fits(&self.heard[at]) {
                    return self.heard[at].clone();
                }
                at += 1;
            }
            assert!(self.receive(what), "the agent ended; waited for {what}");
        }
    }

    /// The same for updates of a session.
    pub(crate) fn wait_update(&mut self, mark: usize, session: &str, kind: &str) -> Value {
        let fits = |message: &Value| {
            let params = &message["params"];
            params["sessionId"] == json!(session) && params["update"]["sessionUpdate"] == json!(kind)
        };
        self.wait(mark, kind, fits)["params"]["update"].clone()
    }

    /// All updates of a session since `mark`, as far as they were heard.
    pub(crate) fn updates(&self, mark: usize, session: &str) -> Vec<Value> {
        let updates = self.heard[mark..].iter().filter(|message| message["method"] == json!("session/update"));
        let params = updates.map(|message| &message["params"]);
        params.filter(|params| params["sessionId"] == json!(session)).map(|params| params["update"].clone()).collect()
    }

    pub(crate) fn cwd(&self) -> String {
        self.project.to_string_lossy().into_owned()
    }

    /// A session in the project, with what follows its answer.
    pub(crate) fn session(&mut self) -> String {
        let (cwd, mark) = (self.cwd(), self.mark());
        let answer = self.ask("session/new", json!({"cwd": cwd, "mcpServers": []}));
        let id = answer["sessionId"].as_str().expect("an id").to_owned();
        self.wait_update(mark, &id, "available_commands_update");
        id
    }

    /// A session with these MCP servers, with what follows its answer.
    pub(crate) fn session_with(&mut self, servers: Value) -> String {
        let (cwd, mark) = (self.cwd(), self.mark());
        let answer = self.ask("session/new", json!({"cwd": cwd, "mcpServers": servers}));
        let id = answer["sessionId"].as_str().expect("an id").to_owned();
        self.wait_update(mark, &id, "available_commands_update");
        id
    }

    pub(crate) fn begin(&mut self, session: &str, text: &str) -> Value {
        self.send("session/prompt", json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]}))
    }

    /// Prompts, and gives the stop reason and the updates of the turn.
    pub(crate) fn prompt(&mut self, session: &str, text: &str) -> (String, Vec<Value>) {
        let mark = self.mark();
        let id = self.begin(session, text);
        (self.ended(&id), self.updates(mark, session))
    }

    /// The stop reason of a prompt.
    pub(crate) fn ended(&mut self, id: &Value) -> String {
        self.result(id)["stopReason"].as_str().expect("a stop reason").to_owned()
    }

    pub(crate) fn cancel(&mut self, session: &str) {
        self.notify("session/cancel", json!({"sessionId": session}));
    }

    pub(crate) fn set_mode(&mut self, session: &str, mode: &str) {
        self.ask("session/set_mode", json!({"sessionId": session, "modeId": mode}));
    }

    /// An answer proves that everything said before was read, and whatever was to be said without waiting is here.
    pub(crate) fn settle(&mut self) {
        self.ask("session/list", json!({"cwd": "/nowhere"}));
    }

    /// Closes stdin and waits for the agent's end; what it still said, and its exit code. A server behind it ends too.
    pub(crate) fn finish(&mut self) -> (Vec<Value>, i32) {
        let is_remote = matches!(self.stdin.take(), Some(AgentInput::Remote(_)));
        let mark = self.mark();
        while self.receive("the end of the agent") {}
        if is_remote {
            // A server does not end with its client.
            terminate(&self.child);
        }
        let code = self.child.wait().expect("it has ended").code().unwrap_or(-1);
        if let Some(server) = &mut self.server {
            // It is a process of the agent, so none is left only when it has ended.
            server.interrupt();
            server.wait();
        }
        (self.heard[mark..].to_vec(), code)
    }

    /// Ends the agent without a warning.
    pub(crate) fn kill(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("it has ended");
    }

    /// The process of the agent.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The processes that came of the agent, itself included.
    pub(crate) fn processes(&self) -> Vec<u32> {
        processes_of(&self.home)
    }

    /// Those of them that run this command line.
    pub(crate) fn running(&self, command: &str) -> Vec<u32> {
        let runs = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ").trim_end() == command
        };
        self.processes().into_iter().filter(runs).collect()
    }

    /// Waits for something that no message tells.
    pub(crate) fn until(&self, what: &str, check: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !check(self) {
            assert!(begun.elapsed() < PATIENCE, "waited too long until {what}\n{}", self.told());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Takes one line; false if there are no more.
    fn receive(&mut self, what: &str) -> bool {
        let line = match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => panic!("waited too long for {what}"),
        };
        let text = String::from_utf8(line).expect("stdout is UTF-8");
        self.transcript.push(format!("< {}", text.trim_end()));
        assert!(text.ends_with('\n'), "a whole line: {text}");
        let message: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        self.check(&message);
        self.heard.push(message.clone());
        self.play(&message);
        true
    }

    /// The envelope by the rules of JSON-RPC, what is in it by the protocol's types.
    fn check(&mut self, message: &Value) {
        let fields = message.as_object().expect("a message is an object");
        assert_eq!(message["jsonrpc"], "2.0", "{message}");
        let known = ["jsonrpc", "id", "method", "params", "result", "error"];
        assert!(fields.keys().all(|key| known.contains(&key.as_str())), "{message}");
        if let Some(method) = fields.get("method") {
            assert!(!fields.contains_key("result") && !fields.contains_key("error"), "{message}");
            self.understands(&message["params"]["update"]);
            return fits_request(method.as_str().expect("a method"), &message["params"]);
        }
        let id = fields.get("id").unwrap_or_else(|| panic!("an answer has an id: {message}"));
        assert!(fields.contains_key("result") != fields.contains_key("error"), "{message}");
        if let Some(error) = fields.get("error") {
            assert!(error["code"].is_i64(), "{message}");
            let said = error["message"].as_str().unwrap_or_default();
            assert!(!said.trim().is_empty() && !said.contains('\n'), "one line that says something: {message}");
        }
        if id.is_null() {
            return;
        }
        let method = self.asked.remove(&id.to_string());
        let method = method.unwrap_or_else(|| panic!("nobody asked, or it is answered already: {message}"));
        if let Some(result) = fields.get("result") {
            fits_result(&method, result);
        }
    }

    /// Some updates are only for clients that said so.
    fn understands(&self, update: &Value) {
        if update["sessionUpdate"] == "tool_call" {
            assert!(update["status"].is_string() && update["kind"].is_string(), "status and kind: {update}");
        }
        let session = &self.capabilities["session"];
        let capability = match update["sessionUpdate"].as_str() {
            Some("notice") => &session["notices"],
            Some("compaction_update" | "compaction_summary_chunk") => &session["compaction"],
            Some("plan_update" | "plan_removed") => &self.capabilities["plan"],
            Some("subagent_update") => &self.capabilities["subagents"],
            Some("config_option_update") if update.to_string().contains(r#""type":"boolean""#) => {
                &session["configOptions"]["boolean"]
            }
            _ => return,
        };
        assert!(capability.is_object(), "the client did not say that it understands {update}");
    }

    fn play(&mut self, message: &Value) {
        let (Some(method), Some(id)) = (message["method"].as_str(), message.get("id")) else { return };
        let script = self.scripts.get_mut(method);
        let script = script.unwrap_or_else(|| panic!("the agent asks for what nobody offered: {message}"));
        if let Some(reply) = script(&message["params"]) {
            self.reply(id, reply);
        }
    }

    fn told(&self) -> String {
        let lines = self.transcript.iter().map(|line| line.chars().take(2_000).collect::<String>());
        let skipped = self.transcript.len().saturating_sub(400);
        let lines: Vec<_> = lines.skip(skipped).collect();
        format!("{}\n--- stderr\n{}", lines.join("\n"), std::fs::read_to_string(&self.stderr).unwrap_or_default())
    }
}

impl Drop for Acp {
    #[expect(clippy::print_stderr, reason = "whoever reads of a failed test wants to see what was said")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- what was said\n{}", self.told());
        }
        // It has ended already, or it must: the test is over.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn read_lines(stdout: ChildStdout, sender: Sender<Vec<u8>>, hearing: Arc<Mutex<()>>) {
    let mut stdout = BufReader::new(stdout);
    std::thread::spawn(move || {
        loop {
            let mut line = Vec::new();
            let read = stdout.read_until(b'\n', &mut line);
            drop(hearing.lock());
            match read {
                Ok(count) if count > 0 && sender.send(line).is_ok() => {}
                _ => return,
            }
        }
    });
}

/// The answer of somebody who was asked for permission.
pub(crate) fn selected(option: &str) -> Value {
    json!({"result": {"outcome": {"outcome": "selected", "optionId": option}}})
}

/// The updates of one kind.
pub(crate) fn of_kind(updates: &[Value], kind: &str) -> Vec<Value> {
    updates.iter().filter(|update| update["sessionUpdate"] == json!(kind)).cloned().collect()
}

/// What was said in the chunks of one kind.
pub(crate) fn said(updates: &[Value], kind: &str) -> String {
    let chunks = of_kind(updates, kind);
    chunks.iter().map(|chunk| chunk["content"]["text"].as_str().unwrap_or_default()).collect()
}

/// The words of the agent.
pub(crate) fn spoken(updates: &[Value]) -> String {
    said(updates, "agent_message_chunk")
}

fn fits_request(method: &str, params: &Value) {
    match method {
        "session/update" => fits::<acp::SessionNotification>(params),
        "session/request_permission" => fits::<acp::RequestPermissionRequest>(params),
        "fs/read_text_file" => fits::<acp::ReadTextFileRequest>(params),
        "fs/write_text_file" => fits::<acp::WriteTextFileRequest>(params),
        "elicitation/create" => fits::<acp::CreateElicitationRequest>(params),
        "elicitation/complete" => fits::<acp::CompleteElicitationNotification>(params),
        "terminal/create" => fits::<acp::CreateTerminalRequest>(params),
        "terminal/output" => fits::<acp::TerminalOutputRequest>(params),
        "terminal/wait_for_exit" => fits::<acp::WaitForTerminalExitRequest>(params),
        "terminal/kill" => fits::<acp::KillTerminalRequest>(params),
        "terminal/release" => fits::<acp::ReleaseTerminalRequest>(params),
        "$/cancel_request" => fits::<acp::CancelRequestNotification>(params),
        _ => panic!("the agent may not call {method}"),
    }
}

fn fits_result(method: &str, result: &Value) {
    match method {
        "initialize" => fits::<acp::InitializeResponse>(result),
        "authenticate" => fits::<acp::AuthenticateResponse>(result),
        "logout" => fits::<acp::LogoutResponse>(result),
        "session/new" => fits::<acp::NewSessionResponse>(result),
        "session/load" => fits::<acp::LoadSessionResponse>(result),
        "session/resume" => fits::<acp::ResumeSessionResponse>(result),
        "session/fork" => fits::<acp::ForkSessionResponse>(result),
        "session/list" => fits::<acp::ListSessionsResponse>(result),
        "session/delete" => fits::<acp::DeleteSessionResponse>(result),
        "session/close" => fits::<acp::CloseSessionResponse>(result),
        "session/set_mode" => fits::<acp::SetSessionModeResponse>(result),
        "session/set_config_option" => fits::<acp::SetSessionConfigOptionResponse>(result),
        "session/prompt" => fits::<acp::PromptResponse>(result),
        _ => panic!("{method} has no result"),
    }
}

/// Read into the protocol's type and written again, the value is still all there.
fn fits<T: DeserializeOwned + Serialize>(value: &Value) {
    let typed: T = serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"));
    kept(value, &serde_json::to_value(&typed).expect("a type of the protocol"), "");
}

fn kept(said: &Value, understood: &Value, at: &str) {
    match (said, understood) {
        (Value::Object(said), Value::Object(understood)) => {
            for (key, value) in said.iter().filter(|(key, value)| !value.is_null() && *key != FOREIGN) {
                // The types leave out these defaults, which some clients require.
                if [("status", "pending"), ("kind", "other")]
                    .iter()
                    .any(|(field, default)| key == field && value == default)
                {
                    continue;
                }
                let found = understood.get(key);
                kept(value, found.unwrap_or_else(|| panic!("the protocol has no {at}/{key}")), &format!("{at}/{key}"));
            }
        }
        (Value::Array(said), Value::Array(understood)) if said.len() == understood.len() => {
            said.iter().zip(understood).for_each(|(said, understood)| kept(said, understood, at));
        }
        _ => assert_eq!(said, understood, "at {at}"),
    }
}
