//! SQLite and PostgreSQL keep and find the same, and servers reach a database only as its address says.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use jiff::Timestamp;
use skein::principal::{Principal, SessionFiles, SessionGrant, TokenLimits};
use skein::store::{
    AuditFilter, AuditFinding, AuditProblem, FolderFilter, ListFilter, MemoryFilter, MemoryOwner, NewAuditEntry,
    NewEvent, NewMemory, NewSession, NewToken, RecallQuery, SearchHit, SessionChange, SessionStore, StateEntry,
    StoreAddress, StoreError, StorePlace, TermStats, TermWeights, TokenState, TokenStore, UsageKey, UsageRow,
    UsageTotals,
};

use crate::support::postgres::{PASSWORD, Postgres};
use crate::support::serve::{Server, token_with};
use crate::support::{Sandbox, full_tests};

/// One store of each kind, with the same content.
struct BothStores {
    files: SessionStore,
    database: SessionStore,
    address: Arc<StoreAddress>,
    _folder: tempfile::TempDir,
    postgres: Postgres,
}

impl BothStores {
    fn open() -> Self {
        let (postgres, folder) = (Postgres::start(), tempfile::tempdir().unwrap());
        let address: Arc<StoreAddress> = Arc::new(postgres.database("suite").parse().unwrap());
        let database = SessionStore::connect(&address).unwrap();
        let files = SessionStore::open(folder.path()).unwrap();
        Self { files, database, address, _folder: folder, postgres }
    }

    fn each(&self) -> [(&'static str, &SessionStore); 2] {
        [("SQLite", &self.files), ("PostgreSQL", &self.database)]
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
        files: SessionFiles::Server,
    }
}

fn said(role: &str, text: &str) -> NewEvent {
    let body = serde_json::json!({"message": {"role": role, "text": text}}).to_string();
    NewEvent { kind: "message".into(), body, text: Some(text.to_owned()) }
}

fn undone(events: u64) -> NewEvent {
    NewEvent { kind: "undone".into(), body: serde_json::json!({"events": events}).to_string(), text: None }
}

async fn session_with(store: &SessionStore, cwd: &str, texts: &[&str]) -> String {
    let id = store.create(new_in(cwd)).await.unwrap();
    texts.iter().for_each(|text| store.append(&id, said("user", text)));
    store.flush(&id).await.unwrap();
    id
}

fn grant(name: &str, limits: TokenLimits) -> SessionGrant {
    SessionGrant::new(Principal::new(name).unwrap(), limits)
}

fn snippets(hits: &[SearchHit]) -> BTreeSet<String> {
    hits.iter().map(|hit| hit.snippet.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_stores_keep_sessions_and_their_parts() {
    if !full_tests() {
        return;
    }
    let both = BothStores::open();
    for (kind, store) in both.each() {
        let id = session_with(store, "/here", &["first", "second \0 part"]).await;
        let change = SessionChange {
            title: Some("A talk".to_owned()),
            spent: Some(UsageTotals { input: 3, output: 2, cached: 1, cost: Some(0.5) }),
            ..SessionChange::default()
        };
        store.change(&id, change.clone());
        store.change(&id, change);
        store.put_uuid(&id, "0c4f");
        let entry = |value: &[u8]| StateEntry { owner: "todo".to_owned(), key: "list".to_owned(), value: value.into() };
        store.put_state(&id, entry(b"old"));
        store.put_state(&id, entry(b"\0new"));
        let found = store.find(&id).await.unwrap().unwrap();
        let totals = UsageTotals { input: 6, output: 4, cached: 2, cost: Some(1.0) };
        assert_eq!((found.title.as_deref(), found.spent, found.events), (Some("A talk"), totals, 2), "{kind}");
        assert_eq!(found.roots, [std::path::PathBuf::from("/other")], "{kind}");
        let amounts: Vec<_> = store.spending(&id, 0).await.unwrap().iter().map(|row| row.amount).collect();
        let once = UsageTotals { input: 3, output: 2, cached: 1, cost: Some(0.5) };
        assert_eq!(amounts, [once, once], "{kind}");
        assert_eq!(store.spending(&id, found.updated_at + 1).await.unwrap(), [], "{kind}");
        let events = store.events(&id).await.unwrap();
        assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2], "{kind}");
        assert_eq!(events[1].body, said("user", "second \0 part").body, "{kind}");
        assert_eq!(store.events_after(&id, 1, 10).await.unwrap(), events[1..], "{kind}");
        assert_eq!(store.events_before(&id, Some(2), 10).await.unwrap(), events[..1], "{kind}");
        assert!(store.state(&id).await.unwrap().contains(&entry(b"\0new")), "{kind}");
        assert_eq!(store.find_uuid("0c4f").await.unwrap().as_ref(), Some(&id), "{kind}");
        assert_eq!(store.resolve(&id[..15]).await.unwrap().as_ref(), Some(&id), "{kind}");
        let copy = store.copy(&id).await.unwrap().unwrap();
        assert_eq!(store.events(&copy).await.unwrap().len(), 2, "{kind}");
        assert_eq!(store.spending(&copy, 0).await.unwrap(), [], "{kind}: a copy has spent nothing");
        assert_eq!(store.state(&copy).await.unwrap(), [entry(b"\0new")], "{kind}: the UUID stays with the first");
        assert!(matches!(store.resolve(&id[..1]).await, Err(StoreError::Ambiguous { .. })), "{kind}");
        let listed = store.list(ListFilter { limit: Some(1), ..ListFilter::default() }).await.unwrap();
        assert_eq!(listed[0].id, copy, "{kind}: newest first");
        let rest = ListFilter { after: Some((&listed[0]).into()), ..ListFilter::default() };
        assert_eq!(store.list(rest).await.unwrap()[0].id, id, "{kind}");
        assert!(store.delete(&copy).await.unwrap() && !store.delete(&copy).await.unwrap(), "{kind}");
        store.append(&copy, said("user", "late"));
        assert!(matches!(store.flush(&copy).await, Err(StoreError::Gone { .. })), "{kind}");
        let key = UsageKey { scope: "principal".to_owned(), period: "2026-11".to_owned() };
        let more = UsageRow { cost: 0.25, tokens: 10, requests: 1, milliseconds: 5 };
        store.add_usage(key.clone(), more);
        store.add_usage(key.clone(), more);
        let twice = UsageRow { cost: 0.5, tokens: 20, requests: 2, milliseconds: 10 };
        assert_eq!(store.usage(key).await.unwrap(), twice, "{kind}");
    }
    let elsewhere = SessionStore::connect(&both.address).unwrap();
    assert_eq!(elsewhere.list(ListFilter::default()).await.unwrap().len(), 1, "another server sees it");
}

/// PostgreSQL refuses a query with a NUL character, which a client can send.
#[tokio::test(flavor = "multi_thread")]
async fn both_stores_find_nothing_with_a_nul_character() {
    if !full_tests() {
        return;
    }
    let both = BothStores::open();
    for (kind, store) in both.each() {
        let id = format!("{}\0", session_with(store, "/here", &["hello"]).await);
        assert_eq!(store.find(&id).await.unwrap(), None, "{kind}");
        assert_eq!(store.events(&id).await.unwrap(), [], "{kind}");
        assert_eq!(store.events_before(&id, None, 10).await.unwrap(), [], "{kind}");
        assert_eq!(store.state(&id).await.unwrap(), [], "{kind}");
        assert!(store.messages(&id, 1, 10).await.unwrap().is_empty(), "{kind}");
        assert!(store.family(&id).await.unwrap().is_empty(), "{kind}");
        assert_eq!(store.find_uuid("\0").await.unwrap(), None, "{kind}");
        assert_eq!(store.resolve(&id).await.unwrap(), None, "{kind}");
        assert_eq!(store.copy(&id).await.unwrap(), None, "{kind}");
        assert!(!store.delete(&id).await.unwrap(), "{kind}");
        let within = FolderFilter::Folder("/here\0".into());
        assert_eq!(store.search("hello", within.clone(), 10).await.unwrap(), [], "{kind}");
        let filters = [
            ListFilter { within, ..ListFilter::default() },
            ListFilter { parent: Some(id), ..ListFilter::default() },
            ListFilter { mode: Some("goose/\0".to_owned()), ..ListFilter::default() },
        ];
        for filter in filters {
            assert_eq!(store.list(filter).await.unwrap(), [], "{kind}");
        }
        assert_eq!(store.list(ListFilter::default()).await.unwrap().len(), 1, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_stores_show_a_principal_only_what_its_grant_admits() {
    if !full_tests() {
        return;
    }
    let both = BothStores::open();
    for (kind, store) in both.each() {
        let limits = TokenLimits { roots: vec!["/srv/ann".into()], ..TokenLimits::default() };
        let ann = store.for_grant(&grant("ann", limits.clone()));
        let inside = session_with(&ann, "/srv/ann/project", &["zebra inside"]).await;
        let outside = session_with(&ann, "/srv/annex", &["zebra outside"]).await;
        assert!(ann.find(&inside).await.unwrap().is_some(), "{kind}");
        assert!(ann.find(&outside).await.unwrap().is_none(), "{kind}");
        let hits = ann.search("zebra", FolderFilter::Anywhere, 10).await.unwrap();
        assert_eq!(snippets(&hits), BTreeSet::from(["zebra inside".to_owned()]), "{kind}");
        let other_modes = TokenLimits { modes: vec!["coding/*".to_owned()], ..limits };
        assert!(store.for_grant(&grant("ann", other_modes)).find(&inside).await.unwrap().is_none(), "{kind}");
        let bob = store.for_grant(&grant("bob", TokenLimits::default()));
        assert!(bob.find(&inside).await.unwrap().is_none(), "{kind}");
        assert!(!bob.delete(&inside).await.unwrap(), "{kind}");
        assert!(store.search("zebra", FolderFilter::Anywhere, 10).await.unwrap().is_empty(), "{kind}: of local");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_stores_recall_only_what_is_not_undone() {
    if !full_tests() {
        return;
    }
    let both = BothStores::open();
    for (kind, store) in both.each() {
        let id = session_with(store, "/here", &["kept otter", "dropped otter"]).await;
        store.append(&id, undone(1));
        store.append(&id, said("assistant", "later otter"));
        let recall =
            |words: &str| store.recall(RecallQuery { words: words.to_owned(), limit: 10, ..RecallQuery::default() });
        let expected = BTreeSet::from(["kept otter".to_owned(), "later otter".to_owned()]);
        assert_eq!(snippets(&recall("otters").await.unwrap().hits), expected, "{kind}: stemmed");
        assert!(recall("otter unicorn").await.unwrap().partly, "{kind}");
        assert_eq!(snippets(&recall("").await.unwrap().hits), BTreeSet::from(["later otter".to_owned()]), "{kind}");
        assert_eq!(recall("tter").await.unwrap().hits.len(), 2, "{kind}: a part of a word");
        let messages = store.messages(&id, 1, 10).await.unwrap();
        let messages: Vec<_> = messages.iter().map(|said| (said.by.as_str(), said.text.as_str())).collect();
        assert_eq!(messages, [("user", "kept otter"), ("assistant", "later otter")], "{kind}");
        let weigh = TermWeights { word: |_| 1.0, least: 1.0 };
        let words = vec!["otter".to_owned(), "kept".to_owned()];
        let terms = store.common_terms(words, FolderFilter::default, Vec::new(), weigh, 10).await.unwrap();
        assert_eq!((terms.frequency.as_slice(), terms.events), ([3, 1].as_slice(), 4), "{kind}");
        let found: Vec<_> = terms.messages.iter().map(|found| found.said.text.as_str()).collect();
        assert_eq!(found, ["kept otter", "later otter"], "{kind}: best first");
        let words = ["otter".to_owned(), "kept".to_owned()];
        let among = |within, without| store.common_terms(words.to_vec(), move || within, without, weigh, 10);
        let nothing = TermStats { frequency: vec![0, 0], ..TermStats::default() };
        let elsewhere = || FolderFilter::Folder("/elsewhere".into());
        assert_eq!(among(elsewhere(), Vec::new()).await.unwrap(), nothing, "{kind}: no session there");
        assert_eq!(among(FolderFilter::Anywhere, vec![id.clone()]).await.unwrap(), nothing, "{kind}: no other session");
        session_with(store, "/elsewhere", &["kept otter"]).await;
        for within in [elsewhere(), FolderFilter::Anywhere] {
            let terms = among(within, vec![id.clone()]).await.unwrap();
            assert_eq!(
                (terms.frequency.as_slice(), terms.messages.len()),
                ([4, 2].as_slice(), 1),
                "{kind}: another session"
            );
        }
        // A second undo returns to the state before the first.
        store.append(&id, undone(2));
        assert_eq!(store.messages(&id, 1, 10).await.unwrap().len(), 2, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_hits_ignores_words_of_other_principals() {
    if !full_tests() {
        return;
    }
    let both = BothStores::open();
    for (kind, store) in both.each() {
        let limits = TokenLimits { roots: vec!["/srv/ann".into()], ..TokenLimits::default() };
        let ann = store.for_grant(&grant("ann", limits));
        session_with(&ann, "/srv/ann", &["zebra zebra walrus", "zebra walrus walrus"]).await;
        let order = async || {
            let hits = ann.search("zebra walrus", FolderFilter::Anywhere, 10).await.unwrap();
            let recall = RecallQuery { words: "zebra walrus".to_owned(), limit: 10, ..RecallQuery::default() };
            let recalled = ann.recall(recall).await.unwrap().hits;
            hits.iter().chain(&recalled).map(|hit| hit.seq).collect::<Vec<_>>()
        };
        let alone = order().await;
        assert_eq!(alone[..2], [2, 1], "{kind}: both words are as frequent, so the newer text is first");
        for frequent in ["walrus", "zebra"] {
            let bob = store.for_grant(&grant(&format!("bob-{frequent}"), TokenLimits::default()));
            session_with(&bob, "/srv/bob", &[frequent; 50]).await;
            assert_eq!(order().await, alone, "{kind}: after {frequent} of another principal");
        }
    }
}

/// A text of a fixed corpus: words of a small vocabulary, some rare, in texts of different lengths.
fn corpus_text(number: u64) -> String {
    let vocabulary = ["river", "stone", "café", "running", "compiler", "ticket", "window", "garden", "music", "letter"];
    let mut state = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let mut words = vec![format!("number{number}")];
    for _ in 0..(5 + number % 30) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Later words of the list are rarer.
        let (one, other) = ((state >> 33) % 10, (state >> 45) % 10);
        words.push(vocabulary[usize::try_from(one.min(other)).unwrap()].to_owned());
    }
    words.join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_queries_share_eight_of_ten_results() {
    if !full_tests() {
        return;
    }
    let both = BothStores::open();
    for (_, store) in both.each() {
        let id = store.create(new_in("/here")).await.unwrap();
        (0..400).for_each(|number| store.append(&id, said("user", &corpus_text(number))));
        store.flush(&id).await.unwrap();
    }
    let words = ["river", "stones", "cafe", "run", "compilers", "ticket", "windows", "garden", "music", "letter"];
    let pairs = (0..10).flat_map(|one| (1..=4).map(move |step| format!("{} {}", words[one], words[(one + step) % 10])));
    let queries: Vec<String> = words.iter().map(|word| (*word).to_owned()).chain(pairs).collect();
    assert_eq!(queries.len(), 50);
    for words in queries {
        let (mut searches, mut recalls) = (Vec::new(), Vec::new());
        for (kind, store) in both.each() {
            let seqs = |hits: &[SearchHit]| hits.iter().map(|hit| hit.seq).collect::<BTreeSet<_>>();
            let found = seqs(&store.search(&words, FolderFilter::Anywhere, 10).await.unwrap());
            let query = RecallQuery { words: words.clone(), limit: 10, ..RecallQuery::default() };
            let recalled = store.recall(query).await.unwrap();
            let recalled = (seqs(&recalled.hits), recalled.partly);
            // At least 23 texts have all words of a query.
            assert_eq!((found.len(), recalled.0.len(), recalled.1), (10, 10, false), "{kind}: {words}");
            searches.push(found);
            recalls.push(recalled.0);
        }
        for found in [searches, recalls] {
            assert!(found[0].intersection(&found[1]).count() >= 8, "{words}: {found:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_number_the_events_of_a_session_without_gaps() {
    if !full_tests() {
        return;
    }
    let both = BothStores::open();
    let other = SessionStore::connect(&both.address).unwrap();
    let id = session_with(&both.database, "/here", &["begin"]).await;
    for number in 0..100 {
        for store in [&both.database, &other] {
            store.append(&id, said("user", &number.to_string()));
        }
    }
    let (one, two) = tokio::join!(both.database.flush(&id), other.flush(&id));
    one.and(two).unwrap();
    let numbers: Vec<_> = other.events(&id).await.unwrap().iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=201).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_has_all_principals_of_a_shared_store() {
    if !full_tests() {
        return;
    }
    let both = BothStores::open();
    let limits = TokenLimits { roots: vec!["/ann".into()], ..TokenLimits::default() };
    let ann = both.database.for_grant(&grant("ann", limits));
    for (store, folder, input) in [(&both.database, "/here", 3), (&ann, "/ann", 5)] {
        let id = session_with(store, folder, &["begin"]).await;
        let spent = Some(UsageTotals { input, output: 1, cached: 0, cost: None });
        store.change(&id, SessionChange { spent, ..SessionChange::default() });
        store.flush(&id).await.unwrap();
    }
    let sandbox = Sandbox::new();
    let report = |flags: &[&str]| -> serde_json::Value {
        let mut command = sandbox.command(&[&["report", "--all", "--format", "json"], flags].concat());
        let output = command.env("SKEIN_STORE", both.postgres.url(PASSWORD, "suite")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let all = report(&[]);
    assert_eq!((&all["sessions"], &all["spent"]["input"]), (&serde_json::json!(2), &serde_json::json!(8)), "{all}");
    assert_eq!(all["principals"]["ann"]["spent"]["input"], 5, "{all}");
    let one = report(&["--principal", "ann"]);
    assert_eq!((&one["sessions"], &one["spent"]["input"]), (&serde_json::json!(1), &serde_json::json!(5)), "{one}");
}

fn decision(subject: &str) -> NewAuditEntry {
    NewAuditEntry {
        actor: "coding/backend".to_owned(),
        kind: "call",
        subject: subject.to_owned(),
        call: None,
        decision: "allow",
        source: "level",
        rule: Some("auto \0".to_owned()),
        arguments: Some(b"{}".to_vec()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_stores_keep_the_audit_log() {
    if !full_tests() {
        return;
    }
    let both = BothStores::open();
    for (kind, store) in both.each() {
        let id = session_with(store, "/here", &["begin"]).await;
        let ann = store.for_grant(&grant("ann", TokenLimits::default()));
        ["one", "two"].iter().for_each(|subject| store.audit(&id, decision(subject)));
        ann.audit("client-1", decision("three"));
        let entries = store.audit_entries(AuditFilter { session: Some(id.clone()), ..AuditFilter::default() });
        let entries = entries.await.unwrap();
        let seen: Vec<_> = entries.iter().map(|entry| (entry.sequence, entry.subject.as_str())).collect();
        assert_eq!(seen, [(1, "one"), (2, "two")], "{kind}");
        assert_eq!(entries[0].rule.as_deref(), Some("auto  "), "{kind}");
        assert_eq!(entries[0].arguments, entries[1].arguments, "{kind}");
        let newest = store.audit_entries(AuditFilter { limit: Some(1), ..AuditFilter::default() }).await.unwrap();
        assert_eq!(newest.len(), 1, "{kind}");
        let of_ann = ann.audit_entries(AuditFilter::default()).await.unwrap();
        assert_eq!(of_ann.iter().map(|entry| entry.subject.as_str()).collect::<Vec<_>>(), ["three"], "{kind}");
        let names = store.audit_names().await.unwrap();
        assert_eq!(names.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["ann", "local"], "{kind}");
        assert_eq!(ann.audit_names().await.unwrap().len(), 1, "{kind}");
        assert_eq!(ann.audit_sessions("").await.unwrap(), ["client-1"], "{kind}");
        assert_eq!(store.audit_sessions(&id[..15]).await.unwrap(), std::slice::from_ref(&id), "{kind}");
        assert!(store.delete(&id).await.unwrap(), "{kind}");
        let report = store.verify_audit().await.unwrap();
        assert_eq!((report.chains, report.entries, report.findings), (2, 3, Vec::new()), "{kind}");
    }
    let remove =
        "DELETE FROM audit_entry WHERE session = 'client-1'; DELETE FROM audit_head WHERE session = 'client-1'";
    both.postgres.sql("suite", remove);
    let found: Vec<_> = both.database.verify_audit().await.unwrap().findings;
    let problem = AuditProblem::RemovedChains { expected: 2, found: 1 };
    assert_eq!(found, [AuditFinding { session: None, problem }]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_write_one_audit_chain_and_verify_finds_a_change() {
    if !full_tests() {
        return;
    }
    let both = BothStores::open();
    let other = SessionStore::connect(&both.address).unwrap();
    let id = session_with(&both.database, "/here", &["begin"]).await;
    for number in 0..100 {
        for store in [&both.database, &other] {
            store.audit(&id, decision(&number.to_string()));
            // A batch with two sessions locks them first.
            store.audit("client-1", decision("other"));
        }
    }
    let (one, two) = tokio::join!(both.database.flush(&id), other.flush(&id));
    one.and(two).unwrap();
    let report = other.verify_audit().await.unwrap();
    assert_eq!((report.chains, report.entries, report.findings), (2, 400, Vec::new()));
    both.postgres.sql("suite", "UPDATE audit_entry SET decision = 'refuse' WHERE seq = 2 AND session <> 'client-1'");
    let found: Vec<_> = other.verify_audit().await.unwrap().findings.into_iter().map(|of| of.problem).collect();
    assert_eq!(found, [AuditProblem::Break { sequence: 3 }]);
}

#[tokio::test(flavor = "multi_thread")]
async fn both_stores_keep_tokens_and_logins() {
    if !full_tests() {
        return;
    }
    let both = BothStores::open();
    let folder = tempfile::tempdir().unwrap();
    for (kind, tokens) in [
        ("SQLite", TokenStore::open(folder.path()).unwrap()),
        ("PostgreSQL", TokenStore::connect(&both.address).unwrap()),
    ] {
        let principal = Principal::new("ann").unwrap();
        let new = NewToken { principal, limits: TokenLimits::default(), expires: None };
        let created = tokens.create(new).await.unwrap();
        assert_eq!(tokens.verify(&created.token).await.unwrap().unwrap().id, created.id, "{kind}");
        assert!(tokens.verify(&created.token.replace("skein_", "skein_0")).await.unwrap().is_none(), "{kind}");
        tokens.put_login("cookie", &created.id, "first").await.unwrap();
        tokens.put_login("cookie", &created.id, "csrf").await.unwrap();
        let login = tokens.find_login("cookie", Timestamp::UNIX_EPOCH).await.unwrap().unwrap();
        assert_eq!(login.csrf, "csrf", "{kind}");
        assert!(tokens.revoke(&created.id).await.unwrap() && !tokens.revoke("none").await.unwrap(), "{kind}");
        assert!(tokens.verify(&created.token).await.unwrap().is_none(), "{kind}");
        assert!(tokens.find_login("cookie", Timestamp::UNIX_EPOCH).await.unwrap().is_none(), "{kind}");
        let limits = TokenLimits { roots: vec!["/srv/bob".into()], ..TokenLimits::default() };
        let principal = Principal::new("bob").unwrap();
        let expires = Some(Timestamp::UNIX_EPOCH);
        let expired = tokens.create(NewToken { principal, limits: limits.clone(), expires }).await.unwrap();
        assert!(tokens.verify(&expired.token).await.unwrap().is_none(), "{kind}");
        assert!(!tokens.is_active(&expired.id).await.unwrap(), "{kind}");
        let mut listed = tokens.list().await.unwrap();
        listed.sort_by_key(|token| token.grant.principal.name().to_owned());
        let states: Vec<_> = listed.iter().map(|token| (token.grant.principal.name(), token.state)).collect();
        assert_eq!(states, [("ann", TokenState::Revoked), ("bob", TokenState::Expired)], "{kind}");
        assert_eq!((&listed[1].grant.limits, listed[1].grant.expires), (&limits, expires), "{kind}");
    }
}

#[test]
fn both_stores_keep_memories_of_projects_and_principals() {
    if !full_tests() {
        return;
    }
    let (both, folder) = (BothStores::open(), tempfile::tempdir().unwrap());
    let database = StorePlace::default().with_database(Arc::clone(&both.address));
    for (kind, place) in [("SQLite", StorePlace::files(folder.path())), ("PostgreSQL", database)] {
        let (here, there) = (Path::new("/here"), Path::new("/there"));
        let memories = place.memories().unwrap();
        let keep = |text: &str, tag: &str, scope: MemoryOwner| {
            let tags = [tag.to_owned()];
            memories.remember(here, &NewMemory { text, tags: &tags, scope, source: "test" }).unwrap()
        };
        let first = keep("running tests takes long", "build", MemoryOwner::Project);
        let user = keep("café at noon", "food", MemoryOwner::User);
        let again = keep("running tests takes long", "slow", MemoryOwner::Project);
        assert_eq!((again.id, again.tags.join(" ")), (first.id, "build slow".to_owned()), "{kind}");
        let recall = |project: &Path, words: &str| -> Vec<i64> {
            let filter = MemoryFilter { words: Some(words), ..MemoryFilter::default() };
            memories.recall(project, &filter).unwrap().iter().map(|memory| memory.id).collect()
        };
        for words in ["test", "slow", "run unicorn", "running tests takes long", "kes lo"] {
            assert_eq!(recall(here, words), [first.id], "{kind}: {words}");
            assert_eq!(recall(there, words), [0_i64; 0], "{kind}: {words}");
        }
        assert_eq!(recall(there, "cafe"), [user.id], "{kind}");
        assert_eq!(recall(here, "  "), [user.id, first.id], "{kind}: newest first");
        assert_eq!(memories.exactly(here, "tests unicorn").unwrap(), [], "{kind}");
        assert_eq!(memories.exactly(here, "long tests").unwrap().len(), 1, "{kind}");
        let ann = memories.of(Principal::new("ann").unwrap());
        ann.forget(&[first.id]).unwrap();
        assert_eq!(ann.recall(here, &MemoryFilter::default()).unwrap(), [], "{kind}");
        assert!(memories.get(here, first.id).unwrap().is_some(), "{kind}");
        memories.forget(&[first.id]).unwrap();
        assert!(keep("another", "x", MemoryOwner::User).id > first.id, "{kind}: ids are not used again");
    }
}

#[test]
fn both_stores_keep_the_newest_corrections_of_a_project() {
    if !full_tests() {
        return;
    }
    let (both, folder) = (BothStores::open(), tempfile::tempdir().unwrap());
    let database = StorePlace::default().with_database(Arc::clone(&both.address));
    for (kind, place) in [("SQLite", StorePlace::files(folder.path())), ("PostgreSQL", database)] {
        let corrections = place.corrections().unwrap();
        let here = Path::new("/here");
        for (prompt, mode) in [("fix it", "coding/qa"), ("draw it", "coding/frontend"), ("fix it", "coding/backend")] {
            corrections.remember(here, prompt, mode).unwrap();
        }
        let stored = corrections.corrections(here).unwrap();
        let stored: Vec<_> = stored.iter().map(|stored| (stored.prompt.as_str(), stored.mode.as_str())).collect();
        assert_eq!(stored, [("draw it", "coding/frontend"), ("fix it", "coding/backend")], "{kind}");
        assert_eq!(corrections.corrections(Path::new("/there")).unwrap(), [], "{kind}");
        let ann = corrections.of(Principal::new("ann").unwrap());
        assert_eq!(ann.corrections(here).unwrap(), [], "{kind}");
        (0..500).for_each(|number| corrections.remember(here, &format!("{number}"), "coding/qa").unwrap());
        let stored = corrections.corrections(here).unwrap();
        assert_eq!((stored.len(), stored[0].prompt.as_str()), (500, "0"), "{kind}: the oldest have gone");
    }
}

#[test]
fn both_stores_keep_the_rules_of_each_principal() {
    if !full_tests() {
        return;
    }
    let (both, folder) = (BothStores::open(), tempfile::tempdir().unwrap());
    let database = StorePlace::default().with_database(Arc::clone(&both.address));
    for (kind, place) in [("SQLite", StorePlace::files(folder.path())), ("PostgreSQL", database)] {
        let [one, two] = [(); 2].map(|()| place.consents().unwrap().of(Principal::new("ann").unwrap()));
        // Longer than an index of PostgreSQL holds.
        let long = "x".repeat(5_000);
        for rule in ["first", long.as_str(), "first"] {
            one.keep(rule).unwrap();
        }
        let listed = two.list().unwrap();
        let rules: Vec<_> = listed.iter().map(|kept| kept.rule.as_str()).collect();
        assert_eq!(rules, [long.as_str(), "first"], "{kind}");
        let bob = two.of(Principal::new("bob").unwrap());
        assert_eq!(bob.list().unwrap(), [], "{kind}");
        bob.keep("first").unwrap();
        assert!(!bob.remove(listed[0].id).unwrap() && two.remove(listed[0].id).unwrap(), "{kind}");
        assert_eq!((one.list().unwrap().len(), bob.list().unwrap().len()), (1, 1), "{kind}");
        one.keep("second").unwrap();
        assert!(one.list().unwrap()[0].id > listed[0].id, "{kind}: numbers are not used again");
    }
}

#[test]
fn both_stores_keep_an_encrypted_text_once() {
    if !full_tests() {
        return;
    }
    let (postgres, folder) = (Postgres::start(), tempfile::tempdir().unwrap());
    let address: StoreAddress = postgres.database("sealed").parse().unwrap();
    let database = StorePlace::default().with_database(Arc::new(address));
    for (kind, place) in [("SQLite", StorePlace::files(folder.path())), ("PostgreSQL", database)] {
        let place = place.with_key(Some("7".repeat(64).parse().unwrap()));
        let (memories, corrections) = (place.memories().unwrap(), place.corrections().unwrap());
        let here = Path::new("/here");
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let place = &place;
                scope.spawn(move || {
                    let (memories, corrections) = (place.memories().unwrap(), place.corrections().unwrap());
                    let tags = [format!("of {writer}")];
                    for number in 0..5 {
                        let text = format!("text {number}");
                        let new = NewMemory { text: &text, tags: &tags, scope: MemoryOwner::User, source: "test" };
                        memories.remember(here, &new).unwrap();
                        corrections.remember(here, &text, "coding/qa").unwrap();
                    }
                });
            }
        });
        let kept = memories.recall(here, &MemoryFilter::default()).unwrap();
        assert_eq!(kept.iter().map(|memory| memory.tags.len()).collect::<Vec<_>>(), [4; 5], "{kind}");
        assert_eq!(corrections.corrections(here).unwrap().len(), 5, "{kind}");
    }
}

/// Runs a command; its exit code and what it says.
fn outcome(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn an_unusable_store_ends_the_server_without_the_password() {
    if !full_tests() {
        return;
    }
    let (postgres, sandbox) = (Postgres::start(), Sandbox::new());
    let good = postgres.database("own");
    let nowhere = good.replace(&postgres.address.to_string(), "127.0.0.1:1");
    for (what, url) in [
        ("a password", postgres.url("hush-wrong", "own")),
        ("a database", postgres.url(PASSWORD, "missing")),
        ("a host", nowhere),
        ("a URL", good.replace("postgres://", "mysql://")),
        ("an unescaped password", postgres.url("hush@wrong", "own")),
    ] {
        let mut command = sandbox.command(&["serve", "--listen", "127.0.0.1:0"]);
        command.env("SKEIN_STORE", &url);
        let (code, said) = outcome(command);
        assert_eq!(code, Some(2), "{what}: {said}");
        assert!(!said.contains("hush"), "{what}: {said}");
    }
}

#[test]
fn only_a_newer_program_is_asked_for_with_both_versions() {
    if !full_tests() {
        return;
    }
    let (postgres, sandbox) = (Postgres::start(), Sandbox::new());
    let url = postgres.database("own");
    let list = || {
        let mut command = sandbox.command(&["token", "list"]);
        command.env("SKEIN_STORE", &url);
        outcome(command)
    };
    assert_eq!(list().0, Some(0));
    // A later version that this program may still use.
    postgres.sql("own", "INSERT INTO skein_schema (version, oldest_program) VALUES (1000, '0.0.1')");
    assert_eq!(list().0, Some(0));
    postgres.sql("own", "INSERT INTO skein_schema (version, oldest_program) VALUES (1001, '99.1.0')");
    let (code, said) = list();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("99.1.0") && said.contains(env!("CARGO_PKG_VERSION")), "{said}");
}

#[test]
fn servers_on_one_store_accept_the_same_tokens() {
    if !full_tests() {
        return;
    }
    let (postgres, one, two) = (Postgres::start(), Sandbox::new(), Sandbox::new());
    let url = postgres.database("shared");
    let with_store = |mut command: Command| {
        command.env("SKEIN_STORE", &url);
        command
    };
    let token = token_with(with_store(one.command(&["token", "create", "--name", "ann"])));
    for sandbox in [&one, &two] {
        let server = Server::launch(with_store(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])));
        assert_eq!(server.get("/agents", &token).status, 200);
        assert!(!sandbox.path("data/tokens.db").exists() && !sandbox.path("data/sessions.db").exists());
    }
    let (code, said) = outcome(one.command(&["token", "list", "--store", &url]));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("password in --store") && !said.contains(PASSWORD), "{said}");
    // A password file needs no password in the address.
    let file = one.path("pgpass");
    std::fs::write(&file, format!("*:*:shared:*:{PASSWORD}\n")).unwrap();
    let mut command = one.command(&["token", "list", "--store", &url.replace(&format!(":{PASSWORD}"), "")]);
    command.env("PGPASSFILE", &file);
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let (code, said) = outcome(command);
    assert_eq!((code, said.contains("note")), (Some(0), false), "{said}");
}
