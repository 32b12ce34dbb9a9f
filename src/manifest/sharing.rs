//! Says who shares an instance of a service: sessions, and principals of a server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::model::{ServiceManifest, Transport};
use crate::sandbox::SandboxSettings;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServiceSharing {
    #[default]
    Shared,
    Session,
}

/// Which principals share an instance of a service: each has its own, or all share it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PrincipalSharing {
    #[default]
    Principal,
    All,
}

impl ServiceManifest {
    /// Returns how sessions share the service. A process whose sandbox depends on the session is not shared.
    pub fn sharing(&self) -> ServiceSharing {
        let is_per_root = self.sandbox.as_ref().is_some_and(SandboxSettings::is_per_root);
        let default = if is_per_root { ServiceSharing::Session } else { ServiceSharing::Shared };
        if self.calls_for_session() { ServiceSharing::Session } else { self.scope.unwrap_or(default) }
    }

    /// Returns true if all principals share the instances of the service.
    pub fn is_shared_by_all(&self) -> bool {
        self.shared_by == Some(PrincipalSharing::All)
    }

    /// Returns true if the program of the service calls other services. Such a call belongs to a session, so sessions
    /// cannot share the program. A built-in service passes the session on with each call.
    pub fn calls_for_session(&self) -> bool {
        !self.requires.is_empty() && !matches!(self.transport, Transport::Builtin(_))
    }
}
