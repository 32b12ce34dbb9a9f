//! Errors of sandboxes.

use std::io;

use super::expand::ExpandError;
use super::explain::{ExplainedLine, LineEnforcement, layer_help};
use super::layers::Layer;

/// Reasons why a sandbox does not start.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The machine cannot enforce the profile, and the profile is required.
    #[error("the sandbox cannot enforce {}", unenforced(.lines))]
    Refused { lines: Vec<ExplainedLine> },
    #[error(transparent)]
    Expand(#[from] ExpandError),
    #[error("the sandbox process cannot {step}: {error}")]
    SetUp { layer: Layer, step: String, error: String },
    #[error("the sandbox process does not start")]
    Process {
        #[source]
        source: io::Error,
    },
    #[error("sandboxes need Linux")]
    OtherSystem,
    /// In a remote session, where no config can weaken the sandbox.
    #[error(transparent)]
    Remote(Box<SandboxError>),
}

impl SandboxError {
    /// Returns the next step for the user.
    pub fn help(&self) -> String {
        self.help_with("; or set `sandbox.enforce: preferred` in your config to use the layers that this machine has")
    }

    /// Returns the next step. `otherwise` is the way that weakens the sandbox, if there is one.
    fn help_with(&self, otherwise: &str) -> String {
        match self {
            SandboxError::Remote(error) => error.help_with(""),
            SandboxError::Refused { lines } => {
                let layer = lines.iter().find_map(|line| match &line.enforcement {
                    LineEnforcement::Missing { layer, .. } => Some(*layer),
                    LineEnforcement::By(_) | LineEnforcement::Nothing(_) => None,
                });
                layer.map_or_else(
                    || format!("see `skein doctor`{otherwise}"),
                    |layer| format!("{}{otherwise}", layer_help(layer)),
                )
            }
            SandboxError::SetUp { layer, .. } => format!("{}{otherwise}", layer_help(*layer)),
            SandboxError::Expand(_) => "correct the `sandbox` section of the manifest or config".to_owned(),
            SandboxError::Process { .. } => "check the limits and the security policy Skein runs under".to_owned(),
            SandboxError::OtherSystem => format!("use Linux{otherwise}"),
        }
    }
}

fn unenforced(lines: &[ExplainedLine]) -> String {
    let lines = lines.iter().filter_map(|line| match &line.enforcement {
        LineEnforcement::Missing { layer, reason } => {
            Some(format!("`{}: {}`: no {layer}: {reason}", line.field, line.value))
        }
        LineEnforcement::By(_) | LineEnforcement::Nothing(_) => None,
    });
    lines.collect::<Vec<_>>().join("; ")
}

/// Reasons why a command does not start in a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("program not found: `{program}`")]
    NotFound { program: String },
    #[error("cannot run `{program}` in the sandbox: {error}")]
    Program { program: String, errno: Option<i32>, error: String },
    #[error("the sandbox cannot use the working folder `{folder}`: {error}")]
    WorkingFolder { folder: String, error: String },
    #[error("the sandbox process has ended")]
    Ended {
        #[source]
        source: Option<io::Error>,
    },
}

impl From<SpawnError> for io::Error {
    fn from(error: SpawnError) -> Self {
        let kind = match &error {
            SpawnError::NotFound { .. } => io::ErrorKind::NotFound,
            SpawnError::Program { errno: Some(errno), .. } => io::Error::from_raw_os_error(*errno).kind(),
            SpawnError::Program { errno: None, .. } | SpawnError::WorkingFolder { .. } => io::ErrorKind::Other,
            SpawnError::Ended { .. } => io::ErrorKind::BrokenPipe,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_session_gets_no_help_that_its_server_ignores() {
        let refused = || SandboxError::SetUp {
            layer: Layer::UserNamespace,
            step: "make a user namespace".to_owned(),
            error: "no space left".to_owned(),
        };
        let (local, remote) = (refused(), SandboxError::Remote(Box::new(refused())));
        assert!(local.help().contains("enforce: preferred"), "{}", local.help());
        assert!(!remote.help().contains("enforce") && local.help().starts_with(&remote.help()), "{}", remote.help());
        assert_eq!(remote.to_string(), local.to_string());
    }
}
