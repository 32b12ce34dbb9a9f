//! Detects keys, tokens and passwords in text that is about to be stored. Prefers false positives to storing a secret.
//! Returns the forms of a known secret, so that it can be hidden.

mod address;
mod key_formats;
mod key_shape;
mod percent;
mod secret_forms;

use std::sync::LazyLock;

use regex::RegexSet;

pub use address::{AddressPart, AddressParts, AddressSecret, address_secrets};
use key_formats::KEY_FORMATS;
pub use key_shape::{WORD_BORDERS, has_key_shape};
pub use secret_forms::secret_forms;

/// Minimum length, and entropy in bits per character, of a word that counts as a random key.
const MIN_RANDOM_LENGTH: usize = 20;
const MIN_ENTROPY: f64 = 3.9;

/// Formats of text around a secret. They come after those of the keys themselves.
static CONTEXT_FORMATS: [(&str, &str); 2] = [
    (r"(?i)\b[a-z][a-z0-9+.-]*://[^\s/:@]+:[^\s/@]{3,}@", "a password in a URL"),
    (
        r#"(?i)\b(pass(word|wd|phrase)?|secret|api[_ -]?key|access[_ -]?key|(auth|access|bearer)[_ -]?token|pin)\b\s*(is\b|[:=])\s*["']?[^\s"']{4,}"#,
        "a password or key",
    ),
];

/// All patterns as one automaton, which reads a text once. The tests find an example of each.
static KNOWN: LazyLock<RegexSet> = LazyLock::new(|| {
    let patterns = KEY_FORMATS.iter().chain(&CONTEXT_FORMATS).map(|(pattern, _)| pattern);
    RegexSet::new(patterns).unwrap_or_else(|_| RegexSet::empty())
});

/// Returns the kind of secret that the text seems to contain. `None` if it contains none.
pub fn find_secret(text: &str) -> Option<&'static str> {
    let known = KNOWN.matches(text).iter().next();
    let known = known.and_then(|index| KEY_FORMATS.iter().chain(&CONTEXT_FORMATS).nth(index)).map(|(_, what)| *what);
    known.or_else(|| {
        text.split(|c: char| c.is_whitespace() || "\"'`,;()<>".contains(c)).any(random).then_some("a random key")
    })
}

/// Returns whether a word is long, has mixed characters and high entropy.
fn random(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    // Paths, URLs and identifiers are long too, but consist of words.
    let part = word.rsplit(['/', ':', '=', '@', '.']).max_by_key(|part| part.len()).unwrap_or(word);
    let has = |test: fn(&char) -> bool| part.chars().any(|c| test(&c));
    let mixed = has(char::is_ascii_digit) && has(char::is_ascii_lowercase) && has(char::is_ascii_uppercase);
    part.len() >= MIN_RANDOM_LENGTH && mixed && entropy(part) > MIN_ENTROPY && restless(part)
}

/// Returns whether the kind of character changes often. It changes rarely in words, even in `CamelCase2`, but about
/// every second character in random text.
fn restless(text: &str) -> bool {
    let kind = |c: char| (c.is_ascii_digit(), c.is_ascii_uppercase(), c.is_ascii_lowercase());
    let kinds: Vec<_> = text.chars().map(kind).collect();
    let changes = kinds.windows(2).filter(|pair| pair[0] != pair[1]).count();
    changes * 5 >= kinds.len() * 2
}

/// Returns the entropy in bits per character.
fn entropy(text: &str) -> f64 {
    let mut counts = std::collections::HashMap::new();
    for c in text.chars() {
        *counts.entry(c).or_insert(0_u32) += 1;
    }
    let length = f64::from(u32::try_from(text.chars().count()).unwrap_or(u32::MAX));
    counts.values().map(|count| f64::from(*count) / length).map(|share| -share * share.log2()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_found() {
        for text in [
            "the key is AKIAIOSFODNN7EXAMPLE",
            "token ghp_abcdefghijklmnopqrstuvwxyz0123456789",
            "skein_0123456789ab_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            concat!("use sk-", "proj-abcdefghijklmnop1234"),
            "password: hunter2",
            "the database password is correct-horse",
            "postgres://app:s3cr3t@db/prod",
            "-----BEGIN OPENSSH PRIVATE KEY-----",
            "deploy with Zx8Qp2Lm9Rt4Vw7Yb1Nc6Kd3",
            "API_KEY=abcd1234efgh",
        ] {
            assert!(find_secret(text).is_some(), "{text}");
        }
    }

    #[test]
    fn ordinary_notes_are_kept() {
        for text in [
            "The user prefers tabs over spaces.",
            "Passwords are kept in the team vault, not in the repository.",
            "Fixed in commit 9bdb749f0c1d2e3a4b5c6d7e8f90a1b2c3d4e5f6",
            "The service id is 550e8400-e29b-41d4-a716-446655440000",
            "See src/services/builtin/developer/background_tests.rs and https://example.com/docs/GettingStartedGuide2024",
            "Class AbstractSingletonProxyFactoryBean2 is deprecated",
            "Der Benutzer heißt Jürgen und mag keine Semikolons; 東京で働いています。",
        ] {
            assert_eq!(find_secret(text), None, "{text}");
        }
    }
}
