//! Describes what a call does while it runs: progress, touched files and to-do steps.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

/// The start and the end of the mark for text that is left out.
const MARK_START: &str = "[... ";
const MARK_END: &str = " left out]";

/// An action of a call that front ends may show.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// All required consent was given, and the call runs.
    Running,
    Progress(CallProgress),
    /// The call works on this location.
    #[serde(rename = "place")]
    Location {
        #[serde(serialize_with = "write_path")]
        path: PathBuf,
        /// Starts at 1.
        line: Option<u32>,
    },
    /// The call has changed a file. Of a large file, the texts are only the changed parts, with marks.
    Changed {
        #[serde(serialize_with = "write_path")]
        path: PathBuf,
        /// `None` if the file did not exist.
        before: Option<String>,
        after: String,
    },
    /// All steps of the work; replaces the previous list.
    #[serde(rename = "plan")]
    TodoList(Vec<TodoStep>),
    /// The call runs in this terminal of the editor.
    Terminal {
        id: String,
    },
}

/// Writes a path. JSON is UTF-8, so other bytes of a file name become U+FFFD: without them, the event of the call would be
/// lost.
fn write_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

impl Activity {
    /// Returns whether the activity is stored with the session instead of only shown.
    pub fn lasts(&self) -> bool {
        !matches!(self, Activity::Running | Activity::Progress(_))
    }

    /// Returns the line that stands for text that `Changed` leaves out.
    pub fn left_out_mark(size: &str) -> String {
        format!("{MARK_START}{size}{MARK_END}\n")
    }

    /// Returns true if a text of `Changed` may be only a part of the file.
    pub fn is_part(text: &str) -> bool {
        text.lines().any(|line| line.starts_with(MARK_START) && line.ends_with(MARK_END))
    }
}

/// The progress of a call.
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
    /// What to do
    #[schemars(length(min = 1))]
    pub text: String,
    /// How far it is
    pub status: StepStatus,
    /// Default: none
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

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn a_file_name_that_is_not_utf8_can_be_written() {
        let path = PathBuf::from(OsStr::from_bytes(b"/p/caf\xe9.txt"));
        let location = Activity::Location { path: path.clone(), line: None };
        let changed = Activity::Changed { path, before: None, after: String::new() };
        for activity in [location, changed] {
            let text = serde_json::to_string(&activity).unwrap();
            assert!(text.contains("/p/caf\u{fffd}.txt"), "{text}");
            assert!(serde_json::from_str::<Activity>(&text).is_ok(), "{text}");
        }
    }
}
