//! Stores apps as files: `NAME.html` is the current app, `.versions/NAME/N.html` is version N.
//!
//! Invariant: a file is complete or absent, a version is never written twice, and only one process at a time makes
//! changes.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::page::App;
use crate::services::builtin::answer::ToolRefusal;

const MAX_NAME: usize = 60;
/// Name prefix of files that are being written.
const STAGED: &str = ".new-";

/// An app name that is also valid as a file name and in a URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AppName(String);

impl AppName {
    pub(super) fn parse(text: &str) -> Result<Self, ToolRefusal> {
        let suggested = suggestion(text);
        if text == suggested && !text.is_empty() {
            return Ok(Self(suggested));
        }
        let instead = if suggested.is_empty() { String::new() } else { format!(", like `{suggested}`") };
        Err(ToolRefusal::new(format!(
            "an app's name is lower-case words and numbers joined by hyphens, at most {MAX_NAME} characters{instead}"
        )))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the valid name closest to `text`.
fn suggestion(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut name = words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-");
    name.truncate(MAX_NAME);
    name.trim_end_matches('-').to_owned()
}

/// The apps in the folder.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) apps: Vec<App>,
    /// Deleted apps with the newest version that can be restored.
    pub(super) deleted: Vec<(String, u32)>,
    /// Files that are not valid apps, with the reason.
    pub(super) unreadable: Vec<(String, String)>,
}

/// The folder of all apps.
#[derive(Debug, Clone)]
pub(super) struct AppStore {
    folder: PathBuf,
}

impl AppStore {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(super) fn file(&self, name: &AppName) -> PathBuf {
        self.folder.join(format!("{}.html", name.0))
    }

    /// Returns the names of the apps that have a current file, readable or not.
    pub(super) fn names(&self) -> io::Result<Vec<AppName>> {
        let files = names_in(&self.folder)?;
        Ok(files.iter().filter_map(|file| AppName::parse(file.strip_suffix(".html")?).ok()).collect())
    }

    /// Returns the names of the deleted apps, each with the newest version that can be restored.
    pub(super) fn list_deleted(&self) -> io::Result<Vec<(AppName, u32)>> {
        let mut deleted = Vec::new();
        for name in names_in(&self.folder.join(".versions"))?.iter().filter_map(|name| AppName::parse(name).ok()) {
            let newest = self.version_numbers(&name)?.first().copied();
            deleted.extend(newest.filter(|_| !self.file(&name).exists()).map(|newest| (name, newest)));
        }
        Ok(deleted)
    }

    /// Returns all stored version numbers, newest first.
    fn version_numbers(&self, name: &AppName) -> io::Result<Vec<u32>> {
        let names = names_in(&self.versions_of(name))?;
        let mut versions: Vec<u32> = names.iter().filter_map(|name| name.strip_suffix(".html")?.parse().ok()).collect();
        versions.sort_unstable_by(|one, other| other.cmp(one));
        Ok(versions)
    }

    fn versions_of(&self, name: &AppName) -> PathBuf {
        self.folder.join(".versions").join(&name.0)
    }

    fn version_file(&self, name: &AppName, version: u32) -> PathBuf {
        self.versions_of(name).join(format!("{version}.html"))
    }

    /// Returns the current app; `None` if it does not exist or was deleted.
    pub(super) fn get(&self, name: &AppName) -> Result<Option<App>, ToolRefusal> {
        load(&self.file(name)).map_err(|ToolRefusal(reason)| match self.newest(name) {
            Ok(newest) if newest > 0 => ToolRefusal(format!(
                "{reason}; `restore_app` puts a version, of which {newest} is the newest, in its place"
            )),
            _ => ToolRefusal(reason),
        })
    }

    pub(super) fn version(&self, name: &AppName, version: u32) -> Result<Option<App>, ToolRefusal> {
        load(&self.version_file(name, version))
    }

    /// Returns all stored version numbers, newest first.
    pub(super) fn versions(&self, name: &AppName) -> Result<Vec<u32>, ToolRefusal> {
        self.version_numbers(name).map_err(|error| io_refusal("read", &self.versions_of(name), &error))
    }

    /// Returns the newest version number, 0 if there is none.
    pub(super) fn newest(&self, name: &AppName) -> Result<u32, ToolRefusal> {
        Ok(self.versions(name)?.first().copied().unwrap_or(0))
    }

    pub(super) fn list(&self) -> Result<Listing, ToolRefusal> {
        let unread = |error: io::Error| io_refusal("read", &self.folder, &error);
        let mut listing = Listing::default();
        for name in self.names().map_err(unread)? {
            match self.get(&name) {
                Ok(app) => listing.apps.extend(app),
                Err(ToolRefusal(reason)) => listing.unreadable.push((name.0, reason)),
            }
        }
        let deleted = self.list_deleted().map_err(unread)?;
        listing.deleted = deleted.into_iter().map(|(name, newest)| (name.0, newest)).collect();
        Ok(listing)
    }

    /// Saves what `change` returns as a new version. `change` receives the current app, or the error from reading
    /// its file, and the new version number. If it refuses, nothing changes.
    pub(super) fn change(
        &self,
        name: &AppName,
        change: impl FnOnce(Result<Option<App>, ToolRefusal>, u32) -> Result<App, ToolRefusal>,
    ) -> Result<App, ToolRefusal> {
        let _lock = self.lock()?;
        let next =
            self.newest(name)?.checked_add(1).ok_or_else(|| ToolRefusal::new("there can be no further version"))?;
        let app = change(self.get(name), next)?;
        let (version, file) = (self.version_file(name, next), self.file(name));
        let text = app.to_file();
        make_folder(&self.versions_of(name))?;
        sweep(&self.folder).and_then(|()| sweep(&self.versions_of(name)))?;
        write(&version, &text).map_err(|error| io_refusal("write", &version, &error))?;
        if let Err(error) = write(&file, &text) {
            // No caller knows this version, so it does no harm if it cannot be removed.
            drop(fs::remove_file(&version));
            return Err(io_refusal("write", &file, &error));
        }
        Ok(app)
    }

    /// Deletes the app and returns its newest version, which stays stored; `None` if there was no app. A file that
    /// cannot be read can still be deleted.
    pub(super) fn delete(&self, name: &AppName) -> Result<Option<u32>, ToolRefusal> {
        let _lock = self.lock()?;
        let newest = self.newest(name)?;
        let file = self.file(name);
        match fs::remove_file(&file) {
            Ok(()) => Ok(Some(newest)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_refusal("delete", &file, &error)),
        }
    }

    /// Locks the folder against other processes until the returned file is dropped.
    fn lock(&self) -> Result<File, ToolRefusal> {
        make_folder(&self.folder)?;
        let path = self.folder.join(".lock");
        let open = File::options().create(true).truncate(false).write(true).open(&path);
        open.and_then(|file| file.lock().map(|()| file)).map_err(|error| io_refusal("lock", &path, &error))
    }
}

/// Why the file of an app cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AppReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is no file")]
    NotFile,
    #[error("{0}")]
    Content(String),
}

fn load(file: &Path) -> Result<Option<App>, ToolRefusal> {
    read_app(file).map(|found| found.map(|(app, _)| app)).map_err(|error| io_refusal("read", file, &error))
}

/// Reads an app and the text of its file; `None` if there is no file.
pub(super) fn read_app(file: &Path) -> Result<Option<(App, String)>, AppReadError> {
    // Reading a named pipe would block forever.
    if fs::metadata(file).is_ok_and(|found| !found.is_file()) {
        return Err(AppReadError::NotFile);
    }
    match fs::read_to_string(file) {
        Ok(text) => match App::from_file(&text) {
            Ok(app) => Ok(Some((app, text))),
            Err(reason) => Err(AppReadError::Content(reason.to_string())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn make_folder(folder: &Path) -> Result<(), ToolRefusal> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| io_refusal("make", folder, &error))
}

/// Removes staged files. The caller holds the lock and is the only writer, so these files are from a process that
/// was killed.
fn sweep(folder: &Path) -> Result<(), ToolRefusal> {
    let names = names_in(folder).map_err(|error| io_refusal("read", folder, &error))?;
    for file in names.iter().filter(|name| name.starts_with(STAGED)).map(|name| folder.join(name)) {
        fs::remove_file(&file).map_err(|error| io_refusal("delete", &file, &error))?;
    }
    Ok(())
}

/// Writes atomically: a reader sees the old file or the new one.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let folder = file.parent().ok_or_else(|| io::Error::other("it is the root of the file system"))?;
    let mut staged = tempfile::Builder::new().prefix(STAGED).tempfile_in(folder)?;
    staged.write_all(text.as_bytes())?;
    staged.as_file().sync_all()?;
    staged.persist(file).map(drop).map_err(|error| error.error)
}

/// Returns the sorted names in a folder; empty if the folder does not exist.
fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
    let mut names: Vec<_> = names.filter_map(io::Result::transpose).collect::<io::Result<_>>()?;
    names.sort();
    Ok(names)
}

fn io_refusal(attempt: &str, path: &Path, error: &dyn std::fmt::Display) -> ToolRefusal {
    ToolRefusal::new(format!("could not {attempt} `{}`: {error}; tell the user", path.display()))
}
