//! Creates the models that a command can use, from the settings and the environment.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::environment::variable;
use super::keys::Keys;
use super::output::CommandError;
use crate::agents::{RecoveryPolicy, models};
use crate::graph::Plan;
use crate::ids::ModelRef;
use crate::llm::replay::ModelRecorder;
use crate::llm::{LlmError, ModelRegistry, Provider, RequestQueues};
use crate::manifest::Settings;
use crate::session::ModelSource;

/// The models of one set of settings. Each provider is created once, so that all sessions share its connections.
pub(super) struct KnownModels {
    models: ModelRegistry,
    accelerator: Option<ModelRef>,
    /// The accelerator, if the user's own settings name it.
    judge: Option<ModelRef>,
    /// The models that the user named, in a config or for this run. A project or recipe must not choose the judge.
    users: HashSet<ModelRef>,
    upkeep: RecoveryPolicy,
    /// The profile's main model, and those that replace it.
    processors: Vec<ModelRef>,
    keys: Keys,
    /// A file that records the models' answers.
    record: Option<PathBuf>,
    /// The recorder of the newest provider. All share one recording, which the first line empties.
    recorder: Mutex<Option<ModelRecorder>>,
    made: Mutex<HashMap<ModelRef, Arc<dyn Provider>>>,
}

impl KnownModels {
    /// Collects the models of the settings. `named` is the model named for this run. All models of a process share
    /// `queues`.
    pub(super) fn of(
        settings: &Settings,
        named: Option<&ModelRef>,
        record: Option<PathBuf>,
        keys: Keys,
        queues: Arc<RequestQueues>,
    ) -> Arc<Self> {
        let users = settings.users_processor.iter().chain(settings.models.keys()).chain(named).cloned().collect();
        let accelerator = variable("SKEIN_ACCELERATOR").map(ModelRef::from);
        Arc::new(Self {
            models: models(settings, queues),
            accelerator: accelerator.clone().or_else(|| settings.accelerator.clone()),
            judge: accelerator.or_else(|| settings.users_accelerator.clone()),
            users,
            processors: settings.processor.iter().chain(&settings.fallbacks).cloned().collect(),
            upkeep: RecoveryPolicy { moderator: settings.moderator, ..RecoveryPolicy::default() },
            keys,
            record,
            recorder: Mutex::default(),
            made: Mutex::default(),
        })
    }

    /// Creates a provider. Only keys are looked up outside the environment.
    fn make(&self, name: &ModelRef) -> Result<Arc<dyn Provider>, LlmError> {
        let known = self.models.providers();
        let is_key = |name: &str| known.iter().any(|facts| facts.key.as_deref() == Some(name));
        let find = |name: &str| if is_key(name) { self.keys.find(name).1 } else { variable(name) };
        self.models.provider(name, find).map_err(|error| match (error, self.keys.trouble()) {
            (LlmError::Unusable { model, reason }, Some(trouble)) => {
                LlmError::Unusable { model, reason: format!("{reason}; the keyring {trouble}") }
            }
            (LlmError::MissingKey { model, variable, .. }, Some(trouble)) => {
                LlmError::MissingKey { model, variable, note: format!("; the keyring {trouble}") }
            }
            (error, _) => error,
        })
    }
}

impl ModelSource for KnownModels {
    fn provider(&self, name: &ModelRef) -> Result<Arc<dyn Provider>, LlmError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(provider) = made.get(name) {
            return Ok(Arc::clone(provider));
        }
        let mut provider = self.make(name)?;
        if let Some(file) = &self.record {
            let mut known = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
            let recorder = match &*known {
                Some(recorder) => recorder.with_model(provider),
                None => ModelRecorder::new(provider, file)?,
            };
            provider = Arc::new(known.insert(recorder).clone());
        }
        made.insert(name.clone(), Arc::clone(&provider));
        Ok(provider)
    }

    fn recovery_policy(&self) -> Result<RecoveryPolicy, LlmError> {
        let fast = self.accelerator.as_ref().map(|name| self.make(name));
        Ok(RecoveryPolicy { accelerator: fast.transpose()?, ..self.upkeep.clone() })
    }

    fn fallbacks(&self, model: &ModelRef) -> Result<Vec<Arc<dyn Provider>>, LlmError> {
        match self.processors.split_first() {
            Some((first, others)) if first == model => others.iter().map(|name| self.provider(name)).collect(),
            _ => Ok(Vec::new()),
        }
    }

    fn judge(&self, model: &ModelRef) -> Option<Arc<dyn Provider>> {
        match &self.judge {
            Some(fast) => self.make(fast).ok(),
            None if self.users.contains(model) => self.provider(model).ok(),
            None => None,
        }
    }
}

/// Returns the error of a command whose model cannot be used.
fn model_failure(error: LlmError, help: &str) -> CommandError {
    let problem = error.to_string();
    match error {
        LlmError::NotAllowed { model, setting, .. } => {
            CommandError::Managed { problem, help: help.to_owned(), subject: model, setting }
        }
        LlmError::UnusableRecording { .. } => CommandError::usage(
            problem,
            "name another file: one that --record-model has written, or a new one to record",
        ),
        _ => CommandError::usage(problem, help),
    }
}

/// Fails if the model's name or key is unusable, before anything starts.
pub(super) fn check_model(models: &dyn ModelSource, name: &ModelRef, plan: &Plan) -> Result<(), CommandError> {
    if let Some(agent) = name.external_agent() {
        let external = plan.agent(agent.as_str()).is_some_and(|entry| entry.manifest.runtime.is_some());
        let help = "`skein agents` lists those that there are";
        return match plan.agent_refusal(agent.as_str()) {
            _ if external => Ok(()),
            Some(exclusion) => Err(CommandError::Managed {
                problem: format!("the agent `{agent}` cannot be used: {exclusion}"),
                help: help.to_owned(),
                subject: name.to_string(),
                setting: exclusion.setting.to_string(),
            }),
            None => Err(CommandError::usage(format!("there is no external agent `{agent}`"), help)),
        };
    }
    let help =
        "run `skein configure`, or choose another model: --model, SKEIN_MODEL, SKEIN_ACCELERATOR or your profile";
    let made = models.provider(name).and_then(|_| models.fallbacks(name)).and_then(|_| models.recovery_policy());
    made.map(drop).map_err(|error| model_failure(error, help))
}
