//! Holds the environment variables for services. Fills in `${env:NAME}` when a service starts, and keeps the values
//! out of logs.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use serde_json::Value;

use crate::manifest::{Placeholder, Transport, secret_arguments};
use crate::secrets::{AddressSecret, address_secrets, secret_forms};

const MIN_SECRET: usize = 4;
/// Minimum length of a value that is written in a manifest; many shorter ones are harmless words.
const MIN_LITERAL: usize = 8;

/// An environment variable that a manifest uses and that is not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the environment variable {name} is not set")]
pub struct MissingVariableError {
    pub name: String,
}

/// A copy of the environment that the front end passes in; the library never reads the environment.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    pub fn new(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        Self(variables.into_iter().collect())
    }

    pub fn variables(&self) -> impl Iterator<Item = (OsString, OsString)> {
        self.0.clone().into_iter()
    }

    /// Replaces every `${env:NAME}` in `text`. Fails with the variable's name if it is not set.
    pub fn fill_in(&self, text: &str) -> Result<String, MissingVariableError> {
        Placeholder::fill_in(text, |Placeholder { name, default }| {
            let value = self.0.get(OsStr::new(name)).and_then(|value| value.to_str());
            // As in a shell, an empty variable takes its default, too.
            let value = value.filter(|value| default.is_none() || !value.is_empty()).or(default);
            value.map(str::to_owned).ok_or_else(|| MissingVariableError { name: name.to_owned() })
        })
    }
}

impl Environment {
    /// Returns the values that `fill_in` inserts into this text.
    pub fn secrets_in(&self, text: &str) -> SecretValues {
        let names = Placeholder::all_in(text).map(|placeholder| placeholder.name);
        let known =
            names.filter_map(|name| Some((name.to_owned(), self.0.get(OsStr::new(name))?.to_str()?.to_owned())));
        SecretValues::of(known)
    }

    /// Returns the values that a process or a server gets from this transport: what `fill_in` inserts, and what is
    /// written in the transport.
    pub fn transport_secrets(&self, transport: &Transport) -> SecretValues {
        let text = serde_json::to_string(transport).unwrap_or_default();
        let in_address = match transport {
            Transport::Http(http) => self.secrets_in_address(&http.url),
            Transport::Builtin(_) | Transport::Stdio(_) => Vec::new(),
        };
        self.secrets_in(&text).and(literal_secrets(transport)).and(SecretValues::of_address(in_address))
    }

    /// Returns the secrets in a URL, as clients send them. A variable may be the whole URL or a part of a secret. Empty
    /// if a variable is not set.
    pub(super) fn secrets_in_address(&self, url: &str) -> Vec<AddressSecret> {
        let filled = self.fill_in(url).unwrap_or_default();
        address_secrets(filled.trim())
    }
}

/// Returns the values written in a transport itself, because editors and other tools write tokens there instead of
/// variables. Harmless paths and words may be redacted with them.
pub fn literal_secrets(transport: &Transport) -> SecretValues {
    match transport {
        Transport::Builtin(_) => SecretValues::default(),
        Transport::Stdio(stdio) => {
            let arguments = secret_arguments(&stdio.command, &stdio.args);
            SecretValues::with_minimum(MIN_LITERAL, stdio.env.clone().into_iter().chain(arguments))
        }
        Transport::Http(http) => {
            // Where one of the values is a variable, an error does not contain the query as written.
            let query = http.url.split_once('?').map(|(_, query)| query).unwrap_or_default();
            let whole = ("query".to_owned(), query.to_owned());
            SecretValues::with_minimum(MIN_LITERAL, http.headers.clone().into_iter())
                .and(SecretValues::of_address(address_secrets(&http.url)))
                .and(SecretValues::of(std::iter::once(whole)))
        }
    }
}

impl SecretValues {
    /// Collects values with the names that replace them.
    pub(super) fn of(known: impl Iterator<Item = (String, String)>) -> Self {
        Self::with_minimum(MIN_SECRET, known)
    }

    /// Collects the secrets of an address, each with the name of its part.
    fn of_address(found: Vec<AddressSecret>) -> Self {
        let each = found.into_iter().map(|AddressSecret { part, value }| {
            Self::with_minimum(part.min_length(), std::iter::once((part.to_string(), value)))
        });
        each.fold(Self::default(), Self::and)
    }

    /// Collects values of at least this length, in all their forms.
    fn with_minimum(shortest: usize, known: impl Iterator<Item = (String, String)>) -> Self {
        // Text is logged line by line, so each line of a value is a secret. Shorter lines are not, and hiding them
        // would make text unreadable.
        let pieces = known.flat_map(|(name, value)| {
            let lines: Vec<_> = value.lines().map(|line| line.trim().to_owned()).chain([value.clone()]).collect();
            lines.into_iter().map(move |line| (name.clone(), line))
        });
        let forms = pieces.filter(|(_, value)| value.len() >= shortest).flat_map(|(name, value)| {
            let forms = secret_forms(&value).into_iter().filter(|form| form.len() >= shortest);
            forms.map(move |form| (name.clone(), form)).collect::<Vec<_>>()
        });
        let mut secrets: Vec<_> = forms.collect();
        // A value may be a prefix of another. The longest is replaced first, or its tail would remain.
        secrets.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
        secrets.dedup();
        SecretValues(secrets)
    }

    #[must_use]
    pub fn and(mut self, more: SecretValues) -> Self {
        self.0.extend(more.0);
        self.0.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
        self
    }
}

/// The secret values of a service, to be redacted in logs and errors.
#[derive(Clone, Default)]
pub struct SecretValues(Vec<(String, String)>);

/// Does not print the values.
impl std::fmt::Debug for SecretValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

impl SecretValues {
    pub fn hide(&self, text: &str) -> String {
        let hidden = |text: String, (name, value): &(String, String)| text.replace(value, &format!("${{env:{name}}}"));
        self.0.iter().fold(text.to_owned(), hidden)
    }

    /// Hides the values in every text of a JSON value. The names of fields stay.
    pub fn hide_json(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.hide(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.hide_json(item)).collect(),
            Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, self.hide_json(value))).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) => value,
        }
    }

    /// Returns where to split the beginning of a line, so that no secret is split, not even one whose rest follows.
    pub(super) fn split_point(&self, line: &[u8]) -> usize {
        let longest = self.0.first().map_or(0, |(_, value)| value.len());
        let mut point = line.len().saturating_sub(longest.saturating_sub(1));
        let crosses = |start: usize, point: usize| {
            self.0.iter().any(|(_, value)| start + value.len() > point && line[start..].starts_with(value.as_bytes()))
        };
        while let Some(start) = (point.saturating_sub(longest)..point).find(|start| crosses(*start, point)) {
            point = start;
        }
        point
    }
}

/// Does not print the values, because any of them may be secret.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Environment({} variables)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{HttpTransport, StdioTransport};

    #[test]
    fn placeholders_are_filled_in_and_a_missing_one_is_named() {
        let environment = Environment::new([("TOKEN".into(), "s3cret".into())]);
        assert_eq!(environment.fill_in("Bearer ${env:TOKEN}!").as_deref(), Ok("Bearer s3cret!"));
        assert_eq!(
            environment.fill_in("${env:TOKEN:-x} ${env:OTHER:-a:-b}${env:OTHER:-}").as_deref(),
            Ok("s3cret a:-b")
        );
        assert_eq!(environment.fill_in("plain").as_deref(), Ok("plain"));
        let error = environment.fill_in("${env:TOKEN}${env:OTHER}").expect_err("not set");
        assert_eq!(error, MissingVariableError { name: "OTHER".to_owned() });
        assert!(!format!("{environment:?}").contains("s3cret"));
    }

    #[test]
    fn what_was_filled_in_is_hidden_again() {
        let environment = Environment::new([("TOKEN".into(), "s3cret".into()), ("ONE".into(), "1".into())]);
        let secrets = environment.secrets_in("Bearer ${env:TOKEN:-x} ${env:ONE} ${env:OTHER}");
        assert_eq!(secrets.hide("no s3cret for 1"), "no ${env:TOKEN} for 1");
    }

    #[test]
    fn a_secret_in_a_long_line_is_not_split() {
        let environment = Environment::new([("A".into(), "s3cret-one".into()), ("B".into(), "t0ken".into())]);
        let secrets = environment.secrets_in("${env:A}${env:B}");
        let line = "of t0ken, s3cret-one, t0ken and s3cret-one at last";
        for end in 0..=line.len() {
            let point = secrets.split_point(&line.as_bytes()[..end]);
            let shown = secrets.hide(&line[..point]) + &secrets.hide(&line[point..]);
            assert_eq!(shown, secrets.hide(line), "{end}: {point}");
        }
        assert_eq!(secrets.split_point(b"nothing to hide"), 15 - "s3cret-on".len());
        assert_eq!(SecretValues::default().split_point(b"line"), 4);
    }

    #[test]
    fn what_is_written_in_a_transport_is_hidden() {
        let stdio = Transport::Stdio(StdioTransport {
            command: "x".to_owned(),
            args: ["--api-key", "argument-1", "--token=argument-2", "--level", "harmless-word"]
                .map(str::to_owned)
                .into(),
            env: [("KEY".to_owned(), "variable-1".to_owned())].into(),
            cwd: None,
        });
        assert_eq!(
            literal_secrets(&stdio).hide("argument-1 argument-2 variable-1 harmless-word"),
            "${env:api-key} ${env:token} ${env:KEY} harmless-word"
        );
        let http = Transport::Http(HttpTransport {
            url: "http://localhost/mcp?key=a-query-value&other=${env:TOKEN}".to_owned(),
            headers: [("Authorization".to_owned(), "Bearer a-header-value".to_owned())].into(),
        });
        assert_eq!(
            literal_secrets(&http).hide("a-header-value in Bearer a-header-value, key=a-query-value&other=1"),
            "${env:Authorization} in ${env:Authorization}, key=${env:key}&other=1"
        );
    }

    #[test]
    fn a_common_word_in_an_address_stays_elsewhere() {
        let shown = |address: &str, text: &str| {
            let args = ["-y", "@modelcontextprotocol/server-postgres", address].map(str::to_owned).into();
            let command = "npx".to_owned();
            let stdio = StdioTransport { command, args, env: BTreeMap::new(), cwd: None };
            literal_secrets(&Transport::Stdio(stdio)).hide(text)
        };
        let address = "postgresql://postgres:postgres@localhost/db";
        assert_eq!(
            shown(address, &format!("server-postgres {address}, postgres:postgres of postgresql")),
            "server-postgres ${env:argument 3}, ${env:argument 3} of postgresql"
        );
        let address = "postgres://readonly@host/db";
        assert_eq!(
            shown(address, &format!("a readonly {address}, cmVhZG9ubHk6")),
            "a readonly ${env:argument 3}, ${env:argument 3}"
        );
    }

    #[test]
    fn secrets_of_an_address_are_hidden_in_every_form() {
        let environment = Environment::new([("PW".into(), "p@ss".into()), ("KEY".into(), "canary+env".into())]);
        let http = Transport::Http(HttpTransport {
            url: "http://user:${env:PW}@localhost/0123456789abcdef01234567?sig=canary%2Bmcp%2F12345&k=${env:KEY}"
                .to_owned(),
            headers: [("Authorization".to_owned(), "Token user=\"canary\"x".to_owned())].into(),
        });
        let secrets = environment.transport_secrets(&http);
        // `dXNlcjpwQHNz` is the form of user and password in a header.
        for text in [
            "canary%2Bmcp%2F12345",
            "canary+mcp/12345",
            "canary%2Benv",
            r#"Token user=\"canary\"x"#,
            r#"user="canary"x"#,
            "user:p@ss",
            "dXNlcjpwQHNz",
            "/0123456789abcdef01234567/",
        ] {
            let hidden = secrets.hide(text);
            assert!(hidden.trim_matches('/').starts_with("${env:"), "{text}: {hidden}");
        }
        let literal = "http://user:pw@localhost/mcp?sig=0123456789".to_owned();
        let http = Transport::Http(HttpTransport { url: literal.clone(), headers: BTreeMap::new() });
        assert_eq!(literal_secrets(&http).hide(&literal), "http://${env:user}@localhost/mcp?${env:query}");
        assert_eq!(literal_secrets(&http).hide("Basic dXNlcjpwdw=="), "Basic ${env:user}");
    }

    #[test]
    fn keys_of_an_address_in_a_variable_are_hidden() {
        let environment = Environment::new([
            ("MCP_URL".into(), "https://mcp.example.com?api_key=canary-123".into()),
            ("MCP_HOST".into(), "mcp.example.com?sig=canary%2Bmcp&v=2#canary-end".into()),
            ("HALF".into(), "456-789".into()),
        ]);
        let shown = |url: &str, text: &str| {
            let http = HttpTransport { url: url.to_owned(), headers: BTreeMap::new() };
            environment.transport_secrets(&Transport::Http(http)).hide(text)
        };
        // As reqwest shows the address.
        assert_eq!(
            shown("${env:MCP_URL}", "error sending request for url (https://mcp.example.com/?api_key=canary-123)"),
            "error sending request for url (https://mcp.example.com/?api_key=${env:MCP_URL})"
        );
        assert_eq!(
            shown("https://${env:MCP_HOST}", "https://mcp.example.com/?sig=canary%2Bmcp&v=2#canary-end"),
            "https://mcp.example.com/?sig=${env:sig}&v=2#${env:fragment}"
        );
        assert_eq!(shown("https://host?key=canary-${env:HALF}", "a canary-456-789"), "a ${env:key}");
        let path = "0123456789abcdef01234567";
        assert_eq!(
            shown(&format!("${{env:BASE:-https://host/{path}}}"), &format!("https://host:443/{path}/mcp")),
            "https://host:443/${env:path}/mcp"
        );
    }

    #[test]
    fn texts_of_json_are_hidden() {
        let secrets = Environment::new([("KEY".into(), "s3cret".into())]).secrets_in("${env:KEY}");
        let value = serde_json::json!({"name": ["of s3cret", 1, null], "s3cret": true});
        let hidden = serde_json::json!({"name": ["of ${env:KEY}", 1, null], "s3cret": true});
        assert_eq!(secrets.hide_json(value), hidden);
    }
}
