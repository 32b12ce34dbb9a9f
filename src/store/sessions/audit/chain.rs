//! Verifies the chains of the audit log: numbers, hashes, heads, the counts of the sessions, and the number of chains.

use std::collections::BTreeMap;

use rusqlite::{Connection, Row};
use serde::Serialize;

use super::super::read::natural;
use super::{AuditEntry, COLUMNS, NO_HASH, entry};

/// The result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ChainReport {
    pub chains: u64,
    pub entries: u64,
    pub findings: Vec<AuditFinding>,
}

/// A problem of one chain, or of all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditFinding {
    /// The session of the chain. `None` if the problem concerns no known chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(flatten)]
    pub problem: AuditProblem,
}

/// A difference between a chain and what Skein wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "problem", rename_all = "snake_case")]
pub enum AuditProblem {
    #[error("entry {expected} is missing before entry {found}")]
    Gap { expected: u64, found: u64 },
    #[error("entry {sequence} does not follow the entry before it: one of them was changed, added or moved")]
    Break { sequence: u64 },
    #[error("the last entry, {sequence}, was changed")]
    ChangedEnd { sequence: u64 },
    #[error("the end is cut off: {found} of {expected} entries are left")]
    CutTail { expected: u64, found: u64 },
    #[error("entries were added at the end: there are {found} instead of {expected}")]
    LongTail { expected: u64, found: u64 },
    #[error("the head of the chain is missing")]
    NoHead,
    #[error("the session counts {expected} entries, the head of its chain {found}")]
    Count { expected: u64, found: u64 },
    #[error("chains were removed as a whole: {found} of {expected} are left")]
    RemovedChains { expected: u64, found: u64 },
    #[error("the number of chains is missing")]
    NoTotal,
}

/// The head of a chain: the number of its entries, and the hash of the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::sessions) struct ChainHead {
    pub(in crate::store::sessions) entries: u64,
    pub(in crate::store::sessions) hash: String,
}

impl Default for ChainHead {
    /// Returns the head of a chain without entries.
    fn default() -> Self {
        Self { entries: 0, hash: NO_HASH.to_owned() }
    }
}

/// The entries of one chain that were read.
#[derive(Debug)]
struct ChainWalk {
    session: String,
    entries: u64,
    last: u64,
    hash: String,
}

impl ChainWalk {
    fn new(session: &str) -> Self {
        Self { session: session.to_owned(), entries: 0, last: 0, hash: NO_HASH.to_owned() }
    }
}

/// Checks all chains while their entries are read.
#[derive(Debug)]
pub(in crate::store::sessions) struct ChainCheck {
    /// The heads of the chains whose entries were not all read.
    heads: BTreeMap<String, ChainHead>,
    walk: Option<ChainWalk>,
    /// The number of chains that the store counts. `None` if it is missing.
    total: Option<u64>,
    report: ChainReport,
}

impl ChainCheck {
    /// Compares the heads with the numbers of entries that the sessions count.
    pub(in crate::store::sessions) fn new(
        heads: BTreeMap<String, ChainHead>,
        counts: Vec<(String, u64)>,
        total: Option<u64>,
    ) -> Self {
        let mut report = ChainReport::default();
        for (session, expected) in counts {
            let found = heads.get(&session).map_or(0, |head| head.entries);
            if found != expected {
                report.add(&session, AuditProblem::Count { expected, found });
            }
        }
        Self { heads, walk: None, total, report }
    }

    /// Checks the next entry. Entries come in the order of their chain, one chain after the other.
    pub(in crate::store::sessions) fn add(&mut self, entry: &AuditEntry) {
        if let Some(before) = self.walk.take_if(|walk| walk.session != entry.session) {
            self.end(&before);
        }
        let walk = self.walk.get_or_insert_with(|| ChainWalk::new(&entry.session));
        let expected = walk.last + 1;
        if entry.sequence != expected {
            self.report.add(&entry.session, AuditProblem::Gap { expected, found: entry.sequence });
        } else if entry.previous != walk.hash {
            self.report.add(&entry.session, AuditProblem::Break { sequence: entry.sequence });
        }
        (walk.last, walk.hash) = (entry.sequence, entry.hash());
        walk.entries += 1;
    }

    fn end(&mut self, walk: &ChainWalk) {
        let head = self.heads.remove(&walk.session);
        self.report.finish(walk, head);
    }

    /// Returns the report after the last entry.
    pub(in crate::store::sessions) fn finish(mut self) -> ChainReport {
        if let Some(walk) = self.walk.take() {
            self.end(&walk);
        }
        // No entry of these chains is left.
        for (session, head) in self.heads {
            self.report.finish(&ChainWalk::new(&session), Some(head));
        }
        let found = self.report.chains;
        let problem = match self.total {
            Some(expected) => (found < expected).then_some(AuditProblem::RemovedChains { expected, found }),
            None => Some(AuditProblem::NoTotal),
        };
        self.report.findings.extend(problem.map(|problem| AuditFinding { session: None, problem }));
        self.report
    }
}

/// Checks all chains, as they are at one moment.
pub(in crate::store::sessions) fn verify(connection: &Connection) -> rusqlite::Result<ChainReport> {
    // Other processes may append entries meanwhile.
    let moment = connection.unchecked_transaction()?;
    let mut check = ChainCheck::new(heads(&moment)?, counts(&moment)?, total(&moment)?);
    let mut statement = moment.prepare(&format!("SELECT {COLUMNS} FROM audit_entry ORDER BY session, seq"))?;
    for row in statement.query_map([], entry)? {
        check.add(&row?);
    }
    Ok(check.finish())
}

impl ChainReport {
    fn add(&mut self, session: &str, problem: AuditProblem) {
        self.findings.push(AuditFinding { session: Some(session.to_owned()), problem });
    }

    /// Compares a chain that was read with its head.
    fn finish(&mut self, walk: &ChainWalk, head: Option<ChainHead>) {
        self.chains += 1;
        self.entries += walk.entries;
        let Some(head) = head else { return self.add(&walk.session, AuditProblem::NoHead) };
        let (expected, found) = (head.entries, walk.last);
        if found < expected {
            self.add(&walk.session, AuditProblem::CutTail { expected, found: walk.entries });
        } else if found > expected {
            self.add(&walk.session, AuditProblem::LongTail { expected, found: walk.entries });
        } else if walk.hash != head.hash {
            self.add(&walk.session, AuditProblem::ChangedEnd { sequence: found });
        }
    }
}

fn heads(connection: &Connection) -> rusqlite::Result<BTreeMap<String, ChainHead>> {
    let mut statement = connection.prepare("SELECT session, entries, hash FROM audit_head")?;
    let row = |row: &Row<'_>| Ok((row.get(0)?, ChainHead { entries: natural(row, 1)?, hash: row.get(2)? }));
    statement.query_map([], row)?.collect()
}

/// Returns the number of entries that each session counts, if it is not zero.
fn counts(connection: &Connection) -> rusqlite::Result<Vec<(String, u64)>> {
    let mut statement = connection.prepare("SELECT id, audited FROM session WHERE audited > 0 ORDER BY id")?;
    statement.query_map([], |row| Ok((row.get(0)?, natural(row, 1)?)))?.collect()
}

/// Returns the number of chains that were ever begun. `None` if the store has none.
fn total(connection: &Connection) -> rusqlite::Result<Option<u64>> {
    let chains: Option<i64> = connection.query_row("SELECT sum(chains) FROM audit_total", [], |row| row.get(0))?;
    Ok(chains.and_then(|chains| u64::try_from(chains).ok()))
}
