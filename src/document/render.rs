//! Renders paragraphs and tables as Markdown within a limit, and parses page ranges.

use super::error::DocumentError;

/// The most text that one call returns.
const MAX_TEXT: usize = 4 << 20;
/// Longer cells are cut in tables.
const MAX_CELL: usize = 2_000;

/// Text that stops growing at its limit. A note at its end reports that.
#[derive(Debug, Default)]
pub(super) struct BoundedText {
    text: String,
    is_full: bool,
    /// In lower case; only lines with it are kept.
    search: Option<String>,
    hits: usize,
}

impl BoundedText {
    pub(super) fn new(search: Option<&str>) -> Self {
        let search = search.filter(|search| !search.is_empty()).map(str::to_lowercase);
        Self { search, ..Self::default() }
    }

    /// Returns true if more text would be dropped.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns whether `text` has the text that is searched for. True without a search.
    pub(super) fn wants(&self, text: &str) -> bool {
        self.search.as_ref().is_none_or(|search| text.to_lowercase().contains(search))
    }

    pub(super) fn is_search(&self) -> bool {
        self.search.is_some()
    }

    /// Adds a heading or another line that a search does not filter.
    pub(super) fn heading(&mut self, line: &str) {
        self.push(line);
        self.push("\n");
    }

    /// Adds a line, if it has the text that is searched for.
    pub(super) fn line(&mut self, line: &str) {
        self.line_with_label("", line);
    }

    /// Adds a line with a label that says where it is. The label is not searched.
    pub(super) fn line_with_label(&mut self, label: &str, line: &str) {
        if self.wants(line) {
            self.hits += 1;
            self.push(label);
            self.push(line);
            self.push("\n");
        }
    }

    pub(super) fn blank_line(&mut self) {
        if !self.is_search() && !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.push("\n");
        }
    }

    fn push(&mut self, text: &str) {
        if self.is_full {
            return;
        }
        if self.text.len() + text.len() > MAX_TEXT {
            self.is_full = true;
            return;
        }
        self.text.push_str(text);
    }

    /// Returns the text. A note at its end says what is missing.
    pub(super) fn finish(mut self) -> String {
        if self.is_full {
            let note = format!("\n[cut after {} MB; read less at once with `pages` or `range`]\n", MAX_TEXT >> 20);
            self.text.push_str(&note);
        }
        if let (Some(search), 0) = (&self.search, self.hits) {
            self.text.push_str(&format!("nothing contains \"{search}\"\n"));
        }
        while self.text.ends_with("\n\n") {
            self.text.pop();
        }
        self.text
    }
}

/// Adds a Markdown table. The first row is its head.
pub(super) fn push_table(out: &mut BoundedText, rows: &[Vec<String>]) {
    let width = rows.iter().map(Vec::len).max().unwrap_or(0);
    if width == 0 {
        return;
    }
    out.blank_line();
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<String> =
            (0..width).map(|at| row.get(at).map_or(String::new(), |cell| cell_text(cell))).collect();
        out.line(&format!("| {} |", cells.join(" | ")));
        if index == 0 && !out.is_search() {
            out.heading(&format!("|{}", " --- |".repeat(width)));
        }
        if out.is_full() {
            return;
        }
    }
    out.blank_line();
}

/// Returns a cell on one line.
pub(super) fn cell_text(cell: &str) -> String {
    let mut text = String::with_capacity(cell.len());
    for (count, letter) in cell.trim().chars().enumerate() {
        if count >= MAX_CELL {
            text.push('…');
            break;
        }
        match letter {
            '|' => text.push_str("\\|"),
            '\n' | '\r' | '\t' => text.push(' '),
            letter => text.push(letter),
        }
    }
    text
}

/// The pages that a caller wants, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PageRanges(Vec<(usize, usize)>);

impl PageRanges {
    /// Parses `3`, `2-5` or `1,4-6`. All pages without a text.
    pub(super) fn parse(text: Option<&str>, total: usize, noun: &str) -> Result<Self, DocumentError> {
        let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else {
            return Ok(Self(vec![(1, total)]));
        };
        let wrong = || DocumentError::request(format!("`pages` is `{text}`; write `3`, `2-5` or `1,4-6`"));
        let mut ranges = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: usize = first.trim().parse().map_err(|_| wrong())?;
            let last: usize = if last.trim().is_empty() { total } else { last.trim().parse().map_err(|_| wrong())? };
            if first == 0 || first > last {
                return Err(wrong());
            }
            if first > total {
                return Err(DocumentError::request(format!("there is no {noun} {first}; the file has {total}")));
            }
            ranges.push((first, last.min(total)));
        }
        Ok(Self(ranges))
    }

    pub(super) fn contains(&self, page: usize) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&page))
    }
}
