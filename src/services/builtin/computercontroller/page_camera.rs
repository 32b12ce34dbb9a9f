//! Takes pictures of the page that `browse` has opened, and waits for a change of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::browser::BrowserState;
use crate::services::builtin::answer::ToolRefusal;
use crate::tool::{CallContext, SessionStates};

/// Time between two looks at the page.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which the page is loaded again, because it may change only on its server.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);
/// Looks that wait for the end of a change, such as an animation.
const STEADY_LOOKS: usize = 5;

/// Sees the pages of all sessions. It opens none, so that it reaches no host that `browse` did not reach.
#[derive(Debug, Clone, Default)]
pub(in crate::services::builtin) struct PageCamera {
    browsers: Arc<SessionStates<BrowserState>>,
}

impl PageCamera {
    pub(in crate::services::builtin) fn new(browsers: Arc<SessionStates<BrowserState>>) -> Self {
        Self { browsers }
    }

    /// Returns the address of the open page. Fails if there is none.
    pub(in crate::services::builtin) async fn address(&self, call: &CallContext) -> Result<String, ToolRefusal> {
        self.browsers.of(&call.session).address(call).await
    }

    /// Takes a picture of the open page as PNG in base64, after loading it again if `reload` is true.
    pub(in crate::services::builtin) async fn look(
        &self,
        call: &CallContext,
        reload: bool,
    ) -> Result<String, ToolRefusal> {
        self.browsers.of(&call.session).take_picture(call, reload).await
    }

    /// Waits until the open page looks different, and returns the picture. The page is loaded again from time to time.
    /// `None` at the deadline or when the call is cancelled.
    pub(in crate::services::builtin) async fn wait_for_change(
        &self,
        call: &CallContext,
        deadline: Instant,
    ) -> Result<Option<String>, ToolRefusal> {
        let first = self.look(call, false).await?;
        let mut reload_time = Instant::now() + RELOAD_INTERVAL;
        let mut failure = None;
        while wait(call, LOOK_INTERVAL).await && Instant::now() < deadline {
            let reload = Instant::now() >= reload_time;
            if reload {
                reload_time = Instant::now() + RELOAD_INTERVAL;
            }
            match self.look(call, reload).await {
                Ok(picture) if picture == first => failure = None,
                Ok(picture) => return Ok(Some(self.wait_until_steady(call, picture).await?)),
                // Its server may be about to start again.
                Err(refusal) => {
                    failure = Some(refusal);
                    reload_time = Instant::now();
                }
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// Returns a picture that was the same in two looks, or the last one if the page never rests.
    async fn wait_until_steady(&self, call: &CallContext, mut picture: String) -> Result<String, ToolRefusal> {
        for _ in 0..STEADY_LOOKS {
            if !wait(call, LOOK_INTERVAL / 2).await {
                break;
            }
            let next = self.look(call, false).await?;
            if next == picture {
                break;
            }
            picture = next;
        }
        Ok(picture)
    }
}

/// Waits. Returns false if the call is cancelled.
async fn wait(call: &CallContext, time: Duration) -> bool {
    tokio::select! {
        biased;
        () = call.cancel.cancelled() => false,
        () = tokio::time::sleep(time) => true,
    }
}
