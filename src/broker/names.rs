//! Assigns the tool names that a model sees: `service__tool`, at most 64 characters of `A-Z a-z 0-9 _ -`, unique, and
//! mapped back exactly.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::ids::{ServiceName, ToolName};

const MAX: usize = 64;
/// Hex digits of the hash that a changed name ends with, after an underscore.
const HASH: usize = 8;

/// Assigns a name to each tool. The name does not depend on which other services are bound.
pub(super) fn assign<'a>(
    tools: impl IntoIterator<Item = (&'a ServiceName, &'a ToolName)>,
) -> BTreeMap<String, (ServiceName, ToolName)> {
    let mut named = BTreeMap::new();
    let mut seen = HashSet::new();
    for (service, tool) in tools {
        // A tool that a service lists twice is offered once.
        if seen.insert((service, tool)) {
            named.insert(name(service, tool), (service.clone(), tool.clone()));
        }
    }
    named
}

fn name(service: &ServiceName, tool: &ToolName) -> String {
    let plain = format!("{service}__{tool}");
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    // A service name contains no `__`, so the first one is the separator. A second one could collide with another
    // tool's name.
    if plain.len() <= MAX && plain.chars().all(legal) && !tool.as_str().contains("__") {
        return plain;
    }
    let clean: String = plain.chars().map(|c| if legal(c) { c } else { '_' }).take(MAX - HASH - 1).collect();
    let mut named = format!("{clean}_");
    for byte in Sha256::digest(plain.as_bytes()).iter().take(HASH / 2) {
        _ = write!(named, "{byte:02x}");
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_are_legal_unique_and_lead_back(
            tools in proptest::collection::hash_set(("[a-z]{1,10}(-[a-z]{1,21})?", "\\PC{1,80}"), 1..40)
        ) {
            let tools: Vec<_> =
                tools.into_iter().map(|(service, tool)| (ServiceName::new(service), ToolName::new(tool))).collect();
            let named = assign(tools.iter().map(|(service, tool)| (service, tool)));
            prop_assert_eq!(named.len(), tools.len());
            for (name, (service, tool)) in &named {
                prop_assert!(name.len() <= MAX && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)));
                let prefix = format!("{service}__");
                prop_assert!(name.starts_with(&prefix));
                prop_assert!(tools.contains(&(service.clone(), tool.clone())));
            }
        }
    }

    #[test]
    fn an_ordinary_name_is_left_alone() {
        assert_eq!(name(&ServiceName::new("developer"), &ToolName::new("read_file")), "developer__read_file");
        assert_ne!(
            name(&ServiceName::new("a"), &ToolName::new("b.c")),
            name(&ServiceName::new("a"), &ToolName::new("b c"))
        );
    }
}
