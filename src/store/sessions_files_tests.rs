//! A file that is not ours, or not whole, is named and stays as it is.

use std::path::Path;

use rusqlite::Connection;

use super::tests::{session_with, store};
use super::*;

/// What is in the folder: names and bytes. What looking at a log needs beside it, and an empty log, hold nothing.
fn contents(folder: &Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap())
        .filter(|file| !file.file_name().to_string_lossy().ends_with("-shm"))
        .map(|file| (file.file_name(), std::fs::read(file.path()).unwrap()))
        .filter(|(_, bytes)| !bytes.is_empty())
        .collect();
    files.sort();
    files
}

/// Says which file and what to do, and changes nothing.
fn refused(what: &str, folder: &Path) -> StoreError {
    let before = contents(folder);
    let refusal = SessionStore::open(folder).err().unwrap_or_else(|| panic!("{what} was opened"));
    let told = refusal.to_string();
    assert!(told.contains(&folder.join("sessions.db").display().to_string()), "{what}: {told}");
    assert!(told.contains("move it away") || told.contains("use that skein"), "{what}: {told}");
    assert!(contents(folder) == before, "{what}: the folder has changed");
    refusal
}

#[tokio::test]
async fn a_damaged_file_is_named_and_left_as_it_is() {
    let whole = {
        let store = store();
        for number in 0..20 {
            let text = "word ".repeat(number + 1);
            session_with(&store.sessions, "/here", &[text.as_str(); 30]).await;
        }
        let file = store.file();
        drop(store.sessions);
        std::fs::read(file).unwrap()
    };
    assert!(whole.len() > 20 * 4096, "{}", whole.len());
    let noise: Vec<u8> = (0_u32..9_000).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut torn = whole.clone();
    torn[4096..12 * 4096].fill(0xa5);
    let cases = [
        ("noise", noise),
        ("a short text", b"hello\n".to_vec()),
        ("two bytes", vec![0, 0]),
        ("a header alone", whole[..100].to_vec()),
        ("half a page", whole[..2_000].to_vec()),
        ("one page", whole[..4_096].to_vec()),
        ("half of it", whole[..whole.len() / 2].to_vec()),
        ("all but a page", whole[..whole.len() - 4_096].to_vec()),
        ("pages overwritten", torn),
    ];
    for (what, bytes) in cases {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("sessions.db"), bytes).unwrap();
        let refusal = refused(what, folder.path());
        assert!(matches!(refusal, StoreError::Foreign { .. } | StoreError::Damaged { .. }), "{what}: {refusal}");
    }
}

#[test]
fn a_database_of_another_program_is_left_as_it_is() {
    let foreign = "CREATE TABLE sessions (id TEXT); INSERT INTO sessions VALUES ('theirs')";
    let same_names = "CREATE TABLE session (id TEXT); PRAGMA user_version = 1";
    let marked = "PRAGMA application_id = 7";
    for setup in [foreign, same_names, marked] {
        for journal in ["delete", "wal"] {
            let folder = tempfile::tempdir().unwrap();
            let theirs = Connection::open(folder.path().join("sessions.db")).unwrap();
            theirs.pragma_update(None, "journal_mode", journal).unwrap();
            theirs.execute_batch(setup).unwrap();
            // It is looked at while its owner has it open, and after.
            for theirs in [Some(theirs), None] {
                let refusal = refused(setup, folder.path());
                assert!(matches!(refusal, StoreError::Foreign { .. }), "{refusal}");
                drop(theirs);
            }
        }
    }
}

/// A log that its owner left behind is not written into the file either.
#[test]
fn the_log_of_another_program_stays_beside_its_file() {
    let (origin, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let theirs = Connection::open(origin.path().join("sessions.db")).unwrap();
    theirs.pragma_update(None, "journal_mode", "wal").unwrap();
    theirs.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1)").unwrap();
    for name in ["sessions.db", "sessions.db-wal"] {
        std::fs::copy(origin.path().join(name), folder.path().join(name)).unwrap();
    }
    assert!(matches!(refused("with a log", folder.path()), StoreError::Foreign { .. }));
}

#[tokio::test]
async fn a_store_of_a_newer_skein_is_left_alone() {
    let store = store();
    session_with(&store.sessions, "/here", &["word"]).await;
    store.raw().pragma_update(None, "user_version", 99).unwrap();
    let folder = store.folder;
    drop(store.sessions);
    assert!(matches!(refused("newer", folder.path()), StoreError::Newer { found: 99, known: 11, .. }));
}

/// A database of version 2 opens with its sessions, and the help text of the offline model is no longer found.
#[tokio::test]
async fn a_database_of_the_version_before_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let before = Connection::open(folder.path().join("sessions.db")).unwrap();
    SCHEMA.migrations[..2].iter().for_each(|migration| before.execute_batch(migration).unwrap());
    let help = "No language model is configured, so this is the offline stand-in: it calls tools by name";
    before
        .execute_batch(&format!(
            "PRAGMA application_id = {}; PRAGMA user_version = 2;
             INSERT INTO session (id, cwd, roots, agent, mode, model, created_at, updated_at, events)
                VALUES ('one', '/here', '[]', 'goose', 'assistant', 'offline', 1, 1, 3);
             INSERT INTO event (session, seq, at, kind, body, text) VALUES
                (1, 1, 1, 'message', '{{\"message\":{{\"role\":\"user\"}}}}', 'a stand-in for the offline model'),
                (1, 2, 1, 'message', '{{\"message\":{{\"role\":\"assistant\"}}}}', '{help}'),
                (1, 3, 1, 'raw', 'a', NULL);",
            SCHEMA.mark
        ))
        .unwrap();
    drop(before);
    let sessions = SessionStore::open(folder.path()).unwrap();
    assert_eq!(sessions.events("one").await.unwrap().len(), 3);
    let found = sessions.search("offline", FolderFilter::Anywhere, 10).await.unwrap();
    assert_eq!(found.iter().map(|hit| hit.seq).collect::<Vec<_>>(), [1]);
    assert!(sessions.search("calls tools by name", FolderFilter::Anywhere, 10).await.unwrap().is_empty());
    let entry = StateEntry { owner: "todo".to_owned(), key: "list".to_owned(), value: b"[]".to_vec() };
    sessions.put_state("one", entry.clone());
    assert_eq!(sessions.state("one").await.unwrap(), [entry]);
}

/// A database of version 3 opens, and its sessions are those of `local`.
#[tokio::test]
async fn sessions_of_an_older_version_become_those_of_local() {
    let folder = tempfile::tempdir().unwrap();
    let before = Connection::open(folder.path().join("sessions.db")).unwrap();
    SCHEMA.migrations[..3].iter().for_each(|migration| before.execute_batch(migration).unwrap());
    let rows = format!(
        "PRAGMA application_id = {}; PRAGMA user_version = 3;
         INSERT INTO session (id, cwd, roots, agent, mode, model, created_at, updated_at, events)
            VALUES ('one', '/here', '[]', 'goose', 'assistant', 'offline', 1, 1, 1);
         INSERT INTO event (session, seq, at, kind, body, text) VALUES (1, 1, 1, 'message', '{{}}', 'a zebra');",
        SCHEMA.mark
    );
    before.execute_batch(&rows).unwrap();
    drop(before);
    let local = SessionStore::open(folder.path()).unwrap();
    assert_eq!(local.list(ListFilter::default()).await.unwrap().len(), 1);
    assert_eq!(local.search("zebra", FolderFilter::Anywhere, 9).await.unwrap().len(), 1);
    let limits = crate::principal::TokenLimits { roots: vec!["/here".into()], ..Default::default() };
    let ann = local.for_grant(&SessionGrant::new(Principal::new("ann").unwrap(), limits));
    assert_eq!(ann.list(ListFilter::default()).await.unwrap(), []);
    assert_eq!(ann.find("one").await.unwrap(), None);
}

#[tokio::test]
async fn damage_that_is_met_later_is_told_as_such() {
    let store = store();
    let text = "some text of a size ".repeat(200);
    let id = session_with(&store.sessions, "/here", &[text.as_str(); 50]).await;
    let file = store.file();
    drop(store.sessions);
    let mut bytes = std::fs::read(&file).unwrap();
    let half = bytes.len() / 2;
    bytes[half..].fill(0xa5);
    std::fs::write(&file, bytes).unwrap();
    let told = match SessionStore::open(store.folder.path()) {
        Ok(sessions) => sessions.events(&id).await.unwrap_err(),
        Err(refusal) => refusal,
    };
    assert!(matches!(told, StoreError::Damaged { .. }), "{told}");
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("data"), "a file").unwrap();
    let told = SessionStore::open(&folder.path().join("data")).unwrap_err().to_string();
    assert!(told.contains("cannot be used") && told.contains("sessions.db"), "{told}");
}

#[tokio::test]
async fn a_folder_is_in_use_until_its_last_session_goes() {
    let store = store();
    let first = session_with(&store.sessions, "/own", &["hello"]).await;
    let fork = store.sessions.copy(&first).await.unwrap().unwrap();
    for (id, in_use) in [(&first, true), (&fork, false)] {
        store.sessions.delete(id).await.unwrap();
        assert_eq!(store.sessions.has_folder(Path::new("/own")).await.unwrap(), in_use);
    }
}

/// The files are copied in the middle of a transaction, which leaves what `kill -9` leaves.
#[tokio::test]
async fn an_interrupted_import_is_no_damage_and_is_undone() {
    let store = store();
    session_with(&store.sessions, "/here", &["word"]).await;
    let (origin, folder) = (store.folder, tempfile::tempdir().unwrap());
    drop(store.sessions);
    let file = origin.path().join("sessions.db");
    let connection = Connection::open(&file).unwrap();
    connection.pragma_update(None, "journal_mode", "delete").unwrap();
    // With such a small cache, the file gets a part of the transaction before its end.
    connection.pragma_update(None, "cache_size", 5).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    let insert = "INSERT INTO event (session, seq, at, kind, body, text)
        SELECT key, ?1, 0, 'message', hex(randomblob(2000)), NULL FROM session";
    for seq in 1_000..1_200 {
        assert_eq!(connection.execute(insert, [seq]).unwrap(), 1);
    }
    for name in ["sessions.db", "sessions.db-journal"] {
        std::fs::copy(origin.path().join(name), folder.path().join(name)).unwrap();
    }
    drop(connection);
    let found = crate::store::examine(folder.path());
    assert!(matches!(found.as_slice(), [StoreError::ImportInterrupted { .. }]), "{found:?}");
    drop(SessionStore::open(folder.path()).unwrap());
    assert_eq!(crate::store::examine(folder.path()).len(), 0, "the next start undoes it");
    let count = "SELECT count(*) FROM event WHERE seq >= 1000";
    let connection = Connection::open(folder.path().join("sessions.db")).unwrap();
    assert_eq!(connection.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}
