//! Reads sessions and events of a PostgreSQL database.
//!
//! Invariant: nothing here writes, and every query of sessions contains [`ADMITTED`].

use std::sync::Arc;

use postgres::{Client, Row};

use super::audit::{AuditEntry, AuditFilter, ChainReport};
use super::backend::{SessionReads, TermQuery};
use super::read::{CANDIDATES, folder_params, limit_value, number};
use super::shared_view::{ADMITTED, ViewValues, WITHIN, natural};
use super::state::UUID_OWNER;
use super::usage_rows::{UsageKey, UsageRow};
use super::view::SessionView;
use super::{
    Cursor, FolderFilter, ListFilter, RecallQuery, RecallResults, SearchHit, SpentAmount, StateEntry, StoredEvent,
    StoredMessage, StoredSession, TermStats, UsageTotals, shared_audit, shared_search, spending_rows,
};
use crate::principal::SessionFiles;
use crate::store::database::{Database, Queries};
use crate::store::{StoreAddress, StoreError};

/// The number of entries that a verification of the audit log reads at once.
const AUDIT_PAGE: usize = 1_000;

const SESSION: &str = "SELECT s.id, s.title, s.cwd, s.roots, s.agent, s.mode, s.model, s.approval, s.created_at,
    s.updated_at, s.input, s.output, s.cached, s.cost, s.events, s.parent, s.files FROM session s";

/// The connection for reading.
#[derive(Debug)]
pub(super) struct SharedReads {
    database: Database,
}

impl SharedReads {
    pub(super) fn open(address: &Arc<StoreAddress>) -> Result<Self, StoreError> {
        Database::open(address).map(|database| Self { database })
    }

    fn read<T>(
        &mut self,
        view: &SessionView,
        mut work: impl FnMut(&mut Queries<'_, Client>, &ViewValues) -> Result<T, postgres::Error>,
    ) -> Result<T, StoreError> {
        self.database.read(|queries| {
            let values = ViewValues::of(queries, view)?;
            work(queries, &values)
        })
    }
}

impl SessionReads for SharedReads {
    fn find(&mut self, view: &SessionView, id: &str) -> Result<Option<StoredSession>, StoreError> {
        if has_nul(id) {
            return Ok(None);
        }
        let select = format!("{SESSION} WHERE s.id = $4 AND {ADMITTED}");
        self.read(view, |queries, ViewValues { principal, modes, roots }| {
            Ok(queries.query_opt(&select, &[principal, modes, roots, &id])?.as_ref().map(session))
        })
    }

    fn events(&mut self, view: &SessionView, id: &str) -> Result<Vec<StoredEvent>, StoreError> {
        self.events_after(view, id, 0, usize::MAX)
    }

    fn events_before(
        &mut self,
        view: &SessionView,
        id: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        if has_nul(id) {
            return Ok(Vec::new());
        }
        let part = if before.is_some() { "e.seq < $5::bigint" } else { "$5::bigint IS NULL" };
        let select = format!(
            "SELECT e.seq, e.at, e.kind, e.body FROM event e JOIN session s ON s.key = e.session
             WHERE s.id = $4 AND {ADMITTED} AND {part}
             ORDER BY e.seq DESC LIMIT $6"
        );
        let (before, limit) = (before.map(number), limit_value(Some(limit)));
        self.read(view, |queries, ViewValues { principal, modes, roots }| {
            let rows = queries.query(&select, &[principal, modes, roots, &id, &before, &limit])?;
            Ok(rows.iter().rev().map(event).collect())
        })
    }

    fn events_after(
        &mut self,
        view: &SessionView,
        id: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        if has_nul(id) {
            return Ok(Vec::new());
        }
        let select = format!(
            "SELECT e.seq, e.at, e.kind, e.body FROM event e JOIN session s ON s.key = e.session
             WHERE s.id = $4 AND {ADMITTED} AND e.seq > $5 ORDER BY e.seq LIMIT $6"
        );
        let (after, limit) = (number(after), limit_value(Some(limit)));
        self.read(view, |queries, ViewValues { principal, modes, roots }| {
            let rows = queries.query(&select, &[principal, modes, roots, &id, &after, &limit])?;
            Ok(rows.iter().map(event).collect())
        })
    }

    fn list(&mut self, view: &SessionView, filter: &ListFilter) -> Result<Vec<StoredSession>, StoreError> {
        let (folder, below) = folder_params(&filter.within);
        let (time, id) = match &filter.after {
            Some(Cursor { updated_at, id }) => (Some(number(*updated_at)), id.as_str()),
            None => (None, ""),
        };
        let texts = [folder.as_deref(), Some(id), filter.parent.as_deref(), filter.mode.as_deref()];
        if texts.into_iter().flatten().any(has_nul) {
            return Ok(Vec::new());
        }
        // Each condition fits an index, which one about a value or null does not.
        let family =
            if filter.parent.is_some() { "s.parent = $9::text" } else { "s.parent IS NULL AND $9::text IS NULL" };
        let rest = match filter.after {
            Some(_) => "(s.updated_at, s.id) < ($6::bigint, $7::text)",
            None => "$6::bigint IS NULL AND $7::text = ''",
        };
        let select = format!(
            "{SESSION} WHERE {family} AND {rest} AND {ADMITTED} AND {WITHIN}
             AND EXISTS (SELECT 1 FROM event e WHERE e.session = s.key AND e.kind = 'message')
             AND ($10::text IS NULL OR $10::text IN (s.agent || '/' || s.mode, s.agent || '/*'))
             ORDER BY s.updated_at DESC, s.id DESC LIMIT $8"
        );
        let limit = limit_value(filter.limit);
        let ListFilter { parent, mode, .. } = filter;
        self.read(view, |queries, ViewValues { principal, modes, roots }| {
            let values: [&(dyn postgres::types::ToSql + Sync); 10] =
                [principal, modes, roots, &folder, &below, &time, &id, &limit, parent, mode];
            Ok(queries.query(&select, &values)?.iter().map(session).collect())
        })
    }

    fn has_folder(&mut self, folder: &str) -> Result<bool, StoreError> {
        if has_nul(folder) {
            return Ok(false);
        }
        let select = "SELECT EXISTS (SELECT 1 FROM session WHERE cwd = $1)";
        self.database.read(|queries| Ok(queries.query_one(select, &[&folder])?.get(0)))
    }

    fn family(&mut self, view: &SessionView, id: &str) -> Result<Vec<String>, StoreError> {
        if has_nul(id) {
            return Ok(Vec::new());
        }
        let select = format!(
            "WITH head (id) AS (SELECT coalesce(parent, id) FROM session WHERE id = $4)
             SELECT s.id FROM session s, head WHERE (s.id = head.id OR s.parent = head.id) AND {ADMITTED}
             ORDER BY s.key"
        );
        self.read(view, |queries, ViewValues { principal, modes, roots }| {
            let rows = queries.query(&select, &[principal, modes, roots, &id])?;
            Ok(rows.iter().map(|row| row.get(0)).collect())
        })
    }

    fn beginning_with(&mut self, view: &SessionView, prefix: &str) -> Result<Vec<String>, StoreError> {
        if prefix.is_empty() || has_nul(prefix) {
            return Ok(Vec::new());
        }
        // `~` sorts after every character of an id.
        let select =
            format!("SELECT s.id FROM session s WHERE s.id >= $4 AND s.id < $5 AND {ADMITTED} ORDER BY s.id LIMIT $6");
        let (end, limit) = (format!("{prefix}~"), limit_value(Some(CANDIDATES)));
        self.read(view, |queries, ViewValues { principal, modes, roots }| {
            let rows = queries.query(&select, &[principal, modes, roots, &prefix, &end, &limit])?;
            Ok(rows.iter().map(|row| row.get(0)).collect())
        })
    }

    fn search(
        &mut self,
        view: &SessionView,
        words: &str,
        within: &FolderFilter,
        limit: usize,
    ) -> Result<Vec<SearchHit>, StoreError> {
        if has_nul_folder(within) {
            return Ok(Vec::new());
        }
        self.read(view, |queries, values| shared_search::search(queries, values, words, within, limit))
    }

    fn recall(&mut self, view: &SessionView, query: &RecallQuery, now: u64) -> Result<RecallResults, StoreError> {
        if has_nul_folder(&query.within) {
            return Ok(RecallResults { hits: Vec::new(), partly: false });
        }
        self.read(view, |queries, values| shared_search::recall(queries, values, query, now))
    }

    fn messages(
        &mut self,
        view: &SessionView,
        id: &str,
        from: u64,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        if has_nul(id) {
            return Ok(Vec::new());
        }
        self.read(view, |queries, values| shared_search::messages(queries, values, id, from, limit))
    }

    fn common_terms(&mut self, view: &SessionView, terms: &TermQuery) -> Result<TermStats, StoreError> {
        self.read(view, |queries, values| shared_search::common_terms(queries, values, terms))
    }

    fn state(&mut self, view: &SessionView, id: &str) -> Result<Vec<StateEntry>, StoreError> {
        if has_nul(id) {
            return Ok(Vec::new());
        }
        let select = format!(
            "SELECT t.owner, t.key, t.value FROM state t JOIN session s ON s.key = t.session
             WHERE s.id = $4 AND {ADMITTED} ORDER BY t.owner, t.key"
        );
        self.read(view, |queries, ViewValues { principal, modes, roots }| {
            let rows = queries.query(&select, &[principal, modes, roots, &id])?;
            let entry = |row: &Row| StateEntry { owner: row.get(0), key: row.get(1), value: row.get(2) };
            Ok(rows.iter().map(entry).collect())
        })
    }

    fn find_uuid(&mut self, view: &SessionView, uuid: &str) -> Result<Option<String>, StoreError> {
        if has_nul(uuid) {
            return Ok(None);
        }
        // The owner is a literal, so that the database can use the partial index.
        let select = format!(
            "SELECT s.id FROM state t JOIN session s ON s.key = t.session
             WHERE t.owner = '{UUID_OWNER}' AND t.key = $4 AND {ADMITTED} ORDER BY s.key LIMIT 1"
        );
        self.read(view, |queries, ViewValues { principal, modes, roots }| {
            Ok(queries.query_opt(&select, &[principal, modes, roots, &uuid])?.map(|row| row.get(0)))
        })
    }

    fn usage(&mut self, view: &SessionView, key: &UsageKey) -> Result<UsageRow, StoreError> {
        let select = "SELECT cost, tokens, requests, milliseconds FROM budget
            WHERE principal = $1 AND scope = $2 AND period = $3";
        let principal = view.principal().name();
        let found = self.database.read(|queries| queries.query_opt(select, &[&principal, &key.scope, &key.period]))?;
        let usage = |row: Row| UsageRow {
            cost: row.get(0),
            tokens: natural(&row, 1),
            requests: natural(&row, 2),
            milliseconds: natural(&row, 3),
        };
        Ok(found.map(usage).unwrap_or_default())
    }

    fn spending(&mut self, view: &SessionView, id: &str, since: u64) -> Result<Vec<SpentAmount>, StoreError> {
        self.read(view, |queries, values| spending_rows::read_shared(queries, values, id, since))
    }

    fn principals(&mut self, view: &SessionView) -> Result<Vec<String>, StoreError> {
        self.database.read(|queries| spending_rows::read_shared_principals(queries, view))
    }

    fn audit_entries(&mut self, view: &SessionView, filter: &AuditFilter) -> Result<Vec<AuditEntry>, StoreError> {
        self.database.read(|queries| shared_audit::read(queries, view, filter))
    }

    fn audit_names(&mut self, view: &SessionView) -> Result<Vec<(String, String)>, StoreError> {
        self.database.read(|queries| shared_audit::names(queries, view))
    }

    fn verify_audit(&mut self) -> Result<ChainReport, StoreError> {
        self.database.snapshot(|queries| shared_audit::verify(queries, AUDIT_PAGE))
    }

    fn audit_sessions(&mut self, view: &SessionView, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.database.read(|queries| shared_audit::sessions(queries, view, prefix))
    }
}

/// Returns whether a text has a NUL character. No column has one, and PostgreSQL refuses a query with one.
fn has_nul(text: &str) -> bool {
    text.contains('\0')
}

fn has_nul_folder(within: &FolderFilter) -> bool {
    folder_params(within).0.as_deref().is_some_and(has_nul)
}

/// Reads the columns `seq, at, kind, body`.
fn event(row: &Row) -> StoredEvent {
    StoredEvent { seq: natural(row, 0), at: natural(row, 1), kind: row.get(2), body: row.get(3) }
}

fn session(row: &Row) -> StoredSession {
    let (cwd, roots, files): (String, String, String) = (row.get(2), row.get(3), row.get(16));
    StoredSession {
        id: row.get(0),
        title: row.get(1),
        cwd: cwd.into(),
        roots: serde_json::from_str(&roots).unwrap_or_default(),
        agent: row.get(4),
        mode: row.get(5),
        model: row.get(6),
        approval: row.get(7),
        created_at: natural(row, 8),
        updated_at: natural(row, 9),
        spent: UsageTotals {
            input: natural(row, 10),
            output: natural(row, 11),
            cached: natural(row, 12),
            cost: row.get(13),
        },
        events: natural(row, 14),
        parent: row.get(15),
        // A place that only a newer version knows is not here.
        files: SessionFiles::from_name(&files).unwrap_or(SessionFiles::Client),
    }
}
