//! Runs tasks that end with their owner, using a cancellation token and a task counter.

use std::future::Future;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The only place that spawns tasks. After [`TaskScope::stop`] no task is left.
#[derive(Debug, Clone, Default)]
pub struct TaskScope {
    cancel: CancellationToken,
    tasks: TaskTracker,
}

impl TaskScope {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the token that is cancelled when the scope stops.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Spawns `future`. It should watch [`TaskScope::cancelled`] if it can run for long.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that spawns")]
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(tokio::spawn(self.tasks.track_future(future)));
    }

    /// Cancels every task without waiting.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Cancels every task and waits until all have ended.
    pub async fn stop(&self) {
        self.cancel.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
