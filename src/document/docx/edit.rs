//! Appends blocks to a text document, and replaces text in its paragraphs.

use std::ops::Range;

use super::blocks::{TextRun, WORD, paragraph_xml, parse_runs, table_xml, text_xml};
use super::image::{PageImage, first_free_drawing};
use super::numbering::{ListKind, ListMaker};
use super::styles::ParagraphStyles;
use crate::document::archive::OfficeArchive;
use crate::document::error::DocumentError;
use crate::document::relations::main_part;
use crate::document::request::{BlockStyle, DocumentEdit, TextBlock};
use crate::document::xml::{TextSplices, XmlEvent, XmlReader, decode};

/// Applies edits to a text document. Returns one line about each.
pub(in crate::document) fn update(
    archive: &mut OfficeArchive<'_>,
    edits: &[DocumentEdit],
) -> Result<Vec<String>, DocumentError> {
    let part = main_part(archive)?.ok_or_else(|| DocumentError::damage("the package names no document"))?;
    let mut lines = Vec::new();
    for edit in edits {
        if edit.sheet.is_some() || edit.at.is_some() || edit.rows.is_some() || edit.create {
            return Err(DocumentError::request(
                "`sheet`, `at`, `rows` and `create` are for XLSX; for a text document give `append`, or `before` and `after`",
            ));
        }
        match (&edit.append, &edit.before, &edit.after) {
            (Some(blocks), None, None) => {
                append(archive, &part, blocks)?;
                lines.push(format!("appended {} blocks", blocks.len()));
            }
            (None, Some(before), Some(after)) => {
                let count = replace(archive, &part, before, after, edit.all)?;
                lines.push(format!("replaced {count} of \"{}\"", shorten(before)));
            }
            _ => {
                return Err(DocumentError::request("an edit has either `append`, or `before` and `after`"));
            }
        }
    }
    Ok(lines)
}

fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short.replace('\n', " ")
}

/// Adds blocks at the end of the document, before the properties of its last section.
pub(super) fn append(archive: &mut OfficeArchive<'_>, part: &str, blocks: &[TextBlock]) -> Result<(), DocumentError> {
    let mut styles = ParagraphStyles::read(archive, part)?;
    let mut lists = ListMaker::default();
    let mut added = String::new();
    let mut next_drawing = first_free_drawing(&decode(archive.require(part)?)?)?;
    for (index, block) in blocks.iter().enumerate() {
        let problem = |text: &str| DocumentError::request(format!("block {}: {text}", index + 1));
        if block.image_file.is_none() && block.width.is_some() {
            return Err(problem("`width` is for an image"));
        }
        match (&block.text, &block.table, &block.image_file) {
            (Some(text), None, None) => {
                let style = block.style.unwrap_or_default();
                let kind = match style {
                    BlockStyle::Bullet => Some(ListKind::Bullet),
                    BlockStyle::Number => Some(ListKind::Number),
                    _ => None,
                };
                let list = match kind {
                    Some(kind) => Some(lists.list(archive, part, kind)?),
                    None => {
                        lists.end_list();
                        None
                    }
                };
                // Stars are part of code.
                let runs = match style {
                    BlockStyle::Code => vec![TextRun { text: text.clone(), ..TextRun::default() }],
                    _ => parse_runs(text),
                };
                let id = styles.ensure(archive, part, style)?;
                added.push_str(&paragraph_xml(&runs, id.as_deref(), list));
            }
            (None, Some(rows), None) => {
                if rows.iter().all(Vec::is_empty) {
                    return Err(problem("a `table` has at least one cell"));
                }
                if block.style.is_some() {
                    return Err(problem("`style` is for text, not for a table"));
                }
                lists.end_list();
                added.push_str(&table_xml(rows));
            }
            (caption, None, Some(file)) => {
                if block.style.is_some() {
                    return Err(problem("`style` is for text, not for an image"));
                }
                lists.end_list();
                let image = PageImage::of(block).map_err(|error| problem(&format!("`{file}`: {error}")))?;
                let runs = caption.as_deref().map(parse_runs).unwrap_or_default();
                added.push_str(&image.insert(archive, part, &runs, &mut next_drawing)?);
                if !runs.is_empty() {
                    let id = styles.ensure(archive, part, BlockStyle::Caption)?;
                    added.push_str(&paragraph_xml(&runs, id.as_deref(), None));
                }
            }
            _ => return Err(problem("it has either `text` or `table`, or an `image_file` with its caption in `text`")),
        }
    }
    let text = decode(archive.require(part)?)?;
    // Almost every document declares the prefix at its root.
    let declaration = format!(" xmlns:w=\"{WORD}\"");
    if text.find("<w:body").is_some_and(|body| text[..body].contains(&declaration)) {
        added = added.replace(&declaration, "");
    }
    let mut splices = TextSplices::default();
    splices.insert(body_end(&text)?, added);
    archive.write(part, splices.apply(&text)?);
    Ok(())
}

/// Returns where a new last block goes.
fn body_end(text: &str) -> Result<usize, DocumentError> {
    let mut reader = XmlReader::new(text);
    let (mut depth, mut body, mut section) = (0usize, None, None);
    while let Some(event) = reader.next()? {
        match event {
            XmlEvent::Open(element) => {
                depth += 1;
                match element.name() {
                    "body" if body.is_none() => body = Some(depth),
                    "sectPr" if body == Some(depth - 1) => section = Some(element.span.start),
                    // The section's properties are last; what follows them is not.
                    _ if body == Some(depth - 1) => section = None,
                    _ => {}
                }
            }
            XmlEvent::Close(close) => {
                if close.name() == "body" && body == Some(depth) && !close.span.is_empty() {
                    return Ok(section.unwrap_or(close.span.start));
                }
                depth = depth.saturating_sub(1);
            }
            XmlEvent::Text(_) => {}
        }
    }
    Err(DocumentError::damage("the document has no body"))
}

/// A text or break of a paragraph and its element.
#[derive(Debug)]
struct TextPiece {
    text: String,
    span: Range<usize>,
    prefix: String,
}

/// Replaces `before` in the paragraphs of the document. The replacement gets the look of the first replaced letter.
fn replace(
    archive: &mut OfficeArchive<'_>,
    part: &str,
    before: &str,
    after: &str,
    all: bool,
) -> Result<usize, DocumentError> {
    if before.is_empty() {
        return Err(DocumentError::request("`before` is empty; give the text to replace"));
    }
    let text = decode(archive.require(part)?)?;
    let paragraphs = paragraphs(&text)?;
    let mut splices = TextSplices::default();
    let mut places = Vec::new();
    let mut count = 0;
    for (index, pieces) in paragraphs.iter().enumerate() {
        let whole: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
        let matches: Vec<Range<usize>> = whole.match_indices(before).map(|(at, found)| at..at + found.len()).collect();
        if matches.is_empty() {
            continue;
        }
        count += matches.len();
        places.push(index + 1);
        rewrite(pieces, &matches, after, &mut splices);
    }
    match count {
        0 => Err(DocumentError::request(format!(
            "no paragraph of the document's body contains \"{}\"; read it and copy the text exactly, without Markdown marks, from one paragraph",
            shorten(before)
        ))),
        2.. if !all => {
            let places: Vec<String> = places.iter().take(20).map(ToString::to_string).collect();
            Err(DocumentError::request(format!(
                "\"{}\" occurs {count} times, in the paragraphs {}; give more text, or set `all: true`",
                shorten(before),
                places.join(", ")
            )))
        }
        count => {
            archive.write(part, splices.apply(&text)?);
            Ok(count)
        }
    }
}

/// Rewrites the pieces that a match touches. Other pieces keep their elements.
fn rewrite(pieces: &[TextPiece], matches: &[Range<usize>], after: &str, splices: &mut TextSplices) {
    let mut start = 0;
    for piece in pieces {
        let span = start..start + piece.text.len();
        start = span.end;
        let touched = matches.iter().filter(|found| found.start < span.end && found.end > span.start);
        let touched: Vec<&Range<usize>> = touched.collect();
        if touched.is_empty() {
            continue;
        }
        let mut new = String::new();
        let mut at = span.start;
        for found in touched {
            new.push_str(
                piece
                    .text
                    .get(at.max(span.start) - span.start..found.start.max(span.start) - span.start)
                    .unwrap_or_default(),
            );
            // The piece in which a match starts gets the replacement.
            if found.start >= span.start {
                new.push_str(after);
            }
            at = found.end.min(span.end);
        }
        new.push_str(piece.text.get(at - span.start..).unwrap_or_default());
        splices.replace(piece.span.clone(), text_xml(&new, &piece.prefix));
    }
}

/// Returns the pieces of each paragraph, in the order in which the paragraphs end.
fn paragraphs(text: &str) -> Result<Vec<Vec<TextPiece>>, DocumentError> {
    let mut reader = XmlReader::new(text);
    let mut open: Vec<Vec<TextPiece>> = Vec::new();
    let mut paragraphs = Vec::new();
    while let Some(event) = reader.next()? {
        match event {
            XmlEvent::Open(element) => match element.name() {
                "p" => open.push(Vec::new()),
                "moveFrom" | "del" => _ = reader.skip(&element)?,
                name @ ("t" | "tab" | "br" | "cr") => {
                    // Tab stops in the properties of a paragraph have the same name.
                    let is_stop = name == "tab" && element.attribute("val").is_some();
                    let (start, prefix, name) = (element.span.start, element.prefix().to_owned(), name.to_owned());
                    let text = match name.as_str() {
                        "t" => reader.text(&element)?,
                        "tab" => "\t".to_owned(),
                        _ => "\n".to_owned(),
                    };
                    let end = if name == "t" { reader.offset() } else { reader.skip(&element)? };
                    if let Some(pieces) = open.last_mut().filter(|_| !is_stop) {
                        pieces.push(TextPiece { text, span: start..end, prefix });
                    }
                }
                _ => {}
            },
            XmlEvent::Close(close) if close.name() == "p" => paragraphs.extend(open.pop()),
            XmlEvent::Close(_) | XmlEvent::Text(_) => {}
        }
    }
    Ok(paragraphs)
}
