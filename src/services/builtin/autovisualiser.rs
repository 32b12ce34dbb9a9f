//! Draws data as pictures, each with an interactive page, an SVG and a PNG. Shows files and web pages again when they
//! change.
//!
//! Invariant: a page contains everything it shows and reaches no network. Calls write only below the session's scratch
//! folder.

mod raster;
mod record;
mod source;
mod watch;

use std::path::Path;
use std::sync::Arc;

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{
    ListResourceTemplatesResult, ListResourcesResult, MetaObject, PaginatedRequestParams, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, tool, tool_handler, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use raster::Rasterizer;
use record::{ChartList, ChartRecord};

use super::answer::{ToolRefusal, ToolReply};
use super::computercontroller::{DocumentParser, PageCamera};
use super::{call_context, schema};
use crate::chart::{ChartKind, ChartOptions};
use crate::sandbox::SandboxLauncher;
use crate::tool::{CallContext, SessionStates};

/// MIME type that hosts of MCP Apps display.
const PAGE_MIME: &str = "text/html;profile=mcp-app";
const SVG_MIME: &str = "image/svg+xml";
/// Resource that a host displays for a call. It asks the host for the page of that call. No id is `_view`.
const VIEW: &str = "ui://autovisualiser/_view";
const VIEW_PAGE: &str = include_str!("view.html");

/// The `autovisualiser` service. Clones share the pictures and the fonts.
#[derive(Clone)]
pub struct AutovisualiserService {
    tool_router: Arc<ToolRouter<Self>>,
    drawings: Arc<SessionStates<ChartList>>,
    rasterizer: Arc<Rasterizer>,
    /// Parses workbooks in its own process.
    parser: Arc<DocumentParser>,
    /// Shows web pages in the browser of the session.
    camera: PageCamera,
}

impl std::fmt::Debug for AutovisualiserService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AutovisualiserService")
    }
}

impl Default for AutovisualiserService {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DrawRequest {
    /// Kind of picture
    kind: ChartKind,
    /// Rows such as [{"month": "Jan", "sales": 3}]; for `mermaid` the text. Or `file`
    data: Option<Value>,
    /// CSV, JSON, XLSX, ODS or Mermaid file of the workspace
    #[schemars(length(min = 1))]
    file: Option<String>,
    /// XLSX, ODS: sheet name, default the first with cells
    #[schemars(length(min = 1, max = 31))]
    sheet: Option<String>,
    /// XLSX, ODS: cells with the header row, such as B2:D20
    #[schemars(length(min = 2, max = 30))]
    range: Option<String>,
    /// Title above the picture
    #[schemars(length(max = 300))]
    title: Option<String>,
    /// Columns and look; default: chosen by the data
    options: Option<ChartOptions>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WatchRequest {
    /// Files that were drawn with `draw`, Mermaid files or images; with `url`, the sources of the page
    #[serde(default)]
    #[schemars(length(max = 20))]
    paths: Vec<String>,
    /// The page that `browse` has open. It is loaded again when a file of `paths` changes
    #[schemars(length(min = 1, max = 4000))]
    url: Option<String>,
    /// Seconds to wait for a change, default 60
    #[schemars(range(min = 1, max = 280))]
    seconds: Option<u64>,
}

#[tool_router]
impl AutovisualiserService {
    pub fn new() -> Self {
        Self {
            tool_router: Arc::new(schema::slim(Self::tool_router())),
            drawings: Arc::default(),
            rasterizer: Arc::default(),
            parser: Arc::new(DocumentParser::new(None)),
            camera: PageCamera::default(),
        }
    }

    /// Starts the parser of workbooks with this launcher. Without one, the service refuses workbooks.
    #[must_use]
    pub(super) fn with_launcher(mut self, launcher: Option<SandboxLauncher>) -> Self {
        self.parser = Arc::new(DocumentParser::new(launcher));
        self
    }

    /// Watches web pages with this camera.
    #[must_use]
    pub(super) fn with_camera(mut self, camera: PageCamera) -> Self {
        self.camera = camera;
        self
    }

    #[tool(
        description = "Draw data as a picture with an interactive page. Columns are chosen by their content, or by `options`. \
                       For sankey, chord, network: source, target, value. For treemap, sunburst: text columns are the \
                       levels, or name and parent, or {name, value, children}. For map: country, or lat and lon. For \
                       heatmap: two text columns and a value, or a table. For candlestick: open, high, low, close. For \
                       bubble: x, y, size. For mermaid: flowchart, stateDiagram-v2, sequenceDiagram, pie",
        meta = view_meta(),
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn draw(
        &self,
        Parameters(request): Parameters<DrawRequest>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        let call = call_context(&context)?;
        let drawing = self.make(call, request).await?;
        self.keep(call, &drawing);
        drawing.to_result(&call.session)
    }

    #[tool(
        description = "Wait until a file or a web page changes, and return its new picture",
        meta = view_meta(),
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = false)
    )]
    async fn watch(
        &self,
        Parameters(request): Parameters<WatchRequest>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        watch::watch(self, call_context(&context)?, request).await
    }

    /// Draws on a blocking thread, because large data takes seconds.
    async fn make(&self, call: &CallContext, request: DrawRequest) -> Result<ChartRecord, ToolRefusal> {
        let (rasterizer, session) = (Arc::clone(&self.rasterizer), Arc::clone(&call.session));
        let workbook = source::load_workbook(call, &self.parser, &request).await?;
        let work = tokio::task::spawn_blocking(move || {
            let source = workbook.map_or_else(|| source::load(&session, &request), Ok)?;
            ChartRecord::new(request, source, &rasterizer)
        });
        work.await.unwrap_or_else(|error| Err(ToolRefusal::new(format!("the picture could not be drawn: {error}"))))
    }

    fn keep(&self, call: &CallContext, drawing: &ChartRecord) {
        self.drawings.of(&call.session).add(drawing.clone());
    }

    /// Returns the request of the last picture that was drawn from a file of the session.
    fn request_of(&self, call: &CallContext, file: &Path) -> Option<DrawRequest> {
        self.drawings.of(&call.session).request_of(file)
    }
}

/// Returns tool metadata that names the view, and lets only the model call the tool.
fn view_meta() -> MetaObject {
    meta(json!({"ui": {"visibility": ["model"], "resourceUri": VIEW}})).unwrap_or_default()
}

fn meta(value: Value) -> Option<MetaObject> {
    serde_json::from_value(value).ok()
}

/// Returns the metadata of a page in the format of MCP Apps: it reaches nothing.
fn page_meta() -> Option<MetaObject> {
    let none: [&str; 0] = [];
    let csp = json!({"connectDomains": none, "resourceDomains": none, "frameDomains": none, "baseUriDomains": none});
    meta(json!({"ui": {"csp": csp, "prefersBorder": true}}))
}

fn page_uri(id: &str) -> String {
    format!("ui://autovisualiser/{id}")
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for AutovisualiserService {
    fn get_info(&self) -> rmcp::model::ServerConfig {
        let capabilities = rmcp::model::ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_list_changed()
            .build();
        rmcp::model::ServerConfig::new(capabilities)
            .with_server_info(rmcp::model::Implementation::new("autovisualiser", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let call = call_context(&context).map_err(|refusal| ErrorData::internal_error(refusal.0, None))?;
        let mut view = Resource::new(VIEW, "view");
        view.description = Some("Shows the picture of a call of `draw`".to_owned());
        view.mime_type = Some(PAGE_MIME.to_owned());
        view.meta = page_meta();
        let drawings = self.drawings.of(&call.session).list();
        let pages = drawings.iter().map(ChartRecord::to_resource);
        Ok(ListResourcesResult::with_all_items(std::iter::once(view).chain(pages).collect()))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let template = |uri: &str, name: &str, mime: &str, description: &str| {
            let mut template = ResourceTemplate::new(page_uri(uri), name);
            template.description = Some(description.to_owned());
            template.mime_type = Some(mime.to_owned());
            template
        };
        Ok(ListResourceTemplatesResult::with_all_items(vec![
            template("{id}", "page", PAGE_MIME, "The interactive page of a picture of this session"),
            template("{id}.svg", "picture", SVG_MIME, "The picture as SVG"),
        ]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let call = call_context(&context).map_err(|refusal| ErrorData::internal_error(refusal.0, None))?;
        let unknown = || {
            let message = format!("there is no resource `{}` in this session; call `draw` again", request.uri);
            ErrorData::invalid_params(message, None)
        };
        let (text, mime) = if request.uri == VIEW {
            (VIEW_PAGE.to_owned(), PAGE_MIME)
        } else {
            let id = request.uri.strip_prefix(&page_uri("")).ok_or_else(unknown)?;
            let (id, is_svg) = id.strip_suffix(".svg").map_or((id, false), |id| (id, true));
            let drawing = self.drawings.of(&call.session).find(id).ok_or_else(unknown)?;
            if is_svg { (drawing.svg().to_owned(), SVG_MIME) } else { (drawing.page(), PAGE_MIME) }
        };
        let contents = ResourceContents::TextResourceContents {
            mime_type: Some(mime.to_owned()),
            text,
            meta: (mime == PAGE_MIME).then(page_meta).flatten(),
            uri: request.uri,
        };
        Ok(ReadResourceResponse::Complete(ReadResourceResult::new(vec![contents])))
    }
}

const INSTRUCTIONS: &str = "The client shows the picture of `draw` to the user. Say in a sentence what it shows; do not \
                            repeat the data.";

#[cfg(test)]
#[path = "autovisualiser_tests.rs"]
mod tests;
