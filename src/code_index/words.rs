//! Finds the words of a file, and what each may be, without a parser.
//!
//! A word is a run of ASCII letters, digits and underscores, also in comments and strings. Its place shows what it may
//! be. The flags with `MAY` rule files out before they are parsed, so that they are set too often rather than too
//! rarely. In a file with syntax errors, the parser can connect words that are far apart, and a definition that it finds
//! so can lack its flag.

use super::language::SourceLanguage;
use super::word_place::{FLAGS, is_word_byte};
use super::word_scan::visit_words;

/// The words of a file, and its number of lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileWords {
    /// Hashes in order, each with the flags of all places of the word. Words with equal hashes share the flags.
    words: Box<[u32]>,
    pub(super) lines: u32,
    /// Shows whether the file still has the same text.
    pub(super) content: u64,
}

impl FileWords {
    pub(super) fn new(language: SourceLanguage, source: &[u8]) -> Self {
        let mut words = Vec::with_capacity(source.len() / 8);
        let shared_flags = visit_words(language, source, |word, flags| words.push(hash_of(word) | flags));
        words.sort_unstable();
        words.dedup_by(|next, kept| {
            let is_same = (*next ^ *kept) & !FLAGS == 0;
            if is_same {
                *kept |= *next;
            }
            is_same
        });
        words.iter_mut().for_each(|word| *word |= shared_flags);
        let lines = memchr::memchr_iter(b'\n', source).count();
        let has_open_line = source.last().is_some_and(|byte| *byte != b'\n');
        let lines = u32::try_from(lines + usize::from(has_open_line)).unwrap_or(u32::MAX);
        Self { words: words.into(), lines, content: content_of(source) }
    }

    /// Returns the flags of a word, or `None` if it does not occur.
    pub(super) fn flags(&self, hash: u32) -> Option<u32> {
        let at = self.words.partition_point(|known| known & !FLAGS < hash);
        self.words.get(at).filter(|known| **known & !FLAGS == hash).map(|known| known & FLAGS)
    }

    /// Returns the hash and the flags of each word.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.words.iter().map(|word| (word & !FLAGS, word & FLAGS))
    }
}

/// Returns a number that differs for a different text, except by rare chance.
pub(super) fn content_of(source: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher as _};
    let mut hasher = DefaultHasher::new();
    hasher.write(source);
    hasher.finish()
}

/// A name to look for in the words of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NameWords {
    hashes: Vec<u32>,
    /// The name is one word. The places of other names, as `my-name`, are unknown: they may be anything.
    is_word: bool,
}

impl NameWords {
    pub(super) fn new(name: &str) -> Self {
        let is_word = !name.is_empty() && name.bytes().all(is_word_byte);
        let words = name.as_bytes().split(|byte| !is_word_byte(*byte)).filter(|word| !word.is_empty());
        Self { hashes: words.map(hash_of).collect(), is_word }
    }

    /// Returns the hash of a name that is one word.
    pub(super) fn as_word(&self) -> Option<u32> {
        self.hashes.first().copied().filter(|_| self.is_word)
    }

    /// Returns false if the file cannot contain the name.
    pub(super) fn may_occur(&self, words: &FileWords) -> bool {
        self.hashes.iter().all(|hash| words.flags(*hash).is_some())
    }

    /// Returns false if the name cannot occur in a place with one of these flags.
    pub(super) fn may_be(&self, words: &FileWords, flags: u32) -> bool {
        match self.as_word() {
            Some(hash) => words.flags(hash).is_some_and(|known| known & flags != 0),
            None => self.may_occur(words),
        }
    }
}

/// Returns a hash whose bits for flags are free.
pub(super) fn hash_of(word: &[u8]) -> u32 {
    let hash = word
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    #[expect(clippy::cast_possible_truncation, reason = "a hash may lose bits")]
    let folded = (hash ^ (hash >> 32)) as u32;
    folded & !FLAGS
}

#[cfg(test)]
#[path = "words_tests.rs"]
mod tests;
