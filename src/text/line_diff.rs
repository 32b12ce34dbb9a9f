//! Computes the differences of two texts by lines, and how similar two lines are.
//!
//! Invariant: Myers' algorithm runs here for one type of sequence. `similar::TextDiff` compiles every algorithm of the
//! crate for each type, which makes the program larger. The results are the same.

use std::collections::HashMap;
use std::time::{Duration, Instant};

pub use similar::ChangeTag;
use similar::algorithms::{Capture, Compact, Replace, myers};
use similar::udiff::UnifiedHunkHeader;
use similar::{Change, DiffOp, DiffTag, DiffableStr as _, diff_ratio, group_diff_ops};

/// The differences of two texts. Lines keep their line ends: `\n`, `\r\n` or `\r`.
#[derive(Debug)]
pub struct LineDiff<'a> {
    before: Vec<&'a str>,
    after: Vec<&'a str>,
    operations: Vec<DiffOp>,
}

impl<'a> LineDiff<'a> {
    /// Compares two texts. After `timeout`, the rest of the result is coarser.
    pub fn new(before: &'a str, after: &'a str, timeout: Option<Duration>) -> Self {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let (before, after) = (before.tokenize_lines(), after.tokenize_lines());
        let mut ids: HashMap<&str, usize> = HashMap::new();
        let mut id_of = |line: &&'a str| {
            let next = ids.len();
            *ids.entry(*line).or_insert(next)
        };
        let before_ids = before.iter().map(&mut id_of).collect();
        let after_ids = after.iter().map(&mut id_of).collect();
        Self { before, after, operations: compare(before_ids, after_ids, deadline) }
    }

    /// Returns the operations in groups: changes that are close, with up to `context` equal lines around each.
    pub fn groups(&self, context: usize) -> Vec<Vec<DiffOp>> {
        group_diff_ops(self.operations.clone(), context)
    }

    /// Returns the lines of a group, in the order of the text.
    pub fn changes(&self, group: &[DiffOp]) -> impl Iterator<Item = Change<&'a str>> {
        group.iter().flat_map(move |operation| operation.iter_changes(&self.before, &self.after))
    }

    /// Returns the number of added lines.
    pub fn count_added(&self) -> usize {
        self.unequal().map(|operation| operation.new_range().len()).sum()
    }

    /// Returns the number of removed lines.
    pub fn count_removed(&self) -> usize {
        self.unequal().map(|operation| operation.old_range().len()).sum()
    }

    /// Returns the unified diff, empty if the texts are equal. `header` has the two names above the first group.
    pub fn format(&self, context: usize, mut header: Option<(&str, &str)>) -> String {
        let mut text = String::new();
        for group in self.groups(context) {
            if let Some((before, after)) = header.take() {
                text.push_str(&format!("--- {before}\n+++ {after}\n"));
            }
            text.push_str(&format!("{}\n", UnifiedHunkHeader::new(&group)));
            for change in self.changes(&group) {
                text.push(match change.tag() {
                    ChangeTag::Equal => ' ',
                    ChangeTag::Delete => '-',
                    ChangeTag::Insert => '+',
                });
                text.push_str(change.value());
                if change.missing_newline() {
                    text.push_str("\n\\ No newline at end of file\n");
                }
            }
        }
        text
    }

    fn unequal(&self) -> impl Iterator<Item = &DiffOp> {
        self.operations.iter().filter(|operation| operation.tag() != DiffTag::Equal)
    }
}

/// Returns how similar two texts are, by characters. 1 if they are equal, 0 if they share no character.
pub fn char_similarity(left: &str, right: &str) -> f32 {
    let ids = |text: &str| text.chars().map(|c| c as usize).collect::<Vec<_>>();
    let (left, right) = (ids(left), ids(right));
    let (left_len, right_len) = (left.len(), right.len());
    diff_ratio(&compare(left, right, None), left_len, right_len)
}

/// Runs Myers' algorithm on the ids of lines or characters. Takes vectors, because `similar` itself runs the algorithm
/// on vectors of `usize`, and part of the code is then shared.
fn compare(before: Vec<usize>, after: Vec<usize>, deadline: Option<Instant>) -> Vec<DiffOp> {
    let mut hook = Compact::new(Replace::new(Capture::new()), &before, &after);
    let Ok(()) = myers::diff_deadline(&mut hook, &before, 0..before.len(), &after, 0..after.len(), deadline);
    hook.into_inner().into_inner().into_ops()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use similar::TextDiff;

    use super::*;

    fn assert_same_as_similar(before: &str, after: &str) {
        let (expected, found) = (TextDiff::from_lines(before, after), LineDiff::new(before, after, None));
        for context in [0, 2, 3] {
            let text = expected.unified_diff().context_radius(context).to_string();
            assert_eq!(found.format(context, None), text, "{before:?} {after:?}");
            let text = expected.unified_diff().context_radius(context).header("a/x", "b/x").to_string();
            assert_eq!(found.format(context, Some(("a/x", "b/x"))), text, "{before:?} {after:?}");
        }
        let count = |tag| expected.iter_all_changes().filter(|change| change.tag() == tag).count();
        assert_eq!((found.count_added(), found.count_removed()), (count(ChangeTag::Insert), count(ChangeTag::Delete)));
        assert_eq!(char_similarity(before, after), TextDiff::from_chars(before, after).ratio());
    }

    #[test]
    fn unified_diff_has_header_ranges_and_missing_newline() {
        let diff = LineDiff::new("a\nb\nc\nd\n", "a\nB\nc\nd", None);
        let expected = "--- x\n+++ y\n@@ -2 +2 @@\n-b\n+B\n@@ -4 +4 @@\n-d\n+d\n\\ No newline at end of file\n";
        assert_eq!(diff.format(0, Some(("x", "y"))), expected);
        assert_eq!((diff.count_added(), diff.count_removed()), (2, 2));
        assert_eq!(LineDiff::new("a", "a", None).format(3, Some(("x", "y"))), "");
    }

    #[test]
    fn usual_texts_differ_as_similar_says() {
        for (before, after) in [
            ("", ""),
            ("", "a\n"),
            ("a", ""),
            ("a\n", "b"),
            ("a\nb", "a\nc\n"),
            ("a\nb\nc\n", "c\na\nb\n"),
            ("a\r\nb\rc\n", "a\nb\rc\r\n"),
            ("\u{18}\n\n", "\n\n\r"),
            ("d\na\nc\nb\na\na", "b\nd\nd\na\nd"),
            ("é\n日本\n", "e\n日本\n"),
        ] {
            assert_same_as_similar(before, after);
        }
    }

    /// `similar` maps more than 100 lines to integers, and drops lines of one side alone from 512 lines on.
    #[test]
    fn long_texts_differ_as_similar_says() {
        let lines = |line: fn(usize) -> String, count: usize| (0..count).map(line).collect::<String>();
        let numbered: fn(usize) -> String = |n| format!("{n}\n");
        let scattered: fn(usize) -> String = |n| if n % 50 == 7 { format!("{n}\n") } else { format!("new {n}\n") };
        let repeated: fn(usize) -> String = |n| format!("{}\n", n % 7);
        for count in [150, 600] {
            assert_same_as_similar(&lines(numbered, count), &lines(scattered, count + 20));
            assert_same_as_similar(&lines(repeated, count), &lines(scattered, count));
            assert_same_as_similar(&lines(numbered, count), &lines(numbered, count).replace("9\n", "nine\n"));
        }
    }

    proptest! {
        #[test]
        fn any_texts_differ_as_similar_says(before in "[abc\r\n]{0,400}", after in "[abc\r\n]{0,400}") {
            assert_same_as_similar(&before, &after);
        }
    }
}
