//! Lists and sets the options of a session: mode, model and approval level. The mode is shown both as ACP modes and as
//! an option.
//!
//! Invariant: the ids are `agent/mode`, `provider:model` and the approval levels, because users write them into their
//! settings. An internal mode is not listed and cannot be set.

use std::sync::Arc;

use agent_client_protocol::v1::schema as acp;

use super::connection::{ClientConnection, ClientSession};
use super::wire::ClientWriter;
use super::{commands, errors, external};
use crate::graph::Plan;
use crate::ids::{ModeId, ModelRef};
use crate::manifest::{AgentEntry, ApprovalLevel, ModeEntry};

/// Maximum number of unwritten bytes at which changed options and commands are sent.
const MAX_BACKLOG: usize = 1 << 20;
/// How often the backlog of the client is checked.
const POLL: std::time::Duration = std::time::Duration::from_millis(20);

const MODE: &str = "mode";
const MODEL: &str = "model";
const APPROVAL: &str = "approval";
/// The protocol reserves categories without the underscore.
const APPROVAL_CATEGORY: &str = "_approval";

/// Parses the id of a selectable mode. Fails if there is no such mode, or not for the client's token.
pub(super) fn mode(open: &ClientSession, id: &str) -> Result<ModeId, acp::Error> {
    let plan = open.plan();
    let mode = id.parse::<ModeId>().ok();
    if let Some(exclusion) = mode.as_ref().and_then(|mode| plan.mode_refusal(mode)) {
        open.session.record_managed(id, &exclusion.setting);
        return Err(errors::invalid_params(format!("the mode `{id}` is not allowed here: {exclusion}")));
    }
    let known = mode.filter(|mode| plan.is_selectable(mode) && open.grant.limits().admits_mode(mode));
    known.ok_or_else(|| errors::invalid_params(format!("there is no mode `{id}`; `skein agents` lists them")))
}

/// Returns the name of a mode for people, as `Coding: Backend engineer`. A mode with the title of its agent is named
/// only once.
fn mode_name(agent: &AgentEntry, mode: &ModeEntry) -> String {
    let name = mode.mode.name.as_deref().unwrap_or(mode.mode.slug.as_str());
    match agent.manifest.title.as_deref().unwrap_or(agent.manifest.name.as_str()) {
        title if title == name => name.to_owned(),
        title => format!("{title}: {name}"),
    }
}

/// Returns id, name and description of each selectable mode that the client's token admits.
fn selectable(open: &ClientSession, plan: &Plan) -> Vec<(String, String, String)> {
    let entries = plan.selectable_modes().flat_map(|(agent, modes)| {
        modes.into_iter().filter_map(move |mode| {
            let id = ModeId::new(agent.manifest.name.clone(), mode.mode.slug.clone());
            let is_admitted = open.grant.limits().admits_mode(&id);
            is_admitted.then(|| (id.to_string(), mode_name(agent, mode), mode.mode.description.clone()))
        })
    });
    entries.collect()
}

pub(super) fn modes(open: &ClientSession) -> acp::SessionModeState {
    let plan = open.plan();
    let modes = selectable(open, &plan).into_iter();
    let modes = modes.map(|(id, name, about)| acp::SessionMode::new(id, name).description(about)).collect();
    acp::SessionModeState::new(open.session.choice().mode.to_string(), modes)
}

/// Returns all options of the session, including those of its external agent. The modes are one flat list: some
/// clients cannot show groups.
pub(super) fn options(open: &ClientSession) -> Vec<acp::SessionConfigOption> {
    let choice = open.session.choice();
    let plan = open.plan();
    let modes = selectable(open, &plan).into_iter();
    let modes: Vec<_> =
        modes.map(|(id, name, about)| acp::SessionConfigSelectOption::new(id, name).description(about)).collect();
    let models = models(open, &choice.model);
    let models: Vec<_> =
        models.iter().map(|name| acp::SessionConfigSelectOption::new(name.to_string(), name.to_string())).collect();
    let limits = open.session.sessions().grant().limits();
    let is_admitted =
        |level: &ApprovalLevel| limits.admits_approval(*level) && open.grant.limits().admits_approval(*level);
    let levels = ApprovalLevel::ALL.into_iter().filter(is_admitted).map(|level| {
        let (name, description) = level_in_words(level);
        acp::SessionConfigSelectOption::new(level.as_str(), name).description(description.to_owned())
    });
    let mut options = vec![
        acp::SessionConfigOption::select(MODE, "Mode", choice.mode.to_string(), modes)
            .description("The agent and the way it works: its prompt, its tools".to_owned())
            .category(acp::SessionConfigOptionCategory::Mode),
        acp::SessionConfigOption::select(MODEL, "Model", choice.model.to_string(), models)
            .category(acp::SessionConfigOptionCategory::Model),
        acp::SessionConfigOption::select(APPROVAL, "Approval", approval(open).as_str(), levels.collect::<Vec<_>>())
            .description("When a tool call needs your consent".to_owned())
            .category(acp::SessionConfigOptionCategory::Other(APPROVAL_CATEGORY.to_owned())),
    ];
    options.extend(external::options_of(open, open.knows_booleans));
    options
}

/// Returns the configured models and external agents, plus the current model and `offline`.
fn models(open: &ClientSession, current: &ModelRef) -> Vec<ModelRef> {
    let (project, plan) = (open.shared.project(), open.plan());
    let mut names = vec![project.model.clone()];
    names.extend(project.others.iter().cloned());
    let outside = plan.agents().filter(|agent| agent.manifest.runtime.is_some());
    names.extend(outside.map(|agent| ModelRef::External(agent.manifest.name.clone())));
    names.extend([current.clone(), ModelRef::Offline]);
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

fn approval(open: &ClientSession) -> ApprovalLevel {
    let choice = open.session.choice();
    let of_mode = || open.plan().mode(&choice.mode).map(|(entry, _)| open.session.broker().approval(entry));
    let level = choice.approval.or_else(of_mode).unwrap_or(ApprovalLevel::Ask);
    // The prompts of this client have no looser level than its token admits.
    open.grant.limits().tighten(level)
}

/// Returns the name and the meaning of a level.
fn level_in_words(level: ApprovalLevel) -> (&'static str, &'static str) {
    match level {
        ApprovalLevel::Auto => ("Run everything", "Run every call without asking"),
        ApprovalLevel::Ask => ("Ask first", "Ask about every call that is not read-only"),
        ApprovalLevel::Smart => ("Ask when in doubt", "Ask unless a judge finds the call read-only"),
        ApprovalLevel::ReadOnly => ("Read only", "Refuse every call that is not read-only"),
        ApprovalLevel::Deny => ("Refuse everything", "Refuse every call"),
    }
}

/// Handles `session/set_mode`. Fails if the mode is unknown or the session cannot switch to it.
pub(super) async fn set_mode(open: &ClientSession, request: &acp::SetSessionModeRequest) -> Result<(), acp::Error> {
    let mode = mode(open, &request.mode_id.0)?;
    open.session.set_mode(mode).await.map_err(|error| errors::session(&error))?;
    tracing::info!(session = open.session.id(), mode = %request.mode_id.0, "mode switched");
    Ok(())
}

/// Handles `session/set_config_option`. Fails if the option or its value is unknown.
pub(super) async fn set_option(
    open: &ClientSession,
    request: &acp::SetSessionConfigOptionRequest,
) -> Result<(), acp::Error> {
    let option = &*request.config_id.0;
    if external::options_of(open, true).iter().any(|of| *of.id.0 == *option) {
        let value = match request.value.as_value_id() {
            Some(id) => serde_json::json!(id),
            None => serde_json::json!(request.value)["value"].clone(),
        };
        let chosen = open.session.set_external_option(option, value).await;
        return chosen.map_err(|error| errors::invalid_params(error.to_string()));
    }
    let value = request.value.as_value_id().map(|value| value.0.to_string());
    let unfit = |value: &str| errors::invalid_params(format!("the option `{option}` has no value `{value}`"));
    let value =
        value.ok_or_else(|| errors::invalid_params(format!("the option `{option}` takes the id of a value")))?;
    let set = match option {
        MODE => open.session.set_mode(mode(open, &value)?).await,
        APPROVAL => {
            let level = ApprovalLevel::from_name(&value).ok_or_else(|| unfit(&value))?;
            open.grant.check_approval(level).map_err(|error| errors::invalid_params(error.to_string()))?;
            open.session.set_approval(level).await
        }
        MODEL => {
            let model = ModelRef::from(value.as_str());
            if !models(open, &open.session.choice().model).contains(&model) {
                return Err(unfit(&value));
            }
            open.session.set_model(model).await
        }
        _ => {
            let all = options(open);
            let known: Vec<_> = all.iter().map(|option| &*option.id.0).collect();
            return Err(errors::invalid_params(format!(
                "there is no option `{option}`; there are {}",
                known.join(", ")
            )));
        }
    };
    set.map_err(|error| errors::session(&error))
}

/// Returns the current mode, options and commands. Modes and options show the same choice, so a change of one must also
/// reach clients that know only the other.
pub(super) async fn refresh_updates(open: &ClientSession) -> Vec<acp::SessionUpdate> {
    let mode = acp::CurrentModeUpdate::new(open.session.choice().mode.to_string());
    vec![
        acp::SessionUpdate::CurrentModeUpdate(mode),
        acp::SessionUpdate::ConfigOptionUpdate(acp::ConfigOptionUpdate::new(options(open))),
        commands::update(open).await,
    ]
}

/// Starts to send changed options and commands of the external agent to the client. Sends them at once if the agent
/// has a new external session for this session, as after a restart.
pub(super) fn watch_external(connection: &ClientConnection, open: &Arc<ClientSession>) {
    let Some(external) = open.session.external_session() else { return };
    let Some(first) = open.register_external_session(&external.id()) else { return };
    let (wire, open, mut changes) = (connection.wire.clone(), Arc::downgrade(open), external.changes());
    drop(external);
    connection.spawn(async move {
        let mut tell = !first;
        loop {
            if tell {
                // The session was closed.
                let Some(open) = open.upgrade() else { return };
                let session: Arc<str> = open.session.id().into();
                // An agent can change its lists faster than a client reads; only the last one matters.
                wait_for_backlog(&wire).await;
                refresh_updates(&open).await.into_iter().for_each(|update| wire.send_update(&session, update));
            }
            tell = changes.changed().await.is_ok();
            if !tell {
                return;
            }
        }
    });
}

/// Waits while more than [`MAX_BACKLOG`] bytes are not written to the client.
async fn wait_for_backlog(wire: &ClientWriter) {
    while wire.backlog() > MAX_BACKLOG {
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changed_options_wait_for_a_client_that_does_not_read() {
        let (wire, reader) = ClientWriter::with_reader(None);
        wire.send_line("x".repeat(MAX_BACKLOG + 1));
        let mut waiting = pin!(wait_for_backlog(&wire));
        let waited = tokio::time::timeout(10 * POLL, &mut waiting).await;
        assert!(waited.is_err(), "the client has read nothing");
        reader.queue().mark_written(MAX_BACKLOG);
        waiting.await;
    }
}
