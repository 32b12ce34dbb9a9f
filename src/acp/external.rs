//! Forwards the updates, options and commands of external agents to the client.
//!
//! Invariant: the options and commands of an external agent are never forwarded alone. The client always receives the
//! whole list, including Skein's own.

use agent_client_protocol::v1::schema as acp;
use serde_json::Value;

use super::connection::ClientSession;
use super::updates::Updates;

impl Updates {
    /// Forwards an update of an external agent, if the client supports its kind. Converts a notice for a client without
    /// notices.
    pub(super) fn forward_update(&self, told: &Value) {
        // A lost event has no update.
        if told.is_null() {
            return;
        }
        let (abilities, update) = (self.features(), &told["update"]);
        let passes = match update["sessionUpdate"].as_str().unwrap_or_default() {
            "notice" if !abilities.notices => {
                let said = |key: &str| update[key].as_str().map(str::to_owned);
                let text: Vec<_> = [said("title"), said("description")].into_iter().flatten().collect();
                return self.notice(acp::NoticeSeverity::Info, &text.join(": "));
            }
            "compaction_update" | "compaction_summary_chunk" => abilities.compaction,
            // These refer to the agent's own sessions, which the client does not know.
            "subagent_update" | "session_message" | "session_message_chunk" => false,
            _ => true,
        };
        if passes {
            let (wire, session) = self.target();
            wire.send_raw_update(&session, told);
        }
    }
}

/// Returns the options of the session's external agent. Includes boolean options if `boolean` is true, for a client
/// that supports them.
pub(super) fn options_of(open: &ClientSession, boolean: bool) -> Vec<acp::SessionConfigOption> {
    let listed = open.session.external_session().map(|external| external.options()).unwrap_or_default();
    let known = |option: &Value| boolean || option["type"] != "boolean";
    listed.into_iter().filter(known).filter_map(|option| serde_json::from_value(option).ok()).collect()
}

/// Returns the commands of the session's external agent, except those that would hide one in `ours`.
pub(super) fn commands_of(open: &ClientSession, ours: &[acp::AvailableCommand]) -> Vec<acp::AvailableCommand> {
    let listed = open.session.external_session().map(|external| external.commands()).unwrap_or_default();
    let commands = listed.into_iter().filter_map(|command| serde_json::from_value(command).ok());
    commands.filter(|command: &acp::AvailableCommand| !ours.iter().any(|own| own.name == command.name)).collect()
}
