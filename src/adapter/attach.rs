//! Lets other programs attach to bindings of this process. Over a socket that only the user can open, a program
//! presents a single-use token. Over HTTP on this machine, it presents a token in every request.
//!
//! A program that connects to the socket sends its token and a line feed. The answer is one line: [`ATTACHED`], after
//! which both sides use MCP, or the reason for a refusal.
//!
//! Invariant: a program without a valid token reaches no binding, and dropping an offer ends its connections.

mod http;
mod token;
mod token_file;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::ServiceExt as _;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

pub use http::HttpOffer;
use http::HttpServer;

use self::token::Token;
pub use self::token_file::{AttachTarget, TokenFile, TokenFileError};
use super::export::BindingServer;
use crate::answer_limit::AnswerLimit;
use crate::socket;
use crate::task::TaskScope;

/// Environment variables from which `skein mcp --attach` reads the socket and the token. Arguments would be visible to
/// other users.
pub const SOCKET_VARIABLE: &str = "SKEIN_ATTACH_SOCKET";
pub const TOKEN_VARIABLE: &str = "SKEIN_ATTACH_TOKEN";

/// The line that accepts a program.
pub const ATTACHED: &str = "attached";

/// How long a program may take to send its token, and to read the answer.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum number of connections to each address that have shown no token yet.
const MAX_UNKNOWN: usize = 128;

/// Pause after the system failed to accept a connection, for example for lack of file handles.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// File extension of attach sockets; status sockets have another one.
const EXTENSION: &str = "attach";

/// A cheap handle to offer bindings of this process to other programs.
#[derive(Clone)]
pub struct Attachments {
    folder: PathBuf,
    scope: TaskScope,
    /// The path of the socket. `None` before the first offer.
    socket: Arc<Mutex<Option<PathBuf>>>,
    offers: Offers,
    /// The HTTP server. `None` before the first offer.
    http: Arc<Mutex<Option<Arc<HttpServer>>>>,
}

/// Offers on the socket, in the order in which they were made.
type Offers = Arc<Mutex<BTreeMap<u64, PendingOffer>>>;

struct PendingOffer {
    token: Token,
    /// `None` once the token was used.
    export: Option<BindingServer>,
    ended: CancellationToken,
}

/// An offer that one program can attach to, once. Dropping it withdraws the offer and ends the connection that uses it.
pub struct SocketOffer {
    pub socket: PathBuf,
    pub token: String,
    id: u64,
    offers: Offers,
}

/// Why a binding cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
    #[error("skein is about to end")]
    ShuttingDown,
    #[error("no port is available: {0}")]
    Port(#[source] std::io::Error),
    #[error("there can be no socket at {}: {source}; choose another SKEIN_DATA_DIR", .path.display())]
    Socket { path: PathBuf, source: std::io::Error },
    #[error("the token cannot be written to {}: {source}", .path.display())]
    File { path: PathBuf, source: std::io::Error },
}

impl From<getrandom::Error> for OfferError {
    fn from(error: getrandom::Error) -> Self {
        Self::Random(error)
    }
}

/// Why a program may not attach. The program receives the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum AttachError {
    #[error("no token was shown in time")]
    Timeout,
    #[error("the token is unknown, or its offer was withdrawn")]
    UnknownToken,
    #[error("the token was used already, and it is good once")]
    UsedToken,
}

impl Attachments {
    /// Creates a handle. The first offer creates a socket in `folder`. All offers end with `scope`.
    pub fn new(folder: PathBuf, scope: &TaskScope) -> Self {
        Self { folder, scope: scope.clone(), socket: Arc::default(), offers: Arc::default(), http: Arc::default() }
    }

    /// Offers a binding on the socket, to the first program that presents the token. Fails if the socket cannot be
    /// created, the system gives no random numbers, or the scope has ended.
    pub fn offer(&self, export: BindingServer) -> Result<SocketOffer, OfferError> {
        let socket = self.socket()?;
        let token = Token::new()?;
        let mut offers = lock(&self.offers);
        let id = offers.last_key_value().map_or(0, |(last, _)| last + 1);
        let offered = PendingOffer { token: token.clone(), export: Some(export), ended: self.end_token()? };
        offers.insert(id, offered);
        Ok(SocketOffer { socket, token: token.text().to_owned(), id, offers: Arc::clone(&self.offers) })
    }

    /// Offers a binding on the socket, with the socket and the token in a file that only the user can read. Fails as
    /// [`Attachments::offer`] does, or if the file cannot be written.
    pub fn offer_in_file(&self, export: BindingServer) -> Result<TokenFile, OfferError> {
        let offer = self.offer(export)?;
        let chance = Token::new()?;
        let path = self.folder.join(format!("{}-{}", std::process::id(), &chance.text()[..8]));
        TokenFile::write(path, offer)
    }

    /// Offers a binding over HTTP on this machine, at a URL that contains the token. The first client that begins a
    /// session has it to itself. Fails as [`Attachments::offer_http`] does.
    pub fn offer_http_once(&self, export: BindingServer) -> Result<HttpOffer, OfferError> {
        Ok(self.http_server()?.offer_once(export, Token::new()?, self.end_token()?))
    }

    /// Offers a binding over HTTP on this machine, to clients that present the token in every request, until the offer
    /// is dropped. Fails if no port is free, the system gives no random numbers, or the scope has ended.
    pub fn offer_http(&self, export: BindingServer) -> Result<HttpOffer, OfferError> {
        Ok(self.http_server()?.offer(export, Token::new()?, self.end_token()?))
    }

    /// Returns the address at which offers over HTTP are served. The first call starts the server. Fails if no port is
    /// free or the scope has ended.
    pub fn http_address(&self) -> Result<SocketAddr, OfferError> {
        Ok(self.http_server()?.address())
    }

    fn http_server(&self) -> Result<Arc<HttpServer>, OfferError> {
        let mut server = lock(&self.http);
        if let Some(server) = &*server {
            return Ok(Arc::clone(server));
        }
        self.end_token()?;
        let started = HttpServer::start(&self.scope).map_err(OfferError::Port)?;
        *server = Some(Arc::clone(&started));
        Ok(started)
    }

    /// Returns a token for an offer that is also cancelled with the scope. Fails if the scope has ended.
    fn end_token(&self) -> Result<CancellationToken, OfferError> {
        let ended = self.scope.cancelled().child_token();
        if ended.is_cancelled() { Err(OfferError::ShuttingDown) } else { Ok(ended) }
    }

    /// Returns the path of the socket, which the first call creates. Fails if it cannot be created.
    pub fn socket(&self) -> Result<PathBuf, OfferError> {
        let mut made = lock(&self.socket);
        if let Some(path) = &*made {
            return Ok(path.clone());
        }
        sweep(&self.folder);
        let chance = Token::new()?;
        let name = format!("{}-{}.{EXTENSION}", std::process::id(), &chance.text()[..8]);
        let path = self.folder.join(name);
        let unusable = |source| OfferError::Socket { path: path.clone(), source };
        let listener = socket::listen(&path).map_err(unusable)?;
        self.scope.spawn(accept(listener, path.clone(), self.scope.clone(), Arc::clone(&self.offers)));
        *made = Some(path.clone());
        Ok(path)
    }
}

/// Removes the sockets and tokens of Skein processes that were killed.
fn sweep(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    let sockets = paths.iter().filter(|path| path.extension().is_some_and(|of| of == EXTENSION));
    sockets.for_each(|path| drop(socket::connect(path)));
    paths.iter().for_each(|path| token_file::remove_stale(path));
}

async fn accept(listener: UnixListener, path: PathBuf, scope: TaskScope, offers: Offers) {
    let unknown = Arc::new(Semaphore::new(MAX_UNKNOWN));
    loop {
        let accepted = tokio::select! {
            biased;
            () = scope.cancelled().cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            // One task per connection, so that a slow or silent program does not block others.
            Ok((stream, _)) => {
                // Closes a connection over the limit.
                let Ok(place) = Arc::clone(&unknown).try_acquire_owned() else { continue };
                let (offers, cancelled) = (Arc::clone(&offers), scope.cancelled().clone());
                scope.spawn(async move {
                    tokio::select! {
                        biased;
                        () = cancelled.cancelled() => {}
                        () = attend(stream, &offers, place) => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "no program can attach at the moment");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
    drop(std::fs::remove_file(&path));
}

/// Serves one connection: checks the token, then serves the offered binding until either side ends. `unknown` is the
/// place among the connections without a token.
async fn attend(stream: UnixStream, offers: &Offers, unknown: OwnedSemaphorePermit) {
    let (reading, mut writing) = stream.into_split();
    let mut reading = BufReader::new(reading);
    let mut line = Vec::new();
    // One byte more than a token and its line feed, so that a longer token is detected.
    let mut limited = (&mut reading).take(Token::DIGITS as u64 + 2);
    let shown = tokio::time::timeout(TOKEN_TIMEOUT, limited.read_until(b'\n', &mut line)).await;
    let admitted = match shown {
        Ok(Ok(_)) => admit(line.trim_ascii_end(), offers),
        Ok(Err(_)) => return,
        Err(_) => Err(AttachError::Timeout),
    };
    let answer = admitted.as_ref().map_or_else(ToString::to_string, |_| ATTACHED.to_owned());
    let told = tokio::time::timeout(TOKEN_TIMEOUT, writing.write_all(format!("{answer}\n").as_bytes())).await;
    let (Ok((export, ended)), Ok(Ok(()))) = (admitted, told) else { return };
    drop(unknown);
    let transport = AnswerLimit::new(AsyncRwTransport::new_server(reading, writing), |reason: &str| {
        tracing::warn!(reason, "the connection of a program that attached has ended");
    });
    let served = async {
        match export.serve_with_ct(transport, ended.clone()).await {
            Ok(server) => drop(server.waiting().await),
            Err(error) => tracing::debug!(%error, "a program that attached said nothing that can be served"),
        }
    };
    tokio::select! {
        biased;
        () = ended.cancelled() => {}
        () = served => {}
    }
}

/// Returns the binding that is offered under the token, and uses up the token. Compares every offer, so that the timing
/// reveals nothing. Fails if the token is unknown or was used before.
fn admit(shown: &[u8], offers: &Offers) -> Result<(BindingServer, CancellationToken), AttachError> {
    let mut offers = lock(offers);
    let mut found = None;
    for offered in offers.values_mut() {
        if offered.token.is(shown) {
            found = Some(offered);
        }
    }
    let offered = found.ok_or(AttachError::UnknownToken)?;
    let export = offered.export.take().ok_or(AttachError::UsedToken)?;
    Ok((export, offered.ended.clone()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for SocketOffer {
    fn drop(&mut self) {
        // The lock is released first: what the offer holds may itself drop an offer.
        let offered = lock(&self.offers).remove(&self.id);
        if let Some(offered) = offered {
            offered.ended.cancel();
        }
    }
}

impl std::fmt::Debug for Attachments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachments").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// Omits the token, because debug output ends up in logs.
impl std::fmt::Debug for SocketOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SocketOffer").field("socket", &self.socket).finish_non_exhaustive()
    }
}
