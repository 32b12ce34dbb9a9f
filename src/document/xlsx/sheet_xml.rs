//! Changes cells in the XML of a sheet and leaves the rest of its text as it is.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::document::cells::{CellRange, cell_name, parse_cell};
use crate::document::error::DocumentError;
use crate::document::xml::{TextSplices, XmlEvent, XmlReader, escape, is_xml_char};

pub(super) const EMPTY_SHEET: &str = concat!(
    "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"yes\"?>\n",
    "<worksheet xmlns=\"http://schemas.openxmlformats.org/spreadsheetml/2006/main\"><sheetData></sheetData></worksheet>"
);

/// What a cell holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CellContent {
    Empty,
    Text(String),
    /// As JSON writes it.
    Number(String),
    Boolean(bool),
    /// Without the equals sign.
    Formula(String),
}

/// The new contents of cells, by row and column, each with its style.
pub(super) type CellChanges = BTreeMap<(usize, usize), (CellContent, Option<usize>)>;

/// Where the cells of a sheet are in its text.
#[derive(Debug, Default)]
pub(super) struct SheetLayout {
    rows: Vec<RowSpan>,
    /// The tag of `sheetData`, its end, and whether it is empty.
    data: Option<(Range<usize>, usize, bool)>,
    prefix: String,
    dimension: Option<(Range<usize>, String)>,
    is_implicit: bool,
}

#[derive(Debug)]
struct RowSpan {
    index: usize,
    tag: Range<usize>,
    is_empty: bool,
    /// Where its end tag starts.
    end: usize,
    cells: Vec<CellSpan>,
}

#[derive(Debug)]
struct CellSpan {
    column: usize,
    span: Range<usize>,
    style: Option<usize>,
    has_formula: bool,
    /// The cells that share the formula of this one.
    shared: Option<CellRange>,
}

impl SheetLayout {
    pub(super) fn read(text: &str) -> Result<Self, DocumentError> {
        let mut layout = Self::default();
        let (mut next_row, mut next_column) = (0, 0);
        let mut reader = XmlReader::new(text);
        while let Some(event) = reader.next()? {
            match event {
                XmlEvent::Open(element) => match element.name() {
                    "dimension" => layout.dimension = Some((element.span.clone(), element.prefix().to_owned())),
                    "sheetData" => {
                        layout.prefix = element.prefix().to_owned();
                        layout.data = Some((element.span.clone(), element.span.end, element.is_empty));
                    }
                    "row" => {
                        let index = element.number::<usize>("r").and_then(|row| row.checked_sub(1));
                        layout.is_implicit |= index.is_none();
                        let index = index.unwrap_or(next_row);
                        (next_row, next_column) = (index + 1, 0);
                        let (tag, is_empty) = (element.span.clone(), element.is_empty);
                        let end = tag.end;
                        layout.rows.push(RowSpan { index, tag, is_empty, end, cells: Vec::new() });
                    }
                    "c" => {
                        let at = element.attribute("r").and_then(|name| parse_cell(&name));
                        layout.is_implicit |= at.is_none();
                        let column = at.map_or(next_column, |(_, column)| column);
                        next_column = column + 1;
                        let style = element.number("s");
                        let span = element.span.clone();
                        if let Some(row) = layout.rows.last_mut() {
                            row.cells.push(CellSpan { column, span, style, has_formula: false, shared: None });
                        }
                    }
                    "f" => {
                        let shared = element.attribute("ref").and_then(|range| CellRange::parse(&range).ok());
                        if let Some(cell) = layout.rows.last_mut().and_then(|row| row.cells.last_mut()) {
                            cell.has_formula = true;
                            cell.shared = shared;
                        }
                    }
                    _ => {}
                },
                XmlEvent::Close(close) => match close.name() {
                    "c" => {
                        if let Some(cell) = layout.rows.last_mut().and_then(|row| row.cells.last_mut()) {
                            cell.span.end = close.span.end.max(cell.span.end);
                        }
                    }
                    "row" => {
                        if let Some(row) = layout.rows.last_mut() {
                            row.end = close.span.start;
                        }
                    }
                    "sheetData" => {
                        if let Some((_, end, _)) = &mut layout.data {
                            *end = close.span.start;
                        }
                    }
                    _ => {}
                },
                XmlEvent::Text(_) => {}
            }
        }
        Ok(layout)
    }

    /// Returns the style of a cell. `None` if the cell does not exist or has no style.
    pub(super) fn style(&self, row: usize, column: usize) -> Option<usize> {
        self.cell(row, column).and_then(|cell| cell.style)
    }

    pub(super) fn has_formulas(&self) -> bool {
        self.rows.iter().any(|row| row.cells.iter().any(|cell| cell.has_formula))
    }

    fn cell(&self, row: usize, column: usize) -> Option<&CellSpan> {
        let row = self.rows.iter().find(|span| span.index == row)?;
        row.cells.iter().find(|cell| cell.column == column)
    }

    /// Fails if a change would take away a formula from cells that are not changed.
    fn check_shared(&self, changes: &CellChanges) -> Result<(), DocumentError> {
        for (row, column) in changes.keys() {
            let Some(shared) = self.cell(*row, *column).and_then(|cell| cell.shared) else { continue };
            let rows = shared.first.0..=shared.last.0;
            let covered = rows
                .clone()
                .all(|row| (shared.first.1..=shared.last.1).all(|column| changes.contains_key(&(row, column))));
            if !covered {
                return Err(DocumentError::request(format!(
                    "`{}` holds the formula that the cells {}:{} share; write all of them in one edit",
                    cell_name(*row, *column),
                    cell_name(shared.first.0, shared.first.1),
                    cell_name(shared.last.0, shared.last.1),
                )));
            }
        }
        Ok(())
    }
}

/// Returns the sheet with a position on every row and cell. Other texts are returned as they are.
pub(super) fn with_positions(text: String) -> Result<String, DocumentError> {
    let layout = SheetLayout::read(&text)?;
    if !layout.is_implicit {
        return Ok(text);
    }
    let mut splices = TextSplices::default();
    for row in &layout.rows {
        let tag = text.get(row.tag.clone()).unwrap_or_default();
        splices.replace(row.tag.clone(), set_attribute(tag, "r", &(row.index + 1).to_string()));
        for cell in &row.cells {
            let element = text.get(cell.span.clone()).unwrap_or_default();
            let length = element.find('>').map_or(element.len(), |end| end + 1);
            let name = cell_name(row.index, cell.column);
            let tag = set_attribute(&element[..length], "r", &name);
            splices.replace(cell.span.start..cell.span.start + length, tag);
        }
    }
    splices.apply(&text)
}

/// Returns the text of a sheet with changed cells.
pub(super) fn change_cells(text: &str, layout: &SheetLayout, changes: &CellChanges) -> Result<String, DocumentError> {
    layout.check_shared(changes)?;
    let (tag, end, is_empty) = layout.data.clone().ok_or_else(|| DocumentError::damage("a sheet has no cell data"))?;
    let prefix = layout.prefix.as_str();
    let mut splices = TextSplices::default();
    let mut new_rows: Vec<(usize, String)> = Vec::new();
    let mut rows: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for ((row, column), (content, style)) in changes {
        rows.entry(*row).or_default().push((*column, content, *style));
    }
    for (index, cells) in rows {
        let Some(row) = layout.rows.iter().find(|row| row.index == index) else {
            let cells: String = cells
                .iter()
                .map(|(column, content, style)| cell_xml(prefix, index, *column, content, *style))
                .collect();
            if !cells.is_empty() {
                new_rows.push((index, format!("<{prefix}row r=\"{}\">{cells}</{prefix}row>", index + 1)));
            }
            continue;
        };
        // The hint about the first and last column may be wrong now.
        let row_tag = without_attribute(text.get(row.tag.clone()).unwrap_or_default(), "spans");
        if row.is_empty {
            let cells: String = cells
                .iter()
                .map(|(column, content, style)| cell_xml(prefix, index, *column, content, *style))
                .collect();
            let open = row_tag.trim_end_matches("/>").trim_end().to_owned();
            splices.replace(row.tag.clone(), format!("{open}>{cells}</{prefix}row>"));
            continue;
        }
        splices.replace(row.tag.clone(), row_tag);
        for (column, content, style) in cells {
            let xml = cell_xml(prefix, index, column, content, style);
            match row.cells.iter().find(|cell| cell.column >= column) {
                Some(cell) if cell.column == column => splices.replace(cell.span.clone(), xml),
                Some(next) => splices.insert(next.span.start, xml),
                None => splices.insert(row.end, xml),
            }
        }
    }
    if is_empty {
        let rows: String = new_rows.into_iter().map(|(_, xml)| xml).collect();
        splices.replace(tag, format!("<{prefix}sheetData>{rows}</{prefix}sheetData>"));
    } else {
        for (index, xml) in new_rows {
            let next = layout.rows.iter().find(|row| row.index > index);
            splices.insert(next.map_or(end, |row| row.tag.start), xml);
        }
    }
    if let Some((span, prefix)) = &layout.dimension
        && let Some(extent) = extent(layout, changes)
    {
        splices.replace(span.clone(), format!("<{prefix}dimension ref=\"{extent}\"/>"));
    }
    splices.apply(text)
}

/// Returns the range of all cells after the changes.
fn extent(layout: &SheetLayout, changes: &CellChanges) -> Option<String> {
    let old = layout.rows.iter().flat_map(|row| row.cells.iter().map(|cell| (row.index, cell.column)));
    let all: Vec<(usize, usize)> = old.chain(changes.keys().copied()).collect();
    let rows = all.iter().map(|(row, _)| *row);
    let columns = all.iter().map(|(_, column)| *column);
    let first = cell_name(rows.clone().min()?, columns.clone().min()?);
    let last = cell_name(rows.max()?, columns.max()?);
    Some(if first == last { first } else { format!("{first}:{last}") })
}

/// Returns the element of a cell. Empty if the cell has neither content nor style.
pub(super) fn cell_xml(prefix: &str, row: usize, column: usize, content: &CellContent, style: Option<usize>) -> String {
    let name = cell_name(row, column);
    let style = style.filter(|style| *style > 0).map_or(String::new(), |style| format!(" s=\"{style}\""));
    let (kind, inside) = match content {
        CellContent::Empty if style.is_empty() => return String::new(),
        CellContent::Empty => ("", String::new()),
        CellContent::Text(text) => {
            let text = escape(&escape_string(text));
            let inside = format!("<{prefix}is><{prefix}t xml:space=\"preserve\">{text}</{prefix}t></{prefix}is>");
            (" t=\"inlineStr\"", inside)
        }
        CellContent::Number(number) => ("", format!("<{prefix}v>{number}</{prefix}v>")),
        CellContent::Boolean(value) => (" t=\"b\"", format!("<{prefix}v>{}</{prefix}v>", u8::from(*value))),
        CellContent::Formula(formula) => ("", format!("<{prefix}f>{}</{prefix}f>", escape(formula))),
    };
    if inside.is_empty() {
        return format!("<{prefix}c r=\"{name}\"{style}/>");
    }
    format!("<{prefix}c r=\"{name}\"{style}{kind}>{inside}</{prefix}c>")
}

/// Encodes characters that XML cannot hold as `_x000D_`, and text that looks like such a code.
fn escape_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, letter) in text.char_indices() {
        let looks_encoded = letter == '_'
            && text.as_bytes()[at..].get(1) == Some(&b'x')
            && text.as_bytes()[at..].get(6) == Some(&b'_')
            && text.as_bytes()[at..].get(2..6).is_some_and(|code| code.iter().all(u8::is_ascii_hexdigit));
        if looks_encoded {
            out.push_str("_x005F_");
        } else if letter == '\r' || !is_xml_char(letter) {
            out.push_str(&format!("_x{:04X}_", u32::from(letter)));
        } else {
            out.push(letter);
        }
    }
    out
}

/// Returns a start tag with an attribute set.
pub(super) fn set_attribute(tag: &str, name: &str, value: &str) -> String {
    let tag = without_attribute(tag, name);
    let (open, close) = match tag.strip_suffix("/>") {
        Some(open) => (open.trim_end(), "/>"),
        None => (tag.trim_end_matches('>').trim_end(), ">"),
    };
    format!("{open} {name}=\"{}\"{close}", escape(value))
}

/// Returns a start tag without an attribute.
pub(super) fn without_attribute(tag: &str, name: &str) -> String {
    let mut from = 0;
    while let Some(at) = tag.get(from..).and_then(|rest| rest.find(name)).map(|at| at + from) {
        from = at + name.len();
        let is_start = tag[..at].ends_with(|letter: char| letter.is_ascii_whitespace());
        let rest = tag[from..].trim_start();
        let Some(value) = rest.strip_prefix('=').map(str::trim_start).filter(|_| is_start) else { continue };
        let Some(quote) = value.chars().next().filter(|quote| matches!(quote, '"' | '\'')) else { continue };
        let Some(end) = value[1..].find(quote) else { continue };
        let after = tag.len() - value.len() + end + 2;
        return format!("{}{}", tag[..at].trim_end(), &tag[after..]);
    }
    tag.to_owned()
}
