//! Stores what sessions, profiles and principals have used of their limits.

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::read::number;

/// What is used in one period.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct UsageRow {
    /// In US dollars.
    pub cost: f64,
    pub tokens: u64,
    pub requests: u64,
    pub milliseconds: u64,
}

/// The scope and the period of a row, such as `profile:work` and `2026-11`. It belongs to the principal of the handle.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UsageKey {
    pub scope: String,
    /// Empty for a scope without an end.
    pub period: String,
}

/// Returns a row; zero if there is none.
pub(super) fn read(connection: &Connection, principal: &str, key: &UsageKey) -> rusqlite::Result<UsageRow> {
    let select = "SELECT cost, tokens, requests, milliseconds FROM budget
        WHERE principal = ?1 AND scope = ?2 AND period = ?3";
    let natural = |value: i64| u64::try_from(value).unwrap_or_default();
    let row = |row: &rusqlite::Row<'_>| {
        let (tokens, requests, milliseconds) = (row.get(1)?, row.get(2)?, row.get(3)?);
        Ok(UsageRow {
            cost: row.get(0)?,
            tokens: natural(tokens),
            requests: natural(requests),
            milliseconds: natural(milliseconds),
        })
    };
    let found = connection.prepare_cached(select)?.query_row([principal, &key.scope, &key.period], row).optional()?;
    Ok(found.unwrap_or_default())
}

pub(super) fn add(
    transaction: &Transaction<'_>,
    principal: &str,
    key: &UsageKey,
    more: &UsageRow,
) -> rusqlite::Result<bool> {
    let insert = "INSERT INTO budget (principal, scope, period, cost, tokens, requests, milliseconds)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
        ON CONFLICT (principal, scope, period) DO UPDATE SET
            cost = cost + excluded.cost, tokens = tokens + excluded.tokens,
            requests = requests + excluded.requests, milliseconds = milliseconds + excluded.milliseconds";
    let UsageRow { cost, tokens, requests, milliseconds } = *more;
    transaction.prepare_cached(insert)?.execute(params![
        principal,
        key.scope,
        key.period,
        cost,
        number(tokens),
        number(requests),
        number(milliseconds)
    ])?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::SessionStore;
    use super::*;
    use crate::principal::{Principal, SessionGrant, TokenLimits};

    #[tokio::test]
    async fn rows_add_up_and_belong_to_a_principal() {
        let folder = tempfile::tempdir().unwrap();
        let store = SessionStore::open(folder.path()).unwrap();
        let key = |period: &str| UsageKey { scope: "principal".to_owned(), period: period.to_owned() };
        let more = UsageRow { cost: 0.25, tokens: 10, requests: 1, milliseconds: 5 };
        store.add_usage(key("2026-11"), more);
        store.add_usage(key("2026-11"), more);
        let twice = UsageRow { cost: 0.5, tokens: 20, requests: 2, milliseconds: 10 };
        assert_eq!(store.usage(key("2026-11")).await.unwrap(), twice);
        assert_eq!(store.usage(key("2026-12")).await.unwrap(), UsageRow::default());
        let ann = SessionGrant::new(Principal::new("ann").unwrap(), TokenLimits::default());
        assert_eq!(store.for_grant(&ann).usage(key("2026-11")).await.unwrap(), UsageRow::default());
        drop(store);
        let again = SessionStore::open(folder.path()).unwrap();
        assert_eq!(again.usage(key("2026-11")).await.unwrap(), twice);
    }
}
