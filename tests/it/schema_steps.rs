//! Releases share a PostgreSQL store: its tables are expanded first and contracted when no older program uses them.

use std::process::Stdio;
use std::sync::Arc;

use postgres::{Client, NoTls};
use skein::principal::SessionFiles;
use skein::store::{ListFilter, NewEvent, NewSession, SessionStore, StoreAddress, StoreError};

use crate::support::postgres::Postgres;
use crate::support::{Sandbox, full_tests};

/// The steps of other releases need the module itself.
#[path = "../../src/store/database_migrator.rs"]
mod database_migrator;

use database_migrator::{DatabaseMigration, MigrationError, MigrationKind, check_joining, migrate};

#[test]
fn processes_that_start_at_once_migrate_once() {
    if !full_tests() {
        return;
    }
    let (postgres, sandbox) = (Postgres::start(), Sandbox::new());
    let url = postgres.database("own");
    let start = |_| {
        let mut command = sandbox.command(&["token", "list"]);
        command.env("SKEIN_STORE", &url).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = (0..6).map(start).collect();
    for process in started {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let recorded = "SELECT count(*) = max(version) AND count(DISTINCT applied_at) = count(*) FROM skein_schema";
    assert_eq!(postgres.sql("own", recorded), "t", "each step has one row");
}

async fn add_session(store: &SessionStore) -> Result<String, StoreError> {
    let new = NewSession {
        cwd: "/here".into(),
        roots: Vec::new(),
        agent: "goose".to_owned(),
        mode: "assistant".to_owned(),
        model: "offline".to_owned(),
        approval: None,
        parent: None,
        files: SessionFiles::Server,
    };
    let id = store.create(new).await?;
    let event = NewEvent { kind: "message".into(), body: "{}".to_owned(), text: Some("otter".to_owned()) };
    store.append(&id, event);
    store.flush(&id).await?;
    Ok(id)
}

#[tokio::test(flavor = "multi_thread")]
async fn this_program_uses_tables_that_a_later_one_expanded() {
    if !full_tests() {
        return;
    }
    let postgres = Postgres::start();
    let address: Arc<StoreAddress> = Arc::new(postgres.database("own").parse().unwrap());
    let open = SessionStore::connect(&address).unwrap();
    let first = add_session(&open).await.unwrap();
    let expand = "ALTER TABLE session ADD COLUMN later TEXT NOT NULL DEFAULT '';
        ALTER TABLE event ADD COLUMN later TEXT;
        CREATE TABLE later (id BIGINT PRIMARY KEY);
        INSERT INTO skein_schema (version, oldest_program) VALUES (1000, '0.1.0')";
    postgres.sql("own", expand);
    let second = add_session(&open).await.unwrap();
    let reopened = SessionStore::connect(&address).unwrap();
    let third = add_session(&reopened).await.unwrap();
    let listed = reopened.list(ListFilter::default()).await.unwrap();
    assert_eq!(listed.into_iter().map(|session| session.id).collect::<Vec<_>>(), [third, second, first]);
    assert_eq!(postgres.sql("own", "SELECT max(version) FROM skein_schema"), "1000");
}

/// The steps of two releases. The second one no longer needs the column `before`.
const STEPS: &[DatabaseMigration] = &[
    DatabaseMigration {
        kind: MigrationKind::Expand,
        sql: "CREATE TABLE replica (id TEXT PRIMARY KEY, program TEXT NOT NULL, expires_at TIMESTAMPTZ NOT NULL,
                is_dead BOOLEAN NOT NULL DEFAULT FALSE);
            CREATE TABLE thing (before TEXT);",
    },
    DatabaseMigration {
        kind: MigrationKind::Contract { oldest_program: "2.0.0" },
        sql: "ALTER TABLE thing DROP COLUMN before",
    },
    DatabaseMigration { kind: MigrationKind::Expand, sql: "ALTER TABLE thing ADD COLUMN after TEXT" },
];

/// Migrates as a release. Returns the oldest program that is admitted instead, if this one is refused.
fn migrate_as(client: &mut Client, program: &str) -> Option<String> {
    let steps = if program == "2.0.0" { STEPS } else { &STEPS[..1] };
    refusal(migrate(client, steps, program))
}

fn join_as(client: &mut Client, program: &str) -> Option<String> {
    let mut transaction = client.transaction().unwrap();
    let joined = refusal(check_joining(&mut transaction, program));
    let insert = "INSERT INTO replica (id, program, expires_at) VALUES ($1, $1, clock_timestamp() + interval '1 hour')";
    if joined.is_none() {
        transaction.execute(insert, &[&program]).unwrap();
    }
    transaction.commit().unwrap();
    joined
}

fn refusal(result: Result<(), MigrationError>) -> Option<String> {
    match result {
        Ok(()) => None,
        Err(MigrationError::OldProgram { oldest }) => Some(oldest),
        Err(MigrationError::Query(error)) => panic!("{error}"),
    }
}

#[test]
fn a_contraction_waits_for_replicas_of_older_programs() {
    if !full_tests() {
        return;
    }
    let postgres = Postgres::start();
    let mut client = Client::connect(&postgres.database("own"), NoTls).unwrap();
    let steps = || postgres.sql("own", "SELECT string_agg(version::text, ' ' ORDER BY version) FROM skein_schema");
    let insert = |column: &str| postgres.sql("own", &format!("INSERT INTO thing ({column}) VALUES ('x')"));
    assert_eq!(migrate_as(&mut client, "1.0.0"), None);
    assert_eq!(join_as(&mut client, "1.0.0"), None);
    // The newer release adds its column, and the older one still has its own.
    assert_eq!(migrate_as(&mut client, "2.0.0"), None);
    assert_eq!(steps(), "1 3");
    insert("before");
    insert("after");
    assert_eq!(migrate_as(&mut client, "1.0.0"), None);
    // The older replica sends no more heartbeats. It cannot come back with one.
    postgres.sql("own", "UPDATE replica SET expires_at = clock_timestamp() - interval '1 second'");
    assert_eq!(migrate_as(&mut client, "2.0.0"), None);
    assert_eq!(steps(), "1 2 3");
    assert_eq!(postgres.sql("own", "SELECT is_dead FROM replica WHERE program = '1.0.0'"), "t");
    let columns = "SELECT string_agg(attname, ' ') FROM pg_attribute
        WHERE attrelid = 'thing'::regclass AND attnum > 0 AND NOT attisdropped";
    assert_eq!(postgres.sql("own", columns), "after");
    for refused in [migrate_as(&mut client, "1.0.0"), join_as(&mut client, "1.0.0")] {
        assert_eq!(refused.as_deref(), Some("2.0.0"));
    }
    assert_eq!(join_as(&mut client, "2.0.0"), None);
}
