//! One replica owns a session at a time: real replicas on a real PostgreSQL, through schedules of pauses, lost connections,
//! lost answers and clocks that jump. `ownership_model.rs` explores the same rules without a database.
#![allow(clippy::expect_used, reason = "helpers of tests fail the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use serde_json::{Value, json};
use skein::principal::SessionFiles;
use skein::store::{
    FilesMarker, ListenHub, NewEvent, NewSession, ReadinessError, Replica, ReplicaSettings, SessionClaim, SessionStore,
    StoreAddress, StoreError, StorePlace,
};

use crate::support::forwarder::Forwarder;
use crate::support::full_tests;
use crate::support::postgres::{PASSWORD, Postgres, USER};

/// So long that only what a test does to the database ends a replica.
const EXPIRY: Duration = Duration::from_secs(600);

fn new_session() -> NewSession {
    NewSession {
        cwd: "/here".into(),
        roots: Vec::new(),
        agent: "goose".to_owned(),
        mode: "assistant".to_owned(),
        model: "offline".to_owned(),
        approval: None,
        parent: None,
        files: SessionFiles::Server,
    }
}

fn event(body: &Value) -> NewEvent {
    NewEvent { kind: "message".into(), body: body.to_string(), text: None }
}

/// A database, and the folder that all replicas share.
struct Setting {
    postgres: Postgres,
    folder: tempfile::TempDir,
}

impl Setting {
    fn new() -> Self {
        let (postgres, folder) = (Postgres::start(), tempfile::tempdir().expect("a folder"));
        postgres.database("own");
        Self { postgres, folder }
    }

    fn sql(&self, sql: &str) -> String {
        self.postgres.sql("own", sql)
    }

    fn replica(&self) -> Party {
        self.replica_with(self.folder.path(), EXPIRY)
    }

    fn replica_with(&self, folder: &std::path::Path, expiry: Duration) -> Party {
        let way = Forwarder::to(self.postgres.address);
        let url = format!("postgres://{USER}:{PASSWORD}@{}/own?sslmode=disable", way.address);
        let address: Arc<StoreAddress> = Arc::new(url.parse().expect("an address"));
        let files = FilesMarker::of_shared_folder(folder).expect("a marker");
        let settings = ReplicaSettings { address: None, files, expiry };
        let replica = Replica::join(&address, settings).expect("a place");
        let place = StorePlace::default().with_database(Arc::clone(&address));
        let store = SessionStore::open_replica(&place, replica.clone()).expect("a store");
        Party { way, address, replica, store, held: None }
    }

    /// What a replica looks like that was paused, or cut off, for longer than its expiry.
    fn expire(&self, party: &Party) {
        self.sql(&format!(
            "UPDATE replica SET expires_at = clock_timestamp() - interval '1 s' WHERE id = '{}'",
            party.replica.id()
        ));
    }

    fn owner(&self, session: &str) -> String {
        self.sql(&format!(
            "SELECT coalesce(replica, 'none') || ' ' || epoch FROM ownership WHERE session = '{session}'"
        ))
    }
}

/// A replica in this process.
struct Party {
    way: Forwarder,
    address: Arc<StoreAddress>,
    replica: Replica,
    store: SessionStore,
    held: Option<SessionStore>,
}

impl Party {
    async fn claim(&mut self, session: &str) -> Result<bool, StoreError> {
        Ok(match self.store.claim(session).await? {
            SessionClaim::Own(store) => {
                self.held = Some(store);
                true
            }
            SessionClaim::Elsewhere(_) => false,
        })
    }

    /// Stores an event with the claim that this replica has. It says by which claim.
    async fn write(&self, session: &str, number: usize) -> Option<Result<(), StoreError>> {
        let held = self.held.as_ref()?;
        let owner = held.ownership().expect("a claim").owner();
        let body = json!({"number": number, "epoch": owner.epoch, "replica": owner.replica.to_string()});
        held.append(session, event(&body));
        Some(held.flush(session).await)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_owner_cannot_write() {
    if !full_tests() {
        return;
    }
    let setting = Setting::new();
    let (mut one, mut two) = (setting.replica(), setting.replica());
    let (id, store) = one.store.create_owned(new_session()).await.unwrap();
    one.held = Some(store);
    one.write(&id, 1).await.unwrap().unwrap();
    assert!(!two.claim(&id).await.unwrap(), "the owner is alive");
    setting.expire(&one);
    assert!(two.claim(&id).await.unwrap(), "it has expired");
    two.write(&id, 2).await.unwrap().unwrap();
    let refused = one.write(&id, 3).await.unwrap();
    assert!(matches!(refused, Err(StoreError::Taken { .. })), "{refused:?}");
    let handle = Arc::clone(one.held.as_ref().unwrap().ownership().unwrap());
    assert!(handle.end_signal().is_cancelled() && handle.admit_work().await.is_err());
    let before = one.replica.id();
    one.replica.beat().await.unwrap();
    assert_ne!(one.replica.id(), before, "a dead replica joins again under another id");
    assert!(!one.claim(&id).await.unwrap(), "the other one is alive");
    let events = two.store.events(&id).await.unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_session_is_handed_over_at_once() {
    if !full_tests() {
        return;
    }
    let setting = Setting::new();
    let (one, mut two) = (setting.replica(), setting.replica());
    let (id, store) = one.store.create_owned(new_session()).await.unwrap();
    store.append(&id, event(&json!({"number": 1})));
    drop(store);
    // The queue of the first replica gives the session back after the event.
    one.store.events(&id).await.unwrap();
    assert_eq!(setting.owner(&id), "none 1");
    assert!(two.claim(&id).await.unwrap());
    assert_eq!(two.store.events(&id).await.unwrap().len(), 1);
    let claimed = two.held.as_ref().unwrap().ownership().unwrap().owner().epoch;
    let SessionClaim::Own(again) = two.store.claim(&id).await.unwrap() else { panic!("it is its own") };
    assert_eq!(again.ownership().unwrap().owner().epoch, claimed, "both share one claim");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_commit_answer_stores_nothing_twice() {
    if !full_tests() {
        return;
    }
    let setting = Setting::new();
    let mut one = setting.replica();
    let (id, store) = one.store.create_owned(new_session()).await.unwrap();
    one.held = Some(store);
    for number in 1..=5 {
        one.way.lose_next_commit();
        one.write(&id, number).await.unwrap().unwrap();
        assert!(one.way.has_lost_commit());
    }
    let numbers: Vec<_> = one.store.events(&id).await.unwrap().iter().map(|event| event.seq).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_work_starts_without_heartbeats() {
    if !full_tests() {
        return;
    }
    let setting = Setting::new();
    let one = setting.replica_with(setting.folder.path(), Duration::from_secs(6));
    let (_, store) = one.store.create_owned(new_session()).await.unwrap();
    let handle = Arc::clone(store.ownership().unwrap());
    handle.admit_work().await.unwrap();
    one.way.stop();
    let beaten = one.replica.beat().await;
    assert!(beaten.is_err(), "no answer in time");
    tokio::time::sleep(Duration::from_millis(3_600)).await;
    assert_eq!(one.replica.check_readiness(), Err(ReadinessError::Overdue));
    let waited = tokio::time::timeout(Duration::from_millis(100), handle.admit_work()).await;
    assert!(!matches!(waited, Ok(Ok(()))), "the deadline has passed");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(one.replica.beat().await.is_err(), "there is still no answer");
    assert!(handle.end_signal().is_cancelled(), "after the expiry, its sessions may be elsewhere");
    one.way.go_on();
    let mut beaten = one.replica.beat().await;
    for _ in 0..20 {
        if beaten.is_ok() {
            break;
        }
        beaten = one.replica.beat().await;
    }
    beaten.unwrap();
    one.replica.check_readiness().unwrap();
    assert!(handle.admit_work().await.is_err(), "a claim of the earlier place stays lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_with_different_folders_are_not_ready() {
    if !full_tests() {
        return;
    }
    let setting = Setting::new();
    let other_folder = tempfile::tempdir().unwrap();
    let (one, mut two) = (setting.replica(), setting.replica_with(other_folder.path(), EXPIRY));
    let (id, store) = one.store.create_owned(new_session()).await.unwrap();
    store.append(&id, event(&json!({})));
    store.flush(&id).await.unwrap();
    for party in [&one, &two] {
        party.replica.beat().await.unwrap();
    }
    one.replica.check_readiness().unwrap();
    let reason = two.replica.check_readiness().unwrap_err().to_string();
    assert!(reason.contains(one.replica.id().as_str()), "the later one says with whom: {reason}");
    setting.expire(&one);
    let refused = two.claim(&id).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("the files of this session are on replica {}", one.replica.id())), "{refused}");
    std::fs::remove_file(other_folder.path().join(".skein-files")).unwrap();
    let reason = two.replica.check_readiness().unwrap_err();
    assert!(matches!(reason, ReadinessError::NoFolder { .. }), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_misses_nothing_when_its_listener_breaks() {
    if !full_tests() {
        return;
    }
    const EVENTS: u64 = 150;
    let setting = Setting::new();
    let (one, two) = (setting.replica(), setting.replica());
    let hub = ListenHub::open(&two.address, &two.address).unwrap();
    let (id, store) = one.store.create_owned(new_session()).await.unwrap();
    let writing = async {
        for number in 1..=EVENTS {
            store.append(&id, event(&json!({"number": number})));
            if number == EVENTS / 2 {
                let ended = setting.sql(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'skein listen'",
                );
                assert_eq!(ended, "1");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        store.flush(&id).await.unwrap();
    };
    let reading = async {
        let (mut follower, mut seen) = (two.store.follow(&id, 0, &hub), Vec::new());
        while seen.last() != Some(&EVENTS) {
            seen.extend(follower.next().await.unwrap().iter().map(|event| event.seq));
        }
        seen
    };
    let (seen, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(60), reading), writing);
    assert_eq!(seen.expect("all events in time"), (1..=EVENTS).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_reaches_a_reader_before_it_polls() {
    if !full_tests() {
        return;
    }
    let setting = Setting::new();
    let (one, two) = (setting.replica(), setting.replica());
    let hub = ListenHub::open(&two.address, &two.address).unwrap();
    let (id, store) = one.store.create_owned(new_session()).await.unwrap();
    store.append(&id, event(&json!({"number": 1})));
    store.flush(&id).await.unwrap();
    let mut follower = two.store.follow(&id, 0, &hub);
    assert_eq!(follower.next().await.unwrap().len(), 1);
    let mut fastest = Duration::MAX;
    for number in 2..=4_u64 {
        let begun = std::time::Instant::now();
        store.append(&id, event(&json!({"number": number})));
        assert_eq!(follower.next().await.unwrap()[0].seq, number);
        fastest = fastest.min(begun.elapsed());
    }
    assert!(fastest < Duration::from_secs(3), "{fastest:?}: only a poll found it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_swallows_notifications_is_refused() {
    if !full_tests() {
        return;
    }
    let setting = Setting::new();
    let one = setting.replica();
    let pool = Forwarder::to(setting.postgres.address);
    pool.drop_notifications();
    let url = format!("postgres://{USER}:{PASSWORD}@{}/own?sslmode=disable", pool.address);
    let refused = ListenHub::open(&one.address, &url.parse().unwrap()).unwrap_err();
    assert!(matches!(refused, StoreError::NoNotifications { .. }), "{refused}");
    assert!(refused.to_string().contains("store.listen_url"), "{refused}");
}

/// What happens to one of two replicas, or to the database.
#[derive(Debug, Clone, Copy)]
enum Action {
    Claim(usize),
    Write(usize),
    Release(usize),
    Beat(usize),
    /// The replica was paused for longer than its expiry.
    Expire(usize),
    /// The clock of the database jumps ahead: all replicas have expired.
    JumpClock,
    CutConnections(usize),
    LoseCommit(usize),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let party = || 0..2_usize;
    let action = prop_oneof![
        4 => party().prop_map(Action::Claim),
        6 => party().prop_map(Action::Write),
        1 => party().prop_map(Action::Release),
        2 => party().prop_map(Action::Beat),
        2 => party().prop_map(Action::Expire),
        1 => Just(Action::JumpClock),
        2 => party().prop_map(Action::CutConnections),
        3 => party().prop_map(Action::LoseCommit),
    ];
    vec(action, 1..25)
}

/// Runs a schedule. Returns the numbers of the writes that were acknowledged.
async fn run(setting: &Setting, parties: &mut [Party; 2], session: &str, schedule: &[Action]) -> BTreeSet<usize> {
    let mut acknowledged = BTreeSet::new();
    for (number, action) in schedule.iter().enumerate() {
        match *action {
            // A replica that has lost its place may fail here, and claims again after a heartbeat.
            Action::Claim(party) => drop(parties[party].claim(session).await),
            Action::Write(party) => {
                if let Some(Ok(())) = parties[party].write(session, number).await {
                    acknowledged.insert(number);
                }
            }
            Action::Release(party) => parties[party].held = None,
            // The fault before it may hit the heartbeat.
            Action::Beat(party) => drop(parties[party].replica.beat().await),
            Action::Expire(party) => setting.expire(&parties[party]),
            Action::JumpClock => {
                setting.sql("UPDATE replica SET expires_at = clock_timestamp() - interval '1 hour'");
            }
            Action::CutConnections(party) => parties[party].way.cut(),
            Action::LoseCommit(party) => parties[party].way.lose_next_commit(),
        }
    }
    acknowledged
}

#[test]
fn random_schedules_keep_one_owner_and_each_write_once() {
    if !full_tests() {
        return;
    }
    let setting = Setting::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let config = ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&actions(), |schedule| {
        runtime.block_on(async {
            let mut parties = [setting.replica(), setting.replica()];
            let (id, store) = parties[0].store.create_owned(new_session()).await.expect("a session");
            parties[0].held = Some(store);
            let acknowledged = run(&setting, &mut parties, &id, &schedule).await;
            // Whatever is still queued is written now, or refused.
            for party in &mut parties {
                party.held = None;
                party.store.events(&id).await.expect("the events");
            }
            check_events(&parties[0].store, &id, &acknowledged).await
        })
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// Checks what the store has after a schedule.
async fn check_events(
    store: &SessionStore,
    session: &str,
    acknowledged: &BTreeSet<usize>,
) -> Result<(), TestCaseError> {
    let events = store.events(session).await.expect("the events");
    let bodies: Vec<Value> = events.iter().map(|event| serde_json::from_str(&event.body).expect("JSON")).collect();
    let numbers: Vec<u64> = bodies.iter().map(|body| body["number"].as_u64().expect("a number")).collect();
    let once: BTreeSet<u64> = numbers.iter().copied().collect();
    prop_assert_eq!(numbers.len(), once.len(), "no write is stored twice: {:?}", numbers);
    let lost: Vec<_> = acknowledged.iter().filter(|number| !once.contains(&(**number as u64))).collect();
    prop_assert!(lost.is_empty(), "acknowledged writes are stored: {lost:?}");
    let epochs: Vec<u64> = bodies.iter().map(|body| body["epoch"].as_u64().expect("an epoch")).collect();
    prop_assert!(epochs.is_sorted(), "no write comes after a later claim: {epochs:?}");
    let mut owners: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    for (epoch, body) in epochs.iter().zip(&bodies) {
        owners.entry(*epoch).or_default().insert(body["replica"].to_string());
    }
    prop_assert!(owners.values().all(|replicas| replicas.len() == 1), "one owner per epoch: {owners:?}");
    let sequence: Vec<u64> = events.iter().map(|event| event.seq).collect();
    prop_assert_eq!(sequence, (1..=events.len() as u64).collect::<Vec<_>>());
    Ok(())
}
