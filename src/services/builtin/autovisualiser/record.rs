//! The pictures of a session, and the results that show them.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use rmcp::model::{ContentBlock, Resource};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::raster::Rasterizer;
use super::source::DataSource;
use super::{DrawRequest, PAGE_MIME, meta, page_meta, page_uri};
use crate::chart::{self, ChartSpec, Picture};
use crate::services::builtin::answer::{self, ToolRefusal, ToolReply, count};
use crate::tool::SessionContext;

/// Pictures that a session keeps; older ones stay in the scratch folder.
const MAX_RECORDS: usize = 50;
const MAX_TITLE: usize = 300;

/// A picture with the request that made it.
#[derive(Debug, Clone)]
pub(super) struct ChartRecord {
    id: String,
    title: String,
    request: Arc<DrawRequest>,
    /// The file with the data.
    file: Option<PathBuf>,
    picture: Arc<Picture>,
    png: Option<Arc<[u8]>>,
    /// What the picture leaves out, and why there is no PNG.
    notes: Vec<String>,
}

impl ChartRecord {
    /// Draws a request. Fails with advice if the data does not fit.
    pub(super) fn new(request: DrawRequest, source: DataSource, rasterizer: &Rasterizer) -> Result<Self, ToolRefusal> {
        let options = request.options.clone().unwrap_or_default();
        let title = request.title.as_deref().map(|title| answer::truncate(title, MAX_TITLE).to_owned());
        let spec = ChartSpec { kind: request.kind, data: source.data, title, options };
        let picture = chart::draw(&spec).map_err(ToolRefusal::of)?;
        let mut notes = picture.notes.clone();
        let png = match rasterizer.to_png(&picture.svg) {
            Ok(png) => Some(png.into()),
            Err(error) => {
                notes.push(format!("there is no PNG: {error}"));
                None
            }
        };
        let hash: String = Sha256::digest(&picture.svg).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        let title = spec.title.filter(|title| !title.trim().is_empty());
        let title = title.unwrap_or_else(|| request.kind.title().to_owned());
        let request = Arc::new(request);
        Ok(Self { id: hash, title, request, file: source.file, picture: Arc::new(picture), png, notes })
    }

    pub(super) fn svg(&self) -> &str {
        &self.picture.svg
    }

    pub(super) fn page(&self) -> String {
        chart::to_page(&self.picture, &self.title)
    }

    pub(super) fn to_resource(&self) -> Resource {
        let mut resource = Resource::new(page_uri(&self.id), self.id.clone());
        resource.title = Some(self.title.clone());
        resource.mime_type = Some(PAGE_MIME.to_owned());
        resource.meta = page_meta();
        resource
    }

    /// Writes the files below the scratch folder, and returns text, data, image and link.
    pub(super) fn to_result(&self, session: &SessionContext) -> ToolReply {
        let mut notes = self.notes.clone();
        let files = match self.write_files(&session.scratch.join("charts")) {
            Ok(files) => files,
            Err(error) => {
                notes.push(format!("the files could not be written: {error}"));
                json!({})
            }
        };
        let mut text = format!("drew a {} of {}", self.request.kind.title(), count(self.picture.rows, "row"));
        if let Some(page) = files.get("html").and_then(Value::as_str) {
            text.push_str(&format!("; the page is {page}, with .svg and .png of the same name"));
        }
        for note in &notes {
            text.push_str(&format!("\nNote: {note}"));
        }
        let shown = self.picture.data.as_array().map_or(self.picture.rows, Vec::len);
        let data = json!({
            "uri": page_uri(&self.id), "title": self.title, "kind": self.request.kind,
            "width": self.picture.width, "height": (self.picture.height + 90.0).min(1_200.0),
            "rows": self.picture.rows, "rows_shown": shown, "data": self.picture.data, "notes": notes, "files": files,
        });
        let mut result = answer::with_data(text, data);
        if let Some(png) = &self.png {
            let data = base64::engine::general_purpose::STANDARD.encode(png);
            result.content.push(ContentBlock::image(data, "image/png"));
        }
        result.content.push(ContentBlock::ResourceLink(self.to_resource()));
        result.meta = meta(json!({"ui": {"resourceUri": page_uri(&self.id)}}));
        Ok(result)
    }

    fn write_files(&self, folder: &Path) -> std::io::Result<Value> {
        std::fs::create_dir_all(folder)?;
        let path = |extension: &str| folder.join(format!("{}.{extension}", self.id));
        std::fs::write(path("svg"), self.svg())?;
        std::fs::write(path("html"), self.page())?;
        let shown = |extension: &str| path(extension).to_string_lossy().into_owned();
        let mut files = json!({"svg": shown("svg"), "html": shown("html")});
        if let Some(png) = &self.png {
            std::fs::write(path("png"), png)?;
            files["png"] = json!(shown("png"));
        }
        Ok(files)
    }
}

/// The pictures of one session, oldest first.
#[derive(Debug, Default)]
pub(super) struct ChartList {
    drawings: Mutex<VecDeque<ChartRecord>>,
}

impl ChartList {
    pub(super) fn add(&self, drawing: ChartRecord) {
        let mut drawings = self.lock();
        drawings.retain(|other| other.id != drawing.id);
        drawings.push_back(drawing);
        if drawings.len() > MAX_RECORDS {
            drawings.pop_front();
        }
    }

    pub(super) fn list(&self) -> Vec<ChartRecord> {
        self.lock().iter().cloned().collect()
    }

    pub(super) fn find(&self, id: &str) -> Option<ChartRecord> {
        self.lock().iter().find(|drawing| drawing.id == id).cloned()
    }

    /// Returns the request of the last picture that was drawn from `file`.
    pub(super) fn request_of(&self, file: &Path) -> Option<DrawRequest> {
        let drawings = self.lock();
        let drawing = drawings.iter().rev().find(|drawing| drawing.file.as_deref() == Some(file))?;
        Some((*drawing.request).clone())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ChartRecord>> {
        self.drawings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{ChartData, ChartKind, ChartOptions};

    #[test]
    fn the_oldest_picture_of_a_session_makes_room() {
        let text = "graph TD\nA-->B";
        let data = ChartData::Text(text.to_owned());
        let spec = ChartSpec { kind: ChartKind::Mermaid, data, title: None, options: ChartOptions::default() };
        let request = serde_json::from_value(json!({"kind": "mermaid", "data": text})).unwrap();
        let first = ChartRecord {
            id: "0".to_owned(),
            title: String::new(),
            request: Arc::new(request),
            file: None,
            picture: Arc::new(chart::draw(&spec).unwrap()),
            png: None,
            notes: Vec::new(),
        };
        let list = ChartList::default();
        for number in 0..=MAX_RECORDS {
            list.add(ChartRecord { id: number.to_string(), ..first.clone() });
        }
        assert_eq!(list.list().len(), MAX_RECORDS);
        assert!(list.find("0").is_none() && list.find("1").is_some());
    }
}
