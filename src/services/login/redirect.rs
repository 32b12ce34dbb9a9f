//! Listens on a loopback port for the answer that the browser brings back.
//!
//! Invariant: only an answer with the state of this login ends the wait. Other programs and pages that find the port
//! get an error page.

use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use url::form_urlencoded;

use super::LoginError;

const PATH: &str = "/callback";
/// Maximum bytes of a request.
const MAX_HEAD: usize = 32 * 1024;
/// Maximum number of open connections. Browsers open some that they do not use.
const MAX_CONNECTIONS: usize = 32;
/// Time for a request to arrive.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// The parameters that the authorization server gave the browser. The state is right.
pub(super) struct RedirectAnswer {
    pub(super) code: Option<String>,
    pub(super) error: Option<String>,
    pub(super) issuer: Option<String>,
}

pub(super) struct RedirectListener {
    listener: TcpListener,
    uri: String,
}

impl RedirectListener {
    /// Opens a free port that only this machine reaches.
    pub(super) async fn open() -> Result<Self, LoginError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(LoginError::Listen)?;
        let uri = format!("http://{}{PATH}", listener.local_addr().map_err(LoginError::Listen)?);
        Ok(Self { listener, uri })
    }

    /// Returns the address to which the browser is sent back.
    pub(super) fn uri(&self) -> &str {
        &self.uri
    }

    /// Waits for the answer with this state.
    pub(super) async fn wait(&self, state: &str) -> RedirectAnswer {
        let mut connections = FuturesUnordered::<BoxFuture<'_, Option<RedirectAnswer>>>::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                    Ok((stream, _)) => connections.push(Box::pin(serve(stream, state))),
                    Err(_) => tokio::time::sleep(PAUSE).await,
                },
                Some(answer) = connections.next(), if !connections.is_empty() => {
                    if let Some(answer) = answer {
                        return answer;
                    }
                }
            }
        }
    }
}

/// Answers one request. Returns the answer of the authorization server if the request has it.
async fn serve(mut stream: TcpStream, state: &str) -> Option<RedirectAnswer> {
    let head = tokio::time::timeout(REQUEST_TIME, read_head(&mut stream)).await.ok()??;
    let (page, answer) = respond(&head, state);
    // The browser may be gone, which does not change its answer.
    drop(tokio::time::timeout(REQUEST_TIME, write_page(&mut stream, page)).await);
    answer
}

/// Reads until the end of the headers. `None` if they are too long or end early.
async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut buffer).await.ok()?;
        if read == 0 || bytes.len() + read > MAX_HEAD {
            return None;
        }
        bytes.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8(bytes).ok()
}

async fn write_page(stream: &mut TcpStream, (status, text): (&str, &str)) -> std::io::Result<()> {
    let page = format!("<!doctype html><meta charset=utf-8><title>Skein</title><p>{text}</p>\n");
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {}\r\ncache-control: \
         no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n",
        page.len()
    );
    stream.write_all(format!("{head}{page}").as_bytes()).await?;
    stream.shutdown().await
}

/// Returns the status and the text of the page, and the answer that the request contains.
fn respond(head: &str, state: &str) -> ((&'static str, &'static str), Option<RedirectAnswer>) {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if method != "GET" || path != PATH {
        return (("404 Not Found", "There is nothing here."), None);
    }
    let parameter = |wanted: &str| {
        let mut values = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == wanted);
        values.next().map(|(_, value)| value.into_owned())
    };
    if parameter("state").as_deref() != Some(state) {
        return (("400 Bad Request", "This answer does not belong to the login that Skein waits for."), None);
    }
    let answer = RedirectAnswer { code: parameter("code"), error: parameter("error"), issuer: parameter("iss") };
    (("200 OK", "Skein has the answer. Return to your terminal; you can close this page."), Some(answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answer_with_the_state_counts() {
        let respond = |target: &str| respond(&format!("{target} HTTP/1.1\r\nHost: x\r\n\r\n"), "right");
        let (page, answer) = respond("GET /callback?state=right&code=a%2Fb&iss=https%3A%2F%2Fx");
        let answer = answer.unwrap();
        assert_eq!(
            (page.0, answer.code.as_deref(), answer.issuer.as_deref()),
            ("200 OK", Some("a/b"), Some("https://x"))
        );
        for (target, status) in [
            ("GET /callback?state=wrong&code=a", "400 Bad Request"),
            ("GET /callback?code=a", "400 Bad Request"),
            ("GET /callback?state=wrong&state=right&code=a", "400 Bad Request"),
            ("GET /favicon.ico?state=right&code=a", "404 Not Found"),
            ("POST /callback?state=right&code=a", "404 Not Found"),
            ("", "404 Not Found"),
        ] {
            let (page, answer) = respond(target);
            assert!(page.0 == status && answer.is_none(), "{target}: {}", page.0);
        }
    }

    /// Returns what is read of a request of `size` bytes.
    async fn read_request(size: usize) -> Option<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut browser = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = format!("{}\r\n\r\n", "x".repeat(size - 4));
        let (sent, read) = tokio::join!(browser.write_all(head.as_bytes()), read_head(&mut stream));
        sent.unwrap();
        read
    }

    #[tokio::test]
    async fn a_request_at_the_end_of_a_login_has_a_limited_size() {
        assert_eq!(read_request(MAX_HEAD).await.map(|head| head.len()), Some(MAX_HEAD));
        assert_eq!(read_request(MAX_HEAD + 1).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_further_connection_waits_for_the_end_of_an_open_one() {
        let redirect = RedirectListener::open().await.unwrap();
        let address = redirect.listener.local_addr().unwrap();
        let mut silent = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut browser = TcpStream::connect(address).await.unwrap();
        browser.write_all(b"GET /callback?state=right&code=a HTTP/1.1\r\n\r\n").await.unwrap();
        let start = tokio::time::Instant::now();
        let answer = redirect.wait("right").await;
        assert_eq!(answer.code.as_deref(), Some("a"));
        assert!(start.elapsed() >= REQUEST_TIME, "the silent connections had to end first");
        drop(silent);
    }
}
