//! Reports live output as progress, at most ten times a second.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::tool::{Activity, CallContext, CallProgress};

const PAUSE: Duration = Duration::from_millis(100);
/// Maximum bytes of new output in one report.
const MAX_MESSAGE: usize = 2_000;

pub(super) struct LiveOutput<'a> {
    call: &'a CallContext,
    fresh: Vec<u8>,
    not_before: Instant,
}

impl<'a> LiveOutput<'a> {
    pub(super) fn new(call: &'a CallContext) -> Self {
        Self { call, fresh: Vec::new(), not_before: Instant::now() }
    }

    /// Adds output. `total` counts all output so far, so that progress only grows.
    pub(super) fn push(&mut self, bytes: &[u8], total: u64) {
        self.fresh.extend_from_slice(&bytes[bytes.len().saturating_sub(MAX_MESSAGE)..]);
        if self.fresh.len() > MAX_MESSAGE {
            self.fresh.drain(..self.fresh.len() - MAX_MESSAGE);
        }
        if Instant::now() >= self.not_before {
            self.report(total);
        }
    }

    /// Waits until there is output to report and the pause since the last report is over.
    pub(super) async fn due(&self) {
        if self.fresh.is_empty() {
            std::future::pending::<()>().await;
        }
        sleep_until(self.not_before).await;
    }

    pub(super) fn report(&mut self, total: u64) {
        let message = String::from_utf8_lossy(&self.fresh).into_owned();
        self.fresh.clear();
        self.not_before = Instant::now() + PAUSE;
        self.call.report(Activity::Progress(CallProgress {
            progress: total as f64,
            total: None,
            message: Some(message),
        }));
    }
}
