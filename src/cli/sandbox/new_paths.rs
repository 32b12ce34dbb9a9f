//! Finds protected paths that the command of `skein sandbox` has created.

use std::path::PathBuf;

use super::super::folders::Folders;
use super::super::output::CommandOutput;
use crate::sandbox::{FileAccess, ProtectedPath, ProtectedSnapshot, SandboxProfile, quarantine};

/// The protected paths before a command. There is no user to ask about new ones, so they are
/// moved to quarantine.
pub(super) struct NewPaths {
    folders: Vec<PathBuf>,
    before: ProtectedSnapshot,
    quarantine: PathBuf,
}

impl NewPaths {
    pub(super) fn watch(profile: &SandboxProfile, folders: &Folders) -> Self {
        let is_writable =
            !matches!(profile.files, FileAccess::None | FileAccess::ReadOnly) || !profile.write.is_empty();
        let watched = if is_writable { vec![folders.cwd.clone()] } else { Vec::new() };
        Self { before: ProtectedSnapshot::take(&watched), folders: watched, quarantine: folders.quarantine() }
    }

    pub(super) fn withdraw(self, output: &mut CommandOutput) {
        for (path, ProtectedPath { shown, reason, .. }) in
            self.before.find_created(&ProtectedSnapshot::take(&self.folders))
        {
            let created = format!("the command created `{shown}`, a protected path: {reason}");
            match quarantine(&path, &self.quarantine) {
                Ok(place) => output.note(&format!("{created}. It is now {}", place.display())),
                Err(error) => output.note(&format!("{created}. It could not be moved away: {error}")),
            }
        }
    }
}
