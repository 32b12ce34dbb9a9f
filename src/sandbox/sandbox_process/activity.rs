//! Finds out whether processes run in a sandbox, because they may have created something meanwhile.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::{SandboxProcess, Shared};
use crate::process::read_proc;
use crate::sandbox::request_table::lock;
use crate::sandbox::wire::Namespace;

/// A handle that does not keep its sandbox running.
#[derive(Debug, Clone)]
pub struct WeakSandbox(Weak<Shared>);

impl SandboxProcess {
    pub fn downgrade(&self) -> WeakSandbox {
        WeakSandbox(Arc::downgrade(&self.shared))
    }
}

impl WeakSandbox {
    /// Returns whether the sandbox has ended with its last handle.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Returns the number of commands so far, if no process runs in the sandbox. `None` if one runs, or if that is not
    /// known.
    pub fn count_if_idle(&self) -> Option<u64> {
        let Some(shared) = self.0.upgrade() else { return Some(u64::MAX) };
        // A command counts before its process exists, so the count alone does not tell that nothing runs.
        let (count, has_command) = {
            let commands = lock(&shared.commands);
            (commands.started, !commands.running.is_empty())
        };
        let has_namespace = shared.namespaces.iter().any(|(kind, _)| *kind == Namespace::Pid);
        // What a process that entered has started may have its parent outside, where it does not count.
        let was_entered = shared.was_entered.load(Ordering::Acquire);
        let is_idle = !has_command && !was_entered && has_namespace && has_no_command(shared.helper);
        is_idle.then_some(count)
    }
}

/// Returns whether PID 1 has no child. All processes that it did not start have ended, or are its children by now.
fn has_no_command(helper: u32) -> bool {
    match children_of(helper).as_deref() {
        Some([inner]) => children_of(*inner).is_some_and(|commands| commands.is_empty()),
        Some(_) | None => false,
    }
}

/// Returns the children of a process with one thread. `None` if the kernel does not tell.
fn children_of(process: u32) -> Option<Vec<u32>> {
    let text = read_proc(&format!("{process}/task/{process}/children")).ok()?;
    std::str::from_utf8(&text).ok()?.split_whitespace().map(|child| child.parse().ok()).collect()
}
