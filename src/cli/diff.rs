//! Renders the changes of a file as coloured, numbered lines.

use anstyle::{AnsiColor, Style};

use super::output::{QUIET, cut, verbatim};
use crate::text::line_diff::{ChangeTag, LineDiff};

/// Context lines around a change.
const AROUND: usize = 2;

/// Returns the lines of a diff, none wider than `width`. `before` is `None` if the file did not exist.
pub(super) fn lines(before: Option<&str>, after: &str, width: usize) -> Vec<String> {
    let diff = LineDiff::new(before.unwrap_or_default(), after, None);
    let mut lines = Vec::new();
    for (at, group) in diff.groups(AROUND).iter().enumerate() {
        if at > 0 {
            lines.push(format!("{QUIET}   …{QUIET:#}"));
        }
        for change in diff.changes(group) {
            let (sign, style, number) = match change.tag() {
                ChangeTag::Delete => ('-', AnsiColor::Red.on_default(), change.old_index()),
                ChangeTag::Insert => ('+', AnsiColor::Green.on_default(), change.new_index()),
                ChangeTag::Equal => (' ', Style::new(), change.new_index()),
            };
            let number = number.map_or(0, |number| number + 1);
            let line = cut(&verbatim(change.value().trim_end_matches('\n')), width.saturating_sub(7));
            let text = format!("{sign} {line}");
            lines.push(format!("{QUIET}{number:>4}{QUIET:#} {style}{}{style:#}", text.trim_end()));
        }
    }
    lines
}

/// Returns the number of inserted and deleted lines.
pub(super) fn counts(before: Option<&str>, after: &str) -> (usize, usize) {
    let diff = LineDiff::new(before.unwrap_or_default(), after, None);
    (diff.count_added(), diff.count_removed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diff_has_line_numbers_and_no_terminal_escapes() {
        let before = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n";
        let after = before.replace("b\n", "B\u{1b}[2J\n").replace("j\n", "");
        let plain: Vec<_> =
            lines(Some(before), &after, 80).iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect();
        let expected = [
            "   1   a",
            "   2 - b",
            "   2 + B\u{FFFD}[2J",
            "   3   c",
            "   4   d",
            "   …",
            "   8   h",
            "   9   i",
            "  10 - j",
        ];
        assert_eq!(plain, expected);
        assert_eq!(counts(Some(before), &after), (1, 2));
        assert_eq!(counts(None, "x\ny"), (2, 0));
    }
}
