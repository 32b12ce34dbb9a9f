//! Cell references, ranges and the rendering of cells, for every kind of spreadsheet.

use std::collections::BTreeMap;

use super::error::DocumentError;
use super::render::{BoundedText, cell_text};

/// The size of a sheet in the XLSX format.
pub(super) const MAX_ROWS: usize = 1 << 20;
pub(super) const MAX_COLUMNS: usize = 1 << 14;
/// The most cells that one call reads.
const MAX_CELLS: usize = 500_000;
/// The most cells of a table that is returned as rows, empty ones included.
const MAX_TABLE_CELLS: usize = 2_000_000;
/// A table wider than this is shown as one line per row.
const MAX_TABLE_WIDTH: usize = 60;

/// A rectangle of cells; rows and columns count from 0, ends are included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CellRange {
    pub(super) first: (usize, usize),
    pub(super) last: (usize, usize),
}

impl CellRange {
    /// Parses `B2:D20`, `B2`, `C:D` or `3:9`.
    pub(super) fn parse(text: &str) -> Result<Self, DocumentError> {
        let wrong = || DocumentError::request(format!("`{text}` is no range; write `B2:D20`, `B2`, `C:D` or `3:9`"));
        let plain = text.trim().replace('$', "");
        let (from, to) = plain.split_once(':').unwrap_or((&plain, &plain));
        let (from, to) = (parse_corner(from).ok_or_else(wrong)?, parse_corner(to).ok_or_else(wrong)?);
        let pair = |a: Option<usize>, b: Option<usize>, max: usize| match (a, b) {
            (Some(a), Some(b)) => Some((a.min(b), a.max(b))),
            (None, None) => Some((0, max - 1)),
            (Some(_), None) | (None, Some(_)) => None,
        };
        let rows = pair(from.0, to.0, MAX_ROWS).ok_or_else(wrong)?;
        let columns = pair(from.1, to.1, MAX_COLUMNS).ok_or_else(wrong)?;
        Ok(Self { first: (rows.0, columns.0), last: (rows.1, columns.1) })
    }

    pub(super) fn contains(&self, row: usize, column: usize) -> bool {
        (self.first.0..=self.last.0).contains(&row) && (self.first.1..=self.last.1).contains(&column)
    }
}

/// Parses one corner of a range: row and column, each optional.
fn parse_corner(text: &str) -> Option<(Option<usize>, Option<usize>)> {
    let letters = text.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(text.len());
    let (column, row) = text.split_at(letters);
    let column = if column.is_empty() { None } else { Some(column_index(column)?) };
    let row = if row.is_empty() {
        None
    } else {
        Some(row.parse::<usize>().ok().filter(|row| (1..=MAX_ROWS).contains(row))? - 1)
    };
    (column.is_some() || row.is_some()).then_some((row, column))
}

/// Parses a reference to one cell, such as `B2`. Returns row and column.
pub(super) fn parse_cell(text: &str) -> Option<(usize, usize)> {
    match parse_corner(&text.trim().replace('$', ""))? {
        (Some(row), Some(column)) => Some((row, column)),
        _ => None,
    }
}

/// Formats a cell reference, such as `B2`.
pub(super) fn cell_name(row: usize, column: usize) -> String {
    format!("{}{}", column_name(column), row + 1)
}

/// Formats a column, such as `AB`.
pub(super) fn column_name(mut column: usize) -> String {
    let mut letters = Vec::new();
    loop {
        letters.push(char::from(b'A' + u8::try_from(column % 26).unwrap_or(0)));
        if column < 26 {
            break;
        }
        column = column / 26 - 1;
    }
    letters.iter().rev().collect()
}

fn column_index(letters: &str) -> Option<usize> {
    let mut index = 0usize;
    for letter in letters.bytes() {
        index = index.checked_mul(26)?.checked_add(usize::from(letter.to_ascii_uppercase() - b'A') + 1)?;
        if index > MAX_COLUMNS {
            return None;
        }
    }
    index.checked_sub(1)
}

/// The cells of a sheet that a caller wants.
#[derive(Debug)]
pub(super) struct CellWindow {
    range: Option<CellRange>,
    rows: BTreeMap<usize, BTreeMap<usize, String>>,
    count: usize,
    is_cut: bool,
}

impl CellWindow {
    pub(super) fn new(range: Option<CellRange>) -> Self {
        Self { range, rows: BTreeMap::new(), count: 0, is_cut: false }
    }

    /// Returns whether the caller wants this cell.
    pub(super) fn wants(&self, row: usize, column: usize) -> bool {
        self.range.is_none_or(|range| range.contains(row, column))
    }

    pub(super) fn put(&mut self, row: usize, column: usize, text: String) {
        if text.is_empty() || !self.wants(row, column) {
            return;
        }
        if self.count >= MAX_CELLS {
            self.is_cut = true;
            return;
        }
        self.count += 1;
        self.rows.entry(row).or_default().insert(column, text);
    }
}

impl CellWindow {
    /// Returns the cells as rows of equal length, from the first to the last column with a cell, without empty rows.
    /// Fails if they are too many.
    pub(super) fn into_rows(self) -> Result<Vec<Vec<String>>, DocumentError> {
        let columns = self.rows.values().flat_map(BTreeMap::keys);
        let Some(first) = columns.clone().min().copied() else { return Ok(Vec::new()) };
        let width = columns.max().copied().unwrap_or(first) - first + 1;
        // A few cells that are far apart span many empty ones.
        if self.is_cut || self.rows.len().saturating_mul(width) > MAX_TABLE_CELLS {
            return Err(DocumentError::too_large(format!(
                "the table has {} rows and {width} columns{}; give a `range`",
                self.rows.len(),
                if self.is_cut { " or more" } else { "" }
            )));
        }
        let row = |mut cells: BTreeMap<usize, String>| {
            (first..first + width).map(|column| cells.remove(&column).unwrap_or_default()).collect()
        };
        Ok(self.rows.into_values().map(row).collect())
    }
}

/// Adds the cells as a table with row numbers and column letters. A search adds one line per cell instead.
pub(super) fn render_cells(out: &mut BoundedText, window: &CellWindow) {
    let columns = window.rows.values().flat_map(BTreeMap::keys);
    let Some(first) = columns.clone().min().copied() else {
        if !out.is_search() {
            out.heading("(no cells)");
        }
        return;
    };
    let last = columns.max().copied().unwrap_or(first);
    if out.is_search() || last - first >= MAX_TABLE_WIDTH {
        for (row, cells) in &window.rows {
            for (column, cell) in cells {
                out.line_with_label(&format!("{}: ", cell_name(*row, *column)), &cell_text(cell));
            }
            if out.is_full() {
                return;
            }
        }
    } else {
        let head: Vec<String> = (first..=last).map(column_name).collect();
        out.heading(&format!("| | {} |", head.join(" | ")));
        out.heading(&format!("|{}", " --- |".repeat(head.len() + 1)));
        for (row, cells) in &window.rows {
            let cell = |column: usize| cells.get(&column).map_or(String::new(), |cell| cell_text(cell));
            let cells: Vec<String> = (first..=last).map(cell).collect();
            out.heading(&format!("| {} | {} |", row + 1, cells.join(" | ")));
            if out.is_full() {
                return;
            }
        }
    }
    if window.is_cut {
        out.heading(&format!("[cut after {MAX_CELLS} cells; read less at once with `range`]"));
    }
}
