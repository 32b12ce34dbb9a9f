//! `skein acp --connect`: carries the messages between the editor on stdio and a `skein serve`, and connects again when
//! the connection is lost. The messages themselves are the business of [`EditorRelay`].

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncWriteExt as _, Stdout};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::environment;
use super::super::folders::Folders;
use super::super::output::CommandError;
use super::local_terminals::{LocalTerminals, TerminalAnswer};
use crate::acp::{self, EditorRelay, RelayOutput};
use crate::network::{WebSocketAddress, WebSocketClient, WebSocketError};

/// How long open requests may take when the editor is gone.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// The first wait before another attempt to connect. Each further one is twice as long.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(10);
/// After this time without a server, Skein gives up. Questions of a turn wait for as long.
const MAX_OUTAGE: Duration = Duration::from_secs(30 * 60);
/// Path of ACP on a server.
const ACP_PATH: &str = "/acp";
const TOKEN_VARIABLE: &str = "SKEIN_TOKEN";
/// Bits of a file's mode that let others read or change it.
const OTHERS: u32 = 0o077;

/// The server and the token for it.
pub(super) struct ServerEndpoint {
    address: WebSocketAddress,
    token: String,
}

impl ServerEndpoint {
    /// Checks the URL, and reads the token from the file or from the environment. Fails if one of them is missing or
    /// wrong, or if others can read the file.
    pub(super) fn resolve(url: &str, token_file: Option<&Path>, folders: &Folders) -> Result<Self, CommandError> {
        let address = WebSocketAddress::parse(url, ACP_PATH).map_err(|error| {
            let help = "give the address of a `skein serve`, such as https://skein.example.com";
            CommandError::usage(format!("the URL of --connect does not work: {error}"), help)
        })?;
        let token = match token_file {
            Some(file) => read_token(&folders.cwd.join(file))?,
            None => environment::variable(TOKEN_VARIABLE).ok_or_else(|| {
                let help = format!("set {TOKEN_VARIABLE}, or pass --token-file; `skein token create` makes a token");
                CommandError::usage("there is no token for the server", help)
            })?,
        };
        Ok(Self { address, token: token.trim().to_owned() })
    }

    async fn connect(&self) -> Result<WebSocketClient, WebSocketError> {
        WebSocketClient::connect(&self.address, &self.token).await
    }

    /// Describes why the server cannot be used.
    fn problem(&self, error: &WebSocketError) -> (String, String) {
        let help = match error {
            WebSocketError::Status(401) => "the server does not know the token, or it has ended; create a new one",
            WebSocketError::Status(403) => "use the address that the server has as its --public-url",
            WebSocketError::Status(429 | 503) => "the server has too many connections or shuts down; try again later",
            WebSocketError::Status(_) | WebSocketError::Handshake(_) => "check that the URL is that of a `skein serve`",
            WebSocketError::Tls(_) => {
                "use the name in the server's certificate, and a certificate that this system trusts"
            }
            WebSocketError::BadToken => "check the token: it has only letters, digits and underscores",
            WebSocketError::Unreachable(_) | WebSocketError::TimeOut => "check the URL, and that the server runs",
        };
        (format!("{}: {error}", self.address), help.to_owned())
    }
}

fn read_token(file: &Path) -> Result<String, CommandError> {
    let unreadable = |error: io::Error| {
        let help = "pass a file whose only content is the token";
        CommandError::usage(format!("the token file {} cannot be read: {error}", file.display()), help)
    };
    let metadata = fs::metadata(file).map_err(unreadable)?;
    if metadata.mode() & OTHERS != 0 {
        let problem = format!("others can read the token file {}", file.display());
        return Err(CommandError::usage(problem, format!("run `chmod 600 {}`", file.display())));
    }
    let token = fs::read_to_string(file).map_err(unreadable)?;
    if token.trim().is_empty() {
        return Err(CommandError::usage(
            format!("the token file {} is empty", file.display()),
            "put the token into it",
        ));
    }
    Ok(token)
}

type EditorLines<'a> = Pin<&'a mut (dyn Stream<Item = io::Result<String>> + Send)>;

/// Why a connection is over.
enum LinkEnd {
    Lost,
    /// The editor closed its side, or a signal ends the program.
    Editor,
    Refused(String),
}

/// Forwards until the editor closes its side or `stop` is cancelled. Commands of the server run in the terminals. Fails
/// if the first connection is refused, or if a lost one does not come back.
pub(super) async fn run(
    server: &ServerEndpoint,
    terminals: LocalTerminals,
    answers: Receiver<TerminalAnswer>,
    stop: &CancellationToken,
) -> Result<(), CommandError> {
    let forwarded = forward(server, terminals.clone(), answers, stop).await;
    terminals.stop().await;
    forwarded
}

async fn forward(
    server: &ServerEndpoint,
    terminals: LocalTerminals,
    answers: Receiver<TerminalAnswer>,
    stop: &CancellationToken,
) -> Result<(), CommandError> {
    let mut socket = server.connect().await.map_err(|error| {
        let (problem, help) = server.problem(&error);
        CommandError::usage(problem, help)
    })?;
    let mut lines = std::pin::pin!(acp::editor_lines());
    let relay = EditorRelay::with_terminals();
    let mut link = EditorLink { relay, editor: tokio::io::stdout(), terminals, answers };
    loop {
        match link.carry(&mut socket, lines.as_mut(), stop).await {
            LinkEnd::Lost => tracing::warn!(server = %server.address, "the connection to the server is lost"),
            LinkEnd::Editor => {
                link.finish(&mut socket).await;
                socket.close().await;
                return Ok(());
            }
            LinkEnd::Refused(problem) => {
                link.give_up(&problem).await;
                return Err(CommandError::work(format!("the server refuses the editor: {problem}"), "see its log"));
            }
        }
        link.relay.disconnect();
        link.terminals.disconnect();
        socket = match link.reconnect(server, lines.as_mut(), stop).await {
            Ok(Some(socket)) => socket,
            Ok(None) => return Ok(()),
            Err(error) => {
                let (problem, help) = server.problem(&error);
                link.give_up(&format!("the connection to the server is lost: {problem}")).await;
                return Err(CommandError::work(problem, help));
            }
        };
        tracing::info!(server = %server.address, "connected again");
    }
}

/// The relay, and where the editor reads.
struct EditorLink {
    relay: EditorRelay,
    editor: Stdout,
    /// The commands of the server on this machine.
    terminals: LocalTerminals,
    answers: Receiver<TerminalAnswer>,
}

impl EditorLink {
    /// Carries messages until the connection is lost or the editor is gone.
    async fn carry(
        &mut self,
        socket: &mut WebSocketClient,
        mut lines: EditorLines<'_>,
        stop: &CancellationToken,
    ) -> LinkEnd {
        let mut output = self.relay.connect();
        loop {
            if let Some(end) = self.deliver(output, Some(&mut *socket)).await {
                return end;
            }
            output = tokio::select! {
                () = stop.cancelled() => return LinkEnd::Editor,
                line = lines.next() => match line {
                    Some(Ok(line)) => self.relay.receive_from_editor(&line),
                    Some(Err(_)) | None => return LinkEnd::Editor,
                },
                message = socket.next() => match message {
                    Some(text) => self.relay.receive_from_server(&text),
                    None => return LinkEnd::Lost,
                },
                Some(answer) = self.answers.recv() => self.take_answer(answer),
            };
        }
    }

    /// Returns the answer of a terminal, unless its connection is lost.
    fn take_answer(&self, (connection, message): TerminalAnswer) -> Vec<RelayOutput> {
        let answer = self.terminals.is_current(connection).then_some(RelayOutput::Server(message));
        answer.into_iter().collect()
    }

    /// Sends messages. The editor gets its own even if the server is gone. Returns why the connection is over, if it is.
    async fn deliver(&mut self, output: Vec<RelayOutput>, socket: Option<&mut WebSocketClient>) -> Option<LinkEnd> {
        let (mut text, mut to_server, mut end) = (String::new(), Vec::new(), None);
        for message in output {
            match message {
                RelayOutput::Editor(line) => {
                    text.push_str(&line);
                    text.push('\n');
                }
                RelayOutput::Server(line) => to_server.push(line),
                RelayOutput::Terminal(call) => to_server.extend(self.terminals.receive(call)),
                RelayOutput::Refused(problem) => end = Some(LinkEnd::Refused(problem)),
            }
        }
        if !text.is_empty() && self.write(&text).await.is_err() {
            return Some(LinkEnd::Editor);
        }
        if let (Some(socket), false) = (socket, to_server.is_empty()) {
            for line in to_server {
                if socket.feed(line).await.is_err() {
                    return Some(LinkEnd::Lost);
                }
            }
            if socket.flush().await.is_err() {
                return Some(LinkEnd::Lost);
            }
        }
        end
    }

    async fn write(&mut self, text: &str) -> io::Result<()> {
        self.editor.write_all(text.as_bytes()).await?;
        self.editor.flush().await
    }

    /// Connects again, with longer and longer waits. Takes lines of the editor meanwhile. `None` if the editor is gone.
    /// Fails if the server refuses the token, or does not come back.
    async fn reconnect(
        &mut self,
        server: &ServerEndpoint,
        mut lines: EditorLines<'_>,
        stop: &CancellationToken,
    ) -> Result<Option<WebSocketClient>, WebSocketError> {
        let lost = Instant::now();
        let mut delay = FIRST_DELAY;
        loop {
            let mut pause = std::pin::pin!(sleep(delay));
            loop {
                tokio::select! {
                    () = stop.cancelled() => return Ok(None),
                    () = &mut pause => break,
                    line = lines.next() => match line {
                        // Without a connection the relay keeps the line.
                        Some(Ok(line)) => drop(self.relay.receive_from_editor(&line)),
                        Some(Err(_)) | None => return Ok(None),
                    },
                }
            }
            let error = match server.connect().await {
                Ok(socket) => return Ok(Some(socket)),
                Err(error) => error,
            };
            let is_final = matches!(error, WebSocketError::Status(401 | 403 | 404) | WebSocketError::BadToken);
            if is_final || lost.elapsed() >= MAX_OUTAGE {
                return Err(error);
            }
            tracing::info!(%error, "the server cannot be reached yet");
            delay = (delay * 2).min(MAX_DELAY);
        }
    }

    /// Cancels the turns of an editor that is gone, and writes the responses that arrive in time.
    async fn finish(&mut self, socket: &mut WebSocketClient) {
        let ending = async {
            let mut output = self.relay.cancel_turns();
            loop {
                if self.deliver(output, Some(&mut *socket)).await.is_some() || self.relay.is_idle() {
                    return;
                }
                output = tokio::select! {
                    message = socket.next() => match message {
                        Some(text) => self.relay.receive_from_server(&text),
                        None => return,
                    },
                    Some(answer) = self.answers.recv() => self.take_answer(answer),
                };
            }
        };
        drop(timeout(GRACE, ending).await);
    }

    /// Answers the open requests of the editor with the problem.
    async fn give_up(&mut self, problem: &str) {
        let output = self.relay.give_up(problem);
        drop(self.deliver(output, None).await);
    }
}
