//! Redacts a recording: replaces the values that a manifest passes to a service in variables and headers with their
//! origin.

use serde_json::{Map, Value};

use crate::manifest::{Placeholder, Transport};
use crate::services::Environment;

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
                let texts: Vec<_> = stdio.args.iter().chain(&stdio.cwd).chain([&stdio.command]).collect();
                (texts, stdio.env.iter().map(|(name, value)| (format!("[env {name}]"), value)).collect::<Vec<_>>())
            }
            Transport::Http(http) => {
                let headers = http.headers.iter().map(|(name, value)| (format!("[header {name}]"), value));
                (vec![&http.url], headers.collect())
            }
        };
        for (label, value) in &labelled {
            texts.push(value);
            let Ok(filled) = environment.fill_in(value) else { continue };
            // For `Bearer x` the service may repeat `x` alone.
            for part in filled.split_whitespace().chain([filled.as_str()]) {
                redaction.add(part, label, SHORTEST_FROM_MANIFEST);
            }
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
            args: vec!["${env:FOLDER}/notes".to_owned(), "${env:A}".to_owned()],
            env: [("KEY".to_owned(), "${env:TOKEN}".to_owned()), ("LITERAL".to_owned(), "pass\"word".to_owned())]
                .into(),
            cwd: None,
        });
        let said = json!({"text": "s3cret in /home/x/a: 1", "json": "{\"LITERAL\":\"pass\\\"word\"}", "n": 1});
        assert_eq!(
            Redaction::of(&stdio, &environment).apply(said),
            json!({"text": "[env TOKEN] in [env FOLDER]/a: 1", "json": "{\"LITERAL\":\"[env LITERAL]\"}", "n": 1})
        );
        let http = Transport::Http(HttpTransport {
            url: "http://localhost/${env:TOKEN}".to_owned(),
            headers: [("Authorization".to_owned(), "Bearer abcdefgh".to_owned())].into(),
        });
        assert_eq!(
            Redaction::of(&http, &environment).apply(json!(["Bearer abcdefgh", "abcdefgh", "/s3cret"])),
            json!(["[header Authorization]", "[header Authorization]", "/[env TOKEN]"])
        );
    }
}
