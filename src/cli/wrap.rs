//! Puts words on lines no wider than the screen, by the columns they take there.
//!
//! Invariant: what comes out depends on the text alone, and not on the pieces it came in; nothing that would steer a
//! terminal gets through.

use anstyle::Style;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::output::tame;
use crate::text::ZERO_WIDTH_JOINER as JOINER;

/// Nothing is set narrower than this.
const NARROWEST: usize = 20;

/// What stands before the first and before every further line of a paragraph, already styled.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Margin {
    pub(super) first: String,
    pub(super) next: String,
    /// The columns either takes.
    pub(super) width: usize,
}

/// A paragraph that is being set.
#[derive(Debug, Default)]
pub(super) struct Wrap {
    ready: String,
    margin: Margin,
    /// Where the line stands that was begun.
    column: usize,
    /// The spaces that are to follow, if a word does.
    gap: usize,
    /// The word that may still grow.
    word: Vec<(Style, String)>,
    last: Option<char>,
    /// Something else was printed below the line that stands.
    interrupted: bool,
}

impl Wrap {
    /// Begins a paragraph at the beginning of a line.
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

    /// Nothing belongs to the last word any more; the line stays open.
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

    /// True if nothing stands on the line of the cursor.
    pub(super) fn is_at_margin(&self) -> bool {
        self.column == 0 || self.interrupted
    }

    /// Something else is going to be printed, after what this returns. The paragraph goes on below it.
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

    /// The word is whole: it is put where there is room for it.
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
        // A word that is longer than a line, as an address may be, is left to the terminal: it can be copied whole.
        self.column += columns;
    }
}

/// A paragraph in one style, indented.
pub(super) fn paragraph(text: &str, indent: usize, style: Style, width: usize) -> String {
    let mut wrap = Wrap::default();
    let margin = " ".repeat(indent);
    wrap.begin(Margin { first: margin.clone(), next: margin, width: indent });
    wrap.push(text, style, width);
    wrap.end(width);
    wrap.take()
}

/// How wide the screen is now.
pub(super) fn screen_width() -> usize {
    let columns = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { 80 } else { columns.max(NARROWEST) }
}

/// Whether a line may end between two characters that no space parts: around those that are as wide as two, as in
/// Chinese and Japanese, except where their punctuation belongs to its neighbour.
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
