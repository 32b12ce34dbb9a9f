//! Reads and writes all rows of a PostgreSQL database.

use std::collections::HashMap;
use std::sync::Arc;

use postgres::types::{ToSql, Type};
use postgres::{Row, Statement, Transaction};

use super::cell::{RowCell, row_json};
use super::sealed_cells::{open_row, place_of, seal_row};
use super::table_list::{TABLES, TableSpec};
use super::{RowError, RowSink, RowSource, StoreTotals, TotalsBuilder, compare, row_failure};
use crate::store::database::{Database, Queries, is_of_data, problem};
use crate::store::memories::memory_words;
use crate::store::sealing::StoreKey;
use crate::store::sessions::EventFacts;
use crate::store::sessions::search_terms::index_words;
use crate::store::{NewEvent, StoreAddress, StoreError};

/// The number of rows that are read at once.
const PAGE: usize = 500;

type Fails<'a> = &'a dyn Fn(postgres::Error) -> StoreError;

pub(super) struct DatabaseSource<'a> {
    pub(super) address: &'a Arc<StoreAddress>,
    pub(super) key: Option<&'a StoreKey>,
}

impl RowSource for DatabaseSource<'_> {
    fn read(&mut self, sink: &mut RowSink<'_>) -> Result<(), StoreError> {
        let (store, key) = (self.address.to_string(), self.key);
        Database::open(self.address)?.transact_with(|queries, fails| {
            // All tables as they are now, also if a server writes.
            let snapshot = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY";
            queries.client.batch_execute(snapshot).map_err(fails)?;
            let key = match (find_key(queries).map_err(fails)?, key) {
                (None, _) => None,
                (Some(proof), Some(key)) if proof == key.proof() => Some(key),
                (Some(_), Some(_)) => return Err(StoreError::WrongKey { store: store.clone() }),
                (Some(_), None) => return Err(StoreError::KeyMissing { store: store.clone() }),
            };
            for table in TABLES {
                let mut number = 0;
                read_rows(queries, fails, table, key, &mut |row| {
                    number += 1;
                    sink(table, row).map_err(|error| row_failure(table, number, error))
                })?;
            }
            Ok(())
        })
    }
}

fn find_key(queries: &mut Queries<'_, Transaction<'_>>) -> Result<Option<String>, postgres::Error> {
    Ok(queries.query_opt("SELECT proof FROM store_key LIMIT 1", &[])?.map(|row| row.get(0)))
}

/// Passes the decrypted rows of a table to `each`, in order.
fn read_rows(
    queries: &mut Queries<'_, Transaction<'_>>,
    fails: Fails<'_>,
    table: &TableSpec,
    key: Option<&StoreKey>,
    each: &mut dyn FnMut(Vec<RowCell>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let name = table.name;
    let declare = format!("DECLARE all_{name} NO SCROLL CURSOR FOR {}", table.select(""));
    queries.client.batch_execute(&declare).map_err(fails)?;
    let fetch = format!("FETCH {PAGE} FROM all_{name}");
    loop {
        let rows = queries.client.query(fetch.as_str(), &[]).map_err(fails)?;
        for row in &rows {
            let cells = (0..row.len()).map(|column| cell(row, column));
            let mut cells = cells.collect::<Result<Vec<_>, _>>().map_err(fails)?;
            open_row(table, &mut cells, key)?;
            each(cells)?;
        }
        if rows.len() < PAGE {
            return queries.client.batch_execute(&format!("CLOSE all_{name}")).map_err(fails);
        }
    }
}

fn cell(row: &Row, column: usize) -> Result<RowCell, postgres::Error> {
    Ok(match *row.columns()[column].type_() {
        Type::INT8 => row.try_get::<_, Option<i64>>(column)?.map_or(RowCell::Null, RowCell::Integer),
        Type::FLOAT8 => row.try_get::<_, Option<f64>>(column)?.map_or(RowCell::Null, RowCell::Real),
        Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(column)?.map_or(RowCell::Null, RowCell::Blob),
        // Another type than text is an error.
        _ => row.try_get::<_, Option<String>>(column)?.map_or(RowCell::Null, RowCell::Text),
    })
}

/// Writes all rows of a source to an empty database, or none.
pub(super) fn write_all(
    address: &Arc<StoreAddress>,
    key: Option<&StoreKey>,
    source: &mut dyn RowSource,
) -> Result<StoreTotals, StoreError> {
    let store = address.to_string();
    Database::open(address)?.transact_with(|queries, fails| {
        // No server records a key until the end of the transaction.
        queries.client.batch_execute("LOCK TABLE store_key IN EXCLUSIVE MODE").map_err(fails)?;
        for table in TABLES {
            // No server writes until the end of the transaction.
            let lock = format!("LOCK TABLE {} IN EXCLUSIVE MODE", table.name);
            queries.client.batch_execute(&lock).map_err(fails)?;
            let any = format!("SELECT EXISTS (SELECT 1 FROM {})", table.name);
            if queries.query_one(&any, &[]).map_err(fails)?.get(0) {
                return Err(StoreError::Occupied { store: store.clone(), table: table.name.to_owned() });
            }
        }
        record_key(queries, fails, &store, key)?;
        let (mut expected, mut statements) = (TotalsBuilder::default(), HashMap::new());
        source.read(&mut |table, row| {
            expected.add(table, &row_json(&row));
            insert(queries, fails, &mut statements, table, row, key)
        })?;
        let mut found = TotalsBuilder::default();
        for table in TABLES {
            if table.is_counted {
                let continued = format!(
                    "SELECT setval(pg_get_serial_sequence('{0}', 'id'), max(id)) FROM {0} HAVING max(id) IS NOT NULL",
                    table.name
                );
                queries.query_opt(&continued, &[]).map_err(fails)?;
            }
            read_rows(queries, fails, table, key, &mut |row| {
                found.add(table, &row_json(&row));
                Ok(())
            })?;
        }
        let found = found.finish();
        compare(&store, &found, &expected.finish())?;
        Ok(found)
    })
}

/// Records the key of the target. Fails if the target has another one.
fn record_key(
    queries: &mut Queries<'_, Transaction<'_>>,
    fails: Fails<'_>,
    store: &str,
    key: Option<&StoreKey>,
) -> Result<(), StoreError> {
    let store = || store.to_owned();
    match (find_key(queries).map_err(fails)?, key) {
        (None, None) => Ok(()),
        (None, Some(key)) => {
            let insert = "INSERT INTO store_key (id, proof) VALUES ($1, $2)";
            queries.execute(insert, &[&key.id(), &key.proof()]).map_err(fails).map(drop)
        }
        (Some(proof), Some(key)) if proof == key.proof() => Ok(()),
        (Some(_), Some(_)) => Err(StoreError::WrongKey { store: store() }),
        (Some(_), None) => Err(StoreError::KeyMissing { store: store() }),
    }
}

fn insert(
    queries: &mut Queries<'_, Transaction<'_>>,
    fails: Fails<'_>,
    statements: &mut HashMap<&'static str, Statement>,
    table: &'static TableSpec,
    mut row: Vec<RowCell>,
    key: Option<&StoreKey>,
) -> Result<(), RowError> {
    let derived = derive_columns(table, &row, key);
    seal_row(table, &mut row, key).map_err(RowError::Store)?;
    let fails = |error: postgres::Error| {
        if is_of_data(&error) { RowError::Data(problem(&error)) } else { RowError::Store(fails(error)) }
    };
    let statement = match statements.get(table.name) {
        Some(statement) => statement.clone(),
        None => {
            let statement = prepare_insert(queries, table, &derived).map_err(fails)?;
            statements.insert(table.name, statement.clone());
            statement
        }
    };
    let values = row.iter().map(RowCell::to_parameter).chain(derived.into_iter().map(|(_, value)| value));
    let values: Vec<Option<String>> = values.collect();
    let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
    queries.client.execute(&statement, &values).map_err(fails).map(drop)
}

/// Prepares a statement whose parameters are texts, which it casts to the types of the columns.
fn prepare_insert(
    queries: &mut Queries<'_, Transaction<'_>>,
    table: &TableSpec,
    derived: &[(&'static str, Option<String>)],
) -> Result<Statement, postgres::Error> {
    let columns: Vec<_> = table.columns().chain(derived.iter().map(|(column, _)| *column)).collect();
    let select = format!("SELECT {} FROM {}", columns.join(", "), table.name);
    let types = queries.client.prepare(&select)?;
    let place = |(index, (column, found)): (usize, (&&str, &postgres::Column))| {
        let parameter = format!("${}::text", index + 1);
        match *found.type_() {
            Type::INT8 if *column == "session" && table.is_linked => {
                format!("(SELECT key FROM session WHERE id = {parameter})")
            }
            Type::INT8 => format!("{parameter}::bigint"),
            Type::FLOAT8 => format!("{parameter}::float8"),
            Type::BYTEA => format!("decode({parameter}, 'base64')"),
            Type::TS_VECTOR => format!("to_tsvector('skein_words', {parameter})"),
            _ => parameter,
        }
    };
    let places: Vec<_> = columns.iter().zip(types.columns()).enumerate().map(place).collect();
    let insert = format!("INSERT INTO {} ({}) VALUES ({})", table.name, columns.join(", "), places.join(", "));
    queries.client.prepare(&insert)
}

/// Returns the columns that follow from a row, which only this kind of store has. An encrypted store has no words.
fn derive_columns(table: &TableSpec, row: &[RowCell], key: Option<&StoreKey>) -> Vec<(&'static str, Option<String>)> {
    let text_at = |column: &str| match place_of(table, column).and_then(|place| row.get(place)) {
        Some(RowCell::Text(text)) => Some(text.clone()),
        _ => None,
    };
    match table.name {
        "event" => {
            let kind = text_at("kind").unwrap_or_default().into();
            let event = NewEvent { kind, body: text_at("body").unwrap_or_default(), text: text_at("text") };
            let EventFacts { role, restores } = EventFacts::of(&event);
            let indexed = event.text.as_deref().filter(|_| key.is_none()).map(index_words);
            let (words, length) = indexed.unzip();
            let (restores, length) = (restores.map(|count| count.to_string()), length.map(|count| count.to_string()));
            vec![("role", role), ("restores", restores), ("words", words), ("length", length)]
        }
        "memory" => {
            let tags: Vec<String> =
                text_at("tags").and_then(|tags| serde_json::from_str(&tags).ok()).unwrap_or_default();
            let words = text_at("text").filter(|_| key.is_none()).map(|text| memory_words(&text, &tags));
            vec![("words", words)]
        }
        _ => Vec::new(),
    }
}
