//! A way to PostgreSQL that can stop, break, lose the answer to a commit, or swallow notifications.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The type of the message that carries a notification.
const NOTIFICATION: u8 = b'A';

/// Forwards connections to a database. It ends with the test's process.
pub(crate) struct Forwarder {
    pub(crate) address: SocketAddr,
    faults: Arc<Faults>,
}

#[derive(Default)]
struct Faults {
    /// Nothing is forwarded, and connections stay open.
    is_stopped: AtomicBool,
    /// The next commit reaches the database, and its answer is lost with the connection.
    loses_commit: AtomicBool,
    /// Notifications do not arrive, as behind a pool that gives the connection to another client.
    drops_notifications: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Forwarder {
    pub(crate) fn to(database: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let faults: Arc<Faults> = Arc::default();
        let shared = Arc::clone(&faults);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(database) else { continue };
                let faults = Arc::clone(&shared);
                let copies = [client.try_clone(), server.try_clone()].map(|copy| copy.expect("a second handle"));
                faults.open.lock().expect("the connections").extend(copies);
                let (from, to) = (client.try_clone().expect("a handle"), server.try_clone().expect("a handle"));
                let upward = Arc::clone(&faults);
                std::thread::spawn(move || carry_requests(&upward, from, to));
                std::thread::spawn(move || carry_answers(&faults, server, client));
            }
        });
        Self { address, faults }
    }

    /// Forwards nothing until [`Self::go_on`].
    pub(crate) fn stop(&self) {
        self.faults.is_stopped.store(true, Ordering::SeqCst);
    }

    pub(crate) fn go_on(&self) {
        self.faults.is_stopped.store(false, Ordering::SeqCst);
    }

    pub(crate) fn lose_next_commit(&self) {
        self.faults.loses_commit.store(true, Ordering::SeqCst);
    }

    /// Whether the answer to a commit was lost since [`Self::lose_next_commit`].
    pub(crate) fn has_lost_commit(&self) -> bool {
        !self.faults.loses_commit.load(Ordering::SeqCst)
    }

    pub(crate) fn drop_notifications(&self) {
        self.faults.drops_notifications.store(true, Ordering::SeqCst);
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        for stream in self.faults.open.lock().expect("the connections").drain(..) {
            // It may be closed already.
            stream.shutdown(Shutdown::Both).unwrap_or_default();
        }
    }
}

impl Faults {
    fn wait_while_stopped(&self) {
        while self.is_stopped.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn close(one: &TcpStream, other: &TcpStream) {
    for stream in [one, other] {
        stream.shutdown(Shutdown::Both).unwrap_or_default();
    }
}

fn carry_requests(faults: &Faults, mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        faults.wait_while_stopped();
        let bytes = &buffer[..count];
        // The simple query of a commit: its type, its length, and its text.
        let is_commit = bytes.first() == Some(&b'Q') && bytes.windows(6).any(|part| part == b"COMMIT");
        let is_lost = is_commit && faults.loses_commit.swap(false, Ordering::SeqCst);
        if is_lost {
            // The database answers after this, and the client hears nothing.
            from.shutdown(Shutdown::Write).unwrap_or_default();
        }
        if to.write_all(bytes).is_err() {
            break;
        }
        if is_lost {
            std::thread::sleep(Duration::from_millis(200));
            break;
        }
    }
    close(&from, &to);
}

fn carry_answers(faults: &Faults, mut from: TcpStream, mut to: TcpStream) {
    if !faults.drops_notifications.load(Ordering::SeqCst) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            faults.wait_while_stopped();
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        return close(&from, &to);
    }
    // Without TLS, the server's answer to the question for it is one byte, and all others have a type and a length.
    let mut is_first = true;
    loop {
        let mut head = [0; 5];
        if from.read_exact(&mut head[..1]).is_err() {
            break;
        }
        if std::mem::take(&mut is_first) && head[0] == b'N' {
            if to.write_all(&head[..1]).is_err() {
                break;
            }
            continue;
        }
        if from.read_exact(&mut head[1..]).is_err() {
            break;
        }
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; usize::try_from(length).expect("a length").saturating_sub(4)];
        if from.read_exact(&mut body).is_err() {
            break;
        }
        if head[0] == NOTIFICATION {
            continue;
        }
        if to.write_all(&head).and_then(|()| to.write_all(&body)).is_err() {
            break;
        }
    }
    close(&from, &to);
}
