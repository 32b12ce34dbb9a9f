//! Changes the user's config to the choices of `skein configure`, and checks the new text before it is written.

use std::path::Path;

use serde_json::Value;

use super::super::folders::Folders;
use super::super::output::{CommandError, CommandOutput, display_line};
use super::super::settings_file::SettingsFile;
use super::super::{Global, workspace};
use super::ConfigureAnswers;
use crate::diagnostic::Severity;
use crate::graph::Resolution;
use crate::ids::ModelRef;
use crate::llm::ModelRegistry;
use crate::manifest::{Layer, Manifests, ProcessorModels, Profile};

/// The profile of the user's config that is changed.
pub(super) struct EditedProfile {
    name: String,
    /// What the config has now; empty if it has no such profile.
    held: Profile,
}

impl EditedProfile {
    /// Takes the profile that `--profile` names, or else the active one. Fails if it names no profile of this config.
    pub(super) fn of(global: &Global, manifests: &Manifests) -> Result<Self, CommandError> {
        let user = manifests.configs.iter().find(|entry| entry.layer == Layer::User).map(|entry| &entry.config);
        let held = |name: &str| user.and_then(|config| config.profiles.get(name).cloned());
        let Some(name) = global.profile.as_deref().filter(|name| !name.is_empty()) else {
            let name = user.and_then(|config| config.profile.clone()).unwrap_or_else(|| "default".to_owned());
            return Ok(Self { held: held(&name).unwrap_or_default(), name });
        };
        match held(name).filter(|_| global.profile_file().is_none()) {
            Some(held) => Ok(Self { name: name.to_owned(), held }),
            None => {
                let problem = format!("the profile `{}` is not in your config.yaml", display_line(name));
                let help = "change its own file, or name a profile of your config with --profile or SKEIN_PROFILE";
                Err(CommandError::usage(problem, help))
            }
        }
    }

    pub(super) fn has_mode(&self) -> bool {
        self.held.mode.is_some()
    }

    /// Returns the value of `processor` for a model. The models that replace it when it fails stay.
    fn processor(&self, model: &ModelRef) -> Value {
        match &self.held.processor {
            Some(ProcessorModels::Several(models)) => {
                let others = models.iter().skip(1).filter(|other| *other != model);
                std::iter::once(model).chain(others).map(ModelRef::to_string).collect()
            }
            Some(ProcessorModels::One(_)) | None => Value::from(model.to_string()),
        }
    }

    /// Returns the paths and values to write to the config. A model that the profile has is not written again, and none
    /// if `keeps_model`.
    pub(super) fn changes(
        &self,
        chosen: &ConfigureAnswers,
        keeps_model: bool,
        key_env: Option<&str>,
        models: &ModelRegistry,
    ) -> Vec<(Vec<String>, Value)> {
        let in_profile = |key: &str| vec!["profiles".to_owned(), self.name.clone(), key.to_owned()];
        let main_model = self.held.processor.as_ref().and_then(|processor| processor.models().first());
        let mut changes = Vec::new();
        if !keeps_model && main_model != Some(&chosen.model) {
            changes.push((in_profile("processor"), self.processor(&chosen.model)));
        }
        if let Some((agent, mode)) = &chosen.agent {
            changes.push((in_profile("agent"), Value::from(agent.as_str())));
            changes.extend(mode.iter().map(|mode| (in_profile("mode"), Value::from(mode.as_str()))));
        }
        if let Some(name) = key_env.filter(|name| chosen.facts.key.as_deref() != Some(*name)) {
            let in_provider = |key: &str| vec!["providers".to_owned(), chosen.facts.name.clone(), key.to_owned()];
            if !models.providers.contains_key(&chosen.facts.name) {
                changes.push((in_provider("base_url"), Value::from(chosen.facts.base.trim_end_matches('/'))));
            }
            changes.push((in_provider("key"), Value::from(name)));
        }
        changes
    }
}

/// Fails if the config would have an error with its new text. Prints the errors.
pub(super) fn check_text(
    file: &SettingsFile,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let name = file.file().file_name().map_or(file.file(), Path::new);
    let Resolution { plan, diagnostics } = workspace::resolve_draft(global, folders, name, file.text())?;
    if plan.is_some() {
        return Ok(());
    }
    let errors: Vec<_> = diagnostics.into_iter().filter(|found| found.severity == Severity::Error).collect();
    output.diagnostics(&errors);
    let problem = format!("{} would be wrong with these values; nothing was changed", file.file().display());
    Err(CommandError::usage(problem, "choose other values, as said above"))
}
