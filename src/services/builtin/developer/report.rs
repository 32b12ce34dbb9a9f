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
    place(call, at, usize::try_from(same.first_changed(after)).ok());
    let (before, after) = same.shorten(before, after, MAX_WHOLE);
    call.report(Activity::Changed { path: paths::session_path(&call.session, at), before, after });
}

/// How many lines two texts share at their start and end.
pub(super) struct SharedLines {
    above: usize,
    below: usize,
}

impl SharedLines {
    pub(super) fn between(before: &str, after: &str) -> Self {
        let same = |(left, right): &(&str, &str)| left == right;
        let (old, new): (Vec<_>, Vec<_>) = (lines(before).collect(), lines(after).collect());
        let above = old.iter().copied().zip(new.iter().copied()).take_while(same).count();
        let left = (old.len() - above).min(new.len() - above);
        let ends = old.iter().rev().copied().zip(new.iter().rev().copied());
        Self { above, below: ends.take(left).take_while(same).count() }
    }

    /// Returns the first changed line of the new text; starts at 1.
    pub(super) fn first_changed(&self, after: &str) -> u32 {
        let line = (self.above + 1).min(after.lines().count()).max(1);
        u32::try_from(line).unwrap_or(u32::MAX)
    }

    /// Returns both texts whole if neither is longer than `max` bytes, otherwise the changed part of each.
    pub(super) fn shorten(&self, before: Option<&str>, after: &str, max: usize) -> (Option<String>, String) {
        if before.map_or(0, str::len).max(after.len()) <= max {
            return (before.map(str::to_owned), after.to_owned());
        }
        (before.map(|text| self.rest_of(text, max)), self.rest_of(after, max))
    }

    /// Returns the lines that are not shared, with context. A mark stands for what is left out, so that a restore does
    /// not take the part for the whole file.
    fn rest_of(&self, text: &str, max: usize) -> String {
        let first = self.above.saturating_sub(AROUND);
        let last = lines(text).count() - self.below.saturating_sub(AROUND);
        let mark = |bytes: usize| match bytes {
            0 => String::new(),
            bytes => Activity::left_out_mark(&size(bytes as u64)),
        };
        let above: usize = lines(text).take(first).map(str::len).sum();
        let rest: String = lines(text).skip(first).take(last - first).collect();
        let kept = truncate(&rest, max);
        let end = if kept.len() < rest.len() { "\n" } else { "" };
        format!("{}{kept}{end}{}", mark(above), mark(text.len() - above - kept.len()))
    }
}

/// Splits into lines with their ends, so that a changed line end counts.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n')
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
