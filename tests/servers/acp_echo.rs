//! `skein-acp-echo`: a small agent of the Agent Client Protocol on stdio for the tests. It speaks the protocol by hand,
//! because it must be able to break it. Flags say what it can do and how it misbehaves; a prompt is a command, see
//! `acp_echo/turn.rs`.

#[path = "acp_echo/mcp.rs"]
mod mcp;
#[path = "acp_echo/turn.rs"]
mod turn;

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use mcp::Mcp;
use serde_json::{Value, json};
use turn::Turn;

const FLAGS: [&str; 13] = [
    "--load",
    "--resume",
    "--no-close",
    "--modes",
    "--options",
    "--commands",
    "--auth",
    "--images",
    "--http",
    // Never answers `initialize`.
    "--deaf",
    // Prints lines that are no messages before its first answer and before each chunk.
    "--garbage",
    // Stays when its input ends.
    "--stay",
    // Sends two updates of a session before it answers `session/new`.
    "--early",
];

/// What it was told to be: flags, and `--slow-start MS`, `--version N`.
#[derive(Default)]
struct Flags {
    set: Vec<String>,
    slow_start: u64,
    version: Option<u64>,
}

impl Flags {
    fn from_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut flags = Self::default();
        while let Some(argument) = arguments.next() {
            let mut number = || arguments.next().and_then(|text| text.parse().ok());
            match argument.as_str() {
                "--slow-start" => flags.slow_start = number().ok_or("--slow-start needs milliseconds")?,
                "--version" => flags.version = Some(number().ok_or("--version needs a number")?),
                flag if FLAGS.contains(&flag) => flags.set.push(argument),
                other => return Err(format!("unknown flag {other}")),
            }
        }
        Ok(flags)
    }

    fn has(&self, flag: &str) -> bool {
        self.set.iter().any(|set| set == flag)
    }

    /// An object if it can do it: how the protocol marks most capabilities.
    fn marker(&self, flag: &str) -> Value {
        if self.has(flag) { json!({}) } else { Value::Null }
    }
}

/// What is kept of a session, and written to a file if there is a folder for it.
#[derive(Default)]
struct Session {
    cwd: String,
    /// Each prompt with what was answered.
    said: Vec<(String, String)>,
    servers: Vec<Value>,
    mode: String,
    model: String,
    cancelled: Arc<AtomicBool>,
    service: Arc<Mutex<Option<Mcp>>>,
}

struct Agent {
    flags: Flags,
    sessions: Mutex<HashMap<String, Session>>,
    asked: Mutex<HashMap<u64, mpsc::Sender<Value>>>,
    next: AtomicU64,
    welcome: AtomicBool,
}

fn main() -> ExitCode {
    let flags = match Flags::from_arguments(std::env::args().skip(1)) {
        Ok(flags) => flags,
        Err(problem) => return complain(&problem),
    };
    let agent = Arc::new(Agent {
        welcome: AtomicBool::new(!flags.has("--auth")),
        flags,
        sessions: Mutex::default(),
        asked: Mutex::default(),
        next: AtomicU64::new(1),
    });
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if let Ok(message) = serde_json::from_str::<Value>(&line) {
            agent.receive(message);
        }
    }
    while agent.flags.has("--stay") {
        std::thread::park();
    }
    ExitCode::SUCCESS
}

fn complain(problem: &str) -> ExitCode {
    // Nobody may be listening, and there is nobody else to tell.
    drop(writeln!(std::io::stderr(), "skein-acp-echo: {problem}"));
    ExitCode::FAILURE
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nobody may read any more; then its input ends, too.
fn write_line(line: &str) {
    let mut stdout = std::io::stdout().lock();
    drop(writeln!(stdout, "{line}").and_then(|()| stdout.flush()));
}

fn answer(id: &Value, result: Value) {
    write_line(&json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string());
}

fn refuse(id: &Value, code: i64, problem: &str, data: Value) {
    write_line(
        &json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": problem, "data": data}}).to_string(),
    );
}

fn update(session: &str, update: Value) {
    let params = json!({"sessionId": session, "update": update});
    write_line(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}).to_string());
}

fn chunk(kind: &str, text: &str) -> Value {
    json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}})
}

fn text_of<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Where a session is kept from one run to the next.
fn kept(session: &str) -> Option<PathBuf> {
    std::env::var_os("SKEIN_ACP_ECHO_STATE").map(|folder| PathBuf::from(folder).join(format!("{session}.json")))
}

impl Agent {
    fn receive(self: &Arc<Self>, message: Value) {
        let (id, params) = (message["id"].clone(), &message["params"]);
        let session = text_of(params, "sessionId").to_owned();
        let Some(method) = message["method"].as_str() else {
            let asked = id.as_u64().and_then(|id| held(&self.asked).remove(&id));
            if let Some(asked) = asked {
                // Its turn may have ended meanwhile.
                drop(asked.send(message));
            }
            return;
        };
        match method {
            "initialize" => self.initialize(&id),
            "authenticate" => {
                self.welcome.store(true, Ordering::SeqCst);
                answer(&id, json!({}));
            }
            "session/new" => self.open(&id, params),
            "session/load" if self.flags.has("--load") => self.reopen(&id, params, true),
            "session/resume" if self.flags.has("--resume") => self.reopen(&id, params, false),
            "session/cancel" => self.cancel(&session),
            "session/close" if !self.flags.has("--no-close") => {
                self.cancel(&session);
                held(&self.sessions).remove(&session);
                answer(&id, json!({}));
            }
            "session/set_mode" if self.flags.has("--modes") => {
                self.change(&session, |kept| kept.mode = text_of(params, "modeId").to_owned());
                answer(&id, json!({}));
            }
            "session/set_config_option" if self.flags.has("--options") => {
                self.change(&session, |kept| kept.model = text_of(params, "value").to_owned());
                answer(&id, json!({"configOptions": self.setup(&session)["configOptions"]}));
            }
            "session/prompt" if held(&self.sessions).contains_key(&session) => {
                let turn = Turn { agent: Arc::clone(self), session, heard: String::new() };
                std::thread::spawn(move || turn.run(&id, &message["params"]["prompt"]));
            }
            "session/prompt" => refuse(&id, -32002, "no such session", json!({"sessionId": session})),
            _ if id.is_null() => {}
            _ => refuse(&id, -32601, "method not found", json!({"method": method})),
        }
    }

    fn initialize(&self, id: &Value) {
        if self.flags.has("--deaf") {
            return;
        }
        std::thread::sleep(Duration::from_millis(self.flags.slow_start));
        self.noise();
        let methods = json!([
            {"id": "browser", "name": "Log in with a browser", "description": "Opens a page."},
            {"id": "key", "name": "Use a key", "description": "Takes one from the environment."},
        ]);
        let images = self.flags.has("--images");
        let close = if self.flags.has("--no-close") { Value::Null } else { json!({}) };
        let result = json!({
            "protocolVersion": self.flags.version.unwrap_or(1),
            "agentInfo": {"name": "skein-acp-echo", "title": "Echo", "version": "0"},
            "authMethods": if self.flags.has("--auth") { methods } else { json!([]) },
            "agentCapabilities": {
                "loadSession": self.flags.has("--load"),
                "promptCapabilities": {"image": images, "audio": images, "embeddedContext": images},
                "mcpCapabilities": {"http": self.flags.has("--http"), "sse": false},
                "sessionCapabilities": {"resume": self.flags.marker("--resume"), "close": close},
            },
        });
        answer(id, result);
    }

    fn noise(&self) {
        if self.flags.has("--garbage") {
            let stray = "{\"jsonrpc\": \"2.0\", \"id\": 99999, \"result\": {}}";
            ["starting up…", "{\"half\": ", "[1, 2]", "", stray].into_iter().for_each(write_line);
        }
    }

    fn open(&self, id: &Value, params: &Value) {
        if !self.welcome.load(Ordering::SeqCst) {
            return refuse(id, -32000, "Authentication required", Value::Null);
        }
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let session = format!("echo-{}-{number}", std::process::id());
        self.keep(&session, params, Vec::new());
        if self.flags.has("--early") {
            update(&session, json!({"sessionUpdate": "session_info_update", "title": "early"}));
            update(&session, chunk("agent_message_chunk", "early"));
        }
        let mut result = self.setup(&session);
        result["sessionId"] = json!(session);
        answer(id, result);
        self.commands(&session);
    }

    fn keep(&self, session: &str, params: &Value, said: Vec<(String, String)>) {
        let servers = params["mcpServers"].as_array().cloned().unwrap_or_default();
        let (mode, model) = ("ask".to_owned(), "small".to_owned());
        let kept = Session { cwd: text_of(params, "cwd").to_owned(), said, servers, mode, model, ..Session::default() };
        held(&self.sessions).insert(session.to_owned(), kept);
    }

    fn reopen(&self, id: &Value, params: &Value, replay: bool) {
        let session = text_of(params, "sessionId");
        let text = kept(session).and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let Ok(said) = serde_json::from_str::<Vec<(String, String)>>(&text) else {
            return refuse(id, -32002, "no such session", json!({"sessionId": session}));
        };
        for (prompt, heard) in said.iter().filter(|_| replay) {
            update(session, chunk("user_message_chunk", prompt));
            update(session, chunk("agent_message_chunk", heard));
        }
        self.keep(session, params, said);
        answer(id, self.setup(session));
        self.commands(session);
    }

    /// What `session/new` and its like say about modes and options.
    fn setup(&self, session: &str) -> Value {
        let sessions = held(&self.sessions);
        let Some(kept) = sessions.get(session) else { return json!({}) };
        let named =
            |id: &str, key: &str| json!({key: id, "name": id.to_uppercase(), "description": format!("To {id}.")});
        let mut setup = json!({});
        if self.flags.has("--modes") {
            let modes = ["ask", "code"].map(|id| named(id, "id"));
            setup["modes"] = json!({"currentModeId": kept.mode, "availableModes": modes});
        }
        if self.flags.has("--options") {
            let options = ["small", "large"].map(|id| named(id, "value"));
            setup["configOptions"] = json!([{"id": "model", "name": "Model", "category": "model", "type": "select",
                "currentValue": kept.model, "options": options}]);
        }
        setup
    }

    fn commands(&self, session: &str) {
        if self.flags.has("--commands") {
            let commands = json!([{"name": "shout", "description": "Says it loud.", "input": {"hint": "what"}},
                {"name": "plan", "description": "Makes a plan."}]);
            update(session, json!({"sessionUpdate": "available_commands_update", "availableCommands": commands}));
        }
    }

    fn change(&self, session: &str, change: impl FnOnce(&mut Session)) {
        if let Some(kept) = held(&self.sessions).get_mut(session) {
            change(kept);
        }
    }

    fn cancel(&self, session: &str) {
        self.change(session, |kept| kept.cancelled.store(true, Ordering::SeqCst));
    }

    /// Asks the client and waits for its answer; an error as text.
    fn ask(&self, method: &str, params: Value) -> Result<Value, String> {
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        let (sender, answered) = mpsc::channel();
        held(&self.asked).insert(id, sender);
        write_line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        let message = answered.recv().map_err(|error| error.to_string())?;
        match message.get("error") {
            Some(error) => Err(format!("error {}: {}", error["code"], text_of(error, "message"))),
            None => Ok(message["result"].clone()),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "it is there to leave processes behind")]
fn program(name: &str) -> Command {
    Command::new(name)
}
