//! Answers `/readyz`: whether clients may be sent to this server.
//!
//! Invariant: at most one check of the shared folder runs. Anyone may send requests, and a check that hangs keeps a
//! thread of the pool in which heartbeats run, too.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use tokio::task::AbortHandle;

use super::ServerState;
use super::checks::Refusal;
use crate::store::ReadinessError;

/// How long a request waits for the check of the shared folder.
const READY_TIMEOUT: Duration = Duration::from_secs(1);

/// Why clients must not be sent here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum FolderCheckError {
    #[error("the folder of --shared-dir does not answer")]
    NoAnswer,
    #[error(transparent)]
    NotReady(#[from] ReadinessError),
}

type FolderCheckResult = Result<(), FolderCheckError>;

/// The check of the shared folder that was begun last.
#[derive(Default)]
pub(super) struct FolderCheck {
    last: Mutex<Option<RunningCheck>>,
}

struct RunningCheck {
    result: Shared<BoxFuture<'static, FolderCheckResult>>,
    /// For the question whether the thread has ended.
    thread: AbortHandle,
}

impl FolderCheck {
    /// Returns the result of the check that is running, or else of a new one. Fails if it takes too long.
    async fn run(&self, check: impl FnOnce() -> FolderCheckResult + Send + 'static) -> FolderCheckResult {
        let result = self.begin(check);
        tokio::time::timeout(READY_TIMEOUT, result).await.unwrap_or(Err(FolderCheckError::NoAnswer))
    }

    fn begin(
        &self,
        check: impl FnOnce() -> FolderCheckResult + Send + 'static,
    ) -> Shared<BoxFuture<'static, FolderCheckResult>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // The result of a check that has ended may be old.
        if let Some(running) = last.as_ref().filter(|check| !check.thread.is_finished()) {
            return running.result.clone();
        }
        // A volume of the network may not answer.
        let begun = tokio::task::spawn_blocking(check);
        let thread = begun.abort_handle();
        let result = async move { begun.await.unwrap_or(Err(FolderCheckError::NoAnswer)) }.boxed().shared();
        *last = Some(RunningCheck { result: result.clone(), thread });
        result
    }
}

pub(super) async fn answer(State(state): State<Arc<ServerState>>) -> Response {
    if state.draining.is_cancelled() {
        let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down\n");
        return refusal.retry_after(30).into_response();
    }
    if let Some(parts) = &state.parts.replica {
        let replica = parts.replica.clone();
        let check = move || Ok(replica.check_readiness()?);
        if let Err(problem) = state.folder_check.run(check).await {
            let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n"));
            return refusal.retry_after(5).into_response();
        }
    }
    "ready\n".into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn requests_share_one_check_of_a_folder_that_hangs() {
        let (release, held) = mpsc::channel::<()>();
        let (held, begun) = (Arc::new(Mutex::new(held)), Arc::new(AtomicUsize::new(0)));
        let check = || {
            let (held, begun) = (Arc::clone(&held), Arc::clone(&begun));
            move || {
                begun.fetch_add(1, Ordering::Relaxed);
                // Ends when the sender is gone.
                let _ended = held.lock().unwrap().recv();
                Ok(())
            }
        };
        let folder = FolderCheck::default();
        for result in futures::future::join_all((0..20).map(|_| folder.run(check()))).await {
            assert_eq!(result, Err(FolderCheckError::NoAnswer));
        }
        assert_eq!(folder.run(check()).await, Err(FolderCheckError::NoAnswer));
        assert_eq!(begun.load(Ordering::Relaxed), 1, "one thread waits for the folder");
        drop(release);
        assert_eq!(folder.run(check()).await, Ok(()), "the folder answers again");
        while folder.last.lock().unwrap().as_ref().is_some_and(|check| !check.thread.is_finished()) {
            tokio::task::yield_now().await;
        }
        let before = begun.load(Ordering::Relaxed);
        assert_eq!(folder.run(check()).await, Ok(()));
        assert_eq!(begun.load(Ordering::Relaxed), before + 1, "an old result is not used again");
    }
}
