//! Decrypts and encrypts the cells of a row, in the same form as the stores do.

use super::cell::RowCell;
use super::table_list::TableSpec;
use crate::store::StoreError;
use crate::store::sealing::StoreKey;
use crate::store::sessions::{open_body, seal_body};

/// Decrypts a row that a store has.
pub(super) fn open_row(table: &TableSpec, row: &mut [RowCell], key: Option<&StoreKey>) -> Result<(), StoreError> {
    let Some(key) = key else { return Ok(()) };
    for (place, column) in table.columns().enumerate().filter(|(_, column)| table.is_sealed(column)) {
        let name = format!("{}.{column}", table.name);
        let opened = match &row[place] {
            RowCell::Text(body) if name == "event.body" => {
                let (body, text) = open_body(key, body)?;
                set_text(table, row, text);
                RowCell::text(&body)
            }
            // The tags are one encrypted element of a list.
            RowCell::Text(tags) if name == "memory.tags" => {
                let damaged = |_| StoreError::Sealed { column: name.clone(), problem: "it is damaged".to_owned() };
                let [sealed]: [String; 1] = serde_json::from_str(tags).map_err(damaged)?;
                RowCell::Text(key.open_text(&name, &sealed)?)
            }
            RowCell::Text(text) => RowCell::text(&key.open_text(&name, text)?),
            RowCell::Blob(bytes) => {
                let damaged = || StoreError::Sealed { column: name.clone(), problem: "it is not encrypted".to_owned() };
                let sealed = std::str::from_utf8(bytes).map_err(|_| damaged())?;
                RowCell::Blob(key.open(&name, sealed)?)
            }
            other => other.clone(),
        };
        row[place] = opened;
    }
    Ok(())
}

/// Encrypts a row for a store.
pub(super) fn seal_row(table: &TableSpec, row: &mut [RowCell], key: Option<&StoreKey>) -> Result<(), StoreError> {
    let Some(key) = key else { return Ok(()) };
    for (place, column) in table.columns().enumerate().filter(|(_, column)| table.is_sealed(column)) {
        let name = format!("{}.{column}", table.name);
        let sealed = match &row[place] {
            RowCell::Text(body) if name == "event.body" => {
                let sealed = seal_body(key, body, text_of(table, row))?;
                set_text(table, row, None);
                RowCell::Text(sealed)
            }
            RowCell::Text(tags) if name == "memory.tags" => {
                let sealed = key.seal(&name, tags.as_bytes())?;
                RowCell::Text(serde_json::to_string(&[sealed]).unwrap_or_default())
            }
            RowCell::Text(text) => RowCell::Text(key.seal(&name, text.as_bytes())?),
            RowCell::Blob(bytes) => RowCell::Blob(key.seal(&name, bytes)?.into_bytes()),
            other => other.clone(),
        };
        row[place] = sealed;
    }
    Ok(())
}

fn text_of<'a>(table: &TableSpec, row: &'a [RowCell]) -> Option<&'a str> {
    match row.get(place_of(table, "text")?) {
        Some(RowCell::Text(text)) => Some(text),
        _ => None,
    }
}

fn set_text(table: &TableSpec, row: &mut [RowCell], text: Option<String>) {
    if let Some(cell) = place_of(table, "text").and_then(|place| row.get_mut(place)) {
        *cell = text.map_or(RowCell::Null, |text| RowCell::text(&text));
    }
}

/// Returns the place of a column in the rows of a table. `None` if it has no such column.
pub(super) fn place_of(table: &TableSpec, wanted: &str) -> Option<usize> {
    table.columns().position(|column| column == wanted)
}

#[cfg(test)]
mod tests {
    use super::super::table_list::TABLES;
    use super::*;

    #[test]
    fn rows_of_every_table_come_back_and_show_no_sealed_text() {
        let key: StoreKey = "7".repeat(64).parse().unwrap();
        for table in TABLES {
            let cell = |column: &str| match column {
                "value" => RowCell::Blob(b"hush".to_vec()),
                "tags" => RowCell::text("[\"hush\"]"),
                column if table.is_sealed(column) || column == "text" => RowCell::text("hush"),
                _ => RowCell::Integer(7),
            };
            let row: Vec<_> = table.columns().map(cell).collect();
            let mut moved = row.clone();
            seal_row(table, &mut moved, Some(&key)).unwrap();
            assert!(!format!("{moved:?}").contains("hush"), "{}", table.name);
            open_row(table, &mut moved, Some(&key)).unwrap();
            assert_eq!(moved, row, "{}", table.name);
        }
    }
}
