//! Reads presentations in the PPTX format: slides with titles, text, tables and notes.

use std::collections::HashMap;

use super::archive::OfficeArchive;
use super::error::DocumentError;
use super::media;
use super::relations::{main_part, relations};
use super::render::{BoundedText, PageRanges, push_table};
use super::request::{DocumentContent, DocumentView, ReadRequest};
use super::xml::{XmlEvent, XmlReader, decode};

pub(super) fn read(archive: &mut OfficeArchive<'_>, request: &ReadRequest) -> Result<DocumentContent, DocumentError> {
    match request.what {
        DocumentView::Images => return media::read(archive, "ppt/media/"),
        DocumentView::Formulas => return Err(DocumentError::request("`formulas` is for workbooks")),
        DocumentView::Text | DocumentView::Outline => {}
    }
    let part = main_part(archive)?.ok_or_else(|| DocumentError::damage("the package names no presentation"))?;
    let slides = slide_parts(archive, &part)?;
    let pages = PageRanges::parse(request.pages.as_deref(), slides.len(), "slide")?;
    let mut out = BoundedText::new(request.search.as_deref());
    for (index, slide) in slides.iter().enumerate().filter(|(index, _)| pages.contains(index + 1)) {
        let content = slide_content(&decode(archive.require(slide)?)?)?;
        out.blank_line();
        let title = if content.title.is_empty() { String::new() } else { format!(": {}", content.title.join(" ")) };
        let heading = format!("## Slide {}{title}", index + 1);
        let notes = match request.what {
            DocumentView::Text => notes(archive, slide)?,
            _ => Vec::new(),
        };
        let has_hit = content.lines.iter().chain(&notes).chain(&content.title).any(|line| out.wants(line))
            || content.tables.iter().flatten().flatten().any(|cell| out.wants(cell));
        if out.is_search() && !has_hit {
            continue;
        }
        out.heading(&heading);
        if request.what == DocumentView::Text {
            content.lines.iter().for_each(|line| out.line(line));
            content.tables.iter().for_each(|rows| push_table(&mut out, rows));
            notes.iter().for_each(|line| out.line_with_label("Notes: ", line));
        }
        if out.is_full() {
            break;
        }
    }
    Ok(DocumentContent { text: out.finish(), images: Vec::new() })
}

/// Returns the parts of the slides in their order.
fn slide_parts(archive: &mut OfficeArchive<'_>, part: &str) -> Result<Vec<String>, DocumentError> {
    let targets: HashMap<String, String> =
        relations(archive, part)?.into_iter().map(|relation| (relation.id, relation.target)).collect();
    let text = decode(archive.require(part)?)?;
    let mut reader = XmlReader::new(&text);
    let mut slides = Vec::new();
    while let Some(event) = reader.next()? {
        let XmlEvent::Open(element) = event else { continue };
        // The element also has a number without a prefix.
        if element.name() == "sldId" {
            slides.extend(element.attribute_with_prefix("r:id").and_then(|id| targets.get(&id).cloned()));
        }
    }
    Ok(slides)
}

#[derive(Debug, Default)]
struct SlideContent {
    title: Vec<String>,
    lines: Vec<String>,
    tables: Vec<Vec<Vec<String>>>,
}

fn slide_content(text: &str) -> Result<SlideContent, DocumentError> {
    let mut content = SlideContent::default();
    let mut reader = XmlReader::new(text);
    let (mut is_title, mut is_number) = (false, false);
    let (mut line, mut level) = (String::new(), 0usize);
    let mut table: Option<(Vec<Vec<String>>, Vec<String>, String)> = None;
    while let Some(event) = reader.next()? {
        match event {
            XmlEvent::Open(element) => match element.name() {
                "sp" => (is_title, is_number) = (false, false),
                "ph" => {
                    let kind = element.attribute("type").unwrap_or_default();
                    is_title = kind == "title" || kind == "ctrTitle";
                    is_number = matches!(kind.as_str(), "sldNum" | "dt" | "ftr");
                }
                "tbl" => table = Some(Default::default()),
                "p" => (line, level) = (String::new(), 0),
                "pPr" => level = element.number("lvl").unwrap_or(0),
                "t" => line.push_str(&reader.text(&element)?),
                "br" => line.push(' '),
                "Fallback" => _ = reader.skip(&element)?,
                _ => {}
            },
            XmlEvent::Close(close) => match close.name() {
                "p" => {
                    let text = std::mem::take(&mut line);
                    if let Some((_, _, cell)) = &mut table {
                        if !cell.is_empty() {
                            cell.push('\n');
                        }
                        cell.push_str(&text);
                    } else if text.trim().is_empty() || is_number {
                    } else if is_title {
                        content.title.push(text.trim().to_owned());
                    } else {
                        content.lines.push(format!("{}- {}", "  ".repeat(level.min(8)), text.trim()));
                    }
                }
                "tc" => {
                    if let Some((_, row, cell)) = &mut table {
                        row.push(std::mem::take(cell));
                    }
                }
                "tr" => {
                    if let Some((rows, row, _)) = &mut table {
                        rows.push(std::mem::take(row));
                    }
                }
                "tbl" => content.tables.extend(table.take().map(|(rows, ..)| rows)),
                _ => {}
            },
            XmlEvent::Text(_) => {}
        }
    }
    Ok(content)
}

/// Returns the speaker's notes of a slide.
fn notes(archive: &mut OfficeArchive<'_>, slide: &str) -> Result<Vec<String>, DocumentError> {
    let relation = relations(archive, slide)?.into_iter().find(|relation| relation.kind == "notesSlide");
    let Some(bytes) = relation.map(|relation| archive.read(&relation.target)).transpose()?.flatten() else {
        return Ok(Vec::new());
    };
    let content = slide_content(&decode(bytes)?)?;
    Ok(content.lines.into_iter().map(|line| line.trim_start_matches("- ").to_owned()).collect())
}
