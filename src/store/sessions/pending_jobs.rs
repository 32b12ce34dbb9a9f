//! Counts the jobs that the writer of sessions has not finished.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The unfinished jobs. A job counts from before it is queued until after it is committed, or refused.
#[derive(Debug, Default)]
pub(super) struct PendingJobs {
    count: AtomicUsize,
    bytes: AtomicUsize,
}

impl PendingJobs {
    /// Adds a job of this size.
    pub(super) fn add(&self, bytes: usize) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Removes a job of this size. The writer calls it before it replies.
    pub(super) fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        // What was committed must be visible to a caller that sees the count.
        self.count.fetch_sub(1, Ordering::Release);
    }

    /// Returns true if everything is committed that was queued before the call.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns the bytes of events and entries.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}
