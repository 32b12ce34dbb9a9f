//! Bindings of this process that programs outside of it attach to: over a socket that only the user can open, with a
//! token that is good once, or over HTTP on this machine, with a token in every request.
//!
//! A program that connects to the socket sends its token and a line feed. It is answered with one line: [`ATTACHED`],
//! after which both sides speak MCP, or why it is not let in.
//!
//! Invariant: whoever shows no token that was given out reaches nothing, and what was offered ends with its offer.

mod http;
mod token;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::ServiceExt as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

pub use http::HttpOffer;

use self::token::Token;
use super::export::BindingServer;
use crate::socket;
use crate::task::TaskScope;

/// Where `skein mcp --attach` finds the socket and the token. Arguments would be visible to other users.
pub const SOCKET_VARIABLE: &str = "SKEIN_ATTACH_SOCKET";
pub const TOKEN_VARIABLE: &str = "SKEIN_ATTACH_TOKEN";

/// The line that lets a program in.
pub const ATTACHED: &str = "attached";

/// How long a program may take to show its token.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(3);

/// How long nobody is let in after the system could not do it, for want of file handles, say.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Of sockets; not that of the sockets that tell how a Skein is.
const EXTENSION: &str = "attach";

/// Where programs attach to bindings of this process. A cheap handle.
#[derive(Clone)]
pub struct Attachments {
    folder: PathBuf,
    scope: TaskScope,
    /// The socket, once something was offered on it.
    socket: Arc<Mutex<Option<PathBuf>>>,
    offers: Offers,
}

/// What is offered on the socket, in the order in which it was.
type Offers = Arc<Mutex<BTreeMap<u64, PendingOffer>>>;

struct PendingOffer {
    token: Token,
    /// Gone when it was used.
    export: Option<BindingServer>,
    ended: CancellationToken,
}

/// A view that a program can attach to, once. Dropping it withdraws it and ends the connection that used it.
pub struct SocketOffer {
    pub socket: PathBuf,
    pub token: String,
    id: u64,
    offers: Offers,
}

impl Attachments {
    /// `folder` gets a socket of this process when something is first offered. All ends with `scope`.
    pub fn new(folder: PathBuf, scope: &TaskScope) -> Self {
        Self { folder, scope: scope.clone(), socket: Arc::default(), offers: Arc::default() }
    }

    /// Whoever connects to the socket and shows the token is served this view, once.
    pub fn offer(&self, export: BindingServer) -> Result<SocketOffer, String> {
        let socket = self.socket()?;
        let token = Token::new()?;
        let mut offers = lock(&self.offers);
        let id = offers.last_key_value().map_or(0, |(last, _)| last + 1);
        let offered = PendingOffer { token: token.clone(), export: Some(export), ended: self.end_token()? };
        offers.insert(id, offered);
        Ok(SocketOffer { socket, token: token.text().to_owned(), id, offers: Arc::clone(&self.offers) })
    }

    /// Whoever shows the token in every request is served this view, over HTTP on this machine, until the offer is
    /// dropped.
    pub fn offer_http(&self, export: BindingServer) -> Result<HttpOffer, String> {
        http::offer(export, Token::new()?, self.end_token()?, &self.scope)
    }

    /// Cancelled when everything ends, and with the offer that it is for.
    fn end_token(&self) -> Result<CancellationToken, String> {
        let ended = self.scope.cancelled().child_token();
        if ended.is_cancelled() { Err("skein is about to end".to_owned()) } else { Ok(ended) }
    }

    /// The socket, which is made when it is first needed.
    fn socket(&self) -> Result<PathBuf, String> {
        let mut made = lock(&self.socket);
        if let Some(path) = &*made {
            return Ok(path.clone());
        }
        sweep(&self.folder);
        let chance = Token::new()?;
        let name = format!("{}-{}.{EXTENSION}", std::process::id(), &chance.text()[..8]);
        let path = self.folder.join(name);
        let listener = socket::listen(&path).map_err(|error| {
            format!("there can be no socket at {}: {error}; choose another SKEIN_DATA_DIR", path.display())
        })?;
        self.scope.spawn(accept(listener, path.clone(), self.scope.clone(), Arc::clone(&self.offers)));
        *made = Some(path.clone());
        Ok(path)
    }
}

/// Removes the sockets that killed Skeins left behind.
fn sweep(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let sockets = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|of| of == EXTENSION));
    sockets.for_each(|path| drop(socket::connect(&path)));
}

async fn accept(listener: UnixListener, path: PathBuf, scope: TaskScope, offers: Offers) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = scope.cancelled().cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            // Each in its own task, so that one that is slow or silent holds up nobody.
            Ok((stream, _)) => {
                let (offers, cancelled) = (Arc::clone(&offers), scope.cancelled().clone());
                scope.spawn(async move {
                    tokio::select! {
                        biased;
                        () = cancelled.cancelled() => {}
                        () = attend(stream, &offers) => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "nobody can attach at the moment");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
    drop(std::fs::remove_file(&path));
}

/// One connection, from the token to its end.
async fn attend(stream: UnixStream, offers: &Offers) {
    let (reading, mut writing) = stream.into_split();
    let mut reading = BufReader::new(reading);
    let mut line = Vec::new();
    // One more than a token and its line feed, so that what is longer is seen to be wrong.
    let mut limited = (&mut reading).take(Token::DIGITS as u64 + 2);
    let shown = tokio::time::timeout(TOKEN_TIMEOUT, limited.read_until(b'\n', &mut line)).await;
    let admitted = match shown {
        Ok(Ok(_)) => admit(line.trim_ascii_end(), offers),
        Ok(Err(_)) => return,
        Err(_) => Err("no token was shown in time"),
    };
    let answer = admitted.as_ref().map_or_else(|problem| *problem, |_| ATTACHED);
    let told = tokio::time::timeout(TOKEN_TIMEOUT, writing.write_all(format!("{answer}\n").as_bytes())).await;
    let (Ok((export, ended)), Ok(Ok(()))) = (admitted, told) else { return };
    let served = async {
        match export.serve_with_ct((reading, writing), ended.clone()).await {
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

/// What the token stands for. Every offer is compared, so that the time tells nothing.
fn admit(shown: &[u8], offers: &Offers) -> Result<(BindingServer, CancellationToken), &'static str> {
    let mut offers = lock(offers);
    let mut found = None;
    for offered in offers.values_mut() {
        if offered.token.is(shown) {
            found = Some(offered);
        }
    }
    let offered = found.ok_or("the token is not known here, or what it stood for was withdrawn")?;
    let export = offered.export.take().ok_or("the token was used already, and it is good once")?;
    Ok((export, offered.ended.clone()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for SocketOffer {
    fn drop(&mut self) {
        if let Some(offered) = lock(&self.offers).remove(&self.id) {
            offered.ended.cancel();
        }
    }
}

impl std::fmt::Debug for Attachments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachments").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// Without the token: what is shown ends up in logs.
impl std::fmt::Debug for SocketOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SocketOffer").field("socket", &self.socket).finish_non_exhaustive()
    }
}
