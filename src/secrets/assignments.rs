//! Finds secrets by the text around them: a name such as `DB_PASSWORD=`, a header, the user of a URL.

use std::ops::Range;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// A value: what its first character is, if that matters, and the minimum number of other ones. At most 200 are compared,
/// because values may follow each other without end.
macro_rules! value {
    ($first:literal, $least:literal) => {
        concat!(r#"\\*(?<quote>["'`])?(?<value>"#, $first, r#"[^\s"'`]{"#, $least, ",200})")
    };
}

/// The text between a name and its value.
macro_rules! separator {
    ($sign:literal) => {
        concat!(r#"\\*["'`]?\s*(?<sign>"#, $sign, r"[:=]=*>?)(?<gap>\s*)")
    };
}

/// Minimum length of the value of a name such as `api_key`. Passwords are shorter.
const MIN_KEY_LENGTH: usize = 8;
/// Maximum length of what follows the numbers of a version, such as `beta.2`.
const MAX_VERSION_SUFFIX: usize = 12;

/// A text after which a secret follows.
pub(super) struct AssignmentForm {
    /// The kind of secret.
    pub(super) what: &'static str,
    /// A text has one of these, in small letters, if the pattern matches it. So most texts need no pattern, which takes
    /// longer to build than `skein check` takes otherwise.
    marks: &'static [&'static str],
    /// The group `value` may be a secret. `None` if the pattern is invalid, which a test excludes.
    pattern: LazyLock<Option<Regex>>,
    /// Decides about a value that is no placeholder.
    accepts: fn(&str, &Captures<'_>) -> bool,
}

pub(super) static ASSIGNMENTS: [AssignmentForm; 6] = [
    AssignmentForm {
        what: "a password in a URL",
        marks: &["://"],
        pattern: LazyLock::new(|| {
            let user = r"(?:\$\{[^}]*\}|[^\s/:@${}])*";
            Regex::new(&format!(r"(?i)\b[a-z][a-z0-9+.-]*://{user}:(?<value>[^\s/@]{{3,200}})@")).ok()
        }),
        accepts: |_, _| true,
    },
    AssignmentForm {
        what: "a password or key",
        marks: &["pass", "secret", "pw", "pin"],
        pattern: LazyLock::new(|| {
            let long = "pass(?:word|wd|phrase|code)|secret";
            // A word, and no field such as `user: ada`.
            let next = r"(?<next>[ \t]+[a-z][a-z'-]*(?:[\s.,;!?)]|$))?";
            let name = format!(r"(?:\b\w*(?:{long})|(?:\b|_)(?:pass|pw)|\bpin|[_-]pwd)\b");
            let value = value!("[^\\s\"'`:]", "3");
            Regex::new(&format!("(?i){name}{}{value}{next}", separator!(r"is\b|"))).ok()
        }),
        accepts: |value, captures| {
            let next_line = captures.name("gap").is_some_and(|gap| gap.as_str().contains('\n'));
            !is_prose(value, captures) && (!next_line || has_digit(value))
        },
    },
    AssignmentForm {
        what: "a password or key",
        marks: &["secret", "key", "token"],
        pattern: LazyLock::new(|| {
            let names = [
                "secret[_ -]?key(?:_base)?|secret_base",
                "(?:api|access|private|signing|encryption|account)[_ -]?key",
                "(?:auth|access|bearer|refresh|api|session)[_ -]?token",
            ];
            let name = format!(r"\b\w*(?:{})\b", names.join("|"));
            Regex::new(&format!("(?i){name}{}{}", separator!(r"is\b|"), value!("[^\\s\"'`:]", "7"))).ok()
        }),
        accepts: |value, _| is_like_key(value),
    },
    AssignmentForm {
        what: "a password or key",
        marks: &["token"],
        pattern: LazyLock::new(|| {
            // The token of a page of results is no secret.
            let name = r"(?:\b|_)(?:(?<page>next|page|cursor|continuation)[_ -]?)?token\b";
            Regex::new(&format!("(?i){name}{}{}", separator!(""), value!("", "8"))).ok()
        }),
        accepts: |value, captures| {
            let is_page = captures.name("page").is_some();
            let is_token = |c: char| c.is_ascii_alphanumeric() || "._~+/=-".contains(c);
            let has_letter = value.contains(|c: char| c.is_ascii_alphabetic());
            !is_page && is_like_key(value) && has_letter && trim_punctuation(value).chars().all(is_token)
        },
    },
    AssignmentForm {
        what: "a token in a header",
        marks: &["authorization"],
        pattern: LazyLock::new(|| {
            let scheme = r"(?:(?<scheme>apikey|basic|bearer|bot|digest|token)\s+)?";
            let start = format!(r#"(?i)\bauthorization{}\\*["'`]?{scheme}"#, separator!(""));
            Regex::new(&format!("{start}{}", value!("", "8"))).ok()
        }),
        accepts: |value, captures| {
            let has_capital = value.chars().skip(1).any(|c| c.is_ascii_uppercase());
            has_digit(value) || (captures.name("scheme").is_some() && has_capital)
        },
    },
    AssignmentForm {
        what: "a token in a header",
        marks: &["bearer"],
        pattern: LazyLock::new(|| Regex::new(r"(?i)\bbearer\s+(?<value>[a-z0-9._~+/=-]{16,200})").ok()),
        accepts: |value, _| has_digit(value),
    },
];

impl AssignmentForm {
    /// Returns whether the text may have such a secret. `small` is the text in small letters.
    pub(super) fn may_match(&self, small: &str) -> bool {
        self.marks.iter().any(|mark| small.contains(mark))
    }

    /// Returns the next secret from here on.
    pub(super) fn find_from(&self, text: &str, mut from: usize) -> Option<Range<usize>> {
        let pattern = self.pattern.as_ref()?;
        loop {
            let captures = pattern.captures_at(text, from)?;
            let value = captures.name("value")?;
            if !is_placeholder(value.as_str()) && (self.accepts)(value.as_str(), &captures) {
                return Some(value.range());
            }
            // The value may itself be the beginning of another match.
            from = value.start();
        }
    }
}

/// Parts of names of fields whose values are secrets.
const SECRET_NAMES: [&str; 9] =
    ["token", "secret", "password", "passwd", "api_key", "apikey", "authorization", "access_key", "private_key"];

/// Returns true if a field or a variable of this name usually holds a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

fn has_digit(value: &str) -> bool {
    value.contains(|c: char| c.is_ascii_digit())
}

/// Returns true if a value is long enough for a key or a token, and neither a word, a path nor a version.
fn is_like_key(value: &str) -> bool {
    let value = trim_punctuation(value);
    let is_path = ["./", "../", "~/", "/"].iter().any(|start| value.starts_with(start));
    value.len() >= MIN_KEY_LENGTH && has_digit(value) && !is_path && !is_version(value)
}

/// Returns true for text such as `v1.2.3-beta`.
fn is_version(value: &str) -> bool {
    let value = value.trim_start_matches(['v', 'V']);
    let (numbers, suffix) = value.split_once(['-', '+']).unwrap_or((value, ""));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    numbers.contains('.') && numbers.split('.').all(is_number) && suffix.len() <= MAX_VERSION_SUFFIX
}

/// Returns the value without the punctuation of the text around it.
fn trim_punctuation(value: &str) -> &str {
    value.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', ']', '}', '\\'])
}

/// Returns true for a variable, or for text that stands for a secret: `$NAME`, `${NAME}`, `%NAME%`, `<key>`, `****`. Also
/// for a rest of the sign before a value, as in `password====`.
fn is_placeholder(value: &str) -> bool {
    if let Some(rest) = value.strip_prefix("${") {
        let (inside, behind) = rest.split_once('}').unwrap_or((rest, ""));
        let default = inside.split_once(":-").map_or("", |(_, default)| default);
        return default.len() < 4 && (trim_punctuation(behind).len() < 4 || is_placeholder(behind));
    }
    let value = trim_punctuation(value);
    if let Some(name) = value.strip_prefix('$') {
        let all = |test: fn(char) -> bool| name.chars().all(|c| c == '_' || test(c));
        return name.starts_with('(')
            || all(|c| c.is_ascii_lowercase())
            || all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    }
    let is_enclosed = |start: char, end: char| value.starts_with(start) && value.ends_with(end);
    let is_type = value.contains('<') && value.ends_with('>');
    is_type || is_enclosed('%', '%') || value.starts_with("{{") || value.chars().all(|c| "*.…•xX=>".contains(c))
}

/// Words that follow "password is" or `password:` in prose and code. Those with a usual ending are not listed.
const PROSE: &[&str] = &[
    "also",
    "always",
    "bool",
    "boolean",
    "bytes",
    "clear",
    "correct",
    "empty",
    "false",
    "from",
    "gone",
    "here",
    "kept",
    "lost",
    "never",
    "nil",
    "none",
    "null",
    "only",
    "opaque",
    "ours",
    "password",
    "passwd",
    "plain",
    "plaintext",
    "public",
    "read",
    "safe",
    "same",
    "secret",
    "sent",
    "set",
    "short",
    "some",
    "strong",
    "self",
    "str",
    "string",
    "that",
    "then",
    "there",
    "this",
    "token",
    "true",
    "undefined",
    "unknown",
    "valid",
    "weak",
    "what",
    "with",
    "wrong",
];

/// Endings of words that say something about a password and are not one.
const PROSE_ENDINGS: [&str; 9] = ["ed", "en", "ing", "able", "ible", "ent", "ly", "ory", "al"];

/// Returns true for a word that more likely belongs to a sentence or to code than to a password. Its ending counts only
/// in a sentence: `password=golden` is an assignment.
fn is_prose(value: &str, captures: &Captures<'_>) -> bool {
    let word = trim_punctuation(value).trim_start_matches(['&', '(', '[']);
    let lower = word.to_ascii_lowercase();
    let is_capital = word.chars().skip(1).any(|c| !c.is_ascii_lowercase());
    let has_ending = || is_in_sentence(captures) && !is_capital && PROSE_ENDINGS.iter().any(|end| word.ends_with(end));
    word.chars().all(|c| c.is_ascii_alphabetic()) && (PROSE.contains(&lower.as_str()) || has_ending())
}

/// Returns true if the value is part of a sentence: it follows "is", or a colon with more words behind it.
fn is_in_sentence(captures: &Captures<'_>) -> bool {
    let text_of = |name: &str| captures.name(name).map_or("", |found| found.as_str());
    let is_colon = text_of("sign") == ":" && !text_of("gap").is_empty();
    text_of("quote").is_empty()
        && (text_of("sign").eq_ignore_ascii_case("is") || (is_colon && !text_of("next").is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_valid() {
        assert!(ASSIGNMENTS.iter().all(|form| form.pattern.is_some()));
    }

    #[test]
    fn a_rejected_value_does_not_hide_the_next() {
        for text in
            ["password: \npassword: hunter2", "password=$A password=$B password=hunter2", "pass: none pw=hunter2"]
        {
            assert!(ASSIGNMENTS.iter().any(|form| form.find_from(text, 0).is_some()), "{text}");
        }
    }

    fn is_found(text: &str) -> bool {
        ASSIGNMENTS.iter().any(|form| form.find_from(text, 0).is_some())
    }

    #[test]
    fn the_ending_of_an_assigned_word_does_not_make_it_prose() {
        for text in [
            "password: spring",
            "password=trusted",
            "DB_PASSWORD=golden",
            r#"{"password":"golden"}"#,
            "{password: golden, user: ada}",
            "password: golden\nuser: ada",
            "password: 'golden' for the test",
            "password := trusted words",
        ] {
            assert!(is_found(text), "{text}");
        }
        for text in ["The password is required", "Password: required for the vault.", "password=string", "pw: valid"] {
            assert!(!is_found(text), "{text}");
        }
    }

    #[test]
    fn a_key_or_token_is_long_and_has_a_digit() {
        for text in [
            "The session token is valid for one hour.",
            "The refresh token is opaque.",
            "The private key is PEM-encoded.",
            "The signing key is ours",
            "Encryption key: AES-256 from the KMS",
            "is_secret: bool",
            "session_token: SessionToken",
            "signing_key: SigningKey",
            "private_key: ./certs/dev.pem",
            "private_key: ~/certs/dev2.pem",
            "token: /run/secrets/token1",
            "next_token = page2cursor",
            "nextPageToken: page2cursor",
            "token: v1.2.3-beta",
            "api_key: v10.20.30",
        ] {
            assert!(!is_found(text), "{text}");
        }
        for text in [
            "session_token=abcd1234",
            "the api key is abcd1234efgh",
            "SECRET_KEY_BASE=abcd1234efgh",
            "deploy_token = page2cursor",
            "token: v1.2.3-Zx8Qp2Lm9Rt4Vw7",
        ] {
            assert!(is_found(text), "{text}");
        }
    }

    #[test]
    fn a_variable_is_a_placeholder_and_its_default_is_not() {
        for value in
            ["$NAME", "${NAME}", "${env:NAME},", "${A}${B}", "${A:-}", "$(pass", "%NAME%", "<key>", "********", "===="]
        {
            assert!(is_placeholder(value), "{value}");
        }
        for value in ["$ecret1", "${NAME:-hunter2}", "${A}hunter2", "hunter2", "%41hunter2"] {
            assert!(!is_placeholder(value), "{value}");
        }
    }
}
