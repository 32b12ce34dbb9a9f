//! Leaves out tools that a session cannot have because its files are at its client.
//!
//! Invariant: no tool of such a session falls back to the files of this machine. A tool without a place to work is
//! absent.

use super::super::files::RelativeBase;
use super::exclusion::ExclusionError;
use crate::manifest::{ServiceEntry, Transport};
use crate::tool::SessionContext;
use crate::tool::editor::EditorCapabilities;

/// The built-in service whose tools work on files and start commands.
const DEVELOPER: &str = "developer";

/// Returns whether the paths of the service are paths at the client.
fn works_at_client(entry: &ServiceEntry, session: &SessionContext) -> bool {
    let is_developer = matches!(&entry.manifest.transport, Transport::Builtin(name) if name.as_str() == DEVELOPER);
    is_developer && session.client_folders().is_some()
}

/// Returns the folder against which the service resolves relative paths.
pub(super) fn relative_base(entry: &ServiceEntry, session: &SessionContext) -> RelativeBase {
    match entry.manifest.transport {
        Transport::Builtin(_) if works_at_client(entry, session) => RelativeBase::AtClient,
        Transport::Builtin(_) => RelativeBase::ToSession,
        Transport::Stdio(_) | Transport::Http(_) => RelativeBase::Elsewhere,
    }
}

/// Returns what the client lends to a session whose files it has. Nothing if the files are here.
pub(super) fn client_capabilities(session: &SessionContext) -> EditorCapabilities {
    let lender = session.editor.as_ref().filter(|_| session.client_folders().is_some());
    lender.map(|editor| editor.abilities()).unwrap_or_default()
}

/// Fails if the files of the session are at the client, and the client cannot do what the tool needs.
pub(super) fn check(entry: &ServiceEntry, tool: &str, session: &SessionContext) -> Result<(), ExclusionError> {
    if !works_at_client(entry, session) {
        return Ok(());
    }
    let lent = client_capabilities(session);
    let (is_lent, missing) = match tool {
        "update_plan" => return Ok(()),
        "read_file" => (lent.read, ExclusionError::NoClientFiles),
        "write_file" | "edit_file" => (lent.read && lent.write, ExclusionError::NoClientFiles),
        "shell" | "shell_output" | "shell_stop" => (lent.terminal && lent.sandbox, ExclusionError::NoClientSandbox),
        _ => (false, ExclusionError::AtClient),
    };
    if is_lent { Ok(()) } else { Err(missing) }
}
