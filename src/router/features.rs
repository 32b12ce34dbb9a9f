//! Extracts features from text: words, neighbouring words, pairs of content words, and the letters inside words. Each
//! feature is a hash, so that no table of texts is needed.

use std::collections::BTreeMap;

/// Words that mean little alone; pairs use only the other words.
const JOINING: &str = "a an the of to in on at for with and or is are was were be been am do does did can could would will should shall \
    may might i me my mine we us our you your it its this that these those there please";

const ENDINGS: &[&str] = &["ing", "ed", "es", "ly", "s"];

/// The hash of a feature. Two of the features of a router rarely share one, which changes little.
pub(super) type FeatureHash = u32;

/// The number of occurrences of each feature: one map for words, one for letters.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) words: BTreeMap<FeatureHash, f32>,
    pub(super) letters: BTreeMap<FeatureHash, f32>,
    /// The words themselves, in order.
    pub(super) plain: Vec<String>,
}

/// Splits text into lower-case words, expands contractions and replaces every number with `0`.
pub(super) fn words(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    let lower = text.to_lowercase().replace('’', "'");
    for run in lower.split(|c: char| !c.is_alphanumeric() && c != '\'') {
        let (stem, more) = contraction(run);
        for part in stem.split('\'').filter(|part| !part.is_empty()) {
            out.push(without_digits(part));
        }
        out.extend((!more.is_empty()).then(|| more.to_owned()));
    }
    out
}

fn contraction(run: &str) -> (&str, &'static str) {
    for (ending, more) in
        [("'s", ""), ("n't", "not"), ("'m", "am"), ("'re", "are"), ("'ll", "will"), ("'ve", "have"), ("'d", "would")]
    {
        if let Some(stem) = run.strip_suffix(ending) {
            return (stem, more);
        }
    }
    (run, "")
}

fn without_digits(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    for c in word.chars() {
        match c.is_ascii_digit() {
            true if out.ends_with('0') => {}
            true => out.push('0'),
            false => out.push(c),
        }
    }
    out
}

/// Removes the most common ending of a word.
pub(super) fn stem(word: &str) -> &str {
    if word.chars().count() <= 4 {
        return word;
    }
    let stemmed = ENDINGS.iter().find_map(|ending| word.strip_suffix(ending));
    stemmed.filter(|stem| stem.chars().count() >= 3).unwrap_or(word)
}

/// Returns true if a word says little alone.
pub(super) fn is_joining(word: &str) -> bool {
    JOINING.split(' ').any(|joining| joining == word)
}

pub(super) fn count(text: &str) -> Counts {
    let plain = words(text);
    let mut counts = Counts::default();
    let stems = plain.iter().map(|word| stem(word)).collect::<Vec<_>>();
    for word in &stems {
        add(&mut counts.words, hash(b'w', &[word]));
    }
    for pair in stems.windows(2) {
        add(&mut counts.words, hash(b'n', pair));
    }
    let telling = stems.iter().copied().filter(|word| !is_joining(word)).collect::<Vec<_>>();
    for (at, first) in telling.iter().enumerate() {
        for second in telling.iter().skip(at + 1).take(2) {
            let (low, high) = if first <= second { (first, second) } else { (second, first) };
            add(&mut counts.words, hash(b'p', &[low, high]));
        }
    }
    for word in &plain {
        letters(word, &mut counts.letters);
    }
    counts.plain = plain;
    counts
}

/// Counts the sequences of two to four letters, including the edges of the word.
fn letters(word: &str, into: &mut BTreeMap<FeatureHash, f32>) {
    let framed = format!(" {word} ");
    let at = framed.char_indices().map(|(at, _)| at).chain([framed.len()]).collect::<Vec<_>>();
    for size in 2..=4 {
        for window in at.windows(size + 1) {
            add(into, hash(b'c', &[&framed[window[0]..window[size]]]));
        }
    }
}

fn add(counts: &mut BTreeMap<FeatureHash, f32>, feature: FeatureHash) {
    *counts.entry(feature).or_default() += 1.0;
}

/// Computes FNV-1a over a family and texts.
fn hash(family: u8, texts: &[&str]) -> FeatureHash {
    let step = |hash: FeatureHash, byte: u8| (hash ^ FeatureHash::from(byte)).wrapping_mul(0x0100_0193);
    let begin = step(0x811c_9dc5, family);
    texts.iter().fold(begin, |hash, text| text.bytes().chain([0]).fold(hash, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_plain_and_numbers_alike() {
        assert_eq!(
            words("Don’t rename V2.txt, it's created_at 1024!"),
            ["do", "not", "rename", "v0", "txt", "it", "created", "at", "0"]
        );
    }

    #[test]
    fn a_stem_is_never_shorter_than_three_letters() {
        assert_eq!(["tests", "fixing", "bring", "class", "red"].map(stem), ["test", "fix", "bring", "clas", "red"]);
    }

    #[test]
    fn the_order_of_telling_words_counts_less_than_the_words() {
        let first = count("fix the login");
        let second = count("login, fix it");
        assert!(first.words.keys().filter(|feature| second.words.contains_key(feature)).count() >= 3);
    }
}
