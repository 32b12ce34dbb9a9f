//! Which models a command uses: as the command line says, or the environment, or the settings.

use std::path::Path;
use std::sync::Arc;

use super::output::Failure;
use crate::agents::{Upkeep, models};
use crate::graph::Plan;
use crate::llm::replay::Recorder;
use crate::llm::{LlmError, Provider};
use crate::manifest::Settings;

/// The model, and who helps it; `model` comes before what the settings say, and `record` is a file to write its
/// answers to.
pub(super) fn chosen(
    plan: &Plan,
    model: Option<&str>,
    record: Option<&Path>,
) -> Result<(Arc<dyn Provider>, Upkeep), Failure> {
    let settings = Settings::of(plan.manifests());
    let models = models(&settings);
    let variable = |name: &str| std::env::var(name).ok();
    let name = model.or(settings.processor.as_deref()).unwrap_or("offline");
    let mut provider = models.provider(name, variable).map_err(unusable)?;
    let fast = variable("SKEIN_ACCELERATOR").filter(|name| !name.is_empty()).or(settings.accelerator);
    let accelerator = fast.map(|name| models.provider(&name, variable).map_err(unusable)).transpose()?;
    if let Some(file) = record {
        provider = Arc::new(Recorder::new(provider, file).map_err(unusable)?);
    }
    Ok((provider, Upkeep { accelerator, moderator: settings.moderator, ..Upkeep::default() }))
}

fn unusable(error: LlmError) -> Failure {
    Failure::usage(error.to_string(), "choose another model: --model, SKEIN_MODEL, SKEIN_ACCELERATOR or your profile")
}
