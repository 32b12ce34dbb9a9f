//! Manifests and configs: any text gives a plan or diagnostics that say what to do.

use std::path::PathBuf;

use skein::diagnostic::{Diagnostic, has_errors};
use skein::graph::resolve;
use skein::manifest::{Layer, Root, load};

const NAMES: [&str; 4] = [".skein/agents/a.yaml", ".skein/services/s.json", ".skein/config.yaml", ".mcp.json"];

pub(super) fn run(data: &[u8]) {
    let (has_plan, diagnostics) = check(data);
    for diagnostic in &diagnostics {
        assert!(!diagnostic.problem.is_empty() && !diagnostic.help.is_empty(), "{diagnostic:?}");
    }
    assert_ne!(has_plan, has_errors(&diagnostics), "{diagnostics:?}");
    assert_eq!((has_plan, diagnostics), check(data), "the order does not depend on chance");
}

/// Reads the bytes as each kind of file of a project.
fn check(data: &[u8]) -> (bool, Vec<Diagnostic>) {
    let files = NAMES.map(|name| (PathBuf::from(name), data.to_vec())).into();
    let project = Root::Snapshot { files, shown: ".".to_owned() };
    let (manifests, found) = load(&[(Layer::Builtin, Root::Builtin), (Layer::Project, project)]);
    let resolution = resolve(manifests, found);
    (resolution.plan.is_some(), resolution.diagnostics)
}
