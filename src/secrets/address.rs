//! Splits addresses, and finds the parts of an address that may be secrets.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;

use super::key_shape::has_key_shape;

/// Minimum length of a user name or a password that is a secret by itself; many shorter ones are harmless words.
const MIN_PASSWORD: usize = 8;

/// The parts of an address, as written. It may contain placeholders, which no parser of URLs accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressParts<'a> {
    /// `None` if the address does not start with one.
    pub scheme: Option<&'a str>,
    /// The user and the password. `None` without a scheme, too.
    pub user: Option<&'a str>,
    pub host: &'a str,
    /// What follows the first slash.
    pub path: Option<&'a str>,
    pub query: Option<&'a str>,
    pub fragment: Option<&'a str>,
}

impl<'a> AddressParts<'a> {
    pub fn split(address: &'a str) -> Self {
        let (scheme, rest) = match address.split_once("://") {
            Some((scheme, rest)) => (Some(scheme), rest),
            None => (None, address),
        };
        let (rest, fragment) = split_optional(rest, '#');
        let (rest, query) = split_optional(rest, '?');
        let (host, path) = split_optional(rest, '/');
        let (user, host) = match host.rsplit_once('@').filter(|_| scheme.is_some()) {
            Some((user, host)) => (Some(user), host),
            None => (None, host),
        };
        Self { scheme, user, host, path, query, fragment }
    }
}

fn split_optional(text: &str, separator: char) -> (&str, Option<&str>) {
    text.split_once(separator).map_or((text, None), |(before, after)| (before, Some(after)))
}

/// A part of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressPart {
    User,
    Path,
    /// A value in the query, with its name.
    Query(String),
    Fragment,
}

impl AddressPart {
    /// Returns the minimum length of a value in this part that is hidden. Many shorter ones are harmless words.
    pub fn min_length(&self) -> usize {
        match self {
            Self::User => 4,
            Self::Path | Self::Query(_) | Self::Fragment => 8,
        }
    }
}

impl fmt::Display for AddressPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "user",
            Self::Path => "path",
            Self::Query(name) => name,
            Self::Fragment => "fragment",
        })
    }
}

/// A value in an address that may be a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressSecret {
    pub part: AddressPart,
    pub value: String,
}

/// Returns the values of an address that may be secrets: user and password, all values of the query, the fragment, and
/// parts of the path that look like keys. Leaves out values with placeholders, and those that begin the scheme.
pub fn address_secrets(address: &str) -> Vec<AddressSecret> {
    let parts = AddressParts::split(address);
    let scheme = scheme_name(parts.scheme.unwrap_or_default());
    let is_literal = |value: &&str| !value.is_empty() && !value.contains("${");
    let is_secret = |value: &&str| is_literal(value) && !scheme.starts_with(*value);
    let mut found = Vec::new();
    if let Some(user) = parts.user.filter(is_literal) {
        found.extend(credentials(user, scheme).into_iter().map(|value| (AddressPart::User, value)));
    }
    for part in parts.path.into_iter().flat_map(|path| path.split('/')).filter(is_literal) {
        if has_key_shape(&percent_decode(part)) {
            found.push((AddressPart::Path, part.to_owned()));
        }
    }
    for pair in parts.query.into_iter().flat_map(|query| query.split('&')) {
        let (name, value) = pair.split_once('=').unwrap_or(("query", pair));
        if is_secret(&value) {
            found.push((AddressPart::Query(name.to_owned()), value.to_owned()));
        }
    }
    found.extend(parts.fragment.filter(is_secret).map(|value| (AddressPart::Fragment, value.to_owned())));
    found.into_iter().map(|(part, value)| AddressSecret { part, value }).collect()
}

/// Replaces `%41` by `A`. Returns the text itself if the result is no UTF-8.
pub(super) fn percent_decode(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8().unwrap_or(Cow::Borrowed(text))
}

/// Returns the scheme without the text before it, such as the flag in `--db=postgresql`.
fn scheme_name(scheme: &str) -> &str {
    let is_border = |c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c);
    scheme.rsplit(is_border).next().unwrap_or_default()
}

/// Returns user and password as written, and in Base64, as clients send them. The user `git` is common to all and not a
/// secret.
///
/// Adds the password alone, or the user if there is no password. Leaves out a password that is the user or the beginning of
/// the scheme, and a user that does not look like a token. Hiding common words everywhere makes text unreadable.
fn credentials(user: &str, scheme: &str) -> Vec<String> {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    if password.is_empty() && ["", "git"].contains(&name) {
        return Vec::new();
    }
    let pair = format!("{}:{}", percent_decode(name), percent_decode(password));
    let mut values = vec![STANDARD.encode(pair)];
    let alone = if password.is_empty() {
        Some(name).filter(|name| is_token(&percent_decode(name)))
    } else {
        values.push(user.to_owned());
        Some(password).filter(|password| *password != name && !scheme.starts_with(*password))
    };
    values.extend(alone.filter(|value| value.len() >= MIN_PASSWORD).map(str::to_owned));
    values
}

/// Returns true if a user name looks like a token, and not like a word.
fn is_token(name: &str) -> bool {
    has_key_shape(name) || name.contains(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(address: &str) -> Vec<(String, String)> {
        address_secrets(address).into_iter().map(|found| (found.part.to_string(), found.value)).collect()
    }

    fn check(address: &str, expected: &[(&str, &str)]) {
        let expected: Vec<_> = expected.iter().map(|(part, value)| ((*part).to_owned(), (*value).to_owned())).collect();
        assert_eq!(secrets(address), expected, "{address}");
    }

    #[test]
    fn an_address_is_split_as_written() {
        let parts = AddressParts::split("http://u:p@h:1/a/b?c=d#e");
        assert_eq!((parts.scheme, parts.user, parts.host), (Some("http"), Some("u:p"), "h:1"));
        assert_eq!((parts.path, parts.query, parts.fragment), (Some("a/b"), Some("c=d"), Some("e")));
        let parts = AddressParts::split("${env:BASE}/a?c=d");
        assert_eq!((parts.scheme, parts.user, parts.host, parts.query), (None, None, "${env:BASE}", Some("c=d")));
    }

    #[test]
    fn secrets_of_an_address_are_found() {
        check("http://user:pw@host/mcp", &[("user", "dXNlcjpwdw=="), ("user", "user:pw")]);
        let encoded = [("user", "dXNlcjpjYW5hcnlANQ=="), ("user", "user:canary%405"), ("user", "canary%405")];
        check("http://user:canary%405@host", &encoded);
        check("https://ghp_012345@host/", &[("user", "Z2hwXzAxMjM0NTo="), ("user", "ghp_012345")]);
        check("http://host/a?sig=x%2By&flag&z=#end", &[("sig", "x%2By"), ("query", "flag"), ("fragment", "end")]);
        let path = "https://host/api/0123456789abcdef01234567/mcp";
        check(path, &[("path", "0123456789abcdef01234567")]);
    }

    #[test]
    fn a_common_word_in_an_address_is_hidden_only_as_part_of_a_pair() {
        let twice = [("user", "cG9zdGdyZXM6cG9zdGdyZXM="), ("user", "postgres:postgres")];
        check("postgresql://postgres:postgres@localhost/db", &twice);
        check("mysql://postgres:postgres@localhost/db", &twice);
        let scheme = [("user", "YXBwOnBvc3RncmVz"), ("user", "app:postgres")];
        check("postgresql://app:postgres@localhost/db", &scheme);
        check("postgres://app:postgres@localhost/db", &scheme);
        check("--db=postgresql://app:postgres@localhost/db", &scheme);
        check("postgres://readonly@host/db", &[("user", "cmVhZG9ubHk6")]);
        // Not a word: the beginning of the scheme with more, a user with a digit, and one with the form of a key.
        let longer = [("user", "YXBwOnBvc3RncmVzIQ=="), ("user", "app:postgres!"), ("user", "postgres!")];
        check("postgres://app:postgres!@localhost/db", &longer);
        check("postgres://readonly1@host/db", &[("user", "cmVhZG9ubHkxOg=="), ("user", "readonly1")]);
        check("https://ghp_abcdefgh@host/", &[("user", "Z2hwX2FiY2RlZmdoOg=="), ("user", "ghp_abcdefgh")]);
    }

    #[test]
    fn harmless_parts_of_an_address_are_no_secrets() {
        for address in [
            "http://host/a/readable/path?",
            "ssh://git@host/x",
            "http://:@host/",
            "http://${env:USER}@host/${env:KEY}?key=${env:KEY}#${env:KEY}",
            "postgresql://host/db?application_name=postgres",
            "no address",
        ] {
            check(address, &[]);
        }
    }
}
