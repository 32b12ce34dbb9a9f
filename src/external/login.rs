//! Recognizes an agent that requires a login, and names the methods that it offers.

use serde_json::Value;

use super::rpc::RpcError;
use crate::agents::ExternalAgentError;
use crate::ids::AgentName;

/// Returns true if the agent refused a request because the user is not logged in, or not any more.
pub(super) fn is_needed(error: &RpcError) -> bool {
    error.code == -32000
}

/// Returns the error for such a refusal. `about` is the agent's answer to `initialize`.
pub(super) fn login_error(agent: &AgentName, error: RpcError, about: &Value) -> ExternalAgentError {
    let methods = about["authMethods"].as_array().map(Vec::as_slice).unwrap_or_default();
    let words = |method: &Value| {
        let text = |key: &str| method[key].as_str().unwrap_or_default().to_owned();
        let (name, description) = (text("name"), text("description"));
        if description.is_empty() { name } else { format!("{name} ({description})") }
    };
    let how: Vec<_> = methods.iter().map(words).collect();
    let how = if how.is_empty() { error.message } else { format!("it offers {}", how.join(", ")) };
    let how = format!("{how}; do that with the agent's own program, or give it its key by `inherit` in its manifest");
    ExternalAgentError::LoginNeeded { agent: agent.clone(), how }
}
