//! Renders Markdown to a terminal while it arrives. Printed text is never changed: a line is shown word by word as soon
//! as its kind is known. Only a table is held until it is complete.
//!
//! Invariant: the same text gives the same output, however it is split into chunks.

use anstyle::{AnsiColor, Style};

use super::super::output::{QUIET, verbatim};
use super::super::wrap::{Margin, Wrap};
use super::{inline, table};

/// Maximum width of prose, for readability.
const READABLE: usize = 100;
/// Characters that count as blank in a line. Any other space is text; otherwise the start of a line could not be
/// distinguished from its end.
const BLANK: [char; 2] = [' ', '\t'];

/// Renders an answer that arrives in chunks.
#[derive(Debug, Default)]
pub(super) struct Markdown {
    /// The part of the current line that is not shown yet.
    line: String,
    /// The style of the current line, if it is text and its start is already shown.
    open: Option<Style>,
    /// The character before `line`.
    before: Option<char>,
    /// The opening fence of a code block, and its indent.
    fence: Option<(String, usize)>,
    /// The rows of the current table.
    table: Vec<String>,
    /// An empty line must precede the next line.
    gap: bool,
    started: bool,
    wrap: Wrap,
}

/// The kind of a line.
#[derive(Debug, PartialEq)]
enum LineKind {
    /// Text with its margin, its style, and the bytes of markup to skip.
    Text { margin: Margin, style: Style, skip: usize },
    /// A line that can only be parsed when complete: a fence, a rule, a table row.
    Whole,
}

impl Markdown {
    /// Adds `text` and returns the output that it makes ready.
    pub(super) fn push(&mut self, text: &str, width: usize) -> String {
        let mut out = String::new();
        // Lines may end with CRLF; a lone carriage return would only move the cursor.
        for piece in text.replace('\r', "").split_inclusive('\n') {
            match piece.strip_suffix('\n') {
                Some(rest) => {
                    self.line.push_str(rest);
                    self.end_of_line(width, &mut out);
                }
                None => {
                    self.line.push_str(piece);
                    self.some_of_line(width, &mut out);
                }
            }
        }
        out
    }

    /// Ends the text and its last line, and returns the remaining output.
    pub(super) fn end(&mut self, width: usize) -> String {
        let mut out = String::new();
        if self.open.is_some() || !self.line.is_empty() {
            self.end_of_line(width, &mut out);
        }
        self.end_of_table(width, &mut out);
        *self = Self::default();
        out
    }

    /// Prepares for other output. Print the returned text first; the answer continues below the other output.
    pub(super) fn interrupt(&mut self) -> &'static str {
        self.wrap.interrupt()
    }

    /// Returns true if the cursor is at the start of a line.
    pub(super) fn is_at_margin(&self) -> bool {
        self.wrap.is_at_margin()
    }

    /// Returns true if text has arrived that is not shown yet because it is incomplete.
    pub(super) fn has_pending(&self) -> bool {
        !self.table.is_empty() || !self.line.is_empty()
    }

    /// Handles a line that may still grow.
    fn some_of_line(&mut self, width: usize, out: &mut String) {
        if self.fence.is_some() || (self.open.is_none() && !self.begin_text(false, width, out)) {
            return;
        }
        self.words(false, width, out);
    }

    fn end_of_line(&mut self, width: usize, out: &mut String) {
        if self.open.is_none() && (self.is_whole_line(width, out) || !self.begin_text(true, width, out)) {
            self.line.clear();
            return;
        }
        self.words(true, width, out);
        self.wrap.end(width.min(READABLE));
        out.push_str(&self.wrap.take());
        (self.open, self.before) = (None, None);
    }

    /// Renders the line if its kind is parsed only when complete. Returns whether it was.
    fn is_whole_line(&mut self, width: usize, out: &mut String) -> bool {
        let line = std::mem::take(&mut self.line);
        if let Some((fence, indent)) = &self.fence {
            let trimmed = line.trim_matches(BLANK);
            let closes = trimmed.starts_with(fence.as_str()) && trimmed.trim_start_matches(['`', '~']).is_empty();
            let style = if closes { QUIET } else { Style::new() };
            let body = line.get(indent.to_owned().min(spaces(&line))..).unwrap_or_default();
            out.push_str(&format!("{}{style}{}{style:#}\n", " ".repeat(*indent), verbatim(body)));
            if closes {
                self.fence = None;
            }
            return true;
        }
        if table::is_row(&line) {
            self.table.push(line);
            return true;
        }
        self.end_of_table(width, out);
        let trimmed = line.trim_matches(BLANK);
        if trimmed.is_empty() {
            self.gap = self.started;
            return true;
        }
        let ticks = trimmed.len() - trimmed.trim_start_matches(['`', '~']).len();
        let first = trimmed.chars().next().unwrap_or(' ');
        if ticks >= 3 && trimmed.starts_with(&first.to_string().repeat(3)) && !trimmed[ticks..].contains('`') {
            self.due(out);
            out.push_str(&format!("{}{QUIET}{}{QUIET:#}\n", " ".repeat(spaces(&line)), verbatim(trimmed)));
            self.fence = Some((trimmed[..ticks].to_owned(), spaces(&line)));
            return true;
        }
        if is_break(trimmed) {
            self.due(out);
            out.push_str(&format!("{QUIET}{}{QUIET:#}\n", "─".repeat(width.min(READABLE))));
            return true;
        }
        self.line = line;
        false
    }

    /// Starts to show a line of text. Returns false if it is not text, or not yet known to be.
    fn begin_text(&mut self, whole: bool, width: usize, out: &mut String) -> bool {
        let Some(LineKind::Text { margin, style, skip }) = kind(&self.line, whole) else { return false };
        self.end_of_table(width, out);
        self.due(out);
        self.line.drain(..skip);
        self.wrap.begin(margin);
        self.open = Some(style);
        true
    }

    fn words(&mut self, whole: bool, width: usize, out: &mut String) {
        let style = self.open.unwrap_or_default();
        let mut pieces = Vec::new();
        let read = inline::read(&self.line, self.before, style, whole, &mut pieces);
        self.before = self.line[..read].chars().next_back().or(self.before);
        self.line.drain(..read);
        pieces.iter().for_each(|(text, style)| self.wrap.push(text, *style, width.min(READABLE)));
        out.push_str(&self.wrap.take());
    }

    fn end_of_table(&mut self, width: usize, out: &mut String) {
        let lines = std::mem::take(&mut self.table);
        if lines.is_empty() {
            return;
        }
        self.due(out);
        if lines.len() >= 2 && table::is_rule(&lines[1]) {
            out.push_str(&table::set(&lines, width));
            return;
        }
        for line in lines {
            let mut wrap = Wrap::default();
            wrap.begin(Margin::default());
            let mut pieces = Vec::new();
            inline::read(line.trim(), None, Style::new(), true, &mut pieces);
            pieces.iter().for_each(|(text, style)| wrap.push(text, *style, width.min(READABLE)));
            wrap.end(width.min(READABLE));
            out.push_str(&wrap.take());
        }
    }

    /// Prints a pending empty line. Several become one, and there is none at the start or the end.
    fn due(&mut self, out: &mut String) {
        if std::mem::take(&mut self.gap) {
            out.push('\n');
        }
        self.started = true;
    }
}

/// Returns the kind of a line from its start. `None` if it depends on text that has not arrived.
fn kind(line: &str, whole: bool) -> Option<LineKind> {
    let mut skip = 0;
    let mut margin = Margin::default();
    let text = |margin: Margin, style: Style, skip: usize| Some(LineKind::Text { margin, style, skip });
    loop {
        let rest = &line[skip..];
        let indent = spaces(rest);
        let trimmed = &rest[indent..];
        let mut chars = trimmed.chars();
        let first = match chars.next() {
            Some(first) => first,
            None if whole => return text(margin, Style::new(), skip + indent),
            None => return None,
        };
        let next = chars.next();
        if next.is_none() && !whole && matches!(first, '`' | '~' | '#' | '-' | '*' | '+' | '_' | '>') {
            return None;
        }
        match first {
            '|' if skip == 0 => return Some(LineKind::Whole),
            '`' | '~' if skip == 0 && !whole && trimmed.len() < 3 && next == Some(first) => return None,
            '`' | '~' if skip == 0 && trimmed.starts_with(&first.to_string().repeat(3)) => {
                return if whole {
                    text(indent_margin(margin, indent), Style::new(), indent)
                } else {
                    Some(LineKind::Whole)
                };
            }
            '>' => {
                let marker = indent + 1 + usize::from(next == Some(' '));
                margin.first.push_str(&format!("{QUIET}│{QUIET:#} "));
                margin.next.push_str(&format!("{QUIET}│{QUIET:#} "));
                margin.width += 2;
                skip += marker;
                continue;
            }
            '#' => {
                let level = trimmed.len() - trimmed.trim_start_matches('#').len();
                let behind = trimmed[level..].chars().next();
                if behind.is_none() && !whole {
                    return None;
                }
                if level <= 6 && behind.is_none_or(|c| c == ' ') {
                    let style = if level == 1 { Style::new().bold().underline() } else { Style::new().bold() };
                    return text(margin, style, skip + indent + level + usize::from(behind.is_some()));
                }
                return text(indent_margin(margin, indent), Style::new(), skip + indent);
            }
            '-' | '*' | '+' | '_' if !trimmed.contains(|c| c != first && !BLANK.contains(&c)) && !whole => return None,
            '-' | '*' | '+' if next == Some(' ') => {
                let margin = indent_margin(margin, indent);
                return text(item(margin, "•"), Style::new(), skip + indent + 2);
            }
            '0'..='9' => {
                let digits = trimmed.len() - trimmed.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                let mut behind = trimmed[digits..].chars();
                let (dot, space) = (behind.next(), behind.next());
                if !whole && (dot.is_none() || (matches!(dot, Some('.' | ')')) && space.is_none())) {
                    return None;
                }
                let margin = indent_margin(margin, indent);
                if digits <= 9 && matches!(dot, Some('.' | ')')) && space == Some(' ') {
                    return text(item(margin, &trimmed[..=digits]), Style::new(), skip + indent + digits + 2);
                }
                return text(margin, Style::new(), skip + indent);
            }
            _ => return text(indent_margin(margin, indent), Style::new(), skip + indent),
        }
    }
}

fn indent_margin(mut margin: Margin, indent: usize) -> Margin {
    // Limit the indent, so that text still fits on the screen.
    let indent = indent.min(16);
    margin.first.push_str(&" ".repeat(indent));
    margin.next.push_str(&" ".repeat(indent));
    margin.width += indent;
    margin
}

fn item(mut margin: Margin, marker: &str) -> Margin {
    let columns = marker.chars().count() + 1;
    let colour = AnsiColor::BrightBlack.on_default();
    margin.first.push_str(&format!("{colour}{marker}{colour:#} "));
    margin.next.push_str(&" ".repeat(columns));
    margin.width += columns;
    margin
}

/// Returns true for `---`, `***` or `___`.
fn is_break(line: &str) -> bool {
    let marks: String = line.chars().filter(|c| !BLANK.contains(c)).collect();
    marks.len() >= 3 && ["-", "*", "_"].iter().any(|mark| marks.replace(mark, "").is_empty())
}

fn spaces(line: &str) -> usize {
    line.len() - line.trim_start_matches(BLANK).len()
}

#[cfg(test)]
#[path = "markdown_tests.rs"]
mod tests;
