//! `skein sandbox --enter`: runs a command in a sandbox that another Skein process has started.

use std::process::ExitCode;

use super::{CANNOT_RUN, CANNOT_SET_UP, NOT_FOUND, SandboxArgs, SandboxFailure, exit_code};
use crate::cli::output::{CommandError, CommandOutput};
use crate::sandbox::{EntryEnd, enter_sandbox};

impl SandboxArgs {
    /// Enters a sandbox and runs the command. Returns `None` if the arguments start a new sandbox.
    pub(in super::super) fn enter(&self) -> Option<ExitCode> {
        let socket = self.enter.as_ref()?;
        let mut output = CommandOutput::default();
        let code = match self.run_inside(socket) {
            Ok(code) => code,
            Err(failure) => {
                failure.error.print(&mut output);
                failure.code
            }
        };
        Some(ExitCode::from(output.finish(code)))
    }

    fn run_inside(&self, socket: &std::path::Path) -> Result<u8, SandboxFailure> {
        let Some((program, args)) = self.command.split_first() else {
            return Err(CommandError::usage("no command to run", "write it after `--`").into());
        };
        match enter_sandbox(socket, program, args) {
            Ok(EntryEnd::Status(status)) => Ok(exit_code(status)),
            Ok(EntryEnd::NoProgram(error)) => {
                let is_missing = error.kind() == std::io::ErrorKind::NotFound;
                let code = if is_missing { NOT_FOUND } else { CANNOT_RUN };
                let problem = format!("cannot run `{}` in the sandbox: {error}", program.to_string_lossy());
                Err(SandboxFailure::new(code, problem, "check that the program exists and may be run"))
            }
            Err(failure) => {
                let help = "Skein runs the command without the editor's terminal";
                Err(SandboxFailure::new(CANNOT_SET_UP, format!("the sandbox was not entered: {failure}"), help))
            }
        }
    }
}
