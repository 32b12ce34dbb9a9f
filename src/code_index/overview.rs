//! Ranks files and definitions by how much other files use them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::index::CodeIndex;

/// A name with more definitions says little about which file is meant.
const MAX_DEFINERS: usize = 20;
/// The share of a file's rank that the files it uses receive.
const DAMPING: f64 = 0.85;
const ROUNDS: usize = 20;

/// How important a file is, and each of its definitions.
#[derive(Debug, Clone, PartialEq)]
pub struct FileRank {
    /// The index of the file.
    pub file: usize,
    pub score: f64,
    /// One score per definition of the file: how many other files use its name.
    pub definitions: Vec<f64>,
}

/// Ranks all files, most important first: a file that important files use is important.
pub fn rank(index: &CodeIndex) -> Vec<FileRank> {
    let definers = definers(index);
    // Ordered, because the order of a sum changes its last digits, and equal input must give an equal order.
    let mut uses: Vec<BTreeMap<usize, f64>> = vec![BTreeMap::new(); index.files.len()];
    let mut users: HashMap<(usize, &str), f64> = HashMap::new();
    for (user, file) in index.files.iter().enumerate() {
        let names: BTreeSet<&str> = file
            .symbols
            .calls
            .iter()
            .map(|call| &*call.callee)
            .chain(file.symbols.types.iter().map(|name| &**name))
            .collect();
        for name in names {
            let reachable = |definer: &&usize| {
                index.files.get(**definer).is_some_and(|other| other.language.shares_names_with(file.language))
            };
            let found: Vec<usize> = definers.get(name).into_iter().flatten().filter(reachable).copied().collect();
            // A name that the file defines itself means that definition.
            if found.len() > MAX_DEFINERS || found.contains(&user) {
                continue;
            }
            let share = 1.0 / as_float(found.len().max(1));
            for definer in found {
                *uses[user].entry(definer).or_default() += share;
                *users.entry((definer, name)).or_default() += share;
            }
        }
    }
    let scores = spread(&uses);
    let mut ranks: Vec<FileRank> = index
        .files
        .iter()
        .enumerate()
        .map(|(file, indexed)| {
            let score_of = |name: &str| users.get(&(file, name)).copied().unwrap_or_default();
            let definitions = indexed.symbols.definitions.iter().map(|known| score_of(&known.name)).collect();
            FileRank { file, score: scores[file], definitions }
        })
        .collect();
    // Equal files stay in the order of their paths.
    ranks.sort_by(|left, right| right.score.total_cmp(&left.score).then(left.file.cmp(&right.file)));
    ranks
}

/// Returns the files that define each name, each file once.
fn definers(index: &CodeIndex) -> HashMap<&str, Vec<usize>> {
    let mut definers: HashMap<&str, Vec<usize>> = HashMap::new();
    for (file, indexed) in index.files.iter().enumerate() {
        for definition in &indexed.symbols.definitions {
            let files = definers.entry(&definition.name).or_default();
            if files.last() != Some(&file) {
                files.push(file);
            }
        }
    }
    definers
}

/// Spreads the rank of each file over the files that it uses (PageRank).
fn spread(uses: &[BTreeMap<usize, f64>]) -> Vec<f64> {
    let count = as_float(uses.len().max(1));
    let mut scores = vec![1.0 / count; uses.len()];
    for _ in 0..ROUNDS {
        let mut next = vec![(1.0 - DAMPING) / count; uses.len()];
        for (file, used) in uses.iter().enumerate() {
            let total: f64 = used.values().sum();
            for (other, weight) in used {
                next[*other] += DAMPING * scores[file] * weight / total;
            }
        }
        scores = next;
    }
    scores
}

#[allow(clippy::cast_precision_loss, reason = "an index has far fewer than 2^52 files")]
fn as_float(count: usize) -> f64 {
    count as f64
}
