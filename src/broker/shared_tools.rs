//! Shares equal tools among bindings. Most sessions of a process bind the same tools, and copies would be the largest
//! part of an idle session.
//!
//! Invariant: only tools that are equal in every respect are shared, so a binding cannot tell a shared tool from its
//! own. The table keeps no tool alive.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use super::bound_tool::BoundTool;
use crate::tool::Catalog;

/// Entries below which the table is not searched for tools that no binding has any more.
const MIN_SWEEP: usize = 256;

/// The address of a catalog. While a tool of it is in use, no other catalog has the address.
type CatalogAddress = usize;

/// Finds the tools that may be equal: their catalog, and a hash of what distinguishes the tools of one catalog.
type ToolKey = (CatalogAddress, u64);

/// The tools that bindings use. A binding may have thousands, so they are found by their content.
#[derive(Debug, Default)]
struct SharedTools {
    tools: HashMap<ToolKey, Vec<Weak<BoundTool>>>,
    /// Services choose names and descriptions. A random state keeps them from choosing equal hashes.
    hash_state: RandomState,
    /// The number of entries, also of tools that no binding has any more.
    entries: usize,
    /// The number of entries at which the table is searched next.
    sweep_at: usize,
}

/// Returns the tool that another binding uses if it is equal to this one, and otherwise this one.
pub(super) fn share(tool: BoundTool) -> Arc<BoundTool> {
    static SHARED: LazyLock<Mutex<SharedTools>> = LazyLock::new(Mutex::default);
    SHARED.lock().unwrap_or_else(PoisonError::into_inner).share(tool)
}

impl SharedTools {
    fn share(&mut self, tool: BoundTool) -> Arc<BoundTool> {
        let similar = self.tools.entry(key_of(&tool, &self.hash_state)).or_default();
        if let Some(known) = similar.iter().filter_map(Weak::upgrade).find(|known| known.is_same(&tool)) {
            return known;
        }
        let tool = Arc::new(tool);
        similar.push(Arc::downgrade(&tool));
        self.entries += 1;
        if self.entries >= self.sweep_at {
            self.sweep();
        }
        tool
    }

    /// Removes the tools that no binding has any more. The next time is when the table has doubled.
    fn sweep(&mut self) {
        self.tools.retain(|_, tools| {
            tools.retain(|tool| tool.strong_count() > 0);
            !tools.is_empty()
        });
        self.entries = self.tools.values().map(Vec::len).sum();
        self.sweep_at = MIN_SWEEP.max(2 * self.entries);
    }
}

/// Equal tools have equal keys. What the key leaves out follows from the catalog and the name, or has few values.
fn key_of(tool: &BoundTool, hash_state: &RandomState) -> ToolKey {
    let files: Vec<&str> = tool.files.iter().map(regex::Regex::as_str).collect();
    let names = (&tool.service, &tool.spec.name, &tool.group, &tool.spec.description);
    let facts = (tool.read_only, tool.builtin, tool.brought, &tool.reaching, &tool.url_argument);
    (address_of(&tool.seen), hash_state.hash_one((names, files, facts)))
}

fn address_of(catalog: &Arc<Catalog>) -> CatalogAddress {
    Arc::as_ptr(catalog).addr()
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::super::files::RelativeBase;
    use super::*;
    use crate::ids::{GroupName, ServiceName, ToolName};
    use crate::tool::{ToolHints, ToolSpec};

    fn tool(catalog: &Arc<Catalog>, name: &str, description: &str) -> BoundTool {
        BoundTool {
            service: ServiceName::new("echo"),
            spec: ToolSpec {
                name: ToolName::new(name),
                title: None,
                description: description.to_owned(),
                input_schema: Arc::default(),
                output_schema: None,
                hints: ToolHints::default(),
                meta: None,
            },
            group: GroupName::new("echo"),
            files: Vec::new(),
            read_only: false,
            reaching: Vec::new(),
            url_argument: None,
            builtin: true,
            brought: false,
            relative: RelativeBase::ToSession,
            seen: Arc::clone(catalog),
            validator: OnceLock::new(),
            nameless_bytes: OnceLock::new(),
        }
    }

    #[test]
    fn bindings_share_a_tool_only_if_it_is_equal() {
        let mut shared = SharedTools::default();
        let (catalog, other) = (Arc::default(), Arc::default());
        let first = shared.share(tool(&catalog, "add", "Adds."));
        assert!(Arc::ptr_eq(&first, &shared.share(tool(&catalog, "add", "Adds."))));
        for different in
            [tool(&catalog, "add", "Subtracts."), tool(&catalog, "sum", "Adds."), tool(&other, "add", "Adds.")]
        {
            assert!(!Arc::ptr_eq(&first, &shared.share(different)));
        }
        let limited = BoundTool { files: vec![regex::Regex::new("md$").unwrap()], ..tool(&catalog, "add", "Adds.") };
        assert!(!Arc::ptr_eq(&first, &shared.share(limited)));
        let reading = BoundTool { read_only: true, ..tool(&catalog, "add", "Adds.") };
        assert!(!Arc::ptr_eq(&first, &shared.share(reading)));
    }

    #[test]
    fn thousands_of_tools_are_not_compared_with_each_other() {
        const COUNT: usize = 5_000;
        let mut shared = SharedTools::default();
        let catalog = Arc::default();
        let all = |shared: &mut SharedTools| -> Vec<_> {
            (0..COUNT).map(|number| shared.share(tool(&catalog, &format!("tool{number}"), "One of many."))).collect()
        };
        let first = all(&mut shared);
        let second = all(&mut shared);
        assert!(first.iter().zip(&second).all(|(one, other)| Arc::ptr_eq(one, other)));
        assert_eq!((shared.entries, shared.tools.len()), (COUNT, COUNT), "each key has one tool");
    }

    #[test]
    fn tools_of_ended_bindings_leave_the_table() {
        let mut shared = SharedTools::default();
        let catalog = Arc::default();
        let kept = shared.share(tool(&catalog, "kept", ""));
        for number in 0..10 * MIN_SWEEP {
            let catalog = Arc::default();
            drop(shared.share(tool(&catalog, &number.to_string(), "")));
        }
        let entries: usize = shared.tools.values().map(Vec::len).sum();
        assert!(entries <= MIN_SWEEP, "{entries}");
        assert!(Arc::ptr_eq(&kept, &shared.share(tool(&catalog, "kept", ""))));
    }
}
