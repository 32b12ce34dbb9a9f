//! Sessions: what was said and done in each, event by event, in one file that several processes may use at once.
//!
//! An event is a JSON text that only its writer understands, a kind, and the words by which it can be found. Only looking
//! back (`recall`) reads in one: who said a message, and from where on a user took something back.
//!
//! **One writer.** A thread of its own takes what was queued, as much as there is, into one transaction. Whoever
//! appends waits for nothing. What could not be written for a passing reason (a full disk, another process that
//! holds the file) stays queued and is tried again with the next write.
//!
//! **NORMAL and FULL.** With a write-ahead log, a commit at `synchronous=NORMAL` survives the death of the process,
//! `kill -9` too, because the system has the bytes already; only the loss of power can take it back. At `FULL` the
//! log is synced, which costs milliseconds on a disk. So the many commits while a turn runs are NORMAL, and the one
//! that `flush` waits for, at the end of the turn, is FULL. It counts itself in the session's row and so writes even
//! if nothing else is queued: syncing the log once makes every commit before it durable as well.
//!
//! **Reading** has a connection of its own, so that a long search keeps no turn from ending. A read first passes
//! through the queue and then sees what this process has queued before it; it does not wait for a sync.

mod id;
mod read;
mod recall;
mod writer;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use rusqlite::{Connection, OpenFlags};
use serde::Serialize;
use tokio::sync::oneshot;

pub use recall::{COUNTED, RecallMatch, RecallQuery, RecallResults, StoredMessage, TermStats, TermWeights};

use super::{PATIENCE, Schema, StoreError, failure, open};
use writer::{Job, SessionWriter, Work};

/// `skei`.
const MARK: i32 = 0x736b_6569;

pub(super) const SCHEMA: Schema = Schema {
    mark: MARK,
    migrations: &[
        "
    CREATE TABLE session (
        key INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        cwd TEXT NOT NULL,
        roots TEXT NOT NULL,
        agent TEXT NOT NULL,
        mode TEXT NOT NULL,
        model TEXT NOT NULL,
        approval TEXT,
        title TEXT,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        input INTEGER NOT NULL DEFAULT 0,
        output INTEGER NOT NULL DEFAULT 0,
        cached INTEGER NOT NULL DEFAULT 0,
        cost REAL,
        -- How many there are, and so the number of the last one.
        events INTEGER NOT NULL DEFAULT 0,
        -- Counts flushes, so that each has something to write: SQLite leaves out what is the same already.
        flushes INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX session_newest ON session (updated_at, id);
    CREATE TABLE event (
        key INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES session (key) ON DELETE CASCADE,
        -- From 1, without gaps.
        seq INTEGER NOT NULL,
        at INTEGER NOT NULL,
        kind TEXT NOT NULL,
        body TEXT NOT NULL,
        text TEXT,
        UNIQUE (session, seq)
    ) STRICT;
    CREATE VIRTUAL TABLE event_words USING fts5(text, content='event', content_rowid='key',
        tokenize='porter unicode61 remove_diacritics 2');
    CREATE TRIGGER event_added AFTER INSERT ON event WHEN new.text IS NOT NULL BEGIN
        INSERT INTO event_words (rowid, text) VALUES (new.key, new.text);
    END;
    CREATE TRIGGER event_removed AFTER DELETE ON event WHEN old.text IS NOT NULL BEGIN
        INSERT INTO event_words (event_words, rowid, text) VALUES ('delete', old.key, old.text);
    END;
",
        "
    -- The id of the session that it works for.
    ALTER TABLE session ADD COLUMN parent TEXT;
    CREATE INDEX session_children ON session (parent) WHERE parent IS NOT NULL;
",
    ],
};

/// A session in which nothing was said is kept this long.
const EMPTY_FOR: u64 = 7 * 24 * 60 * 60 * 1_000;

/// Folders are kept as text; what is not UTF-8 in them is kept as `�`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    pub cwd: PathBuf,
    /// Further folders that belong to it.
    pub roots: Vec<PathBuf>,
    pub agent: String,
    pub mode: String,
    pub model: String,
    pub approval: Option<String>,
    /// The session that it works for, if it was begun by one.
    pub parent: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    pub kind: Cow<'static, str>,
    /// JSON, which comes back as it is.
    pub body: String,
    /// The words by which it is found; without them it is not.
    pub text: Option<String>,
}

/// What is different from now on. What is left out stays.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionChange {
    pub title: Option<String>,
    pub agent: Option<String>,
    pub mode: Option<String>,
    pub model: Option<String>,
    pub approval: Option<String>,
    /// Added to what was spent before.
    pub spent: Option<UsageTotals>,
}

/// Tokens and money.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct UsageTotals {
    pub input: u64,
    pub output: u64,
    /// Of the input.
    pub cached: u64,
    /// `None` if nobody knows.
    pub cost: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoredSession {
    pub id: String,
    pub title: Option<String>,
    pub cwd: PathBuf,
    pub roots: Vec<PathBuf>,
    pub agent: String,
    pub mode: String,
    pub model: String,
    pub approval: Option<String>,
    /// The session that it works for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Milliseconds since 1970, as all times here.
    pub created_at: u64,
    pub updated_at: u64,
    #[serde(flatten)]
    pub spent: UsageTotals,
    /// How many there are.
    pub events: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// From 1, without gaps.
    pub seq: u64,
    pub at: u64,
    pub kind: String,
    pub body: String,
}

/// Which folders' sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FolderFilter {
    #[default]
    Anywhere,
    /// Those that work in exactly this one.
    Folder(PathBuf),
    /// Those that work in this one or below it.
    Below(PathBuf),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListFilter {
    pub within: FolderFilter,
    /// Those that work for this session; those that work for none if left out.
    pub parent: Option<String>,
    /// Where the page before ended.
    pub after: Option<Cursor>,
    pub limit: Option<usize>,
}

/// A place in the list, which stays where it is when sessions come and go. A session that is changed moves to the
/// top, and so out of the pages that are still to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    pub updated_at: u64,
    pub id: String,
}

impl From<&StoredSession> for Cursor {
    fn from(last: &StoredSession) -> Self {
        Self { updated_at: last.updated_at, id: last.id.clone() }
    }
}

/// An event in which the words stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SearchHit {
    pub session: String,
    pub title: Option<String>,
    pub cwd: PathBuf,
    pub seq: u64,
    pub at: u64,
    pub kind: String,
    /// The words, with what stands around them.
    pub snippet: String,
}

/// The store of sessions. Copies of it are the same; the last one to go waits until everything is written.
#[derive(Debug, Clone)]
pub struct SessionStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: PathBuf,
    // In the order in which they must go: the writer is the last to close the file, and tidies it.
    reader: Option<Arc<Mutex<Connection>>>,
    queue: Option<mpsc::Sender<Job>>,
    /// Bytes of events in the queue; the writer takes off what it has written.
    unwritten: Arc<AtomicUsize>,
    writer: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.reader = None;
        self.queue = None;
        if self.writer.take().is_some_and(|writer| writer.join().is_err()) {
            tracing::error!(file = %self.file.display(), "the writer of sessions broke off");
        }
    }
}

impl SessionStore {
    /// The store in the data folder, made if it is not there.
    pub fn open(data: &Path) -> Result<Self, StoreError> {
        let file = data.join("sessions.db");
        let connection = open(&file, &SCHEMA)?;
        let fails = |error| failure(&file, &error);
        sweep(&connection).map_err(fails)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let reader = Connection::open_with_flags(&file, flags).map_err(fails)?;
        reader.busy_timeout(PATIENCE).map_err(fails)?;
        let (queue, jobs) = mpsc::channel();
        let unwritten: Arc<AtomicUsize> = Arc::default();
        let writer = SessionWriter::new(connection, jobs, file.clone(), Arc::clone(&unwritten));
        let writer = std::thread::Builder::new().name("sessions".to_owned()).spawn(move || writer.run());
        let writer = writer.map_err(|error| StoreError::Unusable {
            file: file.display().to_string(),
            problem: format!("no thread can be started: {error}"),
        })?;
        let reader = Some(Arc::new(Mutex::new(reader)));
        Ok(Self { shared: Arc::new(Shared { file, reader, queue: Some(queue), unwritten, writer: Some(writer) }) })
    }

    /// Makes a session and returns its id, which is never given again.
    pub async fn create(&self, new: NewSession) -> Result<String, StoreError> {
        let id = id::new(id::now())?;
        self.ask(&id, Work::Create(Box::new(new))).await?;
        Ok(id)
    }

    /// Queues an event behind all others; `flush` tells what became of it.
    pub fn append(&self, id: &str, event: NewEvent) {
        self.queue(id, Work::Append(event), None);
    }

    /// Bytes of events that wait to be written.
    pub fn backlog(&self) -> usize {
        self.shared.unwritten.load(Ordering::Relaxed)
    }

    /// Queues a change, in order with events.
    pub fn change(&self, id: &str, change: SessionChange) {
        self.queue(id, Work::Change(Box::new(change)), None);
    }

    /// Returns when everything queued before for this session is on disk, and says what of it is not.
    pub async fn flush(&self, id: &str) -> Result<(), StoreError> {
        self.ask(id, Work::Flush).await.map(drop)
    }

    pub async fn find(&self, id: &str) -> Result<Option<StoredSession>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| read::find(connection, &id)).await
    }

    /// In the order in which they happened.
    pub async fn events(&self, id: &str) -> Result<Vec<StoredEvent>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| read::events(connection, &id)).await
    }

    /// The newest first.
    pub async fn list(&self, filter: ListFilter) -> Result<Vec<StoredSession>, StoreError> {
        self.read(move |connection| read::list(connection, &filter)).await
    }

    /// A session, the one it works for, and those that work for it or for the same one.
    pub async fn family(&self, id: &str) -> Result<Vec<String>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| read::family(connection, &id)).await
    }

    /// Whether there was one.
    pub async fn delete(&self, id: &str) -> Result<bool, StoreError> {
        self.ask(id, Work::Delete).await
    }

    /// The events in which all these words stand, the best first. No sign in them has a meaning of its own.
    pub async fn search(&self, words: &str, within: FolderFilter, limit: usize) -> Result<Vec<SearchHit>, StoreError> {
        let words = words.to_owned();
        self.read(move |connection| read::search(connection, &words, &within, limit)).await
    }

    /// What was said in earlier sessions, the best first and of equals the newest. Without words, the newest of each.
    pub async fn recall(&self, recall: RecallQuery) -> Result<RecallResults, StoreError> {
        self.read(move |connection| recall::recall(connection, &recall, id::now())).await
    }

    /// What was said in a session and stands, in order, from an event on.
    pub async fn messages(&self, id: &str, from: u64, limit: usize) -> Result<Vec<StoredMessage>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| recall::read_messages(connection, &id, from, limit)).await
    }

    /// At most `limit` messages that have the most in common with these words. A bounded number of messages is looked at.
    pub async fn common_terms(
        &self,
        words: Vec<String>,
        within: FolderFilter,
        without: Vec<String>,
        weigh: TermWeights,
        limit: usize,
    ) -> Result<TermStats, StoreError> {
        self.read_as_it_is(move |connection| recall::common_terms(connection, &words, &within, &without, weigh, limit))
            .await
    }

    /// A new session with the same events, which has spent nothing yet; `None` if there is no such session.
    pub async fn copy(&self, id: &str) -> Result<Option<String>, StoreError> {
        let new = id::new(id::now())?;
        let found = self.ask(id, Work::Copy { new: new.clone() }).await?;
        Ok(found.then_some(new))
    }

    /// The session whose id this is, or is the beginning of.
    pub async fn resolve(&self, prefix: &str) -> Result<Option<String>, StoreError> {
        let prefix = prefix.trim().to_ascii_lowercase();
        let candidates = {
            let prefix = prefix.clone();
            self.read(move |connection| read::beginning_with(connection, &prefix)).await?
        };
        match candidates.as_slice() {
            [] => Ok(None),
            [only] => Ok(Some(only.clone())),
            [first, ..] if *first == prefix => Ok(Some(prefix)),
            _ => Err(StoreError::Ambiguous { prefix, candidates }),
        }
    }

    fn queue(&self, id: &str, work: Work, reply: Option<writer::WriteReply>) {
        let job = Job { session: id.to_owned(), at: id::now(), work, reply };
        self.shared.unwritten.fetch_add(job.size(), Ordering::Relaxed);
        let sent = self.shared.queue.as_ref().map(|queue| queue.send(job));
        if !matches!(sent, Some(Ok(()))) {
            tracing::error!(session = id, "the writer of sessions is gone");
        }
    }

    async fn ask(&self, id: &str, work: Work) -> Result<bool, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.queue(id, work, Some(reply));
        // Without a writer the question was dropped, and the reply with it.
        answer.await.unwrap_or_else(|_| Err(self.unusable("its writer broke off; the log may tell why")))
    }

    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask("", Work::Nothing).await?;
        self.read_as_it_is(query).await
    }

    /// The same for what need not know what was queued just now: nobody is waited for.
    async fn read_as_it_is<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Some(reader) = self.shared.reader.clone() else { return Err(self.unusable("it is closed")) };
        let read = tokio::task::spawn_blocking(move || query(&reader.lock().unwrap_or_else(PoisonError::into_inner)));
        match read.await {
            Ok(result) => result.map_err(|error| failure(&self.shared.file, &error)),
            Err(error) => Err(self.unusable(&format!("reading it broke off: {error}"))),
        }
    }

    fn unusable(&self, problem: &str) -> StoreError {
        StoreError::Unusable { file: self.shared.file.display().to_string(), problem: problem.to_owned() }
    }
}

/// Removes sessions that were begun long ago and in which nothing was ever said.
fn sweep(connection: &Connection) -> rusqlite::Result<()> {
    let before = i64::try_from(id::now().saturating_sub(EMPTY_FOR)).unwrap_or(i64::MAX);
    // Looking takes no lock; most of the time there is nothing to remove.
    let any = "SELECT EXISTS (SELECT 1 FROM session WHERE updated_at < ?1 AND events = 0)";
    if connection.query_row(any, [before], |row| row.get(0))? {
        connection.execute("DELETE FROM session WHERE updated_at < ?1 AND events = 0", [before])?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "sessions_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "sessions_files_tests.rs"]
mod files_tests;
