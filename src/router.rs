//! Routes a prompt to a mode with a linear model on the words and letters of the modes' examples and descriptions. The
//! model of the built-in manifests is compiled in. Others are trained locally in a moment, without network access.
//!
//! Invariant: pure values. The same manifests give the same model, byte for byte, in any order. Only `cache` touches
//! files, below the folder it is given.

mod builtin;
mod cache;
mod calibrate;
mod features;
mod format;
mod meaning;
mod split;
mod train;
mod vocabulary;
mod words;

use std::cmp::Ordering;
use std::sync::Arc;

use crate::ids::ModeId;
use crate::manifest::{AgentEntry, Capability, Manifests, ModeEntry};
use calibrate::{Curve, Scores};
use train::{Example, Weights, train};
use vocabulary::Vocabulary;

pub use split::{MAX_TASKS, RoutedTask, split};

/// The confidence below which the caller should decide in another way.
pub const THRESHOLD: f64 = 0.5;

/// The maximum number of training rounds, reached when examples contradict each other.
const ROUNDS: usize = 12;
/// The weight of an agent's capabilities. They describe all its modes, but count only for the default mode.
const HINT: f32 = 0.2;
/// Requests that name no work: they belong to no mode, and keep similar requests from a confident route.
const VAGUE: &str = include_str!("router/vague.txt");
/// The bytes read from the start and end of a longer prompt. Pasted text is usually in between.
const HEAD: usize = 3_000;
const TAIL: usize = 1_000;
/// The number of words examined for a reason.
const MOST_WORDS: usize = 40;
/// The minimum similarity at which a corrected prompt affects another, and the maximum change of the score.
const LIKE: f32 = 0.45;
const DRAW: f32 = 1.5;

/// A selectable mode with everything known about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub mode: ModeId,
    pub name: Option<String>,
    pub description: String,
    pub when_to_use: Option<String>,
    pub examples: Vec<String>,
    /// The capabilities of its agent, if this is the agent's default mode.
    pub capabilities: Vec<String>,
}

/// Returns every mode that a user may choose, including those of external agents.
pub fn candidates(manifests: &Manifests) -> Vec<Candidate> {
    let of_agent = |agent: &AgentEntry| {
        let offered = agent.modes.iter().filter(|entry| !entry.mode.internal);
        offered.map(|entry| candidate(agent, entry)).collect::<Vec<_>>()
    };
    manifests.agents.values().flat_map(of_agent).collect()
}

fn candidate(agent: &AgentEntry, entry: &ModeEntry) -> Candidate {
    let mode = ModeId::new(agent.manifest.name.clone(), entry.mode.slug.clone());
    let capability = |capability: &Capability| match capability {
        Capability::Word(word) => word.clone(),
        Capability::Described(described) => format!("{} {}", described.name, described.description),
    };
    let is_default = agent.default_mode().as_ref() == Some(&mode);
    let capabilities = agent.manifest.metadata.capabilities.iter().filter(|_| is_default).map(capability).collect();
    Candidate {
        mode,
        name: entry.mode.name.clone(),
        description: entry.mode.description.clone(),
        when_to_use: entry.mode.when_to_use.clone(),
        examples: entry.examples.clone(),
        capabilities,
    }
}

impl Candidate {
    /// Returns the manifest's texts about the mode, apart from its examples, with their weights.
    fn about(&self) -> Vec<(String, f32)> {
        let words = |name: &str| name.replace(['_', '-'], " ");
        let name = self.name.as_deref().unwrap_or_default();
        let mut about = vec![(format!("{}. {name}. {}", words(self.mode.mode.as_str()), self.description), 1.0)];
        let when = self.when_to_use.as_deref().map(positive).filter(|text| !text.is_empty());
        about.extend(when.map(|text| (text, 1.0)));
        if !self.capabilities.is_empty() {
            about.push((words(&self.capabilities.join(", ")), HINT));
        }
        about
    }
}

/// Removes statements of what the mode is not for. The router counts words and would take them as a reason.
fn positive(text: &str) -> String {
    let mut kept = Vec::new();
    for sentence in text.split_inclusive(['.', '!', '?', ';']) {
        let lower = sentence.trim_start().to_lowercase();
        if ["not ", "never ", "no ", "don't ", "do not ", "avoid "].iter().any(|start| lower.starts_with(start)) {
            continue;
        }
        let end = sentence.find(", not ").unwrap_or(sentence.len());
        kept.push(sentence[..end].trim());
    }
    kept.join(" ")
}

/// A mode with its confidence and the reason.
#[derive(Debug, Clone, PartialEq)]
pub struct RankedMode {
    pub mode: ModeId,
    /// The estimated probability that this route is right, 0 to 1.
    pub confidence: f64,
    pub reason: String,
}

/// A prompt for which the user chose another mode than the router.
#[derive(Debug, Clone, PartialEq)]
struct CorrectedPrompt {
    normal: String,
    vector: Vec<(u32, f32)>,
    mode: usize,
}

/// A trained router.
#[derive(Debug, Clone, PartialEq)]
pub struct Router {
    /// Sorted by name.
    modes: Vec<ModeId>,
    vocabulary: Arc<Vocabulary>,
    weights: Arc<Weights>,
    curve: Curve,
    corrected: Vec<CorrectedPrompt>,
}

impl Router {
    pub fn learn(candidates: &[Candidate]) -> Self {
        let candidates = sorted(candidates);
        let mut texts = Vec::new();
        let mut pulls = Vec::new();
        for (mode, candidate) in candidates.iter().enumerate() {
            for example in &candidate.examples {
                texts.push((features::count(truncate_middle(example).as_ref()), mode));
                pulls.push(1.0);
            }
        }
        for request in VAGUE.lines() {
            texts.push((features::count(request), candidates.len()));
            pulls.push(1.0);
        }
        let seen = texts.len();
        for (mode, candidate) in candidates.iter().enumerate() {
            for (text, pull) in candidate.about() {
                texts.push((features::count(&text), mode));
                pulls.push(pull);
            }
        }
        let modes: Vec<ModeId> = candidates.iter().map(|candidate| candidate.mode.clone()).collect();
        let vocabulary = Vocabulary::learn(&texts, modes.len() + 1);
        let examples: Vec<Example> = texts
            .iter()
            .zip(pulls)
            .map(|((counts, mode), weight)| Example { features: vocabulary.vector(counts), mode: *mode, weight })
            .collect();
        let weights = train(&examples.iter().collect::<Vec<_>>(), vocabulary.size(), modes.len() + 1, ROUNDS);
        let curve = Curve::learn(&examples, seen, vocabulary.size(), modes.len());
        Self::new(modes, vocabulary, weights, curve)
    }

    fn new(modes: Vec<ModeId>, vocabulary: Vocabulary, weights: Weights, curve: Curve) -> Self {
        let (vocabulary, weights) = (Arc::new(vocabulary), Arc::new(weights));
        Self { modes, vocabulary, weights, curve, corrected: Vec::new() }
    }

    /// Adds the modes that the user chose for these prompts. For the same prompt, the later correction wins. Ignores
    /// modes that no longer exist.
    #[must_use]
    pub fn with_corrections<'a>(mut self, corrections: impl IntoIterator<Item = (&'a str, &'a ModeId)>) -> Self {
        for (prompt, mode) in corrections {
            let Ok(mode) = self.modes.binary_search(mode) else { continue };
            let normal = normal(prompt);
            self.corrected.retain(|known| known.normal != normal);
            let vector = self.vocabulary.vector(&features::count(&truncate_middle(prompt)));
            self.corrected.push(CorrectedPrompt { normal, vector, mode });
        }
        self
    }

    /// Returns the known modes, sorted by name.
    pub fn modes(&self) -> &[ModeId] {
        &self.modes
    }

    /// Returns the mode that the user chose before for this prompt. `None` if there is no such correction.
    pub fn correction(&self, prompt: &str) -> Option<RankedMode> {
        let same = normal(prompt);
        let known = self.corrected.iter().find(|known| known.normal == same)?;
        let reason = "you chose it before for this prompt".to_owned();
        Some(RankedMode { mode: self.modes[known.mode].clone(), confidence: 1.0, reason })
    }

    /// Ranks every mode for a prompt, best first.
    pub fn rank(&self, prompt: &str) -> Vec<RankedMode> {
        let correction = self.correction(prompt);
        let prompt = truncate_middle(prompt);
        let counts = features::count(&prompt);
        let vector = self.vocabulary.vector(&counts);
        let mut scores = Scores::new(self.weights.scores(&vector));
        let drawn = self.apply_corrections(&vector, &mut scores.modes);
        let says = self.word_scores(&counts.plain, &vector);
        let ranked = |mode: &usize| RankedMode {
            mode: self.modes[*mode].clone(),
            confidence: self.curve.confidence(scores.modes[*mode], scores.lead(*mode)),
            reason: match drawn.contains(mode) {
                true => "it is like a prompt for which you chose it before".to_owned(),
                false => reason(&says, *mode),
            },
        };
        let mut ranked: Vec<RankedMode> = scores.order().iter().map(ranked).collect();
        if let Some(chosen) = correction {
            ranked.retain(|ranked| ranked.mode != chosen.mode);
            ranked.insert(0, chosen);
        }
        ranked
    }

    /// Raises the scores of modes that the user chose for similar prompts, and returns these modes.
    fn apply_corrections(&self, vector: &[(u32, f32)], scores: &mut [f32]) -> Vec<usize> {
        let mut drawn = Vec::new();
        for (mode, score) in scores.iter_mut().enumerate() {
            let of_mode = self.corrected.iter().filter(|known| known.mode == mode);
            let nearest = of_mode.map(|known| likeness(&known.vector, vector)).fold(0.0, f32::max);
            if nearest > LIKE {
                *score += DRAW * (nearest - LIKE) / (1.0 - LIKE);
                drawn.push(mode);
            }
        }
        drawn
    }

    /// Returns, for each word, how much it favours each mode compared with the others.
    fn word_scores<'a>(&self, plain: &'a [String], vector: &[(u32, f32)]) -> Vec<(&'a str, Vec<f32>)> {
        let mut says: Vec<(&str, Vec<f32>)> = Vec::new();
        for word in plain.iter().filter(|word| word.as_str() != "0" && !features::is_joining(word)).take(MOST_WORDS) {
            if says.iter().any(|(known, _)| known == word) {
                continue;
            }
            let value = |feature: &u32| vector.binary_search_by_key(feature, |(known, _)| *known).ok();
            let own: Vec<_> =
                self.vocabulary.word_features(word).iter().filter_map(value).map(|at| vector[at]).collect();
            let mut scores = self.weights.scores(&own);
            let mean = scores.iter().sum::<f32>() / scores.len().max(1) as f32;
            scores.iter_mut().for_each(|score| *score -= mean);
            says.push((word, scores));
        }
        says
    }
}

/// Names the words that most favour a mode.
fn reason(says: &[(&str, Vec<f32>)], mode: usize) -> String {
    let mut words: Vec<(f32, &str)> = says.iter().map(|(word, scores)| (scores[mode], *word)).collect();
    words.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let telling: Vec<_> = words.iter().filter(|(says, _)| *says > 0.015).take(3).collect();
    match telling.as_slice() {
        [] => "it is nearest in meaning".to_owned(),
        [(_, one)] => format!("the word \"{one}\""),
        [first @ .., (_, last)] => {
            let first: Vec<_> = first.iter().map(|(_, word)| format!("\"{word}\"")).collect();
            format!("the words {} and \"{last}\"", first.join(", "))
        }
    }
}

/// Sorts candidates by name, so that the order of files does not matter. Of two with the same name, the later wins.
fn sorted(candidates: &[Candidate]) -> Vec<&Candidate> {
    let mut sorted: Vec<&Candidate> = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        match sorted.binary_search_by(|known| known.mode.cmp(&candidate.mode)) {
            Ok(at) => sorted[at] = candidate,
            Err(at) => sorted.insert(at, candidate),
        }
    }
    sorted
}

/// Returns the modes of candidates, sorted by name.
fn mode_ids(candidates: &[Candidate]) -> Vec<ModeId> {
    sorted(candidates).iter().map(|candidate| candidate.mode.clone()).collect()
}

/// Returns the cosine similarity of two texts, 0 to 1.
fn likeness(first: &[(u32, f32)], second: &[(u32, f32)]) -> f32 {
    let size = |vector: &[(u32, f32)]| vector.iter().map(|(_, value)| value * value).sum::<f32>().sqrt();
    let (mut left, mut right, mut sum) = (0, 0, 0.0);
    while let (Some(a), Some(b)) = (first.get(left), second.get(right)) {
        match a.0.cmp(&b.0) {
            Ordering::Less => left += 1,
            Ordering::Greater => right += 1,
            Ordering::Equal => {
                sum += a.1 * b.1;
                (left, right) = (left + 1, right + 1);
            }
        }
    }
    let sizes = size(first) * size(second);
    if sizes > 0.0 { sum / sizes } else { 0.0 }
}

/// Normalises a prompt for comparison: ignores case, blanks and final punctuation.
fn normal(prompt: &str) -> String {
    let joined = prompt.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    joined.trim_end_matches(['.', '!', '?', ' ']).to_owned()
}

fn truncate_middle(prompt: &str) -> std::borrow::Cow<'_, str> {
    if prompt.len() <= HEAD + TAIL {
        return prompt.into();
    }
    let boundary = |at: &usize| prompt.is_char_boundary(*at);
    let head = (0..=HEAD).rev().find(boundary).unwrap_or_default();
    let tail = (prompt.len() - TAIL..=prompt.len()).find(boundary).unwrap_or(prompt.len());
    format!("{} {}", &prompt[..head], &prompt[tail..]).into()
}

#[cfg(test)]
#[path = "router/router_tests.rs"]
mod tests;
