//! Redacts a recording: replaces the values that a manifest passes to a service in variables, headers, queries and
//! arguments that may be secrets with their origin.

use serde_json::{Map, Value};

use crate::manifest::{Placeholder, Transport, secret_arguments};
use crate::services::Environment;
use crate::services::environment::query_values;

/// Minimum length of a redacted value; shorter values reveal nothing and occur everywhere. A value from the
/// environment is more likely secret than one in a manifest.
const SHORTEST_FROM_ENVIRONMENT: usize = 4;
const SHORTEST_FROM_MANIFEST: usize = 8;

/// Values and their replacements, longest first, so that a partial match never leaves the rest of a value.
#[derive(Debug, Clone, Default)]
pub(super) struct Redaction(Vec<(String, String)>);

impl Redaction {
    pub(super) fn of(transport: &Transport, environment: &Environment) -> Self {
        let mut redaction = Self::default();
        let (mut texts, labelled) = match transport {
            Transport::Builtin(_) => return redaction,
            Transport::Stdio(stdio) => {
                for (name, value) in secret_arguments(&stdio.args) {
                    redaction.add_words(&value, &format!("[argument {name}]"));
                }
                let texts: Vec<_> = stdio.args.iter().chain(&stdio.cwd).chain([&stdio.command]).collect();
                (texts, stdio.env.iter().map(|(name, value)| (format!("[env {name}]"), value)).collect::<Vec<_>>())
            }
            Transport::Http(http) => {
                for (name, value) in query_values(&http.url) {
                    redaction.add(&value, &format!("[query {name}]"), SHORTEST_FROM_MANIFEST);
                }
                let headers = http.headers.iter().map(|(name, value)| (format!("[header {name}]"), value));
                (vec![&http.url], headers.collect())
            }
        };
        for (label, value) in &labelled {
            texts.push(value);
            let Ok(filled) = environment.fill_in(value) else { continue };
            redaction.add_words(&filled, label);
        }
        for text in texts {
            for name in Placeholder::all_in(text).map(|placeholder| placeholder.name) {
                if let Ok(value) = environment.fill_in(&format!("${{env:{name}}}")) {
                    redaction.add(&value, &format!("[env {name}]"), SHORTEST_FROM_ENVIRONMENT);
                }
            }
        }
        redaction.0.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        redaction
    }

    /// Adds a value and its words: for `Bearer x`, the service may repeat `x` alone.
    fn add_words(&mut self, value: &str, label: &str) {
        for part in value.split_whitespace().chain([value]) {
            self.add(part, label, SHORTEST_FROM_MANIFEST);
        }
    }

    fn add(&mut self, value: &str, label: &str, shortest: usize) {
        if value.len() < shortest {
            return;
        }
        self.0.push((value.to_owned(), label.to_owned()));
        // JSON inside a string contains the value in its escaped form.
        let quoted = Value::from(value).to_string();
        let quoted = &quoted[1..quoted.len() - 1];
        if quoted != value {
            self.0.push((quoted.to_owned(), label.to_owned()));
        }
    }

    pub(super) fn apply(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.into_iter().map(|item| self.apply(item)).collect(),
            Value::Object(object) => {
                let object: Map<_, _> =
                    object.into_iter().map(|(name, value)| (self.text(name), self.apply(value))).collect();
                Value::Object(object)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value,
        }
    }

    fn text(&self, mut text: String) -> String {
        for (value, label) in &self.0 {
            if text.contains(value) {
                text = text.replace(value, label);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::manifest::{HttpTransport, StdioTransport};

    #[test]
    fn variables_and_headers_are_replaced_by_where_they_came_from() {
        let environment = Environment::new([
            ("TOKEN".into(), "s3cret".into()),
            ("FOLDER".into(), "/home/x".into()),
            ("A".into(), "1".into()),
        ]);
        let stdio = Transport::Stdio(StdioTransport {
            command: "x".to_owned(),
            args: ["${env:FOLDER}/notes", "${env:A}", "--api-key", "an-argument"].map(str::to_owned).into(),
            env: [("KEY".to_owned(), "${env:TOKEN}".to_owned()), ("LITERAL".to_owned(), "pass\"word".to_owned())]
                .into(),
            cwd: None,
        });
        let said =
            json!({"text": "s3cret and an-argument in /home/x/a: 1", "json": "{\"LITERAL\":\"pass\\\"word\"}", "n": 1});
        assert_eq!(
            Redaction::of(&stdio, &environment).apply(said),
            json!({"text": "[env TOKEN] and [argument api-key] in [env FOLDER]/a: 1", "json": "{\"LITERAL\":\"[env LITERAL]\"}", "n": 1})
        );
        let http = Transport::Http(HttpTransport {
            url: "http://localhost/${env:TOKEN}?key=a-query-value".to_owned(),
            headers: [("Authorization".to_owned(), "Bearer abcdefgh".to_owned())].into(),
        });
        assert_eq!(
            Redaction::of(&http, &environment).apply(json!([
                "Bearer abcdefgh",
                "abcdefgh",
                "/s3cret?key=a-query-value"
            ])),
            json!(["[header Authorization]", "[header Authorization]", "/[env TOKEN]?key=[query key]"])
        );
    }
}
