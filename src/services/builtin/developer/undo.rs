//! Implements `undo_edit`: restores a file to its state before this session's last edit.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::tool::CallContext;

use super::diff::Diff;
use super::files::{Files, PriorContents, Stamp};
use super::{buffers, disk, paths, report, text as contents};
use crate::services::builtin::answer::{ToolRefusal, ToolReply, count, text, with_data};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UndoEdit {
    /// File to restore
    path: String,
}

pub(super) fn undo_edit(call: &CallContext, files: &Files, request: &UndoEdit) -> ToolReply {
    let place = paths::target(call, &request.path)?;
    let shown = paths::display_path(&call.session, &place);
    let mut known = files.lock();
    let Some(edit) = known.last_edit(&place) else {
        return Err(ToolRefusal::new(format!("there is no edit of `{shown}` in this session that could be undone")));
    };
    let now = buffers::load(call, &place, &shown)?;
    let text_now = contents::readable(&now.bytes);
    if Stamp::of(&now.bytes) != edit.after {
        return Err(ToolRefusal::new(format!(
            "`{shown}` was changed by another program after the last edit; nothing was undone. Read it and edit it instead"
        )));
    }
    let answer = match &edit.before {
        PriorContents::Contents { bytes } => {
            let written = buffers::replace(call, &place, &shown, &now, bytes.clone())?;
            let text = contents::readable(&written.bytes);
            report::report_change(call, &place, Some(&text_now), &text);
            let diff = Diff::between(&shown, &text_now, &text);
            let left = known.edits(&place) - 1;
            let said = format!("undone ({} left)\n{}", count(left, "earlier edit"), diff.text);
            with_data(written.with_note(said), diff.data())
        }
        PriorContents::Nothing { folders } => {
            disk::remove(&call.session, &place).map_err(|error| ToolRefusal::io("remove", &shown, &error))?;
            disk::remove_folders(&call.session, folders);
            report::report_change(call, &place, Some(&text_now), "");
            text(format!("removed `{shown}`, which this session had created"))
        }
    };
    known.forget_last_edit(&place);
    Ok(answer)
}
