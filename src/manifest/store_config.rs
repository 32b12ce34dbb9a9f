//! Defines the settings of the store in a user's config: which sessions are kept.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// Which sessions `skein serve` and `skein store prune` keep; all if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionConfig>,
}

/// Removes sessions by age and count. A session that is open stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetentionConfig {
    /// Removes sessions without a change for more days than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub days: Option<u32>,
    /// Keeps this many sessions of each principal, the ones that changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub sessions: Option<u32>,
}
