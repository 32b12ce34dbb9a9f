//! Defines how Skein reaches a user who does not answer a permission request.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::ManifestDuration;

/// How long a request waits before the user is notified, if the config does not say.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// How Skein notifies a user who does not answer a permission request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NotificationConfig {
    /// How long a request waits first; 30s if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<ManifestDuration>,
    /// Whether the terminal rings; true if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bell: Option<bool>,
    /// Whether the desktop shows a notification; true if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desktop: Option<bool>,
    /// A URL that receives a POST with JSON; none if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^https?://.+$"))]
    pub webhook: Option<String>,
    /// The address of `skein serve`. The webhook then receives a link to the session in the console.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^https?://.+$"))]
    pub console: Option<String>,
}

/// The notifications that apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotificationSettings {
    pub after: Duration,
    pub bell: bool,
    pub desktop: bool,
    pub webhook: Option<String>,
    pub console: Option<String>,
}

impl Default for NotificationSettings {
    fn default() -> Self {
        Self::of(None)
    }
}

impl NotificationSettings {
    /// Completes the user's config with the defaults.
    pub fn of(config: Option<&NotificationConfig>) -> Self {
        let config = config.cloned().unwrap_or_default();
        Self {
            after: config.after.map_or(DEFAULT_WAIT, ManifestDuration::duration),
            bell: config.bell.unwrap_or(true),
            desktop: config.desktop.unwrap_or(true),
            webhook: config.webhook,
            console: config.console,
        }
    }

    /// Returns the address of a session in the console. `None` if the config names no console.
    pub fn console_link(&self, session: &str) -> Option<String> {
        let console = self.console.as_deref()?.trim_end_matches('/');
        Some(format!("{console}/console/sessions/{session}"))
    }
}
