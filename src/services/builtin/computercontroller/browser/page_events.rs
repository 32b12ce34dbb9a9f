//! What happens in a page between calls: dialogs, new windows, downloads, navigations and its end.
//!
//! Invariant: no dialog stays open and no second window stays, because either would stop the page or hide work from the
//! model.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cdp::{CdpClient, CdpEvent, EventSink};
use crate::services::builtin::answer::truncate;

/// The largest download, and how many one session gets.
pub(super) const MAX_DOWNLOAD: u64 = 256 << 20;
pub(super) const MAX_DOWNLOADS: usize = 50;
/// Dialogs in one call, after which the page counts as hostile.
const MAX_DIALOGS: usize = 30;
/// What the result of a call mentions of dialogs and windows.
const MAX_NOTES: usize = 5;
const MAX_NOTE: usize = 300;
/// Bytes that are kept of the name and of the address of a download. A page chooses both.
const MAX_DOWNLOAD_TEXT: usize = 2_048;

/// Receives the events of a browser with one page.
#[derive(Debug, Default)]
pub(super) struct PageEvents {
    facts: Mutex<PageFacts>,
    /// Counts the events, for those who wait.
    changes: watch::Sender<u64>,
    /// Answers dialogs and closes windows. Set before the page opens.
    link: OnceLock<PageLink>,
}

/// The page that belongs to the session.
#[derive(Debug)]
struct PageLink {
    client: CdpClient,
    target: String,
    session: String,
}

/// What is known about the page.
#[derive(Debug, Default, Clone)]
pub(super) struct PageFacts {
    /// The main frame is loading.
    pub(super) is_loading: bool,
    /// Counts new documents in the main frame.
    pub(super) documents: u64,
    pub(super) url: String,
    /// Remarks about dialogs and windows since the last call.
    pub(super) notes: Vec<String>,
    dialogs: usize,
    /// By the browser's id.
    pub(super) downloads: BTreeMap<String, PageDownload>,
    pub(super) end: Option<PageEnd>,
}

/// A download.
#[derive(Debug, Default, Clone)]
pub(super) struct PageDownload {
    /// As the page suggests.
    pub(super) name: String,
    pub(super) url: String,
    pub(super) state: DownloadState,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum DownloadState {
    #[default]
    Active,
    Complete,
    Cancelled,
    TooLarge,
    /// The model knows the file.
    Reported,
}

/// Why a page cannot be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum PageEnd {
    #[error("the browser has ended")]
    Browser,
    #[error("the page crashed")]
    Crash,
    #[error("the page closed itself")]
    Closed,
    #[error("the page opened more than {MAX_DIALOGS} dialogs")]
    Dialogs,
}

impl PageEvents {
    /// Names the page of the session. Other pages are closed from now on.
    pub(super) fn attach(&self, client: CdpClient, target: String, session: String) {
        // It is called once, when the browser starts.
        drop(self.link.set(PageLink { client, target, session }));
    }

    fn lock(&self) -> MutexGuard<'_, PageFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn facts(&self) -> PageFacts {
        self.lock().clone()
    }

    /// Returns the remarks since the last call, and starts a new count of dialogs.
    pub(super) fn take_notes(&self) -> Vec<String> {
        let mut facts = self.lock();
        facts.dialogs = 0;
        std::mem::take(&mut facts.notes)
    }

    /// Returns the downloads that ended since the last call.
    pub(super) fn take_downloads(&self) -> Vec<(String, PageDownload)> {
        let mut facts = self.lock();
        let mut ended = Vec::new();
        for (id, download) in &mut facts.downloads {
            if !matches!(download.state, DownloadState::Active | DownloadState::Reported) {
                ended.push((id.clone(), download.clone()));
                download.state = DownloadState::Reported;
            }
        }
        ended
    }

    /// Waits until the facts fit. Returns false if the time is over or the page has ended.
    pub(super) async fn wait_until(&self, limit: Duration, fits: impl Fn(&PageFacts) -> bool) -> bool {
        let mut changes = self.changes.subscribe();
        let waiting = async {
            loop {
                changes.mark_unchanged();
                {
                    let facts = self.lock();
                    if fits(&facts) {
                        return true;
                    }
                    if facts.end.is_some() {
                        return false;
                    }
                }
                if changes.changed().await.is_err() {
                    return false;
                }
            }
        };
        tokio::time::timeout(limit, waiting).await.unwrap_or(false)
    }

    /// Handles an event of the page.
    fn receive_of_page(&self, link: &PageLink, method: &str, params: &Value) {
        let mut facts = self.lock();
        let is_main = |id: &Value| id.as_str() == Some(link.target.as_str());
        match method {
            "Page.frameStartedLoading" if is_main(&params["frameId"]) => facts.is_loading = true,
            "Page.frameStoppedLoading" if is_main(&params["frameId"]) => facts.is_loading = false,
            "Page.frameNavigated" if params["frame"]["parentId"].is_null() => {
                facts.documents += 1;
                facts.url = text(&params["frame"]["url"]);
            }
            "Page.navigatedWithinDocument" if is_main(&params["frameId"]) => facts.url = text(&params["url"]),
            "Page.javascriptDialogOpening" => {
                let kind = text(&params["type"]);
                // Leaving a page is what the model asked for. Nothing else is confirmed in the user's name.
                let accept = kind == "alert" || kind == "beforeunload";
                let end = if accept { "accepted" } else { "dismissed" };
                facts.note(format!("{kind} dialog, {end}: {}", text(&params["message"])));
                facts.dialogs += 1;
                if facts.dialogs > MAX_DIALOGS {
                    facts.end.get_or_insert(PageEnd::Dialogs);
                }
                link.client.send(Some(&link.session), "Page.handleJavaScriptDialog", json!({"accept": accept}));
            }
            "Page.windowOpen" => facts.note(format!("blocked a new window: {}", text(&params["url"]))),
            "Inspector.targetCrashed" => _ = facts.end.get_or_insert(PageEnd::Crash),
            _ => {}
        }
    }

    /// Handles an event of the browser.
    fn receive_of_browser(&self, link: &PageLink, method: &str, params: &Value) {
        let mut facts = self.lock();
        match method {
            "Target.targetCreated" => {
                let info = &params["targetInfo"];
                if info["type"] == "page" && info["targetId"] != link.target {
                    link.client.send(None, "Target.closeTarget", json!({"targetId": info["targetId"]}));
                }
            }
            "Target.targetDestroyed" if params["targetId"] == link.target => {
                facts.end.get_or_insert(PageEnd::Closed);
            }
            "Target.targetCrashed" if params["targetId"] == link.target => {
                facts.end.get_or_insert(PageEnd::Crash);
            }
            "Browser.downloadWillBegin" => {
                let id = text(&params["guid"]);
                let state = if facts.downloads.len() >= MAX_DOWNLOADS {
                    link.client.send(None, "Browser.cancelDownload", json!({"guid": id}));
                    DownloadState::Cancelled
                } else {
                    DownloadState::Active
                };
                if facts.downloads.len() < 2 * MAX_DOWNLOADS {
                    let short = |key: &str| truncate(params[key].as_str().unwrap_or_default(), MAX_DOWNLOAD_TEXT);
                    let (name, url) = (short("suggestedFilename").to_owned(), short("url").to_owned());
                    facts.downloads.insert(id, PageDownload { name, url, state });
                }
            }
            "Browser.downloadProgress" => {
                let id = text(&params["guid"]);
                let size = |key: &str| params[key].as_f64().unwrap_or_default() as u64;
                let is_large = size("totalBytes").max(size("receivedBytes")) > MAX_DOWNLOAD;
                let Some(download) = facts.downloads.get_mut(&id) else { return };
                download.state = match (download.state, params["state"].as_str()) {
                    (DownloadState::Active, _) if is_large => {
                        link.client.send(None, "Browser.cancelDownload", json!({"guid": id}));
                        DownloadState::TooLarge
                    }
                    (DownloadState::Active, Some("completed")) => DownloadState::Complete,
                    (DownloadState::Active, Some("canceled")) => DownloadState::Cancelled,
                    (state, _) => state,
                };
            }
            _ => {}
        }
    }
}

impl PageFacts {
    fn note(&mut self, note: String) {
        match self.notes.len() {
            0..MAX_NOTES => self.notes.push(truncate(&note, MAX_NOTE).to_owned()),
            MAX_NOTES => self.notes.push("more dialogs or windows".to_owned()),
            _ => {}
        }
    }

    /// Returns true while a file is on its way.
    pub(super) fn is_downloading(&self) -> bool {
        self.downloads.values().any(|download| download.state == DownloadState::Active)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl EventSink for PageEvents {
    fn receive(&self, CdpEvent { method, params, session }: CdpEvent) {
        let Some(link) = self.link.get() else { return };
        match session {
            Some(session) if session == link.session => self.receive_of_page(link, &method, &params),
            Some(_) => {}
            None => self.receive_of_browser(link, &method, &params),
        }
        self.changes.send_modify(|count| *count += 1);
    }

    fn end(&self) {
        self.lock().end.get_or_insert(PageEnd::Browser);
        self.changes.send_modify(|count| *count += 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Events of a page, and the other end of the connection to its browser.
    fn attached() -> (Arc<PageEvents>, tokio::io::DuplexStream) {
        let events = Arc::new(PageEvents::default());
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (reader, writer) = tokio::io::split(ours);
        let sink = Arc::clone(&events) as Arc<dyn EventSink>;
        let client = CdpClient::start(reader, writer, sink, Duration::from_secs(30));
        events.attach(client, "target".to_owned(), "session".to_owned());
        (events, theirs)
    }

    #[tokio::test]
    async fn long_names_and_addresses_of_downloads_are_cut() {
        let (events, _theirs) = attached();
        let url = format!("https://example.com/{}", "é".repeat(100_000));
        let params = json!({"guid": "1", "suggestedFilename": "a".repeat(100_000), "url": url});
        events.receive(CdpEvent { method: "Browser.downloadWillBegin".to_owned(), params, session: None });
        let facts = events.facts();
        let download = &facts.downloads["1"];
        assert_eq!(download.name.len(), MAX_DOWNLOAD_TEXT);
        assert!(download.url.len() <= MAX_DOWNLOAD_TEXT && url.starts_with(&download.url));
    }

    #[tokio::test]
    async fn downloads_over_the_limit_are_cancelled() {
        let (events, _theirs) = attached();
        for number in 0..=2 * MAX_DOWNLOADS {
            let params = json!({"guid": number.to_string(), "suggestedFilename": "a", "url": "https://example.com/"});
            events.receive(CdpEvent { method: "Browser.downloadWillBegin".to_owned(), params, session: None });
        }
        let states: Vec<_> = events.facts().downloads.values().map(|download| download.state).collect();
        let count = |state: DownloadState| states.iter().filter(|known| **known == state).count();
        assert_eq!(count(DownloadState::Active), MAX_DOWNLOADS);
        assert_eq!(count(DownloadState::Cancelled), MAX_DOWNLOADS, "the rest is not even listed");
    }
}
