//! Holds the offers of required services to one process or connection, and gives their addresses to it.

use std::collections::BTreeMap;

use super::stdio::ProgramSandbox;
use crate::ids::RoleName;
use crate::tool::{RequirementOffer, requirement_header, requirement_variable};

/// The offers to one process or connection, by role. Dropping them withdraws all.
#[derive(Debug, Default)]
pub(super) struct RequirementOffers(pub(super) Vec<(RoleName, RequirementOffer)>);

impl RequirementOffers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the variables for a process.
    pub(super) fn variables(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(role, offer)| (requirement_variable(role), offer.address.clone())).collect()
    }

    /// Returns the headers for an HTTP connection.
    pub(super) fn headers(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(role, offer)| (requirement_header(role), offer.address.clone())).collect()
    }

    /// Returns what logs must not show, by the name of its variable.
    pub(super) fn secrets(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().map(|(role, offer)| (requirement_variable(role), offer.secret.clone()))
    }

    /// Keeps the offers reachable from inside a sandbox.
    pub(super) fn open_in(&self, sandbox: &mut ProgramSandbox<'_>) {
        let folders = &mut sandbox.request.folders;
        for (_, offer) in &self.0 {
            folders.readable.extend(offer.program.clone());
            folders.own_files.extend(offer.token_file.clone());
            folders.sockets.extend(offer.socket.clone());
        }
        // All offers of this process have one program and one socket.
        folders.readable.dedup();
        folders.sockets.dedup();
    }
}
