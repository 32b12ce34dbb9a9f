//! Says who shares an instance of a service: sessions, and principals of a server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
