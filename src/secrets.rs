//! Detects keys, tokens and passwords in text that is about to be stored. Prefers false positives to storing a secret.
//! Returns the forms of a known secret, so that it can be hidden.

mod address;
mod assignments;
mod key_formats;
mod key_shape;
mod secret_forms;

use std::ops::Range;
use std::sync::LazyLock;

use regex::{Regex, RegexSet};

pub use address::{AddressPart, AddressParts, AddressSecret, address_secrets};
pub use assignments::is_secret_name;
use assignments::{ASSIGNMENTS, AssignmentForm};
use key_formats::KEY_FORMATS;
pub use key_shape::{WORD_BORDERS, has_key_shape};
pub use secret_forms::secret_forms;

/// Minimum length, and entropy in bits per character, of a word that counts as a random key.
const MIN_RANDOM_LENGTH: usize = 20;
const MIN_ENTROPY: f64 = 3.9;
/// Minimum length of a key in Base64 that contains `/`, and of its parts on average.
const MIN_SPLIT_LENGTH: usize = 32;
const MIN_PART_LENGTH: usize = 10;
/// Minimum length of a run of letters that counts as a word.
const MIN_WORD_LENGTH: usize = 3;

/// All formats of keys as one automaton, which reads a text once. The tests find an example of each.
static KNOWN: LazyLock<RegexSet> = LazyLock::new(|| {
    RegexSet::new(KEY_FORMATS.iter().map(|(pattern, _)| pattern)).unwrap_or_else(|_| RegexSet::empty())
});

/// Minimum length of a word that has a key of a known form. Only the first line of a private key has spaces.
const MIN_KNOWN_LENGTH: usize = 15;
const PRIVATE_KEY: &str = "-----BEGIN";

/// Returns the indexes of the formats in the text. Most texts have no long word, and need not wait for the automaton,
/// which takes longer to build than `skein check` takes otherwise.
fn match_formats(text: &str) -> Vec<usize> {
    let may_match = words(text).any(|word| word.len() >= MIN_KNOWN_LENGTH) || text.contains(PRIVATE_KEY);
    if may_match { KNOWN.matches(text).into_iter().collect() } else { Vec::new() }
}

/// Returns the kind of secret that the text seems to contain. `None` if it contains none.
pub fn find_secret(text: &str) -> Option<&'static str> {
    let known = match_formats(text).first().copied();
    let known = known.and_then(|index| KEY_FORMATS.get(index)).map(|(_, what)| *what);
    let assigned = || assignments_in(text).find(|form| form.find_from(text, 0).is_some()).map(|form| form.what);
    known.or_else(assigned).or_else(|| words(text).any(random).then_some("a random key"))
}

/// Returns where the text seems to contain secrets. The places may overlap.
pub fn secret_ranges(text: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    for index in match_formats(text) {
        let format = KEY_FORMATS.get(index).and_then(|(pattern, _)| Regex::new(pattern).ok());
        ranges.extend(format.iter().flat_map(|format| format.find_iter(text)).map(|found| found.range()));
    }
    for form in assignments_in(text) {
        let mut from = 0;
        while let Some(Range { start, end }) = form.find_from(text, from) {
            from = text[end..].find(ends_word).map_or(text.len(), |length| end + length);
            ranges.push(start..from);
        }
    }
    let mut start = 0;
    for word in text.split_inclusive(ends_word) {
        if random(word.trim_end_matches(ends_word)) {
            ranges.push(start..start + word.trim_end_matches(ends_word).len());
        }
        start += word.len();
    }
    ranges
}

/// Returns the forms that may be in the text.
fn assignments_in(text: &str) -> impl Iterator<Item = &'static AssignmentForm> {
    // Some letters outside of ASCII count as `s` or `k` to a pattern.
    let small = text.is_ascii().then(|| text.to_ascii_lowercase());
    ASSIGNMENTS.iter().filter(move |form| small.as_ref().is_none_or(|small| form.may_match(small)))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(ends_word)
}

fn ends_word(c: char) -> bool {
    c.is_whitespace() || "\"'`,;()<>".contains(c)
}

/// Returns whether a part of a word looks random. Paths, URLs and identifiers are long too, but consist of words.
fn random(word: &str) -> bool {
    let mut parts = word.split([':', '=', '@', '.', '?', '&', '#']);
    parts.any(|part| part.split('/').any(is_random) || is_base64_key(part))
}

/// Returns whether a text is long, has mixed characters and high entropy.
fn is_random(text: &str) -> bool {
    let text = text.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    // The kind of character changes rarely in words, even in `CamelCase2`, but about every second time in random text.
    text.len() >= MIN_RANDOM_LENGTH && is_mixed(text) && changes(text) * 5 >= text.chars().count() * 2
}

/// Returns whether a text is a key in Base64 with some `/`. A path has shorter parts, and more words in them.
fn is_base64_key(text: &str) -> bool {
    let text = text.trim_matches('/');
    let is_base64 = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
    let slashes = text.matches('/').count();
    let length = text.len() - slashes;
    let is_split = slashes > 0 && text.len() >= MIN_SPLIT_LENGTH && length >= MIN_PART_LENGTH * (slashes + 1);
    let parts = || text.split('/');
    // Names such as `HttpRestClient` change as often as a key, but consist of words.
    let has_words = || parts().map(length_of_words).sum::<usize>() * 10 >= length * 7;
    is_base64 && is_split && is_mixed(text) && parts().map(changes).sum::<usize>() * 10 >= length * 3 && !has_words()
}

/// Returns how many characters of a text are in words: runs of letters that are small, except for the first.
fn length_of_words(text: &str) -> usize {
    let runs = text.as_bytes().chunk_by(|_, next| next.is_ascii_lowercase());
    let words = runs.filter(|run| run.len() >= MIN_WORD_LENGTH && run.first().is_some_and(u8::is_ascii_alphabetic));
    words.map(<[u8]>::len).sum()
}

/// Returns whether a text has digits, capitals and small letters, and high entropy.
fn is_mixed(text: &str) -> bool {
    let has = |test: fn(&char) -> bool| text.chars().any(|c| test(&c));
    let mixed = has(char::is_ascii_digit) && has(char::is_ascii_lowercase) && has(char::is_ascii_uppercase);
    mixed && entropy(text) > MIN_ENTROPY
}

/// Returns how often the kind of character changes.
fn changes(text: &str) -> usize {
    let kind = |c: char| (c.is_ascii_digit(), c.is_ascii_uppercase(), c.is_ascii_lowercase());
    let kinds: Vec<_> = text.chars().map(kind).collect();
    kinds.windows(2).filter(|pair| pair[0] != pair[1]).count()
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

    /// Texts of a known form in which [`match_formats`] and [`assignments_in`] look for nothing would stay visible.
    #[test]
    fn a_pattern_that_matches_is_never_left_out() {
        let texts = [
            "xoxb-abcdefghij",
            "-----BEGIN PRIVATE KEY-----",
            "PASSWORD: hunter2secret",
            "pa\u{17f}\u{17f}word: hunter2secret",
            "pin = 4711-x",
            "DB_PW=abcd1234",
            "SECRET_BASE: 01234567x",
            "Account Key: 01234567x",
            "Session-Token: 01234567x",
            "Authorization: Basic 0123456789Ab",
            "BEARER 0123456789abcdef",
            "HTTP://user:word@host",
        ];
        for text in texts {
            let of_form = KEY_FORMATS.iter().any(|(pattern, _)| Regex::new(pattern).unwrap().is_match(text));
            let assigned = ASSIGNMENTS.iter().any(|form| form.find_from(text, 0).is_some());
            assert!(of_form || assigned, "{text}");
            let found =
                !match_formats(text).is_empty() || assignments_in(text).any(|form| form.find_from(text, 0).is_some());
            assert!(found, "{text}");
        }
    }

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
            "DB_PASSWORD=hunter2secret",
            "OPENAI_API_KEY=abcd1234efgh5678",
            "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            r#"{"password": "hunter2secret"}"#,
            r#"{\"password\": \"hunter2secret\"}"#,
            "client_secret=hunter2secret",
            "clientSecret: 'hunter2secret'",
            "GITHUB_TOKEN=hunter2secret",
            "password := \"hunter2\"",
            "'db_password' => 'hunter2'",
            "Here is the password:\nhunter2secret",
            "my password is swordfish",
            "password=${PASSWORD:-hunter2}",
            "password= password=hunter2",
            "Authorization: Bearer 0123456789abcdef0123456789abcdef",
            "curl -H 'authorization: Basic dXNlcjpwYXNz' https://a.test",
            "send Bearer 0123456789abcdef0123456789abcdef",
            r#""Authorization": "token 0123456789abcdef""#,
            "redis://:pw12345@host",
            "Endpoint=sb://x.test/;SharedAccessKeyName=Root;SharedAccessKey=abcdefghijklmnopqrstuvwxyz012345=",
        ] {
            assert!(find_secret(text).is_some(), "{text}");
        }
    }

    #[test]
    fn a_key_with_slashes_has_few_words() {
        for (text, is_key) in [
            ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", true),
            ("Zx8Qp2Lm9Rt4Vw7Yb1Nc/6Kd3Hs5Tg2Pq8Ws4Xr7Bn", true),
            ("MyCompanyApp/UserAuthApiV2/HttpRestClient", false),
            ("OrderServiceV3/PaymentGatewayAdapter/InvoicePdfWriter", false),
        ] {
            assert_eq!(find_secret(text).is_some(), is_key, "{text}");
        }
    }

    #[test]
    fn the_places_of_secrets_are_found() {
        let text = "é DB_PASSWORD=hunter2, 'Zx8Qp2Lm9Rt4Vw7Yb1Nc6Kd3' postgres://app:s3cr3t@db AKIAIOSFODNN7EXAMPLE";
        let mut found: Vec<_> = secret_ranges(text).into_iter().map(|range| &text[range]).collect();
        found.sort_unstable();
        assert_eq!(found, ["AKIAIOSFODNN7EXAMPLE", "Zx8Qp2Lm9Rt4Vw7Yb1Nc6Kd3", "hunter2,", "s3cr3t@db"]);
        assert!(secret_ranges("nothing to find, password=$PASSWORD").is_empty());
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
            "See MyCompanyApp/UserAuthApiV2/HttpRestClient",
            "/usr/share/doc/packages and /home/User1/Projects/SkeinDev/src/Main2/index.html",
            "9bdb749f0c1d2e3a4b5c6d7e8f90a1b2c3d4e5f6",
            "550E8400-E29B-41D4-A716-446655440000",
            "password:",
            "password: ",
            "Password:\n\nPlease enter it.",
            "password=$PASSWORD",
            "password: \"$db_password\"",
            "password=$(pass show db)",
            "DB_PASSWORD=%PASSWORD%",
            "OPENAI_API_KEY=${env:OPENAI_API_KEY}",
            "OPENAI_API_KEY=${OPENAI_API_KEY:-}",
            "api_key: <your-key>",
            "${env:KEY}",
            "the password is required",
            "The secret is stored in the vault. The API key is missing!",
            "password: Option<String>, api_key: None, secret = null",
            "def login(password=password, token: str):",
            "postgres://app:${env:DB_PASSWORD}@db/prod",
            "redis://:$REDIS_PASSWORD@host",
            "Authorization: Bearer ${env:TOKEN}",
            "Authorization: Bearer <token>",
            "Send the Authorization: Bearer authentication header",
            "The compass: north. Bypass = true. max_tokens=4096",
            "SharedAccessKeyName=RootManageSharedAccessKey",
            "PWD=/usr/share/doc",
            "Der Benutzer heißt Jürgen und mag keine Semikolons; 東京で働いています。",
        ] {
            assert_eq!(find_secret(text), None, "{text}");
        }
    }
}
