//! Defines the tools for modes, named `ask_agent_mode`: their descriptions, input and output schemas.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::graph::Plan;
use crate::ids::ModeId;
use crate::manifest::{AgentEntry, ModeEntry};
use crate::tool::strip_invisible;

/// Maximum length of a tool name in many clients.
const MAX_NAME: usize = 64;

/// The tools and their modes, by tool name.
#[derive(Debug)]
pub(super) struct AgentTools(BTreeMap<String, (ModeId, Tool)>);

/// The arguments of every tool.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AskArguments {
    pub(super) prompt: String,
    #[serde(default)]
    pub(super) session: Option<String>,
    #[serde(default)]
    pub(super) cwd: Option<PathBuf>,
}

impl AgentTools {
    pub(super) fn of(plan: &Plan, offers: impl Fn(&ModeId) -> bool) -> Self {
        let mut tools = BTreeMap::new();
        for (agent, modes) in plan.selectable_modes() {
            for entry in modes {
                let mode = ModeId::new(agent.manifest.name.clone(), entry.mode.slug.clone());
                if offers(&mode) {
                    let name = name(&mode, |taken| tools.contains_key(taken));
                    tools.insert(name.clone(), (mode, tool(name, agent, entry)));
                }
            }
        }
        Self(tools)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Tool> {
        self.0.values().map(|(_, tool)| tool)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Tool> {
        self.0.get(name).map(|(_, tool)| tool)
    }

    pub(super) fn mode(&self, name: &str) -> Option<&ModeId> {
        self.0.get(name).map(|(mode, _)| mode)
    }
}

/// Returns a unique tool name. `a_b/c` and `a/b_c` would have the same name, so the second one gets a number.
fn name(mode: &ModeId, taken: impl Fn(&str) -> bool) -> String {
    let mut plain = format!("ask_{}_{}", mode.agent, mode.mode);
    plain.truncate(MAX_NAME);
    let numbered = (2..).map(|number| {
        let end = format!("_{number}");
        format!("{}{end}", &plain[..plain.len().min(MAX_NAME - end.len())])
    });
    std::iter::once(plain.clone()).chain(numbered).find(|name| !taken(name)).unwrap_or_default()
}

fn tool(name: String, agent: &AgentEntry, entry: &ModeEntry) -> Tool {
    let mode = &entry.mode;
    let mut description = strip_invisible(&mode.description);
    if let Some(when) = &mode.when_to_use {
        description.push_str(&format!("\n\nWhen to use it: {}", strip_invisible(when)));
    }
    let agent_title = agent.manifest.title.as_deref().unwrap_or(agent.manifest.name.as_str());
    let mode_title = mode.name.as_deref().unwrap_or(mode.slug.as_str());
    let mut tool = Tool::new(name, description, Arc::new(input()));
    tool.title = Some(strip_invisible(&format!("{agent_title}: {mode_title}")));
    tool.output_schema = Some(Arc::new(output()));
    // A mode may do anything that its tools do.
    tool.annotations = Some(ToolAnnotations::from_raw(None, Some(false), None, Some(false), Some(true)));
    tool
}

fn input() -> JsonObject {
    object(json!({
        "type": "object",
        "properties": {
            "prompt": {"type": "string", "description": "What to do, with all that the agent needs to know"},
            "session": {
                "type": "string",
                "description": "The session to continue, as named by an earlier answer of this tool",
            },
            "cwd": {
                "type": "string",
                "description": "The folder to work in, as an absolute path; a session stays in its own",
            },
        },
        "required": ["prompt"],
        "additionalProperties": false,
    }))
}

fn output() -> JsonObject {
    object(json!({
        "type": "object",
        "properties": {
            "session": {"type": "string"},
            "agent": {"type": "string"},
            "mode": {"type": "string"},
            "stop_reason": {"type": "string"},
            "text": {"type": "string"},
        },
        "required": ["session", "agent", "mode", "stop_reason", "text"],
    }))
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_modes_have_one_name_and_none_is_too_long() {
        let named = |mode: &str, taken: &[&str]| name(&mode.parse().unwrap(), |name| taken.contains(&name));
        assert_eq!(named("coding/backend", &[]), "ask_coding_backend");
        assert_eq!(named("a/b_c", &["ask_a_b_c"]), "ask_a_b_c_2");
        assert_eq!(named("a/b_c", &["ask_a_b_c", "ask_a_b_c_2"]), "ask_a_b_c_3");
        let long = format!("{}/{}", "a".repeat(40), "b".repeat(40));
        assert_eq!(named(&long, &[]).len(), MAX_NAME);
        let again = named(&long, &[&named(&long, &[])]);
        assert!(again.len() == MAX_NAME && again.ends_with("b_2"), "{again}");
    }
}
