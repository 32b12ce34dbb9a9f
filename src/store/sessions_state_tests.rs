//! State of a session is replaced, removed, copied and deleted with it. Its UUID is part of the state.

use super::tests::{session_with, store};
use super::*;
use crate::principal::TokenLimits;

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

/// A UUID names a session for its principal only, also after the store is opened again. A copy has none.
#[tokio::test]
async fn a_session_is_found_by_its_uuid() {
    let store = store();
    let limits = TokenLimits { roots: vec![PathBuf::from("/here")], ..TokenLimits::default() };
    let grant = SessionGrant::new(Principal::new("ana").unwrap(), limits);
    let uuid = "6f1f3c5e-8a64-4b7e-9d2c-1c2b3a4d5e6f";
    let ours = store.sessions.for_grant(&grant);
    let id = session_with(&ours, "/here", &["hello"]).await;
    assert_eq!(ours.find_uuid(uuid).await.unwrap(), None);
    ours.put_uuid(&id, uuid);
    assert_eq!(ours.find_uuid(uuid).await.unwrap(), Some(id.clone()));
    assert_eq!(store.sessions.find_uuid(uuid).await.unwrap(), None, "it belongs to another principal");
    let other = session_with(&store.sessions, "/here", &["hello"]).await;
    store.sessions.put_uuid(&other, uuid);
    assert!(ours.copy(&id).await.unwrap().is_some());
    drop((ours, store.sessions));
    let sessions = SessionStore::open(store.folder.path()).unwrap();
    assert_eq!(sessions.find_uuid(uuid).await.unwrap(), Some(other));
    assert_eq!(sessions.for_grant(&grant).find_uuid(uuid).await.unwrap(), Some(id));
}
