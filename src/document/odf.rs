//! Reads text documents and spreadsheets in the OpenDocument formats ODT and ODS.

use super::archive::OfficeArchive;
use super::cells::{CellRange, CellWindow, MAX_COLUMNS, MAX_ROWS, cell_name, render_cells};
use super::error::DocumentError;
use super::media;
use super::render::{BoundedText, push_table};
use super::request::{DocumentContent, DocumentView, ReadRequest, TableRequest};
use super::xlsx::CELL_ERRORS;
use super::xml::{XmlElement, XmlEvent, XmlReader, decode};

/// A document may say that a cell repeats a million times.
const MAX_REPEATED_CELLS: usize = 1_000;

fn content_part(archive: &mut OfficeArchive<'_>) -> Result<String, DocumentError> {
    let manifest = archive.read("META-INF/manifest.xml")?.map(decode).transpose()?.unwrap_or_default();
    if manifest.contains("encryption-data") {
        return Err(DocumentError::Encrypted);
    }
    decode(archive.require("content.xml")?)
}

/// Reads a text document.
pub(super) fn read_text(
    archive: &mut OfficeArchive<'_>,
    request: &ReadRequest,
) -> Result<DocumentContent, DocumentError> {
    match request.what {
        DocumentView::Images => return media::read(archive, "Pictures/"),
        DocumentView::Formulas => return Err(DocumentError::request("`formulas` is for workbooks")),
        DocumentView::Text | DocumentView::Outline => {}
    }
    let text = content_part(archive)?;
    let mut out = BoundedText::new(request.search.as_deref());
    let mut reader = XmlReader::new(&text);
    let mut open: Vec<(Option<usize>, String)> = Vec::new();
    let mut lists = 0usize;
    let mut table: Option<(Vec<Vec<String>>, Vec<String>, String)> = None;
    let mut notes = Vec::new();
    let (mut in_note, mut headings, mut paragraphs) = (false, 0, 0);
    while let Some(event) = reader.next()? {
        match event {
            XmlEvent::Open(element) => match element.name() {
                "h" => open.push((Some(element.number("outline-level").unwrap_or(1)), String::new())),
                "p" => open.push((None, String::new())),
                "list" => lists += 1,
                "table" => table = Some(Default::default()),
                "note-body" => in_note = true,
                "tracked-changes" | "annotation" => _ = reader.skip(&element)?,
                "title" | "desc" if open.is_empty() => _ = reader.skip(&element)?,
                name => {
                    if let Some(piece) = spacing(name, &element)
                        && let Some((_, text)) = open.last_mut()
                    {
                        text.push_str(&piece);
                    }
                }
            },
            XmlEvent::Text(piece) => {
                if let Some((_, text)) = open.last_mut() {
                    text.push_str(&piece);
                }
            }
            XmlEvent::Close(close) => match close.name() {
                "p" | "h" => {
                    let Some((level, text)) = open.pop() else { continue };
                    let text = text.trim_end();
                    if in_note {
                        notes.push(text.to_owned());
                        continue;
                    }
                    if let Some((_, _, cell)) = &mut table {
                        if !cell.is_empty() {
                            cell.push('\n');
                        }
                        cell.push_str(text);
                        continue;
                    }
                    paragraphs += 1;
                    if text.trim().is_empty() {
                        continue;
                    }
                    match level {
                        Some(level) => {
                            headings += 1;
                            out.blank_line();
                            out.line(&format!("{} {text}", "#".repeat(level.clamp(1, 6))));
                            out.blank_line();
                        }
                        None if request.what == DocumentView::Outline => {}
                        None if lists > 0 => out.line(&format!("{}- {text}", "  ".repeat((lists - 1).min(8)))),
                        None => {
                            out.blank_line();
                            out.line(text);
                            out.blank_line();
                        }
                    }
                }
                "list" => lists = lists.saturating_sub(1),
                "note-body" => {
                    in_note = false;
                    if let Some((_, text)) = open.last_mut() {
                        text.push_str(&format!("[^{}]", notes.len()));
                    }
                }
                "table-cell" => {
                    if let Some((_, row, cell)) = &mut table {
                        row.push(std::mem::take(cell));
                    }
                }
                "table-row" => {
                    if let Some((rows, row, _)) = &mut table {
                        rows.push(std::mem::take(row));
                    }
                }
                "table" => {
                    if let (Some((rows, ..)), DocumentView::Text) = (table.take(), request.what) {
                        push_table(&mut out, &rows);
                    }
                }
                _ => {}
            },
        }
        if out.is_full() {
            break;
        }
    }
    if request.what == DocumentView::Outline {
        out.heading(&format!("({paragraphs} paragraphs, {headings} headings)"));
    }
    for (index, note) in notes.iter().enumerate() {
        out.line(&format!("[^{}]: {note}", index + 1));
    }
    Ok(DocumentContent { text: out.finish(), images: Vec::new() })
}

/// Returns the text that an element stands for.
fn spacing(name: &str, element: &XmlElement<'_>) -> Option<String> {
    match name {
        "s" => Some(" ".repeat(element.number::<usize>("c").unwrap_or(1).min(100))),
        "tab" => Some("\t".to_owned()),
        "line-break" => Some("\n".to_owned()),
        "image" => Some("[image]".to_owned()),
        _ => None,
    }
}

/// Reads a spreadsheet.
pub(super) fn read_sheets(
    archive: &mut OfficeArchive<'_>,
    request: &ReadRequest,
) -> Result<DocumentContent, DocumentError> {
    if request.what == DocumentView::Images {
        return media::read(archive, "Pictures/");
    }
    let text = content_part(archive)?;
    let range = request.range.as_deref().map(CellRange::parse).transpose()?;
    let mut out = BoundedText::new(request.search.as_deref());
    let mut reader = XmlReader::new(&text);
    let mut names = Vec::new();
    while let Some(event) = reader.next()? {
        let XmlEvent::Open(element) = event else { continue };
        if element.name() != "table" || element.prefix() != "table:" {
            continue;
        }
        let name = element.attribute("name").unwrap_or_default();
        let wanted = request.sheet.as_ref().is_none_or(|sheet| sheet.to_lowercase() == name.to_lowercase());
        names.push(name.clone());
        if !wanted || element.is_empty {
            reader.skip(&element)?;
            continue;
        }
        let (window, extent) = sheet_cells(&mut reader, range, request.what, NumberForm::Shown)?;
        out.blank_line();
        out.heading(&format!("## {name} ({extent})"));
        if request.what != DocumentView::Outline {
            render_cells(&mut out, &window);
        }
        if out.is_full() {
            break;
        }
    }
    check_sheet(request.sheet.as_deref(), &names)?;
    Ok(DocumentContent { text: out.finish(), images: Vec::new() })
}

/// Fails if a sheet is wanted that the spreadsheet does not have.
fn check_sheet(wanted: Option<&str>, names: &[String]) -> Result<(), DocumentError> {
    match wanted {
        Some(sheet) if !names.iter().any(|name| name.to_lowercase() == sheet.to_lowercase()) => {
            Err(DocumentError::request(format!("there is no sheet `{sheet}`; the sheets are {}", list_sheets(names))))
        }
        _ => Ok(()),
    }
}

fn list_sheets(names: &[String]) -> String {
    let names: Vec<String> = names.iter().take(50).map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// Returns the rows of one sheet. Errors of formulas become empty cells.
pub(super) fn read_rows(
    archive: &mut OfficeArchive<'_>,
    request: &TableRequest,
) -> Result<Vec<Vec<String>>, DocumentError> {
    let text = content_part(archive)?;
    let range = request.range.as_deref().map(CellRange::parse).transpose()?;
    let mut reader = XmlReader::new(&text);
    let (mut names, mut style, mut hidden) = (Vec::new(), String::new(), Vec::new());
    while let Some(event) = reader.next()? {
        let XmlEvent::Open(element) = event else { continue };
        match element.name() {
            // Styles come before the sheets that have them.
            "style" => style = element.attribute("name").unwrap_or_default(),
            "table-properties" if element.attribute("display").as_deref() == Some("false") => {
                hidden.push(style.clone());
            }
            "table" if element.prefix() == "table:" => {
                let name = element.attribute("name").unwrap_or_default();
                let wanted = match &request.sheet {
                    Some(sheet) => sheet.to_lowercase() == name.to_lowercase(),
                    None => !element.attribute("style-name").is_some_and(|style| hidden.contains(&style)),
                };
                names.push(name);
                if !wanted || element.is_empty {
                    reader.skip(&element)?;
                    continue;
                }
                let (window, _) = sheet_cells(&mut reader, range, DocumentView::Text, NumberForm::Stored)?;
                let mut rows = window.into_rows()?;
                let is_error = |cell: &str| CELL_ERRORS.contains(&cell) || cell.starts_with("Err:");
                for cell in rows.iter_mut().flatten().filter(|cell| is_error(cell)) {
                    cell.clear();
                }
                if !rows.is_empty() {
                    return Ok(rows);
                }
            }
            _ => {}
        }
    }
    check_sheet(request.sheet.as_deref(), &names)?;
    let names = list_sheets(&names);
    let problem = format!("there are no cells; give another `sheet` or `range`. The sheets are {names}");
    Err(DocumentError::request(problem))
}

/// How the cells of a sheet show numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberForm {
    /// As people see them: `1,234.50 €`.
    Shown,
    /// As the file stores them: `1234.5`. Percentages stay as people see them.
    Stored,
}

/// Reads the cells of a sheet whose element was opened last.
fn sheet_cells(
    reader: &mut XmlReader<'_>,
    range: Option<CellRange>,
    what: DocumentView,
    numbers: NumberForm,
) -> Result<(CellWindow, String), DocumentError> {
    let mut window = CellWindow::new(range);
    let (mut row, mut column, mut depth) = (0usize, 0usize, 1usize);
    let (mut row_repeats, mut repeats) = (1usize, 1usize);
    let (mut text, mut formula, mut value) = (String::new(), None, None);
    let (mut cells, mut formulas, mut last) = (0usize, 0usize, (0usize, 0usize));
    let mut row_cells: Vec<(usize, String)> = Vec::new();
    while let Some(event) = reader.next()? {
        match event {
            XmlEvent::Open(element) => {
                depth += 1;
                match element.name() {
                    "table-row" => {
                        row_repeats = element.number("number-rows-repeated").unwrap_or(1).max(1);
                        column = 0;
                    }
                    "table-cell" | "covered-table-cell" => {
                        repeats = element.number("number-columns-repeated").unwrap_or(1).max(1);
                        formula = element.attribute("formula");
                        value = element
                            .attribute("date-value")
                            .or_else(|| element.attribute("boolean-value").map(|value| value.to_uppercase()))
                            .or_else(|| number_value(&element, numbers));
                        text.clear();
                    }
                    "p" if !text.is_empty() => text.push('\n'),
                    "annotation" => {
                        reader.skip(&element)?;
                        depth -= 1;
                    }
                    name => {
                        if let Some(piece) = spacing(name, &element) {
                            text.push_str(&piece);
                        }
                    }
                }
            }
            XmlEvent::Text(piece) => text.push_str(&piece),
            XmlEvent::Close(close) => {
                depth -= 1;
                match close.name() {
                    "table-cell" | "covered-table-cell" => {
                        let shown = value.take().unwrap_or_else(|| text.trim().to_owned());
                        let formula = formula.take();
                        if !shown.is_empty() || formula.is_some() {
                            let count = repeats.min(MAX_REPEATED_CELLS);
                            cells += count;
                            formulas += usize::from(formula.is_some());
                            let shown = match (what, formula) {
                                (DocumentView::Formulas, Some(formula)) => {
                                    format!("{} → {shown}", plain_formula(&formula))
                                }
                                (DocumentView::Formulas, None) => String::new(),
                                (_, _) => shown,
                            };
                            for right in 0..count {
                                row_cells.push((column + right, shown.clone()));
                            }
                            last = (row, last.1.max(column + count - 1));
                        }
                        column = (column + repeats).min(MAX_COLUMNS);
                        text.clear();
                    }
                    "table-row" => {
                        let count = if row_cells.is_empty() { 1 } else { row_repeats.min(MAX_REPEATED_CELLS) };
                        for down in 0..count {
                            for (column, cell) in &row_cells {
                                window.put(row + down, *column, cell.clone());
                            }
                        }
                        row_cells.clear();
                        row = (row + row_repeats).min(MAX_ROWS);
                        text.clear();
                    }
                    // Sheets have tables inside, such as those of charts.
                    "table" if depth == 0 => break,
                    _ => {}
                }
            }
        }
    }
    let extent = if cells == 0 {
        "empty".to_owned()
    } else {
        format!("A1:{}, {cells} cells, {formulas} formulas", cell_name(last.0, last.1))
    };
    Ok((window, extent))
}

/// Returns the number of a cell, if numbers are wanted as they are stored.
fn number_value(element: &XmlElement<'_>, numbers: NumberForm) -> Option<String> {
    let kind = element.attribute_with_prefix("office:value-type")?;
    if numbers != NumberForm::Stored || !["float", "currency"].contains(&kind.as_str()) {
        return None;
    }
    // The value of an error is 0.
    if element.attribute_with_prefix("calcext:value-type").as_deref() == Some("error") {
        return None;
    }
    element.attribute_with_prefix("office:value")
}

/// Returns an OpenDocument formula as people write it: `of:=SUM([.A1:.A3])` is `=SUM(A1:A3)`.
fn plain_formula(formula: &str) -> String {
    let formula = formula.split_once(":=").map_or(formula, |(_, formula)| formula);
    let mut out = String::from("=");
    let mut inside = false;
    for letter in formula.trim_start_matches('=').chars() {
        match letter {
            '[' => inside = true,
            ']' => inside = false,
            '.' if inside && !out.ends_with(|last: char| last.is_alphanumeric() || last == '\'') => {}
            '.' if inside => out.push('!'),
            letter => out.push(letter),
        }
    }
    out
}
