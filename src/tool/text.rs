//! Removes invisible characters from untrusted text, and truncates text.

pub use crate::text::is_invisible as is_hidden;

/// Removes invisible and control characters except line feeds and tabs.
pub fn strip_invisible(text: &str) -> String {
    text.chars().filter(|c| (!c.is_control() || "\n\t".contains(*c)) && !is_hidden(*c)).collect()
}

/// Removes invisible characters and joins all lines into one.
pub fn strip_to_line(text: &str) -> String {
    strip_invisible(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the beginning of a text: at most `bytes` bytes, without splitting a character.
pub fn truncate(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}
