//! Names given by a model to places in the session's roots.
//!
//! A name is walked component by component; every link is followed before the roots are compared, also where
//! the rest of the name does not exist yet. What comes out has no link and no `..` in it, and files are opened
//! so that a link put in place after the check is an error.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::tool::Session;

use crate::services::builtin::answer::Refusal;

/// As many links in one name as Linux follows.
const MAX_LINKS: usize = 40;

/// The place that `name` means in this session, if it lies in one of the session's roots.
pub(super) fn resolve(session: &Session, name: &str) -> Result<PathBuf, Refusal> {
    if name.is_empty() {
        return Err(Refusal::new("the path is empty; `.` means the working directory"));
    }
    if name.contains('\0') {
        return Err(Refusal::new("a path cannot contain a NUL character"));
    }
    let place =
        follow(&session.cwd.join(name)).map_err(|error| Refusal::io("resolve the path", &printable(name), &error))?;
    if roots(session).iter().any(|root| place.starts_with(root)) {
        return Ok(place);
    }
    Err(Refusal::new(format!(
        "`{}` lies outside of what this session may reach: {}. Use a path below one of these, or ask the user to add the folder",
        printable(name),
        roots(session).iter().map(|root| format!("`{}`", root.display())).collect::<Vec<_>>().join(", "),
    )))
}

/// How a place is shown: relative to the working directory where it lies below it.
pub(super) fn shown(session: &Session, place: &Path) -> String {
    let cwd = follow(&session.cwd).unwrap_or_else(|_| session.cwd.clone());
    match place.strip_prefix(&cwd) {
        Ok(rest) if rest.as_os_str().is_empty() => ".".to_owned(),
        Ok(rest) => printable(&rest.to_string_lossy()),
        Err(_) => printable(&place.to_string_lossy()),
    }
}

/// A place as the session names it: below a root as it was given, which may have a link in it. An editor knows
/// its files by these names.
pub(super) fn named(session: &Session, place: &Path) -> PathBuf {
    let below = |root: &PathBuf| {
        let rest = place.strip_prefix(follow(root).ok()?).ok()?;
        Some(if rest.as_os_str().is_empty() { root.clone() } else { root.join(rest) })
    };
    session.roots.iter().find_map(below).unwrap_or_else(|| place.to_owned())
}

/// A name on one line, whatever is in it.
pub(super) fn printable(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

/// Opens a regular file that [`resolve`] gave.
pub(super) fn open(place: &Path) -> io::Result<File> {
    let file = open_without_links(place)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder"));
    }
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

/// Non-blocking, because opening a FIFO would otherwise wait for a writer.
fn open_without_links(place: &Path) -> io::Result<File> {
    use rustix::fs::{CWD, Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{ResolveFlags, openat2};
        match openat2(CWD, place, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            // Old kernels and some sandboxes do not know the call.
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {}
            result => return Ok(File::from(result?)),
        }
    }
    Ok(File::from(rustix::fs::openat(CWD, place, flags, Mode::empty())?))
}

fn roots(session: &Session) -> Vec<PathBuf> {
    let mut roots = Vec::new();
    for root in &session.roots {
        // A root that cannot be resolved is no root.
        if let Ok(root) = follow(root)
            && !roots.contains(&root)
        {
            roots.push(root);
        }
    }
    roots
}

/// Follows every link of an absolute path. Parts that do not exist are kept as they are named.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut left: VecDeque<OsString> = parts(path).collect();
    let mut place = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = left.pop_front() {
        if part == ".." {
            place.pop();
            continue;
        }
        let next = place.join(&part);
        match next.symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(io::Error::other("too many links"));
                }
                let target = next.read_link()?;
                if target.is_absolute() {
                    place = PathBuf::from("/");
                }
                for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                    left.push_front(part);
                }
            }
            Ok(_) => place = next,
            Err(error) if error.kind() == io::ErrorKind::NotFound => place = next,
            Err(error) => return Err(error),
        }
    }
    Ok(place)
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
#[path = "paths_tests.rs"]
mod tests;
