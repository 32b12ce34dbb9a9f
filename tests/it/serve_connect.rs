//! `skein acp --connect`: the editor notices no cut, and a server that cannot be used is reported before anything else.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};

use crate::reattach::shown;
use crate::support::Sandbox;
use crate::support::acp::Acp;
use crate::support::model::{Answer, ScriptedModel, has_result};
use crate::support::serve::{Server, eventually, token};

/// A forwarder between client and server that counts WebSocket frames and can cut at one.
struct Forwarder {
    address: SocketAddr,
    /// The number of frames before the one at which the connection is cut. That frame is lost.
    left: Arc<Mutex<Option<usize>>>,
}

impl Forwarder {
    fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let left: Arc<Mutex<Option<usize>>> = Arc::default();
        let shared = Arc::clone(&left);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(upstream) = TcpStream::connect(server) else { return };
                for (from, to) in [(&client, &upstream), (&upstream, &client)] {
                    let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                    let left = Arc::clone(&shared);
                    std::thread::spawn(move || {
                        // A broken connection ends both directions.
                        drop(pump(&from, &to, &left));
                        drop(from.shutdown(Shutdown::Both));
                        drop(to.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        Self { address, left }
    }

    fn cut_after(&self, frames: usize) {
        *self.left.lock().expect("the counter") = Some(frames);
    }

    /// Cuts no more. Returns true if it has cut.
    fn stop(&self) -> bool {
        self.left.lock().expect("the counter").take().is_none()
    }
}

/// Passes the head of the handshake on, and then frame by frame.
fn pump(mut from: &TcpStream, mut to: &TcpStream, left: &Mutex<Option<usize>>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        head.extend(byte);
    }
    to.write_all(&head)?;
    loop {
        let frame = read_frame(from)?;
        let mut left = left.lock().expect("the counter");
        match &mut *left {
            Some(0) => {
                *left = None;
                return Ok(());
            }
            Some(count) => *count -= 1,
            None => {}
        }
        drop(left);
        to.write_all(&frame)?;
    }
}

fn read_frame(mut from: &TcpStream) -> std::io::Result<Vec<u8>> {
    let mut frame = vec![0; 2];
    from.read_exact(&mut frame)?;
    let (is_masked, short) = (frame[1] & 0x80 != 0, frame[1] & 0x7f);
    let mut more = |count: usize| {
        let mut bytes = vec![0; count];
        from.read_exact(&mut bytes)?;
        frame.extend_from_slice(&bytes);
        Ok::<_, std::io::Error>(bytes)
    };
    let big_endian = |bytes: Vec<u8>| bytes.iter().fold(0, |sum: usize, byte| (sum << 8) | usize::from(*byte));
    let length = match short {
        126 => big_endian(more(2)?),
        127 => big_endian(more(8)?),
        short => usize::from(short),
    };
    more(length + if is_masked { 4 } else { 0 })?;
    Ok(frame)
}

fn model() -> ScriptedModel {
    ScriptedModel::new(|request| match has_result(request) {
        false => Answer::SaysAndCalls {
            text: "I write. ",
            tool: "developer__shell",
            arguments: json!({"command": "printf x >> made.txt"}),
        },
        true => Answer::Says(["one ", "two ", "three"].map(str::to_owned).into()),
    })
}

fn launch(sandbox: &Sandbox, model: &ScriptedModel) -> Server {
    Server::launch(model.offered_to(sandbox.command(&["serve", "-a", "coding", "--listen", "127.0.0.1:0"])))
}

fn root(sandbox: &Sandbox) -> String {
    sandbox.path("project").to_string_lossy().into_owned()
}

/// An editor in front of `skein acp --connect`.
fn editor(sandbox: &Sandbox, address: SocketAddr, token: &str) -> Acp {
    let mut command = sandbox.command(&["acp", "--connect", &format!("http://{address}")]);
    command.env("SKEIN_TOKEN", token);
    let mut client = Acp::launch(sandbox, command);
    client.introduce(&json!({}));
    client
}

fn assert_whole(updates: &[Value], what: &str) {
    let lines = shown(updates);
    let call = lines.iter().find_map(|line| line.strip_prefix("call ")).unwrap_or_else(|| panic!("{what}: {lines:?}"));
    let whole = [
        "agent_message_chunk: I write. ".to_owned(),
        format!("call {call}"),
        format!("\"completed\" {call}"),
        "agent_message_chunk: one two three".to_owned(),
    ];
    assert_eq!(lines, whole, "{what}");
}

/// The connection is cut at the first frame of a turn, then at the second, and so on until a turn has fewer frames.
#[test]
fn an_editor_notices_no_cut_at_any_message() {
    let sandbox = Sandbox::new();
    let model = model();
    let server = launch(&sandbox, &model);
    let forwarder = Forwarder::start(server.address);
    let token = token(&sandbox, "ana", &["--root", &root(&sandbox)]);
    let mut client = editor(&sandbox, forwarder.address, &token);
    client.on_permission("allow_once");
    for at in 0.. {
        assert!(at < 200, "a turn has an end");
        let session = client.session();
        let mark = client.mark();
        forwarder.cut_after(at);
        let (end, updates) = client.prompt(&session, "write it");
        let has_cut = forwarder.stop();
        assert_eq!(end, "end_turn", "cut at {at}");
        assert_whole(&updates, &format!("cut at {at}"));
        let is_question = |message: &&Value| message["method"] == "session/request_permission";
        let questions = client.heard()[mark..].iter().filter(is_question).count();
        assert_eq!(questions, 1, "the question is asked once, cut at {at}");
        let made = std::fs::read_to_string(sandbox.path("project/made.txt")).unwrap();
        assert_eq!(made.len(), at + 1, "the call ran once, cut at {at}");
        client.ask("session/close", json!({"sessionId": session}));
        if !has_cut {
            assert!(at > 5, "a turn has more messages than {at}");
            return;
        }
    }
}

#[test]
fn a_question_is_answered_after_a_cut() {
    let sandbox = Sandbox::new();
    let model = model();
    let server = launch(&sandbox, &model);
    let forwarder = Forwarder::start(server.address);
    let token = token(&sandbox, "ana", &["--root", &root(&sandbox)]);
    let mut client = editor(&sandbox, forwarder.address, &token);
    client.on("session/request_permission", |_| None);
    let session = client.session();
    let mark = client.mark();
    let prompt = client.begin(&session, "write it");
    let question = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
    // The next frame in any direction is the request of the list, which is lost and repeated.
    forwarder.cut_after(0);
    client.settle();
    client.reply(&question["id"], crate::support::acp::selected("allow_once"));
    assert_eq!(client.ended(&prompt), "end_turn");
    assert_whole(&client.updates(mark, &session), "after the answer");
}

/// A server that ends for good answers what is open, and the program ends.
#[test]
fn a_revoked_token_ends_the_program() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "ana", &["--root", &root(&sandbox)]);
    let mut client = editor(&sandbox, server.address, &token);
    let id = token.split('_').nth(1).expect("an id").to_owned();
    assert_eq!(sandbox.skein(&["token", "revoke", &id]).code, 0);
    let pid = client.pid();
    eventually("the program has ended", || {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.is_empty() || state.contains(") Z ")
    });
    let (_, code) = client.finish();
    assert_eq!(code, 1);
}

/// Runs a command that must fail before it answers anything.
fn refused(mut command: Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    said
}

#[test]
fn a_server_that_cannot_be_used_is_reported_first() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let url = format!("http://{}", server.address);
    let connect = |url: &str, token: &str| {
        let mut command = sandbox.command(&["acp", "--connect", url]);
        command.env("SKEIN_TOKEN", token);
        command
    };
    assert!(refused(sandbox.command(&["acp", "--connect", &url])).contains("SKEIN_TOKEN"));
    assert!(refused(connect(&url, "skein_none_none")).contains("401"));
    assert!(refused(connect("skein.example.com", "t")).contains("not a URL"));
    assert!(refused(connect("http://skein.example.com", "t")).contains("without TLS"));
    let token = token(&sandbox, "ana", &[]);
    assert!(refused(connect(&format!("{url}/agents"), &token)).contains("skein serve"));
    // Nobody listens on the discard port.
    assert!(refused(connect("http://127.0.0.1:9", &token)).contains("no connection"));
}

#[test]
fn a_token_file_must_be_private() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let url = format!("http://{}", server.address);
    sandbox.write("project/token", &format!("{}\n", token(&sandbox, "ana", &[])));
    let connect = || sandbox.command(&["acp", "--connect", &url, "--token-file", "token"]);
    let mode =
        |mode| std::fs::set_permissions(sandbox.path("project/token"), std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    assert!(refused(connect()).contains("chmod 600"));
    mode(0o600);
    let mut client = Acp::launch(&sandbox, connect());
    assert_eq!(client.introduce(&json!({}))["protocolVersion"], 1);
    assert_eq!(client.finish().1, 0);
}

#[test]
fn a_certificate_that_nobody_trusts_is_refused() {
    let sandbox = Sandbox::new();
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    sandbox.write("project/key.pem", &signing_key.serialize_pem());
    sandbox.write("project/cert.pem", &cert.pem());
    let server = Server::start(&sandbox, &["--tls-cert", "cert.pem", "--tls-key", "key.pem"]);
    let mut command = sandbox.command(&["acp", "--connect", &format!("https://localhost:{}", server.address.port())]);
    command.env("SKEIN_TOKEN", token(&sandbox, "ana", &[]));
    assert!(refused(command).contains("certificate"));
}
