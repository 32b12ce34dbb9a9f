//! When a call needs a person's consent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `auto` runs every call, `ask` asks for what is not read-only, `smart` asks unless a judge finds the call
/// read-only, `read-only` refuses the rest, `deny` refuses all.
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

    /// As it is written in files and flags.
    pub fn as_str(self) -> &'static str {
        match self {
            ApprovalLevel::Auto => "auto",
            ApprovalLevel::Ask => "ask",
            ApprovalLevel::Smart => "smart",
            ApprovalLevel::ReadOnly => "read-only",
            ApprovalLevel::Deny => "deny",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|approval| approval.as_str() == name)
    }
}
