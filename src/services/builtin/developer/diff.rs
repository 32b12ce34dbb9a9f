//! Computes the diff of an edit, for the model to check and for an editor to display.

use std::time::Duration;

use serde_json::{Value, json};

use super::output;
use crate::text::line_diff::LineDiff;

/// Time limit of the comparison.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Diff {
    /// Unified diff of bounded length.
    pub(super) text: String,
    pub(super) added: usize,
    pub(super) removed: usize,
}

impl Diff {
    pub(super) fn between(shown: &str, before: &str, after: &str) -> Self {
        let diff = LineDiff::new(before, after, Some(COMPARE_TIMEOUT));
        let (old, new) = (format!("a/{shown}"), format!("b/{shown}"));
        Self {
            text: output::excerpt(&diff.format(3, Some((&old, &new)))),
            added: diff.count_added(),
            removed: diff.count_removed(),
        }
    }

    pub(super) fn data(&self) -> Value {
        json!({"diff": self.text, "added": self.added, "removed": self.removed})
    }
}
