//! Reads PDF files: text by page with tables, bookmarks and images.

mod cmap;
mod content;
mod fonts;
mod glyphs;
mod images;
mod layout;

use hayro_syntax::object::{Dict, String as PdfString};
use hayro_syntax::{DecryptionError, LoadPdfError, Pdf};

use super::error::DocumentError;
use super::render::{BoundedText, PageRanges};
use super::request::{DocumentContent, DocumentView, ReadRequest};
use content::PageReader;

/// The most pages that one call reads.
const MAX_PAGES: usize = 5_000;
/// Bookmarks beyond these are left out: a file may link them in a circle.
const MAX_BOOKMARKS: usize = 5_000;
const MAX_DEPTH: usize = 16;

pub(super) fn read(bytes: &[u8], request: &ReadRequest) -> Result<DocumentContent, DocumentError> {
    let pdf = Pdf::new(bytes.to_vec()).map_err(|error| match error {
        LoadPdfError::Decryption(DecryptionError::PasswordProtected) => DocumentError::Encrypted,
        LoadPdfError::Decryption(
            DecryptionError::UnsupportedAlgorithm
            | DecryptionError::InvalidEncryption
            | DecryptionError::MissingIDEntry,
        ) => DocumentError::no_support(
            "the PDF is encrypted in a way that cannot be read; ask the user for another copy",
        ),
        LoadPdfError::Invalid => DocumentError::damage("it has no readable pages"),
    })?;
    let total = pdf.pages().len();
    let pages = PageRanges::parse(request.pages.as_deref(), total, "page")?;
    match request.what {
        DocumentView::Outline => Ok(DocumentContent { text: outline(&pdf, total), images: Vec::new() }),
        DocumentView::Formulas => Err(DocumentError::request("`formulas` is for workbooks")),
        DocumentView::Images => Ok(images::read(&pdf, &pages)),
        DocumentView::Text => Ok(DocumentContent { text: text(&pdf, &pages, request), images: Vec::new() }),
    }
}

fn text(pdf: &Pdf, pages: &PageRanges, request: &ReadRequest) -> String {
    let total = pdf.pages().len();
    let mut out = BoundedText::new(request.search.as_deref());
    let mut reader = PageReader::default();
    let (mut has_text, mut unknown, mut count) = (false, 0, 0);
    for (index, page) in pdf.pages().iter().enumerate().filter(|(index, _)| pages.contains(index + 1)) {
        if count >= MAX_PAGES {
            out.heading(&format!("[stopped after {MAX_PAGES} pages; read others with `pages`]"));
            break;
        }
        count += 1;
        let glyphs = reader.glyphs(page);
        unknown += glyphs.unknown;
        let text = layout::arrange(glyphs.glyphs);
        has_text |= !text.trim().is_empty();
        if out.is_search() && !text.lines().any(|line| out.wants(line)) {
            continue;
        }
        out.blank_line();
        out.heading(&format!("## Page {} of {total}", index + 1));
        for line in text.lines() {
            if line.is_empty() {
                out.blank_line();
            } else {
                out.line(line);
            }
        }
        if glyphs.is_cut {
            out.heading("[the page has more text than is read]");
        }
        if out.is_full() {
            break;
        }
    }
    if !has_text {
        out.heading("(the pages have no text; they may be scanned: read them with `what: images`)");
    }
    if unknown > 0 {
        out.heading(&format!("[{unknown} characters of fonts without a character table are shown as \u{fffd}]"));
    }
    out.finish()
}

/// Returns the title, the number of pages and the bookmarks.
fn outline(pdf: &Pdf, total: usize) -> String {
    let mut out = BoundedText::new(None);
    let title = pdf.metadata().title.as_deref().map(decode_text).filter(|title| !title.trim().is_empty());
    out.heading(&title.map_or(format!("{total} pages"), |title| format!("{title} ({total} pages)")));
    let catalog = pdf.xref().get::<Dict<'_>>(pdf.xref().root_id());
    let first =
        catalog.and_then(|catalog| catalog.get::<Dict<'_>>("Outlines")).and_then(|list| list.get::<Dict<'_>>("First"));
    let mut count = 0;
    match first {
        Some(first) => bookmarks(&first, 0, &mut count, &mut out),
        None => out.heading("(no bookmarks)"),
    }
    out.finish()
}

fn bookmarks(first: &Dict<'_>, depth: usize, count: &mut usize, out: &mut BoundedText) {
    let mut next = Some(first.clone());
    while let Some(entry) = next {
        *count += 1;
        if *count > MAX_BOOKMARKS || depth > MAX_DEPTH {
            return;
        }
        if let Some(title) = entry.get::<PdfString<'_>>("Title") {
            out.heading(&format!("{}- {}", "  ".repeat(depth), decode_text(title.as_bytes()).trim()));
        }
        if let Some(child) = entry.get::<Dict<'_>>("First") {
            bookmarks(&child, depth + 1, count, out);
        }
        next = entry.get::<Dict<'_>>("Next");
    }
}

/// Decodes a text string of a PDF file: UTF-16 or UTF-8 with a mark, otherwise a superset of Latin-1.
fn decode_text(bytes: &[u8]) -> String {
    match encoding_rs::Encoding::for_bom(bytes) {
        Some((encoding, _)) => encoding.decode(bytes).0.into_owned(),
        None => encoding_rs::WINDOWS_1252.decode(bytes).0.into_owned(),
    }
}
