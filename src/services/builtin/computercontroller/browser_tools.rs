//! The tools of the browser: `browse`, `browse_act` and `browse_read`.

use std::sync::Arc;
use std::time::Duration;

use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::browser::{BrowserAction, PageReport, PageWish};
use super::{ComputerControllerService, MAX_LINES, PageCamera, TextPart};
use crate::sandbox::proxy::InsideNetwork;
use crate::services::builtin::answer::{self, ToolRefusal, ToolReply, label_untrusted};
use crate::services::builtin::call_context;
use crate::services::builtin::developer::SessionServers;

/// Actions of one call.
const MAX_ACTIONS: usize = 20;
/// The longest wait for a change of the page, in seconds.
const MAX_WATCH: u64 = 60;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Browse {
    /// http or https, also of a server that `shell` started, such as http://localhost:5173
    #[schemars(length(min = 1, max = 4000))]
    url: String,
    /// Add a picture of the page
    #[serde(default)]
    screenshot: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BrowseAct {
    /// In order; the first that fails is the last
    #[schemars(length(min = 1, max = 20))]
    actions: Vec<BrowserAction>,
    /// Add a picture of the page
    #[serde(default)]
    screenshot: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BrowseRead {
    /// Only lines with this text
    #[schemars(length(max = 500))]
    search: Option<String>,
    /// First line of a long page
    #[schemars(range(min = 1))]
    line: Option<usize>,
    /// Add a picture of the page
    #[serde(default)]
    screenshot: bool,
    /// Seconds to wait until the page looks different
    #[schemars(range(min = 1, max = 60))]
    watch: Option<u64>,
}

#[tool_router(router = browser_tools, vis = "pub(super)")]
impl ComputerControllerService {
    #[tool(
        description = "Open a page in a browser without the user's logins; returns its elements with references such as e12",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = true),
        meta = url_argument("url")
    )]
    async fn browse(&self, Parameters(request): Parameters<Browse>, context: RequestContext<RoleServer>) -> ToolReply {
        let call = call_context(&context)?;
        let desktop = &self.desktop;
        let servers: Arc<dyn InsideNetwork> = Arc::new(SessionServers::of(&desktop.shells, &call.session));
        let wish = PageWish { picture: request.screenshot };
        let browser = desktop.browsers.of(&call.session);
        let report = browser.open(&desktop.browser_setup, call, servers, &request.url, wish).await?;
        show_page(&[], report, 1, None)
    }

    #[tool(
        description = "Act in the open page: click, fill, select, check, upload, press keys, scroll, wait; returns the page after it",
        annotations(read_only_hint = false, destructive_hint = true, idempotent_hint = false, open_world_hint = true)
    )]
    async fn browse_act(
        &self,
        Parameters(request): Parameters<BrowseAct>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        let call = call_context(&context)?;
        if !(1..=MAX_ACTIONS).contains(&request.actions.len()) {
            return Err(ToolRefusal::new(format!("`actions` has 1 to {MAX_ACTIONS} actions")));
        }
        let wish = PageWish { picture: request.screenshot };
        let (done, report) = self.desktop.browsers.of(&call.session).act(call, &request.actions, wish).await?;
        show_page(&done, report, 1, None)
    }

    #[tool(
        description = "Read the open page as it is now",
        annotations(read_only_hint = true, destructive_hint = false, idempotent_hint = true, open_world_hint = true)
    )]
    async fn browse_read(
        &self,
        Parameters(request): Parameters<BrowseRead>,
        context: RequestContext<RoleServer>,
    ) -> ToolReply {
        let call = call_context(&context)?;
        let mut done = Vec::new();
        if let Some(seconds) = request.watch {
            if !(1..=MAX_WATCH).contains(&seconds) {
                return Err(ToolRefusal::new(format!("`watch` is between 1 and {MAX_WATCH} seconds")));
            }
            let camera = PageCamera::new(Arc::clone(&self.desktop.browsers));
            let deadline = Instant::now() + Duration::from_secs(seconds);
            let changed = camera.wait_for_change(call, deadline).await?.is_some();
            let seconds = answer::count(seconds as usize, "second");
            done.push(if changed { "the page changed".to_owned() } else { format!("no change in {seconds}") });
        }
        let wish = PageWish { picture: request.screenshot };
        let report = self.desktop.browsers.of(&call.session).read(call, wish).await?;
        show_page(&done, report, request.line.unwrap_or(1).max(1), request.search.as_deref())
    }
}

fn url_argument(argument: &str) -> MetaObject {
    let mut meta = MetaObject::default();
    meta.insert("skein/url_argument".to_owned(), json!(argument));
    meta
}

/// Returns the page as untrusted data, below what was done.
fn show_page(done: &[String], report: PageReport, first: usize, search: Option<&str>) -> ToolReply {
    let PageReport { url, title, text, picture, downloads, refused } = report;
    let mut page = if title.is_empty() { String::new() } else { format!("title: {title}\n") };
    for step in done {
        page.push_str(&format!("done: {step}\n"));
    }
    match search {
        Some(wanted) => {
            let wanted = wanted.to_lowercase();
            let found = text.lines().filter(|line| line.to_lowercase().contains(&wanted));
            let found: String = found.map(|line| format!("{line}\n")).collect();
            page.push_str(if found.is_empty() { "no line has this text\n" } else { &found });
        }
        None => page.push_str(&text),
    }
    let total = page.lines().count().max(1);
    if first > total {
        return Err(ToolRefusal::new(format!("the page has {}", answer::count(total, "line"))));
    }
    let part = TextPart::of(&page, first, MAX_LINES);
    let mut label = format!("page {url}");
    if (part.first, part.last) != (1, total) {
        label.push_str(&format!(", lines {}-{} of {total}", part.first, part.last));
    }
    if part.last < total {
        label.push_str(&format!("; continue with `browse_read` and `line: {}`", part.last + 1));
    }
    let data = json!({"url": url, "downloads": downloads, "refused": refused});
    let mut result: CallToolResult = answer::with_data(label_untrusted(&label, part.text), data);
    if let Some(picture) = picture {
        result.content.push(ContentBlock::image(picture, "image/png"));
    }
    Ok(result)
}
