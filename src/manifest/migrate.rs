//! Checks the `version` of a manifest: migrates older ones with a note, and rejects newer ones.

use serde_json::{Value, json};

use super::model::VERSION;
use super::yaml::{DocumentPath, SourceFile};
use crate::diagnostic::Diagnostic;

/// This build cannot read the file; the reason was reported.
pub(super) struct UnsupportedVersion;

pub(super) fn migrate(
    value: &mut Value,
    source: &SourceFile,
    found: &mut Vec<Diagnostic>,
) -> Result<(), UnsupportedVersion> {
    if !check_version(value, source, found) {
        return Err(UnsupportedVersion);
    }
    if value.get("version") == Some(&json!(0)) {
        from_version_0(value);
        found.push(Diagnostic::note(
            "N304",
            source.place(&DocumentPath::root().key("version")),
            "a manifest of version 0 was read as version 1",
            "write `version: 1`, `kind`, and a `description` for the file and for each mode",
        ));
    }
    Ok(())
}

/// Returns false, with a report, if the version is missing, invalid or newer than this build.
pub(super) fn check_version(value: &Value, source: &SourceFile, found: &mut Vec<Diagnostic>) -> bool {
    let at = DocumentPath::root().key("version");
    let (code, place, problem, help) = match value.get("version") {
        None => (
            "E012",
            source.place(&DocumentPath::root()),
            "the field `version` is missing".to_owned(),
            format!("add `version: {VERSION}`"),
        ),
        Some(version) => match version.as_u64() {
            Some(0..=VERSION) => return true,
            Some(newer) => (
                "E008",
                source.place(&at),
                format!("the file is of version {newer}; this skein reads up to version {VERSION}"),
                "use a newer skein, or write the file in the older form".to_owned(),
            ),
            None => (
                "E010",
                source.place(&at),
                "`version` must be a whole number".to_owned(),
                format!("write `version: {VERSION}`"),
            ),
        },
    };
    found.push(Diagnostic::error(code, place, problem, help));
    false
}

/// Migrates from version 0, the first draft of the format, which had no `kind` and no descriptions.
fn from_version_0(value: &mut Value) {
    let Some(object) = value.as_object_mut() else { return };
    object.insert("version".to_owned(), json!(VERSION));
    if !object.contains_key("kind") {
        let kind = if object.contains_key("transport") { "service" } else { "agent" };
        object.insert("kind".to_owned(), json!(kind));
    }
    describe(object, "name");
    for mode in object.get_mut("modes").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(mode) = mode.as_object_mut() {
            describe(mode, "slug");
        }
    }
}

fn describe(object: &mut serde_json::Map<String, Value>, name: &str) {
    if !object.contains_key("description") {
        let text = object.get("title").or_else(|| object.get(name)).cloned().unwrap_or_default();
        object.insert("description".to_owned(), text);
    }
}
