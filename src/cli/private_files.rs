//! Makes Skein's files accessible only to the user: folders 0700, files 0600, including those of earlier versions.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use super::folders::Folders;
use super::output::{CommandError, display_line};
use super::whole_file;

const OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;

/// Skein's entries in the data folder and the state folder. Other entries are not changed, because `SKEIN_DATA_DIR` may
/// contain other files.
const KEPT: [&str; 12] = [
    "apps",
    "chat_history",
    "log",
    "memory.db",
    "principals",
    "router",
    "routes.db",
    "run",
    "scratch",
    "sessions.db",
    "tokens.db",
    "trust.json",
];
/// Suffixes of SQLite's files.
const BESIDE: [&str; 4] = ["", "-wal", "-shm", "-journal"];

/// Creates the data and state folders, or makes existing ones inaccessible to other users.
pub(super) fn protect(folders: &Folders) -> io::Result<()> {
    // The state folder may be in the data folder.
    for folder in [&folders.data, &folders.state] {
        let open = fs::metadata(folder).is_ok_and(|metadata| metadata.mode() & OTHERS != 0);
        make_folder(folder)?;
        if open {
            restrict_kept_files(folder)?;
        }
    }
    Ok(())
}

/// Creates a folder for the user alone. Restricts an existing folder, unless it is shared on purpose: it has the sticky
/// bit, like `/tmp`, or belongs to another user.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let metadata = fs::metadata(folder)?;
    if metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & STICKY == 0 {
        restrict(folder, metadata.mode())?;
    }
    Ok(())
}

/// Writes a file that only the user can read, completely or not at all. Replaces an existing file only with `force`.
pub(super) fn write_export(file: &Path, text: &str, force: bool) -> Result<(), CommandError> {
    write_private(file, text, force).map_err(|error| {
        let shown = display_line(&file.to_string_lossy());
        match error.kind() {
            ErrorKind::AlreadyExists if file.is_dir() => {
                CommandError::usage(format!("{shown} is a folder"), "name a file in it")
            }
            ErrorKind::AlreadyExists => CommandError::usage(
                format!("{shown} exists already"),
                "name another file, or pass --force to replace it",
            ),
            _ => CommandError::work(format!("{shown} cannot be written: {error}"), "name another file"),
        }
    })
}

fn write_private(file: &Path, text: &str, force: bool) -> io::Result<()> {
    const MODE: u32 = 0o600;
    // A device, a pipe or an open file such as `/dev/stdout` takes the text, and keeps its mode.
    let is_open = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"].iter().any(|open| file.starts_with(open));
    if is_open || fs::metadata(file).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
        return fs::OpenOptions::new().append(true).open(file)?.write_all(text.as_bytes());
    }
    // A link to a file that does not exist yet leads to the place of the new file. A command may have made the link, so
    // it counts as a file.
    if force
        && let Ok(target) = fs::read_link(file)
        && !file.exists()
    {
        let folder = file.parent().unwrap_or(Path::new("."));
        return whole_file::create(&folder.join(target), text, MODE);
    }
    match whole_file::create(file, text, MODE) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && force && !file.is_dir() => {
            whole_file::replace(file, text, Permissions::from_mode(MODE))
        }
        written => written,
    }
}

fn restrict_kept_files(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if KEPT.iter().any(|kept| name.strip_prefix(kept).is_some_and(|end| BESIDE.contains(&end))) {
            restrict_below(&entry.path())?;
        }
    }
    Ok(())
}

/// Restricts a file or folder recursively. Does not follow links, and ignores files that disappear meanwhile.
fn restrict_below(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    if metadata.is_symlink() {
        return Ok(());
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            restrict_below(&entry?.path())?;
        }
    }
    restrict(path, metadata.mode())
}

fn restrict(path: &Path, mode: u32) -> io::Result<()> {
    if mode & OTHERS == 0 {
        return Ok(());
    }
    match fs::set_permissions(path, Permissions::from_mode(mode & 0o700)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    fn put(path: &Path, mode: u32) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_an_earlier_version_made_is_closed_to_others() {
        let place = tempfile::tempdir().unwrap();
        let [data, home] = ["data", "home"].map(|name| place.path().join(name));
        let folders = Folders {
            principal: crate::principal::Principal::local(),
            cwd: home.clone(),
            config_home: home.clone(),
            config: home.clone(),
            state: data.join("state"),
            data: data.clone(),
            store: crate::store::StorePlace::files(&data),
            shared: None,
            home,
        };
        let kept = ["sessions.db-wal", "apps/a/index.html", "state/log/skein.log"].map(|name| data.join(name));
        kept.iter().for_each(|file| put(file, 0o644));
        let other = data.join("photos/cat.jpg");
        put(&other, 0o644);
        for folder in [&data, &data.join("state")] {
            fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        }
        protect(&folders).unwrap();
        assert_eq!(kept.map(|file| mode(&file)), [0o600; 3]);
        assert_eq!(["", "apps/a", "state", "state/log"].map(|name| mode(&data.join(name))), [0o700; 4]);
        assert_eq!(mode(&other), 0o644);
    }

    #[test]
    fn an_export_replaces_a_file_only_if_forced() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("report.html");
        write_export(&file, "old", false).unwrap();
        assert_eq!(mode(&file), 0o600);
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        let refusal = write_export(&file, "new", false).unwrap_err();
        assert!(refusal.code() == 2 && refusal.problem().contains("report.html exists already"), "{refusal:?}");
        assert_eq!((mode(&file), fs::read_to_string(&file).unwrap().as_str()), (0o644, "old"));
        write_export(&file, "new", true).unwrap();
        assert_eq!((mode(&file), fs::read_to_string(&file).unwrap().as_str()), (0o600, "new"));
        let refusal = write_export(place.path(), "new", true).unwrap_err();
        assert!(refusal.code() == 2 && refusal.problem().contains("is a folder"), "{refusal:?}");
        write_export(Path::new("/dev/null"), "text", false).unwrap();
    }

    #[test]
    fn an_export_goes_to_an_open_file_or_through_a_link() {
        let place = tempfile::tempdir().unwrap();
        let (file, link) = (place.path().join("report.html"), place.path().join("link"));
        std::os::unix::fs::symlink("report.html", &link).unwrap();
        let refusal = write_export(&link, "old", false).unwrap_err();
        assert!(refusal.problem().contains("link exists already") && !file.exists(), "{refusal:?}");
        write_export(&link, "old", true).unwrap();
        assert_eq!((mode(&file), fs::read_to_string(&file).unwrap().as_str()), (0o600, "old"));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let open = fs::OpenOptions::new().append(true).open(&file).unwrap();
        let shown = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
        write_export(Path::new(&shown), " and new", false).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "old and new");
    }

    #[test]
    fn a_shared_folder_stays_shared() {
        let place = tempfile::tempdir().unwrap();
        let shared = place.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
        make_folder(&shared).unwrap();
        assert_eq!(mode(&shared), 0o777);
    }
}
