//! Reads the stored apps of each principal for the console.

use std::path::PathBuf;

use crate::principal::Principal;
use crate::serve::{AppGallery, GalleryApp, GalleryError};
use crate::services::builtin::apps::{AppLibrary, AppLibraryError, AppSummary};

/// The apps below the data folder.
pub(super) struct StoredApps {
    pub(super) data: PathBuf,
}

impl AppGallery for StoredApps {
    fn list(&self, principal: &Principal) -> Result<Vec<GalleryApp>, GalleryError> {
        let listing = self.library(principal).list().map_err(failure)?;
        Ok(listing.apps.into_iter().map(gallery_app).collect())
    }

    fn read(&self, principal: &Principal, name: &str) -> Result<Option<(GalleryApp, String)>, GalleryError> {
        match self.library(principal).read(name) {
            Ok((app, text)) => Ok(Some((gallery_app(app), text))),
            Err(AppLibraryError::Unknown { .. } | AppLibraryError::Deleted { .. }) => Ok(None),
            Err(error) => Err(failure(error)),
        }
    }
}

impl StoredApps {
    fn library(&self, principal: &Principal) -> AppLibrary {
        AppLibrary::new(&principal.folder(&self.data))
    }
}

fn gallery_app(AppSummary { name, title, version, saved, note, .. }: AppSummary) -> GalleryApp {
    GalleryApp { name, title, version, saved, note }
}

fn failure(error: AppLibraryError) -> GalleryError {
    GalleryError(Box::new(error))
}
