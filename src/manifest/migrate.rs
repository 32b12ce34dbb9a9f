//! Checks the `version` of a manifest: migrates older ones with a note, and rejects newer ones.

use serde_json::{Map, Value, json};

use super::model::VERSION;
use super::yaml::{DocumentPath, SourceFile};
use crate::diagnostic::Diagnostic;

/// This build is too old to read the file; a diagnostic reports it.
pub(super) struct UnsupportedVersion;

/// Fails if the version is newer than this build.
pub(super) fn migrate(
    object: &mut Map<String, Value>,
    source: &SourceFile,
    found: &mut Vec<Diagnostic>,
) -> Result<(), UnsupportedVersion> {
    check_version(object, source, found)?;
    if object.get("version") == Some(&json!(0)) {
        from_version_0(object);
        found.push(Diagnostic::note(
            "N304",
            source.place(&DocumentPath::root().key("version")),
            "a manifest of version 0 was read as version 1",
            "write `version: 1`, `kind`, and a `description` for the file and for each mode",
        ));
    }
    Ok(())
}

/// Fails, with a report, if the version is newer than this build.
pub(super) fn check_version(
    object: &Map<String, Value>,
    source: &SourceFile,
    found: &mut Vec<Diagnostic>,
) -> Result<(), UnsupportedVersion> {
    let Some(newer) = object.get("version").and_then(Value::as_u64).filter(|version| *version > VERSION) else {
        return Ok(());
    };
    found.push(Diagnostic::error(
        "E008",
        source.place(&DocumentPath::root().key("version")),
        format!("the file is of version {newer}; this skein reads up to version {VERSION}"),
        "use a newer skein, or write the file in the older form",
    ));
    Err(UnsupportedVersion)
}

/// Migrates from version 0, the first draft of the format, which had no `kind` and no descriptions.
fn from_version_0(object: &mut Map<String, Value>) {
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

fn describe(object: &mut Map<String, Value>, name: &str) {
    if !object.contains_key("description") {
        let text = object.get("title").or_else(|| object.get(name)).cloned().unwrap_or_default();
        object.insert("description".to_owned(), text);
    }
}
