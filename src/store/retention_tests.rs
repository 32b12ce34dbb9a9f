//! Retention removes whole families, oldest first, and spares those that are open or changed lately.

use super::*;
use crate::store::SessionStore;

const HOUR: i64 = 60 * 60 * 1_000;

struct Store {
    folder: tempfile::TempDir,
    connection: Connection,
}

fn store() -> Store {
    let folder = tempfile::tempdir().unwrap();
    drop(SessionStore::open(folder.path()).unwrap());
    let connection = open(&folder.path().join("sessions.db"), &SCHEMA).unwrap();
    Store { folder, connection }
}

impl Store {
    /// Adds a session that was changed `hours` ago.
    fn add(&self, principal: &str, id: &str, parent: Option<&str>, hours: i64) {
        let at = i64::try_from(current_time()).unwrap() - hours * HOUR;
        let insert = "INSERT INTO session
                (id, principal, parent, cwd, roots, agent, mode, model, created_at, updated_at, events)
            VALUES (?1, ?2, ?3, '/here', '[]', 'goose', 'assistant', 'offline', 0, ?4, 1)";
        self.connection.execute(insert, params![id, principal, parent, at]).unwrap();
        let event = "INSERT INTO event (session, seq, at, kind, body, text) VALUES (?1, 1, 0, 'message', '{}', ?2)";
        self.connection.execute(event, params![self.connection.last_insert_rowid(), id]).unwrap();
    }

    /// Marks a session as open for another hour.
    fn hold(&self, id: &str) {
        let until = i64::try_from(current_time()).unwrap() + HOUR;
        self.connection.execute("UPDATE session SET busy_until = ?2 WHERE id = ?1", params![id, until]).unwrap();
    }

    fn apply(&self, days: Option<u64>, count: Option<u32>) -> Vec<String> {
        let age = days.map(|days| Duration::from_secs(days * 24 * 60 * 60));
        let (place, mut noted) = (StorePlace::files(self.folder.path()), Vec::new());
        let policy = RetentionPolicy { age, count };
        let removed = remove_expired(&place, policy, &mut |removed| noted = removed.to_vec()).unwrap();
        assert_eq!(noted, removed, "what goes is known before");
        let mut removed: Vec<_> = removed.into_iter().map(|session| session.id).collect();
        removed.sort();
        removed
    }

    fn count(&self, sql: &str) -> i64 {
        self.connection.query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

#[test]
fn old_families_go_with_their_events() {
    let store = store();
    for (id, parent, hours) in [
        ("old", None, 72),
        ("old-child", Some("old"), 72),
        ("parent", None, 72),
        ("young-child", Some("parent"), 2),
        ("young", None, 47),
    ] {
        store.add("local", id, parent, hours);
    }
    assert_eq!(store.apply(Some(2), None), ["old", "old-child"]);
    assert_eq!(store.count("SELECT count(*) FROM event"), 3);
    let words = "SELECT count(*) FROM event_words WHERE event_words MATCH 'old'";
    assert_eq!(store.count(words), 0, "the index has no word of them");
    assert_eq!(store.apply(Some(2), None), [""; 0]);
}

#[test]
fn each_principal_keeps_its_newest_sessions() {
    let store = store();
    for (principal, id, hours) in
        [("ann", "a1", 2), ("ann", "a2", 3), ("ann", "a3", 4), ("bob", "b1", 50), ("bob", "b2", 60)]
    {
        store.add(principal, id, None, hours);
    }
    store.add("ann", "a1-child", Some("a1"), 2);
    assert_eq!(store.apply(None, Some(2)), ["a3"]);
    assert_eq!(store.apply(Some(2), Some(1)), ["a2", "b1", "b2"]);
}

#[test]
fn open_and_just_changed_sessions_stay() {
    let store = store();
    for (id, parent, hours) in [
        ("open", None, 900),
        ("parent", None, 900),
        ("child", Some("parent"), 900),
        ("now", None, 0),
        ("idle", None, 2),
    ] {
        store.add("local", id, parent, hours);
    }
    store.hold("open");
    store.hold("child");
    assert_eq!(store.apply(Some(0), Some(0)), ["idle"]);
}

#[tokio::test]
async fn a_session_that_is_open_stays_when_the_clock_jumps() {
    let store = store();
    for (id, parent) in [("open", None), ("parent", None), ("child", Some("parent")), ("closed", None)] {
        store.add("local", id, parent, 2);
    }
    let sessions = SessionStore::open(store.folder.path()).unwrap();
    let mut leases = Vec::new();
    for id in ["open", "child"] {
        leases.push(sessions.hold_stored(id).await.unwrap().expect("it is stored"));
    }
    // As seen by a clock that is 100 days ahead, the marks have ended long ago.
    let ahead = current_time() + 100 * 24 * 60 * 60 * 1_000;
    let policy = RetentionPolicy { age: Some(Duration::from_secs(90 * 24 * 60 * 60)), count: None };
    let mut connection = open(&store.folder.path().join("sessions.db"), &SCHEMA).unwrap();
    let removed = remove_rows(&mut connection, Limits::new(policy, ahead), store.folder.path(), &mut |_| {});
    let removed = removed.unwrap().unwrap();
    assert_eq!(removed.iter().map(|session| session.id.as_str()).collect::<Vec<_>>(), ["closed"]);
}

#[test]
fn a_mark_of_a_clock_that_was_ahead_does_not_count() {
    let store = store();
    for (id, parent) in [("head", None), ("parent", None), ("child", Some("parent"))] {
        store.add("local", id, parent, 900);
    }
    let until = i64::try_from(current_time()).unwrap() + 100 * 24 * HOUR;
    store.connection.execute("UPDATE session SET busy_until = ?1 WHERE id <> 'parent'", [until]).unwrap();
    assert_eq!(store.apply(Some(2), None), ["child", "head", "parent"]);
}

#[test]
fn a_mark_that_another_process_makes_meanwhile_counts() {
    let store = store();
    store.add("local", "open", None, 900);
    // The clean-up has read the clock before.
    let until = i64::try_from(current_time()).unwrap() + HOUR + 60_000;
    store.connection.execute("UPDATE session SET busy_until = ?1", [until]).unwrap();
    assert_eq!(store.apply(Some(2), None), [""; 0]);
}

#[tokio::test]
async fn opening_a_session_replaces_a_mark_that_is_too_late() {
    let store = store();
    store.add("local", "old", None, 900);
    let until = i64::try_from(current_time()).unwrap() + 100 * 24 * HOUR;
    store.connection.execute("UPDATE session SET busy_until = ?1", [until]).unwrap();
    let sessions = SessionStore::open(store.folder.path()).unwrap();
    drop(sessions.hold_stored("old").await.unwrap().expect("it is stored"));
    drop(sessions);
    assert!(store.count("SELECT busy_until FROM session") < until - HOUR);
    assert_eq!(store.apply(Some(2), None), [""; 0], "it was open in the last hour");
}

#[test]
fn without_a_policy_nothing_is_removed() {
    let store = store();
    store.add("local", "old", None, 90_000);
    assert_eq!(store.apply(None, None), [""; 0]);
}

#[test]
fn one_call_removes_a_limited_number_of_families() {
    let store = store();
    let many = usize::try_from(AT_ONCE).unwrap();
    (0..=many).for_each(|number| store.add("local", &format!("old-{number}"), None, 72));
    let removed = [(); 3].map(|()| store.apply(Some(1), None).len());
    assert_eq!(removed, [many, 1, 0]);
}

#[tokio::test]
async fn a_session_that_was_opened_stays_from_then_on() {
    let store = store();
    store.add("local", "old", None, 900);
    let sessions = SessionStore::open(store.folder.path()).unwrap();
    let lease = sessions.hold_stored("old").await.unwrap();
    assert!(lease.is_some());
    assert_eq!(store.apply(Some(0), None), [""; 0], "there is no moment in which it counts as closed");
    assert!(sessions.hold_stored("removed").await.unwrap().is_none());
}
