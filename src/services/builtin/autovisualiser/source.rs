//! Loads the data of a picture: inline, or from a file of the session's folders.

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::DrawRequest;
use crate::chart::{ChartData, ChartError, ChartKind, DataTable};
use crate::document::TableRequest;
use crate::services::builtin::answer::{ToolRefusal, size};
use crate::services::builtin::computercontroller::{DocumentParser, ParserJob, ParserReply};
use crate::services::builtin::developer::paths;
use crate::tool::{CallContext, SessionContext};

const MAX_FILE: u64 = 32 * 1024 * 1024;
/// Bytes of inline data as JSON.
const MAX_INLINE: usize = 8 * 1024 * 1024;

/// The data, and the file that it came from.
#[derive(Debug, Clone)]
pub(super) struct DataSource {
    pub(super) data: ChartData,
    pub(super) file: Option<PathBuf>,
}

/// Loads the data of a request. Fails unless exactly one of `data` and `file` is given.
pub(super) fn load(session: &SessionContext, request: &DrawRequest) -> Result<DataSource, ToolRefusal> {
    match (&request.data, &request.file) {
        (Some(data), None) => {
            if data.to_string().len() > MAX_INLINE {
                return Err(ToolRefusal::new("`data` is too large; write it to a CSV file and give `file`"));
            }
            let data = ChartData::from_json(request.kind, &parse_text(request.kind, data)).map_err(ToolRefusal::of)?;
            Ok(DataSource { data, file: None })
        }
        (None, Some(_)) if request.sheet.is_some() || request.range.is_some() => {
            Err(ToolRefusal::new("`sheet` and `range` are for XLSX and ODS files; leave them out"))
        }
        (None, Some(file)) => load_file(session, request.kind, file),
        (Some(_), Some(_)) => Err(ToolRefusal::new("give either `data` or `file`")),
        (None, None) => Err(ToolRefusal::new("give `data` (rows, or the text of a Mermaid diagram) or `file`")),
    }
}

/// Loads the data of a workbook, which another process parses. `None` if the request has no such file.
pub(super) async fn load_workbook(
    call: &CallContext,
    parser: &DocumentParser,
    request: &DrawRequest,
) -> Result<Option<DataSource>, ToolRefusal> {
    let (None, Some(name)) = (&request.data, &request.file) else { return Ok(None) };
    let is_workbook = |ending: &str| matches!(ending.to_lowercase().as_str(), "xlsx" | "xlsm" | "ods");
    if request.kind == ChartKind::Mermaid || !name.rsplit_once('.').is_some_and(|(_, ending)| is_workbook(ending)) {
        return Ok(None);
    }
    let place = paths::resolve(&call.session, name)?;
    let shown = paths::display_path(&call.session, &place);
    let (session, path) = (Arc::clone(&call.session), place.clone());
    let bytes = tokio::task::spawn_blocking(move || read(&session, &path))
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)));
    let bytes = check_size(bytes, &shown)?;
    let wanted = TableRequest { sheet: request.sheet.clone(), range: request.range.clone() };
    let job = ParserJob::Table { name: shown.clone(), request: wanted };
    let rows = match parser.run(call, &job, bytes).await.map_err(|ToolRefusal(reason)| refuse(&shown, reason))? {
        ParserReply::Table(rows) => rows,
        _ => return Err(refuse(&shown, "the parser gave an unexpected answer; tell the user")),
    };
    let rows = rows.into_iter().map(|row| row.into_iter().map(Value::from).collect::<Value>()).collect();
    let data = ChartData::from_json(request.kind, &Value::Array(rows)).map_err(|error| refuse(&shown, error))?;
    Ok(Some(DataSource { data, file: Some(place) }))
}

fn refuse(shown: &str, problem: impl std::fmt::Display) -> ToolRefusal {
    ToolRefusal::new(format!("`{shown}`: {problem}"))
}

/// Some models send JSON as a text. Other text stays what it is, and the error names the form.
fn parse_text(kind: ChartKind, data: &Value) -> Value {
    match data {
        Value::String(text) if kind != ChartKind::Mermaid => {
            serde_json::from_str(text).unwrap_or_else(|_| data.clone())
        }
        data => data.clone(),
    }
}

fn load_file(session: &SessionContext, kind: ChartKind, name: &str) -> Result<DataSource, ToolRefusal> {
    let place = paths::resolve(session, name)?;
    let shown = paths::display_path(session, &place);
    let text = read_text(session, &place, &shown)?;
    let refuse = |error: ChartError| refuse(&shown, error);
    let extension = place.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_lowercase();
    let data = match (kind, extension.as_str()) {
        (ChartKind::Mermaid, _) => ChartData::Text(text),
        (_, "csv" | "tsv") => ChartData::Table(DataTable::from_csv(&text).map_err(refuse)?),
        (_, "json") => {
            let value = serde_json::from_str(&text)
                .map_err(|error| ToolRefusal::new(format!("`{shown}` is no valid JSON: {error}")))?;
            ChartData::from_json(kind, &value).map_err(refuse)?
        }
        (_, "jsonl" | "ndjson") => {
            let line = |(index, line): (usize, &str)| {
                serde_json::from_str::<Value>(line)
                    .map_err(|error| ToolRefusal::new(format!("`{shown}`, line {}: {error}", index + 1)))
            };
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            let rows: Vec<_> = lines.map(line).collect::<Result<_, _>>()?;
            ChartData::from_json(kind, &Value::Array(rows)).map_err(refuse)?
        }
        _ => {
            return Err(ToolRefusal::new(format!(
                "`{shown}` is no CSV, JSON, XLSX or ODS file; save its data as CSV, or give the rows as `data`"
            )));
        }
    };
    Ok(DataSource { data, file: Some(place) })
}

/// Reads a text file. Bytes that are not UTF-8 are read as Windows-1252, which older spreadsheets write.
fn read_text(session: &SessionContext, place: &std::path::Path, shown: &str) -> Result<String, ToolRefusal> {
    let bytes = check_size(read(session, place), shown)?;
    if bytes.contains(&0) {
        return Err(ToolRefusal::new(format!("`{shown}` is binary; save its data as CSV or JSON")));
    }
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| encoding_rs::WINDOWS_1252.decode(error.as_bytes()).0.into_owned()))
}

/// Fails if a file could not be read or is too large.
fn check_size(bytes: io::Result<Vec<u8>>, shown: &str) -> Result<Vec<u8>, ToolRefusal> {
    let bytes = bytes.map_err(|error| match error.kind() {
        io::ErrorKind::IsADirectory => ToolRefusal::new(format!("`{shown}` is a folder; give a file")),
        _ => ToolRefusal::io("read", shown, &error),
    })?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(ToolRefusal::new(format!("`{shown}` is larger than {}; aggregate its data first", size(MAX_FILE))));
    }
    Ok(bytes)
}

/// Reads at most one byte more than the limit.
pub(super) fn read(session: &SessionContext, place: &std::path::Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    paths::anchor(session, place)?.read()?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
