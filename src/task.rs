//! Tasks that end with whoever started them: a cancellation token and a count of what still runs.

use std::future::Future;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The one place that spawns. A scope that was stopped has no task left.
#[derive(Debug, Clone, Default)]
pub struct TaskScope {
    cancel: CancellationToken,
    tasks: TaskTracker,
}

impl TaskScope {
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled when the scope stops.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Runs `future` to its end; it should watch [`Scope::cancelled`] if it can last.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that spawns")]
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(tokio::spawn(self.tasks.track_future(future)));
    }

    /// Tells every task to end, for an owner that cannot wait.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Tells every task to end, and waits until all have.
    pub async fn stop(&self) {
        self.cancel.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
