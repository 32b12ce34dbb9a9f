//! Reads delimited text: CSV and TSV, in any encoding and with any of the usual separators.

use super::cells::{CellRange, CellWindow, render_cells};
use super::error::DocumentError;
use super::render::BoundedText;
use super::request::{DocumentContent, DocumentView, ReadRequest};

const SEPARATORS: [char; 4] = [',', ';', '\t', '|'];
/// Lines that are looked at to find the separator.
const SAMPLE_LINES: usize = 20;
const MAX_CELLS: usize = 2_000_000;

pub(super) fn read(bytes: &[u8], request: &ReadRequest) -> Result<DocumentContent, DocumentError> {
    if request.what == DocumentView::Images {
        return Err(DocumentError::request("a CSV file has no images"));
    }
    let text = decode(bytes)?;
    let separator = find_separator(&text);
    let rows = parse(&text, separator)?;
    let width = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut out = BoundedText::new(request.search.as_deref());
    let name = if separator == '\t' { "tab".to_owned() } else { format!("`{separator}`") };
    out.heading(&format!("{} rows, {width} columns, separated by {name}", rows.len()));
    if request.what == DocumentView::Outline {
        return Ok(DocumentContent { text: out.finish(), images: Vec::new() });
    }
    let range = request.range.as_deref().map(CellRange::parse).transpose()?;
    let mut window = CellWindow::new(range);
    for (row, cells) in rows.into_iter().enumerate() {
        for (column, cell) in cells.into_iter().enumerate() {
            window.put(row, column, cell);
        }
    }
    render_cells(&mut out, &window);
    Ok(DocumentContent { text: out.finish(), images: Vec::new() })
}

/// Decodes by byte order mark, as UTF-8, or as Windows-1252, which old spreadsheets write.
fn decode(bytes: &[u8]) -> Result<String, DocumentError> {
    if let Some((encoding, _)) = encoding_rs::Encoding::for_bom(bytes) {
        return Ok(encoding.decode(bytes).0.into_owned());
    }
    if bytes.contains(&0) {
        return Err(DocumentError::no_support("the file is binary and of no format that can be read as a document"));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Ok(encoding_rs::WINDOWS_1252.decode(bytes).0.into_owned()),
    }
}

/// Returns the separator that splits the first lines into the same number of cells, and into most of them.
fn find_separator(text: &str) -> char {
    let first: String = text.split_inclusive('\n').take(SAMPLE_LINES).collect();
    let score = |separator: char| {
        let Ok(rows) = parse(&first, separator) else { return (0, 0) };
        let width = rows.first().map_or(0, Vec::len);
        let same = rows.iter().filter(|row| row.len() == width).count();
        if width > 1 { (same, width) } else { (0, 0) }
    };
    let best = SEPARATORS.into_iter().rev().max_by_key(|separator| score(*separator));
    best.filter(|separator| score(*separator).1 > 1).unwrap_or(',')
}

/// Splits text into rows of cells. Quoted cells may hold separators, line ends and doubled quotes.
pub(super) fn parse(text: &str, separator: char) -> Result<Vec<Vec<String>>, DocumentError> {
    let (mut rows, mut row, mut cell) = (Vec::new(), Vec::new(), String::new());
    let (mut quoted, mut cells, mut started) = (false, 0usize, false);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        started = true;
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if cell.is_empty() => quoted = true,
            letter if quoted => cell.push(letter),
            '\r' if letters.peek() == Some(&'\n') => {}
            '\n' | '\r' => {
                row.push(std::mem::take(&mut cell));
                rows.push(std::mem::take(&mut row));
                started = false;
                cells += 1;
            }
            letter if letter == separator => {
                row.push(std::mem::take(&mut cell));
                cells += 1;
            }
            letter => cell.push(letter),
        }
        if cells > MAX_CELLS {
            return Err(DocumentError::too_large(format!("the file has more than {MAX_CELLS} cells")));
        }
    }
    if started {
        row.push(cell);
        rows.push(row);
    }
    Ok(rows)
}
