//! Reports required fields that are missing and inserts stand-ins for them. The rest of the file is then checked in
//! the same run, so that an author sees all errors at once.
//!
//! Invariant: every stand-in comes with an error, so no plan contains one.

use serde_json::{Map, Value, json};

use super::model::VERSION;
use super::schema::{DocumentKind, missing_field};
use super::yaml::{DocumentPath, SourceFile};
use crate::diagnostic::Diagnostic;
use crate::ids::nearest;

/// Returns the kind of a manifest. Reports a missing or unknown `kind` and derives it from the other fields instead;
/// `None` if they do not show it.
pub(super) fn complete_kind(
    object: &mut Map<String, Value>,
    source: &SourceFile,
    found: &mut Vec<Diagnostic>,
) -> Option<DocumentKind> {
    let (problem, help) = match object.get("kind") {
        Some(Value::String(kind)) if kind == "agent" => return Some(DocumentKind::Agent),
        Some(Value::String(kind)) if kind == "service" => return Some(DocumentKind::Service),
        Some(Value::String(other)) => {
            let near = nearest(other, ["agent", "service"]).map(|near| format!("did you mean `{near}`?"));
            (format!("unknown kind `{other}`"), near.unwrap_or("write `kind: agent` or `kind: service`".to_owned()))
        }
        Some(_) => ("`kind` must be text".to_owned(), "write `kind: agent` or `kind: service`".to_owned()),
        None => ("the field `kind` is missing".to_owned(), "add `kind: agent` or `kind: service`".to_owned()),
    };
    found.push(Diagnostic::error("E007", source.place(&DocumentPath::root().key("kind")), problem, help));
    let (kind, name) = match (object.contains_key("modes"), object.contains_key("transport")) {
        (true, false) => (DocumentKind::Agent, "agent"),
        (false, true) => (DocumentKind::Service, "service"),
        _ => return None,
    };
    object.insert("kind".to_owned(), json!(name));
    Some(kind)
}

/// Reports a missing `version` or one that is not a number, and inserts the current one.
pub(super) fn complete_version(object: &mut Map<String, Value>, source: &SourceFile, found: &mut Vec<Diagnostic>) {
    let at = DocumentPath::root().key("version");
    let help = |verb: &str| format!("{verb} `version: {VERSION}`");
    match object.get("version") {
        Some(version) if version.is_u64() => return,
        Some(_) => {
            found.push(Diagnostic::error("E010", source.place(&at), "`version` must be a whole number", help("write")));
        }
        None => found.push(missing_field(&DocumentPath::root(), "version", source)),
    }
    object.insert("version".to_owned(), json!(VERSION));
}

/// Reports missing descriptions and prompts.
pub(super) fn complete_texts(
    kind: DocumentKind,
    object: &mut Map<String, Value>,
    source: &SourceFile,
    found: &mut Vec<Diagnostic>,
) {
    complete_description(object, &DocumentPath::root(), source, found);
    if kind != DocumentKind::Agent {
        return;
    }
    let is_external = object.contains_key("runtime");
    for (index, mode) in object.get_mut("modes").and_then(Value::as_array_mut).into_iter().flatten().enumerate() {
        let Some(mode) = mode.as_object_mut() else { continue };
        let at = DocumentPath::root().key("modes").index(index);
        complete_description(mode, &at, source, found);
        if !is_external && mode.get("prompt").is_none_or(Value::is_null) {
            let slug = mode.get("slug").and_then(Value::as_str).unwrap_or_default();
            found.push(Diagnostic::error(
                "E012",
                source.place(&at),
                format!("the field `prompt` is missing in mode `{slug}`"),
                "add `prompt: FILE.md`; only an external agent (`runtime`) brings its own",
            ));
        }
    }
}

fn complete_description(
    object: &mut Map<String, Value>,
    at: &DocumentPath,
    source: &SourceFile,
    found: &mut Vec<Diagnostic>,
) {
    if !object.contains_key("description") {
        found.push(missing_field(at, "description", source));
        object.insert("description".to_owned(), json!("-"));
    }
}
