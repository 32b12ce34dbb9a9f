//! Redacts a recording: replaces the values that a manifest passes to a service in variables, headers, queries and
//! arguments that may be secrets with their origin.
//!
//! Invariant: the form of a line stays. Names of tools, prompts and parameters, and the fields and keywords of MCP and
//! JSON Schema are kept, because a value may be a common word.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::conversation::Content;
use crate::manifest::{Placeholder, Transport, secret_arguments};
use crate::secrets::{AddressPart, AddressSecret, address_secrets, secret_forms};
use crate::services::Environment;
use crate::tool::{Catalog, ToolOutcome, ToolSpec};

/// Minimum length of a redacted value; shorter values reveal nothing and occur everywhere. A value from the
/// environment is more likely secret than one in a manifest.
const SHORTEST_FROM_ENVIRONMENT: usize = 4;
const SHORTEST_FROM_MANIFEST: usize = 8;

/// Fields of MCP and JSON Schema whose texts are keywords, or names of parameters.
const KEYWORDS: [&str; 8] = ["$ref", "$schema", "audience", "format", "mimeType", "required", "role", "type"];
/// Fields of MCP and JSON Schema that can have any JSON.
const ANY_JSON: [&str; 5] = ["_meta", "const", "default", "enum", "examples"];

/// Values and their replacements, longest first, so that a partial match never leaves the rest of a value.
#[derive(Debug, Clone, Default)]
pub(super) struct Redaction(Vec<(String, String)>);

impl Redaction {
    pub(super) fn of(transport: &Transport, environment: &Environment) -> Self {
        let mut redaction = Self::default();
        let (mut texts, labelled) = match transport {
            Transport::Builtin(_) => return redaction,
            Transport::Stdio(stdio) => {
                for (name, value) in secret_arguments(&stdio.command, &stdio.args) {
                    redaction.add_words(&value, &format!("[argument {name}]"));
                }
                let texts: Vec<_> = stdio.args.iter().chain(&stdio.cwd).chain([&stdio.command]).collect();
                (texts, stdio.env.iter().map(|(name, value)| (format!("[env {name}]"), value)).collect::<Vec<_>>())
            }
            Transport::Http(http) => {
                redaction.add_address(address_secrets(&http.url));
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
        if let Transport::Http(http) = transport {
            // Comes after the variables, so that a part that is a variable is replaced by the variable's name.
            redaction.add_address(environment.secrets_in_address(&http.url));
        }
        redaction.0.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        redaction
    }

    fn add_address(&mut self, found: Vec<AddressSecret>) {
        for AddressSecret { part, value } in found {
            let label = match &part {
                AddressPart::Query(name) => format!("[query {name}]"),
                part => format!("[address {part}]"),
            };
            self.add(&value, &label, part.min_length());
        }
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
        let forms = secret_forms(value).into_iter().filter(|form| form.len() >= shortest);
        self.0.extend(forms.map(|form| (form, label.to_owned())));
    }

    /// Redacts what a service offers, but not the names by which it is requested.
    pub(super) fn redact_catalog(&self, catalog: Catalog) -> Catalog {
        let redact = |entries: Vec<Value>| entries.into_iter().map(|entry| self.redact_entry(entry)).collect();
        Catalog {
            tools: catalog.tools.into_iter().map(|tool| self.redact_tool(tool)).collect(),
            prompts: catalog.prompts.into_iter().map(|prompt| self.redact_prompt(prompt)).collect(),
            resources: redact(catalog.resources),
            templates: redact(catalog.templates),
            volatile: catalog.volatile,
        }
    }

    fn redact_tool(&self, tool: ToolSpec) -> ToolSpec {
        ToolSpec {
            title: tool.title.map(|title| self.redact_text(title)),
            description: self.redact_text(tool.description),
            input_schema: self.redact_schema(&tool.input_schema),
            output_schema: tool.output_schema.map(|schema| self.redact_schema(&schema)),
            meta: tool.meta.map(|meta| self.redact_value(meta)),
            ..tool
        }
    }

    fn redact_schema(&self, schema: &Map<String, Value>) -> Arc<Map<String, Value>> {
        Arc::new(self.redact_entry_fields(schema.clone()))
    }

    fn redact_prompt(&self, prompt: Value) -> Value {
        let mut redacted = self.redact_entry(prompt.clone());
        keep_name(&prompt, &mut redacted);
        let arguments = prompt.get("arguments").and_then(Value::as_array);
        let kept = redacted.get_mut("arguments").and_then(Value::as_array_mut);
        for (argument, kept) in arguments.into_iter().flatten().zip(kept.into_iter().flatten()) {
            keep_name(argument, kept);
        }
        redacted
    }

    pub(super) fn redact_outcome(&self, outcome: ToolOutcome) -> ToolOutcome {
        let annotations = outcome.annotations.into_iter().map(|(index, value)| (index, self.redact_entry(value)));
        ToolOutcome {
            content: outcome.content.into_iter().map(|content| self.redact_content(content)).collect(),
            structured: outcome.structured.map(|value| self.redact_value(value)),
            annotations: annotations.collect(),
            meta: outcome.meta.map(|meta| self.redact_value(meta)),
            ..outcome
        }
    }

    fn redact_content(&self, content: Content) -> Content {
        match content {
            Content::Text(text) => Content::Text(self.redact_text(text)),
            Content::Injected(text) => Content::Injected(self.redact_text(text)),
            Content::Image { mime, data } => Content::Image { mime, data: self.redact_text(data) },
            Content::Audio { mime, data } => Content::Audio { mime, data: self.redact_text(data) },
            Content::Resource(value) => Content::Resource(self.redact_entry(value)),
            Content::Link(value) => Content::Link(self.redact_entry(value)),
        }
    }

    /// Redacts JSON of MCP or a schema. The names of its fields stay.
    pub(super) fn redact_entry(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.redact_text(text)),
            Value::Array(items) => items.into_iter().map(|item| self.redact_entry(item)).collect(),
            Value::Object(fields) => Value::Object(self.redact_entry_fields(fields)),
            Value::Null | Value::Bool(_) | Value::Number(_) => value,
        }
    }

    fn redact_entry_fields(&self, fields: Map<String, Value>) -> Map<String, Value> {
        let redact = |(name, value): (String, Value)| {
            let value = match name.as_str() {
                // A parameter can have the name of a keyword. Then its schema is an object.
                keyword if KEYWORDS.contains(&keyword) && !value.is_object() => value,
                free if ANY_JSON.contains(&free) => self.redact_value(value),
                _ => self.redact_entry(value),
            };
            (name, value)
        };
        fields.into_iter().map(redact).collect()
    }

    /// Redacts any JSON, the names of its fields included.
    fn redact_value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.redact_text(text)),
            Value::Array(items) => items.into_iter().map(|item| self.redact_value(item)).collect(),
            Value::Object(fields) => Value::Object(self.redact_fields(fields)),
            Value::Null | Value::Bool(_) | Value::Number(_) => value,
        }
    }

    /// Redacts the arguments of a request, the names of the fields included.
    pub(super) fn redact_fields(&self, fields: Map<String, Value>) -> Map<String, Value> {
        fields.into_iter().map(|(name, value)| (self.redact_text(name), self.redact_value(value))).collect()
    }

    pub(super) fn redact_text(&self, mut text: String) -> String {
        for (value, label) in &self.0 {
            if text.contains(value) {
                text = text.replace(value, label);
            }
        }
        text
    }
}

/// Gives a redacted object its `name` back.
fn keep_name(original: &Value, redacted: &mut Value) {
    if let (Some(name), Some(kept)) = (original.get("name"), redacted.get_mut("name")) {
        kept.clone_from(name);
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
            Redaction::of(&stdio, &environment).redact_value(said),
            json!({"text": "[env TOKEN] and [argument api-key] in [env FOLDER]/a: 1", "json": "{\"LITERAL\":\"[env LITERAL]\"}", "n": 1})
        );
        let http = Transport::Http(HttpTransport {
            url: "http://localhost/${env:TOKEN}?key=a-query-value".to_owned(),
            headers: [("Authorization".to_owned(), "Bearer abcdefgh".to_owned())].into(),
        });
        assert_eq!(
            Redaction::of(&http, &environment).redact_value(json!([
                "Bearer abcdefgh",
                "abcdefgh",
                "/s3cret?key=a-query-value"
            ])),
            json!(["[header Authorization]", "[header Authorization]", "/[env TOKEN]?key=[query key]"])
        );
    }

    #[test]
    fn secrets_of_an_address_are_replaced_in_every_form() {
        let environment = Environment::new([("PW".into(), "p@ss".into())]);
        let http = Transport::Http(HttpTransport {
            url: "http://user:${env:PW}@localhost/0123456789abcdef01234567?sig=canary%2Bmcp%2F12345".to_owned(),
            headers: [].into(),
        });
        let said = json!(["canary+mcp/12345 of canary%2Bmcp%2F12345", "dXNlcjpwQHNz", "0123456789abcdef01234567"]);
        assert_eq!(
            Redaction::of(&http, &environment).redact_value(said),
            json!(["[query sig] of [query sig]", "[address user]", "[address path]"])
        );
    }

    #[test]
    fn keys_of_an_address_in_a_variable_are_replaced() {
        let environment = Environment::new([
            ("MCP_URL".into(), "https://mcp.example.com?api_key=canary-123".into()),
            ("MCP_HOST".into(), "mcp.example.com/0123456789abcdef01234567?sig=canary-456#canary-end".into()),
        ]);
        let redacted = |url: &str, text: &str| {
            let http = Transport::Http(HttpTransport { url: url.to_owned(), headers: [].into() });
            Redaction::of(&http, &environment).redact_text(text.to_owned())
        };
        assert_eq!(
            redacted("${env:MCP_URL}", "https://mcp.example.com/?api_key=canary-123"),
            "https://mcp.example.com/?api_key=[env MCP_URL]"
        );
        assert_eq!(
            redacted("https://${env:MCP_HOST}", "/0123456789abcdef01234567/?sig=canary-456 #canary-end"),
            "/[address path]/?sig=[query sig] #[address fragment]"
        );
    }

    #[test]
    fn the_form_of_what_a_service_offers_stays() {
        let words = ["object", "path", "find", "city", "properties"];
        let redaction = Redaction(words.iter().map(|word| ((*word).to_owned(), "[env WORD]".to_owned())).collect());
        let schema = json!({"type": "object", "required": ["path"], "properties": {"path": {
            "type": "string", "description": "a path", "default": "path/x"}, "type": {"title": "find"}}});
        let catalog: Catalog = serde_json::from_value(json!({
            "tools": [{"name": "find", "title": null, "description": "find it", "input_schema": schema,
                "output_schema": null, "hints": {}, "meta": null}],
            "prompts": [{"name": "city", "title": "city", "arguments": [{"name": "path", "description": "path"}]}],
            "resources": [{"uri": "file:///path", "name": "path", "mimeType": "text/find"}], "templates": [],
        }))
        .unwrap();
        let kept = serde_json::to_value(redaction.redact_catalog(catalog)).unwrap();
        let schema = json!({"type": "object", "required": ["path"], "properties": {"path": {
            "type": "string", "description": "a [env WORD]", "default": "[env WORD]/x"}, "type": {"title": "[env WORD]"}}});
        assert_eq!(kept["tools"][0]["input_schema"], schema);
        assert_eq!(
            (&kept["tools"][0]["name"], &kept["tools"][0]["description"]),
            (&json!("find"), &json!("[env WORD] it"))
        );
        assert_eq!(
            kept["prompts"][0],
            json!({"name": "city", "title": "[env WORD]", "arguments": [{"name": "path", "description": "[env WORD]"}]})
        );
        assert_eq!(
            kept["resources"][0],
            json!({"uri": "file:///[env WORD]", "name": "[env WORD]", "mimeType": "text/find"})
        );
    }
}
