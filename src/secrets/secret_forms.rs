//! Returns the forms in which a program may repeat a secret that it was given.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::address::{address_secrets, percent_decode};

/// Words before the credentials in a header such as `Authorization`.
const SCHEMES: [&str; 3] = ["basic", "bearer", "token"];

/// The characters that are encoded in a part of a URL.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The characters that a parser of URLs encodes in a query.
const QUERY: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>').add(b'\'').add(b'%');

/// Returns a secret in every form in which an error or a log may have it. The first form is the secret as written, and
/// no form is there twice. Callers drop forms that are too short to be hidden.
///
/// The forms are: what follows a scheme such as `Bearer`, the secrets in an address, decoded and encoded as in a URL,
/// and escaped as in JSON.
pub fn secret_forms(secret: &str) -> Vec<String> {
    let mut parts = vec![secret.to_owned()];
    parts.extend(credentials(secret));
    if secret.contains("://") {
        // Clients show an address in another form, such as `https://host/?key=x` for `https://host?key=x`.
        let found = address_secrets(secret.trim()).into_iter();
        let long_enough = found.filter(|found| found.value.len() >= found.part.min_length());
        parts.extend(long_enough.map(|found| found.value));
    }
    let mut forms = Vec::new();
    for part in parts {
        forms.extend(escape(&part));
        forms.extend(escape(&percent_decode(&part)));
        forms.extend(escape(&percent_decode(&part.replace('+', " "))));
    }
    let mut known = std::collections::HashSet::new();
    forms.retain(|form| !form.is_empty() && known.insert(form.clone()));
    forms
}

/// Returns what follows the scheme in a value such as `Bearer x`, because a program may repeat `x` alone. For `Basic`,
/// returns also the user and the password.
fn credentials(secret: &str) -> Vec<String> {
    let Some((scheme, rest)) = secret.split_once(' ') else { return Vec::new() };
    let scheme = scheme.to_ascii_lowercase();
    if !SCHEMES.contains(&scheme.as_str()) {
        return Vec::new();
    }
    let rest = rest.trim();
    let decoded = (scheme == "basic").then(|| STANDARD.decode(rest).ok()).flatten();
    let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    std::iter::once(rest.to_owned()).chain(decoded).collect()
}

/// Returns a text, and the text as it is in a URL and in a string of JSON.
fn escape(text: &str) -> Vec<String> {
    let json = Value::from(text).to_string();
    let json = json[1..json.len() - 1].to_owned();
    let component = utf8_percent_encode(text, COMPONENT).to_string();
    let query = utf8_percent_encode(text, QUERY).to_string();
    let form = component.replace("%20", "+");
    // Some languages escape slashes in JSON, or all characters but ASCII.
    let (slashes, ascii) = (json.replace('/', "\\/"), escape_to_ascii(&json));
    vec![text.to_owned(), json, slashes, ascii, component, query, form]
}

fn escape_to_ascii(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if c.is_ascii() {
            escaped.push(c);
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| escaped.push_str(&format!("\\u{unit:04x}")));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(secret: &str, expected: &[&str]) {
        let forms = secret_forms(secret);
        assert_eq!(forms.first().map(String::as_str), Some(secret));
        for form in expected {
            assert!(forms.iter().any(|known| known == form), "{form} is not in {forms:?}");
        }
    }

    #[test]
    fn a_plain_secret_has_one_form() {
        assert_eq!(secret_forms("sk-0123456789_abc.d~e"), ["sk-0123456789_abc.d~e"]);
        assert_eq!(secret_forms(""), [""; 0]);
    }

    #[test]
    fn a_secret_is_known_as_in_a_url() {
        check("canary%2Bmcp%2F12345", &["canary+mcp/12345"]);
        check("canary%2bmcp", &["canary+mcp", "canary%2Bmcp"]);
        check("canary+mcp 1/2", &["canary%2Bmcp%201%2F2", "canary+mcp%201/2", "canary%2Bmcp+1%2F2"]);
        check("two+words", &["two words"]);
        // Not text, and no code.
        check("%FF-%zz-%4", &["%FF-%zz-%4"]);
    }

    #[test]
    fn a_secret_is_known_as_in_json() {
        check("a\"b/ü😀", &["a\\\"b/ü😀", "a\\\"b\\/ü😀", "a\\\"b/\\u00fc\\ud83d\\ude00"]);
    }

    #[test]
    fn credentials_are_known_without_their_scheme() {
        check("Bearer abc", &["abc"]);
        check("Token user=\"canary\"x", &["user=\"canary\"x", "user=\\\"canary\\\"x"]);
        check("Basic dXNlcjpwdw==", &["dXNlcjpwdw==", "user:pw"]);
        check("Basic nothing", &["nothing"]);
        assert!(secret_forms("hello there").iter().all(|form| form != "there"));
    }

    #[test]
    fn credentials_in_an_address_are_known_alone() {
        let pair = STANDARD.encode("app:long pass");
        check("postgres://app:long%20pass@host/db", &["app:long%20pass", "app:long pass", "long pass", &pair]);
    }

    #[test]
    fn keys_in_an_address_are_known_alone() {
        check("https://mcp.example.com?api_key=canary-123", &["canary-123"]);
        check(" https://host?sig=canary%2Bmcp%2F1#a-fragment\n", &["canary%2Bmcp%2F1", "canary+mcp/1", "a-fragment"]);
        check("https://host/0123456789abcdef01234567/mcp", &["0123456789abcdef01234567"]);
        let forms = secret_forms("https://host/readable/path?format=json&v=2#top");
        assert!(forms.iter().all(|form| form.starts_with("https")), "{forms:?}");
    }
}
