//! Defines how the program of a service reaches a service that it requires.

use std::any::Any;
use std::path::PathBuf;

use crate::ids::{RoleName, ServiceName};

/// The form of the address that a program gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressForm {
    /// A command line, whose process speaks MCP on its standard input and output.
    CommandLine,
    /// The URL of an MCP server on this machine.
    Url,
}

/// A required service, offered to one program as an MCP server. Dropping it withdraws the offer and ends the connection
/// that uses it.
pub struct RequirementOffer {
    /// The command line or the URL.
    pub address: String,
    /// The part of the offer that no log may show.
    pub secret: String,
    /// The program that the command line starts. `None` for a URL.
    pub program: Option<PathBuf>,
    /// The file with the token. `None` for a URL.
    pub token_file: Option<PathBuf>,
    /// The socket to which the command line connects. `None` for a URL. A sandbox must show these three.
    pub socket: Option<PathBuf>,
    /// Ends the offer when dropped.
    pub guard: Box<dyn Any + Send + Sync>,
}

/// Omits the address, which may contain the secret.
impl std::fmt::Debug for RequirementOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequirementOffer").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Why a program cannot reach a service that it requires.
#[derive(Debug, thiserror::Error)]
pub enum RequirementError {
    #[error("it requires `{service}`, and this program offers no service to others")]
    NoServer { service: ServiceName },
    #[error("it requires `{service}`, which cannot be offered: {source}")]
    Offer { service: ServiceName, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(
        "it requires other services, and its sandbox has no Unix sockets on this machine; see `skein doctor`, or run \
         skein with `--sandbox off`"
    )]
    NoSockets,
    #[error(
        "it requires other services, and its URL is not on this machine, so it cannot reach them; run it at \
         127.0.0.1, or remove `requires`"
    )]
    Remote,
}

/// Returns the environment variable that holds the address of a required service: `SKEIN_REQUIRES_` and the role in
/// upper case.
pub fn requirement_variable(role: &RoleName) -> String {
    format!("SKEIN_REQUIRES_{}", role.as_str().to_uppercase().replace('-', "_"))
}

/// Returns the HTTP header that holds the address of a required service: `Skein-Requires-` and the role.
pub fn requirement_header(role: &RoleName) -> String {
    format!("Skein-Requires-{}", role.as_str().replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_names_its_variable_and_its_header() {
        for (role, variable, header) in [
            ("calendar", "REQUIRES_CALENDAR", "Skein-Requires-calendar"),
            ("work-calendar", "REQUIRES_WORK_CALENDAR", "Skein-Requires-work-calendar"),
            ("work_calendar2", "REQUIRES_WORK_CALENDAR2", "Skein-Requires-work-calendar2"),
        ] {
            let role = RoleName::new(role);
            assert_eq!(requirement_variable(&role).strip_prefix("SKEIN_"), Some(variable));
            assert_eq!(requirement_header(&role), header);
        }
    }
}
