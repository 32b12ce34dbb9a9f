//! Implements `read_file`: returns a file as numbered lines, as an image, as notebook cells, or as a description.

use base64::Engine as _;
use rmcp::model::{CallToolResult, ContentBlock};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::conversation::image_type;
use crate::tool::CallContext;

use super::buffers::{self, FileContents};
use super::files::{Files, Stamp};
use super::output::{MAX_BYTES, MAX_LINES};
use super::{notebook, paths, report, text as contents};
use crate::services::builtin::answer::{ToolRefusal, ToolReply, count, size, text};

/// Maximum size of an image; its base64 form is the limit of providers.
const MAX_IMAGE: usize = 3_750_000;
/// Maximum characters of a line; longer lines are cut.
const MAX_LINE: usize = 2_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFile {
    /// File to read
    path: String,
    /// First line
    #[schemars(range(min = 1))]
    line: Option<usize>,
    /// Number of lines
    #[schemars(range(min = 1, max = 2000))]
    limit: Option<usize>,
}

pub(super) fn read_file(call: &CallContext, files: &Files, request: &ReadFile) -> ToolReply {
    let session = &call.session;
    let place = paths::file_target(call, &request.path)?;
    let shown = paths::display_path(session, &place);
    let FileContents { bytes, note, .. } = buffers::load(call, &place, &shown)?;
    let is_notebook = place.extension().is_some_and(|extension| extension == "ipynb");
    // Line numbers of notebook cells differ from those of the file.
    report::place(call, &place, request.line.filter(|_| !is_notebook));
    files.lock().saw(&place, Stamp::of(&bytes));
    if let Some(mime) = image_type(&bytes) {
        return Ok(image(&shown, mime, &bytes));
    }
    let Some(decoded) = contents::decode(&bytes) else {
        return Ok(text(format!(
            "`{shown}` is binary: {}, {}. Look into it with `shell` if you must",
            contents::kind(&bytes),
            size(bytes.len() as u64)
        )));
    };
    match is_notebook.then(|| notebook::cells(&decoded.text)).flatten() {
        Some(cells) => page(&shown, &cells, None, request),
        None => page(&shown, &decoded.text, note.or(decoded.encoding.note().map(str::to_owned)), request),
    }
}

fn image(shown: &str, mime: &str, bytes: &[u8]) -> CallToolResult {
    if bytes.len() > MAX_IMAGE {
        return text(format!(
            "`{shown}` is an image ({mime}) of {}, too large to look at; make a smaller copy with `shell`",
            size(bytes.len() as u64)
        ));
    }
    let data = base64::engine::general_purpose::STANDARD.encode(bytes);
    let label = ContentBlock::text(format!("{shown} ({mime}, {})", size(bytes.len() as u64)));
    CallToolResult::success(vec![label, ContentBlock::image(data, mime)])
}

fn page(shown: &str, body: &str, note: Option<String>, request: &ReadFile) -> ToolReply {
    let total = body.lines().count();
    let first = request.line.unwrap_or(1).max(1);
    let limit = request.limit.unwrap_or(MAX_LINES).clamp(1, MAX_LINES);
    if total == 0 {
        return Ok(text(format!("`{shown}` is empty")));
    }
    if first > total {
        return Err(ToolRefusal::new(format!("`{shown}` has {}; there is no line {first}", count(total, "line"))));
    }
    let mut page = String::new();
    let mut last = first - 1;
    for (index, line) in body.lines().enumerate().skip(first - 1).take(limit) {
        let line = number_line(index + 1, line);
        if page.len() + line.len() > MAX_BYTES && !page.is_empty() {
            break;
        }
        page.push_str(&line);
        last = index + 1;
    }
    let mut notes: Vec<String> = note.into_iter().collect();
    if last < total {
        notes.push(format!("lines {first}-{last} of {total}; continue with `line: {}`", last + 1));
    }
    if !notes.is_empty() {
        page.push_str(&format!("[{}]\n", notes.join("; ")));
    }
    Ok(text(page))
}

fn number_line(number: usize, line: &str) -> String {
    match line.char_indices().nth(MAX_LINE) {
        None => format!("{number:>5}\t{line}\n"),
        Some((end, _)) => format!("{number:>5}\t{}[... {} more]\n", &line[..end], size((line.len() - end) as u64)),
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
