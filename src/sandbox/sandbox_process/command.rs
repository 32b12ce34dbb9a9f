//! A command of a sandbox, as Skein describes it to the sandbox process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::sandbox::error::SpawnError;
use crate::sandbox::os_text::OsText;
use crate::sandbox::request_table::StartFailure;
use crate::sandbox::wire::{CommandSpec, StartPart, TerminalUse};

/// A command to run in a sandbox.
#[derive(Debug)]
pub struct SandboxCommand {
    pub program: OsString,
    pub args: Vec<OsString>,
    /// All variables; the sandbox adds those of its proxy and caches.
    pub env: BTreeMap<OsString, OsString>,
    pub cwd: PathBuf,
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    pub terminal: TerminalUse,
}

impl SandboxCommand {
    /// Returns what the sandbox process needs to know. `env` has all variables.
    pub(super) fn spec(&self, env: &BTreeMap<OsString, OsString>) -> CommandSpec {
        CommandSpec {
            program: OsText::from(&self.program),
            args: self.args.iter().map(OsText::from).collect(),
            env: env.iter().map(|(name, value)| (OsText::from(name), OsText::from(value))).collect(),
            cwd: OsText::from(&self.cwd),
            terminal: self.terminal,
        }
    }
}

/// Adds the variables of a sandbox to those of a command.
pub(super) fn add_variables(of_sandbox: &BTreeMap<OsString, Option<OsString>>, env: &mut BTreeMap<OsString, OsString>) {
    for (name, value) in of_sandbox {
        match value {
            // The caller may name the proxy itself, with the command's id.
            Some(value) => _ = env.entry(name.clone()).or_insert_with(|| value.clone()),
            None => drop(env.remove(name)),
        }
    }
}

pub(super) fn spawn_error(failure: StartFailure, command: &SandboxCommand) -> SpawnError {
    let StartFailure { part, errno, error } = failure;
    let program = command.program.to_string_lossy().into_owned();
    match part {
        StartPart::WorkingFolder => SpawnError::WorkingFolder { folder: command.cwd.display().to_string(), error },
        StartPart::Program if errno == Some(libc::ENOENT) => SpawnError::NotFound { program },
        StartPart::Program => SpawnError::Program { program, errno, error },
    }
}
