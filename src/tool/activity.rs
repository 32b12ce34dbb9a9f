//! What a call tells while it runs: how far it is, which files it touches, what it plans.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something a call does that others may want to see.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// Whoever had to consent has: it runs.
    Running,
    Progress(CallProgress),
    /// It works on this place.
    #[serde(rename = "place")]
    Location {
        path: PathBuf,
        /// From 1.
        line: Option<u32>,
    },
    /// It has changed a file.
    Changed {
        path: PathBuf,
        /// `None` if there was no such file.
        before: Option<String>,
        after: String,
    },
    /// The steps of the work, all of them; they replace those told before.
    #[serde(rename = "plan")]
    TodoList(Vec<TodoStep>),
    /// It runs in this terminal of the editor.
    Terminal {
        id: String,
    },
}

impl Activity {
    /// True if it belongs to the session's record, and not only to the moment.
    pub fn lasts(&self) -> bool {
        !matches!(self, Activity::Running | Activity::Progress(_))
    }
}

/// How far a call has come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallProgress {
    pub progress: f64,
    pub total: Option<f64>,
    pub message: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct TodoStep {
    #[schemars(length(min = 1))]
    pub text: String,
    pub status: StepStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<StepPriority>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum StepStatus {
    Pending,
    InProgress,
    Completed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum StepPriority {
    High,
    Medium,
    Low,
}
