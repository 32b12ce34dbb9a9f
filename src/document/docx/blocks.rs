//! Writes paragraphs and tables as the XML of a text document.

use crate::document::xml::escape;

pub(super) const WORD: &str = "http://schemas.openxmlformats.org/wordprocessingml/2006/main";

/// A piece of text with one look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TextRun {
    pub(super) text: String,
    pub(super) bold: bool,
    pub(super) italic: bool,
}

/// Splits text at `**bold**` and `*italic*`. A mark without its partner is text.
pub(super) fn parse_runs(text: &str) -> Vec<TextRun> {
    let mut runs = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let mark = if rest.starts_with("**") { "**" } else { "*" };
        let inside = rest.strip_prefix(mark).and_then(|inner| emphasis(inner, mark));
        match inside {
            Some(inside) => {
                if !plain.is_empty() {
                    runs.push(TextRun { text: std::mem::take(&mut plain), ..TextRun::default() });
                }
                rest = &rest[mark.len() * 2 + inside.len()..];
                runs.push(TextRun { text: inside.to_owned(), bold: mark == "**", italic: mark == "*" });
            }
            None => {
                plain.push(letter);
                rest = &rest[letter.len_utf8()..];
            }
        }
    }
    if !plain.is_empty() {
        runs.push(TextRun { text: plain, ..TextRun::default() });
    }
    runs
}

/// Returns the text before the closing mark, if it neither starts nor ends with a space.
fn emphasis<'a>(inner: &'a str, mark: &str) -> Option<&'a str> {
    let inside = &inner[..inner.find(mark)?];
    let is_text =
        !inside.is_empty() && !inside.starts_with(char::is_whitespace) && !inside.ends_with(char::is_whitespace);
    (is_text && !inside.contains('*') && !inside.contains('\n')).then_some(inside)
}

/// Returns the element of a paragraph.
pub(super) fn paragraph_xml(runs: &[TextRun], style: Option<&str>, list: Option<u32>) -> String {
    let mut properties = String::new();
    if let Some(style) = style {
        properties.push_str(&format!("<w:pStyle w:val=\"{}\"/>", escape(style)));
    }
    if let Some(list) = list {
        properties.push_str(&format!("<w:numPr><w:ilvl w:val=\"0\"/><w:numId w:val=\"{list}\"/></w:numPr>"));
    }
    if !properties.is_empty() {
        properties = format!("<w:pPr>{properties}</w:pPr>");
    }
    let runs: String = runs.iter().map(run_xml).collect();
    format!("<w:p xmlns:w=\"{WORD}\">{properties}{runs}</w:p>")
}

fn run_xml(run: &TextRun) -> String {
    let mut look = String::new();
    if run.bold {
        look.push_str("<w:b/>");
    }
    if run.italic {
        look.push_str("<w:i/>");
    }
    if !look.is_empty() {
        look = format!("<w:rPr>{look}</w:rPr>");
    }
    format!("<w:r>{look}{}</w:r>", text_xml(&run.text, "w:"))
}

/// Returns the elements of a text inside a run. Line ends and tabs have their own.
pub(super) fn text_xml(text: &str, prefix: &str) -> String {
    let mut out = String::new();
    let mut piece = String::new();
    let text = text.replace("\r\n", "\n");
    let flush = |out: &mut String, piece: &mut String| {
        if !piece.is_empty() {
            out.push_str(&format!("<{prefix}t xml:space=\"preserve\">{}</{prefix}t>", escape(piece)));
            piece.clear();
        }
    };
    for letter in text.chars() {
        match letter {
            '\n' | '\r' => {
                flush(&mut out, &mut piece);
                out.push_str(&format!("<{prefix}br/>"));
            }
            '\t' => {
                flush(&mut out, &mut piece);
                out.push_str(&format!("<{prefix}tab/>"));
            }
            letter => piece.push(letter),
        }
    }
    flush(&mut out, &mut piece);
    out
}

/// Returns the element of a table with borders. The first row is repeated on each page.
pub(super) fn table_xml(rows: &[Vec<String>]) -> String {
    let width = rows.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let borders: String = ["top", "left", "bottom", "right", "insideH", "insideV"]
        .iter()
        .map(|side| format!("<w:{side} w:val=\"single\" w:sz=\"4\" w:space=\"0\" w:color=\"auto\"/>"))
        .collect();
    let column = 9_000 / width;
    let grid = format!("<w:gridCol w:w=\"{column}\"/>").repeat(width);
    let mut out = format!(
        "<w:tbl xmlns:w=\"{WORD}\"><w:tblPr><w:tblW w:w=\"0\" w:type=\"auto\"/><w:tblBorders>{borders}</w:tblBorders></w:tblPr><w:tblGrid>{grid}</w:tblGrid>"
    );
    for (index, row) in rows.iter().enumerate() {
        out.push_str(if index == 0 { "<w:tr><w:trPr><w:tblHeader/></w:trPr>" } else { "<w:tr>" });
        for at in 0..width {
            let text = row.get(at).map_or("", String::as_str);
            let mut runs = parse_runs(text);
            if index == 0 {
                runs.iter_mut().for_each(|run| run.bold = true);
            }
            let paragraph = paragraph_xml(&runs, None, None);
            out.push_str(&format!("<w:tc><w:tcPr><w:tcW w:w=\"{column}\" w:type=\"dxa\"/></w:tcPr>{paragraph}</w:tc>"));
        }
        out.push_str("</w:tr>");
    }
    out.push_str("</w:tbl>");
    // A document cannot end with a table, and two tables in a row become one.
    out.push_str(&format!("<w:p xmlns:w=\"{WORD}\"/>"));
    out
}
