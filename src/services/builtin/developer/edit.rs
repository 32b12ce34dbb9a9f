//! Implements `edit_file`: exact replacements, all of them or none.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::tool::CallContext;

use super::diff::Diff;
use super::files::{Edit, FileFreshness, Files, PriorContents, Stamp};
use super::{buffers, nearest, paths, report, text};
use crate::services::builtin::answer::{ToolRefusal, ToolReply, with_data};

/// Maximum number of line numbers in a message.
const MAX_PLACES: usize = 20;
/// Maximum number of edits in one call. Each one reads the whole text.
const MAX_EDITS: usize = 100;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EditFile {
    /// File to edit
    pub(super) path: String,
    /// In this order
    #[schemars(length(min = 1, max = 100))]
    pub(super) edits: Vec<Replacement>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(in super::super) struct Replacement {
    /// Exact text, unique in the file
    #[schemars(length(min = 1))]
    before: String,
    /// New text
    after: String,
    /// Replace every match
    #[serde(default)]
    all: bool,
}

pub(super) fn edit_file(call: &CallContext, files: &Files, request: &EditFile) -> ToolReply {
    let place = paths::file_target(call, &request.path)?;
    let shown = paths::display_path(&call.session, &place);
    let mut known = files.lock();
    let loaded = buffers::load(call, &place, &shown)?;
    let decoded = text::decode(&loaded.bytes).ok_or_else(|| {
        ToolRefusal::new(format!("`{shown}` is a binary file; change it with the program that made it"))
    })?;
    let edited = apply(&decoded.text, &request.edits, text::MAX_TEXT as usize)
        .map_err(|ToolRefusal(reason)| ToolRefusal(format!("`{shown}` was not changed: {reason}")))?;
    let bytes = decoded.encoding.encode(&edited).ok_or_else(|| {
        ToolRefusal::new(format!(
            "`{shown}` was not changed: it is in Latin-1, which has no sign for a character you wrote"
        ))
    })?;
    let had_seen = known.sight(&place, Stamp::of(&loaded.bytes)) == FileFreshness::Current;
    // The consent was for the edits only. The rest of a file that needs consent still needs it.
    let is_pending = call.session.path_watches().is_pending(&place);
    let written = buffers::replace(call, &place, &shown, &loaded, bytes)?;
    if !is_pending {
        call.session.path_watches().accept_file(&place);
    }
    let after = Stamp::of(&written.bytes);
    // The diff also shows how an editor changed the text.
    if had_seen {
        known.saw(&place, after);
    }
    let edited = text::readable(&written.bytes);
    report::report_change(call, &place, Some(&decoded.text), &edited);
    known.record(Edit { place, before: PriorContents::Contents { bytes: loaded.bytes }, after, had_seen });
    let diff = Diff::between(&shown, &decoded.text, &edited);
    Ok(with_data(written.with_note(diff.text.clone()), diff.data()))
}

/// Applies all edits in order, to a file or an app, and returns the text. Fails before it builds a text of more
/// than `limit` bytes: repeated replacement of all matches grows a text exponentially.
pub(in super::super) fn apply(text: &str, edits: &[Replacement], limit: usize) -> Result<String, ToolRefusal> {
    if edits.is_empty() {
        return Err(ToolRefusal::new("there is no edit to make"));
    }
    if edits.len() > MAX_EDITS {
        return Err(ToolRefusal::new(format!(
            "{} edits are too many for one call; make at most {MAX_EDITS}",
            edits.len()
        )));
    }
    let crlf = text::uses_crlf(text);
    let mut edited = text.to_owned();
    for (index, edit) in edits.iter().enumerate() {
        edited = replace(&edited, edit, crlf, limit).map_err(|ToolRefusal(reason)| match edits.len() {
            1 => ToolRefusal(reason),
            total => ToolRefusal(format!("edit {} of {total}: {reason}", index + 1)),
        })?;
    }
    if edited == text {
        return Err(ToolRefusal::new("the edits together change nothing"));
    }
    Ok(edited)
}

fn replace(text: &str, edit: &Replacement, crlf: bool, limit: usize) -> Result<String, ToolRefusal> {
    if edit.before.is_empty() {
        return Err(ToolRefusal::new("`before` is empty; give the text to replace, or rewrite the whole file"));
    }
    if edit.before == edit.after {
        return Err(ToolRefusal::new("`before` and `after` are the same"));
    }
    let (before, after) = match_line_ends(text, edit, crlf);
    let (before, after) = (before.as_ref(), after.as_ref());
    let count = text.matches(before).count();
    if edit.all || count == 1 {
        check_size(text, count, before, after, limit)?;
    }
    match count {
        0 => Err(ToolRefusal::new(format!("`before` was not found. {}", nearest::describe(text, &edit.before)))),
        1 => Ok(text.replacen(before, after, 1)),
        _ if edit.all => Ok(text.replace(before, after)),
        _ => Err(ToolRefusal::new(format!(
            "`before` was found {count} times, at lines {}; add lines around it until it is unique, or set `all: true`",
            line_numbers(text, before)
        ))),
    }
}

/// Fails if replacing `count` matches grows the text beyond `limit` bytes.
fn check_size(text: &str, count: usize, before: &str, after: &str, limit: usize) -> Result<(), ToolRefusal> {
    let kept = text.len() - count * before.len();
    let size = count.saturating_mul(after.len()).saturating_add(kept);
    if size > limit && size > text.len() {
        return Err(ToolRefusal::new(format!(
            "the text would grow to {size} bytes by this edit, and at most {limit} are possible; replace fewer \
             matches, or write less"
        )));
    }
    Ok(())
}

/// Returns the edit with the line ends that occur in the file. A model sees and writes `\n` in any file. For a CR
/// LF file the converted form is tried first, because plain `\n` would match within a line end.
fn match_line_ends<'a>(text: &str, edit: &'a Replacement, crlf: bool) -> (Cow<'a, str>, Cow<'a, str>) {
    let as_written = (Cow::from(&edit.before), Cow::from(&edit.after));
    let converted = (text::with_crlf(&edit.before), text::with_crlf(&edit.after));
    let (first, second) = if crlf { (converted, as_written) } else { (as_written, converted) };
    if text.contains(first.0.as_ref()) { first } else { second }
}

fn line_numbers(text: &str, wanted: &str) -> String {
    let number = |(at, _): (usize, &str)| (text[..at].matches('\n').count() + 1).to_string();
    let mut places = text.match_indices(wanted);
    let mut numbers: Vec<String> = places.by_ref().take(MAX_PLACES).map(number).collect();
    if places.next().is_some() {
        numbers.push("...".to_owned());
    }
    numbers.join(", ")
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
