//! `undo_edit`: a file as it was before this session's last edit of it.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::tool::CallContext;

use super::diff::Diff;
use super::files::{Before, Files, Stamp};
use super::{buffers, disk, paths, report, text as contents};
use crate::services::builtin::answer::{Answer, Refusal, count, structured, text};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UndoEdit {
    /// File
    path: String,
}

pub(super) fn undo_edit(call: &CallContext, request: &UndoEdit) -> Answer {
    let place = paths::target(call, &request.path)?;
    let shown = paths::shown(&call.session, &place);
    let files = call.session.state::<Files>();
    let mut known = files.lock();
    let Some(edit) = known.last_edit(&place) else {
        return Err(Refusal::new(format!("there is no edit of `{shown}` in this session that could be undone")));
    };
    let now = buffers::load(call, &place, &shown)?;
    let text_now = contents::readable(&now.bytes);
    if Stamp::of(&now.bytes) != edit.after {
        return Err(Refusal::new(format!(
            "`{shown}` was changed by somebody else after the last edit; nothing was undone. Read it and edit it instead"
        )));
    }
    let answer = match &edit.before {
        Before::Contents { bytes } => {
            let written = buffers::replace(call, &place, &shown, &now, bytes.clone())?;
            let text = contents::readable(&written.bytes);
            report::changed(call, &place, Some(&text_now), &text);
            let diff = Diff::between(&shown, &text_now, &text);
            let left = known.edits(&place) - 1;
            let said = format!("undone ({} left)\n{}", count(left, "earlier edit"), diff.text);
            structured(written.noted(said), diff.data())
        }
        Before::Nothing { folders } => {
            disk::remove(&call.session, &place).map_err(|error| Refusal::io("remove", &shown, &error))?;
            disk::remove_folders(&call.session, folders);
            report::changed(call, &place, Some(&text_now), "");
            text(format!("removed `{shown}`, which this session had created"))
        }
    };
    known.forget_last_edit(&place);
    Ok(answer)
}
