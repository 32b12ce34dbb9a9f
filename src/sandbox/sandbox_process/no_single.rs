//! The sandbox for a single command on systems other than Linux: there is none.

use std::convert::Infallible;
use std::process::ExitStatus;

use super::command::SandboxCommand;
use crate::sandbox::error::{SandboxError, SpawnError};
use crate::sandbox::expand::SandboxContext;
use crate::sandbox::layers::LayerRestriction;
use crate::sandbox::profile::SandboxProfile;

/// A sandbox that cannot exist here.
#[derive(Debug)]
pub struct NoSingleSandbox(Infallible);

impl NoSingleSandbox {
    /// Returns `None`: only a sandbox process can say which layers this machine lacks.
    pub fn start<E: From<SandboxError>>(
        _profile: &SandboxProfile,
        _restriction: &LayerRestriction,
        _context: impl FnOnce() -> Result<SandboxContext, E>,
    ) -> Result<Option<Self>, E> {
        Ok(None)
    }

    pub fn notices(&self) -> &[String] {
        match self.0 {}
    }

    pub fn run(
        self,
        _command: &SandboxCommand,
        _on_pause: Option<&dyn Fn()>,
    ) -> Result<Option<ExitStatus>, SpawnError> {
        match self.0 {}
    }
}
