//! Runs queries on the connection for reading.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::SessionStore;
use super::backend::SessionReads;
use super::job::Work;
use super::view::SessionView;
use crate::store::StoreError;

type Query = Box<dyn FnOnce(&mut dyn SessionReads) + Send>;

/// The connection for reading. One thread at a time runs the queries, in order. Waking a thread costs more than a short
/// query, so queries that arrive together share one.
pub(super) struct QueryRunner {
    /// `None` once it is closed.
    reads: Mutex<Option<Box<dyn SessionReads>>>,
    queue: Mutex<QueryQueue>,
}

impl std::fmt::Debug for QueryRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueryRunner").field("reads", &self.reads).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct QueryQueue {
    waiting: VecDeque<Query>,
    is_running: bool,
}

impl QueryRunner {
    pub(super) fn new(reads: Box<dyn SessionReads>) -> Self {
        Self { reads: Mutex::new(Some(reads)), queue: Mutex::default() }
    }

    /// Closes the connection when the running queries have ended.
    pub(super) fn close(&self) {
        self.reads().take();
    }

    fn reads(&self) -> MutexGuard<'_, Option<Box<dyn SessionReads>>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, QueryQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(self: &Arc<Self>, query: Query) {
        let mut queue = self.queue();
        queue.waiting.push_back(query);
        if std::mem::replace(&mut queue.is_running, true) {
            return;
        }
        drop(queue);
        let run = QueryRun { runner: Arc::clone(self), is_done: false };
        drop(crate::task::run_blocking(move || run.finish()));
    }
}

/// Runs queries until none waits.
struct QueryRun {
    runner: Arc<QueryRunner>,
    is_done: bool,
}

impl QueryRun {
    fn finish(mut self) {
        let runner = Arc::clone(&self.runner);
        let mut reads = runner.reads();
        while let Some(query) = self.next() {
            let Some(reads) = reads.as_deref_mut() else { continue };
            // A query that panics gives no answer, which its caller notices.
            drop(catch_unwind(AssertUnwindSafe(|| query(reads))));
        }
    }

    fn next(&mut self) -> Option<Query> {
        let mut queue = self.runner.queue();
        let next = queue.waiting.pop_front();
        queue.is_running = next.is_some();
        self.is_done = next.is_none();
        next
    }
}

impl Drop for QueryRun {
    /// Drops the queries if the runtime has ended before the run, so that their callers do not wait for ever.
    fn drop(&mut self) {
        if !self.is_done {
            let lost = std::mem::take(&mut *self.runner.queue());
            drop(lost);
        }
    }
}

impl SessionStore {
    /// Reads what is stored, with everything that this process queued before.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut dyn SessionReads, &SessionView) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        // The way to the writer and back changes threads twice. Usually the writer has nothing to do.
        if !self.shared.pending.is_empty() {
            self.ask("", Work::Nothing).await?;
        }
        self.read_as_it_is(query).await
    }

    /// Reads without waiting for the queue, so the query may miss the latest jobs.
    pub(super) async fn read_as_it_is<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut dyn SessionReads, &SessionView) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let view = Arc::clone(&self.view);
        let (answer, answered) = oneshot::channel();
        // A caller that is gone needs no answer.
        self.shared.reader.submit(Box::new(move |reads| drop(answer.send(query(reads, &view)))));
        answered.await.unwrap_or_else(|_| Err(self.unusable("reading it broke off")))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::FutureExt as _;
    use futures::future::join_all;

    use super::*;
    use crate::store::sessions::tests::{Store, session_with, store};

    #[tokio::test]
    async fn queries_that_arrive_together_run_on_one_thread_in_order() {
        let Store { sessions, folder: _folder } = store();
        let (release, held) = mpsc::channel::<()>();
        let wait = sessions.read_as_it_is(move |_, _| Ok((0, held.recv().is_ok(), std::thread::current().id())));
        let others = (1..4).map(|n| sessions.read_as_it_is(move |_, _| Ok((n, true, std::thread::current().id()))));
        let all = join_all(std::iter::once(wait.boxed()).chain(others.map(futures::FutureExt::boxed)));
        // All are queued when the first one may go on.
        let (answers, ()) = tokio::join!(all, async { release.send(()).unwrap() });
        let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        assert_eq!(answers.iter().map(|answer| answer.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(answers.iter().all(|(_, ran, thread)| *ran && *thread == answers[0].2), "{answers:?}");
    }

    #[tokio::test]
    async fn a_query_that_panics_fails_alone() {
        let Store { sessions, folder: _folder } = store();
        let broken = sessions.read_as_it_is(|_, _| -> Result<(), StoreError> { panic!("a query breaks") });
        let (broken, fine) = tokio::join!(broken, sessions.read_as_it_is(|_, _| Ok(7)));
        assert!(broken.unwrap_err().to_string().contains("broke off"));
        assert_eq!(fine.unwrap(), 7);
    }

    #[test]
    fn a_runtime_that_ends_leaves_the_store_usable() {
        let runtime = || tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        let Store { sessions, folder: _folder } = store();
        let (release, held) = mpsc::channel::<()>();
        let first = runtime();
        let lost = first.block_on(async {
            // The only thread is busy, so the query does not begin.
            drop(crate::task::run_blocking(move || held.recv()));
            let query = sessions.read_as_it_is(|_, _| Ok(1));
            query.now_or_never()
        });
        assert!(lost.is_none());
        first.shutdown_background();
        release.send(()).unwrap();
        while sessions.shared.reader.queue().is_running {
            std::thread::yield_now();
        }
        let second = runtime();
        let answer = second.block_on(async {
            session_with(&sessions, "/project", &["hello"]).await;
            sessions.read_as_it_is(|_, _| Ok(2)).await
        });
        assert_eq!(answer.unwrap(), 2);
    }
}
