//! Forwards the updates, options and commands of external agents to the client.
//!
//! Invariant: the options and commands of an external agent are never forwarded alone. The client always receives the
//! whole list, including Skein's own.

use std::sync::Arc;

use agent_client_protocol::v1::schema as acp;
use serde_json::Value;

use super::connection::{ClientConnection, ClientSession};
use super::options;
use super::updates::Updates;

/// Maximum number of unwritten bytes at which changed options and commands are sent.
const MAX_BACKLOG: usize = 1 << 20;
/// How often the backlog of the client is checked.
const POLL: std::time::Duration = std::time::Duration::from_millis(20);

impl Updates {
    /// Forwards an update of an external agent, if the client supports its kind. Converts a notice for a client without
    /// notices.
    pub(super) fn forward_update(&self, told: &Value) {
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
    let listed = open.session.external_session().map(|seat| seat.options()).unwrap_or_default();
    let known = |option: &Value| boolean || option["type"] != "boolean";
    listed.into_iter().filter(known).filter_map(|option| serde_json::from_value(option).ok()).collect()
}

/// Returns the commands of the session's external agent, except those that would hide one in `ours`.
pub(super) fn commands_of(open: &ClientSession, ours: &[acp::AvailableCommand]) -> Vec<acp::AvailableCommand> {
    let listed = open.session.external_session().map(|seat| seat.commands()).unwrap_or_default();
    let commands = listed.into_iter().filter_map(|command| serde_json::from_value(command).ok());
    commands.filter(|command: &acp::AvailableCommand| !ours.iter().any(|own| own.name == command.name)).collect()
}

/// Starts to send changed options and commands of the external agent to the client. Sends them at once if the agent
/// has a new external session for this session, as after a restart.
pub(super) fn watch_options(connection: &ClientConnection, open: &Arc<ClientSession>) {
    let Some(seat) = open.session.external_session() else { return };
    let Some(first) = open.register_external_session(&seat.id()) else { return };
    let (wire, open, mut changes) = (connection.wire.clone(), Arc::downgrade(open), seat.changes());
    drop(seat);
    connection.spawn(async move {
        let mut tell = !first;
        loop {
            if tell {
                // The session was closed.
                let Some(open) = open.upgrade() else { return };
                let session: Arc<str> = open.session.id().into();
                // An agent can change its lists faster than a client reads; only the last one matters.
                while wire.backlog() > MAX_BACKLOG {
                    tokio::time::sleep(POLL).await;
                }
                options::refresh_updates(&open).await.into_iter().for_each(|update| wire.send_update(&session, update));
            }
            tell = changes.changed().await.is_ok();
            if !tell {
                return;
            }
        }
    });
}
