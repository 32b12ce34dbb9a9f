//! Text of others, without what does not show.

pub use crate::text::is_invisible as is_hidden;

/// The text without characters that do not show; lines and tabs stay.
pub fn strip_invisible(text: &str) -> String {
    text.chars().filter(|c| (!c.is_control() || "\n\t".contains(*c)) && !is_hidden(*c)).collect()
}

/// The same on one line.
pub fn strip_to_line(text: &str) -> String {
    strip_invisible(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The beginning of a text: at most so many bytes, and no character cut in two.
pub fn truncate(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}
