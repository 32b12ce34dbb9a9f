//! Checks the folders in which sessions may work: those below the start folder and the roots, and those that the
//! client's user has allowed.
//!
//! Invariant: folders are compared with symbolic links resolved, and a session works in the resolved folder.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub(super) struct WorkFolders {
    /// With symbolic links resolved.
    roots: Vec<PathBuf>,
    /// Folders that the client's user has allowed, until the program ends.
    allowed: Mutex<Vec<PathBuf>>,
}

/// The reason why a session cannot work in a folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RootError {
    #[error("`cwd` must be the absolute path of a folder that exists, unlike `{}`", .0.display())]
    NoFolder(PathBuf),
    /// The resolved folder, which the client's user can allow.
    #[error(
        "`{}` is not below the folder in which `skein mcp --agents` was started, and the user did not allow it; start skein \
         with `--root {}` to allow it",
        .0.display(),
        .0.display()
    )]
    Outside(PathBuf),
}

impl WorkFolders {
    /// Allows the folders below `roots`. Ignores roots that do not exist.
    pub(super) fn new(roots: &[PathBuf]) -> Self {
        Self { roots: roots.iter().filter_map(|root| root.canonicalize().ok()).collect(), allowed: Mutex::default() }
    }

    /// Returns the folder with symbolic links resolved. Fails if it is not an existing folder with an absolute path, or
    /// if sessions may not work there.
    pub(super) fn resolve(&self, folder: &Path) -> Result<PathBuf, RootError> {
        let real = folder.canonicalize().ok().filter(|real| folder.is_absolute() && real.is_dir());
        let real = real.ok_or_else(|| RootError::NoFolder(folder.to_owned()))?;
        let allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        if self.roots.iter().chain(&*allowed).any(|root| real.starts_with(root)) {
            Ok(real)
        } else {
            Err(RootError::Outside(real))
        }
    }

    /// Allows a resolved folder and all folders below it.
    pub(super) fn allow(&self, real: PathBuf) {
        self.allowed.lock().unwrap_or_else(PoisonError::into_inner).push(real);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_below_a_root_are_open_with_links_resolved() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        for name in ["work/project", "work-not", "other/inner"] {
            std::fs::create_dir_all(base.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(base.join("other"), base.join("work/link")).unwrap();
        std::os::unix::fs::symlink(base.join("work"), base.join("to-work")).unwrap();
        let folders = WorkFolders::new(&[base.join("to-work"), base.join("missing")]);
        let outside = |folder: &str| folders.resolve(&base.join(folder)) == Err(RootError::Outside(base.join("other")));
        assert_eq!(folders.resolve(&base.join("work/project")), Ok(base.join("work/project")));
        assert_eq!(folders.resolve(&base.join("to-work/project")), Ok(base.join("work/project")));
        assert!(outside("other") && outside("work/link") && outside("work/../other"));
        assert!(matches!(folders.resolve(&base.join("work-not")), Err(RootError::Outside(_))));
        assert!(matches!(folders.resolve(&base.join("missing")), Err(RootError::NoFolder(_))));
        assert!(matches!(folders.resolve(Path::new(".")), Err(RootError::NoFolder(_))));
        folders.allow(base.join("other"));
        assert_eq!(folders.resolve(&base.join("work/link/inner")), Ok(base.join("other/inner")));
    }
}
