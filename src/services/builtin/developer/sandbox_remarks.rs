//! What the result of a command reports about its sandbox.

use serde_json::{Value, json};

use super::files::Files;
use crate::sandbox::PathRefusal;
use crate::services::sandboxes::CommandSandbox;
use crate::tool::CallContext;

/// What a result reports about the sandbox of its command, one sentence each.
#[derive(Debug, Default)]
pub(super) struct SandboxRemarks {
    pub(super) refused: Vec<String>,
    /// About protected paths.
    pub(super) protected: Vec<String>,
}

/// Whether a command chose to change nothing. It decides what would allow a refused path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandChoice {
    OfMode,
    ReadOnly,
}

impl SandboxRemarks {
    /// Describes what the sandbox of a command that has ended refused, and checks which protected paths are new.
    pub(super) async fn of_command(
        sandbox: &CommandSandbox,
        errors: &str,
        choice: CommandChoice,
        call: &CallContext,
        files: &Files,
    ) -> Self {
        let hosts = sandbox.host_refusals();
        let mut refused: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        refused.extend(path_sentences(sandbox, errors, choice, call));
        let protected = sandbox.check_protected(call, |path| files.lock().has_created(path)).await;
        Self { refused, protected }
    }

    /// Adds the remarks to a result: one line each, and as data.
    pub(super) fn add_to(&self, text: String, data: &mut Value) -> String {
        for (name, sentences) in [("refused", &self.refused), ("protected", &self.protected)] {
            if !sentences.is_empty() {
                data[name] = json!(sentences);
            }
        }
        self.refused.iter().chain(&self.protected).fold(text, |text, sentence| format!("{text}\n[{sentence}]"))
    }
}

/// Returns a sentence for each path in the error output that the sandbox probably refused.
pub(super) fn path_sentences(
    sandbox: &CommandSandbox,
    errors: &str,
    choice: CommandChoice,
    call: &CallContext,
) -> Vec<String> {
    let sentence = |refusal: &PathRefusal| match choice {
        CommandChoice::OfMode => refusal.to_string(),
        CommandChoice::ReadOnly => {
            format!("probably refused by the sandbox: {}; allowed without `read_only`", refusal.path)
        }
    };
    sandbox.path_refusals(errors, &call.session.cwd).iter().map(sentence).collect()
}
