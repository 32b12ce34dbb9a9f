//! What a tool gives back: an answer, or a refusal that tells the model what to do next.
//!
//! Invariant: nothing here is a JSON-RPC error; those are for requests that reach no tool.

use rmcp::model::{CallToolResult, ContentBlock, IntoContents};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

pub(super) use crate::tool::truncate;

/// Why a call changed nothing, in words for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolRefusal(pub(super) String);

pub(super) type ToolReply = Result<CallToolResult, ToolRefusal>;

impl ToolRefusal {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// What was attempted on which thing, and the system's own word on it.
    pub(super) fn io(attempt: &str, subject: &str, error: &std::io::Error) -> Self {
        let advice = match error.kind() {
            std::io::ErrorKind::NotFound => "; look with `list_dir` or `find_files`",
            std::io::ErrorKind::PermissionDenied => "; tell the user, or work elsewhere",
            _ => "",
        };
        Self(format!("could not {attempt} `{subject}`: {error}{advice}"))
    }
}

/// The result is marked as an error, and this is what it says.
impl IntoContents for ToolRefusal {
    fn into_contents(self) -> Vec<ContentBlock> {
        vec![ContentBlock::text(self.0)]
    }
}

pub(super) fn text(text: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

/// Text for the model, and the same as data for programs.
pub(super) fn with_data(text: impl Into<String>, data: Value) -> CallToolResult {
    let mut result = self::text(text);
    result.structured_content = Some(data);
    result
}

/// As [`structured`], for a tool that ran and did not succeed.
pub(super) fn error_with_data(text: impl Into<String>, data: Value) -> CallToolResult {
    let mut result = with_data(text, data);
    result.is_error = Some(true);
    result
}

/// A line that cannot stand in the text: the text would have to hold a part of its own hash. Whatever a text says, what
/// is behind this line is not part of it.
pub(super) fn end_of(text: &str) -> String {
    let hash: String = Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("[end {hash}]")
}

/// `1 line`, `2 lines`.
pub(super) fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// A size in bytes for people.
pub(super) fn size(bytes: u64) -> String {
    const KILO: u64 = 1024;
    if bytes < KILO {
        format!("{bytes} B")
    } else if bytes < KILO * KILO {
        format!("{}.{} kB", bytes / KILO, bytes % KILO * 10 / KILO)
    } else {
        let mega = bytes / KILO;
        format!("{}.{} MB", mega / KILO, mega % KILO * 10 / KILO)
    }
}
