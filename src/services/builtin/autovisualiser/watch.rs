//! Waits for a change of files, and returns the picture of the file that changed.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use rmcp::model::ContentBlock;
use serde_json::json;
use tokio::time::Instant;

use super::source;
use super::{AutovisualiserService, DrawRequest, WatchRequest};
use crate::chart::ChartKind;
use crate::services::builtin::answer::{self, ToolRefusal, ToolReply, count};
use crate::services::builtin::developer::paths;
use crate::tool::CallContext;

const MAX_PATHS: usize = 20;
const DEFAULT_SECONDS: u64 = 60;
const MAX_SECONDS: u64 = 280;
/// Time between two looks at the files. A file counts as changed when it is the same in two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Largest image that models accept.
const MAX_IMAGE: usize = 3_750_000;

/// A file with the way to show it.
struct WatchedFile {
    path: PathBuf,
    shown: String,
    kind: FileKind,
    stamp: Option<(SystemTime, u64)>,
}

enum FileKind {
    /// Drawn again with this request.
    Data(Box<DrawRequest>),
    Image {
        mime: &'static str,
    },
}

impl WatchedFile {
    /// Returns time and size of the file. `None` if it does not exist.
    fn read_stamp(&self) -> Option<(SystemTime, u64)> {
        let metadata = std::fs::symlink_metadata(&self.path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    }
}

pub(super) async fn watch(service: &AutovisualiserService, call: &CallContext, request: WatchRequest) -> ToolReply {
    if request.url.is_some() {
        return Err(ToolRefusal::new(
            "this service cannot watch a web page: that needs the tool `browse` of the service `computercontroller`. \
             Use `browse` if you have it, or watch the files of the page with `paths`",
        ));
    }
    if request.paths.is_empty() || request.paths.len() > MAX_PATHS {
        return Err(ToolRefusal::new(format!("give 1 to {MAX_PATHS} files in `paths`")));
    }
    let seconds = request.seconds.unwrap_or(DEFAULT_SECONDS);
    if !(1..=MAX_SECONDS).contains(&seconds) {
        return Err(ToolRefusal::new(format!(
            "`seconds` is between 1 and {MAX_SECONDS}; call `watch` again to wait longer"
        )));
    }
    let mut files = request.paths.iter().map(|path| prepare(service, call, path)).collect::<Result<Vec<_>, _>>()?;
    for file in &mut files {
        file.stamp = file.read_stamp();
    }
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let Some(file) = wait_for_change(&files, call, deadline).await else {
        let names: Vec<_> = files.iter().map(|file| format!("`{}`", file.shown)).collect();
        let text = format!("no change of {} in {}", names.join(", "), count(seconds as usize, "second"));
        return Ok(answer::with_data(text, json!({"changed": false})));
    };
    show(service, call, file).await
}

fn prepare(service: &AutovisualiserService, call: &CallContext, name: &str) -> Result<WatchedFile, ToolRefusal> {
    let path = paths::resolve(&call.session, name)?;
    let shown = paths::display_path(&call.session, &path);
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_lowercase();
    let image = match extension.as_str() {
        "png" => Some("image/png"),
        "jpg" | "jpeg" => Some("image/jpeg"),
        "gif" => Some("image/gif"),
        "webp" => Some("image/webp"),
        _ => None,
    };
    let kind = match (image, service.request_of(call, &path)) {
        (Some(mime), _) => FileKind::Image { mime },
        (None, Some(request)) => FileKind::Data(Box::new(request)),
        (None, None) if matches!(extension.as_str(), "mmd" | "mermaid") => FileKind::Data(Box::new(DrawRequest {
            kind: ChartKind::Mermaid,
            data: None,
            file: Some(name.to_owned()),
            sheet: None,
            range: None,
            title: None,
            options: None,
        })),
        (None, None) => {
            return Err(ToolRefusal::new(format!(
                "`{shown}` was not drawn in this session; call `draw` with `file` first, so that the picture is known"
            )));
        }
    };
    Ok(WatchedFile { path, shown, kind, stamp: None })
}

/// Returns the first file that changed and then stayed the same between two looks. `None` at the deadline or when the call
/// is cancelled.
async fn wait_for_change<'a>(
    files: &'a [WatchedFile],
    call: &CallContext,
    deadline: Instant,
) -> Option<&'a WatchedFile> {
    let mut changed: Option<(&WatchedFile, (SystemTime, u64))> = None;
    loop {
        tokio::select! {
            biased;
            () = call.cancel.cancelled() => return None,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
        if let Some((file, stamp)) = changed
            && file.read_stamp() == Some(stamp)
        {
            return Some(file);
        }
        // A file that is being replaced does not exist for a moment.
        let different = |file: &&WatchedFile| file.read_stamp().is_some_and(|stamp| Some(stamp) != file.stamp);
        changed = files.iter().find(different).and_then(|file| Some((file, file.read_stamp()?)));
        if Instant::now() >= deadline && changed.is_none() {
            return None;
        }
    }
}

async fn show(service: &AutovisualiserService, call: &CallContext, file: &WatchedFile) -> ToolReply {
    match &file.kind {
        FileKind::Data(request) => {
            let drawing = service.make(call, (**request).clone()).await;
            let drawing = drawing.map_err(|ToolRefusal(reason)| {
                ToolRefusal::new(format!("`{}` changed, and there is no new picture: {reason}", file.shown))
            })?;
            service.keep(call, &drawing);
            let mut result = drawing.to_result(&call.session)?;
            result.content.insert(0, ContentBlock::text(format!("`{}` changed", file.shown)));
            Ok(result)
        }
        FileKind::Image { mime } => {
            let bytes = source::read(&call.session, &file.path)
                .map_err(|error| ToolRefusal::io("read", &file.shown, &error))?;
            if bytes.len() > MAX_IMAGE {
                let bytes = answer::size(bytes.len() as u64);
                return Err(ToolRefusal::new(format!("`{}` changed and has {bytes}; make it smaller", file.shown)));
            }
            let mut result =
                answer::with_data(format!("`{}` changed", file.shown), json!({"changed": true, "path": file.shown}));
            let data = base64::engine::general_purpose::STANDARD.encode(bytes);
            result.content.push(ContentBlock::image(data, *mime));
            Ok(result)
        }
    }
}
