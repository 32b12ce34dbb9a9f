//! `skein serve` as a real process, its tokens, and HTTP as it is on the wire.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::Sandbox;

/// How long the server may take for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running `skein serve`.
pub(crate) struct Server {
    /// `None` once it is handed over.
    child: Option<Child>,
    pub(crate) address: SocketAddr,
    /// The lines that it prints after the first one.
    stdout: BufReader<ChildStdout>,
}

impl Server {
    /// Starts a server on a free port of loopback.
    pub(crate) fn start(sandbox: &Sandbox, args: &[&str]) -> Self {
        Self::launch(sandbox.command(&[&["serve", "--listen", "127.0.0.1:0"], args].concat()))
    }

    /// Starts a server with this command, and waits until it listens.
    pub(crate) fn launch(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the server starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("its stdout"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line");
        let address = line.trim().rsplit('/').next().and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("the server says where it listens, not {line:?}"));
        Self { child: Some(child), address, stdout }
    }

    /// The next line that the server prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// Hands the process over to the caller, who must end it.
    pub(crate) fn into_child(mut self) -> Child {
        self.child.take().expect("the server")
    }

    /// The process of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server").id()
    }

    /// Asks the server to shut down.
    pub(crate) fn interrupt(&self) {
        self.signal(Signal::SIGTERM);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.child.as_ref().expect("the server"), signal);
    }

    /// Waits for the end of the server; its exit code.
    pub(crate) fn wait(&mut self) -> i32 {
        let begun = Instant::now();
        let child = self.child.as_mut().expect("the server");
        loop {
            if let Some(status) = child.try_wait().expect("a status") {
                return status.code().unwrap_or(-1);
            }
            assert!(begun.elapsed() < 2 * PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends one request and returns the answer. The connection is closed after it.
    pub(crate) fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> HttpAnswer {
        let host = self.address.to_string();
        let mut all = vec![("host", host.as_str()), ("connection", "close")];
        for (name, value) in headers {
            all.retain(|(known, _)| known != name);
            all.push((name, value));
        }
        let length = body.len().to_string();
        if !body.is_empty() {
            all.push(("content-length", &length));
        }
        let head: String = all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        self.raw(format!("{method} {path} HTTP/1.1\r\n{head}\r\n{body}").as_bytes())
    }

    pub(crate) fn get(&self, path: &str, token: &str) -> HttpAnswer {
        self.request("GET", path, &[("authorization", &bearer(token))], "")
    }

    /// Sends these bytes and returns the answer.
    pub(crate) fn raw(&self, bytes: &[u8]) -> HttpAnswer {
        let mut stream = self.connect();
        // A server that refuses a request may close before it has read all of it.
        drop(stream.write_all(bytes));
        HttpAnswer::read(&mut stream)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server listens");
        stream.set_read_timeout(Some(2 * PATIENCE)).expect("a timeout");
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already, or it must: the test is over.
        if let Some(child) = &mut self.child {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

pub(crate) fn terminate(child: &Child) {
    send(child, Signal::SIGTERM);
}

fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).expect("a process id");
    // It may have ended already.
    kill(Pid::from_raw(pid), signal).unwrap_or_default();
}

pub(crate) fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// Creates a token with these flags.
pub(crate) fn token(sandbox: &Sandbox, name: &str, flags: &[&str]) -> String {
    token_with(sandbox.command(&[&["token", "create", "--name", name], flags].concat()))
}

/// Runs a command that creates a token.
pub(crate) fn token_with(mut command: Command) -> String {
    let output = command.stdout(Stdio::piped()).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said.split_whitespace().next_back().expect("a token").to_owned()
}

/// An answer of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl HttpAnswer {
    /// Reads an answer until the server closes the connection.
    pub(crate) fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        // A connection that is reset ends the answer, too.
        drop(stream.read_to_end(&mut bytes));
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers = lines.filter_map(|line| line.split_once(": "));
        Self {
            status: status.unwrap_or_else(|| panic!("an answer, not {text:?}")),
            headers: headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect(),
            body: body.to_owned(),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The answer without the headers that name the time.
    pub(crate) fn timeless(mut self) -> Self {
        self.headers.retain(|(name, _)| name != "date");
        self
    }
}

/// Waits until `check` holds. No message tells when.
pub(crate) fn eventually(what: &str, check: impl Fn() -> bool) {
    let begun = Instant::now();
    while !check() {
        assert!(begun.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the settings of a TLS client that trusts one certificate and offers these protocols.
pub(crate) fn trust(certificate: &CertificateDer<'static>, protocols: &[&[u8]]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a certificate");
    let provider = Arc::new(skein::network::tls_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config
}
