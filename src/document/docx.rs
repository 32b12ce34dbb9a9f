//! Reads text documents in the DOCX format: headings, paragraphs, lists, tables and footnotes.

mod blocks;
mod edit;
mod image;
mod numbering;
mod styles;
mod template;

use super::archive::OfficeArchive;
use super::error::DocumentError;
use super::media;
use super::relations::{main_part, relations};
use super::render::{BoundedText, push_table};
use super::request::{DocumentContent, DocumentView, ReadRequest};
use super::xml::{XmlEvent, XmlReader, decode};
pub(super) use edit::update;
use numbering::{ListKind, read_lists};
use styles::{ParagraphStyles, StyleRole};
pub(super) use template::write;

/// A paragraph while its element is read.
#[derive(Debug, Default)]
struct PendingParagraph {
    style: Option<String>,
    list: Option<String>,
    level: usize,
    outline: Option<u8>,
    text: String,
}

#[derive(Debug, Default)]
struct PendingTable {
    rows: Vec<Vec<String>>,
    row: Vec<String>,
    cell: String,
}

/// Where the text of a document goes.
struct DocumentPrinter {
    out: BoundedText,
    what: DocumentView,
    paragraphs: usize,
    headings: usize,
}

pub(super) fn read(archive: &mut OfficeArchive<'_>, request: &ReadRequest) -> Result<DocumentContent, DocumentError> {
    match request.what {
        DocumentView::Images => return media::read(archive, "word/media/"),
        DocumentView::Formulas => return Err(DocumentError::request("`formulas` is for workbooks")),
        DocumentView::Text | DocumentView::Outline => {}
    }
    let part = main_part(archive)?.ok_or_else(|| DocumentError::damage("the package names no document"))?;
    let styles = ParagraphStyles::read(archive, &part)?;
    let lists = read_lists(archive, &part)?;
    let text = decode(archive.require(&part)?)?;
    let mut printer = DocumentPrinter {
        out: BoundedText::new(request.search.as_deref()),
        what: request.what,
        paragraphs: 0,
        headings: 0,
    };
    let mut reader = XmlReader::new(&text);
    let mut open: Vec<PendingParagraph> = Vec::new();
    let mut tables: Vec<PendingTable> = Vec::new();
    while let Some(event) = reader.next()? {
        match event {
            XmlEvent::Open(element) => match element.name() {
                "p" => open.push(PendingParagraph::default()),
                "tbl" => tables.push(PendingTable::default()),
                // The same content again for old programs, and text that was moved away.
                "Fallback" | "moveFrom" | "del" => _ = reader.skip(&element)?,
                "t" => {
                    let text = reader.text(&element)?;
                    push_text(&mut open, &text);
                }
                "tab" if element.attribute("val").is_none() => push_text(&mut open, "\t"),
                "br" | "cr" => push_text(&mut open, "\n"),
                "noBreakHyphen" => push_text(&mut open, "-"),
                "footnoteReference" => {
                    if let Some(id) = element.attribute("id") {
                        push_text(&mut open, &format!("[^{id}]"));
                    }
                }
                "docPr" => {
                    let description = element.attribute("descr").filter(|text| !text.is_empty());
                    let label = description.map_or("[image]".to_owned(), |text| format!("[image: {text}]"));
                    push_text(&mut open, &label);
                }
                name @ ("pStyle" | "numId" | "ilvl" | "outlineLvl") => {
                    let value = element.attribute("val");
                    if let Some(paragraph) = open.last_mut() {
                        match name {
                            "pStyle" => paragraph.style = value,
                            "numId" => paragraph.list = value.filter(|id| id != "0"),
                            "ilvl" => paragraph.level = value.and_then(|level| level.parse().ok()).unwrap_or(0),
                            _ => paragraph.outline = value.and_then(|level| level.parse().ok()),
                        }
                    }
                }
                _ => {}
            },
            XmlEvent::Close(close) => match close.name() {
                "p" => {
                    if let Some(paragraph) = open.pop() {
                        match tables.last_mut() {
                            Some(table) => {
                                if !table.cell.is_empty() {
                                    table.cell.push('\n');
                                }
                                table.cell.push_str(&paragraph.text);
                            }
                            None => printer.paragraph(&paragraph, &styles, &lists),
                        }
                    }
                }
                "tc" => {
                    if let Some(table) = tables.last_mut() {
                        let cell = std::mem::take(&mut table.cell);
                        table.row.push(cell);
                    }
                }
                "tr" => {
                    if let Some(table) = tables.last_mut() {
                        let row = std::mem::take(&mut table.row);
                        table.rows.push(row);
                    }
                }
                "tbl" => {
                    let rows = tables.pop().map(|table| table.rows).unwrap_or_default();
                    match tables.last_mut() {
                        // A table inside a cell becomes text of the cell.
                        Some(outer) => {
                            let lines: Vec<String> = rows.iter().map(|row| row.join(", ")).collect();
                            outer.cell.push_str(&lines.join("; "));
                        }
                        None if printer.what == DocumentView::Text => push_table(&mut printer.out, &rows),
                        None => {}
                    }
                }
                _ => {}
            },
            XmlEvent::Text(_) => {}
        }
        if printer.out.is_full() {
            break;
        }
    }
    if printer.what == DocumentView::Text {
        footnotes(archive, &part, &mut printer.out)?;
    } else {
        let (paragraphs, headings) = (printer.paragraphs, printer.headings);
        printer.out.heading(&format!("({paragraphs} paragraphs, {headings} headings)"));
    }
    Ok(DocumentContent { text: printer.out.finish(), images: Vec::new() })
}

fn push_text(open: &mut [PendingParagraph], text: &str) {
    if let Some(paragraph) = open.last_mut() {
        paragraph.text.push_str(text);
    }
}

impl DocumentPrinter {
    fn paragraph(&mut self, paragraph: &PendingParagraph, styles: &ParagraphStyles, lists: &numbering::ListKinds) {
        self.paragraphs += 1;
        let text = paragraph.text.trim_end();
        if text.trim().is_empty() {
            return;
        }
        let role = styles.role(paragraph.style.as_deref());
        let level = match (paragraph.outline, role) {
            (Some(level @ 0..=8), _) => Some(level + 1),
            (_, StyleRole::Heading(level)) => Some(level),
            (_, StyleRole::Title) => Some(1),
            (_, StyleRole::Other) => None,
        };
        if let Some(level) = level {
            self.headings += 1;
            self.out.blank_line();
            let mark = "#".repeat(usize::from(level.min(6)));
            self.out.line(&format!("{mark} {}", text.replace('\n', " ")));
            self.out.blank_line();
            return;
        }
        if self.what == DocumentView::Outline {
            return;
        }
        let list = paragraph.list.as_deref().or_else(|| styles.list(paragraph.style.as_deref()));
        match list.and_then(|list| lists.kind(list, paragraph.level)) {
            Some(kind) => {
                let mark = if kind == ListKind::Bullet { "-" } else { "1." };
                self.out.line(&format!("{}{mark} {text}", "  ".repeat(paragraph.level.min(8))));
            }
            None => {
                self.out.blank_line();
                self.out.line(text);
                self.out.blank_line();
            }
        }
    }
}

/// Adds the footnotes at the end of the text.
fn footnotes(archive: &mut OfficeArchive<'_>, part: &str, out: &mut BoundedText) -> Result<(), DocumentError> {
    let relation = relations(archive, part)?.into_iter().find(|relation| relation.kind == "footnotes");
    let Some(bytes) = relation.map(|relation| archive.read(&relation.target)).transpose()?.flatten() else {
        return Ok(());
    };
    let text = decode(bytes)?;
    let mut reader = XmlReader::new(&text);
    let (mut id, mut note) = (String::new(), String::new());
    while let Some(event) = reader.next()? {
        match event {
            XmlEvent::Open(element) if element.name() == "footnote" => {
                // The separators are footnotes with a type.
                let is_note = element.attribute("type").is_none();
                id = element.attribute("id").filter(|_| is_note).unwrap_or_default();
                note.clear();
            }
            XmlEvent::Open(element) if element.name() == "t" => note.push_str(&reader.text(&element)?),
            XmlEvent::Close(close) if close.name() == "footnote" && !id.is_empty() => {
                out.line(&format!("[^{id}]: {}", note.trim()));
            }
            _ => {}
        }
    }
    Ok(())
}
