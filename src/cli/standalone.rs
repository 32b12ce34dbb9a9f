//! Defines the agent that serves one service alone: its only mode has the whole service.

use crate::ids::{AgentName, ModeId, ModeSlug, ServiceName};
use crate::manifest::{Readiness, ServiceEntry};

/// Why a service cannot be served alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum StandaloneError {
    #[error("the service `{service}` belongs to the {owner} and cannot stand alone")]
    HasOwner { service: ServiceName, owner: String },
    #[error("the service `{service}` is planned and not part of this skein yet")]
    Planned { service: ServiceName },
}

/// Fails if the service works only with its owner, or does not exist yet.
pub(super) fn check(entry: &ServiceEntry) -> Result<(), StandaloneError> {
    let service = entry.manifest.name.clone();
    if let Some(owner) = &entry.manifest.owner {
        return Err(StandaloneError::HasOwner { service, owner: owner.to_string() });
    }
    if entry.manifest.status == Readiness::Planned {
        return Err(StandaloneError::Planned { service });
    }
    Ok(())
}

/// Returns the name and the text of the agent's manifest.
pub(super) fn manifest(service: &ServiceName) -> (&'static str, String) {
    let text = format!(
        "version: 1\nkind: agent\nname: standalone\ndescription: One service, alone.\n\
         metadata: {{dependencies: [{service}]}}\nruntime: {{acp: {{command: none}}}}\n\
         modes: [{{slug: service, description: All its tools., tool_groups: [{service}], dependencies: [{service}]}}]\n"
    );
    ("standalone.yaml", text)
}

/// Returns the agent's only mode.
pub(super) fn mode() -> ModeId {
    ModeId::new(AgentName::new("standalone"), ModeSlug::new("service"))
}
