//! `skein mcp --attach` and `--attach-file`: copies bytes between stdio and the socket of a running skein, without
//! parsing them.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::adapter::attach::{ATTACHED, AttachTarget, SOCKET_VARIABLE, TOKEN_VARIABLE};
use crate::cli::output::{CommandError, display_line};
use crate::socket;

/// Time for outstanding answers to arrive after stdin has ended.
const GRACE: Duration = Duration::from_secs(6);

const BUFFER: usize = 64 * 1024;

/// Maximum length of the answer to a token.
const MAX_ANSWER: usize = 500;

enum ClosedEnd {
    Stdin,
    Socket,
}

/// Attaches with the socket and the token of the environment.
pub(super) fn run() -> Result<(), CommandError> {
    let socket = variable(SOCKET_VARIABLE)?.into();
    attach(&AttachTarget { socket, token: variable(TOKEN_VARIABLE)? }, AGENT_HELP)
}

/// Attaches with the socket and the token of a file.
pub(super) fn run_with_file(file: &Path) -> Result<(), CommandError> {
    let target = AttachTarget::read(file).map_err(|error| {
        let shown = display_line(&file.to_string_lossy());
        CommandError::work(format!("{shown} cannot be used to attach: {error}"), SERVICE_HELP)
    })?;
    attach(&target, SERVICE_HELP)
}

fn attach(target: &AttachTarget, help: &str) -> Result<(), CommandError> {
    let mut socket = socket::connect(&target.socket).map_err(|error| {
        let shown = display_line(&target.socket.to_string_lossy());
        CommandError::work(format!("the skein that offered this cannot be reached at {shown}: {error}"), help)
    })?;
    let failure = |error: io::Error| CommandError::work(format!("stdio cannot be joined to skein: {error}"), help);
    let answer = send_token(&mut socket, &target.token).map_err(failure)?;
    if answer != ATTACHED {
        let said = if answer.is_empty() { "it is about to end".to_owned() } else { display_line(&answer) };
        return Err(CommandError::work(format!("skein does not let this in: {said}"), help));
    }
    join(socket).map_err(failure)
}

const AGENT_HELP: &str = "start the agent that uses it again, from skein: each start gets its own token";
const SERVICE_HELP: &str = "attach once for each start of the service: skein gives each start its own token";

fn variable(name: &str) -> Result<String, CommandError> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.ok_or_else(|| {
        let problem = format!("{name} is not set: --attach is for programs that skein starts");
        CommandError::usage(problem, "use `skein mcp -a AGENT -m MODE`")
    })
}

/// Sends the token and returns the first line of the answer. Reads no byte beyond it: the rest goes to stdout.
fn send_token(socket: &mut UnixStream, token: &str) -> io::Result<String> {
    socket.write_all(format!("{token}\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut byte = [0];
    while answer.len() < MAX_ANSWER && socket.read(&mut byte)? == 1 && byte != *b"\n" {
        answer.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Copies both ways until either side ends. A copy that fails has lost its side, which counts as its end.
fn join(socket: UnixStream) -> io::Result<()> {
    let (ended, end) = channel();
    let (stdin, stdout) = (file(io::stdin())?, file(io::stdout())?);
    let theirs = socket.try_clone()?;
    copy(stdin, socket.try_clone()?, ended.clone(), ClosedEnd::Stdin);
    copy(theirs, stdout, ended, ClosedEnd::Socket);
    if let Ok(ClosedEnd::Stdin) = end.recv() {
        // Outstanding answers still arrive.
        drop(socket.shutdown(Shutdown::Write));
        drop(end.recv_timeout(GRACE));
    }
    Ok(())
}

/// Returns the stream as an unbuffered file, so that no bytes wait in this process.
fn file(stream: impl AsFd) -> io::Result<File> {
    stream.as_fd().try_clone_to_owned().map(File::from)
}

/// Copies on a new thread. Does not use `io::copy`: it uses `splice`, and some kernels deliver a message only when the
/// next one arrives.
fn copy(
    mut from: impl io::Read + Send + 'static,
    mut to: impl io::Write + Send + 'static,
    ended: Sender<ClosedEnd>,
    which: ClosedEnd,
) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; BUFFER];
        loop {
            match from.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(read) if read > 0 && to.write_all(&buffer[..read]).is_ok() => {}
                _ => break,
            }
        }
        // The receiver may be gone when the second side ends.
        drop(ended.send(which));
    });
}
