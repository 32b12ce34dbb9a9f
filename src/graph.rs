//! Resolves manifests to a plan: looks up every name, applies every check, and reports all problems at once.
//!
//! Invariant: pure and synchronous. In a `Plan`, every name resolves and there are no cycles.

mod assertions;
mod checks;
mod cycles;
mod machine;
mod nodes;
mod plan;
mod render;
mod sandbox_view;
mod sandboxes;
mod scope;

use crate::diagnostic::{self, Diagnostic, Severity};
use crate::manifest::Manifests;
use sandboxes::SandboxProfiles;

pub use assertions::{AssertionReport, check_assertions};
pub use machine::check_machine;
pub use nodes::{Edge, EdgeKind, Node, ServiceGraph};
pub use plan::{Plan, RequiredService};
pub use render::{Format, render};
pub use sandbox_view::{profile_groups, profile_json, profile_text};
pub use sandboxes::{ProcessKind, is_sandboxed};
pub use scope::{Admission, GroupRule, GroupRuleKind, ScopeRefusal, ToolScope};

/// The diagnostics, and the plan if none of them is an error.
#[derive(Debug)]
pub struct Resolution {
    pub plan: Option<Plan>,
    /// Sorted by location.
    pub diagnostics: Vec<Diagnostic>,
}

/// Whether the diagnostics have notes. A note needs a line and column, and so a second parse of its file.
#[derive(Clone, Copy, PartialEq)]
enum NotePolicy {
    Report,
    LeaveOut,
}

/// Resolves manifests; `found` are the diagnostics from loading them.
pub fn resolve(manifests: Manifests, found: Vec<Diagnostic>) -> Resolution {
    resolve_with(manifests, found, NotePolicy::Report)
}

/// Like [`resolve`], but faster, because it looks for errors and warnings only.
pub fn resolve_without_notes(manifests: Manifests, mut found: Vec<Diagnostic>) -> Resolution {
    found.retain(|found| found.severity != Severity::Note);
    resolve_with(manifests, found, NotePolicy::LeaveOut)
}

fn resolve_with(manifests: Manifests, found: Vec<Diagnostic>, notes: NotePolicy) -> Resolution {
    let mut diagnostics = found;
    let scopes = checks::check(&manifests, notes, &mut diagnostics);
    let profiles = SandboxProfiles::resolve(&manifests, &scopes);
    checks::check_sandboxes(&manifests, &profiles, &mut diagnostics);
    if notes == NotePolicy::Report {
        checks::note_shells(&manifests, &profiles, &mut diagnostics);
    }
    let graph = ServiceGraph::build(&manifests);
    cycles::check(&graph, &mut diagnostics);
    diagnostic::sort(&mut diagnostics);
    let plan =
        if diagnostic::has_errors(&diagnostics) { None } else { Some(Plan::new(manifests, graph, scopes, profiles)) };
    Resolution { plan, diagnostics }
}
