//! Wraps words into lines no wider than the screen, by display columns.
//!
//! Invariant: the output depends only on the text, not on how it is split into chunks. No control character gets
//! through.

use anstyle::Style;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::output::tame;
use crate::text::ZERO_WIDTH_JOINER as JOINER;

/// Minimum width of the screen that is assumed.
const NARROWEST: usize = 20;

/// Styled text before the first line and before each further line of a paragraph.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Margin {
    pub(super) first: String,
    pub(super) next: String,
    /// The display columns of either margin.
    pub(super) width: usize,
}

/// A paragraph that is being wrapped.
#[derive(Debug, Default)]
pub(super) struct Wrap {
    ready: String,
    margin: Margin,
    /// Column of the current line.
    column: usize,
    /// Spaces to insert before the next word, if there is one.
    gap: usize,
    /// The word that may still grow.
    word: Vec<(Style, String)>,
    last: Option<char>,
    /// Other output was printed below the current line.
    interrupted: bool,
}

impl Wrap {
    /// Begins a paragraph at the start of a line.
    pub(super) fn begin(&mut self, margin: Margin) {
        self.ready.push_str(&margin.first);
        self.column = margin.width;
        self.margin = margin;
        (self.gap, self.last) = (0, None);
    }

    pub(super) fn push(&mut self, text: &str, style: Style, width: usize) {
        for c in text.chars() {
            let c = tame(c, self.last);
            if c == ' ' {
                self.settle(width);
                self.gap += 1;
            } else {
                if self.last.is_some_and(|last| may_part(last, c)) {
                    self.settle(width);
                }
                match self.word.last_mut() {
                    Some((same, word)) if *same == style => word.push(c),
                    _ => self.word.push((style, c.to_string())),
                }
            }
            self.last = Some(c);
        }
    }

    /// Ends the last word; the line stays open.
    pub(super) fn flush(&mut self, width: usize) {
        self.settle(width);
    }

    /// Ends the paragraph and its line.
    pub(super) fn end(&mut self, width: usize) {
        self.settle(width);
        if !std::mem::take(&mut self.interrupted) {
            self.ready.push('\n');
        }
        (self.column, self.gap) = (0, 0);
    }

    /// Returns true if the cursor's line is empty.
    pub(super) fn is_at_margin(&self) -> bool {
        self.column == 0 || self.interrupted
    }

    /// Prepares for other output. Print the returned text first; the paragraph continues below the other output.
    pub(super) fn interrupt(&mut self) -> &'static str {
        if self.is_at_margin() {
            return "";
        }
        self.interrupted = true;
        "\n"
    }

    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.ready)
    }

    /// Places the complete word on the current line, or on a new line if it does not fit.
    fn settle(&mut self, width: usize) {
        if self.word.is_empty() {
            return;
        }
        let columns = self.word.iter().map(|(_, text)| text.as_str()).collect::<String>().width();
        let mut gap = std::mem::take(&mut self.gap);
        if std::mem::take(&mut self.interrupted) {
            self.ready.push_str(&self.margin.next);
            (self.column, gap) = (self.margin.width, 0);
        }
        if self.column + gap + columns > width && self.column > self.margin.width {
            self.ready.push('\n');
            self.ready.push_str(&self.margin.next);
            self.column = self.margin.width;
        } else {
            self.ready.push_str(&" ".repeat(gap));
            self.column += gap;
        }
        for (style, text) in self.word.drain(..) {
            self.ready.push_str(&format!("{style}{text}{style:#}"));
        }
        // A word longer than a line, such as a URL, is left to the terminal, so that it can be copied whole.
        self.column += columns;
    }
}

/// Wraps a paragraph in one style, with an indent.
pub(super) fn paragraph(text: &str, indent: usize, style: Style, width: usize) -> String {
    let mut wrap = Wrap::default();
    let margin = " ".repeat(indent);
    wrap.begin(Margin { first: margin.clone(), next: margin, width: indent });
    wrap.push(text, style, width);
    wrap.end(width);
    wrap.take()
}

/// Returns the current width of the screen.
pub(super) fn screen_width() -> usize {
    let columns = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { 80 } else { columns.max(NARROWEST) }
}

/// Returns true if a line may break between two characters without a space. That is next to double-width characters, as
/// in Chinese and Japanese, except where punctuation belongs to its neighbour.
fn may_part(last: char, next: char) -> bool {
    const NEVER_FIRST: &str = "、。，．：；！？）］｝」』】〉》〕ー々ぁぃぅぇぉっゃゅょァィゥェォッャュョ…‥,.:;!?)]}%";
    const NEVER_LAST: &str = "（［｛「『【〈《〔([{";
    let wide = |c: char| c.width() == Some(2);
    let is_tone = |c: char| ('\u{1F3FB}'..='\u{1F3FF}').contains(&c);
    (wide(last) || wide(next))
        && next.width().is_some_and(|columns| columns > 0)
        && last != JOINER
        && last != ' '
        && !is_tone(next)
        && !NEVER_FIRST.contains(next)
        && !NEVER_LAST.contains(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str, width: usize, margin: Margin) -> String {
        let mut wrap = Wrap::default();
        wrap.begin(margin);
        wrap.push(text, Style::new(), width);
        wrap.end(width);
        wrap.take()
    }

    #[test]
    fn words_stay_whole_and_further_lines_hang() {
        let margin = Margin { first: "- ".into(), next: "  ".into(), width: 2 };
        assert_eq!(set("one two three", 9, margin), "- one two\n  three\n");
    }

    #[test]
    fn columns_count_and_not_characters() {
        assert_eq!(set("日本語のテキスト", 7, Margin::default()), "日本語\nのテキ\nスト\n");
        assert_eq!(set("これは。そう", 6, Margin::default()), "これ\nは。そ\nう\n");
        assert_eq!(set("ab 👩‍👩‍👧 cd", 5, Margin::default()), "ab 👩‍👩‍👧\ncd\n");
        assert_eq!(set("e\u{301}e\u{301} e\u{301}", 4, Margin::default()), "e\u{301}e\u{301} e\u{301}\n");
    }

    #[test]
    fn a_word_that_no_line_holds_stays_whole() {
        assert_eq!(set("see https://example.org/a/b ok", 10, Margin::default()), "see\nhttps://example.org/a/b\nok\n");
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(set("a\u{1b}[2Jb\u{202e}c\u{7}", 80, Margin::default()), "a\u{FFFD}[2Jb\u{FFFD}c\u{FFFD}\n");
    }
}
