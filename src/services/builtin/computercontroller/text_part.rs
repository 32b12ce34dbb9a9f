//! Cuts long texts into parts that fit into one answer.

use crate::services::builtin::answer;

/// Limits of one answer.
pub(super) const MAX_LINES: usize = 2_000;
const MAX_BYTES: usize = 50_000;

/// Some lines of a text, within the limits of an answer.
pub(super) struct TextPart<'a> {
    pub(super) text: &'a str,
    pub(super) first: usize,
    pub(super) last: usize,
    total: usize,
}

impl<'a> TextPart<'a> {
    pub(super) fn of(text: &'a str, first: usize, limit: usize) -> Self {
        let total = text.lines().count();
        let mut start = text.len();
        let (mut at, mut end, mut last) = (0, 0, first.saturating_sub(1));
        for (index, line) in text.split_inclusive('\n').enumerate() {
            let number = index + 1;
            if number == first {
                (start, end) = (at, at);
            }
            at += line.len();
            if number < first {
                continue;
            }
            let is_full = number >= first + limit || at - start > MAX_BYTES && number > first;
            if is_full {
                break;
            }
            (end, last) = (at, number);
        }
        // One line can be longer than the limit.
        let part = text.get(start..end.max(start)).unwrap_or_default();
        Self { text: answer::truncate(part, MAX_BYTES * 2), first, last, total }
    }

    /// Returns a line that says which part of which text this is.
    pub(super) fn label(&self, id: &str, title: &str) -> String {
        if self.first == 1 && self.last == self.total {
            return format!("{title} [{id}]");
        }
        let more = if self.last < self.total {
            format!("; continue with `read_cache` and `line: {}`", self.last + 1)
        } else {
            String::new()
        };
        format!("{title} [{id}], lines {}-{} of {}{more}", self.first, self.last, self.total)
    }
}
