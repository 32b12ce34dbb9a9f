//! Handles characters that users cannot see, and code fences that the fenced text cannot close.
//!
//! Invariant: this is the only list of invisible and bidirectional characters. Terminal, consent, trust and session
//! views all use it.

pub mod line_diff;

use std::fmt::Write as _;

/// Joins the emoji on both sides into one.
pub const ZERO_WIDTH_JOINER: char = '\u{200D}';
/// Keeps the letters on both sides separate; Persian and other scripts need it.
pub const ZERO_WIDTH_NON_JOINER: char = '\u{200C}';

/// Returns true for a character without a shape, or one that reorders its neighbours. Excludes control characters;
/// `char::is_control` covers those, C1 included.
pub fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{AD}'                        // soft hyphen
        | '\u{34F}'                     // combining grapheme joiner
        | '\u{61C}'                     // Arabic letter mark
        | '\u{115F}' | '\u{1160}'       // Hangul fillers
        | '\u{17B4}' | '\u{17B5}'       // Khmer inherent vowels
        | '\u{180B}'..='\u{180F}'       // Mongolian selectors and vowel separator
        | '\u{200B}'..='\u{200F}'       // zero-width space and joiners, direction marks
        | '\u{2028}'..='\u{202E}'       // line and paragraph separators, embeddings, overrides
        | '\u{2060}'..='\u{206F}'       // word joiner, invisible operators, isolates, deprecated format characters
        | '\u{2800}'                    // blank Braille pattern
        | '\u{3164}'                    // Hangul filler
        | '\u{FE00}'..='\u{FE0F}'       // variation selectors
        | '\u{FEFF}'                    // byte order mark
        | '\u{FFA0}'                    // halfwidth Hangul filler
        | '\u{FFF0}'..='\u{FFFB}'       // unassigned format characters, interlinear annotations
        | '\u{13430}'..='\u{1343F}'     // Egyptian hieroglyph format controls
        | '\u{16FE4}'                   // Khitan filler
        | '\u{1BCA0}'..='\u{1BCA3}'     // shorthand format controls
        | '\u{1D159}'                   // musical null notehead
        | '\u{1D173}'..='\u{1D17A}'     // musical format controls
        | '\u{E0000}'..='\u{E0FFF}'     // tags, variation selectors supplement
    )
}

/// Returns true for the selectors that choose between the text and the emoji shape of the character before them.
fn is_emoji_selector(c: char) -> bool {
    matches!(c, '\u{FE0E}' | '\u{FE0F}')
}

/// Returns true for characters in blocks that can have an emoji shape.
fn is_symbol(c: char) -> bool {
    matches!(c, '\u{A9}' | '\u{AE}' | '\u{203C}'..='\u{3299}' | '\u{1F000}'..='\u{1FAFF}') && !is_invisible(c)
}

/// Returns true if an invisible character only shapes the visible one before it. This is an emoji selector after a
/// symbol, or a joiner after a non-ASCII character. A second joiner in a row shapes nothing.
pub fn shapes(c: char, before: Option<char>) -> bool {
    let Some(before) = before else { return false };
    match c {
        ZERO_WIDTH_JOINER | ZERO_WIDTH_NON_JOINER => {
            !before.is_ascii() && (!is_invisible(before) || is_emoji_selector(before)) && before != '\u{FFFD}'
        }
        c => is_emoji_selector(c) && is_symbol(before),
    }
}

/// Replaces control, invisible and bidirectional characters by U+FFFD, and tabs by spaces. Drops an emoji selector
/// after a symbol.
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = None;
    for c in text.chars() {
        match c {
            '\t' => out.push(' '),
            c if is_emoji_selector(c) && shapes(c, before) => {}
            c if c.is_control() || is_invisible(c) => out.push('\u{FFFD}'),
            c => out.push(c),
        }
        before = Some(c);
    }
    out
}

/// Escapes control, invisible and bidirectional characters in a JSON text. The meaning stays the same, because JSON has
/// such characters only inside strings. Line feeds stay; carriage returns and tabs between values become spaces.
pub fn escape_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' => out.push(c),
            '\r' | '\t' => out.push(' '),
            c if c.is_control() || is_invisible(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out
}

/// Puts a text into a Markdown code block. The fence is longer than every run of backticks inside.
pub fn code_block(language: &str, text: &str) -> String {
    let fence = "`".repeat(longest_run(text).max(2) + 1);
    format!("{fence}{language}\n{text}\n{fence}")
}

/// Puts the output of a program or a file into a Markdown code block without a language.
pub fn fence(text: &str) -> String {
    code_block("", text.strip_suffix('\n').unwrap_or(text))
}

/// Puts a text into a Markdown code span. The fence is longer than every run of backticks inside.
pub fn code_span(text: &str) -> String {
    if !text.contains('`') {
        return format!("`{text}`");
    }
    let fence = "`".repeat(longest_run(text) + 1);
    format!("{fence} {text} {fence}")
}

fn longest_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The characters that an attack used, and the rest of Unicode's default-ignorable ones.
    const INVISIBLE: [char; 32] = [
        '\u{AD}',
        '\u{34F}',
        '\u{61C}',
        '\u{115F}',
        '\u{1160}',
        '\u{17B4}',
        '\u{180B}',
        '\u{180E}',
        '\u{200B}',
        '\u{200E}',
        '\u{2028}',
        '\u{2029}',
        '\u{202A}',
        '\u{202E}',
        '\u{2060}',
        '\u{2064}',
        '\u{2066}',
        '\u{2069}',
        '\u{206A}',
        '\u{206F}',
        '\u{2800}',
        '\u{3164}',
        '\u{FE00}',
        '\u{FE0F}',
        '\u{FEFF}',
        '\u{FFA0}',
        '\u{FFF9}',
        '\u{FFFB}',
        '\u{1D173}',
        '\u{E0001}',
        '\u{E007F}',
        '\u{E01EF}',
    ];

    #[test]
    fn invisible_and_bidirectional_characters_are_on_the_list() {
        for c in INVISIBLE {
            assert!(is_invisible(c), "U+{:04X}", u32::from(c));
            assert_eq!(visible(&format!("a{c}b")), "a\u{FFFD}b", "U+{:04X}", u32::from(c));
        }
        for c in
            ['a', 'é', 'ß', '日', '한', 'ش', 'ש', '🪢', '⠁', '\u{301}', '\u{A0}', '\u{3000}', '\u{FFFC}', '\u{FFFD}']
        {
            assert!(!is_invisible(c), "U+{:04X}", u32::from(c));
        }
        assert_eq!(visible("a\tb\u{9b}2J\u{7f}\u{1b}"), "a b\u{FFFD}2J\u{FFFD}\u{FFFD}");
    }

    #[test]
    fn emoji_stay_and_selectors_hide_nothing() {
        assert_eq!(visible("⚠\u{FE0F} ❤\u{FE0F} ©\u{FE0E}"), "⚠ ❤ ©");
        assert_eq!(visible("⚠\u{FE0F}\u{FE0F}a\u{FE0F}"), "⚠\u{FFFD}a\u{FFFD}");
        assert_eq!(visible("👩\u{200D}💻"), "👩\u{FFFD}💻");
        assert!(
            shapes('\u{200D}', Some('👩')) && shapes('\u{200D}', Some('\u{FE0F}')) && shapes('\u{200C}', Some('ی'))
        );
        assert!(!shapes('\u{200D}', Some('\u{200D}')) && !shapes('\u{200D}', Some('a')) && !shapes('\u{200D}', None));
        assert!(shapes('\u{FE0F}', Some('⚠')) && !shapes('\u{FE0F}', Some('é')) && !shapes('\u{E0041}', Some('🏴')));
    }

    #[test]
    fn escaped_json_means_the_same_and_hides_nothing() {
        for c in INVISIBLE.into_iter().chain(['\u{9b}', '\u{7f}', '\u{85}', '🪢', '\n']) {
            let value = serde_json::json!({"text": format!("a{c}b")});
            let escaped = escape_json(&format!("{value:#}"));
            assert!(!escaped.contains(|c: char| (c.is_control() && c != '\n') || is_invisible(c)), "{escaped:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).ok(), Some(value));
        }
    }

    #[test]
    fn no_text_closes_the_fence_around_it() {
        for (text, fence) in [("ls", "```"), ("a ``` b", "````"), ("````\nrm -rf x\n`````", "``````")] {
            assert_eq!(code_block("sh", text), format!("{fence}sh\n{text}\n{fence}"));
        }
        assert_eq!(fence("# a\n"), "```\n# a\n```");
        assert_eq!((code_span("a"), code_span("a``b")), ("`a`".to_owned(), "``` a``b ```".to_owned()));
    }
}
