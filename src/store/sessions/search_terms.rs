//! Splits text into the words that a PostgreSQL store indexes and looks for. The result is close to SQLite's: lower
//! case, without diacritics, split at everything that is no letter or digit.

use icu_normalizer::DecomposingNormalizerBorrowed;

/// The bytes of words that are indexed of one text. The index of one text must stay below 1 MiB.
const MAX_INDEXED: usize = 400_000;
/// A longer word is no word, and the database refuses it.
const MAX_WORD: usize = 255;

/// Returns the words of a text.
pub(in crate::store) fn split_words(text: &str) -> Vec<String> {
    let plain = DecomposingNormalizerBorrowed::new_nfd().normalize(text);
    let plain: String = plain.chars().filter(|c| !is_mark(*c)).flat_map(char::to_lowercase).collect();
    let words = plain.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| !word.is_empty() && word.len() <= MAX_WORD).map(str::to_owned).collect()
}

/// Returns the words to index, separated by spaces, and their number.
pub(in crate::store) fn index_words(text: &str) -> (String, i64) {
    let (mut indexed, mut count) = (String::new(), 0);
    for word in split_words(text) {
        if indexed.len() + word.len() >= MAX_INDEXED {
            break;
        }
        indexed.push_str(&word);
        indexed.push(' ');
        count += 1;
    }
    (indexed, count)
}

/// Combining diacritical marks.
fn is_mark(character: char) -> bool {
    ('\u{300}'..='\u{36f}').contains(&character)
}

/// A word of a query, which may have several parts, as in `foo-bar`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct QueryWord {
    parts: Vec<String>,
}

impl QueryWord {
    /// Returns the words of a query that have a letter or a digit.
    pub(in crate::store) fn all_of(query: &str) -> Vec<Self> {
        let words = query.split(|c: char| c.is_whitespace() || c.is_control());
        words.filter_map(Self::new).collect()
    }

    /// `None` if the word has no letter or digit.
    pub(in crate::store) fn new(word: &str) -> Option<Self> {
        let parts = split_words(word);
        (!parts.is_empty()).then_some(Self { parts })
    }

    /// Returns the query of the database for texts in which the parts follow each other. The last part may be the
    /// beginning of a word.
    pub(in crate::store) fn as_prefix(&self) -> String {
        format!("{}:*", self.as_whole())
    }

    /// Returns the query of the database for texts in which the parts follow each other as whole words.
    pub(in crate::store) fn as_whole(&self) -> String {
        // The parts have only letters and digits.
        let parts: Vec<_> = self.parts.iter().map(|part| format!("'{part}'")).collect();
        parts.join(" <-> ")
    }

    /// Returns the part by which occurrences are counted.
    pub(in crate::store) fn last_part(&self) -> &str {
        self.parts.last().map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_lower_case_without_marks_and_signs() {
        assert_eq!(split_words("Café-Straße, \"x1\" = 42; 日本"), ["cafe", "straße", "x1", "42", "日本"]);
        assert_eq!(split_words(" -- \0"), [""; 0]);
        assert_eq!(index_words("One, two"), ("one two ".to_owned(), 2));
    }

    #[test]
    fn a_query_word_has_no_operators() {
        let words: Vec<_> = QueryWord::all_of("it's a foo-b' & | !").iter().map(QueryWord::as_prefix).collect();
        assert_eq!(words, ["'it' <-> 's':*", "'a':*", "'foo' <-> 'b':*"]);
    }
}
