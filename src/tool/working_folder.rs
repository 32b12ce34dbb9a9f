//! The working directory of a session, here or at its client.

use std::path::PathBuf;

use super::client_folders::ClientFolders;
use super::target::FileTarget;

/// The working directory of a session as its user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkingFolder {
    pub path: PathBuf,
    is_at_client: bool,
}

impl WorkingFolder {
    /// Returns a folder of this machine.
    pub fn here(path: PathBuf) -> Self {
        Self { path, is_at_client: false }
    }

    /// Returns a folder at the client.
    pub fn at_client(path: PathBuf) -> Self {
        Self { path, is_at_client: true }
    }

    /// Returns the file that `given` names. `None` if it cannot be resolved.
    pub fn target(&self, given: &str) -> Option<FileTarget> {
        if self.is_at_client {
            return Some(FileTarget::at_client(given, &ClientFolders::new(&self.path, &[])));
        }
        FileTarget::resolve(given, &self.path, &[]).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_target_at_a_client_is_relative_to_its_folder() {
        let folder = WorkingFolder::at_client("/nowhere/shop".into());
        let target = folder.target("docs/../a.md").expect("a target");
        assert_eq!(target.to_string(), "a.md (given as docs/../a.md)");
        assert_eq!(target.path, Path::new("/nowhere/shop/a.md"));
    }
}
