//! Joins an answer that was cut off with its continuation, so that no text appears twice.
//!
//! A model that is asked to continue may repeat its last words or start from the beginning. The joiner holds the
//! continuation back while it may be a repetition, and passes on only the new text.

/// Minimum bytes of a repetition. A shorter one may be chance: `haha` may continue with `ha`.
const MIN_OVERLAP: usize = 16;

/// Separates an answer that was cut off from a second answer that begins the same and then differs.
const MARK: &str = "\n\n[The connection was lost here. The answer started again and continued differently:]\n\n…";

/// The text before the interruption, and the continuation that is held back.
#[derive(Debug, Default)]
pub(super) struct ReplyJoiner {
    before: String,
    held: String,
    open: bool,
}

impl ReplyJoiner {
    pub(super) fn new(before: String) -> Self {
        Self { open: !before.is_empty(), before, held: String::new() }
    }

    /// Adds a chunk. Returns the text that can be passed on: none while the chunk may repeat earlier text.
    pub(super) fn feed(&mut self, more: &str) -> String {
        if !self.open {
            return more.to_owned();
        }
        self.held.push_str(more);
        if self.before.contains(&self.held) { String::new() } else { self.release() }
    }

    /// Ends the continuation. Returns the text that is still held back.
    pub(super) fn end(&mut self) -> String {
        if self.open { self.release() } else { String::new() }
    }

    fn release(&mut self) -> String {
        self.open = false;
        let held = std::mem::take(&mut self.held);
        if let Some(repeated) = self.overlap(&held) {
            return held[repeated..].to_owned();
        }
        let same = same_beginning(&self.before, &held);
        // Lines of a list often begin alike. Only a prefix of at least a third of the earlier text counts as a restart.
        if same < MIN_OVERLAP.max(self.before.len() / 3) {
            return held;
        }
        if same == held.len() { String::new() } else { format!("{MARK}{}", &held[same..]) }
    }

    /// Returns how many first bytes of `held` repeat the end of the earlier text. `None` if there is no such
    /// repetition.
    fn overlap(&self, held: &str) -> Option<usize> {
        let ends = held.char_indices().map(|(at, _)| at).chain([held.len()]).rev();
        let mut long = ends.take_while(|end| *end >= MIN_OVERLAP.min(self.before.len()));
        long.find(|end| {
            *end > 0 && (*end >= MIN_OVERLAP || *end == self.before.len()) && self.before.ends_with(&held[..*end])
        })
    }
}

fn same_beginning(a: &str, b: &str) -> usize {
    let pairs = a.char_indices().zip(b.chars());
    pairs.take_while(|((_, a), b)| a == b).last().map_or(0, |((at, c), _)| at + c.len_utf8())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader sees, with the second answer coming in pieces of every size.
    fn read(before: &str, after: &str) -> String {
        let mut seen = std::collections::BTreeSet::new();
        for size in 1..=after.chars().count().max(1) {
            let mut join = ReplyJoiner::new(before.to_owned());
            let mut text = before.to_owned();
            let chars: Vec<_> = after.chars().collect();
            for piece in chars.chunks(size) {
                text.push_str(&join.feed(&piece.iter().collect::<String>()));
            }
            text.push_str(&join.end());
            seen.insert(text);
        }
        assert_eq!(seen.len(), 1, "how it is cut into pieces makes no difference: {seen:?}");
        seen.pop_first().unwrap()
    }

    #[test]
    fn a_model_that_goes_on_is_read_on() {
        assert_eq!(
            read("The river is the Sei", "ne, which flows north."),
            "The river is the Seine, which flows north."
        );
        assert_eq!(read("ha", "haha"), "haha", "as short as that it was begun again");
        assert_eq!(read("I see a", " apple"), "I see a apple");
        assert_eq!(read("", "anything"), "anything");
        assert_eq!(read("all of it", ""), "all of it");
    }

    #[test]
    fn a_model_that_begins_again_is_not_heard_twice() {
        let whole = "Größe ist nicht alles, aber ein Anfang.";
        assert_eq!(read("Größe ist nicht al", whole), whole);
        assert_eq!(read(whole, whole), whole);
    }

    #[test]
    fn a_model_that_takes_up_the_last_words_is_not_heard_twice() {
        let before = "First one thing. Then, after a long while, the other th";
        assert_eq!(read(before, "Then, after a long while, the other thing."), format!("{before}ing."));
    }

    #[test]
    fn a_model_that_begins_again_and_goes_another_way_is_marked() {
        let text = read("The capital of France is Paris, on the Sei", "The capital of France is Paris. It is large.");
        assert!(
            text.starts_with("The capital of France is Paris, on the Sei\n\n[The connection was lost here."),
            "{text}"
        );
        assert!(text.ends_with("…. It is large.") && text.matches("The capital").count() == 1, "{text}");
    }
}
