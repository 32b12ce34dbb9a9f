//! Reads workbooks in the XLSX format: sheets, values as people see them, and formulas.

mod edit;
mod formats;
mod formula;
mod sheet_xml;
mod styles;
mod template;

use std::collections::HashMap;

use super::archive::OfficeArchive;
use super::cells::{CellRange, CellWindow, parse_cell, render_cells};
use super::error::DocumentError;
use super::media;
use super::relations::{main_part, relations};
use super::render::BoundedText;
use super::request::{DocumentContent, DocumentView, ReadRequest, TableRequest};
use super::xml::{XmlElement, XmlEvent, XmlReader, decode};
pub(super) use edit::update;
use formats::{NumberFormats, read_formats};
use formula::shift_formula;
pub(super) use template::write;

/// A workbook's sheets and what its cells refer to.
struct WorkbookParts {
    part: String,
    sheets: Vec<SheetEntry>,
    has_1904_dates: bool,
}

#[derive(Debug, Clone)]
struct SheetEntry {
    name: String,
    part: String,
    is_hidden: bool,
    id: u32,
}

impl WorkbookParts {
    fn read(archive: &mut OfficeArchive<'_>) -> Result<Self, DocumentError> {
        let part = main_part(archive)?.ok_or_else(|| DocumentError::damage("the package names no workbook"))?;
        let targets: HashMap<String, String> =
            relations(archive, &part)?.into_iter().map(|relation| (relation.id, relation.target)).collect();
        let text = decode(archive.require(&part)?)?;
        let mut parts = Self { part, sheets: Vec::new(), has_1904_dates: false };
        let mut reader = XmlReader::new(&text);
        while let Some(event) = reader.next()? {
            let XmlEvent::Open(element) = event else { continue };
            match element.name() {
                "workbookPr" => {
                    let value = element.attribute("date1904");
                    parts.has_1904_dates = value.is_some_and(|value| value == "1" || value == "true");
                }
                "sheet" => {
                    // Chart sheets have another prefix-less id in old files; they have no cells.
                    let id = element.attribute_with_prefix("r:id").or_else(|| relation_id(&element));
                    let target = id.and_then(|id| targets.get(&id));
                    if let (Some(name), Some(target)) = (element.attribute("name"), target) {
                        let is_hidden = element.attribute("state").is_some_and(|state| state != "visible");
                        let id = element.number("sheetId").unwrap_or(0);
                        parts.sheets.push(SheetEntry { name, part: target.clone(), is_hidden, id });
                    }
                }
                _ => {}
            }
        }
        Ok(parts)
    }

    /// Finds a sheet by name, in any case. Fails with the names if there is none.
    fn find(&self, name: &str) -> Result<&SheetEntry, DocumentError> {
        let sheet = self.sheets.iter().find(|sheet| sheet.name == name);
        let sheet = sheet.or_else(|| self.sheets.iter().find(|sheet| sheet.name.to_lowercase() == name.to_lowercase()));
        sheet.ok_or_else(|| {
            let names: Vec<String> = self.sheets.iter().take(50).map(|sheet| format!("`{}`", sheet.name)).collect();
            DocumentError::request(format!("there is no sheet `{name}`; the sheets are {}", names.join(", ")))
        })
    }
}

/// Finds the relation id of a sheet whose document uses another prefix than `r`.
fn relation_id(element: &XmlElement<'_>) -> Option<String> {
    element.attribute("id")
}

pub(super) fn read(archive: &mut OfficeArchive<'_>, request: &ReadRequest) -> Result<DocumentContent, DocumentError> {
    if request.what == DocumentView::Images {
        return media::read(archive, "xl/media/");
    }
    let workbook = WorkbookParts::read(archive)?;
    let strings = string_table(archive, &workbook.part)?;
    let formats = read_formats(archive, &workbook.part, workbook.has_1904_dates)?;
    let range = request.range.as_deref().map(CellRange::parse).transpose()?;
    let sheets: Vec<&SheetEntry> = match &request.sheet {
        Some(name) => vec![workbook.find(name)?],
        None => workbook.sheets.iter().collect(),
    };
    let mut out = BoundedText::new(request.search.as_deref());
    for sheet in sheets {
        let text = decode(archive.require(&sheet.part)?)?;
        let hidden = if sheet.is_hidden { ", hidden" } else { "" };
        let context = SheetContext { strings: &strings, formats: &formats, what: request.what };
        let (window, extent) = context.cells(&text, range)?;
        out.blank_line();
        out.heading(&format!("## {} ({extent}{hidden})", sheet.name));
        if request.what != DocumentView::Outline {
            render_cells(&mut out, &window);
        }
        if out.is_full() {
            break;
        }
    }
    Ok(DocumentContent { text: out.finish(), images: Vec::new() })
}

/// What a formula shows that has no value.
pub(super) const CELL_ERRORS: [&str; 7] = ["#N/A", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#NULL!"];

/// Returns the rows of one sheet as people see them. Errors of formulas become empty cells.
pub(super) fn read_rows(
    archive: &mut OfficeArchive<'_>,
    request: &TableRequest,
) -> Result<Vec<Vec<String>>, DocumentError> {
    let workbook = WorkbookParts::read(archive)?;
    let strings = string_table(archive, &workbook.part)?;
    let formats = read_formats(archive, &workbook.part, workbook.has_1904_dates)?;
    let range = request.range.as_deref().map(CellRange::parse).transpose()?;
    let sheets: Vec<&SheetEntry> = match &request.sheet {
        Some(name) => vec![workbook.find(name)?],
        None => workbook.sheets.iter().filter(|sheet| !sheet.is_hidden).collect(),
    };
    let context = SheetContext { strings: &strings, formats: &formats, what: DocumentView::Text };
    for sheet in sheets {
        let text = decode(archive.require(&sheet.part)?)?;
        let mut rows = context.cells(&text, range)?.0.into_rows()?;
        for cell in rows.iter_mut().flatten().filter(|cell| CELL_ERRORS.contains(&cell.as_str())) {
            cell.clear();
        }
        if !rows.is_empty() {
            return Ok(rows);
        }
    }
    let names: Vec<String> = workbook.sheets.iter().take(50).map(|sheet| format!("`{}`", sheet.name)).collect();
    let problem = format!("there are no cells; give another `sheet` or `range`. The sheets are {}", names.join(", "));
    Err(DocumentError::request(problem))
}

struct SheetContext<'a> {
    strings: &'a [String],
    formats: &'a NumberFormats,
    what: DocumentView,
}

/// A cell while its element is read.
#[derive(Default)]
struct PendingCell {
    row: usize,
    column: usize,
    kind: String,
    style: usize,
    value: String,
    inline: String,
    formula: Option<String>,
}

impl SheetContext<'_> {
    /// Returns the cells that are wanted, and a text about the size of the sheet.
    fn cells(&self, text: &str, range: Option<CellRange>) -> Result<(CellWindow, String), DocumentError> {
        let mut window = CellWindow::new(range);
        let mut shared: HashMap<String, (usize, usize, String)> = HashMap::new();
        let (mut row, mut column) = (0usize, 0usize);
        let (mut cells, mut formulas) = (0usize, 0usize);
        let mut bounds: Option<[usize; 4]> = None;
        let mut cell = PendingCell::default();
        let mut next_row = 0;
        let mut reader = XmlReader::new(text);
        while let Some(event) = reader.next()? {
            match event {
                XmlEvent::Open(element) => match element.name() {
                    "row" => {
                        row = element.number::<usize>("r").and_then(|row| row.checked_sub(1)).unwrap_or(next_row);
                        next_row = row + 1;
                        column = 0;
                    }
                    "c" => {
                        let at = element.attribute("r").and_then(|name| parse_cell(&name)).unwrap_or((row, column));
                        cell = PendingCell {
                            row: at.0,
                            column: at.1,
                            kind: element.attribute("t").unwrap_or_default(),
                            style: element.number("s").unwrap_or(0),
                            ..PendingCell::default()
                        };
                        column = at.1 + 1;
                    }
                    "v" => cell.value = reader.text(&element)?,
                    "t" => cell.inline.push_str(&reader.text(&element)?),
                    "rPh" => _ = reader.skip(&element)?,
                    "f" => {
                        let index =
                            element.attribute("si").filter(|_| element.attribute("t").as_deref() == Some("shared"));
                        let text = reader.text(&element)?;
                        cell.formula = match (index, text.is_empty()) {
                            (Some(index), false) => {
                                shared.insert(index, (cell.row, cell.column, text.clone()));
                                Some(text)
                            }
                            (Some(index), true) => shared.get(&index).map(|(row, column, formula)| {
                                let down = cell.row as i64 - *row as i64;
                                shift_formula(formula, down, cell.column as i64 - *column as i64)
                            }),
                            (None, _) => Some(text).filter(|text| !text.is_empty()),
                        };
                    }
                    _ => {}
                },
                XmlEvent::Close(close) if close.name() == "c" => {
                    let text = self.show(&cell);
                    if text.is_empty() && cell.formula.is_none() {
                        continue;
                    }
                    cells += 1;
                    formulas += usize::from(cell.formula.is_some());
                    let edge = bounds.get_or_insert([cell.row, cell.column, cell.row, cell.column]);
                    *edge = [
                        edge[0].min(cell.row),
                        edge[1].min(cell.column),
                        edge[2].max(cell.row),
                        edge[3].max(cell.column),
                    ];
                    let text = match (self.what, &cell.formula) {
                        (DocumentView::Formulas, Some(formula)) if text.is_empty() => format!("={formula}"),
                        (DocumentView::Formulas, Some(formula)) => format!("={formula} → {text}"),
                        (DocumentView::Formulas, None) => String::new(),
                        _ => text,
                    };
                    window.put(cell.row, cell.column, text);
                }
                XmlEvent::Close(_) | XmlEvent::Text(_) => {}
            }
        }
        let extent = match bounds {
            None => "empty".to_owned(),
            Some([top, left, bottom, right]) => {
                let (first, last) = (super::cells::cell_name(top, left), super::cells::cell_name(bottom, right));
                format!("{first}:{last}, {cells} cells, {formulas} formulas")
            }
        };
        Ok((window, extent))
    }

    /// Returns the value as people see it.
    fn show(&self, cell: &PendingCell) -> String {
        match cell.kind.as_str() {
            "s" => {
                let string = cell.value.trim().parse::<usize>().ok().and_then(|index| self.strings.get(index));
                string.cloned().unwrap_or_default()
            }
            "inlineStr" => unescape_string(&cell.inline),
            "b" => if cell.value.trim() == "1" { "TRUE" } else { "FALSE" }.to_owned(),
            "str" => unescape_string(&cell.value),
            "e" | "d" => cell.value.clone(),
            _ => self.formats.show(cell.value.trim(), cell.style),
        }
    }
}

fn string_table(archive: &mut OfficeArchive<'_>, workbook: &str) -> Result<Vec<String>, DocumentError> {
    let relation = relations(archive, workbook)?.into_iter().find(|relation| relation.kind == "sharedStrings");
    let Some(bytes) = relation.map(|relation| archive.read(&relation.target)).transpose()?.flatten() else {
        return Ok(Vec::new());
    };
    let text = decode(bytes)?;
    let mut reader = XmlReader::new(&text);
    let (mut strings, mut current) = (Vec::new(), String::new());
    while let Some(event) = reader.next()? {
        match event {
            XmlEvent::Open(element) if element.name() == "si" => current.clear(),
            XmlEvent::Open(element) if element.name() == "t" => current.push_str(&reader.text(&element)?),
            // Phonetic hints repeat the text in another script.
            XmlEvent::Open(element) if element.name() == "rPh" => _ = reader.skip(&element)?,
            XmlEvent::Close(close) if close.name() == "si" => strings.push(unescape_string(&current)),
            _ => {}
        }
    }
    Ok(strings)
}

/// Decodes `_x000D_`, with which the format writes characters that XML cannot hold.
fn unescape_string(text: &str) -> String {
    if !text.contains("_x") {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("_x") {
        let code = rest.get(at + 2..at + 6).filter(|_| rest.get(at + 6..at + 7) == Some("_"));
        match code.and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32) {
            Some(letter) => {
                out.push_str(&rest[..at]);
                out.push(letter);
                rest = &rest[at + 7..];
            }
            None => {
                out.push_str(&rest[..at + 2]);
                rest = &rest[at + 2..];
            }
        }
    }
    out.push_str(rest);
    out
}
