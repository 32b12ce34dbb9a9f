//! Resolves a path component by component. Follows every link, even if the rest of the path does not exist yet.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

/// The limit that Linux uses.
const MAX_LINKS: usize = 40;

/// A path without links and `..`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedPath {
    pub path: PathBuf,
    /// True if a link on the way leads to something that does not exist.
    pub dangling: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("`..` follows `{0}`, which does not exist; write the path without it")]
    ParentOfMissing(String),
    #[error("`..` follows `{0}`, which is not a folder; write the path without it")]
    ParentOfFile(String),
    #[error("there are too many links in it")]
    TooManyLinks,
    #[error("it goes through `{0}`, which differs between processes")]
    Excluded(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Removes `.` and `..` from an absolute path as text, without a look at the disk. For paths of another machine.
pub fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    normal
}

/// Resolves an absolute path. Parts that do not exist stay as named. Fails for `..` after such a part, because programs
/// disagree about its meaning.
pub fn resolve(path: &Path) -> Result<ResolvedPath, ResolveError> {
    resolve_checked(path, |_| true)
}

/// Like [`resolve`], but fails with [`ResolveError::Excluded`] if `admits` is false for a prefix of the path.
pub fn resolve_checked(path: &Path, admits: impl Fn(&Path) -> bool) -> Result<ResolvedPath, ResolveError> {
    let mut left: VecDeque<OsString> = parts(path).collect();
    let mut resolved = ResolvedPath { path: PathBuf::from("/"), dangling: false };
    let mut links = 0;
    // Number of remaining parts that come from the target of a link.
    let mut of_link = 0_usize;
    let (mut missing, mut is_folder) = (false, true);
    while let Some(part) = left.pop_front() {
        let is_of_link = of_link > 0;
        of_link = of_link.saturating_sub(1);
        if part == ".." {
            let shown = || resolved.path.display().to_string();
            if missing {
                return Err(ResolveError::ParentOfMissing(shown()));
            }
            if !is_folder {
                return Err(ResolveError::ParentOfFile(shown()));
            }
            resolved.path.pop();
            continue;
        }
        let next = resolved.path.join(&part);
        if !admits(&next) {
            return Err(ResolveError::Excluded(next.display().to_string()));
        }
        match next.symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(ResolveError::TooManyLinks);
                }
                let target = next.read_link()?;
                if target.is_absolute() {
                    resolved.path = PathBuf::from("/");
                }
                for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                    left.push_front(part);
                    of_link += 1;
                }
                is_folder = true;
            }
            Ok(metadata) => {
                is_folder = metadata.is_dir();
                resolved.path = next;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                resolved.dangling |= is_of_link;
                missing = true;
                resolved.path = next;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(resolved)
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}
