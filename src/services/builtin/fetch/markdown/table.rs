//! Converts tables: data tables become Markdown tables, layout tables become the blocks in their cells.

use html5gum::StartTag;

use super::{MAX_OUTPUT, PageConverter, Style, attribute};

/// Maximum nesting of tables; the contents of deeper ones belong to the innermost counted one.
const MAX_TABLES: usize = 16;
const MAX_COLUMNS: usize = 60;

#[derive(Default)]
pub(super) struct Table {
    pub(super) rows: Vec<Vec<String>>,
    pub(super) in_cell: bool,
    /// The table has headings, lists or tables, which a Markdown cell cannot hold. Its cells become normal blocks.
    pub(super) layout: bool,
}

#[derive(PartialEq, Eq)]
pub(super) enum Row {
    Same,
    Next,
}

impl PageConverter {
    pub(super) fn open_table(&mut self) {
        self.not_in_a_cell();
        self.boundary();
        if self.tables.len() < MAX_TABLES {
            self.tables.push(Table::default());
        }
    }

    pub(super) fn open_cell(&mut self, tag: &StartTag<usize>) {
        self.close_cell(Row::Same);
        let Some(table) = self.tables.last_mut().filter(|table| !table.layout) else { return };
        // Text before the first cell precedes the table.
        if !table.in_cell {
            let before = self.inline.take();
            if !before.is_empty() {
                self.writer.block(&before);
            }
        }
        table.in_cell = true;
        if table.rows.is_empty() {
            table.rows.push(Vec::new());
        }
        let span = attribute(tag, "colspan").and_then(|span| span.parse::<usize>().ok()).unwrap_or(1);
        if let Some(row) = table.rows.last_mut() {
            row.extend(std::iter::repeat_n(String::new(), span.clamp(1, MAX_COLUMNS) - 1));
        }
    }

    pub(super) fn close_cell(&mut self, row: Row) {
        let Some(table) = self.tables.last_mut() else { return };
        if table.layout {
            return self.boundary();
        }
        if table.in_cell {
            table.in_cell = false;
            let text = self.inline.take().replace('\n', " ");
            if let Some(row) = table.rows.last_mut() {
                row.push(text);
            }
        }
        if row == Row::Next && table.rows.last().is_none_or(|row| !row.is_empty()) {
            table.rows.push(Vec::new());
        }
    }

    pub(super) fn close_table(&mut self) {
        self.close_cell(Row::Same);
        if let Some(table) = self.tables.pop() {
            self.boundary();
            self.write(table.rows);
        }
    }

    /// Turns the current table into a layout table. Called before content that no cell can hold.
    pub(super) fn not_in_a_cell(&mut self) {
        let Some(table) = self.tables.last_mut().filter(|table| table.in_cell && !table.layout) else { return };
        table.layout = true;
        table.in_cell = false;
        let rows = std::mem::take(&mut table.rows);
        for cell in rows.into_iter().flatten().filter(|cell| !cell.is_empty()) {
            self.writer.block(&cell);
        }
    }

    fn write(&mut self, mut rows: Vec<Vec<String>>) {
        rows.retain(|row| row.iter().any(|cell| !cell.is_empty()));
        rows.iter_mut().for_each(|row| row.truncate(MAX_COLUMNS));
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        if columns < 2 {
            rows.iter().flatten().for_each(|cell| self.writer.block(cell));
            return;
        }
        let mut text = String::new();
        for (index, row) in rows.iter().enumerate() {
            // Bounded, because a short row is padded to the length of the longest.
            if text.len() > MAX_OUTPUT {
                break;
            }
            match self.style {
                Style::Text => text.push_str(&row.join("\t")),
                Style::Markdown => {
                    text.push('|');
                    for column in 0..columns {
                        let cell = row.get(column).map_or("", String::as_str);
                        text.push_str(&format!(" {} |", cell.replace('|', "\\|")));
                    }
                    if index == 0 {
                        text.push_str("\n|");
                        text.push_str(&" --- |".repeat(columns));
                    }
                }
            }
            text.push('\n');
        }
        self.writer.block(text.trim_end());
    }
}
