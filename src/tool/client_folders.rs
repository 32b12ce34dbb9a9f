//! Names the folders of a session whose files are at its client.
//!
//! Invariant: paths of a client are only compared as text. Nothing here reads the disk of this machine.

use std::path::{Path, PathBuf};

use super::target::FileTarget;
use crate::root_files;

/// The folders of a session at its client, all absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFolders {
    /// Base of relative paths.
    pub cwd: PathBuf,
    /// File tools reach paths below these. The first is the working directory.
    pub roots: Vec<PathBuf>,
}

impl ClientFolders {
    pub fn new(cwd: &Path, additional_roots: &[PathBuf]) -> Self {
        let roots = std::iter::once(cwd).chain(additional_roots.iter().map(PathBuf::as_path));
        Self { cwd: root_files::normalize(cwd), roots: roots.map(root_files::normalize).collect() }
    }

    /// Returns the absolute path without `.` and `..`. Only the client knows its links.
    pub fn resolve(&self, given: &str) -> PathBuf {
        root_files::normalize(&self.cwd.join(given))
    }

    /// Returns whether a path from [`Self::resolve`] is below one of the folders.
    pub fn contains(&self, path: &Path) -> bool {
        self.roots.iter().any(|root| path.starts_with(root))
    }
}

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
    use super::*;

    #[test]
    fn a_path_of_a_client_never_leaves_its_folders() {
        let folders = ClientFolders::new(Path::new("/home/ana/shop/./app"), &["/data".into()]);
        for (given, expected) in [
            ("src/a.rs", Some("/home/ana/shop/app/src/a.rs")),
            ("./src/../a.rs", Some("/home/ana/shop/app/a.rs")),
            ("/data/x", Some("/data/x")),
            ("../other", None),
            ("src/../../other", None),
            ("/home/ana/shop/application", None),
            ("/../../data/../etc/passwd", None),
        ] {
            let path = folders.resolve(given);
            let admitted = folders.contains(&path).then_some(path);
            assert_eq!(admitted, expected.map(PathBuf::from), "{given}");
        }
    }

    #[test]
    fn a_target_at_a_client_is_relative_to_its_folder() {
        let folder = WorkingFolder::at_client("/nowhere/shop".into());
        let target = folder.target("docs/../a.md").expect("a target");
        assert_eq!(target.to_string(), "a.md (given as docs/../a.md)");
        assert_eq!(target.path, Path::new("/nowhere/shop/a.md"));
    }
}
