//! Writes cells and sheets into an existing workbook.

use std::collections::BTreeMap;

use serde_json::Value;

use super::WorkbookParts;
use super::formats::{is_time_format, serial_of};
use super::sheet_xml::{
    CellChanges, CellContent, EMPTY_SHEET, SheetLayout, change_cells, set_attribute, with_positions,
};
use super::styles::{CellStyle, STYLES, StyleBook};
use crate::document::archive::OfficeArchive;
use crate::document::cells::{MAX_COLUMNS, MAX_ROWS, cell_name, parse_cell};
use crate::document::error::DocumentError;
use crate::document::relations::{NewPart, add_part, relations, remove_part};
use crate::document::request::DocumentEdit;
use crate::document::xml::{TextSplices, XmlEvent, XmlReader, decode, escape};

/// The longest text and formula of a cell.
const MAX_TEXT: usize = 32_767;
const MAX_FORMULA: usize = 8_192;
const RELATIONS: &str = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
const SPREADSHEET: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml";

/// A cell as a caller writes it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CellInput {
    pub(super) content: CellContent,
    pub(super) style: CellStyle,
}

/// Applies edits to a workbook. Returns one line about each.
pub(in crate::document) fn update(
    archive: &mut OfficeArchive<'_>,
    edits: &[DocumentEdit],
) -> Result<Vec<String>, DocumentError> {
    let mut lines = Vec::new();
    let mut pending: BTreeMap<String, BTreeMap<(usize, usize), CellInput>> = BTreeMap::new();
    for edit in edits {
        if edit.append.is_some() || edit.before.is_some() || edit.after.is_some() || edit.all {
            return Err(DocumentError::request(
                "`append`, `before`, `after` and `all` are for DOCX; for a workbook give `sheet`, `at` and `rows`",
            ));
        }
        let workbook = WorkbookParts::read(archive)?;
        let sheet = match (&edit.sheet, edit.create) {
            (Some(name), true) => add_sheet(archive, &workbook, name)?,
            (Some(name), false) => workbook.find(name)?.part.clone(),
            (None, true) => return Err(DocumentError::request("`create` needs the name of the new `sheet`")),
            (None, false) => match workbook.sheets.as_slice() {
                [only] => only.part.clone(),
                sheets => {
                    let names: Vec<&str> = sheets.iter().map(|sheet| sheet.name.as_str()).collect();
                    return Err(DocumentError::request(format!("`sheet` is one of {}", names.join(", "))));
                }
            },
        };
        let at = edit.at.as_deref().unwrap_or("A1");
        let start = parse_cell(at)
            .ok_or_else(|| DocumentError::request(format!("`at` is `{at}`; write one cell, such as `B2`")))?;
        let rows = edit.rows.as_deref().unwrap_or_default();
        if rows.is_empty() && !edit.create {
            return Err(DocumentError::request("an edit of a workbook has `rows`, a list of rows of cells"));
        }
        let cells = place_cells(rows, start)?;
        let name = edit.sheet.clone().unwrap_or_else(|| workbook.sheets[0].name.clone());
        let created = if edit.create { "new sheet, " } else { "" };
        lines.push(format!("{name}: {created}{} cells from {at}", cells.len()));
        pending.entry(sheet).or_default().extend(cells);
    }
    let workbook = WorkbookParts::read(archive)?;
    let mut styles = StyleSource::default();
    let mut has_formulas = false;
    for (part, cells) in pending {
        let text = with_positions(decode(archive.require(&part)?)?)?;
        let layout = SheetLayout::read(&text)?;
        has_formulas |= layout.has_formulas();
        let mut changes = CellChanges::new();
        for (at, input) in cells {
            has_formulas |= matches!(input.content, CellContent::Formula(_));
            let base = layout.style(at.0, at.1);
            let style = if input.style == CellStyle::default() {
                base
            } else {
                Some(styles.book(archive, &workbook)?.style(base.unwrap_or(0), &input.style)?)
            };
            changes.insert(at, (input.content, style));
        }
        if !changes.is_empty() {
            archive.write(&part, change_cells(&text, &layout, &changes)?);
        }
    }
    styles.finish(archive)?;
    if has_formulas {
        request_calculation(archive, &workbook)?;
    }
    Ok(lines)
}

/// The styles of the workbook, read when the first cell needs one.
#[derive(Default)]
struct StyleSource {
    open: Option<(String, StyleBook)>,
}

impl StyleSource {
    fn book(
        &mut self,
        archive: &mut OfficeArchive<'_>,
        workbook: &WorkbookParts,
    ) -> Result<&mut StyleBook, DocumentError> {
        if self.open.is_none() {
            let known = relations(archive, &workbook.part)?.into_iter().find(|relation| relation.kind == "styles");
            let part = match known {
                Some(relation) => relation.target,
                None => {
                    let name = "xl/styles.xml";
                    let content_type = format!("{SPREADSHEET}.styles+xml");
                    let part = NewPart { name, content_type: &content_type, kind: "styles", contents: STYLES.into() };
                    add_part(archive, &workbook.part, part)?;
                    name.to_owned()
                }
            };
            let text = decode(archive.require(&part)?)?;
            self.open = Some((part, StyleBook::read(text)?));
        }
        self.open.as_mut().map(|(_, book)| book).ok_or_else(|| DocumentError::damage("the workbook has no styles"))
    }

    fn finish(self, archive: &mut OfficeArchive<'_>) -> Result<(), DocumentError> {
        if let Some((part, book)) = self.open
            && let Some(text) = book.finish()?
        {
            archive.write(&part, text);
        }
        Ok(())
    }
}

/// Parses rows of JSON cells that start at a cell.
pub(super) fn place_cells(
    rows: &[Vec<Value>],
    start: (usize, usize),
) -> Result<BTreeMap<(usize, usize), CellInput>, DocumentError> {
    let mut cells = BTreeMap::new();
    for (down, row) in rows.iter().enumerate() {
        for (right, value) in row.iter().enumerate() {
            let (row, column) = (start.0 + down, start.1 + right);
            if row >= MAX_ROWS || column >= MAX_COLUMNS {
                return Err(DocumentError::request("the rows do not fit: a sheet has 1048576 rows and 16384 columns"));
            }
            let input = parse_input(value)
                .map_err(|problem| DocumentError::request(format!("cell {}: {problem}", cell_name(row, column))))?;
            cells.insert((row, column), input);
        }
    }
    Ok(cells)
}

/// Why a cell cannot be written.
#[derive(Debug, thiserror::Error)]
enum CellInputError {
    #[error("a cell is text, a number, true, false, null, or an object with `value`")]
    Kind,
    #[error("`{0}` is no property of a cell; use value, bold, italic, fill and format")]
    Property(String),
    #[error("`{0}` is true or false")]
    Flag(&'static str),
    #[error("`fill` is a colour of six hexadecimal digits, such as FFEE88")]
    Fill,
    #[error("`format` is a number format, such as 0.00, 0% or yyyy-mm-dd")]
    Format,
    #[error("a text has at most {MAX_TEXT} characters")]
    Text,
    #[error("a formula has at most {MAX_FORMULA} characters")]
    Formula,
}

fn parse_input(value: &Value) -> Result<CellInput, CellInputError> {
    let Value::Object(object) = value else {
        return Ok(CellInput { content: parse_content(value, None)?, style: CellStyle::default() });
    };
    let mut style = CellStyle::default();
    for (name, value) in object {
        match name.as_str() {
            "value" => {}
            "bold" => style.bold = Some(value.as_bool().ok_or(CellInputError::Flag("bold"))?),
            "italic" => style.italic = Some(value.as_bool().ok_or(CellInputError::Flag("italic"))?),
            "fill" => {
                let color = value.as_str().map(|color| color.trim_start_matches('#')).ok_or(CellInputError::Fill)?;
                if color.len() != 6 || !color.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                    return Err(CellInputError::Fill);
                }
                style.fill = Some(color.to_ascii_uppercase());
            }
            "format" => {
                let code = value.as_str().filter(|code| (1..=255).contains(&code.len()));
                style.format = Some(code.ok_or(CellInputError::Format)?.to_owned());
            }
            name => return Err(CellInputError::Property(name.to_owned())),
        }
    }
    let content = parse_content(object.get("value").unwrap_or(&Value::Null), style.format.as_deref())?;
    Ok(CellInput { content, style })
}

fn parse_content(value: &Value, format: Option<&str>) -> Result<CellContent, CellInputError> {
    Ok(match value {
        Value::Null => CellContent::Empty,
        Value::Bool(value) => CellContent::Boolean(*value),
        Value::Number(number) => CellContent::Number(number.to_string()),
        Value::String(text) => {
            if let Some(formula) = text.strip_prefix('=').filter(|formula| !formula.trim().is_empty()) {
                if formula.chars().count() > MAX_FORMULA {
                    return Err(CellInputError::Formula);
                }
                return Ok(CellContent::Formula(formula.to_owned()));
            }
            if text.chars().count() > MAX_TEXT {
                return Err(CellInputError::Text);
            }
            if let Some(serial) = serial_of(text).filter(|_| format.is_some_and(is_time_format)) {
                return Ok(CellContent::Number(serial.to_string()));
            }
            // As in spreadsheet programs, an apostrophe makes text of a formula.
            let text = if text.starts_with("'=") { &text[1..] } else { text };
            if text.is_empty() { CellContent::Empty } else { CellContent::Text(text.to_owned()) }
        }
        Value::Array(_) | Value::Object(_) => return Err(CellInputError::Kind),
    })
}

/// Fails if a workbook cannot have a sheet with this name.
pub(super) fn check_name<'a>(name: &str, others: impl IntoIterator<Item = &'a str>) -> Result<(), DocumentError> {
    let is_wrong = name.trim().is_empty()
        || name.chars().count() > 31
        || name.contains(['[', ']', ':', '*', '?', '/', '\\'])
        || name.chars().any(char::is_control)
        || name.starts_with('\'')
        || name.ends_with('\'');
    if is_wrong {
        return Err(DocumentError::request(format!(
            "`{name}` is no name of a sheet: it has 1 to 31 characters, and none of [ ] : * ? / \\"
        )));
    }
    if others.into_iter().any(|other| other.to_lowercase() == name.to_lowercase()) {
        return Err(DocumentError::request(format!("there is a sheet `{name}` already")));
    }
    Ok(())
}

/// Adds an empty sheet. Returns the name of its part.
fn add_sheet(archive: &mut OfficeArchive<'_>, workbook: &WorkbookParts, name: &str) -> Result<String, DocumentError> {
    check_name(name, workbook.sheets.iter().map(|sheet| sheet.name.as_str()))?;
    let part = (1..).map(|number| format!("xl/worksheets/sheet{number}.xml")).find(|part| !archive.contains(part));
    let part = part.ok_or_else(|| DocumentError::too_large("the workbook has too many sheets"))?;
    let content_type = format!("{SPREADSHEET}.worksheet+xml");
    let new = NewPart { name: &part, content_type: &content_type, kind: "worksheet", contents: EMPTY_SHEET.into() };
    let id = add_part(archive, &workbook.part, new)?;
    let sheet_id = workbook.sheets.iter().map(|sheet| sheet.id).max().unwrap_or(0).saturating_add(1);
    let text = decode(archive.require(&workbook.part)?)?;
    let mut splices = TextSplices::default();
    let mut reader = XmlReader::new(&text);
    let mut prefix = String::new();
    while let Some(event) = reader.next()? {
        match event {
            XmlEvent::Open(element) if element.name() == "sheets" => prefix = element.prefix().to_owned(),
            XmlEvent::Close(close) if close.name() == "sheets" && !close.span.is_empty() => {
                let sheet = format!(
                    "<{prefix}sheet xmlns:r=\"{RELATIONS}\" name=\"{}\" sheetId=\"{sheet_id}\" r:id=\"{id}\"/>",
                    escape(name)
                );
                splices.insert(close.span.start, sheet);
            }
            _ => {}
        }
    }
    if splices.is_empty() {
        return Err(DocumentError::damage("the workbook has no list of sheets"));
    }
    archive.write(&workbook.part, splices.apply(&text)?);
    Ok(part)
}

/// Makes programs compute all formulas when they open the workbook, because stored results may be old. Removes the
/// stored order of calculation, which names cells that may have no formula now.
fn request_calculation(archive: &mut OfficeArchive<'_>, workbook: &WorkbookParts) -> Result<(), DocumentError> {
    let chain = relations(archive, &workbook.part)?.into_iter().find(|relation| relation.kind == "calcChain");
    if let Some(chain) = chain {
        remove_part(archive, &workbook.part, &chain.target)?;
    }
    let text = decode(archive.require(&workbook.part)?)?;
    let mut splices = TextSplices::default();
    let mut reader = XmlReader::new(&text);
    let mut after_lists = None;
    let mut prefix = String::new();
    let mut has_properties = false;
    while let Some(event) = reader.next()? {
        match event {
            XmlEvent::Open(element) if element.name() == "calcPr" => {
                has_properties = true;
                let tag = text.get(element.span.clone()).unwrap_or_default();
                if element.attribute("fullCalcOnLoad").as_deref() != Some("1") {
                    splices.replace(element.span.clone(), set_attribute(tag, "fullCalcOnLoad", "1"));
                }
            }
            XmlEvent::Open(element) if element.name() == "sheets" => prefix = element.prefix().to_owned(),
            XmlEvent::Close(close) => {
                if matches!(close.name(), "sheets" | "functionGroups" | "externalReferences" | "definedNames") {
                    after_lists = Some(close.span.end);
                }
            }
            XmlEvent::Open(_) | XmlEvent::Text(_) => {}
        }
    }
    if let (false, Some(at)) = (has_properties, after_lists) {
        splices.insert(at, format!("<{prefix}calcPr fullCalcOnLoad=\"1\"/>"));
    }
    if !splices.is_empty() {
        archive.write(&workbook.part, splices.apply(&text)?);
    }
    Ok(())
}
