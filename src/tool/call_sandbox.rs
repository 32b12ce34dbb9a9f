//! Defines the sandbox of the processes that a call starts.

use std::sync::Arc;

use crate::network::RemoteHost;
use crate::sandbox::{SandboxGate, SandboxProfile};

/// What a sandbox shows of the session's folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxView {
    /// What the profile shows.
    Profile,
    /// The session's roots, read-only, independent of the profile.
    Roots,
}

/// The limits of the processes that a call starts. The broker sets it from the mode's sandbox profile.
#[derive(Clone)]
pub struct CallSandbox {
    pub profile: Arc<SandboxProfile>,
    pub view: SandboxView,
    /// Decides about hosts that the profile leaves open, credentials of git and ports.
    pub gate: Arc<dyn SandboxGate>,
    /// The hosts in a command line that the user consented to. They need no second question.
    pub consented_hosts: Vec<RemoteHost>,
}

impl std::fmt::Debug for CallSandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallSandbox").field("profile", &self.profile).finish_non_exhaustive()
    }
}
