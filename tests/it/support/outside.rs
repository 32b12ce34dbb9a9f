//! A sandbox with external agents in it.

use serde_json::{Value, json};

use super::Sandbox;
use super::peers::Peer;

/// A manifest of an external agent with these modes.
pub(crate) fn manifest(name: &str, peer: &Peer, modes: &[Value]) -> Value {
    let mut needed: Vec<Value> =
        modes.iter().flat_map(|mode| mode["dependencies"].as_array().cloned().unwrap_or_default()).collect();
    needed.dedup();
    json!({
        "version": 1, "kind": "agent", "name": name, "title": format!("The {name}"),
        "description": "Repeats what it is told, and does what it is told.",
        "runtime": peer.runtime(), "metadata": {"dependencies": needed}, "modes": modes,
    })
}

/// A mode without a prompt, which an external agent does not need.
pub(crate) fn mode(slug: &str, groups: Value, dependencies: Value) -> Value {
    json!({
        "slug": slug, "description": format!("Echoes, {slug}."), "tool_groups": groups, "dependencies": dependencies,
    })
}

impl Sandbox {
    /// Puts a manifest where the user keeps theirs.
    pub(crate) fn install(&self, manifest: &Value) {
        let kind = manifest["kind"].as_str().expect("a kind");
        let name = manifest["name"].as_str().expect("a name");
        self.write(&format!("config/{kind}s/{name}.json"), &manifest.to_string());
    }
}
