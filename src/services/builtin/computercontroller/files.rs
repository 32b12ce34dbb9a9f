//! Reads and replaces the files of a session, without looking into them.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::document::TextBlock;
use crate::services::builtin::answer::{ToolRefusal, size};
use crate::services::builtin::developer::paths;
use crate::tool::{Activity, CallContext};

/// The largest file that is read.
pub(super) const MAX_FILE: u64 = 64 << 20;

/// The most bytes of images that one call inserts.
pub(super) const MAX_IMAGES: u64 = 32 << 20;

/// A file with its contents when it was read.
#[derive(Debug)]
pub(super) struct LoadedFile {
    pub(super) path: PathBuf,
    pub(super) shown: String,
    pub(super) bytes: Vec<u8>,
    permissions: std::fs::Permissions,
}

/// Reads a file of the session. Fails if it is too large.
pub(super) async fn load(call: &CallContext, name: &str) -> Result<LoadedFile, ToolRefusal> {
    let (call, name) = (call.clone(), name.to_owned());
    let loaded = tokio::task::spawn_blocking(move || {
        let path = paths::target(&call, &name)?;
        let shown = paths::display_path(&call.session, &path);
        let refuse = |error: std::io::Error| ToolRefusal::io("read", &shown, &error);
        let file = paths::anchor(&call.session, &path).and_then(|path| path.read()).map_err(refuse)?;
        let permissions = file.metadata().map_err(refuse)?.permissions();
        let mut bytes = Vec::new();
        file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(refuse)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(ToolRefusal::new(format!(
                "`{shown}` is larger than {}; split it with `shell`, or ask the user for a part of it",
                size(MAX_FILE)
            )));
        }
        Ok(LoadedFile { path, shown, bytes, permissions })
    });
    loaded.await.map_err(|error| ToolRefusal::new(format!("the file could not be read: {error}")))?
}

/// The images of a document, one after the other.
#[derive(Debug, Default)]
pub(super) struct ImageFiles {
    pub(super) sizes: Vec<usize>,
    pub(super) bytes: Vec<u8>,
}

/// Returns the images that blocks name, in their order.
pub(super) fn image_names<'a>(blocks: impl IntoIterator<Item = &'a TextBlock>) -> Vec<String> {
    blocks.into_iter().filter_map(|block| block.image_file.clone()).collect()
}

/// Reads images, one after the other. Fails if they are too large.
pub(super) async fn load_images(call: &CallContext, names: Vec<String>) -> Result<ImageFiles, ToolRefusal> {
    let call = call.clone();
    let loaded = tokio::task::spawn_blocking(move || {
        let mut images = ImageFiles::default();
        for name in &names {
            let place = paths::resolve(&call.session, name)?;
            let shown = paths::display_path(&call.session, &place);
            let refuse = |error: std::io::Error| ToolRefusal::io("read", &shown, &error);
            let file = paths::anchor(&call.session, &place).and_then(|path| path.read()).map_err(refuse)?;
            let before = images.bytes.len();
            file.take(MAX_IMAGES + 1).read_to_end(&mut images.bytes).map_err(refuse)?;
            images.sizes.push(images.bytes.len() - before);
            if images.bytes.len() as u64 > MAX_IMAGES {
                return Err(ToolRefusal::new(format!(
                    "`{shown}` makes the images of the call larger than {}; make them smaller",
                    size(MAX_IMAGES)
                )));
            }
        }
        Ok(images)
    });
    loaded.await.map_err(|error| ToolRefusal::new(format!("the images could not be read: {error}")))?
}

/// Replaces or creates a file. Fails if the old file has changed since it was read.
pub(super) async fn save(
    call: &CallContext,
    path: &Path,
    shown: &str,
    old: Option<LoadedFile>,
    bytes: Vec<u8>,
) -> Result<(), ToolRefusal> {
    let now = match &old {
        Some(_) => Some(load(call, &path.to_string_lossy()).await?),
        None => None,
    };
    if let (Some(old), Some(now)) = (&old, &now)
        && old.bytes != now.bytes
    {
        return Err(ToolRefusal::new(format!("`{shown}` was changed meanwhile; nothing was written, try again")));
    }
    let (session, place) = (Arc::clone(&call.session), path.to_owned());
    let saved = tokio::task::spawn_blocking(move || {
        let anchor = paths::anchor(&session, &place)?;
        match old {
            Some(old) if old.permissions.readonly() => {
                Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, "the file is read-only"))
            }
            Some(old) => anchor.replace(&bytes, &old.permissions),
            None => {
                anchor.create_folders()?;
                anchor.create(&bytes)
            }
        }
    });
    let saved = saved.await.map_err(|error| ToolRefusal::new(format!("the file could not be written: {error}")))?;
    saved.map_err(|error| ToolRefusal::io("write", shown, &error))?;
    call.report(Activity::Location { path: paths::session_path(&call.session, path), line: None });
    Ok(())
}
