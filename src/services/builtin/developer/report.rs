//! Reports the files that tools touch.

use std::path::Path;

use crate::tool::{Activity, CallContext};

use super::paths;
use crate::services::builtin::answer::{size, truncate};

/// Above this size a report contains only the changed part. Reports are stored with the session and shown in an
/// editor, and megabytes of unchanged text help neither.
const MAX_WHOLE: usize = 64 << 10;
/// Number of context lines around a changed part.
const AROUND: usize = 3;

/// Reports that a tool works at `place`; `line` counts from 1.
pub(super) fn place(call: &CallContext, place: &Path, line: Option<usize>) {
    let line = line.and_then(|line| u32::try_from(line).ok());
    call.report(Activity::Location { path: paths::session_path(&call.session, place), line });
}

/// Reports that `after` replaced `before`. `before` is `None` if the file did not exist.
pub(super) fn report_change(call: &CallContext, at: &Path, before: Option<&str>, after: &str) {
    let same = SharedLines::between(before.unwrap_or_default(), after);
    place(call, at, Some((same.above + 1).min(after.lines().count()).max(1)));
    let (before, after) = if before.map_or(0, str::len).max(after.len()) <= MAX_WHOLE {
        (before.map(str::to_owned), after.to_owned())
    } else {
        (before.map(|text| same.rest_of(text)), same.rest_of(after))
    };
    call.report(Activity::Changed { path: paths::session_path(&call.session, at), before, after });
}

/// How many lines two texts share at their start and end.
struct SharedLines {
    above: usize,
    below: usize,
}

impl SharedLines {
    fn between(before: &str, after: &str) -> Self {
        let same = |(left, right): &(&str, &str)| left == right;
        let (old, new): (Vec<_>, Vec<_>) = (lines(before).collect(), lines(after).collect());
        let above = old.iter().copied().zip(new.iter().copied()).take_while(same).count();
        let left = (old.len() - above).min(new.len() - above);
        let ends = old.iter().rev().copied().zip(new.iter().rev().copied());
        Self { above, below: ends.take(left).take_while(same).count() }
    }

    /// Returns the lines that are not shared, with context.
    fn rest_of(&self, text: &str) -> String {
        let first = self.above.saturating_sub(AROUND);
        let last = lines(text).count() - self.below.saturating_sub(AROUND);
        let rest: String = lines(text).skip(first).take(last - first).collect();
        let kept = truncate(&rest, MAX_WHOLE);
        match rest.len() - kept.len() {
            0 => rest,
            more => format!("{kept}\n[... {} left out]\n", size(more as u64)),
        }
    }
}

/// Splits into lines with their ends, so that a changed line end counts.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n')
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
