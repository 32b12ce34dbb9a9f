//! Names managed settings, and the reasons why they exclude an agent, a mode or a service.

use std::fmt;

use super::Layer;
use super::managed_config::ManagedName;
use crate::diagnostic::SourceLocation;
use crate::ids::NamePattern;

/// A key of a managed file, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedSetting {
    pub key: &'static str,
    pub place: SourceLocation,
}

impl ManagedSetting {
    /// Returns the file and the line.
    pub fn location(&self) -> String {
        match &self.place.span {
            Some(span) => format!("{}:{}", self.place.file, span.line),
            None => self.place.file.clone(),
        }
    }
}

impl fmt::Display for ManagedSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the managed setting `{}` ({})", self.key, self.location())
    }
}

/// Why a managed list excludes an agent, a mode or a service. Writes the end of a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedExclusion {
    pub setting: ManagedSetting,
    /// The file with another definition than that of Skein, if the list has the name. `None` if it does not.
    pub replaced_in: Option<String>,
}

impl ManagedExclusion {
    /// Returns the reason with a name for what is excluded, such as `the service memory`.
    pub fn describe(&self, what: &str) -> String {
        let setting = &self.setting;
        match &self.replaced_in {
            None => format!("{setting} does not list {what}"),
            Some(file) => format!("{setting} allows {what} only as Skein defines it, not as {file} does"),
        }
    }
}

impl fmt::Display for ManagedExclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe("it"))
    }
}

/// An entry of a managed list of names.
#[derive(Debug, Clone)]
pub(super) struct ListRule {
    pattern: NamePattern,
    /// True if definitions count that Skein does not ship.
    admits_others: bool,
}

impl ListRule {
    /// Reads an entry. `pattern_of` turns its name into a glob.
    pub(super) fn new(name: &ManagedName, pattern_of: impl Fn(&str) -> NamePattern) -> Self {
        Self { pattern: pattern_of(name.name()), admits_others: name.admits_others() }
    }
}

/// What a list says about a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListVerdict {
    Admitted,
    /// The list has the name, but only for the definition of Skein.
    Replaced,
    NotListed,
}

/// Returns whether a list admits what this layer defines. A plain name stands for the definition of Skein.
pub(super) fn judge(list: Option<&[ListRule]>, name: &str, layer: Layer) -> ListVerdict {
    let Some(list) = list else { return ListVerdict::Admitted };
    let mut verdict = ListVerdict::NotListed;
    for rule in list.iter().filter(|rule| rule.pattern.matches(name)) {
        if layer == Layer::Builtin || rule.admits_others {
            return ListVerdict::Admitted;
        }
        verdict = ListVerdict::Replaced;
    }
    verdict
}
