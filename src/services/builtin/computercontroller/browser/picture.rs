//! Takes pictures of the page.

use base64::Engine as _;
use serde_json::json;

use super::call_frame::CallFrame;
use super::program::{HEIGHT, WIDTH};
use super::{BrowserState, PageError, SessionBrowser, current_page, finish, format_url, host_gate};
use crate::services::builtin::answer::ToolRefusal;
use crate::tool::CallContext;

/// The largest picture for a model.
const MAX_PICTURE: usize = 3_750_000;
/// What the browser shows instead of a page that it did not get.
const ERROR_PAGES: &str = "chrome-error:";

impl BrowserState {
    /// Returns the address of the open page. Fails if there is none.
    pub(in super::super) async fn address(&self, call: &CallContext) -> Result<String, ToolRefusal> {
        let mut slot = self.browser.lock().await;
        Ok(current_page(&mut slot, call)?.process.events.facts().url)
    }

    /// Takes a picture of the page, after loading it again if `reload` is true. Returns PNG in base64.
    pub(in super::super) async fn take_picture(&self, call: &CallContext, reload: bool) -> Result<String, ToolRefusal> {
        let gate = host_gate(call)?;
        let mut slot = self.browser.lock().await;
        let browser = current_page(&mut slot, call)?;
        let frame = CallFrame::begin(&browser.process, gate);
        let work = async {
            if reload {
                browser.reload().await?;
            }
            browser.picture().await
        };
        let result = frame.run(call, work).await;
        finish(&mut slot, result)
    }
}

impl SessionBrowser {
    /// Loads the page again. Fails if its server does not answer.
    async fn reload(&self) -> Result<(), PageError> {
        let before = self.process.events.facts().url;
        self.process.call("Page.reload", json!({"ignoreCache": true})).await?;
        self.settle().await?;
        if self.process.events.facts().url.starts_with(ERROR_PAGES) {
            let page = format_url(&before);
            return Err(PageError::Refused(format!("`{page}` was not loaded again: its server gives no answer")));
        }
        Ok(())
    }

    /// Returns the visible part of the page as PNG in base64.
    pub(super) async fn picture(&self) -> Result<String, PageError> {
        for scale in [1.0, 0.5] {
            let clip = json!({"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": scale});
            let params = if scale < 1.0 { json!({"format": "png", "clip": clip}) } else { json!({"format": "png"}) };
            let answer = self.process.call("Page.captureScreenshot", params).await?;
            let data = answer["data"].as_str().unwrap_or_default();
            // The page makes the picture, so its form is checked.
            let is_png = base64::engine::general_purpose::STANDARD
                .decode(data)
                .is_ok_and(|bytes| bytes.starts_with(b"\x89PNG") && bytes.len() <= MAX_PICTURE);
            if is_png {
                return Ok(data.to_owned());
            }
        }
        Err(PageError::Refused("the picture of the page is too large".to_owned()))
    }
}
