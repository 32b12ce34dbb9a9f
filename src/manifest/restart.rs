//! Defines how often a service or an external agent is restarted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::ManifestDuration;

/// How often a crashed service is restarted within a period before its circuit opens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Restart {
    #[schemars(range(max = 100))]
    pub max: u32,
    pub within: ManifestDuration,
}

impl Default for Restart {
    fn default() -> Self {
        Self { max: 3, within: ManifestDuration::seconds(60) }
    }
}
