//! Keeps the tool-call ids of an external agent apart from those that Skein issues.
//!
//! Invariant: an id that the agent sends never names a call about which Skein asks the user.

use serde_json::Value;

use crate::ids::random_id;

/// The two sets of ids in one external session.
#[derive(Debug)]
pub(super) struct CallIds {
    /// Precedes every id that the agent sends.
    theirs: String,
    /// Precedes every id that Skein issues in this session; the agent never sees it.
    ours: String,
}

impl CallIds {
    pub(super) fn new() -> Self {
        Self { theirs: random_id("agent"), ours: random_id("ask") }
    }

    /// Returns a new id for a call that Skein announces.
    pub(super) fn issue(&self) -> String {
        random_id(&self.ours)
    }

    /// Returns the id under which Skein passes on a call of the agent. `None` if Skein issued `id`.
    pub(super) fn admit(&self, id: &str) -> Option<String> {
        (!id.starts_with(&self.ours)).then(|| format!("{}/{id}", self.theirs))
    }

    /// Replaces the `toolCallId` of an update or a request, if it has one. Returns false if Skein issued it.
    pub(super) fn rewrite(&self, object: &mut Value) -> bool {
        let Some(id) = object.get_mut("toolCallId") else { return true };
        let Some(text) = id.as_str() else { return true };
        let Some(admitted) = self.admit(text) else { return false };
        *id = Value::String(admitted);
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_agent_reaches_only_its_own_calls() {
        let (ids, others) = (CallIds::new(), CallIds::new());
        let issued = ids.issue();
        assert_ne!(issued, ids.issue());
        assert_eq!(ids.admit(&issued), None);
        let admitted = ids.admit("call-1").unwrap();
        assert!(admitted.ends_with("/call-1"), "{admitted}");
        assert_eq!(ids.admit("call-1"), Some(admitted.clone()), "the same call keeps its id");
        assert_ne!(others.admit("call-1"), Some(admitted));
        let mut update = json!({"sessionUpdate": "tool_call_update", "toolCallId": issued, "title": "harmless"});
        assert!(!ids.rewrite(&mut update));
        assert!(ids.rewrite(&mut json!({"sessionUpdate": "plan", "entries": []})));
    }
}
