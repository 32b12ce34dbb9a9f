//! Describes how a command ended, for commands in a process group, in a terminal and in the background.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use rmcp::model::CallToolResult;
use serde_json::json;

use super::output::Capture;
use super::sandbox_remarks::SandboxRemarks;
use crate::process::MAX_FILE_BYTES;
use crate::services::builtin::answer::{error_with_data, with_data};

/// Seconds that a command may run in the foreground.
pub(in crate::services::builtin) const MAX_TIMEOUT: u64 = 600;
/// The signal that ends a program when a file that it writes exceeds the size limit.
const SIGXFSZ: i32 = rustix::process::Signal::XFSZ.as_raw();

/// Variables that tell programs that no user is at the terminal.
pub(super) const SILENCED: [(&str, &str); 8] = [
    ("TERM", "dumb"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("MANPAGER", "cat"),
    ("NO_COLOR", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_EDITOR", "true"),
    ("DEBIAN_FRONTEND", "noninteractive"),
];

/// The result of a command, in a process group or in a terminal.
pub(super) struct CommandReport {
    pub(super) verdict: String,
    pub(super) exit_code: Option<i32>,
    pub(super) timed_out: bool,
    /// Standard output and standard error.
    pub(super) streams: [String; 2],
    /// What the sandbox refused and found, one sentence each.
    pub(super) remarks: SandboxRemarks,
}

impl CommandReport {
    pub(super) fn report(self, output: &Capture) -> CallToolResult {
        let shown = output.render();
        let [stdout, stderr] = self.streams;
        let mut data = json!({
            "stdout": stdout,
            "stderr": stderr,
            "exit_code": self.exit_code,
            "timed_out": self.timed_out,
            "truncated": shown.truncated,
            "log_path": output.log_path().filter(|_| shown.truncated).map(Path::to_string_lossy),
        });
        let text = self.remarks.add_to(with_verdict(shown.text, &self.verdict), &mut data);
        if self.exit_code == Some(0) { with_data(text, data) } else { error_with_data(text, data) }
    }
}

/// `with_what` names what else was ended, and `for_longer` what to use instead.
pub(super) fn timeout_text(limit: Duration, with_what: &str, for_longer: &str) -> String {
    format!(
        "timed out after {} s and was ended{with_what}; give a longer `timeout` (up to {MAX_TIMEOUT}), or use {for_longer}",
        limit.as_secs()
    )
}

/// Returns the output followed by the verdict in brackets.
pub(super) fn with_verdict(mut output: String, verdict: &str) -> String {
    if output.is_empty() {
        output.push_str("(no output)");
    }
    if !output.ends_with('\n') {
        output.push('\n');
    }
    output + "[" + verdict + "]"
}

pub(super) fn status_text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(SIGXFSZ)) => format!("ended because a file would be larger than {} GiB", MAX_FILE_BYTES >> 30),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// Returns the exit code; for a signal 128 plus its number, as shells do.
pub(super) fn code(status: ExitStatus) -> Option<i32> {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}
