//! Defines elicitations: input that a service or an external agent requests from the user, as a form or a page to open.
//!
//! Invariant: the request names its source, and Skein never invents an answer.

use std::sync::Arc;

use serde_json::{Map, Value};

/// A request for input from the user.
#[derive(Debug, Clone, PartialEq)]
pub struct Elicitation {
    /// The service or agent that asks.
    pub by: String,
    /// Id of the call during which it asks, if known.
    pub call: Option<Arc<str>>,
    pub message: String,
    pub kind: ElicitationKind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ElicitationKind {
    /// Form fields, as a flat JSON Schema of type `object`.
    Fields(Map<String, Value>),
    /// A page on which the user does something.
    Page { id: String, url: String },
}

/// Words that mark a field as a secret, which a form must not request.
const SECRET_WORDS: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "secret",
    "secrets",
    "credential",
    "credentials",
    "apikey",
    "token",
    "cvv",
    "otp",
];
/// Pairs of words that mark a secret.
const SECRET_PAIRS: [(&str, &str); 6] =
    [("api", "key"), ("private", "key"), ("access", "key"), ("secret", "key"), ("credit", "card"), ("card", "number")];

impl Elicitation {
    /// Returns why the request must not be shown. A form must not ask for secrets, and a page needs a safe URL. `None`
    /// if it may be shown.
    pub fn refusal(&self) -> Option<String> {
        match &self.kind {
            ElicitationKind::Fields(schema) => {
                let fields = schema.get("properties").and_then(Value::as_object);
                let (name, _) = fields.into_iter().flatten().find(|(name, field)| is_secret(name, field))?;
                Some(format!("its form has the field `{name}`, and a form must not ask for secrets"))
            }
            ElicitationKind::Page { url, .. } => {
                host(url).is_none().then(|| "it wants a page opened whose address is not a safe one (https)".to_owned())
            }
        }
    }
}

/// Returns the host of a page that may be offered: `https`, or `http` on this machine. `None` for any other URL.
pub fn host(url: &str) -> Option<&str> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || super::text::is_hidden(c) || c == '\\';
    if url.contains(odd) {
        return None;
    }
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().filter(|authority| !authority.is_empty())?;
    // Text before an `@` looks like the host but is not.
    if authority.contains('@') {
        return None;
    }
    let name = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next()?,
        None => authority.split(':').next()?,
    };
    let local = ["localhost", "127.0.0.1", "::1"].contains(&name);
    let safe = scheme.eq_ignore_ascii_case("https") || (scheme.eq_ignore_ascii_case("http") && local);
    (safe && !name.is_empty()).then_some(authority)
}

fn is_secret(name: &str, field: &Value) -> bool {
    let said = [name, field["title"].as_str().unwrap_or_default()];
    field["format"] == "password" || said.iter().any(|text| speaks_of_secrets(text))
}

fn speaks_of_secrets(text: &str) -> bool {
    let mut spaced = String::new();
    let mut before = ' ';
    for c in text.chars() {
        if c.is_uppercase() && before.is_lowercase() {
            spaced.push(' ');
        }
        spaced.push(if c.is_alphanumeric() { c } else { ' ' });
        before = c;
    }
    let words: Vec<_> = spaced.split_whitespace().map(str::to_lowercase).collect();
    let pair = |pair: &[String]| SECRET_PAIRS.contains(&(pair[0].as_str(), pair[1].as_str()));
    words.iter().any(|word| SECRET_WORDS.contains(&word.as_str())) || words.windows(2).any(pair)
}

#[derive(Debug, Clone, PartialEq)]
pub enum ElicitationResponse {
    /// The values that the user entered; empty for a page.
    Accepted(Map<String, Value>),
    Declined,
    /// The user closed the request without an answer.
    Dismissed,
    /// There is no user to ask.
    Unavailable,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn question(wanted: ElicitationKind) -> Elicitation {
        Elicitation { by: "s".to_owned(), call: None, message: String::new(), kind: wanted }
    }

    #[test]
    fn a_form_that_asks_for_a_secret_is_refused() {
        let refused = |name: &str, field: Value| {
            let schema = json!({"type": "object", "properties": {name: field}});
            let Value::Object(schema) = schema else { unreachable!() };
            question(ElicitationKind::Fields(schema)).refusal().is_some()
        };
        for name in ["password", "apiKey", "API_KEY", "access-key", "dbPassword", "token", "card number"] {
            assert!(refused(name, json!({"type": "string"})), "{name}");
        }
        assert!(refused("x", json!({"type": "string", "title": "Your password"})));
        assert!(refused("x", json!({"type": "string", "format": "password"})));
        for name in ["max_tokens", "keyboard", "number", "author", "secretary"] {
            assert!(!refused(name, json!({"type": "string"})), "{name}");
        }
    }

    #[test]
    fn only_pages_on_a_safe_way_are_offered() {
        for (url, expected) in [
            ("https://example.org/a?b", Some("example.org")),
            ("HTTPS://example.org", Some("example.org")),
            ("http://127.0.0.1:8080/x", Some("127.0.0.1:8080")),
            ("http://[::1]:1/x", Some("[::1]:1")),
            ("http://example.org/", None),
            ("javascript://alert(1)", None),
            ("file:///etc/passwd", None),
            ("data:text/html,x", None),
            ("https://bank.example@evil.example/", None),
            ("https://a b/", None),
            ("https:///x", None),
        ] {
            assert_eq!(host(url), expected, "{url}");
        }
    }
}
