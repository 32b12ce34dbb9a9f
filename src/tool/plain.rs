//! Text of others, so that it shows all that it says.

/// A character that does not show, or changes the order of those that do: a person and a model would not read the same.
pub fn is_hidden(c: char) -> bool {
    matches!(c, '\u{AD}' | '\u{61C}' | '\u{180E}' | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}'
        | '\u{2060}'..='\u{206F}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{E0000}'..='\u{E007F}')
}

/// The text without characters that do not show; lines and tabs stay.
pub fn plain(text: &str) -> String {
    text.chars().filter(|c| (!c.is_control() || "\n\t".contains(*c)) && !is_hidden(*c)).collect()
}

/// The same on one line.
pub fn plain_line(text: &str) -> String {
    plain(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The beginning of a text: at most so many bytes, and no character cut in two.
pub fn head(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}
