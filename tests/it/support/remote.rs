//! The transports over which the client of `acp.rs` reaches Skein. The same tests run over all of them.

use std::cell::Cell;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::process::{Child, Command};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use futures::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use super::serve::{Server, bearer, token_with};

/// The way to Skein.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Stdio,
    WebSocket,
    Http,
    /// `skein acp --connect`, which is on stdio itself.
    Connect,
}

thread_local! {
    static TRANSPORT: Cell<Transport> = const { Cell::new(Transport::Stdio) };
}

/// Runs a test over this transport. Each test has a thread of its own.
pub(crate) fn over(transport: Transport, test: impl FnOnce()) {
    TRANSPORT.set(transport);
    test();
    TRANSPORT.set(Transport::Stdio);
}

pub(crate) fn transport() -> Transport {
    TRANSPORT.get()
}

/// What the client writes to. Dropping it closes the connection.
pub(crate) type RemoteInput = UnboundedSender<Vec<u8>>;

/// Starts `skein serve` in place of the `skein acp` of this command. Returns it with a token.
fn serve(command: &Command) -> (Server, String) {
    let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let serve = args.iter().flat_map(|arg| match arg.as_str() {
        "acp" => vec!["serve", "--listen", "127.0.0.1:0"],
        other => vec![other],
    });
    let create = ["token", "create", "--name", "tester", "--root", "/", "--client-services"];
    let token = token_with(again(command, &create));
    let serve: Vec<_> = serve.collect();
    (Server::launch(again(command, &serve)), token)
}

/// Starts `skein serve` in place of the `skein acp` of this command. Returns it with the command that forwards to it.
pub(crate) fn forward(command: &Command) -> (Server, Command) {
    let (server, token) = serve(command);
    let mut forwarding = again(command, &["acp", "--connect", &format!("http://{}", server.address)]);
    forwarding.env("SKEIN_TOKEN", token);
    (server, forwarding)
}

/// Starts `skein serve` in place of the `skein acp` of this command, and connects to it.
pub(crate) fn connect(command: &Command, lines: Sender<Vec<u8>>, ears: Arc<Mutex<()>>) -> (Child, RemoteInput) {
    let (server, token) = serve(command);
    let address = server.address;
    let (input, messages) = unbounded_channel();
    let transport = transport();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        match transport {
            Transport::WebSocket => runtime.block_on(websocket(address, token, messages, lines, ears)),
            Transport::Http => runtime.block_on(http(address, token, messages, lines, ears)),
            Transport::Stdio | Transport::Connect => {}
        }
    });
    (server.into_child(), input)
}

/// The same program in the same surroundings with other arguments.
#[expect(clippy::disallowed_methods, reason = "the program under test is started from outside")]
fn again(command: &Command, args: &[&str]) -> Command {
    let mut again = Command::new(command.get_program());
    again.args(args).env_clear().stdin(std::process::Stdio::null());
    again.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = command.get_current_dir() {
        again.current_dir(folder);
    }
    again
}

async fn websocket(
    address: SocketAddr,
    token: String,
    mut messages: UnboundedReceiver<Vec<u8>>,
    lines: Sender<Vec<u8>>,
    ears: Arc<Mutex<()>>,
) {
    let mut request = format!("ws://{address}/acp").into_client_request().expect("a request");
    request.headers_mut().insert("authorization", bearer(&token).parse().expect("a header"));
    let (socket, _) = tokio_tungstenite::connect_async(request).await.expect("a WebSocket");
    let (mut sink, mut stream) = socket.split();
    loop {
        let received = tokio::select! {
            message = messages.recv() => match message {
                Some(bytes) => {
                    let text = String::from_utf8(bytes).expect("text messages are UTF-8");
                    if sink.send(Message::text(text.trim_end_matches(['\r', '\n']))).await.is_err() {
                        return;
                    }
                    continue;
                }
                None => return drop(sink.close().await),
            },
            received = stream.next() => received,
        };
        match received {
            Some(Ok(Message::Text(text))) => {
                drop(ears.lock());
                if lines.send(format!("{text}\n").into_bytes()).is_err() {
                    return;
                }
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return,
        }
    }
}

/// An HTTP client: posts messages, and reads one stream for the connection and one for each session.
struct HttpLink {
    client: reqwest::Client,
    url: String,
    token: String,
    connection: String,
    lines: Sender<Vec<u8>>,
    ears: Arc<Mutex<()>>,
    /// The sessions of new answers, whose streams must be opened.
    found: UnboundedSender<String>,
}

async fn http(
    address: SocketAddr,
    token: String,
    mut messages: UnboundedReceiver<Vec<u8>>,
    lines: Sender<Vec<u8>>,
    ears: Arc<Mutex<()>>,
) {
    let client = skein::network::client_builder().no_proxy().build().expect("a client");
    let url = format!("http://{address}/acp");
    let Some(first) = messages.recv().await else { return };
    let post = client.post(&url).header("content-type", "application/json").bearer_auth(&token);
    let answer = post.body(first).send().await.expect("an answer");
    let connection = answer.headers().get("acp-connection-id").map(|id| id.to_str().expect("an id").to_owned());
    let body = answer.text().await.expect("a body");
    if lines.send(format!("{body}\n").into_bytes()).is_err() {
        return;
    }
    // Without a connection there is nothing to go on with.
    let Some(connection) = connection else { return };
    let (found, mut sessions) = unbounded_channel();
    let link = Arc::new(HttpLink { client, url, token, connection, lines, ears, found });
    let mut streams = JoinSet::new();
    let mut open = HashSet::new();
    streams.spawn(Arc::clone(&link).read(None, link.subscribe(None).await));
    loop {
        tokio::select! {
            biased;
            Some(session) = sessions.recv() => {
                if open.insert(session.clone()) {
                    let response = link.subscribe(Some(&session)).await;
                    streams.spawn(Arc::clone(&link).read(Some(session), response));
                }
            }
            message = messages.recv() => {
                let Some(bytes) = message else { break };
                if let Some(session) = session_of(&bytes, "params")
                    && open.insert(session.clone())
                {
                    let response = link.subscribe(Some(&session)).await;
                    streams.spawn(Arc::clone(&link).read(Some(session), response));
                }
                link.post(bytes).await;
            }
        }
    }
    let end = link.client.delete(&link.url).bearer_auth(&link.token);
    drop(end.header("acp-connection-id", &link.connection).send().await);
    while streams.join_next().await.is_some() {}
}

fn session_of(message: &[u8], part: &str) -> Option<String> {
    let message: Value = serde_json::from_slice(message).ok()?;
    message[part]["sessionId"].as_str().map(str::to_owned)
}

impl HttpLink {
    async fn post(&self, bytes: Vec<u8>) {
        let post = self.client.post(&self.url).header("content-type", "application/json").bearer_auth(&self.token);
        let answer = post.header("acp-connection-id", &self.connection).body(bytes).send().await.expect("an answer");
        assert_eq!(answer.status(), 202, "{:?}", answer.text().await);
    }

    async fn subscribe(&self, session: Option<&str>) -> reqwest::Response {
        let mut get = self.client.get(&self.url).header("accept", "text/event-stream").bearer_auth(&self.token);
        get = get.header("acp-connection-id", &self.connection);
        if let Some(session) = session {
            get = get.header("acp-session-id", session);
        }
        let answer = get.send().await.expect("a stream");
        assert_eq!(answer.status(), 200);
        answer
    }

    async fn read(self: Arc<Self>, _session: Option<String>, mut response: reqwest::Response) {
        let mut text = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            text.extend_from_slice(&chunk);
            while let Some(end) = text.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = text.drain(..end + 2).collect();
                let Some(data) = event.strip_prefix(b"data: ") else { continue };
                let line = data[..data.len() - 1].to_vec();
                if let Some(session) = session_of(&line, "result") {
                    drop(self.found.send(session));
                }
                drop(self.ears.lock());
                if self.lines.send(line).is_err() {
                    return;
                }
            }
        }
    }
}
