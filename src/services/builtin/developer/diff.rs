//! Computes the diff of an edit, for the model to check and for an editor to display.

use serde_json::{Value, json};
use similar::{ChangeTag, TextDiff};

use super::output;

#[derive(Debug)]
pub(super) struct Diff {
    /// Unified diff of bounded length.
    pub(super) text: String,
    pub(super) added: usize,
    pub(super) removed: usize,
}

impl Diff {
    pub(super) fn between(shown: &str, before: &str, after: &str) -> Self {
        let diff = TextDiff::configure().timeout(std::time::Duration::from_secs(1)).diff_lines(before, after);
        let count = |tag| diff.iter_all_changes().filter(|change| change.tag() == tag).count();
        let (old, new) = (format!("a/{shown}"), format!("b/{shown}"));
        Self {
            text: output::excerpt(&diff.unified_diff().context_radius(3).header(&old, &new).to_string()),
            added: count(ChangeTag::Insert),
            removed: count(ChangeTag::Delete),
        }
    }

    pub(super) fn data(&self) -> Value {
        json!({"diff": self.text, "added": self.added, "removed": self.removed})
    }
}
