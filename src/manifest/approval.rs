//! Defines the approval levels, which decide when a call needs the user's consent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `auto` runs every call, `ask` asks unless a call is read-only, `smart` asks unless a judge finds it read-only,
/// `read-only` refuses all other calls, `deny` refuses all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalLevel {
    Auto,
    Ask,
    Smart,
    ReadOnly,
    Deny,
}

impl ApprovalLevel {
    pub const ALL: [Self; 5] = [Self::Auto, Self::Ask, Self::Smart, Self::ReadOnly, Self::Deny];

    /// Returns the name used in files and flags.
    pub fn as_str(self) -> &'static str {
        match self {
            ApprovalLevel::Auto => "auto",
            ApprovalLevel::Ask => "ask",
            ApprovalLevel::Smart => "smart",
            ApprovalLevel::ReadOnly => "read-only",
            ApprovalLevel::Deny => "deny",
        }
    }

    /// Returns the stricter of two levels.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        if self.strictness() >= other.strictness() { self } else { other }
    }

    /// Returns the level for calls of a client that asks its own user: nothing asks twice.
    #[must_use]
    pub fn for_asking_client(self) -> Self {
        match self {
            Self::Auto | Self::Ask | Self::Smart => Self::Auto,
            Self::ReadOnly | Self::Deny => self,
        }
    }

    /// Orders the levels from the loosest to the strictest.
    fn strictness(self) -> u8 {
        match self {
            Self::Auto => 0,
            Self::Smart => 1,
            Self::Ask => 2,
            Self::ReadOnly => 3,
            Self::Deny => 4,
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|approval| approval.as_str() == name)
    }
}
