//! Runs code on a separate thread, and makes its calls on the current task.
//!
//! Invariant: every call that has started is awaited, however the code ends. Read-only calls run in parallel, any other
//! call runs alone.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::thread;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::engine::{
    self, CodeEnd, CodeProgram, CodeReport, CodeStop, EngineChannels, FunctionCall, FunctionError, FunctionReply,
    FunctionValue, RunClock,
};
use crate::conversation::Content;
use crate::tool::ToolOutcome;

/// Maximum number of calls that run in parallel.
const MAX_PARALLEL_CALLS: u32 = 8;

/// Stack size of the thread: the engine's stack limit plus the space that host calls need.
const STACK: usize = 4 << 20;

/// Time to wait for code that should stop. The engine cannot stop inside some built-in functions, such as a search in a
/// very long text. After this time the thread is abandoned, and ends when that function returns.
const GRACE: Duration = Duration::from_secs(2);

/// Number of abandoned threads at which a session runs no more code.
const MAX_ABANDONED: usize = 2;

/// Threads of a session that did not stop in time.
#[derive(Debug, Default)]
pub struct AbandonedThreads {
    threads: Mutex<Vec<Weak<()>>>,
}

impl AbandonedThreads {
    fn add(&self, thread: &Arc<()>) {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(thread));
    }

    /// Returns true if [`MAX_ABANDONED`] abandoned threads still run, so that no further code may start.
    pub(super) fn too_many(&self) -> bool {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| thread.strong_count() > 0);
        threads.len() >= MAX_ABANDONED
    }
}

/// Runs code to its end. `call` makes a call; `reads_only` returns whether a function is read-only.
pub(super) async fn run<F: Future<Output = ToolOutcome>>(
    program: CodeProgram,
    abandoned: &AbandonedThreads,
    cancel: &CancellationToken,
    reads_only: impl Fn(usize) -> bool,
    call: impl Fn(FunctionCall) -> F,
) -> CodeReport {
    let limits = program.limits;
    let clock = RunClock::start();
    let (calls, mut asked) = tokio::sync::mpsc::unbounded_channel();
    let (reply, replies) = mpsc::channel();
    let (done, mut report) = oneshot::channel();
    let alive = Arc::new(());
    // Dropping this future stops the code.
    let stop = cancel.child_token();
    let _stop = stop.clone().drop_guard();
    let ways = EngineChannels { calls, replies, clock: Arc::clone(&clock), cancel: stop };
    let of_thread = Arc::clone(&alive);
    let begun = thread::Builder::new().name("code".to_owned()).stack_size(STACK).spawn(move || {
        // The receiver no longer exists if the thread was abandoned.
        drop(done.send(engine::run(&program, &ways)));
        drop(of_thread);
    });
    if let Err(error) = begun {
        return empty_report(CodeEnd::Threw(format!("no thread could be started for the code: {error}")));
    }
    let slots = Semaphore::new(MAX_PARALLEL_CALLS as usize);
    let mut running = FuturesUnordered::new();
    let mut overdue = pin!(overdue(&clock, limits.time + GRACE, cancel));
    let report = loop {
        tokio::select! {
            biased;
            Some(request) = asked.recv() => {
                let slots = &slots;
                let width = if reads_only(request.function) { 1 } else { MAX_PARALLEL_CALLS };
                let number = request.number;
                let call = &call;
                running.push(async move {
                    // Closed when the code has ended, so that waiting calls do not start.
                    let _slot = slots.acquire_many(width).await.ok()?;
                    Some((number, call(request).await))
                });
            }
            Some(called) = running.next() => {
                if let Some((number, outcome)) = called {
                    // The code may have ended in the meantime.
                    drop(reply.send(FunctionReply { number, answer: answer(outcome) }));
                }
            }
            ended_with = &mut report => {
                break ended_with.unwrap_or_else(|_| empty_report(CodeEnd::Threw("the engine broke down".to_owned())));
            }
            () = &mut overdue => {
                abandoned.add(&alive);
                break empty_report(CodeEnd::Stopped(if cancel.is_cancelled() { CodeStop::Cancelled } else { CodeStop::Stuck }));
            }
        }
    };
    slots.close();
    drop(reply);
    while running.next().await.is_some() {}
    report
}

fn empty_report(end: CodeEnd) -> CodeReport {
    CodeReport { end, printed: String::new(), unhandled: Vec::new(), calls: 0 }
}

/// Completes when the code has exceeded its time limit and the grace period, or the grace period after a cancellation.
async fn overdue(clock: &RunClock, limit: Duration, cancel: &CancellationToken) {
    loop {
        let left = limit.saturating_sub(clock.elapsed());
        if left.is_zero() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(left.max(Duration::from_millis(100))) => {}
            () = cancel.cancelled() => return tokio::time::sleep(GRACE).await,
        }
    }
}

/// Converts the outcome of a call to the value that a function returns or the error that it throws.
fn answer(outcome: ToolOutcome) -> Result<FunctionValue, FunctionError> {
    let words = |content: &Content| content.to_plain_text();
    let text = || outcome.content.iter().map(words).collect::<Vec<_>>().join("\n");
    match &outcome.structured {
        _ if outcome.is_error => Err(FunctionError { message: text(), refused: outcome.refused }),
        Some(structured) => Ok(FunctionValue::Json(structured.to_string())),
        None => Ok(FunctionValue::Text(text())),
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
