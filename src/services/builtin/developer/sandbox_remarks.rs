//! What the result of a command reports about its sandbox.

use serde_json::{Value, json};

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
    ) -> Self {
        let hosts = sandbox.host_refusals();
        let mut refused: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        refused.extend(error_sentences(sandbox, errors, choice, call));
        let protected = sandbox.check_protected(call).await;
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

/// Returns what the error output of a command says about its sandbox: a sentence for each path that was probably
/// refused, and one about the config of git.
pub(super) fn error_sentences(
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
    let paths = sandbox.path_refusals(errors, &call.session.cwd);
    paths.iter().map(sentence).chain(explain_git_config(errors)).collect()
}

/// Returns an explanation if git inside a sandbox could not change its config, which is protected.
fn explain_git_config(errors: &str) -> Option<String> {
    let failed = ["could not write config file", "could not lock config file"];
    failed.iter().any(|text| errors.contains(text)).then(|| {
        "the sandbox protects the config of git, so settings such as the tracking branch were not saved; the rest of the \
         command may have worked; saving them needs `unsandboxed`"
            .to_owned()
    })
}
