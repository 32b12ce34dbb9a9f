//! Keeps the options, modes and commands that an external agent advertises, and lists the options under its name.
//!
//! Invariant: pure.

use agent_client_protocol::v1::schema as acp;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Option id for the agent's modes, if no option of the agent covers them.
const MODE: &str = "mode";

#[derive(Debug, Default)]
pub(super) struct AdvertisedOptions {
    agent: String,
    title: String,
    /// ACP JSON, unchanged from the agent.
    options: Vec<Value>,
    modes: Option<Value>,
    commands: Vec<Value>,
}

/// The request that sets an option of the agent.
#[derive(Debug, PartialEq)]
pub(super) struct SetOptionRequest {
    pub(super) method: &'static str,
    pub(super) params: Map<String, Value>,
}

impl AdvertisedOptions {
    pub(super) fn new(agent: &str, title: &str) -> Self {
        Self { agent: agent.to_owned(), title: title.to_owned(), ..Self::default() }
    }

    /// Reads modes and options from the reply that opened the session.
    pub(super) fn apply_opening(&mut self, answer: &Value) {
        self.modes = answer.get("modes").filter(|modes| reads_as::<acp::SessionModeState>(modes)).cloned();
        self.set_options(answer);
    }

    /// Replaces the options by `configOptions`, which is always the whole list.
    pub(super) fn set_options(&mut self, told: &Value) {
        if let Some(options) = told["configOptions"].as_array() {
            self.options =
                options.iter().filter(|option| reads_as::<acp::SessionConfigOption>(option)).cloned().collect();
        }
    }

    /// Sets the current mode. Ignores a mode that the agent has not listed.
    pub(super) fn set_mode(&mut self, mode: &Value) {
        let listed = |modes: &Value| {
            modes["availableModes"].as_array().is_some_and(|all| all.iter().any(|of| of["id"] == *mode))
        };
        if let Some(modes) = self.modes.as_mut().filter(|modes| listed(modes)) {
            modes["currentModeId"] = mode.clone();
        }
    }

    pub(super) fn set_commands(&mut self, told: &Value) {
        let commands = told["availableCommands"].as_array().into_iter().flatten();
        self.commands = commands.filter(|command| reads_as::<acp::AvailableCommand>(command)).cloned().collect();
    }

    pub(super) fn commands(&self) -> Vec<Value> {
        self.commands.clone()
    }

    /// Returns the options; each id starts with the agent's name.
    pub(super) fn options(&self) -> Vec<Value> {
        let own = self.options.iter().map(|option| self.with_agent_prefix(option.clone()));
        own.chain(self.mode_option()).collect()
    }

    fn with_agent_prefix(&self, mut option: Value) -> Value {
        let text = |key: &str| option[key].as_str().unwrap_or_default().to_owned();
        let (id, name) = (self.id(&text("id")), format!("{}: {}", self.title, text("name")));
        option["id"] = json!(id);
        option["name"] = json!(name);
        // These categories are reserved for the session's own mode and model.
        if let Some(fields) = option.as_object_mut()
            && matches!(fields.get("category").and_then(Value::as_str), Some("mode" | "model"))
        {
            fields.remove("category");
        }
        option
    }

    /// Returns the modes as an option. `None` if the agent has no modes, or an option for them.
    fn mode_option(&self) -> Option<Value> {
        if self.options.iter().any(|option| option["category"] == "mode" || option["id"] == MODE) {
            return None;
        }
        let modes = self.modes.as_ref()?;
        let values: Vec<_> = modes["availableModes"].as_array()?.iter().map(value_of).collect();
        Some(json!({
            "id": self.id(MODE), "name": format!("{}: Mode", self.title), "type": "select",
            "currentValue": modes["currentModeId"], "options": values,
        }))
    }

    fn id(&self, option: &str) -> String {
        format!("{}.{option}", self.agent)
    }

    /// Returns the request that sets an option from [`AdvertisedOptions::options`] to `value`. `None` if there is no
    /// such option.
    pub(super) fn option_request(&self, option: &str, value: Value) -> Option<SetOptionRequest> {
        let own = option.strip_prefix(&format!("{}.", self.agent))?;
        let mut params = Map::new();
        if self.options.iter().any(|option| option["id"] == own) {
            params.insert("configId".to_owned(), json!(own));
            if value.is_boolean() {
                params.insert("type".to_owned(), json!("boolean"));
            }
            params.insert("value".to_owned(), value);
            return Some(SetOptionRequest { method: "session/set_config_option", params });
        }
        self.mode_option().filter(|_| own == MODE)?;
        params.insert("modeId".to_owned(), value);
        Some(SetOptionRequest { method: "session/set_mode", params })
    }
}

/// Returns true if `value` is a valid `T`. Values that the protocol does not define are not offered.
fn reads_as<T: DeserializeOwned>(value: &Value) -> bool {
    value.is_object() && serde_json::from_value::<T>(value.clone()).is_ok()
}

fn value_of(mode: &Value) -> Value {
    let mut value = json!({"value": mode["id"], "name": mode["name"]});
    if let Some(description) = mode["description"].as_str() {
        value["description"] = json!(description);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_without_options_become_one_and_are_set_as_modes() {
        let mut face = AdvertisedOptions::new("claude", "Claude");
        let modes = json!({"currentModeId": "plan", "availableModes": [{"id": "plan", "name": "Plan"}, {"id": "code", "name": "Code"}]});
        face.apply_opening(&json!({"sessionId": "s", "modes": modes}));
        let options = face.options();
        assert_eq!(options[0]["id"], "claude.mode");
        assert_eq!((&options[0]["name"], &options[0]["currentValue"]), (&json!("Claude: Mode"), &json!("plan")));
        let choosing = face.option_request("claude.mode", json!("code")).unwrap();
        assert_eq!((choosing.method, &choosing.params["modeId"]), ("session/set_mode", &json!("code")));
        assert_eq!(face.option_request("codex.mode", json!("code")), None);
        assert_eq!(face.option_request("claude.model", json!("x")), None);
    }

    #[test]
    fn options_are_under_the_agents_name_and_are_no_rivals_of_ours() {
        let mut face = AdvertisedOptions::new("claude", "Claude");
        let option = json!({"id": "model", "name": "Model", "category": "model", "type": "select", "currentValue": "a", "options": []});
        face.apply_opening(&json!({"configOptions": [option], "modes": null}));
        let options = face.options();
        assert_eq!((&options[0]["id"], options[0].get("category")), (&json!("claude.model"), None));
        let choosing = face.option_request("claude.model", json!("b")).unwrap();
        assert_eq!(Value::Object(choosing.params), json!({"configId": "model", "value": "b"}));
    }
}
