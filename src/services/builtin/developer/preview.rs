//! Computes the change that a call would make to a file, so that the user sees all of it before consenting.

use serde_json::{Map, Value};

use crate::tool::{CallContext, FileChange};

use super::edit::{self, EditFile};
use super::report::SharedLines;
use super::write::{self, WriteFile};
use super::{buffers, paths, text};
use crate::services::builtin::answer::ToolRefusal;

/// Above this size, in bytes, a preview has only the changed part of the file.
const MAX_WHOLE: usize = 1 << 20;

/// Returns the change that a call of `tool` would make. Reads the editor's text if it lends its files. `None` if the
/// tool changes no file or the call would fail.
pub async fn preview(tool: &str, arguments: &Map<String, Value>, context: &CallContext) -> Option<FileChange> {
    let (tool, arguments, context) = (tool.to_owned(), Value::Object(arguments.clone()), context.clone());
    // The text may come from a slow disk or a slow editor.
    let computed = tokio::task::spawn_blocking(move || compute(&tool, arguments, &context));
    match computed.await {
        Ok(Ok(change)) => change,
        Ok(Err(ToolRefusal(reason))) => {
            tracing::debug!(reason, "there is no preview of this change");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "a preview failed");
            None
        }
    }
}

fn compute(tool: &str, arguments: Value, call: &CallContext) -> Result<Option<FileChange>, ToolRefusal> {
    let invalid = |error: serde_json::Error| ToolRefusal::new(error.to_string());
    match tool {
        "edit_file" => {
            let request: EditFile = serde_json::from_value(arguments).map_err(invalid)?;
            change(call, &request.path, |before| {
                edit::apply(before.unwrap_or_default(), &request.edits, text::MAX_TEXT as usize)
            })
        }
        "write_file" => {
            let request: WriteFile = serde_json::from_value(arguments).map_err(invalid)?;
            change(call, &request.path, |before| Ok(write::with_line_ends(before, &request.content).into_owned()))
        }
        _ => Ok(None),
    }
}

/// Returns the change of the file from its present text to the result of `edit`.
fn change(
    call: &CallContext,
    path: &str,
    edit: impl FnOnce(Option<&str>) -> Result<String, ToolRefusal>,
) -> Result<Option<FileChange>, ToolRefusal> {
    let place = paths::file_target(call, path)?;
    let shown = paths::display_path(&call.session, &place);
    let loaded = buffers::load_if_there(call, &place, &shown)?;
    let before = loaded.map(|loaded| text::readable(&loaded.bytes));
    let after = edit(before.as_deref())?;
    let same = SharedLines::between(before.as_deref().unwrap_or_default(), &after);
    let line = same.first_changed(&after);
    let (before, after) = same.shorten(before.as_deref(), &after, MAX_WHOLE);
    Ok(Some(FileChange { path: paths::session_path(&call.session, &place), before, after, line }))
}

#[cfg(test)]
#[path = "preview_tests.rs"]
mod tests;
