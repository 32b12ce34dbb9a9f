//! `write_file`: a whole file at once, if the session knows what it replaces.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::tool::CallContext;

use super::diff::Diff;
use super::disk::{self, Loaded};
use super::files::{Before, Edit, Files, Known, Sight, Stamp};
use super::text::{self, Encoding};
use super::{paths, text::MAX_TEXT};
use crate::services::builtin::answer::{Answer, Refusal, count, structured};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFile {
    /// File
    path: String,
    /// Whole text
    content: String,
    /// Even if not read before
    #[serde(default)]
    overwrite: bool,
}

pub(super) fn write_file(call: &CallContext, request: &WriteFile) -> Answer {
    if request.content.len() as u64 > MAX_TEXT {
        return Err(Refusal::new("the content is too long to be written at once; write it with `shell` in parts"));
    }
    let place = paths::resolve(&call.session, &request.path)?;
    let shown = paths::shown(&call.session, &place);
    if request.path.ends_with('/') || place.is_dir() {
        return Err(Refusal::new(format!("`{shown}` is a folder; name the file in it")));
    }
    let files = call.session.state::<Files>();
    let mut known = files.lock();
    let Some(loaded) = disk::load_if_there(&place, &shown)? else {
        let after = Stamp::of(request.content.as_bytes());
        let folders =
            disk::create(&place, request.content.as_bytes()).map_err(|error| Refusal::io("write", &shown, &error))?;
        known.saw(&place, after);
        known.record(Edit { place, before: Before::Nothing { folders }, after, had_seen: false });
        let lines = request.content.lines().count();
        let data = serde_json::json!({"created": true, "added": lines, "removed": 0});
        return Ok(structured(format!("created `{shown}` ({})", count(lines, "line")), data));
    };
    let had_seen = may_overwrite(&known, &place, &shown, &loaded, request.overwrite)?;
    let form = in_the_same_form(&loaded, &request.content);
    let after = Stamp::of(&form.bytes);
    disk::replace(&place, &form.bytes, &loaded.permissions).map_err(|error| Refusal::io("write", &shown, &error))?;
    known.saw(&place, after);
    known.record(Edit {
        place,
        before: Before::Contents { bytes: loaded.bytes, permissions: loaded.permissions },
        after,
        had_seen,
    });
    let diff = Diff::between(&shown, &form.old, &form.new);
    Ok(structured(format!("wrote `{shown}` (+{} -{} lines)", diff.added, diff.removed), diff.data()))
}

/// True if the session has seen what it replaces.
fn may_overwrite(
    known: &Known,
    place: &std::path::Path,
    shown: &str,
    loaded: &Loaded,
    overwrite: bool,
) -> Result<bool, Refusal> {
    match known.sight(place, Stamp::of(&loaded.bytes)) {
        Sight::Current => Ok(true),
        Sight::Never if overwrite => Ok(false),
        Sight::Never => Err(Refusal::new(format!(
            "`{shown}` exists and was not read in this session; read it first and use `edit_file`, or set `overwrite: true`"
        ))),
        // Also with `overwrite`: it speaks of a file that the model knew.
        Sight::Changed => {
            Err(Refusal::new(format!("`{shown}` was changed on disk since it was read; read it again, then write")))
        }
    }
}

/// What a replacement is made of.
struct Form {
    old: String,
    new: String,
    bytes: Vec<u8>,
}

/// Keeps the old encoding and line ends where that is possible.
fn in_the_same_form(loaded: &Loaded, content: &str) -> Form {
    let as_written = || content.as_bytes().to_vec();
    let Some(old) = text::decode(&loaded.bytes) else {
        return Form { old: String::new(), new: content.to_owned(), bytes: as_written() };
    };
    let ended = if text::uses_crlf(&old.text) { text::with_crlf(content) } else { content.into() };
    let new = match old.encoding {
        Encoding::Utf8 | Encoding::Latin1 => ended.as_ref(),
        // A mark that the model wrote itself is not doubled.
        Encoding::Utf8WithMark | Encoding::Utf16Le | Encoding::Utf16Be => {
            ended.strip_prefix('\u{feff}').unwrap_or(&ended)
        }
    };
    let bytes = old.encoding.encode(new).unwrap_or_else(as_written);
    Form { old: old.text, new: new.to_owned(), bytes }
}

#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
