//! Holds the environment variables for services. Fills in `${env:NAME}` when a service starts, and keeps the values
//! out of logs.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::manifest::{Placeholder, Transport, secret_arguments};

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
}

/// Returns the values written in a transport itself, because editors and other tools write tokens there instead of
/// variables. Harmless paths and words may be redacted with them.
pub fn literal_secrets(transport: &Transport) -> SecretValues {
    let values = |map: &BTreeMap<String, String>| map.clone().into_iter().flat_map(with_credentials);
    let long = |(_, value): &(String, String)| value.len() >= MIN_LITERAL;
    match transport {
        Transport::Builtin(_) => SecretValues::default(),
        Transport::Stdio(stdio) => {
            let arguments = secret_arguments(&stdio.command, &stdio.args).into_iter().flat_map(with_credentials);
            SecretValues::of(values(&stdio.env).chain(arguments).filter(long))
        }
        Transport::Http(http) => {
            let query = http.url.split_once('?').map(|(_, query)| query).unwrap_or_default();
            let whole = ("query".to_owned(), query.to_owned());
            SecretValues::of(values(&http.headers).chain(query_values(&http.url)).filter(long).chain([whole]))
        }
    }
}

/// Returns the names and values in the query of an address. Where one of them is a variable, an error does not contain
/// the query as written. Values with variables are left out.
pub(super) fn query_values(url: &str) -> impl Iterator<Item = (String, String)> {
    let query = url.split_once('?').map(|(_, query)| query).unwrap_or_default();
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let literal = pairs.filter(|(_, value)| !value.contains("${"));
    literal.map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// Returns a value, and what follows the scheme in a value such as `Bearer x`: a program may repeat `x` alone.
fn with_credentials((name, value): (String, String)) -> impl Iterator<Item = (String, String)> {
    let is_scheme = |scheme: &str| ["basic", "bearer", "token"].contains(&scheme.to_ascii_lowercase().as_str());
    let credentials = value.split_once(' ').filter(|(scheme, _)| is_scheme(scheme)).map(|(_, rest)| rest.trim());
    let credentials = credentials.map(|rest| (name.clone(), rest.to_owned()));
    [Some((name, value)), credentials].into_iter().flatten()
}

impl SecretValues {
    /// Collects values with the names that replace them.
    pub(super) fn of(known: impl Iterator<Item = (String, String)>) -> Self {
        // Text is logged line by line, so each line of a value is a secret. Shorter lines are not, and hiding them
        // would make text unreadable.
        let pieces = known.flat_map(|(name, value)| {
            let lines: Vec<_> = value.lines().map(|line| line.trim().to_owned()).chain([value.clone()]).collect();
            lines.into_iter().map(move |line| (name.clone(), line))
        });
        let mut secrets: Vec<_> = pieces.filter(|(_, value)| value.len() >= MIN_SECRET).collect();
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
}
