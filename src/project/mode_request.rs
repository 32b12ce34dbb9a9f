//! Finds the mode that a user names with `-a` and `-m`, or in a profile: an agent, `agent/mode`, or a mode alone.
//!
//! Invariant: an error never suggests an internal mode.

use crate::graph::Plan;
use crate::ids::{AgentName, ModeId, ModeSlug, ModelRef, nearest};
use crate::manifest::{AgentEntry, ManagedExclusion, Settings};

/// Returns the mode of new sessions if neither a flag nor a profile names one. With a model, prompts are routed. Without
/// one, a user calls the tools of a mode by name, so the session needs a mode that has tools.
pub fn default_mode(model: &ModelRef) -> ModeId {
    let (agent, mode) = if model.is_offline() { ("goose", "assistant") } else { ("orchestrator", "auto") };
    ModeId::new(AgentName::new(agent), ModeSlug::new(mode))
}

/// The agent and mode that a user names. Empty if the user names neither.
///
/// ```
/// use skein::project::ModeRequest;
/// assert_eq!(ModeRequest::new(Some("coding/backend"), None), ModeRequest::new(Some("coding"), Some("backend")));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModeRequest {
    agent: Option<String>,
    mode: Option<String>,
}

/// The reason why a request names no mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModeError {
    #[error("there is no agent `{agent}`")]
    UnknownAgent { agent: String, help: String },
    #[error("the agent `{agent}` has no mode `{mode}`")]
    UnknownMode { agent: AgentName, mode: String, help: String },
    #[error("no agent has a mode `{mode}`")]
    UnknownBareMode { mode: String, help: String },
    #[error("several agents have a mode `{mode}`")]
    AmbiguousMode { mode: String, help: String },
    #[error("`{agent}` names a mode already, and `{mode}` is another one")]
    TwoModes { agent: String, mode: String },
    #[error("`{0}` is an internal mode and cannot be asked for")]
    Internal(ModeId),
    #[error("`{name}` is not allowed here: {exclusion}")]
    Managed { name: String, exclusion: Box<ManagedExclusion> },
}

impl ModeError {
    /// Returns the agent or mode that managed settings exclude, and why. `None` for other errors.
    pub fn exclusion(&self) -> Option<(&str, &ManagedExclusion)> {
        match self {
            Self::Managed { name, exclusion } => Some((name.as_str(), exclusion.as_ref())),
            Self::UnknownAgent { .. }
            | Self::UnknownMode { .. }
            | Self::UnknownBareMode { .. }
            | Self::AmbiguousMode { .. }
            | Self::TwoModes { .. }
            | Self::Internal(_) => None,
        }
    }

    /// Returns what the user can do.
    pub fn help(&self) -> &str {
        match self {
            Self::UnknownAgent { help, .. }
            | Self::UnknownMode { help, .. }
            | Self::UnknownBareMode { help, .. }
            | Self::AmbiguousMode { help, .. } => help,
            Self::TwoModes { .. } => "name the mode once",
            Self::Internal(_) => "see `skein agents`",
            Self::Managed { .. } => "choose another one, or ask the administrator of this machine",
        }
    }
}

impl ModeRequest {
    /// Takes an agent or `agent/mode`, and a mode.
    pub fn new(agent: Option<&str>, mode: Option<&str>) -> Self {
        let (agent, mode) = match (agent.map(split), mode.map(split)) {
            (Some((agent, Some(slug))), None) | (None, Some((agent, Some(slug)))) => (Some(agent), Some(slug)),
            (Some((agent, Some(slug))), Some((mode, None))) if slug == mode => (Some(agent), Some(slug)),
            (Some((agent, None)), Some((again, Some(slug)))) if agent == again => (Some(agent), Some(slug)),
            _ => (agent, mode),
        };
        Self { agent: agent.map(str::to_owned), mode: mode.map(str::to_owned) }
    }

    /// Returns this request, or the one of the profile if this one is empty.
    #[must_use]
    pub fn or_profile(self, settings: &Settings) -> Self {
        if !self.is_empty() {
            return self;
        }
        Self {
            agent: settings.agent.as_ref().map(AgentName::to_string),
            mode: settings.mode.as_ref().map(ModeSlug::to_string),
        }
    }

    /// Returns this request, or the default mode of sessions with `model` if this one is empty.
    #[must_use]
    pub fn or_default(self, model: &ModelRef) -> Self {
        if !self.is_empty() {
            return self;
        }
        let ModeId { agent, mode } = default_mode(model);
        Self { agent: Some(agent.to_string()), mode: Some(mode.to_string()) }
    }

    pub fn is_empty(&self) -> bool {
        self.agent.is_none() && self.mode.is_none()
    }

    /// Returns the named agent. `None` if only a mode is named, or nothing.
    pub fn agent(&self) -> Option<&str> {
        self.agent.as_deref()
    }

    /// Returns the named mode without its agent. `None` if no mode is named.
    pub fn mode(&self) -> Option<&str> {
        self.mode.as_deref()
    }

    /// Returns the mode that a session starts in. Fails if there is no such mode or it is internal.
    pub fn select(&self, plan: &Plan) -> Result<ModeId, ModeError> {
        let id = self.find(plan)?;
        if plan.is_selectable(&id) { Ok(id) } else { Err(ModeError::Internal(id)) }
    }

    /// Returns the mode of a new session in a plan that may be limited: the named mode, or the first one of the plan if
    /// the limits exclude the named one. Fails if the request names no mode even without limits.
    pub fn select_or_first(&self, plan: &Plan) -> Result<ModeId, ModeError> {
        let selected = self.select(plan);
        if selected.is_ok() || plan.mode_globs().next().is_none() {
            return selected;
        }
        self.select(&plan.restrict_to(&[]))?;
        let first = plan.selectable_modes().find_map(|(agent, _)| plan.default_mode(agent));
        first.map_or(selected, Ok)
    }

    /// Returns the mode, which may be internal. An agent alone means its default mode, a mode alone must be unique, and
    /// an empty request means the default mode without a model.
    pub fn find(&self, plan: &Plan) -> Result<ModeId, ModeError> {
        match (&self.agent, &self.mode) {
            (None, None) => Ok(default_mode(&ModelRef::Offline)),
            (None, Some(mode)) => find_bare_mode(plan, mode),
            (Some(agent), Some(mode)) if agent.contains('/') => {
                Err(ModeError::TwoModes { agent: agent.clone(), mode: mode.clone() })
            }
            (Some(agent), mode) => find_mode(plan, find_agent(plan, agent)?, mode.as_deref()),
        }
    }
}

fn split(name: &str) -> (&str, Option<&str>) {
    name.split_once('/').map_or((name, None), |(agent, mode)| (agent, Some(mode)))
}

/// Returns the agent `name`. The error suggests the nearest name.
pub fn find_agent<'a>(plan: &'a Plan, name: &str) -> Result<&'a AgentEntry, ModeError> {
    plan.agent(name).ok_or_else(|| {
        if let Some(exclusion) = plan.agent_refusal(name) {
            return ModeError::Managed { name: name.to_owned(), exclusion: Box::new(exclusion) };
        }
        let names = || plan.agents().map(|agent| agent.manifest.name.as_str());
        let help = match nearest(name, names()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are: {}", names().collect::<Vec<_>>().join(", ")),
        };
        ModeError::UnknownAgent { agent: name.to_owned(), help }
    })
}

fn find_mode(plan: &Plan, agent: &AgentEntry, mode: Option<&str>) -> Result<ModeId, ModeError> {
    let name = &agent.manifest.name;
    let default = plan.default_mode(agent).map(|mode| mode.mode.to_string()).unwrap_or_default();
    let slug = mode.unwrap_or(&default);
    if plan.modes_of(agent).any(|entry| entry.mode.slug.as_str() == slug) {
        return Ok(ModeId::new(name.clone(), ModeSlug::new(slug)));
    }
    let id = ModeId::new(name.clone(), ModeSlug::new(slug));
    if let Some(exclusion) = plan.mode_refusal(&id) {
        return Err(ModeError::Managed { name: id.to_string(), exclusion: Box::new(exclusion) });
    }
    let slugs = || plan.modes_of(agent).filter(|entry| !entry.mode.internal).map(|entry| entry.mode.slug.as_str());
    let help = match nearest(slug, slugs()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("{name} has: {}", slugs().collect::<Vec<_>>().join(", ")),
    };
    Err(ModeError::UnknownMode { agent: name.clone(), mode: slug.to_owned(), help })
}

fn find_bare_mode(plan: &Plan, mode: &str) -> Result<ModeId, ModeError> {
    let all: Vec<ModeId> = plan
        .selectable_modes()
        .flat_map(|(agent, modes)| {
            modes.into_iter().map(|entry| ModeId::new(agent.manifest.name.clone(), entry.mode.slug.clone()))
        })
        .collect();
    let found: Vec<_> = all.iter().filter(|id| id.mode.as_str() == mode).collect();
    match found.as_slice() {
        [id] => Ok((*id).clone()),
        [] => {
            if let Some(agent) =
                plan.agents().find(|agent| plan.modes_of(agent).any(|entry| entry.mode.slug.as_str() == mode))
            {
                return Err(ModeError::Internal(ModeId::new(agent.manifest.name.clone(), ModeSlug::new(mode))));
            }
            let of_agent = |agent: &AgentEntry| {
                let id = ModeId::new(agent.manifest.name.clone(), ModeSlug::new(mode));
                plan.mode_refusal(&id).map(|exclusion| (id.to_string(), Box::new(exclusion)))
            };
            if let Some((name, exclusion)) = plan.manifests().agents.values().find_map(of_agent) {
                return Err(ModeError::Managed { name, exclusion });
            }
            let near = nearest(mode, all.iter().map(|id| id.mode.as_str()));
            let same = near.and_then(|near| all.iter().find(|id| id.mode.as_str() == near));
            let help = same.map_or_else(|| "see `skein agents`".to_owned(), |id| format!("did you mean `{id}`?"));
            Err(ModeError::UnknownBareMode { mode: mode.to_owned(), help })
        }
        several => {
            let names: Vec<_> = several.iter().map(|id| format!("`-a {id}`")).collect();
            let help = format!("choose one: {}", names.join(" or "));
            Err(ModeError::AmbiguousMode { mode: mode.to_owned(), help })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::resolve;
    use crate::manifest::{Layer, Root, load};

    fn plan() -> Plan {
        let own = "version: 1\nkind: agent\nname: own\ndescription: Mine.\nruntime: {acp: {command: none}}\n\
                   modes: [{slug: planner, description: Plans.}, {slug: sketch, description: Draws.}]\n";
        let files = [("agents/own.yaml".into(), own.as_bytes().to_vec())].into();
        let (manifests, found) =
            load(&[(Layer::Builtin, Root::Builtin), (Layer::User, Root::Snapshot { files, shown: String::new() })]);
        resolve(manifests, found).plan.expect("manifests without errors")
    }

    fn select(agent: Option<&str>, mode: Option<&str>) -> Result<String, (String, String)> {
        let selected = ModeRequest::new(agent, mode).select(&plan());
        selected.map(|id| id.to_string()).map_err(|error| (error.to_string(), error.help().to_owned()))
    }

    fn refusal(problem: &str, help: &str) -> Result<String, (String, String)> {
        Err((problem.to_owned(), help.to_owned()))
    }

    #[test]
    fn agent_and_mode_can_be_one_name() {
        for (agent, mode) in [
            (Some("coding"), Some("backend")),
            (Some("coding/backend"), None),
            (Some("coding/backend"), Some("backend")),
            (None, Some("coding/backend")),
            (None, Some("backend")),
        ] {
            assert_eq!(select(agent, mode), Ok("coding/backend".to_owned()), "{agent:?} {mode:?}");
        }
        assert_eq!(select(Some("goose"), None), Ok("goose/assistant".to_owned()));
    }

    #[test]
    fn a_bare_mode_must_be_unique() {
        assert_eq!(select(None, Some("sketch")), Ok("own/sketch".to_owned()));
        let several =
            refusal("several agents have a mode `planner`", "choose one: `-a goose/planner` or `-a own/planner`");
        assert_eq!(select(None, Some("planner")), several);
        assert_eq!(
            select(None, Some("bakend")),
            refusal("no agent has a mode `bakend`", "did you mean `coding/backend`?")
        );
    }

    #[test]
    fn default_mode_depends_on_the_model() {
        for (model, mode) in [
            ("offline", "goose/assistant"),
            ("openai:a", "orchestrator/auto"),
            ("replay:f", "orchestrator/auto"),
            ("acp:x", "orchestrator/auto"),
        ] {
            let request = ModeRequest::default().or_default(&ModelRef::from(model));
            assert_eq!(request.select(&plan()).map(|id| id.to_string()), Ok(mode.to_owned()), "{model}");
        }
        let named = ModeRequest::new(Some("coding"), None);
        assert_eq!(named.clone().or_default(&ModelRef::from("openai:a")), named);
    }

    #[test]
    fn two_different_modes_are_an_error() {
        let two = refusal("`coding/backend` names a mode already, and `qa` is another one", "name the mode once");
        assert_eq!(select(Some("coding/backend"), Some("qa")), two);
    }

    #[test]
    fn internal_modes_are_neither_selected_nor_suggested() {
        let internal = refusal("`goose/judge` is an internal mode and cannot be asked for", "see `skein agents`");
        assert_eq!(select(Some("goose/judge"), None), internal);
        for (agent, mode) in [(Some("goose"), "judg"), (Some("goose"), "zzzzzzzz"), (None, "judge"), (None, "judg")] {
            let (_, help) = select(agent, Some(mode)).expect_err(mode);
            assert!(!help.contains("judge"), "{help}");
        }
    }
}
