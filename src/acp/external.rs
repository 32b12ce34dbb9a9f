//! What an agent outside has to say, for a client: its updates as they came, and what can be chosen at it under its name.
//!
//! Invariant: its options and commands are never passed on as they came: the client is told the whole list, ours with
//! them.

use std::sync::Arc;

use agent_client_protocol::v1::schema as acp;
use serde_json::Value;

use super::connection::{ClientConnection, ClientSession};
use super::options;
use super::updates::Updates;

/// Bytes that may wait for the client before changed options and commands are sent.
const MAX_BACKLOG: usize = 1 << 20;
/// How often it is looked whether the client has read.
const POLL: std::time::Duration = std::time::Duration::from_millis(20);

impl Updates {
    /// What an agent outside told, as far as the client understands its kind.
    pub(super) fn forward_update(&self, told: &Value) {
        let (abilities, update) = (self.features(), &told["update"]);
        let passes = match update["sessionUpdate"].as_str().unwrap_or_default() {
            "notice" if !abilities.notices => {
                let said = |key: &str| update[key].as_str().map(str::to_owned);
                let text: Vec<_> = [said("title"), said("description")].into_iter().flatten().collect();
                return self.notice(acp::NoticeSeverity::Info, &text.join(": "));
            }
            "compaction_update" | "compaction_summary_chunk" => abilities.compaction,
            // Sessions of its own that the client does not know.
            "subagent_update" | "session_message" | "session_message_chunk" => false,
            _ => true,
        };
        if passes {
            let (wire, session) = self.target();
            wire.send_raw_update(&session, told);
        }
    }
}

/// What can be chosen at the agent outside that works on the session. `boolean` if the client knows such options.
pub(super) fn options_of(open: &ClientSession, boolean: bool) -> Vec<acp::SessionConfigOption> {
    let listed = open.session.external_session().map(|seat| seat.options()).unwrap_or_default();
    let known = |option: &Value| boolean || option["type"] != "boolean";
    listed.into_iter().filter(known).filter_map(|option| serde_json::from_value(option).ok()).collect()
}

/// Its own commands, but for those that would hide one of ours.
pub(super) fn commands_of(open: &ClientSession, ours: &[acp::AvailableCommand]) -> Vec<acp::AvailableCommand> {
    let listed = open.session.external_session().map(|seat| seat.commands()).unwrap_or_default();
    let commands = listed.into_iter().filter_map(|command| serde_json::from_value(command).ok());
    commands.filter(|command: &acp::AvailableCommand| !ours.iter().any(|own| own.name == command.name)).collect()
}

/// Tells the client from now on when something else can be chosen at the agent, or it has other commands; and at once if
/// the agent was started again meanwhile.
pub(super) fn watch_options(connection: &ClientConnection, open: &Arc<ClientSession>) {
    let Some(seat) = open.session.external_session() else { return };
    let Some(first) = open.register_external_session(&seat.id()) else { return };
    let (wire, open, mut changes) = (connection.wire.clone(), Arc::downgrade(open), seat.changes());
    drop(seat);
    connection.spawn(async move {
        let mut tell = !first;
        loop {
            if tell {
                // A session that was closed is told nothing more.
                let Some(open) = open.upgrade() else { return };
                let session: Arc<str> = open.session.id().into();
                // An agent can change its lists faster than a client reads; what counts is the last one.
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
