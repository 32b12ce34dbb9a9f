//! Limits the output of a child that is kept per time window. Counts and drops the rest.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// Limits per writer and time window. A window starts with the first line after the previous window.
const WINDOW: Duration = Duration::from_secs(10);
const MAX_LINES: u64 = 1000;
const MAX_BYTES: u64 = 256 * 1024;

/// Counts the output of one writer.
#[derive(Debug, Default)]
pub struct OutputLimit {
    window: Option<Window>,
}

#[derive(Debug)]
struct Window {
    end: Instant,
    lines: u64,
    bytes: u64,
    dropped: DroppedOutput,
}

/// The amount of dropped output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DroppedOutput {
    pub lines: u64,
    pub bytes: u64,
}

impl fmt::Display for DroppedOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lines with {} bytes were dropped: it writes too much", self.lines, self.bytes)
    }
}

/// Whether a line is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputVerdict {
    Keep,
    Drop,
}

impl OutputLimit {
    /// Counts a line of this many bytes. Call [`Self::take_dropped`] first: a new window discards the counts of the
    /// last one.
    pub fn admit(&mut self, bytes: usize) -> OutputVerdict {
        let now = Instant::now();
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let new = || Window { end: now + WINDOW, lines: 0, bytes: 0, dropped: DroppedOutput::default() };
        if self.window.as_ref().is_some_and(|window| window.end <= now) {
            self.window = None;
        }
        let window = self.window.get_or_insert_with(new);
        if window.lines < MAX_LINES && window.bytes.saturating_add(bytes) <= MAX_BYTES {
            window.lines += 1;
            window.bytes += bytes;
            return OutputVerdict::Keep;
        }
        window.dropped.lines += 1;
        window.dropped.bytes = window.dropped.bytes.saturating_add(bytes);
        OutputVerdict::Drop
    }

    /// Returns the output dropped in a window that has ended. Returns it once.
    pub fn take_dropped(&mut self) -> Option<DroppedOutput> {
        self.window.as_ref().filter(|window| window.end <= Instant::now())?;
        self.finish()
    }

    /// Returns the dropped output that was not reported yet, at the end of the output.
    pub fn finish(&mut self) -> Option<DroppedOutput> {
        self.window.take().map(|window| window.dropped).filter(|dropped| dropped.lines > 0)
    }

    /// Waits until the end of a window with dropped lines. Never completes if no line was dropped.
    pub async fn window_with_drops_ends(&self) {
        match &self.window {
            Some(window) if window.dropped.lines > 0 => tokio::time::sleep_until(window.end).await,
            Some(_) | None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lines_beyond_the_limit_are_counted_and_reported() {
        let mut limit = OutputLimit::default();
        let kept = (0..5000).filter(|_| limit.admit(10) == OutputVerdict::Keep).count() as u64;
        assert_eq!((kept, limit.take_dropped()), (MAX_LINES, None));
        limit.window_with_drops_ends().await;
        let dropped = DroppedOutput { lines: 4000, bytes: 40_000 };
        assert_eq!((limit.take_dropped(), limit.take_dropped(), limit.finish()), (Some(dropped), None, None));
        assert_eq!(limit.admit(10), OutputVerdict::Keep);
        assert_eq!(limit.finish(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn long_lines_count_by_their_bytes() {
        let mut limit = OutputLimit::default();
        let kept = (0..100).filter(|_| limit.admit(64 * 1024) == OutputVerdict::Keep).count();
        assert_eq!(kept, 4);
        assert_eq!(limit.finish().map(|dropped| dropped.lines), Some(96));
    }
}
