//! Validates messages from an external agent before Skein passes them on. Fields that ACP defines are normalized by its
//! types; unknown fields stay unchanged.
//!
//! Invariant: a client that parses ACP strictly can read the result.

use std::collections::HashSet;
use std::sync::LazyLock;

use agent_client_protocol::v1::schema as acp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Every field name in the messages that are passed on. A field with one of these names that the ACP types dropped was
/// invalid; a field with any other name is unknown.
static KNOWN: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
    [
        "sessionUpdate",
        "content",
        "messageId",
        "_meta",
        "type",
        "text",
        "data",
        "mimeType",
        "uri",
        "annotations",
        "audience",
        "priority",
        "lastModified",
        "resource",
        "blob",
        "name",
        "title",
        "description",
        "size",
        "toolCallId",
        "kind",
        "status",
        "locations",
        "rawInput",
        "rawOutput",
        "path",
        "line",
        "oldText",
        "newText",
        "terminalId",
        "entries",
        "used",
        "cost",
        "amount",
        "currency",
        "updatedAt",
        "severity",
        "compactionId",
        "summary",
        "error",
        "options",
        "optionId",
        "toolCall",
        "sessionId",
        "update",
        "icons",
        "src",
        "sizes",
        "theme",
    ]
    .into()
});

/// Validates the params of `session/update`, and removes the session id. `None` if the protocol does not define the
/// update.
pub(super) fn update(raw: Value) -> Option<(acp::SessionUpdate, Value)> {
    // The lenient types read a malformed plan as an empty one. An agent must not write user messages.
    match raw["update"]["sessionUpdate"].as_str() {
        Some("plan") if !raw["update"]["entries"].is_array() => return None,
        Some("user_message_chunk") => return None,
        _ => {}
    }
    let (typed, mut told) = validate::<acp::SessionNotification>(raw)?;
    told.as_object_mut()?.remove("sessionId");
    Some((typed.update, told))
}

/// Parses `raw` as `T`, and returns it with the JSON to pass on. `None` if `raw` is not a valid `T`.
pub(super) fn validate<T: DeserializeOwned + Serialize>(raw: Value) -> Option<(T, Value)> {
    let typed: T = serde_json::from_value(raw.clone()).ok()?;
    let strict = serde_json::to_value(&typed).ok()?;
    Some((typed, merge(strict, raw)))
}

/// Adds the unknown fields of `raw` to those that the types kept.
fn merge(strict: Value, raw: Value) -> Value {
    match (strict, raw) {
        (Value::Object(strict), Value::Object(raw)) => Value::Object(merge_fields(strict, raw)),
        (Value::Array(strict), Value::Array(raw)) if strict.len() == raw.len() => {
            Value::Array(strict.into_iter().zip(raw).map(|(strict, raw)| merge(strict, raw)).collect())
        }
        (strict, _) => strict,
    }
}

fn merge_fields(mut strict: Map<String, Value>, raw: Map<String, Value>) -> Map<String, Value> {
    for (name, value) in raw {
        match strict.get_mut(&name) {
            Some(kept) => *kept = merge(kept.take(), value),
            None if KNOWN.contains(name.as_str()) => {}
            None => drop(strict.insert(name, value)),
        }
    }
    strict
}

/// Returns the params that go on to the client, for the fuzzer.
#[cfg(any(test, fuzzing))]
pub fn read_update(raw: Value) -> Option<Value> {
    update(raw).map(|(_, told)| told)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_stay_and_invalid_known_fields_go() {
        let raw = json!({
            "sessionUpdate": "tool_call", "toolCallId": "c1", "title": "Edit", "status": "completed", "mystery": [1],
            "kind": "edit", "rawInput": {"any": {"thing": null}}, "_meta": {"x": 1}, "locations": "nowhere",
            "content": [{"type": "content", "content": {"type": "text", "text": "hi", "colour": "red"}}],
        });
        let of_session = |update: Value| json!({"sessionId": "s", "update": update, "_meta": {"y": 2}});
        let (_, told) = update(of_session(raw)).unwrap();
        assert_eq!((told.get("sessionId"), &told["_meta"]), (None, &json!({"y": 2})));
        let passed = &told["update"];
        assert_eq!(passed["mystery"], json!([1]));
        assert_eq!(passed["rawInput"], json!({"any": {"thing": null}}));
        assert_eq!(passed["content"][0]["content"]["colour"], "red");
        assert_eq!(passed["_meta"], json!({"x": 1}));
        assert_ne!(passed["locations"], "nowhere", "it is a list in the protocol");
        assert_eq!(update(of_session(json!({"sessionUpdate": "made_up", "x": 1}))), None);
        assert_eq!(update(json!("text")), None);
    }
}
