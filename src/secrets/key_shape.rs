//! Recognizes words with the form of a key, for values whose place in a file suggests a secret.

/// Characters that end a word in an argument, in any syntax.
pub const WORD_BORDERS: [char; 18] =
    ['=', ':', ';', ',', '"', '\'', '{', '}', '#', '?', '&', '@', '.', ' ', '(', ')', '\t', '\n'];

/// Returns true if a word of the text has the form of a key.
pub fn has_key_shape(text: &str) -> bool {
    text.split(WORD_BORDERS).any(is_key_shaped)
}

/// Returns true for a long text of letters and digits without the separators of a readable path or package name.
fn is_key_shaped(text: &str) -> bool {
    let known = ["sk-", "ghp_", "gho_", "github_pat_", "xoxb-", "xoxp-", "glpat-", "AKIA", "AIza", "eyJ"];
    let body = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '+' | '='));
    let mixed = text.chars().any(|c| c.is_ascii_digit()) && text.chars().any(|c| c.is_ascii_alphabetic());
    body && ((text.len() >= 24 && mixed) || (text.len() >= 12 && known.iter().any(|start| text.starts_with(start))))
}
