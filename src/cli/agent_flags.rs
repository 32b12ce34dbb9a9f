//! Flags that choose agent, mode and model, and what applies without them.

use clap::Args;

use crate::ids::ModelRef;
use crate::manifest::Settings;
use crate::project::ModeRequest;

/// Flags that choose agent, mode and model.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct AgentFlags {
    /// Choose an agent, as agent or agent/mode
    ///
    /// The default is the profile's agent and mode. Without one it is `orchestrator/auto`, or `goose/assistant` if no
    /// model is configured.
    #[arg(long, short)]
    pub(super) agent: Option<String>,
    /// Choose a mode; default: the agent's default mode
    ///
    /// Without -a, the mode of the one agent that has it.
    #[arg(long, short)]
    pub(super) mode: Option<String>,
    /// Choose a model, as provider:model or replay:FILE
    ///
    /// The default is the profile's model, or else `offline`, which calls tools by name.
    #[arg(long, env = "SKEIN_MODEL")]
    pub(super) model: Option<String>,
}

impl AgentFlags {
    /// Returns the model. An empty value counts as unset.
    pub(super) fn model(&self) -> Option<ModelRef> {
        self.model.as_deref().filter(|model| !model.is_empty()).map(ModelRef::from)
    }

    /// Returns the mode of new sessions: from the flags, or else from the profile, or else the default.
    pub(super) fn mode_request(&self, settings: &Settings) -> ModeRequest {
        self.mode_of_flags().or_profile(settings).or_default(&self.model_or_default(settings))
    }

    /// Returns the model of new sessions: from the flags, or else from the profile.
    pub(super) fn model_or_default(&self, settings: &Settings) -> ModelRef {
        self.model().or_else(|| settings.processor.clone()).unwrap_or(ModelRef::Offline)
    }

    pub(super) fn mode_of_flags(&self) -> ModeRequest {
        ModeRequest::new(self.agent.as_deref(), self.mode.as_deref())
    }
}
