//! What was said is kept in order and found again, whoever else writes.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use rusqlite::Connection;

use super::*;

pub(super) struct Store {
    pub(super) sessions: SessionStore,
    pub(super) folder: tempfile::TempDir,
}

pub(super) fn store() -> Store {
    let folder = tempfile::tempdir().unwrap();
    Store { sessions: SessionStore::open(folder.path()).unwrap(), folder }
}

impl Store {
    pub(super) fn file(&self) -> PathBuf {
        self.folder.path().join("sessions.db")
    }

    /// As another process sees it.
    pub(super) fn raw(&self) -> Connection {
        Connection::open(self.file()).unwrap()
    }

    fn count(&self, table: &str) -> i64 {
        self.raw().query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    }
}

fn new_in(cwd: &str) -> NewSession {
    NewSession {
        cwd: cwd.into(),
        roots: vec!["/other".into()],
        agent: "goose".to_owned(),
        mode: "assistant".to_owned(),
        model: "offline".to_owned(),
        approval: None,
        parent: None,
        files: crate::principal::SessionFiles::Server,
    }
}

fn said(text: &str) -> NewEvent {
    NewEvent {
        kind: "message".into(),
        body: serde_json::json!({"said": text}).to_string(),
        text: Some(text.to_owned()),
    }
}

pub(super) async fn session_with(sessions: &SessionStore, cwd: &str, texts: &[&str]) -> String {
    let id = sessions.create(new_in(cwd)).await.unwrap();
    texts.iter().for_each(|text| sessions.append(&id, said(text)));
    sessions.flush(&id).await.unwrap();
    id
}

/// Stores a session that has no event yet, as older versions did.
async fn store_without_events(sessions: &SessionStore, id: &str) {
    sessions.change(id, SessionChange { title: Some("A talk".to_owned()), ..SessionChange::default() });
    sessions.flush(id).await.unwrap();
}

#[tokio::test]
async fn a_read_leaves_no_job_behind() {
    let store = store();
    let id = session_with(&store.sessions, "/here", &["one"]).await;
    for count in 2..50 {
        assert!(store.sessions.shared.pending.is_empty(), "a read waits for all jobs, and a flush too");
        store.sessions.append(&id, said("more"));
        assert_eq!(store.sessions.events(&id).await.unwrap().len(), count);
    }
    // A refused job counts no longer than others.
    store.sessions.append("no such session", said("lost"));
    assert!(store.sessions.flush("no such session").await.is_err());
    assert!(store.sessions.shared.pending.is_empty());
    assert_eq!(store.sessions.backlog(), 0);
}

#[tokio::test]
async fn a_session_is_stored_with_its_first_event() {
    let store = store();
    let unused = store.sessions.create(new_in("/here")).await.unwrap();
    let used = store.sessions.create(new_in("/here")).await.unwrap();
    let mode = SessionChange { mode: Some("planner".to_owned()), ..SessionChange::default() };
    store.sessions.change(&used, mode);
    assert_eq!(store.count("session"), 0);
    assert_eq!(store.sessions.find(&used).await.unwrap().unwrap().mode, "planner");
    store.sessions.append(&used, said("hello"));
    store.sessions.flush(&used).await.unwrap();
    store.sessions.flush(&unused).await.unwrap();
    drop(store.sessions);
    let sessions = SessionStore::open(store.folder.path()).unwrap();
    assert_eq!(sessions.find(&used).await.unwrap().unwrap().mode, "planner");
    assert_eq!(sessions.find(&unused).await.unwrap(), None);
}

#[tokio::test]
async fn the_oldest_closed_session_without_events_is_forgotten() {
    let store = store();
    let sessions = &store.sessions;
    let open = sessions.create(new_in("/here")).await.unwrap();
    let lease = sessions.hold(&open);
    let mut closed = Vec::new();
    for _ in 0..=unused_sessions::MAX_UNUSED {
        closed.push(sessions.create(new_in("/here")).await.unwrap());
    }
    let mut forgotten = Vec::new();
    for id in closed.iter().chain([&open]) {
        if sessions.find(id).await.unwrap().is_none() {
            forgotten.push(id);
        }
    }
    assert_eq!(forgotten, [&closed[0]]);
    sessions.append(&open, said("hello"));
    sessions.flush(&open).await.unwrap();
    drop(lease);
}

async fn bodies(sessions: &SessionStore, id: &str) -> Vec<String> {
    sessions.events(id).await.unwrap().into_iter().map(|event| event.body).collect()
}

async fn found(sessions: &SessionStore, words: &str) -> Vec<String> {
    sessions.search(words, FolderFilter::Anywhere, 100).await.unwrap().into_iter().map(|hit| hit.session).collect()
}

#[tokio::test]
async fn only_the_owner_reads_what_is_kept() {
    use std::os::unix::fs::PermissionsExt as _;
    let store = store();
    session_with(&store.sessions, "/here", &["private"]).await;
    for entry in std::fs::read_dir(store.folder.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", entry.path().display());
    }
}

#[tokio::test]
async fn a_session_comes_back_as_it_was_told() {
    let store = store();
    let before = id::now();
    let mut new = new_in("/here");
    new.approval = Some("ask".to_owned());
    let id = store.sessions.create(new).await.unwrap();
    let strange =
        ["", "plain", "null\0inside", "🦀 👩‍👩‍👧", "שלום \u{202e}txt.exe", "\"; DROP TABLE event; --", "line\r\nline"];
    for text in strange {
        store.sessions.append(&id, said(text));
    }
    store.sessions.append(&id, NewEvent { kind: "raw".into(), body: "a\0b".to_owned(), text: None });
    store.sessions.flush(&id).await.unwrap();

    drop(store.sessions);
    let sessions = SessionStore::open(store.folder.path()).unwrap();
    let kept = sessions.find(&id).await.unwrap().unwrap();
    assert_eq!((kept.cwd.as_path(), kept.roots.as_slice()), (Path::new("/here"), ["/other".into()].as_slice()));
    assert_eq!((kept.agent.as_str(), kept.mode.as_str(), kept.model.as_str()), ("goose", "assistant", "offline"));
    assert_eq!((kept.approval.as_deref(), kept.title, kept.events), (Some("ask"), None, 8));
    assert!(before <= kept.created_at && kept.created_at <= kept.updated_at && kept.updated_at <= id::now());
    let events = sessions.events(&id).await.unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=8).collect::<Vec<_>>());
    for (event, text) in events.iter().zip(strange) {
        assert_eq!((event.kind.as_str(), event.body.as_str()), ("message", said(text).body.as_str()));
    }
    assert_eq!((events[7].kind.as_str(), events[7].body.as_str()), ("raw", "a\0b"));
}

#[tokio::test]
async fn a_change_leaves_the_rest_and_adds_up_what_was_spent() {
    let store = store();
    let id = store.sessions.create(new_in("/here")).await.unwrap();
    let spent = |input, cost| Some(UsageTotals { input, output: 2, cached: 1, cost });
    store.sessions.change(
        &id,
        SessionChange { title: Some("A talk".to_owned()), spent: spent(10, None), ..SessionChange::default() },
    );
    let first = store.sessions.find(&id).await.unwrap().unwrap();
    assert_eq!((first.title.as_deref(), first.spent), (Some("A talk"), spent(10, None).unwrap()));
    store.sessions.change(
        &id,
        SessionChange { mode: Some("planner".to_owned()), spent: spent(5, Some(0.5)), ..SessionChange::default() },
    );
    store.sessions.change(&id, SessionChange { spent: spent(0, Some(0.25)), ..SessionChange::default() });
    let then = store.sessions.find(&id).await.unwrap().unwrap();
    assert_eq!(
        (then.title.as_deref(), then.mode.as_str(), then.model.as_str()),
        (Some("A talk"), "planner", "offline")
    );
    assert_eq!(then.spent, UsageTotals { input: 15, output: 6, cached: 3, cost: Some(0.75) });
}

#[tokio::test]
async fn a_read_sees_what_was_queued_before_it() {
    let store = store();
    let id = store.sessions.create(new_in("/here")).await.unwrap();
    for number in 0..200 {
        store.sessions.append(&id, said(&format!("number {number}")));
        if number % 20 == 0 {
            assert_eq!(store.sessions.events(&id).await.unwrap().len(), number + 1);
        }
    }
    assert_eq!(store.sessions.find(&id).await.unwrap().unwrap().events, 200);
}

/// Otherwise nothing would be synced, and what was committed before could be lost with the power.
#[tokio::test]
async fn a_flush_writes_even_if_everything_is_committed_already() {
    let store = store();
    let id = store.sessions.create(new_in("/here")).await.unwrap();
    store.sessions.append(&id, said("committed by the read"));
    assert_eq!(store.sessions.events(&id).await.unwrap().len(), 1);
    let log = || std::fs::read(store.folder.path().join("sessions.db-wal")).unwrap();
    for _ in 0..3 {
        let before = log();
        store.sessions.flush(&id).await.unwrap();
        assert!(log() != before);
    }
}

#[tokio::test]
async fn an_unknown_session_is_none() {
    let Store { sessions, folder: _folder } = &store();
    assert_eq!(sessions.find("nobody").await.unwrap(), None);
    assert_eq!(sessions.events("nobody").await.unwrap(), []);
    assert_eq!(sessions.copy("nobody").await.unwrap(), None);
    assert!(!sessions.delete("nobody").await.unwrap());
    assert!(matches!(sessions.flush("nobody").await, Err(StoreError::Gone { .. })));
}

#[tokio::test]
async fn what_is_deleted_is_gone_and_whoever_still_appends_is_told() {
    let store = store();
    let other = SessionStore::open(store.folder.path()).unwrap();
    let id = session_with(&store.sessions, "/here", &["first words"]).await;
    let kept = session_with(&store.sessions, "/here", &["other words"]).await;
    assert!(other.delete(&id).await.unwrap());
    store.sessions.append(&id, said("later words"));
    store.sessions.append(&kept, said("more"));
    let told = store.sessions.flush(&id).await.unwrap_err();
    assert!(matches!(told, StoreError::Gone { .. }) && told.to_string().contains(&id), "{told}");
    store.sessions.flush(&kept).await.unwrap();
    assert_eq!(store.sessions.find(&id).await.unwrap(), None);
    assert_eq!(found(&store.sessions, "words").await, [kept]);
    assert_eq!((store.count("session"), store.count("event")), (1, 2));
    assert!(!other.delete(&id).await.unwrap());
}

#[tokio::test]
async fn a_deleted_session_leaves_no_child_behind() {
    let store = store();
    let other = SessionStore::open(store.folder.path()).unwrap();
    let id = session_with(&store.sessions, "/here", &["first words"]).await;
    let kept = session_with(&store.sessions, "/here", &["other words"]).await;
    let child_of = |parent: &str| NewSession { parent: Some(parent.to_owned()), ..new_in("/here") };
    let child = store.sessions.create(child_of(&id)).await.unwrap();
    let kept_child = store.sessions.create(child_of(&kept)).await.unwrap();
    store.sessions.append(&child, said("words of the child"));
    store.sessions.flush(&child).await.unwrap();
    assert!(other.delete(&id).await.unwrap());
    assert_eq!(store.sessions.find(&child).await.unwrap(), None);
    let told = store.sessions.create(child_of(&id)).await.unwrap_err();
    assert!(matches!(&told, StoreError::Gone { id: gone } if *gone == id), "{told}");
    assert!(store.sessions.find(&kept_child).await.unwrap().is_some());
    assert_eq!((store.count("session"), store.count("event")), (2, 1));
    // A parent that has no event yet is stored with its child.
    let unused = store.sessions.create(new_in("/here")).await.unwrap();
    store.sessions.create(child_of(&unused)).await.unwrap();
    assert_eq!(store.count("session"), 4);
}

#[tokio::test]
async fn a_write_that_fails_for_a_while_is_told_and_done_later_once() {
    let store = store();
    let id = session_with(&store.sessions, "/here", &["one"]).await;
    let full = "CREATE TRIGGER full BEFORE INSERT ON event BEGIN SELECT raise(ROLLBACK, 'the disk is full'); END";
    store.raw().execute_batch(full).unwrap();
    store.sessions.append(&id, said("two"));
    store.sessions.change(&id, SessionChange { title: Some("title".to_owned()), ..SessionChange::default() });
    for _ in 0..2 {
        let told = store.sessions.flush(&id).await.unwrap_err().to_string();
        assert!(told.contains(&id) && told.contains("the disk is full") && told.contains("tried again"), "{told}");
    }
    store.raw().execute_batch("DROP TRIGGER full").unwrap();
    store.sessions.append(&id, said("three"));
    store.sessions.flush(&id).await.unwrap();
    assert_eq!(bodies(&store.sessions, &id).await, ["one", "two", "three"].map(|text| said(text).body));
    assert_eq!(store.sessions.find(&id).await.unwrap().unwrap().title.as_deref(), Some("title"));
}

#[tokio::test]
async fn a_write_that_failed_is_tried_again_without_another_one() {
    let store = store();
    let id = session_with(&store.sessions, "/here", &["one"]).await;
    let full = "CREATE TRIGGER full BEFORE INSERT ON event BEGIN SELECT raise(ROLLBACK, 'the disk is full'); END";
    store.raw().execute_batch(full).unwrap();
    store.sessions.append(&id, said("two"));
    store.sessions.flush(&id).await.unwrap_err();
    assert!(store.sessions.backlog() > 0);
    store.raw().execute_batch("DROP TRIGGER full").unwrap();
    let written = async {
        while store.sessions.backlog() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), written).await.expect("it is written");
    assert_eq!(bodies(&store.sessions, &id).await, ["one", "two"].map(|text| said(text).body));
}

#[tokio::test]
async fn a_session_not_written_yet_is_not_called_deleted() {
    let store = store();
    let full = "CREATE TRIGGER full BEFORE INSERT ON session BEGIN SELECT raise(ROLLBACK, 'the disk is full'); END";
    store.raw().execute_batch(full).unwrap();
    let id = store.sessions.create(new_in("/here")).await.unwrap();
    assert_eq!(store.sessions.find_in_use(&id).await.unwrap().events, 0, "in memory");
    store.sessions.append(&id, said("one"));
    for _ in 0..2 {
        let told = store.sessions.find_in_use(&id).await.unwrap_err();
        assert!(matches!(&told, StoreError::Unwritten { .. }), "{told}");
        assert!(told.to_string().contains("the disk is full"), "{told}");
    }
    store.raw().execute_batch("DROP TRIGGER full").unwrap();
    assert_eq!(store.sessions.find_in_use(&id).await.unwrap().events, 1);
    assert!(SessionStore::open(store.folder.path()).unwrap().delete(&id).await.unwrap());
    let told = store.sessions.find_in_use(&id).await.unwrap_err();
    assert!(matches!(&told, StoreError::Gone { .. }), "{told}");
}

#[tokio::test]
async fn unwritable_event_does_not_block_the_others() {
    let store = store();
    let id = session_with(&store.sessions, "/here", &["one"]).await;
    let never = "CREATE TRIGGER never BEFORE INSERT ON event WHEN new.kind = 'bad'
        BEGIN SELECT raise(ABORT, 'not this one'); END";
    store.raw().execute_batch(never).unwrap();
    store.sessions.append(&id, NewEvent { kind: "bad".into(), body: "{}".to_owned(), text: None });
    store.sessions.append(&id, said("two"));
    let told = store.sessions.flush(&id).await.unwrap_err().to_string();
    assert!(told.contains("left out: not this one"), "{told}");
    store.sessions.flush(&id).await.unwrap();
    let events = store.sessions.events(&id).await.unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test]
async fn the_last_handle_waits_until_everything_is_written() {
    let store = store();
    let id = store.sessions.create(new_in("/here")).await.unwrap();
    let other = store.sessions.clone();
    drop(store.sessions);
    for number in 0..5_000 {
        other.append(&id, said(&format!("number {number}")));
    }
    drop(other);
    // Closed in order: nothing is left beside the file.
    let files: Vec<_> = std::fs::read_dir(store.folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, ["sessions.db"]);
    let sessions = SessionStore::open(store.folder.path()).unwrap();
    let expected: Vec<_> = (0..5_000).map(|number| said(&format!("number {number}")).body).collect();
    assert_eq!(bodies(&sessions, &id).await, expected);
}

#[tokio::test]
async fn a_copy_has_the_same_events_and_goes_its_own_way() {
    let Store { sessions, folder: _folder } = &store();
    let id = session_with(sessions, "/here", &["one", "two"]).await;
    sessions.change(
        &id,
        SessionChange {
            title: Some("A talk".to_owned()),
            spent: Some(UsageTotals { input: 9, ..UsageTotals::default() }),
            ..SessionChange::default()
        },
    );
    sessions.append(&id, said("queued"));
    let copy = sessions.copy(&id).await.unwrap().unwrap();
    sessions.append(&copy, said("only there"));
    sessions.append(&id, said("only here"));
    assert_eq!(bodies(sessions, &copy).await, ["one", "two", "queued", "only there"].map(|text| said(text).body));
    assert_eq!(bodies(sessions, &id).await, ["one", "two", "queued", "only here"].map(|text| said(text).body));
    let stored = sessions.find(&copy).await.unwrap().unwrap();
    assert_eq!(
        (stored.title.as_deref(), stored.cwd.as_path(), stored.spent),
        (Some("A talk"), Path::new("/here"), UsageTotals::default())
    );
    assert!(sessions.delete(&id).await.unwrap());
    assert_eq!(found(sessions, "two").await, [copy]);
}

// Listing

async fn page(sessions: &SessionStore, after: Option<Cursor>) -> Vec<StoredSession> {
    sessions.list(ListFilter { after, limit: Some(3), ..ListFilter::default() }).await.unwrap()
}

#[tokio::test]
async fn pages_repeat_and_skip_nothing_while_sessions_come() {
    let store = store();
    let mut made = BTreeSet::new();
    for number in 0..10 {
        made.insert(session_with(&store.sessions, "/here", &[&number.to_string()]).await);
    }
    // All at the same moment: the order is still one.
    store.raw().execute("UPDATE session SET updated_at = 1790000000000", []).unwrap();
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let found = page(&store.sessions, after).await;
        let Some(last) = found.last() else { break };
        after = Some(Cursor::from(last));
        seen.extend(found.into_iter().map(|session| session.id));
        session_with(&store.sessions, "/here", &["a newer one"]).await;
        store.sessions.append(&seen[0], said("moves to the top"));
    }
    assert_eq!((seen.len(), seen.into_iter().collect::<BTreeSet<_>>()), (10, made));
}

#[tokio::test]
async fn a_list_can_be_of_one_mode() {
    let Store { sessions, folder: _folder } = &store();
    let (one, other) = (session_with(sessions, "/a", &["x"]).await, session_with(sessions, "/a", &["y"]).await);
    sessions.change(&other, SessionChange { mode: Some("planner".to_owned()), ..SessionChange::default() });
    let list = async |mode: &str| {
        let filter = ListFilter { mode: Some(mode.to_owned()), ..ListFilter::default() };
        sessions.list(filter).await.unwrap().into_iter().map(|session| session.id).collect::<Vec<_>>()
    };
    assert_eq!((list("goose/assistant").await, list("goose/planner").await), (vec![one], vec![other]));
    assert!(list("planner").await.is_empty());
}

#[tokio::test]
async fn a_part_of_a_transcript_is_read_from_either_side() {
    let Store { sessions, folder: _folder } = &store();
    let id = session_with(sessions, "/a", &["1", "2", "3", "4", "5"]).await;
    let numbers = |events: Vec<StoredEvent>| events.iter().map(|event| event.seq).collect::<Vec<_>>();
    assert_eq!(numbers(sessions.events_before(&id, None, 2).await.unwrap()), [4, 5]);
    assert_eq!(numbers(sessions.events_before(&id, Some(4), 2).await.unwrap()), [2, 3]);
    assert_eq!(numbers(sessions.events_before(&id, Some(1), 2).await.unwrap()), [0_u64; 0]);
    assert_eq!(numbers(sessions.events_after(&id, 3, 9).await.unwrap()), [4, 5]);
    assert_eq!(numbers(sessions.events_after(&id, 0, 2).await.unwrap()), [1, 2]);
    assert_eq!(numbers(sessions.events_after("unknown", 0, 2).await.unwrap()), [0_u64; 0]);
}

#[tokio::test]
async fn the_newest_comes_first_and_folders_narrow() {
    let Store { sessions, folder: _folder } = &store();
    let mut ids = Vec::new();
    for cwd in ["/projects/a", "/projects/a/deep", "/projects/ab", "/projects/a%b_"] {
        ids.push(session_with(sessions, cwd, &["word"]).await);
    }
    let list = async |within: FolderFilter| {
        let found = sessions.list(ListFilter { within, ..ListFilter::default() }).await.unwrap();
        assert!(found.is_sorted_by(|a, b| (a.updated_at, &a.id) > (b.updated_at, &b.id)));
        found.into_iter().map(|session| session.id).collect::<BTreeSet<_>>()
    };
    let of = |numbers: &[usize]| numbers.iter().map(|number| ids[*number].clone()).collect::<BTreeSet<_>>();
    assert_eq!(list(FolderFilter::Anywhere).await, of(&[0, 1, 2, 3]));
    assert_eq!(list(FolderFilter::Folder("/projects/a".into())).await, of(&[0]));
    assert_eq!(list(FolderFilter::Below("/projects/a".into())).await, of(&[0, 1]));
    assert_eq!(list(FolderFilter::Below("/projects/a%b_".into())).await, of(&[3]));
    assert_eq!(list(FolderFilter::Below("/".into())).await, of(&[0, 1, 2, 3]));
    let hits = sessions.search("word", FolderFilter::Below("/projects/a".into()), 9).await.unwrap();
    assert_eq!(hits.into_iter().map(|hit| hit.session).collect::<BTreeSet<_>>(), of(&[0, 1]));
}

#[tokio::test]
async fn a_beginning_is_enough_if_it_is_the_only_one() {
    let store = store();
    let id = session_with(&store.sessions, "/here", &["x"]).await;
    assert_eq!(store.sessions.resolve(&id).await.unwrap(), Some(id.clone()));
    assert_eq!(store.sessions.resolve(&id[..3]).await.unwrap(), Some(id.clone()));
    assert_eq!(store.sessions.resolve(&format!(" {} ", id.to_uppercase())).await.unwrap(), Some(id.clone()));
    for nobody in ["", " ", "zzz", "%", "_", "*", "'", &format!("{id}0")] {
        assert_eq!(store.sessions.resolve(nobody).await.unwrap(), None, "{nobody}");
    }
    store.raw().execute("UPDATE session SET id = 'abc'", []).unwrap();
    let rename = |name: &str| store.raw().execute("UPDATE session SET id = ?1 WHERE length(id) > 4", [name]).unwrap();
    for name in ["abcd", "abce"] {
        session_with(&store.sessions, "/here", &["x"]).await;
        rename(name);
    }
    assert_eq!(store.sessions.resolve("abc").await.unwrap().as_deref(), Some("abc"));
    assert_eq!(store.sessions.resolve("abcd").await.unwrap().as_deref(), Some("abcd"));
    let told = store.sessions.resolve("ab").await.unwrap_err().to_string();
    assert_eq!(told, "`ab` is the beginning of several sessions: abc, abcd, abce; type more of it");
}

#[tokio::test]
async fn old_sessions_in_which_nothing_was_said_are_swept() {
    let store = store();
    let mut ids = Vec::new();
    for (texts, days) in [(&[][..], 8), (&["something"][..], 800), (&[][..], 6)] {
        let id = session_with(&store.sessions, "/here", texts).await;
        store_without_events(&store.sessions, &id).await;
        let then = number_of_days_ago(days);
        store.raw().execute("UPDATE session SET updated_at = ?2 WHERE id = ?1", rusqlite::params![id, then]).unwrap();
        ids.push(id);
    }
    drop(store.sessions);
    let sessions = SessionStore::open(store.folder.path()).unwrap();
    assert_eq!(sessions.find(&ids[0]).await.unwrap(), None);
    assert!(sessions.find(&ids[1]).await.unwrap().is_some() && sessions.find(&ids[2]).await.unwrap().is_some());
}

fn number_of_days_ago(days: u64) -> i64 {
    i64::try_from(id::now() - days * 24 * 60 * 60 * 1_000).unwrap()
}

// Searching

#[tokio::test]
async fn words_are_found_with_what_stands_around_them() {
    let Store { sessions, folder: _folder } = &store();
    let long = format!("{} the Retry budget is spent {}", "before ".repeat(200), "after ".repeat(200));
    let talk = session_with(sessions, "/here", &["hello", &long]).await;
    session_with(sessions, "/here", &["the budget alone"]).await;
    let hits = sessions.search("budget retr", FolderFilter::Anywhere, 10).await.unwrap();
    assert_eq!(hits.len(), 1);
    assert_eq!((hits[0].session.as_str(), hits[0].seq, hits[0].kind.as_str()), (talk.as_str(), 2, "message"));
    let snippet = &hits[0].snippet;
    assert!(snippet.contains("Retry budget") && snippet.len() < 300 && snippet.starts_with('…'), "{snippet}");
    assert_eq!(sessions.search("budget", FolderFilter::Anywhere, 1).await.unwrap().len(), 1);
    assert_eq!(sessions.search("budget", FolderFilter::Anywhere, 10).await.unwrap().len(), 2);
}

#[tokio::test]
async fn what_is_no_word_is_found_as_it_stands() {
    let Store { sessions, folder: _folder } = &store();
    let id =
        session_with(sessions, "/here", &["数据库迁移失败了", "null\0then 🦀 crab", "ÄRGER mit İstanbul", "שלום עולם"])
            .await;
    for words in ["迁移", "🦀", "then", "crab", "rger", "ärger", "stanbul", "עולם", "ולם"] {
        assert_eq!(found(sessions, words).await, std::slice::from_ref(&id), "{words}");
    }
    for words in ["", " ", "\0", "nowhere", "🦞"] {
        assert_eq!(found(sessions, words).await, Vec::<String>::new(), "{words:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_search_is_a_syntax_error(
        words in prop_oneof![any::<String>(), "[a-z\"'*():^+~ -]{0,20}", "(AND|OR|NOT|NEAR|text:|\"|\\*| |a){1,8}"],
        text in any::<String>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let store = store();
            session_with(&store.sessions, "/here", &[&text, "a b and near"]).await;
            store.sessions.search(&words, FolderFilter::Anywhere, 5).await.unwrap();
            store.sessions.resolve(&words).await.unwrap();
            // Every text is found by itself, if there is anything to look for.
            let wanted = text.replace('\0', " ");
            if !wanted.trim().is_empty() {
                assert!(!found(&store.sessions, &text).await.is_empty(), "{text:?}");
            }
        });
    }
}

// Several at once

#[test]
fn writers_at_the_same_time_lose_nothing_and_share_one_order() {
    let folder = tempfile::tempdir().unwrap();
    let (writers, each) = (8, 60);
    let begin = std::sync::Barrier::new(writers);
    let shared = std::sync::OnceLock::new();
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (folder, begin, shared) = (folder.path(), &begin, &shared);
            scope.spawn(move || {
                // They open the file, and make it, at the same moment.
                begin.wait();
                let sessions = SessionStore::open(folder).unwrap();
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    if writer == 0 {
                        let id = sessions.create(new_in("/here")).await.unwrap();
                        store_without_events(&sessions, &id).await;
                        shared.set(id).unwrap();
                    }
                    begin.wait();
                    let (own, shared) = (sessions.create(new_in("/here")).await.unwrap(), shared.get().unwrap());
                    for number in 0..each {
                        sessions.append(&own, said(&format!("own {number}")));
                        sessions.append(shared, said(&format!("{writer} {number}")));
                        if number % 7 == 0 {
                            sessions.flush(shared).await.unwrap();
                        }
                    }
                    sessions.flush(&own).await.unwrap();
                    let expected: Vec<_> = (0..each).map(|number| said(&format!("own {number}")).body).collect();
                    assert_eq!(bodies(&sessions, &own).await, expected);
                });
            });
        }
    });
    let sessions = SessionStore::open(folder.path()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let events = runtime.block_on(sessions.events(shared.get().unwrap())).unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=480).collect::<Vec<_>>());
    for writer in 0..writers {
        let own: Vec<_> = events.iter().filter(|event| event.body.contains(&format!(":\"{writer} "))).collect();
        let expected: Vec<_> = (0..each).map(|number| said(&format!("{writer} {number}")).body).collect();
        assert_eq!(own.iter().map(|event| event.body.clone()).collect::<Vec<_>>(), expected);
    }
}
