//! Computes the effective settings from the active profile and the configs of the user and the project.
//!
//! Invariant: base URLs, key names, context windows and prices come from the user only. A project chooses models, agent
//! and mode, and can disable services but not enable them.

use std::collections::BTreeMap;

use super::{Config, Layer, Manifests, ModelFacts, Moderator, Profile, ProviderAddress};
use crate::ids::{AgentName, ModeSlug, ModelRef, ServiceName};

/// The profile to use when no config names one.
const DEFAULT: &str = "default";

/// The combined settings of all configs.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub processor: Option<ModelRef>,
    pub accelerator: Option<ModelRef>,
    /// The user's accelerator. A project must not choose the judge of calls.
    pub users_accelerator: Option<ModelRef>,
    /// The user's processor.
    pub users_processor: Option<ModelRef>,
    pub moderator: Moderator,
    /// The user's enabled services; `None` means all.
    pub services: Option<Vec<ServiceName>>,
    pub agent: Option<AgentName>,
    /// Always a mode of `agent`.
    pub mode: Option<ModeSlug>,
    /// False if a config turns excerpts of earlier sessions off.
    pub recall: bool,
    pub models: BTreeMap<ModelRef, ModelFacts>,
    pub providers: BTreeMap<String, ProviderAddress>,
}

impl Settings {
    pub fn of(manifests: &Manifests) -> Self {
        let config =
            |layer| manifests.configs.iter().find(|entry| entry.layer == layer).map(|entry| entry.config.clone());
        let (user, project) = (config(Layer::User), config(Layer::Project));
        let named = |config: &Option<Config>| config.as_ref().and_then(|config| config.profile.clone());
        let profile =
            |config: &Option<Config>, name: &str| config.as_ref().and_then(|it| it.profiles.get(name).cloned());
        let asked = named(&project).unwrap_or_else(|| DEFAULT.to_owned());
        let of_project = profile(&project, &asked);
        // A project may name one of the user's profiles; a profile in the project's config extends the user's active
        // one.
        let theirs = if of_project.is_none() { named(&project) } else { None };
        let base = theirs.or(named(&user)).unwrap_or_else(|| DEFAULT.to_owned());
        let mut of_user = profile(&user, &base).unwrap_or_default();
        // Services that the user's profile leaves out stay disabled, even if a project names another profile.
        let own = profile(&user, &named(&user).unwrap_or_else(|| DEFAULT.to_owned())).unwrap_or_default();
        of_user.services = intersect(own.services, of_user.services);
        let recall = [&user, &project].into_iter().flatten().all(|config| config.recall != Some(false));
        let (models, providers) = user.map(|user| (user.models, user.providers)).unwrap_or_default();
        Self { recall, ..Self::merge(of_user, of_project.unwrap_or_default(), models, providers) }
    }

    fn merge(
        user: Profile,
        project: Profile,
        models: BTreeMap<ModelRef, ModelFacts>,
        providers: BTreeMap<String, ProviderAddress>,
    ) -> Self {
        // A mode belongs to its agent, so both come from the same profile.
        let (agent, mode) =
            if project.agent.is_some() { (project.agent, project.mode) } else { (user.agent, user.mode) };
        let services = intersect(user.services, project.services);
        let chosen = project.processor.filter(is_model);
        Self {
            users_accelerator: user.accelerator.clone(),
            users_processor: user.processor.clone(),
            processor: chosen.or(user.processor),
            accelerator: project.accelerator.filter(is_model).or(user.accelerator),
            moderator: project.moderator.or(user.moderator).unwrap_or(Moderator::Summarize),
            services,
            agent,
            mode,
            recall: true,
            models,
            providers,
        }
    }

    /// Returns true if a user's service is enabled.
    pub(super) fn enables(&self, service: &ServiceName) -> bool {
        self.services.as_ref().is_none_or(|services| services.contains(service))
    }
}

impl Manifests {
    /// Marks the user's services that the active profile leaves out.
    pub(super) fn enable(&mut self) {
        let settings = Settings::of(self);
        for (name, entry) in self.services.iter_mut().filter(|(_, entry)| entry.layer == Layer::User) {
            entry.enabled = settings.enables(name);
        }
    }
}

/// Returns false for a recording. Trust in a project does not cover that file, so a project cannot name one.
fn is_model(name: &ModelRef) -> bool {
    !matches!(name, ModelRef::Replay(_))
}

/// Returns the services in both lists; `None` means all services.
fn intersect(one: Option<Vec<ServiceName>>, other: Option<Vec<ServiceName>>) -> Option<Vec<ServiceName>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.into_iter().filter(|name| other.contains(name)).collect()),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Root, load};
    use super::*;

    fn settings(user: &str, project: &str) -> Settings {
        let root = |path: &str, text: &str| Root::Snapshot {
            files: [(path.into(), format!("version: 1\n{text}").into_bytes())].into(),
            shown: String::new(),
        };
        let layers = [(Layer::User, root("config.yaml", user)), (Layer::Project, root(".skein/config.yaml", project))];
        let (manifests, found) = load(&layers);
        assert!(found.is_empty(), "{found:?}");
        Settings::of(&manifests)
    }

    fn text(model: &Option<ModelRef>) -> Option<String> {
        model.as_ref().map(ModelRef::to_string)
    }

    const USER: &str = "profile: work\nprofiles:\n  work: {processor: 'openai:a', accelerator: 'openai:b', agent: goose, mode: planner, services: [x, y]}\n  home: {processor: 'ollama:c', moderator: passive}\nmodels: {'openai:a': {window: 1000}}\n";

    #[test]
    fn the_users_profile_is_in_use() {
        let settings = settings(USER, "");
        assert_eq!(text(&settings.processor).as_deref(), Some("openai:a"));
        assert_eq!(settings.moderator, Moderator::Summarize);
        assert_eq!(settings.mode.as_ref().map(ModeSlug::as_str), Some("planner"));
        assert_eq!(settings.models[&ModelRef::from("openai:a")].window, Some(1000));
    }

    #[test]
    fn a_project_may_name_one_of_the_users_profiles() {
        let settings = settings(USER, "profile: home\n");
        assert_eq!((text(&settings.processor).as_deref(), settings.moderator), (Some("ollama:c"), Moderator::Passive));
    }

    #[test]
    fn project_can_choose_models_and_agent_and_disable_services() {
        let own = "profile: own\nprofiles:\n  own: {processor: 'groq:d', agent: coding, services: [y, z]}\n";
        let settings = settings(USER, own);
        assert_eq!(text(&settings.processor).as_deref(), Some("groq:d"));
        assert_eq!(text(&settings.accelerator).as_deref(), Some("openai:b"), "the rest is the user's");
        assert_ne!(settings.users_processor, settings.processor, "and it is known whose it is");
        assert_eq!((settings.agent.as_ref().map(AgentName::as_str), settings.mode), (Some("coding"), None));
        let services: Vec<_> = settings.services.iter().flatten().map(ServiceName::as_str).collect();
        assert_eq!(services, ["y"], "a project switches none on");
    }

    #[test]
    fn either_config_turns_recall_off() {
        for (user, project, recall) in [
            ("", "", true),
            ("recall: true", "", true),
            ("recall: false", "recall: true", false),
            ("", "recall: false", false),
        ] {
            assert_eq!(settings(user, project).recall, recall, "{user:?} {project:?}");
        }
    }

    #[test]
    fn the_profile_named_default_needs_no_naming() {
        let config = "profiles: {default: {processor: 'openai:a'}}\n";
        assert_eq!(text(&settings(config, "").processor).as_deref(), Some("openai:a"));
        assert_eq!(settings("profiles: {other: {processor: 'openai:a'}}\n", "").processor, None);
    }
}
