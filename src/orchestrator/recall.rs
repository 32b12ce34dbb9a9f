//! Finds excerpts of earlier sessions of the project that relate to a prompt. Each is short and carries its session and
//! date.
//!
//! Invariant: no excerpt is better than an irrelevant one. An excerpt shares rare words with the prompt and contains no
//! secret. The same store and prompt give the same excerpts.

use std::collections::HashSet;
use std::sync::LazyLock;

use crate::clock;
use crate::secrets;
use crate::store::{self, COUNTED, FolderFilter, RecallMatch, StoredMessage, TermStats, TermWeights};
use crate::tool::strip_to_line;

/// Maximum number of excerpts, and their total size in bytes.
pub(super) const MAX_EXCERPTS: usize = 3;
pub(super) const MAX_BYTES: usize = 1_500;
/// Maximum excerpt of a question, and of the answer to it, in characters.
const MAX_QUESTION_CHARS: usize = 160;
const MAX_ANSWER_CHARS: usize = 240;
/// Only the beginning of a prompt is searched for words; it usually states the topic.
const MAX_PROMPT_CHARS: usize = 4_000;
const MAX_WORDS: usize = 24;
/// Maximum number of messages that are examined.
const MAX_CANDIDATES: usize = 24;
/// Minimum weight of the shared words: two words that each occur in about thirty messages, or more words that are less
/// rare.
const MIN_WEIGHT: f64 = 5.0;
/// Minimum share of the weight of all words of the prompt. A message below it is mostly about another topic.
const MIN_SHARE: f64 = 0.2;
/// A shared word in at most this many messages is enough alone, if the store has at least [`MIN_EVENTS`] events.
const MAX_RARE_COUNT: usize = 2;
const MIN_EVENTS: u64 = 200;
/// Minimum lengths in characters: of any word, and of a number or a word that is enough alone.
const SHORT: usize = 3;
const LONG: usize = 5;
/// Characters around an excerpt that are checked for secrets, so that it cannot contain the first half of one.
const MARGIN: usize = 120;
/// Characters of a message that are searched for a shared word, and those on each side of it that are looked at.
const MAX_MESSAGE_CHARS: usize = 100_000;
const WINDOW: usize = 4_000;

/// Words without topic. Frequent words that are missing here get a low weight.
const STOP_WORDS: &str = "a about after again all already also always an and another any are around as at back be because been \
    before being between both but by can cannot could did do does doing don done down each else even ever every few file \
    files find first for from get gets getting give go goes going good got had has have having he hello help her here hers \
    hi him his how however i if in into is isn it its itself just keep know last let like look looks lot made make makes \
    making many may maybe me mean might mine more most much must my need needs never new next no nor not nothing now of off \
    ok okay old on once one only or other our ours out over own per please put quite rather really right said same say says \
    see seem seems shall she should show simple since so some something soon still such sure take tell than thank thanks \
    that the their theirs them then there these they thing things think this those though three through thus to today \
    together too try two under until up upon us use used user uses using very want wants was way we well were what when \
    where whether which while who whole whom whose why will with within without won work works would write yes yesterday \
    yet you your yours aber alle als also auch auf aus bei bin bis bitte das dass dem den der des die dies doch ein eine \
    einen einer es für hat habe hier ich ihr im ist ja jetzt kann kein keine mal man mehr mein mit nach nicht noch nur oder \
    schon sein sich sie sind und uns von vor war was wenn wer wie wir wird wo zu zum zur";

/// An excerpt of an earlier session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecallExcerpt {
    /// `[session day, message]`; unique per excerpt.
    pub(super) citation: String,
    /// One line of text.
    pub(super) text: String,
}

impl RecallExcerpt {
    pub(super) fn line(&self) -> String {
        format!("{} {}", self.citation, self.text)
    }
}

/// Returns the excerpts of sessions `within` these folders that match `about`, best first. Skips the sessions in
/// `without`: the caller's session and its relatives. Returns nothing if the store cannot be read, because a turn can run
/// without excerpts.
pub(super) async fn extract(
    store: &store::SessionStore,
    about: &str,
    within: impl FnOnce() -> FolderFilter + Send + 'static,
    without: &[String],
) -> Vec<RecallExcerpt> {
    match pieces(store, about, within, without).await {
        Ok(pieces) => pieces,
        Err(error) => {
            tracing::warn!(%error, "earlier sessions could not be looked up");
            Vec::new()
        }
    }
}

async fn pieces(
    store: &store::SessionStore,
    about: &str,
    within: impl FnOnce() -> FolderFilter + Send + 'static,
    without: &[String],
) -> Result<Vec<RecallExcerpt>, store::StoreError> {
    let words = content_words(about);
    if words.is_empty() {
        return Ok(Vec::new());
    }
    let common = store.common_terms(words.clone(), within, without.to_vec(), TERM_WEIGHTS, MAX_CANDIDATES).await?;
    let mut found: Vec<RecallExcerpt> = Vec::new();
    let (mut sessions, mut texts, mut bytes) = (HashSet::new(), HashSet::new(), 0);
    for kindred in common.messages.iter().filter(|kindred| matters(kindred, &common, &words)) {
        if found.len() == MAX_EXCERPTS {
            break;
        }
        if !sessions.insert(kindred.session.as_str()) {
            continue;
        }
        let Some(text) = quote_match(store, kindred, &words).await? else { continue };
        let piece = RecallExcerpt { citation: citation(kindred), text };
        // A copied session contains the same text again.
        if bytes + piece.line().len() < MAX_BYTES && texts.insert(piece.text.clone()) {
            bytes += piece.line().len() + 1;
            found.push(piece);
        }
    }
    Ok(found)
}

/// Returns the words of a prompt that carry topic, each once, in order.
fn content_words(about: &str) -> Vec<String> {
    static PLAIN: LazyLock<HashSet<&str>> = LazyLock::new(|| STOP_WORDS.split_whitespace().collect());
    let about: String = about.chars().take(MAX_PROMPT_CHARS).collect::<String>().to_lowercase();
    let mut seen = HashSet::new();
    let words = about.split(|c: char| !c.is_alphanumeric()).filter(|word| {
        word.chars().count() >= SHORT
            && !PLAIN.contains(word)
            && !(word.chars().count() < LONG && word.chars().all(char::is_numeric))
            && seen.insert((*word).to_owned())
    });
    words.map(str::to_owned).take(MAX_WORDS).collect()
}

/// The store drops matches below [`MIN_WEIGHT`]. A single rare word weighs at least that much.
const TERM_WEIGHTS: TermWeights = TermWeights { word: weight, least: MIN_WEIGHT };

/// Returns the weight of a word that occurs in `messages` messages: the rarer, the higher. A word in no message has the
/// highest weight and counts towards another topic.
fn weight(messages: usize) -> f64 {
    let (all, with) = (f64::from(COUNTED as u32), f64::from(u32::try_from(messages.max(1)).unwrap_or(u32::MAX)));
    (1.0 + all / with).ln()
}

/// Returns whether a message shares enough words with the prompt.
fn matters(kindred: &RecallMatch, common: &TermStats, words: &[String]) -> bool {
    let weights =
        |places: &mut dyn Iterator<Item = usize>| places.map(|place| weight(common.frequency[place])).sum::<f64>();
    let shared = weights(&mut kindred.words.iter().copied());
    let whole = weights(&mut (0..words.len()));
    let rare = |place: &usize| common.frequency[*place] <= MAX_RARE_COUNT && words[*place].chars().count() >= LONG;
    let alone = common.events >= MIN_EVENTS && kindred.words.iter().any(rare);
    shared >= whole * MIN_SHARE && (alone || (kindred.words.len() >= 2 && shared >= MIN_WEIGHT))
}

fn citation(kindred: &RecallMatch) -> String {
    let short: String = kindred.session.chars().take(10).collect();
    format!("[session {short}, {}, message {}]", clock::date(kindred.said.at), kindred.said.seq)
}

/// Returns the message around the shared words and its answer. `None` if either contains a secret.
async fn quote_match(
    store: &store::SessionStore,
    kindred: &RecallMatch,
    words: &[String],
) -> Result<Option<String>, store::StoreError> {
    let shared: Vec<_> = kindred.words.iter().map(|place| words[*place].as_str()).collect();
    if kindred.said.by != "user" {
        return Ok(excerpt(&kindred.said.text, &shared, MAX_ANSWER_CHARS).map(|text| format!("answered: {text}")));
    }
    let Some(asked) = excerpt(&kindred.said.text, &shared, MAX_QUESTION_CHARS) else { return Ok(None) };
    let after = store.messages(&kindred.session, kindred.said.seq + 1, 20).await?;
    let answer: Option<&StoredMessage> = after.iter().take_while(|said| said.by != "user").last();
    Ok(match answer {
        None => Some(format!("asked: {asked}")),
        Some(answer) => {
            excerpt(&answer.text, &shared, MAX_ANSWER_CHARS).map(|text| format!("asked: {asked} — answered: {text}"))
        }
    })
}

/// Returns at most `length` characters of whole words, starting shortly before the first shared word. `None` if there
/// is a secret in or near them.
fn excerpt(text: &str, words: &[&str], length: usize) -> Option<String> {
    let stems: Vec<Vec<char>> = words.iter().map(|word| stem(word)).collect();
    // A message may be long, so only its part around the word is copied.
    let word = place(text, &stems).unwrap_or_default();
    let first = text[..word].char_indices().rev().take(WINDOW).last().map_or(word, |(at, _)| at);
    let last = text[word..].char_indices().nth(WINDOW).map_or(text.len(), |(at, _)| word + at);
    let line = strip_to_line(&text[first..last]);
    let word = line[..place(&line, &stems).unwrap_or_default()].chars().count();
    let line: Vec<char> = line.chars().collect();
    let from = word.saturating_sub(length / 4);
    let from =
        if from == 0 { 0 } else { from + line[from..].iter().position(|c| *c == ' ').map_or(0, |space| space + 1) };
    let mut end = (from + length).min(line.len());
    if end < line.len() {
        end = line[from..end].iter().rposition(|c| *c == ' ').map_or(end, |space| from + space);
    }
    let is_cut = (first > 0 && from < MARGIN) || (last < text.len() && end + MARGIN > line.len());
    let near: String = line[from.saturating_sub(MARGIN)..(end + MARGIN).min(line.len())].iter().collect();
    if end <= from || is_cut || secrets::find_secret(&near).is_some() {
        return None;
    }
    let (before, after) = (if from > 0 { "…" } else { "" }, if end < line.len() { "…" } else { "" });
    Some(format!("{before}{}{after}", line[from..end].iter().collect::<String>()))
}

/// Returns the place in bytes where a word begins with one of the stems.
fn place(text: &str, stems: &[Vec<char>]) -> Option<usize> {
    let lower = |c: char| if c.is_ascii() { c.to_ascii_lowercase() } else { c.to_lowercase().next().unwrap_or(c) };
    let mut is_in_word = false;
    for (at, c) in text.char_indices().take(MAX_MESSAGE_CHARS) {
        let begins = |stem: &Vec<char>| {
            let mut letters = text[at..].chars().map(lower);
            stem.iter().all(|letter| letters.next() == Some(*letter))
        };
        if !is_in_word && stems.iter().any(begins) {
            return Some(at);
        }
        is_in_word = c.is_alphanumeric();
    }
    None
}

/// Returns the prefix that most forms of a word share.
fn stem(word: &str) -> Vec<char> {
    let letters: Vec<char> = word.chars().collect();
    letters[..letters.len().saturating_sub(2).max(4).min(letters.len())].to_vec()
}

#[cfg(test)]
#[path = "recall_tests.rs"]
mod tests;
