//! Collects the text of one block with its inline marks.

use super::Style;
use crate::text::{ZERO_WIDTH_JOINER, ZERO_WIDTH_NON_JOINER, code_span, is_invisible};

/// Maximum nesting of marks; deeper ones are dropped.
const MAX_MARKS: usize = 12;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InlineMark {
    Strong,
    Emphasis,
    Struck,
    Code,
    Link(String),
    /// An invisible mark for a link without a usable address, so that its end tag matches.
    Plain,
}

pub(super) struct Inline {
    text: String,
    /// Open marks and the positions in the text where they start.
    open: Vec<(InlineMark, usize)>,
    style: Style,
}

impl Inline {
    pub(super) fn new(style: Style) -> Self {
        Self { text: String::new(), open: Vec::new(), style }
    }

    /// Appends text and collapses white space to one blank, as a browser does.
    pub(super) fn push_collapsed(&mut self, text: &str) {
        for c in text.chars() {
            if c.is_whitespace() {
                if !self.text.is_empty() && !self.text.ends_with([' ', '\n']) {
                    self.text.push(' ');
                }
            } else if !is_hidden(c) {
                self.text.push(c);
            }
        }
    }

    pub(super) fn line_break(&mut self) {
        let kept = self.text.trim_end_matches(' ').len();
        // Keeps blanks inside an open mark.
        let first = self.open.iter().map(|(_, start)| *start).max().unwrap_or(0);
        self.text.truncate(kept.max(first));
        if !self.text.is_empty() {
            self.text.push('\n');
        }
    }

    pub(super) fn open(&mut self, mark: InlineMark) {
        let in_code = self.open.iter().any(|(open, _)| *open == InlineMark::Code);
        if self.open.len() < MAX_MARKS && !in_code {
            self.open.push((mark, self.text.len()));
        }
    }

    /// Closes the innermost mark of that kind. Any link closes any link.
    pub(super) fn close(&mut self, mark: &InlineMark) {
        let same = |open: &InlineMark| match (mark, open) {
            (InlineMark::Link(_), InlineMark::Link(_) | InlineMark::Plain) => true,
            _ => open == mark,
        };
        let Some(at) = self.open.iter().rposition(|(open, _)| same(open)) else { return };
        for (mark, start) in self.open.split_off(at).into_iter().rev() {
            self.wrap(&mark, start);
        }
    }

    /// Returns the text so far. Open marks continue in the next block.
    pub(super) fn take(&mut self) -> String {
        let open = std::mem::take(&mut self.open);
        for (mark, start) in open.iter().rev() {
            self.wrap(mark, *start);
        }
        self.open = open.into_iter().map(|(mark, _)| (mark, 0)).collect();
        std::mem::take(&mut self.text).trim().to_owned()
    }

    fn wrap(&mut self, mark: &InlineMark, start: usize) {
        if self.style == Style::Text {
            return;
        }
        let content = self.text.split_off(start);
        let inner = content.trim();
        let marked = match mark {
            _ if inner.is_empty() => String::new(),
            InlineMark::Plain => inner.to_owned(),
            InlineMark::Strong => format!("**{inner}**"),
            InlineMark::Emphasis => format!("*{inner}*"),
            InlineMark::Struck => format!("~~{inner}~~"),
            InlineMark::Code => code_span(inner),
            // The sign next to a heading that links to itself.
            InlineMark::Link(_) if inner == "¶" || inner == "#" => String::new(),
            InlineMark::Link(target) => format!("[{inner}]({target})"),
        };
        let edge = |blank: bool| if blank { " " } else { "" };
        let before = edge(content.starts_with([' ', '\n']) && !self.text.ends_with([' ', '\n']));
        let after = edge(content.len() > 1 && content.ends_with([' ', '\n']) && !marked.is_empty());
        self.text.push_str(before);
        self.text.push_str(&marked);
        self.text.push_str(after);
    }
}

/// Returns whether a reader would not see the character but a model would. Joiners and variation selectors stay,
/// because scripts and emoji need them.
pub(super) fn is_hidden(c: char) -> bool {
    let shaping = matches!(c, ZERO_WIDTH_JOINER | ZERO_WIDTH_NON_JOINER | '\u{FE00}'..='\u{FE0F}');
    c.is_control() || (is_invisible(c) && !shaping)
}
