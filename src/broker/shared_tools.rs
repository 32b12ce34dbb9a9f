//! Shares equal tools among bindings. Most sessions of a process bind the same tools, and copies would be the largest
//! part of an idle session.
//!
//! Invariant: only tools that are equal in every respect are shared, so a binding cannot tell a shared tool from its
//! own. The table keeps no tool alive.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use super::bound_tool::BoundTool;
use crate::tool::Catalog;

/// Entries below which the table is not searched for tools that no binding has any more.
const MIN_SWEEP: usize = 256;

/// The address of a catalog. While a tool of it is in use, no other catalog has the address.
type CatalogAddress = usize;

/// The tools that bindings use, by their catalogs.
#[derive(Debug, Default)]
struct SharedTools {
    tools: HashMap<CatalogAddress, Vec<Weak<BoundTool>>>,
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
        let of_catalog = self.tools.entry(address_of(&tool.seen)).or_default();
        if let Some(known) = of_catalog.iter().filter_map(Weak::upgrade).find(|known| known.is_same(&tool)) {
            return known;
        }
        let tool = Arc::new(tool);
        of_catalog.push(Arc::downgrade(&tool));
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
