//! Migrates the tables of a PostgreSQL store in two kinds of steps, so that servers of two releases can share it.
//!
//! One release expands the tables: programs of the release before still run. A later release contracts them: it removes
//! what only older programs need. A contraction waits until no live replica runs such a program; the next program that
//! opens the store tries it again.
//!
//! Invariant: each step runs once, in a transaction under one lock. A program is refused only if it is older than the
//! oldest one that the tables admit. A step that expands depends on no contraction, because that may come later.

use std::collections::BTreeSet;

use postgres::{Client, GenericClient};

/// The key of the advisory lock under which migrations run: the bytes `skeinsto` in ASCII.
const MIGRATION_LOCK: i64 = 0x736b_6569_6e73_746f;

/// The first program with such a store.
const FIRST_PROGRAM: &str = "0.1.0";

const TABLE: &str = "CREATE TABLE IF NOT EXISTS skein_schema (
    version BIGINT PRIMARY KEY,
    -- The oldest program that may use the tables since this step.
    oldest_program TEXT NOT NULL,
    applied_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
)";
const RECORD: &str = "SELECT version, oldest_program FROM skein_schema";
const ADD: &str = "INSERT INTO skein_schema (version, oldest_program) VALUES ($1, $2)";
const REPLICAS: &str = "SELECT id, program FROM replica WHERE NOT is_dead";
/// Declares replicas dead that have expired. A heartbeat may come before it.
const RETIRE: &str =
    "UPDATE replica SET is_dead = TRUE WHERE id = ANY ($1) AND NOT is_dead AND expires_at <= clock_timestamp()";

/// Migrates from one version to the next.
#[derive(Debug)]
pub(super) struct DatabaseMigration {
    pub(super) sql: &'static str,
    pub(super) kind: MigrationKind,
}

/// What a step does to programs of earlier releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MigrationKind {
    /// It only adds tables, indexes, and columns with a default. All programs that could use the tables still can.
    Expand,
    /// It removes or restricts what programs before `oldest_program` use.
    #[cfg_attr(not(test), expect(dead_code, reason = "no release has contracted the tables yet"))]
    Contract { oldest_program: &'static str },
}

impl MigrationKind {
    /// Returns the oldest program that may use the tables after the step, if `oldest` was that before.
    fn oldest_after(self, oldest: &str) -> String {
        match self {
            Self::Contract { oldest_program } if is_older(oldest, oldest_program) => oldest_program.to_owned(),
            Self::Contract { .. } | Self::Expand => oldest.to_owned(),
        }
    }
}

/// Why tables were not migrated.
#[derive(Debug)]
pub(super) enum MigrationError {
    Query(postgres::Error),
    /// The tables need this program or a newer one.
    OldProgram {
        oldest: String,
    },
}

impl From<postgres::Error> for MigrationError {
    fn from(error: postgres::Error) -> Self {
        Self::Query(error)
    }
}

/// What the database records about its tables.
#[derive(Debug)]
struct SchemaRecord {
    /// The steps that have run. A contraction may run after later steps.
    versions: BTreeSet<i64>,
    oldest_program: String,
}

impl SchemaRecord {
    fn read<C: GenericClient>(client: &mut C) -> Result<Self, postgres::Error> {
        let rows = client.query(RECORD, &[])?;
        let versions = rows.iter().map(|row| row.get(0)).collect();
        let programs = rows.iter().map(|row| row.get::<_, String>(1));
        let oldest_program = programs.max_by_key(|program| program_order(program));
        Ok(Self { versions, oldest_program: oldest_program.unwrap_or_else(|| FIRST_PROGRAM.to_owned()) })
    }

    /// Fails if the program is older than the oldest one that may use the tables.
    fn check(&self, program: &str) -> Result<(), MigrationError> {
        if is_older(program, &self.oldest_program) {
            return Err(MigrationError::OldProgram { oldest: self.oldest_program.clone() });
        }
        Ok(())
    }
}

/// Runs the steps that have not run yet, unless replicas of older programs need what a step removes. Only one process at a
/// time migrates; the others wait. Fails if `program` is too old for the tables.
pub(super) fn migrate(client: &mut Client, steps: &[DatabaseMigration], program: &str) -> Result<(), MigrationError> {
    let mut transaction = client.transaction()?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK])?;
    transaction.batch_execute(TABLE)?;
    let record = SchemaRecord::read(&mut transaction)?;
    record.check(program)?;
    let mut oldest = record.oldest_program;
    for (version, step) in (1_i64..).zip(steps).filter(|(version, _)| !record.versions.contains(version)) {
        if let MigrationKind::Contract { oldest_program } = step.kind
            && !retire_older(&mut transaction, oldest_program)?
        {
            tracing::info!(version, oldest_program, "a step of the store waits for older replicas to end");
            continue;
        }
        oldest = step.kind.oldest_after(&oldest);
        transaction.batch_execute(step.sql)?;
        transaction.execute(ADD, &[&version, &oldest])?;
    }
    Ok(transaction.commit()?)
}

/// Keeps the tables from a contraction until the end of the transaction, in which the program joins the replicas. Fails
/// if it is too old for the tables.
pub(super) fn check_joining<C: GenericClient>(client: &mut C, program: &str) -> Result<(), MigrationError> {
    client.execute("SELECT pg_advisory_xact_lock_shared($1)", &[&MIGRATION_LOCK])?;
    SchemaRecord::read(client)?.check(program)
}

/// Declares the expired replicas of programs before `oldest` dead, so that no heartbeat revives them. Returns false if
/// one of them is alive.
fn retire_older<C: GenericClient>(client: &mut C, oldest: &str) -> Result<bool, postgres::Error> {
    let rows = client.query(REPLICAS, &[])?;
    let older = rows.iter().filter(|row| is_older(row.get(1), oldest));
    let older: Vec<String> = older.map(|row| row.get(0)).collect();
    let retired = client.execute(RETIRE, &[&older])?;
    Ok(usize::try_from(retired).is_ok_and(|retired| retired == older.len()))
}

fn is_older(program: &str, than: &str) -> bool {
    program_order(program) < program_order(than)
}

/// Returns the numbers of a version such as `1.2.3`, which compare in its order.
fn program_order(version: &str) -> Vec<u64> {
    let plain = version.split(['-', '+']).next().unwrap_or_default();
    plain.split('.').map(|part| part.parse().unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_older_program_is_refused() {
        let record = SchemaRecord { versions: BTreeSet::new(), oldest_program: "0.10.0".to_owned() };
        for program in ["0.10.0", "0.10.1-rc.1", "1.0.0"] {
            record.check(program).unwrap();
        }
        let refused = record.check("0.9.3");
        assert!(matches!(&refused, Err(MigrationError::OldProgram { oldest }) if oldest == "0.10.0"), "{refused:?}");
    }

    #[test]
    fn only_a_contraction_excludes_programs() {
        let contract = MigrationKind::Contract { oldest_program: "0.10.0" };
        assert_eq!(MigrationKind::Expand.oldest_after("0.9.0"), "0.9.0");
        assert_eq!(contract.oldest_after("0.9.0"), "0.10.0");
        assert_eq!(contract.oldest_after("1.0.0"), "1.0.0", "a later step came first");
    }
}
