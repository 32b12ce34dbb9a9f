//! Reads and writes files as the user sees them. Text goes through the editor if it lends files, so that unsaved
//! changes count. Everything else, and every request the editor fails, uses the disk.
//!
//! Invariant: the disk decides whether a file exists and may be changed, and every path here comes from
//! `paths::resolve`. The editor is asked only after that. Text that only the editor has is never overwritten. If the
//! files of the session are at the client, only the editor is asked, and the disk is never used instead.

use std::fs::Permissions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::runtime::Handle;

use crate::conversation::image_type;
use crate::tool::CallContext;
use crate::tool::editor::{Editor, EditorCapabilities, EditorError};

use super::ask::{NoAnswer, ask};
use super::disk::{self, DiskFile};
use super::paths;
use super::text::{self, Encoding, MAX_TEXT};
use crate::services::builtin::answer::ToolRefusal;

/// The contents of a file that was read.
#[derive(Debug)]
pub(super) struct FileContents {
    pub(super) bytes: Vec<u8>,
    pub(super) permissions: Permissions,
    /// The reason why the contents are not from the editor, although it lends its files.
    pub(super) note: Option<String>,
    way: WriteTarget,
}

/// The way in which a changed file is written.
#[derive(Debug)]
enum WriteTarget {
    Disk,
    /// The editor accepts writes but does not lend text for reading.
    Editor,
    /// The editor supplied the text, and the disk has `on_disk`.
    Shown {
        on_disk: Vec<u8>,
    },
    /// The file is at the client.
    Client,
}

/// The result of a write.
#[derive(Debug)]
pub(super) struct WrittenFile {
    /// The contents after the write.
    pub(super) bytes: Vec<u8>,
    /// Set if the contents differ from the requested ones.
    pub(super) note: Option<&'static str>,
}

impl FileContents {
    /// Returns whether the editor's text differs from the file on disk.
    fn is_unsaved(&self) -> bool {
        matches!(&self.way, WriteTarget::Shown { on_disk } if !text::same_but_for_form(on_disk, &self.bytes))
    }

    /// Names the source of these contents for messages.
    pub(super) fn location_text(&self) -> &'static str {
        match self.way {
            WriteTarget::Disk | WriteTarget::Editor => "on disk",
            WriteTarget::Shown { .. } | WriteTarget::Client => "in the editor",
        }
    }
}

impl WrittenFile {
    fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, note: None }
    }

    /// Returns `text` for the model, with the note appended.
    pub(super) fn with_note(&self, text: String) -> String {
        match self.note {
            None => text,
            Some(note) => format!("{}\n[{note}]", text.trim_end_matches('\n')),
        }
    }
}

pub(super) fn load(call: &CallContext, place: &Path, shown: &str) -> Result<FileContents, ToolRefusal> {
    if call.session.client_folders().is_some() {
        let loaded = client_buffers::load(call, place, shown)?;
        return loaded
            .ok_or_else(|| ToolRefusal::new(format!("could not read `{shown}`: the client has no such file")));
    }
    let DiskFile { bytes, permissions } = disk::load(&call.session, place, shown)?;
    let on_disk = |bytes, note, way| Ok(FileContents { bytes, permissions: permissions.clone(), note, way });
    let Some(lender) = Lender::of(call, place).filter(|_| is_plain_text(place, &bytes)) else {
        return on_disk(bytes, None, WriteTarget::Disk);
    };
    if !lender.abilities.read {
        return on_disk(bytes, None, WriteTarget::Editor);
    }
    match lender.read() {
        Ok(text) if text.len() as u64 > MAX_TEXT => Err(disk::too_large(shown)),
        Ok(text) => Ok(FileContents {
            bytes: text.into_bytes(),
            permissions,
            note: None,
            way: WriteTarget::Shown { on_disk: bytes },
        }),
        Err(reason) => {
            let reason = reason.unless_cancelled()?;
            tracing::warn!(file = shown, %reason, "read from disk instead of from the editor");
            on_disk(bytes, Some(format!("as it is on disk: {reason}")), WriteTarget::Disk)
        }
    }
}

/// Like [`load`]; `None` if the file does not exist.
pub(super) fn load_if_there(
    call: &CallContext,
    place: &Path,
    shown: &str,
) -> Result<Option<FileContents>, ToolRefusal> {
    if call.session.client_folders().is_some() {
        return client_buffers::load(call, place, shown);
    }
    if disk::is_there(place) { load(call, place, shown).map(Some) } else { Ok(None) }
}

/// Replaces the loaded contents with `bytes`.
pub(super) fn replace(
    call: &CallContext,
    place: &Path,
    shown: &str,
    loaded: &FileContents,
    bytes: Vec<u8>,
) -> Result<WrittenFile, ToolRefusal> {
    if matches!(loaded.way, WriteTarget::Client) {
        return client_buffers::write(call, place, shown, &loaded.bytes, bytes);
    }
    let on_disk = |bytes: &[u8]| {
        disk::replace(&call.session, place, bytes, &loaded.permissions)
            .map_err(|error| ToolRefusal::io("write", shown, &error))
    };
    disk::check_writable(&loaded.permissions).map_err(|error| ToolRefusal::io("write", shown, &error))?;
    let lender = Lender::of(call, place).filter(|_| !matches!(loaded.way, WriteTarget::Disk));
    if let Some(lender) = lender {
        let reason = match lender.write(&bytes) {
            Ok(()) => return Ok(lender.look_again(&loaded.bytes, bytes)),
            Err(NoAnswer::Cancelled) => return Err(cancellation_refusal(shown)),
            Err(reason) => reason,
        };
        if loaded.is_unsaved() {
            return Err(ToolRefusal::new(format!(
                "`{shown}` was not written: it has unsaved changes in the editor, and {reason}. Nothing was written to \
                 disk either, where they would be lost: ask the user to save the file, then read it again"
            )));
        }
        tracing::warn!(file = shown, %reason, "written to disk instead of through the editor");
    }
    match &loaded.way {
        // The editor may show text with other line ends; the file on disk keeps its own.
        WriteTarget::Shown { on_disk: saved } if *saved != loaded.bytes => on_disk(&text::match_format(saved, &bytes))?,
        WriteTarget::Shown { .. } | WriteTarget::Editor | WriteTarget::Client | WriteTarget::Disk => on_disk(&bytes)?,
    }
    Ok(WrittenFile::new(bytes))
}

/// Creates a file and its missing parent folders. Returns the folders it created, the innermost last.
pub(super) fn create(
    call: &CallContext,
    place: &Path,
    shown: &str,
    text: &str,
) -> Result<(Vec<PathBuf>, WrittenFile), ToolRefusal> {
    if call.session.client_folders().is_some() {
        let written = client_buffers::write(call, place, shown, b"", text.into())?;
        return Ok((Vec::new(), written));
    }
    let lender = Lender::of(call, place);
    let trusted = match &lender {
        None => false,
        Some(lender) => lender.has_nothing_for(shown)? && lender.abilities.write,
    };
    let io = |error: std::io::Error| ToolRefusal::io("write", shown, &error);
    let folders = disk::create_folders(&call.session, place).map_err(io)?;
    let written = match lender.filter(|_| trusted) {
        Some(lender) => lender.create(place, shown, text),
        None => {
            let created = disk::create(&call.session, place, text.as_bytes()).map_err(io);
            created.map(|()| WrittenFile::new(text.into()))
        }
    };
    if written.is_err() {
        disk::remove_folders(&call.session, &folders);
    }
    Ok((folders, written?))
}

/// Reads and writes files at the client. Nothing here falls back to the disk of this machine.
mod client_buffers {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Returns the text of a file. `None` if the client says that there is no such file.
    pub(super) fn load(call: &CallContext, place: &Path, shown: &str) -> Result<Option<FileContents>, ToolRefusal> {
        let lender = lender(call, place, shown)?;
        match lender.read() {
            Ok(text) if text.len() as u64 > MAX_TEXT => Err(disk::too_large(shown)),
            Ok(text) => Ok(Some(FileContents {
                bytes: text.into_bytes(),
                // Only the client knows and keeps them.
                permissions: Permissions::from_mode(0o644),
                note: None,
                way: WriteTarget::Client,
            })),
            Err(NoAnswer::Failed(EditorError::NotFound)) => Ok(None),
            Err(reason) => {
                let reason = reason.unless_cancelled()?;
                Err(ToolRefusal::new(format!(
                    "could not read `{shown}` at the client: {reason}. To create a file there, use `write_file` with \
                     `overwrite: true`"
                )))
            }
        }
    }

    /// Writes a file. `before` is its old text.
    pub(super) fn write(
        call: &CallContext,
        place: &Path,
        shown: &str,
        before: &[u8],
        bytes: Vec<u8>,
    ) -> Result<WrittenFile, ToolRefusal> {
        let lender = lender(call, place, shown)?;
        match lender.write(&bytes) {
            Ok(()) => Ok(lender.look_again(before, bytes)),
            Err(NoAnswer::Cancelled) => Err(cancellation_refusal(shown)),
            Err(reason) => Err(ToolRefusal::new(format!("`{shown}` was not written at the client: {reason}"))),
        }
    }

    fn lender<'a>(call: &'a CallContext, place: &Path, shown: &str) -> Result<Lender<'a>, ToolRefusal> {
        Lender::of(call, place).ok_or_else(|| {
            ToolRefusal::new(format!(
                "`{shown}` is at the client, and no client that lends files shows this session now; tell the user"
            ))
        })
    }
}

/// The editor's access to one file.
struct Lender<'a> {
    call: &'a CallContext,
    editor: &'a Arc<dyn Editor>,
    abilities: EditorCapabilities,
    path: PathBuf,
}

impl<'a> Lender<'a> {
    /// `None` if the editor lends no files, or if the file is in Skein's scratch folder, which no editor knows.
    fn of(call: &'a CallContext, place: &Path) -> Option<Self> {
        let editor = call.session.editor.as_ref()?;
        let abilities = editor.abilities();
        let path = paths::session_path(&call.session, place);
        let lends = (abilities.read || abilities.write) && !path.starts_with(&call.session.scratch);
        lends.then_some(Self { call, editor, abilities, path })
    }

    /// Blocks; must be called on a blocking thread.
    fn read(&self) -> Result<String, NoAnswer> {
        let question = ask(self.call, self.editor.as_ref(), |editor| editor.read(&self.path));
        Handle::current().block_on(question)
    }

    fn write(&self, bytes: &[u8]) -> Result<(), NoAnswer> {
        let cannot = |reason: &str| NoAnswer::Failed(EditorError::Failed(reason.to_owned()));
        if !self.abilities.write {
            return Err(cannot("it only lends its files to read"));
        }
        let text = plain_text(bytes).ok_or_else(|| cannot("what is to be written is not UTF-8 text"))?;
        let question = ask(self.call, self.editor.as_ref(), |editor| editor.write(&self.path, text));
        Handle::current().block_on(question)
    }

    /// Reads a written file back. An editor may format the text on saving, or ask its user to accept it first, and
    /// the model must learn the actual contents.
    fn look_again(&self, before: &[u8], meant: Vec<u8>) -> WrittenFile {
        // If the text cannot be read back, the write is assumed to have worked.
        let now = if self.abilities.read { self.read().ok() } else { None };
        let Some(now) = now.map(String::into_bytes) else { return WrittenFile::new(meant) };
        if text::same_but_for_form(&now, &meant) {
            WrittenFile::new(now)
        } else if now == before {
            let note = "the editor took the text but still shows the old one; the user may have to accept it first";
            WrittenFile { bytes: meant, note: Some(note) }
        } else {
            WrittenFile { bytes: now, note: Some("the editor has changed the text again, as by formatting it") }
        }
    }

    /// Fails if the editor has text for a file that is not on disk. Returns `false` if the editor does not answer.
    fn has_nothing_for(&self, shown: &str) -> Result<bool, ToolRefusal> {
        if !self.abilities.read {
            return Ok(true);
        }
        match self.read() {
            Ok(text) if text.is_empty() => Ok(true),
            Ok(_) => Err(ToolRefusal::new(format!(
                "`{shown}` is open in the editor with text that was never saved; ask the user to save it, then read it"
            ))),
            // Most editors return an error for a file that does not exist.
            Err(reason) => Ok(matches!(reason.unless_cancelled()?, NoAnswer::Failed(_))),
        }
    }

    fn create(&self, place: &Path, shown: &str, text: &str) -> Result<WrittenFile, ToolRefusal> {
        match self.write(text.as_bytes()) {
            Ok(()) => {}
            Err(NoAnswer::Cancelled) => return Err(cancellation_refusal(shown)),
            Err(reason) => tracing::warn!(file = shown, %reason, "created on disk instead of through the editor"),
        }
        // Needed also if the editor keeps the text in a buffer: the file must exist on disk.
        if disk::is_there(place) {
            return Ok(self.look_again(b"", text.into()));
        }
        disk::create(&self.call.session, place, text.as_bytes())
            .map_err(|error| ToolRefusal::io("write", shown, &error))?;
        Ok(WrittenFile::new(text.into()))
    }
}

/// Returns whether an editor can hold the text unchanged. Excludes other encodings, and notebooks, which an editor
/// may show as cells.
fn is_plain_text(place: &Path, bytes: &[u8]) -> bool {
    let is_notebook = place.extension().is_some_and(|extension| extension == "ipynb");
    !is_notebook && image_type(bytes).is_none() && plain_text(bytes).is_some()
}

fn plain_text(bytes: &[u8]) -> Option<String> {
    text::decode(bytes).filter(|decoded| matches!(decoded.encoding, Encoding::Utf8 | Encoding::Utf8WithMark))?;
    String::from_utf8(bytes.to_vec()).ok()
}

fn cancellation_refusal(shown: &str) -> ToolRefusal {
    ToolRefusal::new(format!("the call was cancelled while the editor wrote `{shown}`; look at it before you continue"))
}

#[cfg(test)]
#[path = "buffers_tests.rs"]
mod tests;
