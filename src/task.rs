//! Runs tasks that end with their owner, using a cancellation token and a task counter. Runs work on blocking threads,
//! which ends by itself.

use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinHandle};
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
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.spawn_box(Box::pin(future));
    }

    /// Spawns every future as the same type, because tokio compiles its task code once for each type.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that spawns")]
    fn spawn_box(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
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

/// Returns how many tasks of this process have not ended. Must be called within a runtime.
pub fn alive_tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// The result of work on a blocking thread. The work continues if this is dropped.
#[derive(Debug)]
pub struct BlockingAnswer<T> {
    running: JoinHandle<Box<dyn Any + Send>>,
    answer: PhantomData<fn() -> T>,
}

/// Starts `work` on a thread for work that waits for the disk, another process or much computation. The answer is an
/// error if the work panics or the runtime ends first.
///
/// Unlike `tokio::task::spawn_blocking`, it starts all work as the same type, because tokio compiles its task code once
/// for each type. Helpers that many callers give different work use it.
pub fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> BlockingAnswer<T> {
    BlockingAnswer {
        running: start_box(Box::new(move || -> Box<dyn Any + Send> { Box::new(work()) })),
        answer: PhantomData,
    }
}

fn start_box(work: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>) -> JoinHandle<Box<dyn Any + Send>> {
    tokio::task::spawn_blocking(work)
}

impl<T: Send + 'static> Future for BlockingAnswer<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.running).poll(context).map_ok(|answer| match answer.downcast::<T>() {
            Ok(answer) => *answer,
            Err(_) => unreachable!("the work of `run_blocking` returns this type"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn work_on_a_blocking_thread_returns_its_own_type() {
        let (number, text) = (run_blocking(|| 5_u8), run_blocking(|| "five".to_owned()));
        assert_eq!((number.await.unwrap(), text.await.unwrap()), (5, "five".to_owned()));
    }

    #[tokio::test]
    async fn work_on_a_blocking_thread_starts_before_it_is_awaited() {
        let (started, signal) = std::sync::mpsc::channel();
        drop(run_blocking(move || started.send(()).unwrap()));
        signal.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    #[tokio::test]
    async fn a_panic_on_a_blocking_thread_is_an_error() {
        let error = run_blocking(|| -> u8 { panic!("inside") }).await.unwrap_err();
        assert!(error.is_panic());
        assert!(error.to_string().contains("inside"), "{error}");
    }
}
