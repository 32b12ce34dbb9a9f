//! Implements `write_file`: writes a whole file, if the session has seen the contents it replaces.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::tool::CallContext;

use super::buffers::{self, FileContents, WrittenFile};
use super::diff::Diff;
use super::files::{Edit, FileFreshness, FileRecords, Files, PriorContents, Stamp};
use super::text::{self, Encoding};
use super::{paths, report, text::MAX_TEXT};
use crate::services::builtin::answer::{ToolRefusal, ToolReply, count, with_data};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFile {
    /// File to write
    pub(super) path: String,
    /// Whole text
    pub(super) content: String,
    /// Even if not read before
    #[serde(default)]
    overwrite: bool,
}

pub(super) fn write_file(call: &CallContext, files: &Files, request: &WriteFile) -> ToolReply {
    if request.content.len() as u64 > MAX_TEXT {
        return Err(ToolRefusal::new("the content is too long to be written at once; write it with `shell` in parts"));
    }
    let place = paths::file_target(call, &request.path)?;
    let shown = paths::display_path(&call.session, &place);
    let is_at_client = call.session.client_folders().is_some();
    if request.path.ends_with('/') || (!is_at_client && place.is_dir()) {
        return Err(ToolRefusal::new(format!("`{shown}` is a folder; name the file in it")));
    }
    let mut known = files.lock();
    let loaded = match buffers::load_if_there(call, &place, &shown) {
        // Many clients give one error for a missing file and for an unreadable one.
        Err(_) if is_at_client && request.overwrite => None,
        loaded => loaded?,
    };
    let Some(loaded) = loaded else {
        return create(call, &mut known, place, &shown, &request.content);
    };
    let had_seen = may_overwrite(&known, &place, &shown, &loaded, request.overwrite)?;
    let form = keep_format(&loaded, &request.content);
    let written = buffers::replace(call, &place, &shown, &loaded, form.bytes)?;
    call.session.path_watches().accept_file(&place);
    saw(&mut known, &place, &written);
    let new = text::readable(&written.bytes);
    report::report_change(call, &place, Some(&form.old), &new);
    let after = Stamp::of(&written.bytes);
    known.record(Edit { place, before: PriorContents::Contents { bytes: loaded.bytes }, after, had_seen });
    let diff = Diff::between(&shown, &form.old, &new);
    let text = format!("wrote `{shown}` (+{} -{} lines)", diff.added, diff.removed);
    Ok(with_data(written.with_note(text), diff.data()))
}

fn create(call: &CallContext, known: &mut FileRecords, place: PathBuf, shown: &str, content: &str) -> ToolReply {
    let (folders, written) = buffers::create(call, &place, shown, content)?;
    call.session.path_watches().accept_file(&place);
    saw(known, &place, &written);
    report::report_change(call, &place, None, &text::readable(&written.bytes));
    let after = Stamp::of(&written.bytes);
    known.record(Edit { place, before: PriorContents::Nothing { folders }, after, had_seen: false });
    let lines = content.lines().count();
    let data = serde_json::json!({"created": true, "added": lines, "removed": 0});
    Ok(with_data(written.with_note(format!("created `{shown}` ({})", count(lines, "line"))), data))
}

/// Marks the written contents as seen, unless the editor changed them.
fn saw(known: &mut FileRecords, place: &Path, written: &WrittenFile) {
    if written.note.is_none() {
        known.saw(place, Stamp::of(&written.bytes));
    }
}

/// Returns whether the session has seen the contents it replaces. Fails if it may not overwrite them.
fn may_overwrite(
    known: &FileRecords,
    place: &Path,
    shown: &str,
    loaded: &FileContents,
    overwrite: bool,
) -> Result<bool, ToolRefusal> {
    match known.sight(place, Stamp::of(&loaded.bytes)) {
        FileFreshness::Current => Ok(true),
        FileFreshness::Never if overwrite => Ok(false),
        FileFreshness::Never => Err(ToolRefusal::new(format!(
            "`{shown}` exists and was not read in this session; read it first and use `edit_file`, or set `overwrite: true`"
        ))),
        // `overwrite` does not apply: it covers files that the session has not read, not files that changed since.
        FileFreshness::Changed => {
            let place = loaded.location_text();
            Err(ToolRefusal::new(format!("`{shown}` was changed {place} since it was read; read it again, then write")))
        }
    }
}

/// Returns `content` with the line ends of the text that it replaces.
pub(super) fn with_line_ends<'a>(old: Option<&str>, content: &'a str) -> Cow<'a, str> {
    if old.is_some_and(text::uses_crlf) { text::with_crlf(content) } else { content.into() }
}

/// The old text and the new bytes of a replacement.
struct ReplacementBytes {
    old: String,
    bytes: Vec<u8>,
}

/// Encodes `content` with the old encoding and line ends where possible.
fn keep_format(loaded: &FileContents, content: &str) -> ReplacementBytes {
    let as_written = || content.as_bytes().to_vec();
    let Some(old) = text::decode(&loaded.bytes) else {
        return ReplacementBytes { old: String::new(), bytes: as_written() };
    };
    let ended = with_line_ends(Some(&old.text), content);
    let new = match old.encoding {
        Encoding::Utf8 | Encoding::Latin1 => ended.as_ref(),
        // Avoids a second byte order mark if the model wrote one.
        Encoding::Utf8WithMark | Encoding::Utf16Le | Encoding::Utf16Be => {
            ended.strip_prefix('\u{feff}').unwrap_or(&ended)
        }
    };
    let bytes = old.encoding.encode(new).unwrap_or_else(as_written);
    ReplacementBytes { old: old.text, bytes }
}

#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
