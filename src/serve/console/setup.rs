//! The port through which administrators read and change the set-up of the server. `cli`, which knows the files,
//! implements it.

use std::path::Path;
use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::Value;

use super::super::ServerState;
use super::layout::ConsoleProblem;
use super::logins::Login;
use crate::diagnostic::{Diagnostic, Severity};
use crate::manifest::{DocumentKind, Layer};

/// Maximum length of a path below the user's folder.
const MAX_PATH: usize = 200;
/// The configs of a user.
const CONFIG_FILES: [&str; 3] = ["config.yaml", "config.yml", "config.json"];
/// The endings of manifests, and of the prompts and examples that they name.
const FILE_ENDINGS: [&str; 5] = ["yaml", "yml", "json", "md", "txt"];

/// Reads and changes the set-up of the server. All functions block.
pub trait ServerSetup: Send + Sync {
    /// Lists the manifests of all layers, with the findings of `check`. Fails if the settings cannot be read.
    fn list_manifests(&self) -> Result<ManifestListing, ServerSetupError>;

    /// Reads a file of the user's folder. `None` if it does not exist. Fails if it cannot be read.
    fn read_manifest(&self, path: &ManifestPath) -> Result<Option<StoredManifest>, ServerSetupError>;

    /// Checks all manifests as if the file had this text. Fails if the settings cannot be read.
    fn check_manifest(&self, path: &ManifestPath, text: &str) -> Result<ManifestCheck, ServerSetupError>;

    /// Writes a file of the user's folder. Writes nothing if `check` rejects it, or if the file is no longer the
    /// `version` that was read; `None` means that it did not exist. Fails if it cannot be written.
    fn save_manifest(
        &self,
        path: &ManifestPath,
        text: &str,
        version: Option<&str>,
    ) -> Result<SaveOutcome, ServerSetupError>;

    /// Returns the findings of `doctor`. Fails if this program cannot be started again.
    fn examine(&self) -> Result<Vec<SetupFinding>, ServerSetupError>;

    /// Returns the last errors and warnings of the log, the newest first. Fails if the log cannot be read.
    fn recent_errors(&self) -> Result<Vec<LogEntry>, ServerSetupError>;

    /// Returns the last lines that the processes of a service wrote, the oldest first. Fails if the log cannot be read.
    fn service_log(&self, service: &str) -> Result<Vec<LogEntry>, ServerSetupError>;
}

/// Why the set-up cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum ServerSetupError {
    #[error("the file `{file}` cannot be used: {source}")]
    File {
        file: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the file `{file}` is not UTF-8 text")]
    NotText { file: String },
    /// The text says what is wrong and what to do.
    #[error("{0}")]
    Settings(String),
}

/// The path of a file below the user's folder: a config, or a file below `agents` or `services`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManifestPath(String);

impl ManifestPath {
    /// Reads a path. `None` if it leads elsewhere.
    pub fn parse(text: &str) -> Option<Self> {
        if CONFIG_FILES.contains(&text) {
            return Some(Self(text.to_owned()));
        }
        let is_plain = |part: &str| {
            !part.is_empty() && !part.starts_with('.') && !part.chars().any(|c| c.is_control() || c == '\\')
        };
        let (folder, rest) = text.split_once('/')?;
        let ending = rest.rsplit_once('.').map(|(_, ending)| ending)?;
        let is_known = ["agents", "services"].contains(&folder) && FILE_ENDINGS.contains(&ending);
        (text.len() <= MAX_PATH && is_known && rest.split('/').all(is_plain)).then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// Returns the kind of the document, which its own field or its folder states. `None` for a prompt.
    pub(super) fn kind(&self, document: &Value) -> Option<DocumentKind> {
        if CONFIG_FILES.contains(&self.as_str()) {
            return Some(DocumentKind::Config);
        }
        if [".md", ".txt"].iter().any(|ending| self.0.ends_with(ending)) {
            return None;
        }
        match document["kind"].as_str() {
            Some("agent") => Some(DocumentKind::Agent),
            Some("service") => Some(DocumentKind::Service),
            _ if self.0.starts_with("agents/") => Some(DocumentKind::Agent),
            _ => Some(DocumentKind::Service),
        }
    }

    /// Returns whether the file is JSON, which has no comments to keep and no block mappings.
    pub(super) fn is_json(&self) -> bool {
        self.0.ends_with(".json")
    }

    /// Returns the text of a new file.
    pub(super) fn template(&self) -> String {
        let name = self.as_path().file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        match self.kind(&Value::Null) {
            Some(DocumentKind::Agent) => format!(
                "version: 1\nkind: agent\nname: {name}\ndescription: What the agent is for.\nmodes:\n  - slug: main\n    \
                 description: What the mode does.\n    prompt: {name}.md\n    tool_groups: []\n"
            ),
            Some(DocumentKind::Service) => format!(
                "version: 1\nkind: service\nname: {name}\ndescription: What the service offers.\ntransport:\n  stdio:\n    \
                 command: the-program\n"
            ),
            Some(_) => "version: 1\n".to_owned(),
            None => String::new(),
        }
    }
}

/// A file of the user's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredManifest {
    pub text: String,
    /// Changes with each change of the file.
    pub version: String,
}

/// All manifests.
#[derive(Debug)]
pub struct ManifestListing {
    /// The user's folder.
    pub folder: String,
    /// The files of that folder, with their names in diagnostics.
    pub files: Vec<(ManifestPath, String)>,
    /// The agents and services of other layers.
    pub others: Vec<OtherManifest>,
    pub diagnostics: Vec<Diagnostic>,
}

/// An agent or a service that is not in the user's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherManifest {
    pub name: String,
    pub kind: &'static str,
    pub layer: Layer,
    pub file: String,
}

/// The result of `check`.
#[derive(Debug, Clone)]
pub struct ManifestCheck {
    /// The name of the checked file in the diagnostics.
    pub file: String,
    pub diagnostics: Vec<Diagnostic>,
    /// Whether the file can be saved: it has no error, and causes none elsewhere.
    pub is_accepted: bool,
}

/// What became of a file that was to be saved.
#[derive(Debug)]
pub enum SaveOutcome {
    Saved,
    /// `check` rejects it.
    Rejected(ManifestCheck),
    /// The file has changed since it was read.
    Changed,
}

/// A finding of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupFinding {
    pub severity: Severity,
    pub what: String,
    pub place: String,
    pub fix: String,
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// In ISO 8601.
    pub time: String,
    /// The level. Empty for output of a service.
    pub level: String,
    pub text: String,
}

/// Fails if the login has no token with `--admin`.
pub(super) fn require_admin(login: &Login, what: &str) -> Result<(), ConsoleProblem> {
    match login.token.grant.limits().admin {
        true => Ok(()),
        false => Err(ConsoleProblem::new(StatusCode::FORBIDDEN, format!("{what} need a token with --admin."))),
    }
}

/// Uses the set-up outside the async runtime.
pub(super) async fn use_setup<T: Send + 'static>(
    state: &ServerState,
    work: impl FnOnce(&dyn ServerSetup) -> Result<T, ServerSetupError> + Send + 'static,
) -> Result<T, ConsoleProblem> {
    let setup = Arc::clone(&state.parts.setup);
    match crate::task::run_blocking(move || work(&*setup)).await {
        Ok(done) => done.map_err(ConsoleProblem::from),
        Err(error) => {
            tracing::error!(%error, "the set-up cannot be read");
            Err(ConsoleProblem::new(StatusCode::INTERNAL_SERVER_ERROR, "The set-up cannot be read at the moment."))
        }
    }
}

impl From<ServerSetupError> for ConsoleProblem {
    fn from(error: ServerSetupError) -> Self {
        tracing::warn!(%error, "the set-up cannot be used");
        Self::new(StatusCode::CONFLICT, format!("The set-up cannot be used: {error}."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_in_the_folders_of_manifests() {
        for path in ["config.yaml", "agents/a.yaml", "agents/a/prompts/main.md", "services/my web.yml"] {
            assert_eq!(ManifestPath::parse(path).unwrap().as_str(), path);
        }
        let elsewhere =
            ["", "agents", "agents/", "agents/..", "agents/../config.yaml", "agents//a.yaml", "/agents/a.yaml"];
        let others =
            ["skills/a.md", "agents/.hidden.yaml", "agents/a.sh", "services/a\n.yaml", "x/config.yaml", "config.txt"];
        for path in elsewhere.into_iter().chain(others) {
            assert_eq!(ManifestPath::parse(path), None, "{path:?}");
        }
        assert_eq!(ManifestPath::parse(&format!("agents/{}.yaml", "a".repeat(MAX_PATH))), None);
    }

    #[test]
    fn a_document_states_its_kind_or_its_folder_does() {
        let kind = |path: &str, document: Value| ManifestPath::parse(path).unwrap().kind(&document);
        assert_eq!(kind("agents/a.yaml", Value::Null), Some(DocumentKind::Agent));
        assert_eq!(kind("agents/a.yaml", serde_json::json!({"kind": "service"})), Some(DocumentKind::Service));
        assert_eq!(kind("config.yaml", Value::Null), Some(DocumentKind::Config));
        assert_eq!(kind("agents/a.md", Value::Null), None);
    }
}
