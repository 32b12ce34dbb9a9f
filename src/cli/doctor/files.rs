//! Checks the files of a set-up: permissions, free space, and the integrity of the databases.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::fs::{Access, access};

use super::super::folders::Folders;
use super::super::keys::Keys;
use super::Findings;
use crate::store;

/// With less free space, a session may not be stored completely.
const MIN_FREE: u64 = 32 * 1024 * 1024;

pub(super) fn check(folders: &Folders, found: &mut Findings) {
    folder("configuration", &folders.config, found);
    if folder("data", &folders.data, found) {
        room(&folders.data, found);
    } else if !folders.data.exists() {
        check_creatable(&folders.data, found);
    }
    for file in ["config.yaml", "agents", "services"].map(|name| folders.config.join(name)) {
        others_may_not_write(&file, 0, found);
    }
    let keys = Keys::of(folders);
    others_may_not_read(&keys.file(), "your keys", found);
    if let (Some(0), Err(problem)) = (mode(&keys.file()).map(|mode| mode & 0o077), keys.readable()) {
        let fix = "make it a JSON object of names and keys, or remove it and run `skein configure`";
        found.error(format!("{problem:#}"), keys.file().display().to_string(), fix);
    }
    others_may_not_read(&folders.data.join("trust.json"), "what you trust", found);
    for name in store::FILES {
        others_may_not_read(&folders.data.join(name), "your sessions", found);
    }
    for error in store::examine(&folders.data) {
        let fix = match error {
            store::StoreError::Newer { .. } => "use the newer skein, or name another folder in SKEIN_DATA_DIR",
            store::StoreError::ImportInterrupted { .. } => {
                "wait for a running import; otherwise run `skein sessions list`, then import again"
            }
            _ => "move it away and a new one is made, or bring back a copy of it",
        };
        found.error(error.to_string(), folders.data.display().to_string(), fix);
    }
}

/// Returns true if files can be created in the folder. A missing folder is not reported: it is created when needed.
fn folder(which: &str, path: &Path, found: &mut Findings) -> bool {
    let place = path.display().to_string();
    if !path.exists() {
        return false;
    }
    if !path.is_dir() {
        found.error(format!("the {which} folder is a file"), place, "move it away");
        return false;
    }
    if mode(path).is_some_and(|mode| mode & 0o022 != 0) {
        let what = format!("others can write to the {which} folder, and so have programs started as you");
        found.error(what, place.clone(), format!("chmod go-w {place}"));
    }
    // The temporary file is deleted at once.
    let Err(error) = tempfile::tempfile_in(path) else { return true };
    let fix = match error.kind() {
        ErrorKind::StorageFull => "make room on that disk".to_owned(),
        ErrorKind::ReadOnlyFilesystem => "mount it for writing, or name another with SKEIN_DATA_DIR".to_owned(),
        _ => format!("chmod u+rwx {place}, or make it yours"),
    };
    found.error(format!("nothing can be written to the {which} folder: {error}"), place, fix);
    false
}

/// Reports a data folder that is missing and cannot be created, because of its nearest parent that exists.
fn check_creatable(data: &Path, found: &mut Findings) {
    // A link that leads to nothing exists, too.
    let Some(parent) = data.ancestors().find(|path| path.symlink_metadata().is_ok()) else { return };
    if parent.is_dir() && access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok() {
        return;
    }
    let what = format!("the data folder cannot be created below {}", parent.display());
    let fix = "make that a folder that you can write, or name another with SKEIN_DATA_DIR";
    found.error(what, data.display().to_string(), fix);
}

fn room(path: &Path, found: &mut Findings) {
    let Ok(disk) = rustix::fs::statvfs(path) else { return };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < MIN_FREE {
        let what = format!("the disk of the data folder is nearly full: {} MB are left", free / 1024 / 1024);
        found.error(what, path.display().to_string(), "make room, or name another folder with SKEIN_DATA_DIR");
    }
}

fn mode(path: &Path) -> Option<u32> {
    fs::metadata(path).ok().map(|metadata| metadata.permissions().mode())
}

/// Reports files that other users can write: a changed manifest can start any program.
fn others_may_not_write(path: &Path, depth: usize, found: &mut Findings) {
    let Some(mode) = mode(path) else { return };
    let place = path.display().to_string();
    if mode & 0o022 != 0 {
        found.error(
            "others can change this, and so have programs started as you",
            place.clone(),
            format!("chmod go-w {place}"),
        );
    }
    if depth < 4 {
        let entries = path.read_dir().into_iter().flatten().filter_map(Result::ok);
        entries.for_each(|entry| others_may_not_write(&entry.path(), depth + 1, found));
    }
}

fn others_may_not_read(path: &Path, what: &str, found: &mut Findings) {
    let place = path.display().to_string();
    if mode(path).is_some_and(|mode| mode & 0o077 != 0) {
        found.error(format!("others can read {what}"), place.clone(), format!("chmod 600 {place}"));
    }
}
