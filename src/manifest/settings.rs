//! Computes the effective settings from the active profile and the configs of the user and the project.
//!
//! Invariant: base URLs, key names, context windows and prices come from the user only. A project chooses models, agent
//! and mode, and can disable services but not enable them.

use std::collections::BTreeMap;

use super::profile::{ActiveProfiles, ServiceList};
use super::stated_budgets::{self, StatedBudget};
use super::{
    Layer, ManagedLayer, ManagedProvider, ManagedSetting, Manifests, ModelFacts, ModelPrice, Moderator,
    NotificationSettings, Profile, ProviderAddress,
};
use crate::ids::{AgentName, ModeSlug, ModelRef};

/// The combined settings of all configs.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub processor: Option<ModelRef>,
    /// The models that replace the processor when it fails, in order.
    pub fallbacks: Vec<ModelRef>,
    pub accelerator: Option<ModelRef>,
    /// The user's accelerator. A project must not choose the judge of calls.
    pub users_accelerator: Option<ModelRef>,
    /// The user's processor.
    pub users_processor: Option<ModelRef>,
    pub moderator: Moderator,
    /// The service lists of the active profiles. A service is on if none of them leaves it out.
    pub service_lists: Vec<ServiceList>,
    pub agent: Option<AgentName>,
    /// Always a mode of `agent`.
    pub mode: Option<ModeSlug>,
    /// False if a config turns excerpts of earlier sessions off.
    pub recall: bool,
    pub models: BTreeMap<ModelRef, ModelFacts>,
    /// The user's providers, and those whose address managed settings state.
    pub providers: BTreeMap<String, ProviderAddress>,
    /// All limits of cost, tokens, requests and time that apply.
    pub budgets: Vec<StatedBudget>,
    /// How the user is notified of a permission request that stays open.
    pub notifications: NotificationSettings,
    /// The prices of each managed file that limits the cost. If there is one, the prices in `models` do not count.
    pub fixed_prices: Vec<BTreeMap<ModelRef, ModelPrice>>,
    /// Managed lists of the only providers. A provider must be in each.
    pub allowed_providers: Vec<ProviderAllowList>,
    /// Managed lists of the only models. A model must be in each.
    pub allowed_models: Vec<ModelAllowList>,
}

/// A managed list of the only providers.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderAllowList {
    pub providers: Vec<ManagedProvider>,
    pub setting: ManagedSetting,
}

/// A managed list of the only models.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelAllowList {
    pub models: Vec<String>,
    pub setting: ManagedSetting,
}

impl Settings {
    pub fn of(manifests: &Manifests) -> Self {
        let active = ActiveProfiles::of(manifests);
        let budgets = stated_budgets::collect(manifests, &active);
        let ActiveProfiles { user, project, user_first, lists, profiles: _ } = active;
        let config = manifests.configs.iter().find(|entry| entry.layer == Layer::User).map(|entry| &entry.config);
        let (models, mut providers) =
            config.map(|config| (config.models.clone(), config.providers.clone())).unwrap_or_default();
        let recall = manifests
            .configs
            .iter()
            .filter(|entry| matches!(entry.layer, Layer::User | Layer::Project))
            .all(|entry| entry.config.recall != Some(false));
        add_managed_addresses(&mut providers, &manifests.managed);
        let users_accelerator = user.accelerator.clone();
        let users_processor = user.processor.as_ref().and_then(|processor| processor.models().first().cloned());
        let project = Profile {
            processor: project.processor.filter(|processor| processor.models().iter().all(is_model)),
            accelerator: project.accelerator.filter(is_model),
            ..project
        };
        let (first, second) = if user_first { (user, project) } else { (project, user) };
        // A mode belongs to its agent, so both come from the same profile.
        let (agent, mode) = if first.agent.is_some() { (first.agent, first.mode) } else { (second.agent, second.mode) };
        let processors = first.processor.or(second.processor).map(|processor| processor.models().to_vec());
        let mut processors = processors.unwrap_or_default().into_iter();
        Self {
            users_accelerator,
            users_processor,
            processor: processors.next(),
            fallbacks: processors.collect(),
            accelerator: first.accelerator.or(second.accelerator),
            moderator: first.moderator.or(second.moderator).unwrap_or(Moderator::Summarize),
            service_lists: lists,
            agent,
            mode,
            recall,
            models,
            providers,
            budgets,
            notifications: NotificationSettings::of(config.and_then(|config| config.notifications.as_ref())),
            fixed_prices: manifests.managed.price_lists().cloned().collect(),
            allowed_providers: manifests
                .managed
                .provider_lists()
                .map(|(list, setting)| ProviderAllowList { providers: list.to_vec(), setting })
                .collect(),
            allowed_models: manifests
                .managed
                .model_lists()
                .map(|(list, setting)| ModelAllowList { models: list.to_vec(), setting })
                .collect(),
        }
    }
}

/// Adds the addresses that managed settings state to providers without an address in the user's config.
fn add_managed_addresses(providers: &mut BTreeMap<String, ProviderAddress>, managed: &ManagedLayer) {
    for provider in managed.provider_lists().flat_map(|(list, _)| list) {
        let Some(base_url) = provider.base_url() else { continue };
        let entry = providers.entry(provider.name().to_owned());
        let address =
            entry.or_insert_with(|| ProviderAddress { base_url: None, key: None, limits: Default::default() });
        address.base_url.get_or_insert_with(|| base_url.to_owned());
    }
}

/// Returns false for a recording. Trust in a project does not cover that file, so a project cannot name one.
fn is_model(name: &ModelRef) -> bool {
    !matches!(name, ModelRef::Replay(_))
}

#[cfg(test)]
mod tests {
    use super::super::{DisableSource, ProfileSelection, Root, load_selected};
    use super::*;

    fn settings(user: &str, project: &str) -> Settings {
        Settings::of(&manifests(user, project, None))
    }

    const SERVICES: [&str; 3] = ["x", "y", "z"];

    fn manifests(user: &str, project: &str, selection: Option<&ProfileSelection>) -> Manifests {
        let root = |path: &str, text: &str| Root::Snapshot {
            files: [(path.into(), format!("version: 1\n{text}").into_bytes())].into(),
            shown: String::new(),
        };
        let service = |name: &str| {
            let text = format!(
                "version: 1\nkind: service\nname: {name}\ndescription: A test.\nrequires: {{store: memory}}\n\
                 transport: {{stdio: {{command: none}}}}\n"
            );
            (format!("services/{name}.yaml").into(), text.into_bytes())
        };
        let services = Root::Snapshot { files: SERVICES.map(service).into(), shown: String::new() };
        let layers = [
            (Layer::Builtin, Root::Builtin),
            (Layer::User, root("config.yaml", user)),
            (Layer::User, services),
            (Layer::Project, root(".skein/config.yaml", project)),
        ];
        let (manifests, found) = load_selected(&layers, selection);
        assert!(found.is_empty(), "{found:?}");
        manifests
    }

    /// Returns which of the services are on: those of the user and three built-in ones.
    fn enabled(manifests: &Manifests) -> Vec<&str> {
        let all = ["developer", "memory", "summon"].into_iter().chain(SERVICES);
        all.filter(|name| manifests.services[*name].enabled).collect()
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
        let manifests = manifests(USER, own, None);
        assert_eq!(enabled(&manifests), ["developer", "memory", "summon", "y"], "a project switches none on");
    }

    #[test]
    fn another_profile_of_the_user_turns_no_service_on() {
        let manifests = manifests(USER, "profile: home\n", None);
        assert_eq!(enabled(&manifests), ["developer", "memory", "summon", "x", "y"]);
        assert_eq!(manifests.leaving_profile(&manifests.services["z"]).as_deref(), Some("work"));
    }

    #[test]
    fn list_with_a_built_in_service_decides_about_all_of_them() {
        let config = "profiles: {default: {services: [developer, x]}}\n";
        assert_eq!(enabled(&manifests(config, "", None)), ["developer", "summon", "x"]);
        let goose = "profiles: {default: {extensions: [memory], services: [x]}}\n";
        assert_eq!(enabled(&manifests(goose, "", None)), ["memory", "summon", "x"]);
    }

    #[test]
    fn disabled_services_are_off_in_every_profile() {
        let off = "disabled_services: [x, memory, summon]\nprofiles: {default: {services: [x, y]}}\n";
        let disabled = manifests(off, "", None);
        assert_eq!(enabled(&disabled), ["developer", "summon", "y"], "the orchestrator keeps its services");
        let by = |name: &str| disabled.services[name].disabled_by.clone();
        assert_eq!(by("x"), Some(DisableSource::Config("config.yaml".to_owned())));
        assert_eq!(by("z"), Some(DisableSource::Profile("default".to_owned())));
        assert_eq!(by("y"), None);
        let of_project = manifests("", "disabled_services: [z]\n", None);
        assert_eq!(enabled(&of_project), ["developer", "memory", "summon", "x", "y"]);
    }

    #[test]
    fn selected_profile_counts_before_the_projects() {
        let own = "profile: own\nprofiles:\n  own: {processor: 'groq:d', accelerator: 'groq:e', services: [x]}\n";
        let selection = ProfileSelection::Named("home".to_owned());
        let selected = manifests(USER, own, Some(&selection));
        let settings = Settings::of(&selected);
        assert_eq!(text(&settings.processor).as_deref(), Some("ollama:c"));
        assert_eq!(text(&settings.accelerator).as_deref(), Some("groq:e"), "the project's fills the gap");
        assert_eq!(enabled(&selected), ["developer", "memory", "summon", "x"], "its list still tightens");
    }

    #[test]
    fn a_file_holds_a_profile_with_roles() {
        let file = "processor: openai:gpt-4\naccelerator: openai:gpt-4-turbo\nmoderator: passive\n\
                    extensions:\n- developer\n- name: x\n  requires:\n    store: y\n";
        let selection = ProfileSelection::File { file: "work.yaml".to_owned(), text: file.to_owned() };
        let selected = manifests(USER, "", Some(&selection));
        let settings = Settings::of(&selected);
        assert_eq!(text(&settings.processor).as_deref(), Some("openai:gpt-4"));
        assert_eq!((settings.moderator, settings.agent), (Moderator::Passive, None));
        assert_eq!(enabled(&selected), ["developer", "summon", "x"]);
        let requires = |name: &str| selected.services[name].manifest.requires.roles()[0].1.to_string();
        assert_eq!((requires("x"), requires("z")), ("y".to_owned(), "memory".to_owned()));
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
