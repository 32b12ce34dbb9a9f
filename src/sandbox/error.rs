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
}

impl SandboxError {
    /// Returns the next step for the user.
    pub fn help(&self) -> String {
        let without = "or set `sandbox.enforce: preferred` in your config to use the layers that this machine has";
        match self {
            SandboxError::Refused { lines } => {
                let layer = lines.iter().find_map(|line| match &line.enforcement {
                    LineEnforcement::Missing { layer, .. } => Some(*layer),
                    LineEnforcement::By(_) | LineEnforcement::Nothing(_) => None,
                });
                layer.map_or_else(|| without.to_owned(), |layer| format!("{}; {without}", layer_help(layer)))
            }
            SandboxError::SetUp { layer, .. } => format!("{}; {without}", layer_help(*layer)),
            SandboxError::Expand(_) => "correct the `sandbox` section of the manifest or config".to_owned(),
            SandboxError::Process { .. } => "check the limits and the security policy Skein runs under".to_owned(),
            SandboxError::OtherSystem => format!("use Linux, {without}"),
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
