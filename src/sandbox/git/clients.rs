//! The parts of git access that run inside a sandbox: a credential helper, and the proxy command of ssh.
//!
//! They run instead of the program `skein`, before it parses arguments. They use no async runtime.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// First argument of the credential helper. Then: the socket, and the operation that git adds.
pub const GIT_CREDENTIAL_ARGUMENT: &str = "sandbox-git-credential";
/// First argument of the proxy command. Then: the proxy's address, `USER:PASSWORD`, host and port.
pub const PROXY_CONNECT_ARGUMENT: &str = "sandbox-proxy-connect";

/// The attribute of an answer that refuses the credential, with the reason.
pub(super) const REFUSAL_KEY: &str = "refusal";

const MAX_HEAD: usize = 16 * 1024;
const MAX_ANSWER: u64 = 128 * 1024;

/// Runs the part that the arguments name, without the program's name. `None` if they name none.
pub fn run_inside(arguments: &[OsString]) -> Option<ExitCode> {
    let texts: Option<Vec<&str>> = arguments.iter().map(|argument| argument.to_str()).collect();
    let result = match texts?.as_slice() {
        [GIT_CREDENTIAL_ARGUMENT, socket, "get"] => get_credential(socket),
        // Skein neither stores nor erases credentials: a command inside must not change the user's.
        [GIT_CREDENTIAL_ARGUMENT, _, _] => Ok(()),
        [PROXY_CONNECT_ARGUMENT, proxy, credentials, host, port] => {
            connect(proxy, credentials, &format!("{host}:{port}"))
        }
        _ => return None,
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a stderr the exit code has to do.
            drop(writeln!(io::stderr(), "skein: {error}"));
            ExitCode::FAILURE
        }
    })
}

fn get_credential(socket: &str) -> io::Result<()> {
    let mut request = Vec::new();
    io::stdin().lock().read_to_end(&mut request)?;
    let mut server = UnixStream::connect(socket)?;
    server.write_all(&request)?;
    server.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    server.take(MAX_ANSWER).read_to_string(&mut answer)?;
    if let Some(reason) = read_refusal(&answer) {
        return Err(io::Error::other(format!("no password for git: {reason}")));
    }
    io::stdout().lock().write_all(answer.as_bytes())
}

/// Returns the reason if the answer is a refusal.
fn read_refusal(answer: &str) -> Option<&str> {
    answer.strip_prefix(REFUSAL_KEY)?.strip_prefix('=').map(str::trim_end)
}

/// Connects to a host through the proxy, and copies between the connection and stdin and stdout.
fn connect(proxy: &str, credentials: &str, authority: &str) -> io::Result<()> {
    let mut server = TcpStream::connect(proxy)?;
    let unread = open_tunnel(&mut server, credentials, authority)?;
    let mut upward = server.try_clone()?;
    // This thread ends with the process: a read of stdin cannot be interrupted.
    std::thread::spawn(move || {
        let copied = io::copy(&mut io::stdin().lock(), &mut upward);
        drop(copied.and_then(|_| upward.shutdown(Shutdown::Write)));
    });
    let mut stdout = io::stdout().lock();
    stdout.write_all(&unread)?;
    stdout.flush()?;
    let mut buffer = [0; 16 * 1024];
    loop {
        let count = server.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        stdout.write_all(&buffer[..count])?;
        stdout.flush()?;
    }
}

/// Sends CONNECT. Returns the bytes of the server that came with the answer. Fails with the proxy's text.
fn open_tunnel(server: &mut (impl Read + Write), credentials: &str, authority: &str) -> io::Result<Vec<u8>> {
    let encoded = STANDARD.encode(credentials);
    let request =
        format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\nProxy-Authorization: Basic {encoded}\r\n\r\n");
    server.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            let mut unread = bytes.split_off(end + 4);
            if bytes.starts_with(b"HTTP/1.1 200 ") {
                return Ok(unread);
            }
            server.read_to_end(&mut unread)?;
            return Err(io::Error::other(String::from_utf8_lossy(&unread).trim().to_owned()));
        }
        let count = server.read(&mut buffer)?;
        if count == 0 || bytes.len() > MAX_HEAD {
            return Err(io::Error::other("the sandbox's proxy gave no answer"));
        }
        bytes.extend_from_slice(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server with a fixed answer.
    struct Canned(io::Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Canned {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Canned {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn open(answer: &[u8]) -> (Result<Vec<u8>, String>, String) {
        let mut server = Canned(io::Cursor::new(answer.to_vec()), Vec::new());
        let result = open_tunnel(&mut server, "command-1:t", "example.com:22").map_err(|error| error.to_string());
        (result, String::from_utf8(server.1).unwrap())
    }

    #[test]
    fn a_tunnel_keeps_the_first_bytes_of_the_server() {
        let (result, request) = open(b"HTTP/1.1 200 Connection established\r\n\r\nSSH-2.0-x\r\n");
        assert_eq!(result, Ok(b"SSH-2.0-x\r\n".to_vec()));
        let expected = "CONNECT example.com:22 HTTP/1.1\r\nHost: example.com:22\r\n\
                        Proxy-Authorization: Basic Y29tbWFuZC0xOnQ=\r\n\r\n";
        assert_eq!(request, expected);
    }

    #[test]
    fn a_refusal_shows_the_text_of_the_proxy() {
        let (result, _) = open(b"HTTP/1.1 403 Forbidden\r\nx: y\r\n\r\nrefused by the sandbox: example.com:22\n");
        assert_eq!(result, Err("refused by the sandbox: example.com:22".into()));
        assert!(open(b"HTTP/1.1 200").0.is_err());
    }

    #[test]
    fn a_refused_password_has_a_reason() {
        assert_eq!(read_refusal("refusal=the user refused\n"), Some("the user refused"));
        assert_eq!(read_refusal("username=refusal=x\n"), None);
        assert_eq!(read_refusal(""), None);
    }

    #[test]
    fn other_arguments_belong_to_the_command_line() {
        for arguments in [&[][..], &["run"], &[GIT_CREDENTIAL_ARGUMENT], &[PROXY_CONNECT_ARGUMENT, "a"]] {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            assert!(run_inside(&arguments).is_none(), "{arguments:?}");
        }
        let store: Vec<OsString> = [GIT_CREDENTIAL_ARGUMENT, "/nowhere", "erase"].iter().map(OsString::from).collect();
        assert!(run_inside(&store).is_some());
    }
}
