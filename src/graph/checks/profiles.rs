//! Checks profiles, of a config or of a file: their services, agent, mode and models.

use super::Checks;
use crate::diagnostic::Diagnostic;
use crate::ids::{ModeId, ServiceName};
use crate::manifest::{DocumentPath, Layer, ProcessorModels, Profile, ProfileService, SourceFile};

impl Checks<'_> {
    /// Checks the profile at `at` of a file. `name` is its name in messages.
    pub(super) fn profile(
        &mut self,
        name: &str,
        profile: &Profile,
        at: &DocumentPath,
        source: &SourceFile,
        layer: Layer,
    ) {
        for (key, services) in [("services", &profile.services), ("extensions", &profile.extensions)] {
            for (index, service) in services.iter().flatten().enumerate() {
                self.profile_service(name, service, &at.key(key).index(index), source, layer);
            }
        }
        let agent = profile.agent.as_ref();
        if let Some(agent) = agent.filter(|agent| !self.manifests.agents.contains_key(*agent)) {
            let help = self.agent_help(agent.as_str());
            self.error("E104", source.place(&at.key("agent")), format!("there is no agent `{agent}`"), help);
        } else if let (Some(agent), Some(mode)) = (agent, &profile.mode) {
            let id = ModeId::new(agent.clone(), mode.clone());
            self.check_mode_reference(&id, || source.place(&at.key("mode")));
        } else if let (None, Some(mode)) = (agent, &profile.mode) {
            let problem = format!("profile `{name}` names the mode `{mode}` without its agent");
            self.error("E104", source.place(&at.key("mode")), problem, "add `agent: …` next to it");
        }
        let processors: Vec<_> = match &profile.processor {
            None => Vec::new(),
            Some(ProcessorModels::One(model)) => vec![(at.key("processor"), model)],
            Some(ProcessorModels::Several(models)) => {
                models.iter().enumerate().map(|(index, model)| (at.key("processor").index(index), model)).collect()
            }
        };
        let accelerator = profile.accelerator.iter().map(|model| (at.key("accelerator"), model));
        for (place, model) in processors.into_iter().chain(accelerator) {
            if let Some((problem, help)) = self.model_problem(model) {
                self.found.push(Diagnostic::warning("W205", source.place(&place), problem, help));
            }
        }
    }

    /// Checks a name of `disabled_services`. An unknown one is only a note: it may be a service of another project.
    pub(super) fn check_disabled_name(&mut self, name: &ServiceName, at: &DocumentPath, source: &SourceFile) {
        let (problem, help) = match self.manifests.services.get(name) {
            None => {
                let problem = format!("`disabled_services` names `{name}`, which no manifest defines");
                (problem, self.service_help(name.as_str()))
            }
            Some(entry) => {
                let Some(owner) = &entry.manifest.owner else { return };
                (format!("the service `{name}` belongs to the {owner} and stays on"), "remove it".to_owned())
            }
        };
        self.note("N307", || source.place(at), problem, help);
    }

    fn profile_service(
        &mut self,
        profile: &str,
        service: &ProfileService,
        at: &DocumentPath,
        source: &SourceFile,
        layer: Layer,
    ) {
        let name = service.name();
        let Some(entry) = self.manifests.services.get(name) else {
            let help = self.service_help(name.as_str());
            let problem = format!("profile `{profile}` enables the service `{name}`, which no manifest defines");
            return self.error("E103", source.place(at), problem, help);
        };
        let ProfileService::Detailed(detailed) = service else { return };
        let at = at.key("requires");
        if layer == Layer::Project && !detailed.requires.is_empty() {
            let problem = "a project's profile cannot choose what a service requires";
            return self.error("E122", source.key_place(&at), problem, "move it to your own config.yaml");
        }
        let roles: Vec<_> = entry.manifest.requires.roles().into_iter().map(|(role, _)| role).collect();
        for role in detailed.requires.keys().filter(|role| !roles.contains(role)) {
            let known: Vec<_> = roles.iter().map(ToString::to_string).collect();
            let help = match known.is_empty() {
                true => format!("remove it: the manifest of `{name}` requires nothing"),
                false => format!("roles of `{name}`: {}", known.join(", ")),
            };
            let problem = format!("the service `{name}` has no role `{role}`");
            self.error("E103", source.key_place(&at.key(role.as_str())), problem, help);
        }
    }
}
