//! Chains: what an entry contains, what a handle sees, and every way to change a chain that is found.

use super::super::{SCHEMA, SessionStore};
use super::*;
use crate::principal::{Principal, SessionGrant, TokenLimits};
use crate::store::NewSession;

fn decision(subject: &str, arguments: Option<&str>) -> NewAuditEntry {
    NewAuditEntry {
        actor: "coding/backend".to_owned(),
        kind: "call",
        subject: subject.to_owned(),
        call: Some("c1".to_owned()),
        decision: "allow",
        source: "level",
        rule: Some("auto".to_owned()),
        arguments: arguments.map(|text| text.as_bytes().to_vec()),
    }
}

fn new_session() -> NewSession {
    NewSession {
        cwd: "/here".into(),
        roots: Vec::new(),
        agent: "coding".to_owned(),
        mode: "backend".to_owned(),
        model: "offline".to_owned(),
        approval: None,
        parent: None,
        files: crate::principal::SessionFiles::Server,
    }
}

/// A store with one session and a chain of four entries.
async fn chain() -> (tempfile::TempDir, SessionStore, String) {
    let folder = tempfile::tempdir().unwrap();
    let store = SessionStore::open(folder.path()).unwrap();
    let id = store.create(new_session()).await.unwrap();
    for subject in ["one", "two", "three", "four"] {
        store.audit(&id, decision(subject, Some(r#"{"a":1}"#)));
    }
    (folder, store, id)
}

async fn all(store: &SessionStore) -> Vec<AuditEntry> {
    store.audit_entries(AuditFilter::default()).await.unwrap()
}

#[tokio::test]
async fn each_entry_has_the_hash_of_the_line_before() {
    let (_folder, store, id) = chain().await;
    let entries = all(&store).await;
    assert_eq!(entries.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(entries[0].previous, NO_HASH);
    for pair in entries.windows(2) {
        let hash: [u8; 32] = Sha256::digest(pair[0].line()).into();
        assert_eq!(pair[1].previous, hex(&hash));
    }
    assert!(entries.iter().all(|entry| entry.session == id && entry.actor == "coding/backend"));
    assert!(!entries[0].line().contains(r#"{\"a\":1}"#), "arguments are only a hash");
    let report = store.verify_audit().await.unwrap();
    assert_eq!(report, ChainReport { chains: 1, entries: 4, findings: Vec::new() });
}

#[tokio::test]
async fn equal_arguments_have_equal_hashes_for_one_principal_only() {
    let (_folder, store, id) = chain().await;
    store.audit(&id, decision("five", Some(r#"{"a":2}"#)));
    let ann = SessionGrant::new(Principal::new("ann").unwrap(), TokenLimits::default());
    let of_ann = store.for_grant(&ann);
    of_ann.audit("client-1", decision("one", Some(r#"{"a":1}"#)));
    let entries = all(&store).await;
    let hash = |subject: &str, session: &str| {
        let found = entries.iter().find(|entry| entry.subject == subject && entry.session == session);
        found.unwrap().arguments.clone().unwrap()
    };
    assert_eq!(hash("one", &id), hash("two", &id));
    assert_ne!(hash("one", &id), hash("five", &id));
    assert_ne!(hash("one", &id), hash("one", "client-1"));
    // A handle of another principal sees only its own entries, and `local` sees all.
    assert_eq!(all(&of_ann).await.iter().map(|entry| entry.session.as_str()).collect::<Vec<_>>(), ["client-1"]);
    assert_eq!(entries.len(), 6);
    let names = store.audit_names().await.unwrap();
    assert_eq!(names.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["ann", "local"]);
    assert_eq!(of_ann.audit_names().await.unwrap().len(), 1);
    assert_eq!(of_ann.audit_sessions("").await.unwrap(), ["client-1"]);
}

/// A chain verifies without the key of its principal, and after the end of its session.
#[tokio::test]
async fn chains_outlive_session_and_key() {
    let (folder, store, id) = chain().await;
    store.flush(&id).await.unwrap();
    assert!(store.delete(&id).await.unwrap());
    let raw = Connection::open(folder.path().join("sessions.db")).unwrap();
    raw.execute("DELETE FROM audit_key", []).unwrap();
    assert_eq!(store.verify_audit().await.unwrap(), ChainReport { chains: 1, entries: 4, findings: Vec::new() });
    assert!(store.audit_names().await.unwrap().is_empty());
}

#[tokio::test]
async fn every_change_of_a_chain_is_found() {
    let change = "UPDATE audit_entry SET decision = 'refuse' WHERE seq = 2";
    let change_end = "UPDATE audit_entry SET decision = 'refuse' WHERE seq = 4";
    let remove = "DELETE FROM audit_entry WHERE seq = 2";
    let remove_first = "DELETE FROM audit_entry WHERE seq = 1";
    let cut = "DELETE FROM audit_entry WHERE seq > 2";
    let cut_all = "DELETE FROM audit_entry";
    let insert = "INSERT INTO audit_entry SELECT session, 5, at, pseudonym, actor, kind, subject, call, decision, \
                  source, rule, arguments, previous FROM audit_entry WHERE seq = 4";
    let swap = "UPDATE audit_entry SET seq = 9 WHERE seq = 2; UPDATE audit_entry SET seq = 2 WHERE seq = 3; \
                UPDATE audit_entry SET seq = 3 WHERE seq = 9";
    let behead = "DELETE FROM audit_head";
    let forget = "DELETE FROM audit_entry; DELETE FROM audit_head";
    let cases: [(&str, &[AuditProblem]); 10] = [
        (change, &[AuditProblem::Break { sequence: 3 }]),
        (change_end, &[AuditProblem::ChangedEnd { sequence: 4 }]),
        (remove, &[AuditProblem::Gap { expected: 2, found: 3 }]),
        (remove_first, &[AuditProblem::Gap { expected: 1, found: 2 }]),
        (cut, &[AuditProblem::CutTail { expected: 4, found: 2 }]),
        (cut_all, &[AuditProblem::CutTail { expected: 4, found: 0 }]),
        (insert, &[AuditProblem::Break { sequence: 5 }, AuditProblem::LongTail { expected: 4, found: 5 }]),
        (
            swap,
            &[
                AuditProblem::Break { sequence: 2 },
                AuditProblem::Break { sequence: 3 },
                AuditProblem::Break { sequence: 4 },
            ],
        ),
        (behead, &[AuditProblem::Count { expected: 4, found: 0 }, AuditProblem::NoHead]),
        (
            forget,
            &[AuditProblem::Count { expected: 4, found: 0 }, AuditProblem::RemovedChains { expected: 1, found: 0 }],
        ),
    ];
    for (tampering, expected) in cases {
        let (folder, store, id) = chain().await;
        store.flush(&id).await.unwrap();
        Connection::open(folder.path().join("sessions.db")).unwrap().execute_batch(tampering).unwrap();
        let found: Vec<_> = store.verify_audit().await.unwrap().findings.into_iter().map(|of| of.problem).collect();
        assert_eq!(found, expected, "{tampering}");
    }
}

/// The session counts on, so later entries do not hide that the chain and its head were cut together.
#[tokio::test]
async fn a_cut_chain_with_a_new_head_stays_visible() {
    let (folder, store, id) = chain().await;
    store.flush(&id).await.unwrap();
    let entries = all(&store).await;
    let raw = Connection::open(folder.path().join("sessions.db")).unwrap();
    raw.execute("DELETE FROM audit_entry WHERE seq > 2", []).unwrap();
    raw.execute("UPDATE audit_head SET entries = 2, hash = ?1", [entries[1].hash()]).unwrap();
    store.audit(&id, decision("five", None));
    let found: Vec<_> = store.verify_audit().await.unwrap().findings.into_iter().map(|of| of.problem).collect();
    assert_eq!(found, [AuditProblem::Count { expected: 5, found: 3 }]);
}

/// A chain of a client has no session that counts its entries, and neither has one that outlives its session.
#[tokio::test]
async fn a_chain_that_is_removed_as_a_whole_is_missed() {
    let (folder, store, id) = chain().await;
    store.audit("client-1", decision("five", None));
    store.flush(&id).await.unwrap();
    assert!(store.delete(&id).await.unwrap());
    assert!(store.verify_audit().await.unwrap().findings.is_empty());
    let raw = Connection::open(folder.path().join("sessions.db")).unwrap();
    for (session, expected, found) in [("client-1", 2, 1), (id.as_str(), 2, 0)] {
        raw.execute("DELETE FROM audit_entry WHERE session = ?1", [session]).unwrap();
        raw.execute("DELETE FROM audit_head WHERE session = ?1", [session]).unwrap();
        let findings = store.verify_audit().await.unwrap().findings;
        let problem = AuditProblem::RemovedChains { expected, found };
        assert_eq!(findings, [AuditFinding { session: None, problem }]);
    }
    // A new chain with the same name does not hide it.
    store.audit("client-1", decision("six", None));
    let found: Vec<_> = store.verify_audit().await.unwrap().findings.into_iter().map(|of| of.problem).collect();
    assert_eq!(found, [AuditProblem::RemovedChains { expected: 3, found: 1 }]);
    raw.execute("DELETE FROM audit_total", []).unwrap();
    let found: Vec<_> = store.verify_audit().await.unwrap().findings.into_iter().map(|of| of.problem).collect();
    assert_eq!(found, [AuditProblem::NoTotal]);
}

#[tokio::test]
async fn chains_of_an_older_version_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Connection::open(folder.path().join("sessions.db")).unwrap();
    let before = open();
    SCHEMA.migrations[..9].iter().for_each(|migration| before.execute_batch(migration).unwrap());
    let marks = format!("PRAGMA application_id = {}; PRAGMA user_version = 9", SCHEMA.mark);
    before.execute_batch(&marks).unwrap();
    before.execute("INSERT INTO audit_head (session, entries, hash) VALUES ('client-1', 0, ?1)", [NO_HASH]).unwrap();
    drop(before);
    let store = SessionStore::open(folder.path()).unwrap();
    assert_eq!(store.verify_audit().await.unwrap(), ChainReport { chains: 1, entries: 0, findings: Vec::new() });
    open().execute("DELETE FROM audit_head", []).unwrap();
    let found: Vec<_> = store.verify_audit().await.unwrap().findings.into_iter().map(|of| of.problem).collect();
    assert_eq!(found, [AuditProblem::RemovedChains { expected: 1, found: 0 }]);
}

#[tokio::test]
async fn filters_select_entries_and_keep_the_newest() {
    let (_folder, store, id) = chain().await;
    store.audit("client-2", NewAuditEntry { decision: "refuse", ..decision("five", None) });
    let subjects = async |filter| {
        let entries = store.audit_entries(filter).await.unwrap();
        entries.into_iter().map(|entry| entry.subject).collect::<Vec<_>>()
    };
    let refused = AuditFilter { decision: Some("refuse".to_owned()), ..AuditFilter::default() };
    assert_eq!(subjects(refused).await, ["five"]);
    let newest = AuditFilter { session: Some(id), limit: Some(2), ..AuditFilter::default() };
    assert_eq!(subjects(newest).await, ["three", "four"]);
    let none = AuditFilter { since: Some(u64::MAX), ..AuditFilter::default() };
    assert_eq!(subjects(none).await, [""; 0]);
    assert_eq!(store.audit_sessions("client").await.unwrap(), ["client-2"]);
}
