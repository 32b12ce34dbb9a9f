//! Holds the environment variables for services. Fills in `${env:NAME}` when a service starts, and keeps the values
//! out of logs.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::manifest::{Placeholder, Transport};

const MIN_SECRET: usize = 4;

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
    let values = |map: &BTreeMap<String, String>| map.clone().into_iter().filter(|(_, value)| value.len() >= 8);
    match transport {
        Transport::Builtin(_) => SecretValues::default(),
        Transport::Stdio(stdio) => SecretValues::of(values(&stdio.env)),
        Transport::Http(http) => {
            let query = http.url.split_once('?').map(|(_, query)| query).unwrap_or_default();
            // Each value too: where one of them is a variable, an error does not contain the query as written.
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let parts = pairs.filter(|(_, value)| value.len() >= 8 && !value.contains("${")).chain([("query", query)]);
            let parts = parts.map(|(name, value)| (name.to_owned(), value.to_owned()));
            SecretValues::of(values(&http.headers).chain(parts))
        }
    }
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
}
