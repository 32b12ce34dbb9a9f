//! Passes the messages of an ACP client to the replica that owns their session. A client may reach any replica: if another
//! one has the session, this one connects to it as the client would, with the client's own token.
//!
//! Invariant: a replica shows its secret to no other address than the one that the store has for its peer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ServerState;
use super::authenticator::ActiveToken;
use super::replica_headers::SECRET_HEADER;
use super::runs;
use crate::acp::{ClientInput, ClientRoute, ForwardLink, SessionForwards};
use crate::network::{WebSocketClient, WebSocketError};
use crate::store::{Replica, ReplicaId, ReplicaPeer, SessionClaim};

/// Messages that wait for another replica. A full queue makes the client wait.
const MAX_WAITING: usize = 64;
/// How long a claim is kept for the connection that opens the session next.
const CLAIM_TIME: Duration = Duration::from_secs(10);
/// How long after its expiry an owner that cannot be reached is waited for.
const OWNER_PATIENCE: Duration = Duration::from_secs(1);
const ATTEMPT_DELAY: Duration = Duration::from_millis(300);
/// The status of a request with a wrong secret.
const UNAUTHORIZED: u16 = 401;

/// The bearer token of a client, for the connections that a replica makes in its name.
pub(super) struct ClientSecret(pub(super) String);

/// The token stays out of logs.
impl std::fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClientSecret")
    }
}

/// One client, and its connections to other replicas.
pub(super) struct ClientGateway {
    state: Arc<ServerState>,
    token: Arc<ActiveToken>,
    secret: ClientSecret,
    input: ClientInput,
    forwards: Arc<Mutex<SessionForwards>>,
    /// The connections to other replicas. Locked while a message is routed, so that messages keep their order.
    links: tokio::sync::Mutex<HashMap<ReplicaId, PeerLink>>,
    /// Cancelled when a connection to another replica is lost. The client connects again and loads its sessions.
    broken: CancellationToken,
    /// Cancelled when this replica loses its place. `None` if the store is not shared.
    replica_end: Option<CancellationToken>,
    /// Ends the connections to other replicas with the gateway.
    links_end: CancellationToken,
    _end: DropGuard,
}

struct PeerLink {
    id: ForwardLink,
    /// The task of the connection has the other end.
    tx: mpsc::Sender<String>,
}

impl PeerLink {
    /// Returns a link, and the end of its queue for the task of the connection.
    fn new(id: ForwardLink) -> (Self, mpsc::Receiver<String>) {
        let (tx, rx) = mpsc::channel(MAX_WAITING);
        (Self { id, tx }, rx)
    }
}

impl ClientGateway {
    pub(super) fn new(
        state: &Arc<ServerState>,
        token: &Arc<ActiveToken>,
        secret: ClientSecret,
        input: ClientInput,
    ) -> Self {
        let links_end = CancellationToken::new();
        Self {
            state: Arc::clone(state),
            token: Arc::clone(token),
            secret,
            input,
            forwards: Arc::default(),
            links: tokio::sync::Mutex::default(),
            broken: CancellationToken::new(),
            replica_end: state.parts.replica.as_ref().map(|parts| parts.replica.end_signal()),
            _end: links_end.clone().drop_guard(),
            links_end,
        }
    }

    /// Waits until the client must connect again: its sessions are elsewhere now.
    pub(super) async fn wait_for_end(&self) {
        match &self.replica_end {
            Some(replica_end) => tokio::select! {
                () = self.broken.cancelled() => {}
                () = replica_end.cancelled() => {}
            },
            None => std::future::pending().await,
        }
    }

    /// Passes on a message of the client. Returns false if the connection has ended.
    pub(super) async fn send(&self, text: String) -> bool {
        match &self.state.parts.replica {
            // Boxed, because each connection would keep room for the large future of a connection to another replica.
            Some(parts) => Box::pin(self.send_to_owner(&parts.replica, text)).await,
            None => self.input.send(text).await,
        }
    }

    /// Passes on a message to the replica that owns its session.
    async fn send_to_owner(&self, replica: &Replica, text: String) -> bool {
        let mut links = self.links.lock().await;
        let route = lock(&self.forwards).destination(&text);
        match route {
            ClientRoute::Here => self.input.send(text).await,
            ClientRoute::Elsewhere(link, text) => {
                let known = links.values().find(|known| known.id == link).map(|known| known.tx.clone());
                let is_sent = match known {
                    Some(tx) => tx.send(text).await.is_ok(),
                    None => false,
                };
                if !is_sent {
                    self.lose(link);
                }
                true
            }
            ClientRoute::Owner(session) => match self.find_owner(replica, &session, &mut links).await {
                Some((link, tx)) => {
                    lock(&self.forwards).forward(link, &session, &text);
                    if tx.send(text).await.is_err() {
                        self.lose(link);
                    }
                    true
                }
                None => {
                    lock(&self.forwards).keep_here(&session);
                    self.input.send(text).await
                }
            },
        }
    }

    fn lose(&self, link: ForwardLink) {
        let lines = lock(&self.forwards).lose(link);
        lines.into_iter().for_each(|line| self.input.inject(line));
    }

    /// Returns the connection to the replica that owns a session. `None` if this one does, or may: then the connection
    /// here answers, also with an error.
    async fn find_owner(
        &self,
        replica: &Replica,
        session: &str,
        links: &mut HashMap<ReplicaId, PeerLink>,
    ) -> Option<(ForwardLink, mpsc::Sender<String>)> {
        let server = self.state.acp_server(&self.token);
        let sessions = runs::sessions(&server).await.ok()?;
        let until = Instant::now() + replica.expiry() + OWNER_PATIENCE;
        loop {
            let peer = match sessions.store().claim(session).await {
                Ok(SessionClaim::Elsewhere(peer)) => peer,
                Ok(SessionClaim::Own(claimed)) => {
                    // No other replica may claim it before the connection here opens it.
                    let ended = self.links_end.clone();
                    self.state.scope.spawn(async move {
                        drop(tokio::time::timeout(CLAIM_TIME, ended.cancelled()).await);
                        drop(claimed);
                    });
                    return None;
                }
                Err(error) => {
                    tracing::debug!(%error, session, "the session is not claimed");
                    return None;
                }
            };
            // A place that this process had earlier, and that has not expired yet. A connection to it would end here again.
            if replica.admits(&peer.secret) {
                if Instant::now() >= until || self.input.is_closed() {
                    return None;
                }
                tokio::time::sleep(ATTEMPT_DELAY).await;
                continue;
            }
            if let Some(known) = links.get(&peer.id).filter(|known| !known.tx.is_closed()) {
                return Some((known.id, known.tx.clone()));
            }
            let address = peer.address?;
            let header = (SECRET_HEADER, peer.secret.as_str());
            match WebSocketClient::connect_replica(address, "/acp", &self.secret.0, header).await {
                Ok(socket) => {
                    let link = self.start_link(replica, &peer, socket);
                    let found = (link.id, link.tx.clone());
                    links.insert(peer.id, link);
                    return Some(found);
                }
                // It may have ended. Then its sessions are free after its expiry.
                Err(error) => {
                    tracing::warn!(%error, replica = %peer.id, %address, "the owner of a session cannot be reached");
                    // 401: another process has its address now, with another secret.
                    let is_refused = match error {
                        WebSocketError::Status(status) => status != UNAUTHORIZED,
                        WebSocketError::BadToken => true,
                        WebSocketError::Unreachable(_)
                        | WebSocketError::TimeOut
                        | WebSocketError::Tls(_)
                        | WebSocketError::Handshake(_) => false,
                    };
                    if is_refused || Instant::now() >= until || self.input.is_closed() {
                        return None;
                    }
                    tokio::time::sleep(ATTEMPT_DELAY).await;
                }
            }
        }
    }

    fn start_link(&self, replica: &Replica, peer: &ReplicaPeer, socket: WebSocketClient) -> PeerLink {
        static NEXT_LINK: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_LINK.fetch_add(1, Ordering::Relaxed);
        let (link, rx) = PeerLink::new(id);
        let task = LinkTask {
            id,
            peer: peer.id.clone(),
            replica: replica.clone(),
            socket,
            rx,
            forwards: Arc::clone(&self.forwards),
            input: self.input.clone(),
            broken: self.broken.clone(),
            ended: self.links_end.clone(),
        };
        let hello = lock(&self.forwards).initialize();
        self.state.scope.spawn(task.run(hello));
        link
    }
}

/// Carries the messages of one client to and from another replica.
struct LinkTask {
    id: ForwardLink,
    peer: ReplicaId,
    replica: Replica,
    socket: WebSocketClient,
    rx: mpsc::Receiver<String>,
    forwards: Arc<Mutex<SessionForwards>>,
    input: ClientInput,
    broken: CancellationToken,
    ended: CancellationToken,
}

impl LinkTask {
    async fn run(mut self, hello: String) {
        if !self.carry(hello).await {
            let lines = lock(&self.forwards).lose(self.id);
            lines.into_iter().for_each(|line| self.input.inject(line));
            self.broken.cancel();
        }
        self.socket.close().await;
    }

    /// Returns true if the client has left, and false if the replica is gone.
    async fn carry(&mut self, hello: String) -> bool {
        if !self.send(hello).await {
            return false;
        }
        // The replica refuses other requests until it has answered `initialize`. It sends nothing before that answer.
        let mut is_initialized = false;
        let mut gone = std::pin::pin!(wait_until_gone(self.replica.clone(), self.peer.clone()));
        loop {
            tokio::select! {
                biased;
                () = self.ended.cancelled() => return true,
                message = self.rx.recv(), if is_initialized => {
                    let Some(message) = message else { return true };
                    if !self.send(message).await {
                        return false;
                    }
                }
                received = self.socket.next() => {
                    let Some(text) = received else { return false };
                    is_initialized = true;
                    let line = lock(&self.forwards).receive(self.id, &text);
                    if let Some(line) = line {
                        self.input.inject(line);
                    }
                }
                () = &mut gone => {
                    tracing::info!(replica = %self.peer, "a replica has expired");
                    return false;
                }
            }
        }
    }

    /// Returns false if the connection is broken.
    async fn send(&mut self, message: String) -> bool {
        let sent = async {
            self.socket.feed(message).await?;
            self.socket.flush().await
        };
        match sent.await {
            Ok(()) => true,
            Err(error) => {
                tracing::info!(%error, replica = %self.peer, "the connection to a replica broke");
                false
            }
        }
    }
}

/// Waits until another replica has expired. A paused process keeps its connections open.
pub(super) async fn wait_until_gone(replica: Replica, peer: ReplicaId) {
    loop {
        tokio::time::sleep(replica.expiry() / 3).await;
        // Without an answer of the store, only the connection shows it.
        if let Ok(false) = replica.is_alive(&peer).await {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn the_queue_for_another_replica_is_limited() {
        let (link, mut rx) = PeerLink::new(1);
        (0..MAX_WAITING).for_each(|number| link.tx.try_send(number.to_string()).unwrap());
        let send = || link.tx.send("one more".to_owned()).now_or_never();
        assert!(send().is_none(), "the queue is full");
        assert_eq!(rx.recv().await, Some("0".to_owned()));
        assert!(send().is_some_and(|sent| sent.is_ok()));
    }
}
