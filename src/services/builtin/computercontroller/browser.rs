//! The browser of a session: one Chromium with one page, started on first use and ended with the session.
//!
//! Invariant: between calls, a page causes no question to the user.

mod actions;
mod call_frame;
mod downloads;
mod keys;
mod page_events;
mod picture;
mod program;
mod view;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use url::Url;

use actions::ActionError;
pub(super) use actions::BrowserAction;
use call_frame::CallFrame;
use downloads::keep_download;
use page_events::PageEnd;
pub(super) use program::BrowserSetup;
use program::{BrowserLimits, ChromiumProcess, OWN_HOSTS};
use view::{AxNode, ElementRefs, FrameTree, show_tree};

use crate::cdp::CdpError;
use crate::network::RemoteHost;
use crate::sandbox::proxy::{CommandNetwork, HostGate, HostRefusal, InsideNetwork};
use crate::sandbox::{Enforcement, NetworkAccess, OtherHosts};
use crate::services::builtin::answer::{ToolRefusal, label_untrusted, truncate};
use crate::services::builtin::developer::paths::printable;
use crate::tool::{CallContext, strip_to_line};

/// Time for the answer of a server; questions to the user count here.
const NAVIGATE_LIMIT: Duration = Duration::from_secs(100);
const LOAD_LIMIT: Duration = Duration::from_secs(30);
/// Time for a download that a call caused.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(20);
/// Time in which scripts change a page after it has loaded, or after an action.
const SETTLE: Duration = Duration::from_millis(300);
const MAX_URL: usize = 8_000;
/// Elements of a page up to which it is shown as a tree.
const MAX_ELEMENTS: u64 = 25_000;
/// The page before the first URL, and between two URLs.
const EMPTY_PAGE: &str = "about:blank";
/// Time for one step from a page to the empty one.
const CLEAR_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of the plain text of a larger page.
const MAX_TEXT: usize = 200_000;
const MAX_FRAMES: usize = 20;

/// The browser of one session. Calls take turns.
#[derive(Debug, Default)]
pub(crate) struct BrowserState {
    browser: tokio::sync::Mutex<Option<SessionBrowser>>,
}

/// A running browser and what the model knows of its page.
#[derive(Debug)]
pub(super) struct SessionBrowser {
    process: ChromiumProcess,
    /// The hosts that the mode allowed when the browser started.
    access: NetworkAccess,
    refs: ElementRefs,
    /// What the page reaches; it ends with the next `browse`.
    network: Option<CommandNetwork>,
    /// Refusals that earlier results have reported.
    reported: Vec<HostRefusal>,
}

/// What a call shows of the page.
#[derive(Debug)]
pub(super) struct PageReport {
    pub(super) url: String,
    pub(super) title: String,
    /// Dialogs, windows, downloads and refused hosts; then the elements.
    pub(super) text: String,
    /// PNG in base64.
    pub(super) picture: Option<String>,
    /// Files in the scratch folder.
    pub(super) downloads: Vec<PathBuf>,
    pub(super) refused: Vec<String>,
}

/// What a call wants to see.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PageWish {
    pub(super) picture: bool,
}

/// Why a call has no page to show.
#[derive(Debug)]
enum PageError {
    Refused(String),
    /// The browser cannot be used any more.
    Ended(String),
}

impl From<CdpError> for PageError {
    fn from(error: CdpError) -> Self {
        match error {
            CdpError::Ended | CdpError::TimedOut { .. } => Self::Ended(error.to_string()),
            CdpError::TooLarge { .. } | CdpError::Refused { .. } => Self::Refused(error.to_string()),
        }
    }
}

impl From<ActionError> for PageError {
    fn from(error: ActionError) -> Self {
        if error.ends_browser() { Self::Ended(error.to_string()) } else { Self::Refused(error.to_string()) }
    }
}

impl BrowserState {
    /// Opens a URL, and starts the browser if none runs.
    pub(super) async fn open(
        &self,
        setup: &BrowserSetup,
        call: &CallContext,
        servers: Arc<dyn InsideNetwork>,
        url: &str,
        wish: PageWish,
    ) -> Result<PageReport, ToolRefusal> {
        let url = check_url(url)?;
        let gate = host_gate(call)?;
        let mut slot = self.browser.lock().await;
        let (access, enforce) = match call.sandbox() {
            Some(sandbox) => (sandbox.profile.network.clone(), sandbox.profile.enforce),
            None => (ask_for_all(), Enforcement::Preferred),
        };
        if let Some(browser) = slot.as_ref() {
            let is_usable = browser.end().is_none() && browser.access == access && browser.clear_page().await;
            if !is_usable {
                *slot = None;
            }
        }
        if slot.is_none() {
            let limits = BrowserLimits { network: access.clone(), enforce, gate: Arc::clone(&gate), servers };
            let process = ChromiumProcess::start(setup, &call.session.scratch, limits).await?;
            let refs = ElementRefs::default();
            *slot = Some(SessionBrowser { process, access, refs, network: None, reported: Vec::new() });
        }
        let Some(browser) = slot.as_mut() else { return Err(ToolRefusal::new("no browser runs; try again")) };
        let hosts: Vec<RemoteHost> = RemoteHost::of_url(url.as_str()).into_iter().collect();
        browser.network = None;
        browser.reported.clear();
        let line = format!("browse {}", truncate(url.as_str(), 200));
        browser.network = browser.process.sandbox.begin_work(&line, &hosts);
        let frame = CallFrame::begin(&browser.process, gate);
        let work = async {
            browser.navigate(&url).await?;
            browser.report(call, wish).await
        };
        let result = frame.run(call, work).await;
        finish(&mut slot, result)
    }

    /// Performs actions in the page.
    pub(super) async fn act(
        &self,
        call: &CallContext,
        actions: &[BrowserAction],
        wish: PageWish,
    ) -> Result<(Vec<String>, PageReport), ToolRefusal> {
        let gate = host_gate(call)?;
        let mut slot = self.browser.lock().await;
        let browser = current_page(&mut slot, call)?;
        let frame = CallFrame::begin(&browser.process, gate);
        let work = async {
            let mut done = Vec::new();
            for (index, action) in actions.iter().enumerate() {
                let performed = browser.perform(action, call).await;
                match performed {
                    Ok(text) => done.push(text),
                    Err(error) if error.ends_browser() => return Err(PageError::from(error)),
                    Err(error) => {
                        let before = match done.len() {
                            0 => "Nothing was done before".to_owned(),
                            _ => format!("Done before: {}", done.join("; ")),
                        };
                        // The page chose the names of its elements.
                        let label = format!("action {} ({}) failed", index + 1, action.label());
                        return Err(PageError::Refused(label_untrusted(&label, &format!("{error}. {before}"))));
                    }
                }
                browser.settle().await?;
            }
            Ok((done, browser.report(call, wish).await?))
        };
        let result = frame.run(call, work).await;
        finish(&mut slot, result)
    }

    /// Reads the page as it is now.
    pub(super) async fn read(&self, call: &CallContext, wish: PageWish) -> Result<PageReport, ToolRefusal> {
        let gate = host_gate(call)?;
        let mut slot = self.browser.lock().await;
        let browser = current_page(&mut slot, call)?;
        let frame = CallFrame::begin(&browser.process, gate);
        let result = frame.run(call, browser.report(call, wish)).await;
        finish(&mut slot, result)
    }
}

/// Returns the open page. Fails if there is none, or if it belongs to a mode with other hosts.
fn current_page<'a>(
    slot: &'a mut Option<SessionBrowser>,
    call: &CallContext,
) -> Result<&'a mut SessionBrowser, ToolRefusal> {
    let access = call.sandbox().map_or_else(ask_for_all, |sandbox| sandbox.profile.network.clone());
    let problem = match slot {
        None => Some("no page is open".to_owned()),
        Some(browser) if browser.access != access => Some("the page was opened in a mode with other hosts".to_owned()),
        Some(browser) => browser.end().map(|end| end.to_string()),
    };
    if let Some(problem) = problem {
        *slot = None;
        return Err(ToolRefusal::new(format!("{problem}; open one with `browse`")));
    }
    slot.as_mut().ok_or_else(|| ToolRefusal::new("no page is open; open one with `browse`"))
}

/// Closes a browser that cannot be used any more.
fn finish<T>(slot: &mut Option<SessionBrowser>, result: Result<T, PageError>) -> Result<T, ToolRefusal> {
    result.map_err(|error| match error {
        PageError::Refused(text) => ToolRefusal::new(text),
        PageError::Ended(reason) => {
            *slot = None;
            ToolRefusal::new(format!("{reason}, so the browser was closed; open a page again with `browse`"))
        }
    })
}

fn host_gate(call: &CallContext) -> Result<Arc<dyn HostGate>, ToolRefusal> {
    let gate = call.gate().ok_or_else(|| ToolRefusal::new("the call carries no session; call through Skein"))?;
    Ok(Arc::clone(gate) as Arc<dyn HostGate>)
}

/// The hosts of a mode without a sandbox profile.
fn ask_for_all() -> NetworkAccess {
    NetworkAccess { allow: Vec::new(), deny: Vec::new(), otherwise: OtherHosts::Ask }
}

/// Accepts web addresses only: files and the browser's own pages are none.
fn check_url(text: &str) -> Result<Url, ToolRefusal> {
    if text.len() > MAX_URL {
        return Err(ToolRefusal::new(format!("the URL is longer than {MAX_URL} bytes")));
    }
    let shown = || printable(truncate(text, 200));
    let url = Url::parse(text.trim()).map_err(|error| {
        ToolRefusal::new(format!("`{}` is no URL ({error}); write it like https://example.com/", shown()))
    })?;
    if !["http", "https"].contains(&url.scheme()) || url.host().is_none() {
        return Err(ToolRefusal::new(format!(
            "`{}` is not a page of the web; `browse` opens http and https only. Files are read with `read_file`, and a dev \
             server can show them",
            shown()
        )));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(ToolRefusal::new("the URL contains a user name or password; leave it out"));
    }
    Ok(url)
}

impl SessionBrowser {
    fn end(&self) -> Option<PageEnd> {
        self.process.events.facts().end
    }

    /// Replaces the page by an empty one without running its scripts, so that it cannot navigate in place of the next
    /// page. Returns false if the page resists.
    async fn clear_page(&self) -> bool {
        let ChromiumProcess { client, page, events, .. } = &self.process;
        let scripts = "Emulation.setScriptExecutionDisabled";
        if !["", EMPTY_PAGE].contains(&events.facts().url.as_str()) {
            // The browser refuses this while it changes the page.
            client.send(Some(page), "Page.stopLoading", json!({}));
            for (method, params) in [(scripts, json!({"value": true})), ("Page.navigate", json!({"url": EMPTY_PAGE}))] {
                if client.call_within(CLEAR_LIMIT, Some(page), method, params).await.is_err() {
                    return false;
                }
            }
            events.wait_until(CLEAR_LIMIT, |facts| facts.url == EMPTY_PAGE && !facts.is_loading).await;
            // A navigation that the page began before can still replace the empty page.
            tokio::time::sleep(SETTLE / 3).await;
            if events.facts().url != EMPTY_PAGE {
                return false;
            }
        }
        // Also after a call that was cancelled in between.
        client.call_within(CLEAR_LIMIT, Some(page), scripts, json!({"value": false})).await.is_ok()
    }

    async fn navigate(&mut self, url: &Url) -> Result<(), PageError> {
        let ChromiumProcess { client, page, events, .. } = &self.process;
        let before = events.facts().downloads.len();
        let params = json!({"url": url.as_str()});
        let answer = client.call_within(NAVIGATE_LIMIT, Some(page), "Page.navigate", params).await?;
        let failure = answer["errorText"].as_str().filter(|text| !text.is_empty());
        let is_download = answer["isDownload"] == json!(true)
            || failure == Some("net::ERR_ABORTED") && self.starts_download(before).await;
        if let Some(failure) = failure.filter(|_| !is_download) {
            let refused = self.new_refusals();
            let reason = if refused.is_empty() { explain(failure).to_owned() } else { refused.join("; ") };
            return Err(PageError::Refused(format!("`{}` was not opened: {reason}", format_url(url.as_str()))));
        }
        self.settle().await?;
        self.check_refused()
    }

    /// Fails if the proxy refused the host of the page itself, for example after a redirect.
    fn check_refused(&mut self) -> Result<(), PageError> {
        let now = self.process.events.facts().url;
        let Some(host) = RemoteHost::of_url(&now) else { return Ok(()) };
        let refusals = self.network.as_ref().map(CommandNetwork::refusals).unwrap_or_default();
        let is_loopback = |host: &RemoteHost| host.is_localhost() || host.ip().is_some_and(|ip| ip.is_loopback());
        let is_host = |refusal: &&HostRefusal| {
            let both_local = is_loopback(&host) && is_loopback(&refusal.host) && host.port() == refusal.host.port();
            refusal.host.authority() == host.authority() || both_local
        };
        match refusals.iter().find(is_host) {
            Some(refusal) => Err(PageError::Refused(format!("`{}` was not opened: {refusal}", format_url(&now)))),
            None => Ok(()),
        }
    }

    /// Returns whether a download has begun. The event may come after the answer.
    async fn starts_download(&self, before: usize) -> bool {
        self.process.events.wait_until(Duration::from_secs(2), |facts| facts.downloads.len() > before).await
    }

    /// Waits until the page has loaded and its scripts had time to change it.
    async fn settle(&self) -> Result<(), PageError> {
        let events = &self.process.events;
        tokio::time::sleep(SETTLE / 2).await;
        events.wait_until(LOAD_LIMIT, |facts| !facts.is_loading).await;
        tokio::time::sleep(SETTLE / 2).await;
        if events.facts().is_loading {
            events.wait_until(LOAD_LIMIT, |facts| !facts.is_loading).await;
        }
        if events.facts().is_downloading() {
            events.wait_until(DOWNLOAD_LIMIT, |facts| !facts.is_downloading()).await;
        }
        match self.end() {
            Some(end) => Err(PageError::Ended(end.to_string())),
            None => Ok(()),
        }
    }

    /// Returns refusals that no result has reported.
    fn new_refusals(&mut self) -> Vec<String> {
        let all = self.network.as_ref().map(CommandNetwork::refusals).unwrap_or_default();
        let new: Vec<HostRefusal> = all.into_iter().filter(|refusal| !self.reported.contains(refusal)).collect();
        self.reported.extend(new.iter().cloned());
        let is_own = |refusal: &&HostRefusal| OWN_HOSTS.contains(&refusal.host.name());
        new.iter().filter(|refusal| !is_own(refusal)).map(ToString::to_string).collect()
    }

    /// Describes the page.
    async fn report(&mut self, call: &CallContext, wish: PageWish) -> Result<PageReport, PageError> {
        let title = self.evaluate("document.title").await.unwrap_or_default();
        let view = self.view().await?;
        let picture = if wish.picture { Some(self.picture().await?) } else { None };
        let facts = self.process.events.facts();
        let mut lines = self.process.events.take_notes();
        let mut downloads = Vec::new();
        for (id, download) in self.process.events.take_downloads() {
            match keep_download(&self.process.downloads().join(&id), &call.session.scratch, &download) {
                Ok(path) => {
                    lines.push(format!("downloaded {} to {}", format_url(&download.url), path.display()));
                    downloads.push(path);
                }
                Err(reason) => lines.push(format!("no download of {}: {reason}", format_url(&download.url))),
            }
        }
        if facts.is_downloading() {
            lines.push("a download is not complete; see it with `browse_read`".to_owned());
        }
        if facts.is_loading {
            lines.push("the page is still loading".to_owned());
        }
        let refused = self.new_refusals();
        lines.extend(refused.iter().cloned());
        let mut text: String = lines.iter().map(|line| format!("! {}\n", strip_to_line(line))).collect();
        text.push_str(&view);
        let title = truncate(&strip_to_line(title.as_str().unwrap_or_default()), 200).to_owned();
        Ok(PageReport { url: format_url(&facts.url), title, text, picture, downloads, refused })
    }

    /// Returns the elements of the page, or the text of a page with too many.
    async fn view(&mut self) -> Result<String, PageError> {
        self.refs.start_document(self.process.events.facts().documents);
        let elements = self.evaluate("document.getElementsByTagName('*').length").await?;
        if elements.as_u64().is_some_and(|count| count > MAX_ELEMENTS) {
            let script = format!("(document.body?.innerText ?? '').slice(0, {MAX_TEXT})");
            let text = self.evaluate(&script).await?;
            let text: Vec<String> = text.as_str().unwrap_or_default().lines().map(strip_to_line).collect();
            return Ok(format!(
                "! the page has {elements} elements, so this is its text without references\n{}\n",
                text.join("\n")
            ));
        }
        let nodes = self.tree(None).await?;
        let mut frames = Vec::new();
        let tree = self.process.call("Page.getFrameTree", json!({})).await?;
        for frame in child_frames(&tree["frameTree"]).into_iter().take(MAX_FRAMES) {
            // A frame may be gone by now, or have no content.
            let Ok(owner) = self.process.call("DOM.getFrameOwner", json!({"frameId": frame})).await else { continue };
            let (Some(owner), Ok(nodes)) = (owner["backendNodeId"].as_i64(), self.tree(Some(&frame)).await) else {
                continue;
            };
            frames.push(FrameTree { owner, nodes });
        }
        Ok(show_tree(&nodes, &frames, &mut self.refs))
    }

    async fn tree(&self, frame: Option<&str>) -> Result<Vec<AxNode>, PageError> {
        let params = frame.map_or_else(|| json!({}), |frame| json!({"frameId": frame}));
        let mut answer = self.process.call("Accessibility.getFullAXTree", params).await?;
        serde_json::from_value(answer["nodes"].take())
            .map_err(|error| PageError::Refused(format!("the browser describes the page in an unknown way: {error}")))
    }
}

/// Returns the ids of all frames below the main frame.
fn child_frames(tree: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Vec<&Value> = tree["childFrames"].as_array().into_iter().flatten().rev().collect();
    while let Some(frame) = open.pop() {
        found.extend(frame["frame"]["id"].as_str().map(str::to_owned));
        open.extend(frame["childFrames"].as_array().into_iter().flatten().rev());
    }
    found
}

fn format_url(url: &str) -> String {
    truncate(&strip_to_line(url), 300).to_owned()
}

/// Returns advice for common errors of the network.
fn explain(failure: &str) -> &str {
    match failure {
        "net::ERR_TUNNEL_CONNECTION_FAILED" | "net::ERR_PROXY_CONNECTION_FAILED" => {
            "the host cannot be reached, or the sandbox refuses it"
        }
        "net::ERR_NAME_NOT_RESOLVED" => "there is no such host",
        "net::ERR_EMPTY_RESPONSE" | "net::ERR_CONNECTION_REFUSED" | "net::ERR_CONNECTION_RESET" => {
            "nothing answers there; start the server first, and check the port"
        }
        other => other,
    }
}

#[cfg(test)]
#[path = "browser/browser_tests.rs"]
mod tests;
