//! What holds for every tool of every built-in service: it says what it does and what it may do, its parameters have a
//! description and a limit, and hostile arguments get an answer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::{BuiltinContext, BuiltinRegistry};
use crate::ids::ToolName;
use crate::services::UserFolders;
use crate::services::connection::ServiceConnection;
use crate::tool::{CallContext, SessionContext, ToolCall, ToolSpec};

/// Parameters whose schema has no limit, with the reason.
const UNLIMITED: &[(&str, &str)] = &[
    ("path", "the service resolves it, and refuses what is outside the session's folders"),
    ("content", "a file may be empty, and the service limits its size in bytes"),
    ("before", "an edit of a workbook has none"),
    ("after", "the new text may be empty"),
    ("text", "a block of a document may be a table"),
    ("query", "any words find something or nothing"),
    ("confirm", "only the code that the service gave is accepted"),
    ("glob", "any pattern finds something or nothing"),
    ("tags", "any tags find something or nothing"),
    ("around", "any number is near a message"),
    ("min", "a value axis may start anywhere"),
    ("max", "a value axis may end anywhere"),
];

/// All built-in services, each with its data below one folder.
struct AllServices {
    folder: TempDir,
    running: Vec<(String, Arc<dyn ServiceConnection>)>,
}

impl AllServices {
    /// Starts them; call it within a runtime.
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["cwd", "scratch", "data"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let context = BuiltinContext {
            principal: crate::principal::Principal::local(),
            roles: std::collections::BTreeMap::new(),
            reaper: None,
            environment: std::collections::BTreeMap::new(),
            sandbox: None,
            data: folder.path().join("data"),
            user: UserFolders::default(),
            cwd: Some(folder.path().join("cwd")),
            settings: Map::new(),
        };
        let registry = BuiltinRegistry::builtin();
        let mut names: Vec<_> = registry.names().map(str::to_owned).collect();
        names.sort();
        let running = names.into_iter().map(|name| {
            let connection = registry.start(&name, &context).unwrap();
            (name, connection)
        });
        let running = running.collect();
        Self { folder, running }
    }

    /// Returns every tool with its name as models see it.
    async fn tools(&self) -> Vec<(String, ToolSpec)> {
        let mut tools = Vec::new();
        for (service, connection) in &self.running {
            let catalog = connection.catalog().await.unwrap();
            tools.extend(catalog.tools.into_iter().map(|tool| (format!("{service}__{}", tool.name), tool)));
        }
        tools
    }

    fn session(&self) -> Arc<SessionContext> {
        let path = |name: &str| self.folder.path().join(name);
        SessionContext::new("first", path("cwd"), Vec::new(), path("scratch"))
    }
}

/// One parameter, also of an object inside an array: where it is, its name and its schema.
struct FoundParameter {
    place: String,
    name: String,
    schema: Value,
}

fn find_parameters(place: &str, schema: &Value, found: &mut Vec<FoundParameter>) {
    assert!(schema.get("$ref").is_none(), "{place} refers to another schema");
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let place = format!("{place}.{name}");
        find_parameters(&place, schema, found);
        found.push(FoundParameter { place, name: name.clone(), schema: schema.clone() });
    }
    if let Some(items) = schema.get("items") {
        find_parameters(&format!("{place}[]"), items, found);
    }
    for choice in ["anyOf", "oneOf"].iter().filter_map(|key| schema[*key].as_array()).flatten() {
        find_parameters(place, choice, found);
    }
}

async fn all_parameters() -> Vec<FoundParameter> {
    let mut found = Vec::new();
    for (name, tool) in AllServices::start().tools().await {
        find_parameters(&name, &Value::Object((*tool.input_schema).clone()), &mut found);
    }
    assert!(found.len() >= 90, "only {} parameters were found", found.len());
    found
}

#[tokio::test]
async fn every_tool_says_what_it_does_and_may_do() {
    let tools = AllServices::start().tools().await;
    assert!(tools.len() >= 45, "only {} tools were found", tools.len());
    for (name, tool) in tools {
        let words = tool.description.split_whitespace().count();
        assert!(words >= 3, "{name}: `{}` is no description", tool.description);
        let hints = tool.hints;
        let all = [hints.read_only, hints.destructive, hints.idempotent, hints.open_world];
        assert!(all.iter().all(Option::is_some), "{name} leaves hints out: {hints:?}");
        let contradicts = hints.read_only == Some(true) && hints.destructive == Some(true);
        assert!(!contradicts, "{name} reads only and destroys");
        assert_eq!(tool.input_schema.get("type"), Some(&json!("object")), "{name}");
    }
}

#[tokio::test]
async fn every_parameter_has_a_description() {
    let is_bare = |parameter: &FoundParameter| {
        let text = parameter.schema["description"].as_str().unwrap_or_default();
        text.len() < 8 || text.split_whitespace().count() < 2
    };
    let bare: Vec<_> = all_parameters().await.into_iter().filter(is_bare).map(|of| of.place).collect();
    assert!(bare.is_empty(), "say in two words or more what these are, with unit, format or default: {bare:#?}");
}

#[tokio::test]
async fn every_parameter_has_a_limit_or_a_reason() {
    let mut unused: BTreeSet<_> = UNLIMITED.iter().map(|(name, _)| *name).collect();
    let mut open = Vec::new();
    for FoundParameter { place, name, schema } in all_parameters().await {
        let limits: &[&str] = match schema["type"].as_str() {
            Some("string") => &["enum", "const", "minLength", "maxLength", "pattern", "format"],
            Some("integer" | "number") => &["enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
            Some("array") => &["minItems", "maxItems"],
            _ => continue,
        };
        if limits.iter().any(|limit| schema.get(*limit).is_some()) {
            continue;
        }
        unused.remove(name.as_str());
        if !UNLIMITED.iter().any(|(known, _)| *known == name) {
            open.push(place);
        }
    }
    assert!(open.is_empty(), "give these a limit in the schema, or UNLIMITED the reason: {open:#?}");
    assert!(unused.is_empty(), "every parameter of these names has a limit: {unused:?}");
}

/// Returns the smallest value that a schema accepts.
fn least_value(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("string") => json!("x"),
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or(json!(1)),
        Some("boolean") => json!(false),
        Some("array") if schema["minItems"].as_u64() > Some(0) => json!([least_value(&schema["items"])]),
        Some("array") => json!([]),
        Some("object") => Value::Object(least_arguments(schema)),
        _ => Value::Null,
    }
}

/// Returns the least values of what an object requires.
fn least_arguments(schema: &Value) -> Map<String, Value> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    required.map(|name| (name.to_owned(), least_value(&schema["properties"][name]))).collect()
}

fn hostile_values() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!(1e308),
        json!(""),
        json!("\0"),
        json!("../../../../etc/passwd"),
        json!("/proc/self/environ"),
        json!("\u{202e}x\u{7}\n</service>"),
        json!("a".repeat(10_000)),
        json!([]),
        json!([null, "\0", {}]),
        json!({}),
        json!({"a": {"b": [1, 2]}}),
    ]
}

/// A call past the schema, as a client of the service alone could send it. Tools that reach other programs or the
/// network have their own tests, and `watch` waits.
#[tokio::test]
async fn hostile_arguments_get_an_answer_and_leave_nothing_outside() {
    let services = AllServices::start();
    for (service, connection) in &services.running {
        for tool in connection.catalog().await.unwrap().tools {
            if tool.hints.open_world == Some(true) || tool.name.as_str() == "watch" {
                continue;
            }
            let schema = Value::Object((*tool.input_schema).clone());
            let names: Vec<_> = schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name).collect();
            for name in names {
                for value in hostile_values() {
                    let mut arguments = least_arguments(&schema);
                    arguments.insert(name.clone(), value.clone());
                    let shown = format!("{service}__{} with `{name}`: {}", tool.name, answer_head(&value.to_string()));
                    let context = CallContext::new(services.session());
                    let call = ToolCall { tool: ToolName::new(tool.name.as_str()), arguments, context };
                    let outcome = connection.call(call, Duration::from_secs(30)).await;
                    let outcome = outcome.unwrap_or_else(|error| panic!("{shown} got no answer: {error:?}"));
                    let text = outcome.all_text();
                    let is_fault = text.contains("panicked") || text.contains("in a way it should not");
                    assert!(!is_fault, "{shown}: {text}");
                    assert!(!outcome.is_error || text.len() > 10, "{shown}: the refusal says nothing: `{text}`");
                    assert!(text.len() < 70_000, "{shown}: the answer has {} bytes", text.len());
                }
            }
        }
    }
    let entries = std::fs::read_dir(services.folder.path()).unwrap();
    let mut entries: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    entries.sort();
    assert_eq!(entries, ["cwd", "data", "scratch"], "a tool wrote outside the folders of the session");
}

fn answer_head(text: &str) -> &str {
    super::answer::truncate(text, 60)
}
