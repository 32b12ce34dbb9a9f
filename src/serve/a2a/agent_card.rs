//! Cards: what A2A clients learn about an agent before they send a message.

use serde_json::{Value, json};

use super::super::agents::RestAgent;
use crate::graph::Plan;
use crate::ids::rest_name;
use crate::manifest::{AgentEntry, ModeEntry};

/// The agent behind the public card.
const ORCHESTRATOR: &str = "orchestrator";
const PLAIN_TEXT: &str = "text/plain";

/// The card of an agent.
pub(super) struct AgentCard {
    name: String,
    description: String,
    url: String,
    input: Value,
    output: Value,
    skills: Vec<Value>,
}

impl AgentCard {
    /// Returns the public card: that there is a Skein, and where its orchestrator is. It names no other agent.
    pub(super) fn public(base_url: &str) -> Self {
        let description = "Passes each request to the agent that fits it. A token shows the agents and their skills.";
        let skill = json!({
            "id": ORCHESTRATOR,
            "name": "Orchestrator",
            "description": "Routes a request, splits it or delegates it",
            "tags": [ORCHESTRATOR],
        });
        Self {
            name: "Skein".to_owned(),
            description: description.to_owned(),
            url: format!("{base_url}/a2a/{ORCHESTRATOR}"),
            input: json!([PLAIN_TEXT]),
            output: json!([PLAIN_TEXT]),
            skills: vec![skill],
        }
    }

    /// Returns the card of an agent. Its skills are its modes; those of the orchestrator are all that the plan has.
    pub(super) fn of_agent(agent: &RestAgent, plan: &Plan, base_url: &str) -> Self {
        let mut skills = Vec::new();
        for (entry, modes) in plan.selectable_modes() {
            let name = &entry.manifest.name;
            let is_agent = *name == agent.mode.agent;
            // The name of the agent alone stands for all of its modes.
            let is_whole = agent.name == rest_name(agent.mode.agent.as_str());
            let is_orchestrator = agent.mode.agent.as_str() == ORCHESTRATOR;
            let known = modes
                .iter()
                .filter(|entry| is_orchestrator || (is_agent && (is_whole || entry.mode.slug == agent.mode.mode)));
            skills.extend(known.map(|mode| skill(entry, mode)));
        }
        let text = |key: &str| agent.manifest[key].as_str().unwrap_or_default().to_owned();
        Self {
            name: agent.name.clone(),
            description: text("description"),
            url: format!("{base_url}/a2a/{}", agent.name),
            input: agent.manifest["input_content_types"].clone(),
            output: agent.manifest["output_content_types"].clone(),
            skills,
        }
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "description": self.description,
            "version": env!("CARGO_PKG_VERSION"),
            "supportedInterfaces": [
                {"url": self.url, "protocolBinding": "JSONRPC", "protocolVersion": super::VERSION},
            ],
            "capabilities": {"streaming": true, "pushNotifications": false, "extendedAgentCard": true},
            "securitySchemes": {"token": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
            "securityRequirements": [{"schemes": {"token": {"list": []}}}],
            "defaultInputModes": self.input,
            "defaultOutputModes": self.output,
            "skills": self.skills,
        })
    }
}

fn skill(agent: &AgentEntry, mode: &ModeEntry) -> Value {
    let (name, slug) = (agent.manifest.name.as_str(), mode.mode.slug.as_str());
    json!({
        "id": format!("{}-{}", rest_name(name), rest_name(slug)),
        "name": mode.mode.name.as_deref().unwrap_or(slug),
        "description": mode.mode.description,
        "tags": [name],
        "examples": mode.mode.examples,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_card_names_only_the_orchestrator() {
        let card = AgentCard::public("https://skein.example.com").to_json();
        let interface = &card["supportedInterfaces"][0];
        assert_eq!(interface["url"], "https://skein.example.com/a2a/orchestrator");
        assert_eq!((&interface["protocolBinding"], &interface["protocolVersion"]), (&json!("JSONRPC"), &json!("1.0")));
        assert_eq!(card["skills"].as_array().map(Vec::len), Some(1));
        assert_eq!(card["capabilities"]["extendedAgentCard"], true);
    }
}
