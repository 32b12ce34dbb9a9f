//! Runs tasks that end with their owner, using a cancellation token and a task counter.

use std::future::Future;

use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

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

    /// Runs `future` on a thread of the runtime, where it spawns tasks without waking another thread. Returns its
    /// output, or panics like it. Dropping the returned future ends the task.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that spawns")]
    pub async fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        match AbortOnDropHandle::new(tokio::spawn(self.tasks.track_future(future))).await {
            Ok(output) => output,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Only the end of the runtime ends the task, and with it the caller.
                Err(_) => std::future::pending().await,
            },
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_task_that_runs_for_its_caller_ends_with_it() {
        let scope = TaskScope::new();
        assert_eq!(scope.run(async { 5 }).await, 5);
        let kept = Arc::new(());
        let inside = Arc::clone(&kept);
        let running = scope.run(async move {
            let _inside = inside;
            std::future::pending::<()>().await;
        });
        assert!(tokio::time::timeout(Duration::from_millis(10), running).await.is_err());
        // Waits for the task, which has nothing left to do but to drop what it holds.
        scope.stop().await;
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[tokio::test]
    #[should_panic(expected = "inside")]
    async fn a_panic_of_the_task_is_one_of_its_caller() {
        TaskScope::new().run(async { panic!("inside") }).await
    }
}
