//! Applies changed managed files to manifests that are read already.

use super::Manifests;
use super::managed_layer::{ManagedFile, ManagedLayer};
use crate::diagnostic::Diagnostic;

impl Manifests {
    /// Returns the same manifests within these managed files. Reports each file that is invalid.
    pub fn within(&self, files: &[ManagedFile]) -> (Self, Vec<Diagnostic>) {
        let mut found = Vec::new();
        let managed = ManagedLayer::read(files, &mut found);
        let mut manifests = Self { managed, ..self.clone() };
        manifests.apply_profiles();
        (manifests, found)
    }
}
