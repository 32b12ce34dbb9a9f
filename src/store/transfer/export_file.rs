//! The file of an export: lines of JSON, first the format, then the rows, and last the totals.
//!
//! Each row has a mark, the beginning of the hash of all rows up to it. So a reader names the first line that was
//! changed, removed or moved.

use std::io::{BufRead, Write};

use serde::Deserialize;
use serde_json::{Value, json};

use super::cell::{RowCell, row_from_json, row_json};
use super::table_list::{TABLES, TableSpec};
use super::{RowError, RowSink, RowSource, StoreTotals, TotalsBuilder};
use crate::store::StoreError;
use crate::store::sessions::is_plain;

/// The version of the format.
const FORMAT: u64 = 1;

/// Writes rows to a file.
pub(super) struct ExportWriter<'a> {
    output: &'a mut dyn Write,
    totals: TotalsBuilder,
}

impl<'a> ExportWriter<'a> {
    /// Writes the first line.
    pub(super) fn begin(output: &'a mut dyn Write) -> Result<Self, StoreError> {
        let mut writer = Self { output, totals: TotalsBuilder::default() };
        writer.line(&json!({"skein_store": FORMAT, "program": env!("CARGO_PKG_VERSION"), "tables": columns_json()}))?;
        Ok(writer)
    }

    pub(super) fn write(&mut self, table: &TableSpec, row: &[RowCell]) -> Result<(), StoreError> {
        let row = row_json(row);
        self.totals.add(table, &row);
        // The row is JSON already.
        let line = format!("{{\"table\":{},\"row\":{row},\"mark\":\"{}\"}}\n", json!(table.name), self.totals.mark());
        self.output.write_all(line.as_bytes()).map_err(unwritten)
    }

    /// Writes the last line.
    pub(super) fn finish(mut self) -> Result<StoreTotals, StoreError> {
        let totals = self.totals.finish();
        self.line(&json!({"end": totals_json(&totals)}))?;
        self.output.flush().map_err(unwritten)?;
        Ok(totals)
    }

    fn line(&mut self, line: &Value) -> Result<(), StoreError> {
        self.output.write_all(format!("{line}\n").as_bytes()).map_err(unwritten)
    }
}

fn unwritten(error: std::io::Error) -> StoreError {
    StoreError::Failed(format!("the file cannot be written: {error}"))
}

fn columns_json() -> Value {
    let columns = |table: &TableSpec| json!(table.columns().collect::<Vec<_>>());
    Value::Object(TABLES.iter().map(|table| (table.name.to_owned(), columns(table))).collect())
}

fn totals_json(totals: &StoreTotals) -> Value {
    let counts = totals.counts.iter().map(|(table, count)| ((*table).to_owned(), json!(count))).collect();
    json!({"counts": Value::Object(counts), "checksum": totals.checksum})
}

#[derive(Deserialize)]
struct FirstLine {
    skein_store: u64,
    program: String,
    tables: Value,
}

#[derive(Deserialize)]
struct RowLine {
    table: String,
    row: Vec<Value>,
    mark: String,
}

#[derive(Deserialize)]
struct LastLine {
    end: Value,
}

/// Reads the rows of a file, and checks each line.
pub(super) struct ExportReader<'a, R> {
    name: &'a str,
    input: R,
    line: u64,
    totals: TotalsBuilder,
}

impl<'a, R: BufRead> ExportReader<'a, R> {
    pub(super) fn new(name: &'a str, input: R) -> Self {
        Self { name, input, line: 0, totals: TotalsBuilder::default() }
    }

    fn damage(&self, problem: impl Into<String>) -> StoreError {
        StoreError::Record { file: self.name.to_owned(), line: self.line, problem: problem.into() }
    }

    /// Returns the next line. Fails at the end of the file.
    fn next_line(&mut self) -> Result<String, StoreError> {
        let mut bytes = Vec::new();
        self.line += 1;
        let read = self.input.read_until(b'\n', &mut bytes);
        read.map_err(|error| self.damage(format!("it cannot be read: {error}")))?;
        if bytes.pop() != Some(b'\n') {
            return Err(self.damage("the file ends here, before its last line"));
        }
        String::from_utf8(bytes).map_err(|_| self.damage("it is no text"))
    }

    fn read_format(&mut self) -> Result<(), StoreError> {
        let line = self.next_line()?;
        let first = serde_json::from_str::<FirstLine>(&line);
        let FirstLine { skein_store, program, tables } =
            first.map_err(|_| self.damage("it is not the first line of an exported store"))?;
        if skein_store != FORMAT || tables != columns_json() {
            return Err(
                self.damage(format!("skein {program} wrote the file with other tables; import it with that one"))
            );
        }
        Ok(())
    }

    /// Checks a line with a row.
    fn read_row(&mut self, line: &str) -> Result<(&'static TableSpec, Vec<RowCell>), StoreError> {
        let row = serde_json::from_str::<RowLine>(line);
        let RowLine { table, row, mark } = row.map_err(|_| self.damage("it is no row of a store"))?;
        let table = TABLES.iter().find(|known| known.name == table);
        let table = table.ok_or_else(|| self.damage("it names a table that does not exist"))?;
        let row = row_from_json(&row).filter(|row| row.len() == table.columns().count());
        let row = row.ok_or_else(|| self.damage(format!("its values are none of the table {}", table.name)))?;
        if let Some(id) = table.session_ids(&row).find(|id| !is_plain(id)) {
            return Err(self.damage(format!("{} is no id of a session", Value::from(id))));
        }
        self.totals.add(table, &row_json(&row));
        if self.totals.mark() != mark {
            return Err(self.damage("its content was changed, or lines before it are missing or moved"));
        }
        Ok((table, row))
    }

    /// Checks the last line.
    fn read_end(&mut self, end: &Value) -> Result<(), StoreError> {
        if *end != totals_json(&self.totals.finish()) {
            return Err(self.damage("its counts or its checksum are not those of the lines before"));
        }
        let rest = self.input.fill_buf().map(|rest| !rest.is_empty());
        match rest {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.line += 1;
                Err(self.damage("it follows the last line"))
            }
            Err(error) => Err(self.damage(format!("the file cannot be read to its end: {error}"))),
        }
    }
}

impl<R: BufRead> RowSource for ExportReader<'_, R> {
    fn read(&mut self, sink: &mut RowSink<'_>) -> Result<(), StoreError> {
        self.read_format()?;
        loop {
            let line = self.next_line()?;
            if let Ok(LastLine { end }) = serde_json::from_str(&line) {
                return self.read_end(&end);
            }
            let (table, row) = self.read_row(&line)?;
            sink(table, row).map_err(|error| match error {
                RowError::Data(problem) => self.damage(problem),
                RowError::Store(error) => error,
            })?;
        }
    }
}

/// Returns the file of an export with these rows, for the fuzzer. Each line is the name of a table and a list of JSON;
/// other lines are left out.
#[cfg(any(test, fuzzing))]
pub fn file_of_rows(lines: &str) -> Option<Vec<u8>> {
    let mut file = Vec::new();
    let mut writer = ExportWriter::begin(&mut file).ok()?;
    for (name, row) in lines.lines().filter_map(|line| line.split_once(' ')) {
        let table = TABLES.iter().find(|table| table.name == name);
        let row = serde_json::from_str::<Vec<Value>>(row).ok().and_then(|row| row_from_json(&row));
        if let (Some(table), Some(row)) = (table, row) {
            writer.write(table, &row).ok()?;
        }
    }
    writer.finish().ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exported() -> String {
        let mut file = Vec::new();
        let mut writer = ExportWriter::begin(&mut file).unwrap();
        let login = TABLES.iter().find(|table| table.name == "login").unwrap();
        for hash in [1, 2, 3] {
            let row = [RowCell::Blob(vec![hash]), RowCell::text("token"), RowCell::text("csrf"), RowCell::Integer(5)];
            writer.write(login, &row).unwrap();
        }
        writer.finish().unwrap();
        String::from_utf8(file).unwrap()
    }

    /// Returns the number of rows, or the line of the first damage.
    fn read(file: &str) -> Result<usize, u64> {
        let mut rows = 0;
        let read = ExportReader::new("file", file.as_bytes()).read(&mut |_, _| {
            rows += 1;
            Ok(())
        });
        match read {
            Ok(()) => Ok(rows),
            Err(StoreError::Record { line, .. }) => Err(line),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn the_first_damaged_line_is_named() {
        let whole = exported();
        assert_eq!(read(&whole), Ok(3));
        let lines: Vec<_> = whole.lines().collect();
        let join = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        for (damage, file, line) in [
            ("empty", String::new(), 1),
            ("no format", join(&lines[1..]), 1),
            ("another version", whole.replace("\"skein_store\":1", "\"skein_store\":2"), 1),
            ("a changed value", whole.replacen("csrf", "CSRF", 2).replacen("CSRF", "csrf", 1), 2),
            ("no JSON", join(&[lines[0], lines[1], "{", lines[3], lines[4]]), 3),
            ("an unknown table", whole.replacen("\"table\":\"login\"", "\"table\":\"other\"", 1), 2),
            ("a missing value", whole.replacen(",5]", "]", 1), 2),
            ("a missing row", join(&[lines[0], lines[1], lines[3], lines[4]]), 3),
            ("a missing last row", join(&[lines[0], lines[1], lines[2], lines[4]]), 4),
            ("moved rows", join(&[lines[0], lines[2], lines[1], lines[3], lines[4]]), 2),
            ("a repeated row", join(&[lines[0], lines[1], lines[1], lines[2], lines[3], lines[4]]), 3),
            ("no end", join(&lines[..4]), 5),
            ("cut in a line", whole[..whole.len() - 9].to_owned(), 5),
            ("another end", whole.replace("\"login\":3", "\"login\":4"), 5),
            ("lines after the end", format!("{whole}\n"), 6),
        ] {
            assert_eq!(read(&file), Err(line), "{damage}");
        }
    }

    /// Folders have the names of sessions, and removing a session removes its folder.
    #[test]
    fn a_session_has_no_path_as_its_id() {
        let file = |id: &str, parent: &str, event: &str| {
            let rest = r#"null,"/tmp","[]","a","m",null,null,"title",5,6,1,2,0,{"real":"0.5"},1,0]"#;
            let rows =
                format!("session [{id},\"local\",{parent},{rest}\nevent [{event},1,5,\"user\",\"{{}}\",\"text\"]");
            String::from_utf8(file_of_rows(&rows).unwrap()).unwrap()
        };
        assert_eq!(read(&file("\"s1\"", "null", "\"s1\"")), Ok(2));
        assert_eq!(read(&file("\"/home/me\"", "null", "\"s1\"")), Err(2));
        assert_eq!(read(&file("\"s1\"", "\"..\"", "\"s1\"")), Err(2));
        assert_eq!(read(&file("\"s1\"", "null", "\"a/b\"")), Err(3));
    }
}
