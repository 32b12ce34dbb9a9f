//! Names and globs that select modes, services and other names.

use globset::{GlobBuilder, GlobMatcher};

/// A name or a glob. A `*` does not match a `/`, except if it is the whole pattern.
///
/// ```
/// use skein::ids::NamePattern;
/// assert!(NamePattern::new("coding/*").matches("coding/backend"));
/// assert!(!NamePattern::new("cod*").matches("coding/backend"));
/// ```
#[derive(Debug, Clone)]
pub struct NamePattern {
    text: String,
    glob: Option<GlobMatcher>,
}

impl NamePattern {
    /// A text that is no valid glob matches only itself.
    pub fn new(text: &str) -> Self {
        let is_all = text == "*";
        let glob = GlobBuilder::new(text).literal_separator(!is_all).build().ok();
        Self { text: text.to_owned(), glob: glob.map(|glob| glob.compile_matcher()) }
    }

    /// Returns the name or glob as it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn matches(&self, name: &str) -> bool {
        self.text == name || self.glob.as_ref().is_some_and(|glob| glob.is_match(name))
    }
}
