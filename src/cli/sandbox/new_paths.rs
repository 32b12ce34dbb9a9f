//! Finds protected paths that the command of `skein sandbox` has created.

use std::path::PathBuf;

use super::super::folders::Folders;
use super::super::output::CommandOutput;
use crate::sandbox::{
    ExpandError, FileAccess, ProtectedPath, ProtectedSnapshot, SandboxContext, SandboxProfile, quarantine,
    writable_folders,
};

/// The protected paths before a command. There is no user to ask about new ones, so they are
/// moved to quarantine.
pub(super) struct NewPaths {
    folders: Vec<PathBuf>,
    before: ProtectedSnapshot,
    quarantine: PathBuf,
}

impl NewPaths {
    pub(super) fn watch(
        profile: &SandboxProfile,
        context: &SandboxContext,
        folders: &Folders,
    ) -> Result<Self, ExpandError> {
        let mut watched = writable_folders(profile, context)?;
        if profile.files == FileAccess::Full {
            watched.push(folders.cwd.clone());
        }
        Ok(Self { before: ProtectedSnapshot::take(&watched), folders: watched, quarantine: folders.quarantine() })
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
