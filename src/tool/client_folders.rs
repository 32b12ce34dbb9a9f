//! Names the folders of a session whose files are at its client.
//!
//! Invariant: paths of a client are only compared as text. Nothing here reads the disk of this machine.

use std::path::{Path, PathBuf};

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
}
