//! Lists and reads the stored apps for commands, without a model.

use std::io;
use std::path::{Path, PathBuf};

use super::page::App;
use super::store::{AppName, AppReadError, AppStore, read_app};
use crate::ids::nearest;

/// The stored apps of a user.
#[derive(Debug, Clone)]
pub struct AppLibrary {
    store: AppStore,
    folder: PathBuf,
}

/// A stored app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppSummary {
    pub name: String,
    /// The title of its page.
    pub title: String,
    pub version: u32,
    /// When the version was saved, in ISO 8601.
    pub saved: String,
    /// The change of the version.
    pub note: String,
    /// The origins that the page may reach.
    pub network: Vec<String>,
    /// The file that a browser opens.
    pub file: PathBuf,
}

/// A deleted app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedApp {
    pub name: String,
    /// The newest version that can be restored.
    pub version: u32,
}

/// A file that should contain an app and does not.
#[derive(Debug)]
pub struct UnreadableApp {
    pub name: String,
    pub file: PathBuf,
    pub error: AppReadError,
}

/// All apps of a user, each list sorted by name.
#[derive(Debug, Default)]
pub struct AppListing {
    pub apps: Vec<AppSummary>,
    pub deleted: Vec<DeletedApp>,
    pub unreadable: Vec<UnreadableApp>,
}

/// Why an app cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AppLibraryError {
    #[error("there is no app `{name}`")]
    Unknown { name: String, nearest: Option<String> },
    #[error("the app `{name}` was deleted; version {version} is its last")]
    Deleted { name: String, version: u32 },
    #[error("the app in {} cannot be read: {error}", .file.display())]
    Unreadable { file: PathBuf, error: AppReadError },
    #[error("the apps in {} cannot be listed: {source}", .folder.display())]
    Folder { folder: PathBuf, source: io::Error },
}

impl AppLibrary {
    /// Finds the apps below the data folder.
    pub fn new(data: &Path) -> Self {
        let folder = data.join("apps");
        Self { store: AppStore::new(folder.clone()), folder }
    }

    /// Returns all apps. Fails if their folder cannot be read.
    pub fn list(&self) -> Result<AppListing, AppLibraryError> {
        let mut listing = AppListing::default();
        for name in self.store.names().map_err(|source| self.folder_error(source))? {
            let file = self.store.file(&name);
            match read_app(&file) {
                Ok(found) => listing.apps.extend(found.map(|(app, _)| summarize(app, file))),
                Err(error) => {
                    let name = name.as_str().to_owned();
                    listing.unreadable.push(UnreadableApp { name, file, error });
                }
            }
        }
        let deleted = self.store.list_deleted().map_err(|source| self.folder_error(source))?;
        let deleted = deleted.into_iter();
        listing.deleted =
            deleted.map(|(name, version)| DeletedApp { name: name.as_str().to_owned(), version }).collect();
        Ok(listing)
    }

    /// Returns an app and the text of its file, which contains everything that the app needs. Fails if there is no such
    /// app or its file cannot be used.
    pub fn read(&self, name: &str) -> Result<(AppSummary, String), AppLibraryError> {
        let Ok(valid) = AppName::parse(name) else { return Err(self.missing(name)) };
        let file = self.store.file(&valid);
        match read_app(&file) {
            Ok(Some((app, text))) => Ok((summarize(app, file), text)),
            Ok(None) => Err(self.missing(name)),
            Err(error) => Err(AppLibraryError::Unreadable { file, error }),
        }
    }

    /// Returns the error for a name without an app.
    fn missing(&self, name: &str) -> AppLibraryError {
        let listing = match self.list() {
            Ok(listing) => listing,
            Err(error) => return error,
        };
        if let Some(deleted) = listing.deleted.iter().find(|deleted| deleted.name == name) {
            return AppLibraryError::Deleted { name: name.to_owned(), version: deleted.version };
        }
        let near = nearest(name, listing.apps.iter().map(|app| app.name.as_str())).map(str::to_owned);
        AppLibraryError::Unknown { name: name.to_owned(), nearest: near }
    }

    fn folder_error(&self, source: io::Error) -> AppLibraryError {
        AppLibraryError::Folder { folder: self.folder.clone(), source }
    }
}

fn summarize(app: App, file: PathBuf) -> AppSummary {
    let version = app.version();
    let (saved, note) = app.versions.last().map(|last| (last.saved.clone(), last.note.clone())).unwrap_or_default();
    let network = app.network.iter().map(|origin| origin.as_str().to_owned()).collect();
    AppSummary { name: app.name, title: app.title, version, saved, note, network, file }
}
