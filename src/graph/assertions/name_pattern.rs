//! Names and globs in assertions.

use globset::{GlobBuilder, GlobMatcher};

/// A name or a glob. A `*` does not match a `/`, except if it is the whole pattern.
pub(super) struct NamePattern {
    text: String,
    glob: Option<GlobMatcher>,
}

impl NamePattern {
    pub(super) fn new(text: &str) -> Self {
        let is_all = text == "*";
        let glob = GlobBuilder::new(text).literal_separator(!is_all).build().ok();
        Self { text: text.to_owned(), glob: glob.map(|glob| glob.compile_matcher()) }
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        self.text == name || self.glob.as_ref().is_some_and(|glob| glob.is_match(name))
    }
}
