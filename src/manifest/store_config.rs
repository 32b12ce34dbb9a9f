//! Defines the settings of the store in a user's config: which sessions are kept, and how several servers share it.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::ManifestDuration;

/// When a server without heartbeats counts as gone, if the config does not say.
const DEFAULT_EXPIRY: Duration = Duration::from_secs(15);

/// Settings of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// Which sessions `skein serve` and `skein store prune` keep; all if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionConfig>,
    /// The address of PostgreSQL itself, if `--store` leads through a pool of connections such as PgBouncer. Skein
    /// listens there for notifications.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^postgres(ql)?://.+$"))]
    pub listen_url: Option<String>,
    /// How long after its last heartbeat a server counts as gone; 15s if left out. All servers must have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry: Option<ManifestDuration>,
}

impl StoreConfig {
    /// Returns when a server without heartbeats counts as gone.
    pub fn expiry(&self) -> Duration {
        self.expiry.map_or(DEFAULT_EXPIRY, ManifestDuration::duration)
    }
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
