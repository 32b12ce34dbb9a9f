//! State of a session is replaced, removed, copied and deleted with it.

use super::tests::{session_with, store};
use super::*;

fn entry(owner: &str, key: &str, value: &str) -> StateEntry {
    StateEntry { owner: owner.to_owned(), key: key.to_owned(), value: value.as_bytes().to_vec() }
}

#[tokio::test]
async fn entries_come_back_after_the_store_is_opened_again() {
    let store = store();
    let id = session_with(&store.sessions, "/here", &["hello"]).await;
    for (owner, key, value) in [("b", "x", "1"), ("a", "y", "2"), ("a", "x", "3"), ("b", "x", "4"), ("a", "z", "5")] {
        store.sessions.put_state(&id, entry(owner, key, value));
    }
    store.sessions.remove_state(&id, "a", "y");
    store.sessions.remove_state(&id, "a", "unknown");
    drop(store.sessions);
    let sessions = SessionStore::open(store.folder.path()).unwrap();
    let expected = [entry("a", "x", "3"), entry("a", "z", "5"), entry("b", "x", "4")];
    assert_eq!(sessions.state(&id).await.unwrap(), expected);
    assert_eq!(sessions.state("unknown").await.unwrap(), []);
    let copy = sessions.copy(&id).await.unwrap().unwrap();
    assert!(sessions.delete(&id).await.unwrap());
    assert_eq!(sessions.state(&id).await.unwrap(), []);
    assert_eq!(sessions.state(&copy).await.unwrap(), expected);
    // The session is gone: its entries are dropped, and nothing else fails.
    sessions.put_state(&id, entry("a", "x", "6"));
    sessions.flush(&copy).await.unwrap();
    assert_eq!(sessions.state(&id).await.unwrap(), []);
}
