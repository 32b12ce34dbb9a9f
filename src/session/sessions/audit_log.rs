//! Writes the decisions in a session to the audit log of the store.

use serde_json::{Map, Value};

use crate::ids::call_label;
use crate::store::{NewAuditEntry, SessionStore};
use crate::tool::{AuditRecord, AuditSink, strip_to_line, truncate};

/// Maximum bytes of a name or a rule.
const MAX_TEXT: usize = 300;

/// The audit log of one session, or of a client without a stored session.
#[derive(Debug)]
pub struct SessionAuditLog {
    store: SessionStore,
    session: String,
}

impl SessionAuditLog {
    pub fn new(store: SessionStore, session: String) -> Self {
        Self { store, session }
    }
}

impl AuditSink for SessionAuditLog {
    fn record(&self, record: AuditRecord) {
        let AuditRecord { kind, actor, subject, call, decision, source, rule, arguments } = record;
        let entry = NewAuditEntry {
            actor: line(&actor),
            kind: kind.as_str(),
            subject: line(&subject),
            call: call.as_deref().map(|id| call_label(id).into_owned()),
            decision: decision.as_str(),
            source: source.as_str(),
            rule: rule.as_deref().map(line),
            arguments: arguments.map(|arguments| sort(Value::Object(arguments)).to_string().into_bytes()),
        };
        self.store.audit(&self.session, entry);
    }
}

fn line(text: &str) -> String {
    truncate(&strip_to_line(text), MAX_TEXT).to_owned()
}

/// Sorts the keys of all objects, so that equal arguments have equal hashes.
fn sort(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.into_iter().map(|(name, value)| (name, sort(value))).collect();
            fields.sort_by(|(one, _), (other, _)| one.cmp(other));
            Value::Object(Map::from_iter(fields))
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sort).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn order_of_keys_does_not_change_the_text() {
        let (one, other) = (json!({"b": [{"y": 1, "x": 2}], "a": 0}), json!({"a": 0, "b": [{"x": 2, "y": 1}]}));
        assert_eq!(sort(one).to_string(), sort(other).to_string());
        assert_ne!(sort(json!([1, 2])), sort(json!([2, 1])), "lists keep their order");
    }
}
