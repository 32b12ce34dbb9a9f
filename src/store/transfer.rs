//! Moves everything between stores, directly or through a file.
//!
//! Source and target compute the same checksum over all rows, each from what it has stored. It covers decrypted texts, so
//! it is the same with and without encryption, and it does not cover indexes, which the target builds itself.
//!
//! Invariant: a target gets all rows or none. It is empty before, one transaction writes the rows, and the transaction
//! is committed only after the target's own checksum is equal to the source's.

mod cell;
mod database_side;
mod export_file;
mod file_side;
mod sealed_cells;
mod table_list;

use std::fmt;
use std::io::{BufRead, Write};

use sha2::{Digest as _, Sha256};

use super::{StoreError, StorePlace};
use cell::RowCell;
use database_side::DatabaseSource;
#[cfg(any(test, fuzzing))]
pub use export_file::file_of_rows;
use export_file::{ExportReader, ExportWriter};
use file_side::FileSource;
use table_list::{TABLES, TableSpec};

/// The number of rows of each table, and the SHA-256 of all rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreTotals {
    pub counts: Vec<(&'static str, u64)>,
    /// In hexadecimal.
    pub checksum: String,
}

impl fmt::Display for StoreTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (table, count) in &self.counts {
            write!(f, "{table} {count}, ")?;
        }
        write!(f, "checksum {}", self.checksum)
    }
}

/// Writes everything in a store to a file. Texts are not encrypted in it. Fails if the key of the place does not fit.
pub fn export_store(place: &StorePlace, output: &mut dyn Write) -> Result<StoreTotals, StoreError> {
    let mut writer = ExportWriter::begin(output)?;
    let mut sink = |table: &'static TableSpec, row: Vec<RowCell>| writer.write(table, &row).map_err(RowError::Store);
    source_of(place).read(&mut sink)?;
    writer.finish()
}

/// Writes everything in an exported file to an empty store. `name` names the file in errors. `open` opens it; it is read
/// twice, and the first time only checked. Fails without a change of rows if the file is damaged or the store is not
/// empty.
pub fn import_store<R: BufRead>(
    name: &str,
    open: impl Fn() -> std::io::Result<R>,
    place: &StorePlace,
) -> Result<StoreTotals, StoreError> {
    let unreadable =
        |error: std::io::Error| StoreError::ExportUnreadable { file: name.to_owned(), problem: error.to_string() };
    ExportReader::new(name, open().map_err(unreadable)?).read(&mut |_, _| Ok(()))?;
    write_to(place, &mut ExportReader::new(name, open().map_err(unreadable)?))
}

/// Copies everything in a store to an empty one. Fails without a change of the target's rows. The tables of both are
/// migrated first.
pub fn migrate_store(source: &StorePlace, target: &StorePlace) -> Result<StoreTotals, StoreError> {
    write_to(target, &mut *source_of(source))
}

fn source_of(place: &StorePlace) -> Box<dyn RowSource + '_> {
    match place.address() {
        Some(address) => Box::new(DatabaseSource { address, key: place.key() }),
        None => Box::new(FileSource { data: place.data(), key: place.key() }),
    }
}

fn write_to(place: &StorePlace, source: &mut dyn RowSource) -> Result<StoreTotals, StoreError> {
    match place.address() {
        Some(address) => database_side::write_all(address, place.key(), source),
        None => file_side::write_all(place.data(), place.key(), source),
    }
}

/// Receives decrypted rows, table by table in the order of [`TABLES`].
type RowSink<'a> = dyn FnMut(&'static TableSpec, Vec<RowCell>) -> Result<(), RowError> + 'a;

/// Why a row cannot be written.
#[derive(Debug)]
enum RowError {
    /// The row itself is wrong.
    Data(String),
    Store(StoreError),
}

/// Reads all rows of a store or a file.
trait RowSource {
    /// Passes each row to `sink`. Stops at the first error.
    fn read(&mut self, sink: &mut RowSink<'_>) -> Result<(), StoreError>;
}

/// Returns the error of a row of a store, which has no line.
fn row_failure(table: &TableSpec, number: u64, error: RowError) -> StoreError {
    match error {
        RowError::Data(problem) => StoreError::Failed(format!("row {number} of the table {}: {problem}", table.name)),
        RowError::Store(error) => error,
    }
}

/// Counts rows and hashes them in order.
struct TotalsBuilder {
    counts: Vec<u64>,
    hash: Sha256,
}

impl Default for TotalsBuilder {
    fn default() -> Self {
        Self { counts: vec![0; TABLES.len()], hash: Sha256::new() }
    }
}

impl TotalsBuilder {
    /// Adds a row, in the form that a file has.
    fn add(&mut self, table: &TableSpec, row: &str) {
        if let Some(count) = TABLES.iter().position(|known| known.name == table.name) {
            self.counts[count] += 1;
        }
        self.hash.update(table.name);
        self.hash.update([0_u8]);
        self.hash.update(row);
        self.hash.update([b'\n']);
    }

    /// Returns the beginning of the hash of all rows so far.
    fn mark(&self) -> String {
        hex(&self.hash.clone().finalize()[..8])
    }

    fn finish(&self) -> StoreTotals {
        let counts = TABLES.iter().map(|table| table.name).zip(self.counts.iter().copied()).collect();
        StoreTotals { counts, checksum: hex(&self.hash.clone().finalize()) }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fails if the target has stored something else than the source has.
fn compare(store: &str, found: &StoreTotals, expected: &StoreTotals) -> Result<(), StoreError> {
    if found == expected {
        return Ok(());
    }
    let (found, expected) = (found.to_string(), expected.to_string());
    Err(StoreError::Different { store: store.to_owned(), found, expected })
}
