//! Parses the inline marks of Markdown: code, emphasis, links.
//!
//! Invariant: a mark is decided only when later text cannot change it, so that text in chunks gives the same result as
//! the whole text. A mark without a closing mark is literal text.

use anstyle::{AnsiColor, Style};

use super::super::output::QUIET;

/// Bytes within which a mark must close, so that an unclosed mark does not hold back the answer.
const FAR: usize = 1000;

/// Text and the style in which it is shown.
pub(super) type StyledText = (String, Style);

/// Position of a closing mark in text that may still grow.
enum MarkSearch {
    At(usize),
    Nowhere,
    /// Depends on text that has not arrived yet.
    Unknown,
}

/// The inline element at a position.
enum InlineSpan {
    /// Bytes of literal text.
    Plain(usize),
    /// Text without marks, and the bytes it took.
    Verbatim {
        text: String,
        style: Style,
        taken: usize,
    },
    /// Text that may contain marks, a suffix to show after it, and the bytes both took.
    Styled {
        inside: String,
        style: Style,
        behind: Option<String>,
        taken: usize,
    },
    Unknown,
}

/// Parses the decided part of `text` into `out` and returns its length in bytes. If `whole`, that is all of it.
/// `before` is the character before `text`.
pub(super) fn read(text: &str, before: Option<char>, style: Style, whole: bool, out: &mut Vec<StyledText>) -> usize {
    let mut at = 0;
    while at < text.len() {
        let last = text[..at].chars().next_back().or(before);
        match mark(&text[at..], last, style, whole) {
            InlineSpan::Plain(length) => {
                out.push((text[at..at + length].to_owned(), style));
                at += length;
            }
            InlineSpan::Verbatim { text, style, taken } => {
                out.push((text, style));
                at += taken;
            }
            InlineSpan::Styled { inside, style: inner, behind, taken } => {
                read(&inside, None, inner, true, out);
                out.extend(behind.map(|behind| (behind, QUIET)));
                at += taken;
            }
            InlineSpan::Unknown => break,
        }
    }
    at
}

fn mark(text: &str, before: Option<char>, style: Style, whole: bool) -> InlineSpan {
    match text.chars().next() {
        Some('\\') => match text[1..].chars().next() {
            Some(c) if c.is_ascii_punctuation() => InlineSpan::Verbatim { text: c.to_string(), style, taken: 2 },
            None if !whole => InlineSpan::Unknown,
            _ => InlineSpan::Plain(1),
        },
        Some('`') => {
            let ticks = run(text, '`');
            match code_end(text, ticks, whole) {
                MarkSearch::At(end) => {
                    let style = style.fg_color(Some(AnsiColor::Cyan.into()));
                    InlineSpan::Verbatim {
                        text: strip_padding(&text[ticks..end]).to_owned(),
                        style,
                        taken: end + ticks,
                    }
                }
                MarkSearch::Nowhere => InlineSpan::Plain(ticks),
                MarkSearch::Unknown => InlineSpan::Unknown,
            }
        }
        Some(c @ ('*' | '_' | '~')) => emphasis(text, c, before, style, whole),
        Some('[') => link(text, 0, style, whole),
        Some('!') => match text[1..].chars().next() {
            Some('[') => link(text, 1, style, whole),
            None if !whole => InlineSpan::Unknown,
            _ => InlineSpan::Plain(1),
        },
        _ => InlineSpan::Plain(text.find(['\\', '`', '*', '_', '~', '[', '!']).unwrap_or(text.len())),
    }
}

fn emphasis(text: &str, c: char, before: Option<char>, style: Style, whole: bool) -> InlineSpan {
    let marks = run(text, c);
    let Some(next) = text[marks..].chars().next() else {
        return if whole { InlineSpan::Plain(marks) } else { InlineSpan::Unknown };
    };
    let in_word = match c {
        '_' => before.is_some_and(char::is_alphanumeric),
        // For example, 2*3*4.
        '*' => marks == 1 && before.is_some_and(|c| c.is_ascii_alphanumeric()) && next.is_ascii_alphanumeric(),
        _ => false,
    };
    let fits = if c == '~' { marks == 2 } else { marks <= 3 };
    if in_word || next.is_whitespace() || !fits {
        return InlineSpan::Plain(marks);
    }
    match partner(text, c, marks, whole) {
        MarkSearch::At(end) => {
            let style = match (c, marks) {
                ('~', _) => style.strikethrough(),
                (_, 1) => style.italic(),
                (_, 2) => style.bold(),
                _ => style.bold().italic(),
            };
            InlineSpan::Styled { inside: text[marks..end].to_owned(), style, behind: None, taken: end + marks }
        }
        MarkSearch::Nowhere => InlineSpan::Plain(marks),
        MarkSearch::Unknown => InlineSpan::Unknown,
    }
}

/// Finds the run of marks that closes the run at the start of `text`.
fn partner(text: &str, c: char, marks: usize, whole: bool) -> MarkSearch {
    let mut at = marks;
    while at < text.len() && at < FAR {
        let rest = &text[at..];
        let step = match rest.chars().next() {
            Some('\\') => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            Some('`') => {
                let ticks = run(rest, '`');
                match code_end(rest, ticks, whole) {
                    MarkSearch::At(end) => end + ticks,
                    MarkSearch::Nowhere => ticks,
                    MarkSearch::Unknown => return MarkSearch::Unknown,
                }
            }
            Some(other) if other == c => {
                let found = run(rest, c);
                let next = rest[found..].chars().next();
                if next.is_none() && !whole {
                    return MarkSearch::Unknown;
                }
                let closes = !text[..at].ends_with(char::is_whitespace)
                    && (c != '_' || !next.is_some_and(char::is_alphanumeric));
                if found == marks && closes {
                    return MarkSearch::At(at);
                }
                found
            }
            other => other.map_or(1, char::len_utf8),
        };
        at += step;
    }
    if whole || at >= FAR { MarkSearch::Nowhere } else { MarkSearch::Unknown }
}

/// Finds the next run of as many ticks as `text` starts with.
fn code_end(text: &str, ticks: usize, whole: bool) -> MarkSearch {
    let mut at = ticks;
    while let Some(next) = text.get(at..).and_then(|rest| rest.find('`')).filter(|next| at + next < FAR) {
        at += next;
        let found = run(&text[at..], '`');
        if at + found == text.len() && !whole {
            return MarkSearch::Unknown;
        }
        if found == ticks {
            return MarkSearch::At(at);
        }
        at += found;
    }
    if whole || text.len() >= FAR { MarkSearch::Nowhere } else { MarkSearch::Unknown }
}

/// Parses `[text](address)`, or an image if `skip` is 1.
fn link(text: &str, skip: usize, style: Style, whole: bool) -> InlineSpan {
    let undecided = || if whole || text.len() >= FAR { InlineSpan::Plain(skip + 1) } else { InlineSpan::Unknown };
    let Some(close) = closing(&text[skip..], '[', ']') else { return undecided() };
    let close = close + skip;
    if close >= FAR {
        return InlineSpan::Plain(skip + 1);
    }
    match text[close + 1..].chars().next() {
        Some('(') => {}
        None => return undecided(),
        Some(_) => return InlineSpan::Plain(skip + 1),
    }
    let Some(end) = closing(&text[close + 1..], '(', ')') else { return undecided() };
    let end = end + close + 1;
    if end >= FAR {
        return InlineSpan::Plain(skip + 1);
    }
    let (label, address) = (&text[skip + 1..close], text[close + 2..end].trim());
    // Always show the address, because the label may claim a different one.
    let behind = (label != address && !address.is_empty()).then(|| format!(" ({address})"));
    InlineSpan::Styled { inside: label.to_owned(), style: style.underline(), behind, taken: end + 1 }
}

/// Returns the position that closes the bracket at the start of `text`.
fn closing(text: &str, open: char, close: char) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        if c == open {
            depth += 1;
        } else if c == close {
            depth -= 1;
            if depth == 0 {
                return Some(at);
            }
        }
    }
    None
}

/// Returns how many times `c` occurs at the start of `text`.
fn run(text: &str, c: char) -> usize {
    text.len() - text.trim_start_matches(c).len()
}

/// Strips one space on each side: `` ` a ` `` has them only to separate ticks.
fn strip_padding(code: &str) -> &str {
    let inner = code.strip_prefix(' ').and_then(|code| code.strip_suffix(' '));
    inner.filter(|inner| !inner.trim().is_empty()).unwrap_or(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let mut out = Vec::new();
        assert_eq!(read(text, None, Style::new(), true, &mut out), text.len());
        let names = |style: Style| {
            let effects = style.get_effects();
            let mut names = String::new();
            for (effect, name) in [
                (anstyle::Effects::BOLD, "b"),
                (anstyle::Effects::ITALIC, "i"),
                (anstyle::Effects::UNDERLINE, "u"),
                (anstyle::Effects::STRIKETHROUGH, "s"),
            ] {
                if effects.contains(effect) {
                    names.push_str(name);
                }
            }
            names + if style.get_fg_color() == Some(AnsiColor::Cyan.into()) { "c" } else { "" }
        };
        let mut joined: Vec<StyledText> = Vec::new();
        for (text, style) in out {
            match joined.last_mut() {
                Some((before, same)) if *same == style => before.push_str(&text),
                _ => joined.push((text, style)),
            }
        }
        let pieces = joined.iter().map(|(text, style)| match names(*style) {
            names if names.is_empty() => text.clone(),
            names => format!("<{names}:{text}>"),
        });
        pieces.collect()
    }

    #[test]
    fn marks_become_styles_and_lone_ones_stay() {
        for (text, expected) in [
            ("a **b** *c* ***d*** ~~e~~", "a <b:b> <i:c> <bi:d> <s:e>"),
            ("这是**重点**内容", "这是<b:重点>内容"),
            ("**a `*b` c**", "<b:a ><bc:*b><b: c>"),
            ("`x` ``a`b`` `` ` ``", "<c:x> <c:a`b> <c:`>"),
            ("snake_case_name and _this_", "snake_case_name and <i:this>"),
            ("2*3*4, 5 * 6, a **b", "2*3*4, 5 * 6, a **b"),
            ("[a](http://b) [c] ![d](e.png)", "<u:a> (http://b) [c] <u:d> (e.png)"),
            ("\\*no\\* \\a", "*no* \\a"),
            ("`open", "`open"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn a_lost_mark_does_not_hold_back_more_than_a_little() {
        let text = format!("**{}", "word ".repeat(400));
        let mut out = Vec::new();
        assert_eq!(read(&text, None, Style::new(), false, &mut out), text.len());
    }
}
