//! Ranks files and definitions by how much other files use them.
//!
//! Ranks come from the words of the files, so that files that an overview does not show need no parser.

use std::collections::{BTreeMap, HashMap};

use super::index::CodeIndex;
use super::word_place::{DEFINES, USES};
use super::words::hash_of;

/// A name with more definitions says little about which file is meant.
const MAX_DEFINERS: usize = 20;
/// The share of a file's rank that the files it uses receive.
const DAMPING: f64 = 0.85;
const ROUNDS: usize = 20;

/// How important files and their definitions are.
#[derive(Debug, Clone, PartialEq)]
pub struct CodeRank {
    /// The indices of all files, most important first.
    pub files: Vec<usize>,
    /// For a file and the hash of a name that it defines: how many other files use it.
    users: HashMap<(usize, u32), f64>,
}

impl CodeRank {
    /// Ranks all files: a file that important files use is important.
    pub fn new(index: &CodeIndex<'_>) -> Self {
        let definers = definers(index);
        // Ordered, because the order of a sum changes its last digits, and equal input must give an equal order.
        let mut uses: Vec<BTreeMap<usize, f64>> = vec![BTreeMap::new(); index.files.len()];
        let mut users: HashMap<(usize, u32), f64> = HashMap::new();
        for (user, file) in index.files.iter().enumerate() {
            for (name, flags) in file.words.iter().filter(|(_, flags)| flags & USES != 0) {
                // A name that the file defines itself means that definition.
                let Some(found) = definers.get(&name).filter(|_| flags & DEFINES == 0) else { continue };
                let is_reachable = |definer: &&usize| {
                    let other = index.files.get(**definer).map(|other| other.source.language);
                    other.is_some_and(|other| other.shares_names_with(file.source.language))
                };
                let found: Vec<usize> = found.iter().filter(is_reachable).copied().collect();
                if found.len() > MAX_DEFINERS {
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
        let mut files: Vec<usize> = (0..index.files.len()).collect();
        // Equal files stay in the order of their paths.
        files.sort_by(|left, right| scores[*right].total_cmp(&scores[*left]).then(left.cmp(right)));
        Self { files, users }
    }

    /// Returns how many other files use a definition of a file. A file that may mean several counts in part.
    pub fn users(&self, file: usize, name: &str) -> f64 {
        self.users.get(&(file, hash_of(name.as_bytes()))).copied().unwrap_or_default()
    }
}

/// Returns the files that define each name.
fn definers(index: &CodeIndex<'_>) -> HashMap<u32, Vec<usize>> {
    let mut definers: HashMap<u32, Vec<usize>> = HashMap::new();
    for (at, file) in index.files.iter().enumerate() {
        for (name, _) in file.words.iter().filter(|(_, flags)| flags & DEFINES != 0) {
            definers.entry(name).or_default().push(at);
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
