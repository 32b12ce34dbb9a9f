//! Reads what sessions spent, and when. A trigger of the store writes a row whenever the totals of a session grow.

use postgres::GenericClient;
use rusqlite::{Connection, params};

use super::read::{natural, number};
use super::shared_view::{self, ViewValues};
use super::view::{self, SessionView};
use super::{SessionStore, StoreError, UsageTotals};
use crate::store::database::Queries;

/// What a session spent at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpentAmount {
    /// Milliseconds since 1970.
    pub at: u64,
    /// Includes what its child sessions spent.
    pub amount: UsageTotals,
}

impl SessionStore {
    /// Returns what a session has spent since then, oldest first.
    pub async fn spending(&self, id: &str, since: u64) -> Result<Vec<SpentAmount>, StoreError> {
        let id = id.to_owned();
        self.read(move |reads, view| reads.spending(view, &id, since)).await
    }

    /// Returns the names of the principals with sessions. The handle of `local` sees all of them, others their own.
    pub async fn principals(&self) -> Result<Vec<String>, StoreError> {
        self.read(|reads, view| reads.principals(view)).await
    }
}

pub(super) fn read(
    connection: &Connection,
    view: &SessionView,
    id: &str,
    since: u64,
) -> rusqlite::Result<Vec<SpentAmount>> {
    let select = format!(
        "SELECT p.at, p.input, p.output, p.cached, p.cost FROM spending p JOIN session s ON s.key = p.session
         WHERE s.id = ?2 AND p.at >= ?3 AND {} ORDER BY p.at, p.key",
        view::ADMITTED
    );
    let row = |row: &rusqlite::Row<'_>| {
        let amount = UsageTotals {
            input: natural(row, 1)?,
            output: natural(row, 2)?,
            cached: natural(row, 3)?,
            cost: row.get(4)?,
        };
        Ok(SpentAmount { at: natural(row, 0)?, amount })
    };
    let query = view.query(connection)?;
    connection.prepare_cached(&select)?.query_map(params![query, id, number(since)], row)?.collect()
}

pub(super) fn read_principals(connection: &Connection, view: &SessionView) -> rusqlite::Result<Vec<String>> {
    let select = "SELECT DISTINCT principal FROM session WHERE ?1 IS NULL OR principal = ?1 ORDER BY principal";
    connection.prepare_cached(select)?.query_map([own_name(view)], |row| row.get(0))?.collect()
}

/// Like [`read`], in a PostgreSQL database.
pub(super) fn read_shared<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    ViewValues { principal, modes, roots }: &ViewValues,
    id: &str,
    since: u64,
) -> Result<Vec<SpentAmount>, postgres::Error> {
    let select = format!(
        "SELECT p.at, p.input, p.output, p.cached, p.cost FROM spending p JOIN session s ON s.key = p.session
         WHERE s.id = $4 AND p.at >= $5 AND {} ORDER BY p.at, p.key",
        shared_view::ADMITTED
    );
    let rows = queries.query(&select, &[principal, modes, roots, &id, &number(since)])?;
    let amount = |row: &postgres::Row| SpentAmount {
        at: shared_view::natural(row, 0),
        amount: UsageTotals {
            input: shared_view::natural(row, 1),
            output: shared_view::natural(row, 2),
            cached: shared_view::natural(row, 3),
            cost: row.get(4),
        },
    };
    Ok(rows.iter().map(amount).collect())
}

/// Like [`read_principals`], in a PostgreSQL database.
pub(super) fn read_shared_principals<C: GenericClient>(
    queries: &mut Queries<'_, C>,
    view: &SessionView,
) -> Result<Vec<String>, postgres::Error> {
    let select = "SELECT DISTINCT principal FROM session WHERE $1::text IS NULL OR principal = $1::text
        ORDER BY principal";
    let rows = queries.query(select, &[&own_name(view)])?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Returns the only principal that the handle sees. `None` if it sees all.
fn own_name(view: &SessionView) -> Option<&str> {
    Some(view.principal()).filter(|principal| !principal.is_local()).map(|principal| principal.name())
}

#[cfg(test)]
mod tests {
    use super::super::{NewEvent, NewSession, SCHEMA, SessionChange};
    use super::*;
    use crate::principal::{Principal, SessionFiles, SessionGrant, TokenLimits};

    fn totals(input: u64, cost: Option<f64>) -> UsageTotals {
        UsageTotals { input, output: 2, cached: 1, cost }
    }

    async fn create(store: &SessionStore) -> String {
        let new = NewSession {
            cwd: "/here".into(),
            roots: Vec::new(),
            agent: "coding".to_owned(),
            mode: "backend".to_owned(),
            model: "offline".to_owned(),
            approval: None,
            parent: None,
            files: SessionFiles::Own,
        };
        let id = store.create(new).await.unwrap();
        store.append(&id, NewEvent { kind: "message".into(), body: "{}".to_owned(), text: None });
        id
    }

    #[tokio::test]
    async fn each_addition_is_a_row_with_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let store = SessionStore::open(folder.path()).unwrap();
        let id = create(&store).await;
        for spent in [totals(10, None), totals(5, Some(0.5)), totals(1, Some(0.25))] {
            store.change(&id, SessionChange { spent: Some(spent), ..SessionChange::default() });
        }
        store.change(&id, SessionChange { title: Some("A talk".to_owned()), ..SessionChange::default() });
        let rows = store.spending(&id, 0).await.unwrap();
        let amounts: Vec<_> = rows.iter().map(|row| row.amount).collect();
        assert_eq!(amounts, [totals(10, None), totals(5, Some(0.5)), totals(1, Some(0.25))]);
        let last = rows[2].at;
        assert_eq!(store.spending(&id, last + 1).await.unwrap(), []);
        let ann = SessionGrant::new(Principal::new("ann").unwrap(), TokenLimits::default());
        let of_ann = store.for_grant(&ann);
        assert_eq!(of_ann.spending(&id, 0).await.unwrap(), [], "a session of another principal");
        create(&of_ann).await;
        assert_eq!(store.principals().await.unwrap(), ["ann", "local"]);
        assert_eq!(of_ann.principals().await.unwrap(), ["ann"]);
        store.delete(&id).await.unwrap();
        assert_eq!(store.spending(&id, 0).await.unwrap(), []);
    }

    #[tokio::test]
    async fn a_session_of_an_older_version_has_its_sum() {
        let folder = tempfile::tempdir().unwrap();
        let before = Connection::open(folder.path().join("sessions.db")).unwrap();
        SCHEMA.migrations[..10].iter().for_each(|migration| before.execute_batch(migration).unwrap());
        let marks = format!("PRAGMA application_id = {}; PRAGMA user_version = 10", SCHEMA.mark);
        before.execute_batch(&marks).unwrap();
        let insert = "INSERT INTO session (id, cwd, roots, agent, mode, model, created_at, updated_at, input, output,
                cached, cost, events)
            VALUES ('s1', '/here', '[]', 'coding', 'backend', 'offline', 1, 7, 10, 2, 1, 0.5, 1)";
        before.execute(insert, []).unwrap();
        drop(before);
        let store = SessionStore::open(folder.path()).unwrap();
        let expected = SpentAmount { at: 7, amount: totals(10, Some(0.5)) };
        assert_eq!(store.spending("s1", 0).await.unwrap(), [expected]);
        assert_eq!(store.spending("s1", 8).await.unwrap(), []);
    }
}
