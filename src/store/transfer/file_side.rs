//! Reads and writes all rows of the SQLite files in a data folder.
//!
//! One connection attaches all files. SQLite commits a transaction over several files at once only without a write-ahead
//! log, so the writer turns the log off. A server that uses a file prevents this. The next opening turns it on again.

use std::path::Path;

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, Transaction, TransactionBehavior};
use rusqlite::{params, params_from_iter};

use super::cell::{RowCell, row_json};
use super::sealed_cells::{open_row, seal_row};
use super::table_list::{FILES, StoreFile, TABLES, TableSpec};
use super::{RowError, RowSink, RowSource, StoreTotals, TotalsBuilder, compare, row_failure};
use crate::store::sealing::StoreKey;
use crate::store::{PATIENCE, StoreError, failure, is_busy, open};

/// The files of a data folder. A missing file has no rows.
pub(super) struct FileSource<'a> {
    pub(super) data: &'a Path,
    pub(super) key: Option<&'a StoreKey>,
}

impl RowSource for FileSource<'_> {
    fn read(&mut self, sink: &mut RowSink<'_>) -> Result<(), StoreError> {
        let exists = |file: &StoreFile| self.data.join(file.name).exists();
        for (file, schema) in FILES.iter().filter(|(file, _)| exists(file)) {
            // Migrates the file.
            drop(open(&self.data.join(file.name), schema)?);
        }
        let mut connection = attach(self.data, exists)?;
        let fails = |error: rusqlite::Error| failure(self.data, &error);
        let transaction = connection.transaction().map_err(fails)?;
        for table in TABLES.iter().filter(|table| exists(table.file)) {
            let key = self.key_of(&transaction, table.file)?;
            let mut number = 0;
            read_rows(self.data, &transaction, table, key, &mut |row| {
                number += 1;
                sink(table, row).map_err(|error| row_failure(table, number, error))
            })?;
        }
        Ok(())
    }
}

impl<'a> FileSource<'a> {
    /// Returns the key of a file. `None` if the file is not encrypted. Fails if the key does not fit.
    fn key_of(&self, connection: &Connection, file: &StoreFile) -> Result<Option<&'a StoreKey>, StoreError> {
        let name = || self.data.join(file.name).display().to_string();
        let recorded = find_key(connection, file).map_err(|error| failure(self.data, &error))?;
        match (recorded, self.key) {
            (None, _) => Ok(None),
            (Some(proof), Some(key)) if proof == key.proof() => Ok(Some(key)),
            (Some(_), Some(_)) => Err(StoreError::WrongKey { store: name() }),
            (Some(_), None) => Err(StoreError::KeyMissing { store: name() }),
        }
    }
}

/// Opens a connection with the files of a data folder for which `exists` returns true.
fn attach(data: &Path, exists: impl Fn(&StoreFile) -> bool) -> Result<Connection, StoreError> {
    let fails = |error: rusqlite::Error| failure(data, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let [(main, _), rest @ ..] = &FILES;
    let connection = if exists(main) {
        Connection::open_with_flags(data.join(main.name), flags).map_err(fails)?
    } else {
        Connection::open_in_memory().map_err(fails)?
    };
    connection.busy_timeout(PATIENCE).map_err(fails)?;
    for (file, _) in rest.iter().filter(|(file, _)| exists(file)) {
        let path = data.join(file.name).display().to_string();
        connection.execute(&format!("ATTACH ?1 AS {}", file.schema), [path]).map_err(fails)?;
    }
    connection.pragma_update(None, "foreign_keys", true).map_err(fails)?;
    Ok(connection)
}

fn find_key(connection: &Connection, file: &StoreFile) -> rusqlite::Result<Option<String>> {
    if !file.has_key {
        return Ok(None);
    }
    let find = format!("SELECT proof FROM {}.store_key LIMIT 1", file.schema);
    connection.query_row(&find, [], |row| row.get(0)).optional()
}

/// Passes the decrypted rows of a table to `each`, in order.
fn read_rows(
    data: &Path,
    connection: &Connection,
    table: &TableSpec,
    key: Option<&StoreKey>,
    each: &mut dyn FnMut(Vec<RowCell>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let fails = |error: rusqlite::Error| failure(data, &error);
    let mut statement = connection.prepare(&table.select(&format!("{}.", table.file.schema))).map_err(fails)?;
    let count = table.columns().count();
    let mut rows = statement.query([]).map_err(fails)?;
    while let Some(row) = rows.next().map_err(fails)? {
        let cells = (0..count).map(|column| row.get_ref(column).map(cell));
        let mut cells = cells.collect::<rusqlite::Result<Vec<_>>>().map_err(fails)?;
        open_row(table, &mut cells, key)?;
        each(cells)?;
    }
    Ok(())
}

fn cell(value: ValueRef<'_>) -> RowCell {
    match value {
        ValueRef::Null => RowCell::Null,
        ValueRef::Integer(number) => RowCell::Integer(number),
        ValueRef::Real(number) => RowCell::Real(number),
        ValueRef::Text(text) => RowCell::text(&String::from_utf8_lossy(text)),
        ValueRef::Blob(bytes) => RowCell::Blob(bytes.to_vec()),
    }
}

/// Writes all rows of a source to empty files, or none.
pub(super) fn write_all(
    data: &Path,
    key: Option<&StoreKey>,
    source: &mut dyn RowSource,
) -> Result<StoreTotals, StoreError> {
    let fails = |error: rusqlite::Error| failure(data, &error);
    for (file, schema) in FILES {
        drop(open(&data.join(file.name), schema)?);
    }
    let mut connection = attach(data, |_| true)?;
    for (file, _) in FILES {
        let mode = format!("PRAGMA {}.journal_mode = DELETE", file.schema);
        let is_off = match connection.query_row(&mode, [], |row| row.get::<_, String>(0)) {
            Err(error) if is_busy(&error) => false,
            mode => mode.map_err(fails)? == "delete",
        };
        if !is_off {
            let problem = "another program uses it; stop the servers and other commands of Skein".to_owned();
            return Err(StoreError::Unusable { file: data.join(file.name).display().to_string(), problem });
        }
        connection.execute_batch(&format!("PRAGMA {}.synchronous = FULL", file.schema)).map_err(fails)?;
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Exclusive).map_err(fails)?;
    let store = data.display().to_string();
    for table in TABLES {
        let any = format!("SELECT EXISTS (SELECT 1 FROM {}.{})", table.file.schema, table.name);
        if transaction.query_row(&any, [], |row| row.get(0)).map_err(fails)? {
            return Err(StoreError::Occupied { store, table: table.name.to_owned() });
        }
    }
    record_key(data, &transaction, key)?;
    let mut expected = TotalsBuilder::default();
    source.read(&mut |table, row| {
        expected.add(table, &row_json(&row));
        insert(data, &transaction, table, row, key)
    })?;
    let mut found = TotalsBuilder::default();
    for table in TABLES {
        read_rows(data, &transaction, table, key, &mut |row| {
            found.add(table, &row_json(&row));
            Ok(())
        })?;
    }
    let found = found.finish();
    compare(&store, &found, &expected.finish())?;
    transaction.commit().map_err(fails)?;
    Ok(found)
}

/// Records the key of the target. Fails if the target has another one.
fn record_key(data: &Path, transaction: &Transaction<'_>, key: Option<&StoreKey>) -> Result<(), StoreError> {
    let fails = |error: rusqlite::Error| failure(data, &error);
    for (file, _) in FILES.iter().filter(|(file, _)| file.has_key) {
        let store = || data.join(file.name).display().to_string();
        match (find_key(transaction, file).map_err(fails)?, key) {
            (None, None) => {}
            (None, Some(key)) => {
                let insert = format!("INSERT INTO {}.store_key (id, proof) VALUES (?1, ?2)", file.schema);
                transaction.execute(&insert, params![key.id(), key.proof()]).map_err(fails)?;
            }
            (Some(proof), Some(key)) if proof == key.proof() => {}
            (Some(_), Some(_)) => return Err(StoreError::WrongKey { store: store() }),
            (Some(_), None) => return Err(StoreError::KeyMissing { store: store() }),
        }
    }
    Ok(())
}

fn insert(
    data: &Path,
    transaction: &Transaction<'_>,
    table: &TableSpec,
    mut row: Vec<RowCell>,
    key: Option<&StoreKey>,
) -> Result<(), RowError> {
    seal_row(table, &mut row, key).map_err(RowError::Store)?;
    let schema = table.file.schema;
    let place = |(place, column): (usize, &str)| match column {
        "session" if table.is_linked => format!("(SELECT key FROM {schema}.session WHERE id = ?{})", place + 1),
        _ => format!("?{}", place + 1),
    };
    let columns: Vec<_> = table.columns().collect();
    let places: Vec<_> = table.columns().enumerate().map(place).collect();
    let insert = format!("INSERT INTO {schema}.{} ({}) VALUES ({})", table.name, columns.join(", "), places.join(", "));
    let fails = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig) => {
            RowError::Data(error.to_string())
        }
        _ => RowError::Store(failure(data, &error)),
    };
    let mut statement = transaction.prepare_cached(&insert).map_err(fails)?;
    statement.execute(params_from_iter(row.into_iter().map(value))).map_err(fails).map(drop)
}

fn value(cell: RowCell) -> Value {
    match cell {
        RowCell::Null => Value::Null,
        RowCell::Integer(number) => Value::Integer(number),
        RowCell::Real(number) => Value::Real(number),
        RowCell::Text(text) => Value::Text(text),
        RowCell::Blob(bytes) => Value::Blob(bytes),
    }
}
