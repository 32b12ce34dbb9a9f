//! Notifies other replicas of new events of a session, with LISTEN and NOTIFY of PostgreSQL.
//!
//! A notification carries only the session and the number of its last event. Readers fetch the rows after their own
//! number, so a lost notification delays them and nothing else.
//!
//! Invariant: no notification is part of a transaction that writes events, because NOTIFY takes a global lock at commit.

mod pacer;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use postgres::Client;
use postgres::fallible_iterator::FallibleIterator as _;
use tokio::sync::watch;

use super::database::{Database, connect, problem, unusable};
use super::{StoreAddress, StoreError};
use pacer::NotifyPacer;

/// The channel of all sessions.
const CHANNEL: &str = "skein_events";
/// The name of a listening connection in the database's list of connections.
const LISTENER: &str = "skein listen";
/// How long the listener waits before it looks whether it must end.
const LISTEN_POLL: Duration = Duration::from_millis(500);
/// The pause before a lost connection is opened again.
const RECONNECT_DELAY: Duration = Duration::from_millis(500);
/// How long a notification may take at the start.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

const NOTIFY: &str = "SELECT pg_notify($1, session || ' ' || seq)
    FROM unnest($2::text[], $3::bigint[]) AS news (session, seq)";

/// Sends notifications about new events, from a separate thread and connection. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct NotifySender(mpsc::Sender<(String, u64)>);

impl NotifySender {
    /// Starts the thread. Fails if the system gives none.
    pub(super) fn start(address: &Arc<StoreAddress>) -> Result<Self, StoreError> {
        let (tx, rx) = mpsc::channel();
        let database = Database::new(address);
        let started = std::thread::Builder::new().name("notify".to_owned()).spawn(move || send_all(&rx, database));
        started.map_err(|error| unusable(address, format!("no thread can be started: {error}")))?;
        Ok(Self(tx))
    }

    /// Queues the news that a session has events up to `seq`.
    pub(super) fn send(&self, session: &str, seq: u64) {
        // Fails only if the thread broke off. Readers then find the events when they look for them.
        drop(self.0.send((session.to_owned(), seq)));
    }
}

fn send_all(news: &mpsc::Receiver<(String, u64)>, mut database: Database) {
    let mut pacer = NotifyPacer::default();
    loop {
        let received = match pacer.next_due() {
            None => news.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
            Some(due) => news.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        match received {
            Ok((session, seq)) => pacer.add(session, seq),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        let (sessions, numbers): (Vec<String>, Vec<i64>) = pacer.take_due(Instant::now()).into_iter().unzip();
        if sessions.is_empty() {
            continue;
        }
        let sent = database.read(|queries| queries.query(NOTIFY, &[&CHANNEL, &sessions, &numbers]));
        if let Err(error) = sent {
            tracing::debug!(%error, "other replicas are not notified of new events");
        }
    }
}

/// Receives the notifications of all replicas on its own connection. Dropping the last clone ends it.
#[derive(Debug, Clone)]
pub struct ListenHub {
    shared: Arc<ListenShared>,
    _end: Arc<ListenEnd>,
}

#[derive(Debug, Default)]
struct ListenShared {
    /// A counter for each session that is followed. It changes whenever there may be news.
    sessions: Mutex<HashMap<String, watch::Sender<u64>>>,
    ended: AtomicBool,
}

/// Ends the thread when no hub is left.
#[derive(Debug)]
struct ListenEnd(Arc<ListenShared>);

impl Drop for ListenEnd {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }
}

impl ListenHub {
    /// Listens at `listen`, and checks that notifications of the store at `store` arrive there. It may wait for the
    /// network. Fails if they do not, as behind PgBouncer in transaction mode.
    pub fn open(store: &Arc<StoreAddress>, listen: &StoreAddress) -> Result<Self, StoreError> {
        let address = listen.with_application(LISTENER);
        let broken = || unusable(listen, "listening to it broke off".to_owned());
        let client = std::thread::scope(|scope| scope.spawn(|| probe(store, &address)).join());
        let client = client.map_err(|_| broken())??;
        let shared: Arc<ListenShared> = Arc::default();
        let thread = Arc::clone(&shared);
        let started = std::thread::Builder::new()
            .name("listen".to_owned())
            .spawn(move || listen_until_ended(&thread, &address, client));
        started.map_err(|error| unusable(listen, format!("no thread can be started: {error}")))?;
        Ok(Self { _end: Arc::new(ListenEnd(Arc::clone(&shared))), shared })
    }

    /// Returns a counter that changes whenever the session may have new events.
    pub fn subscribe(&self, session: &str) -> watch::Receiver<u64> {
        let mut sessions = self.shared.sessions();
        sessions.retain(|_, sender| sender.receiver_count() > 0);
        sessions.entry(session.to_owned()).or_default().subscribe()
    }
}

impl ListenShared {
    fn sessions(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<u64>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, payload: &str) {
        let session = payload.split_once(' ').map_or(payload, |(session, _)| session);
        if let Some(sender) = self.sessions().get(session) {
            sender.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    fn wake_all(&self) {
        self.sessions().values().for_each(|sender| sender.send_modify(|count| *count = count.wrapping_add(1)));
    }
}

fn listen_until_ended(shared: &ListenShared, address: &StoreAddress, client: Client) {
    let mut client = Some(client);
    while !shared.ended.load(Ordering::Relaxed) {
        let Some(open) = client.as_mut() else {
            match open_listener(address, CHANNEL) {
                Ok(open) => {
                    client = Some(open);
                    // Notifications of the meantime are lost.
                    shared.wake_all();
                }
                Err(error) => {
                    tracing::warn!(%error, "the store sends no notifications at the moment");
                    std::thread::sleep(RECONNECT_DELAY);
                }
            }
            continue;
        };
        let received = open.notifications().timeout_iter(LISTEN_POLL).next();
        match received {
            Ok(Some(notification)) => shared.wake(notification.payload()),
            Ok(None) if !open.is_closed() => {}
            Ok(None) | Err(_) => {
                tracing::info!("the connection for notifications is lost");
                client = None;
                std::thread::sleep(RECONNECT_DELAY);
            }
        }
    }
}

fn open_listener(address: &StoreAddress, channel: &str) -> Result<Client, StoreError> {
    let mut client = connect(address)?;
    let listened = client.batch_execute(&format!("LISTEN {channel}"));
    listened.map_err(|error| unusable(address, problem(&error)))?;
    Ok(client)
}

/// Returns a connection on which a notification arrived that another connection sent.
fn probe(store: &Arc<StoreAddress>, listen: &StoreAddress) -> Result<Client, StoreError> {
    let mut client = open_listener(listen, CHANNEL)?;
    let mark = crate::ids::random_id("probe");
    let mut sender = Database::new(store);
    let until = Instant::now() + PROBE_TIMEOUT;
    sender.read(|queries| queries.query("SELECT pg_notify($1, $2)", &[&CHANNEL, &mark]))?;
    while Instant::now() < until {
        let left = until.saturating_duration_since(Instant::now());
        let received = client.notifications().timeout_iter(left).next();
        match received.map_err(|error| unusable(listen, problem(&error)))? {
            Some(notification) if notification.payload() == mark => return Ok(client),
            // Other replicas send notifications too.
            Some(_) => {}
            None => break,
        }
    }
    Err(StoreError::NoNotifications { address: listen.to_string() })
}
