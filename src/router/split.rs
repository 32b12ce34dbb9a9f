//! One prompt, or several tasks: a small grammar of conjunctions. It would rather leave two tasks together than
//! tear one apart: a joint counts only if a request begins after it, and if both sides belong to different modes
//! for sure or are clearly in order.

mod clauses;

use super::{RankedMode, Router, THRESHOLD};
use crate::ids::ModeId;
use clauses::{Clause, ClauseJoin, clauses, refers_back};

/// More would be a plan, and somebody should make one.
pub const MAX_TASKS: usize = 5;
/// Both sides of an `and` must be surer than a prompt of its own: they are short, and may be halves of one thing.
const SURE: f64 = 0.6;

/// A piece of work for one mode.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutedTask {
    pub text: String,
    pub mode: ModeId,
    pub confidence: f64,
    pub reason: String,
    /// The tasks that must be done before, by their place.
    pub after: Vec<usize>,
}

/// The tasks of a prompt, in the order they are written. One: it is not compound. None: there is no mode at all.
pub fn split(prompt: &str, router: &Router) -> Vec<RoutedTask> {
    let Some(whole) = router.rank(prompt).into_iter().next() else { return Vec::new() };
    let single = RoutedClause { text: prompt.trim().to_owned(), join: ClauseJoin::Beside, ranked: whole };
    let parts = match clauses(prompt) {
        clauses if clauses.len() > 1 => with_same_modes_joined(join_clauses(prompt, &clauses, router, &single.ranked)),
        _ => Vec::new(),
    };
    if parts.len() < 2 || parts.len() > MAX_TASKS { tasks(vec![single]) } else { tasks(parts) }
}

/// A clause with the mode it belongs to.
#[derive(Debug, Clone)]
struct RoutedClause {
    text: String,
    join: ClauseJoin,
    ranked: RankedMode,
}

/// Takes clauses together that are not two tasks.
fn join_clauses(prompt: &str, clauses: &[Clause], router: &Router, whole: &RankedMode) -> Vec<RoutedClause> {
    let route = |clause: &Clause| -> Option<RoutedClause> {
        let text = clause.text(prompt);
        let ranked = router.rank(&text).into_iter().next()?;
        Some(RoutedClause { text, join: clause.join, ranked })
    };
    let mut kept: Vec<(Clause, RoutedClause)> = Vec::new();
    for clause in clauses {
        let Some(mut next) = route(clause) else { continue };
        let Some((before, last)) = kept.last_mut() else {
            kept.push((clause.clone(), next));
            continue;
        };
        let apart = match clause.join {
            ClauseJoin::Beside => {
                let sure = |routed: &RoutedClause| routed.ranked.confidence >= SURE;
                sure(last) && sure(&next) && last.ranked.mode != next.ranked.mode
            }
            ClauseJoin::After => settle(last, whole) && settle(&mut next, whole),
        };
        if apart {
            kept.push((clause.clone(), next));
        } else {
            let together = before.with(clause);
            if let Some(routed) = route(&together) {
                *last = routed;
            }
            *before = together;
        }
    }
    kept.into_iter().map(|(_, routed)| routed).collect()
}

/// What is clearly in order may be short, as in `then test it`: where it says too little alone, the whole prompt
/// decides.
fn settle(routed: &mut RoutedClause, whole: &RankedMode) -> bool {
    if routed.ranked.confidence < THRESHOLD {
        routed.ranked = RankedMode { reason: "the prompt as a whole".to_owned(), ..whole.clone() };
    }
    routed.ranked.confidence >= THRESHOLD
}

/// Too many steps become fewer where neighbours have the same mode.
fn with_same_modes_joined(parts: Vec<RoutedClause>) -> Vec<RoutedClause> {
    if parts.len() <= MAX_TASKS {
        return parts;
    }
    let mut kept: Vec<RoutedClause> = Vec::new();
    for part in parts {
        match kept.last_mut() {
            Some(last) if last.ranked.mode == part.ranked.mode => {
                last.text = format!("{}\n{}", last.text, part.text);
            }
            _ => kept.push(part),
        }
    }
    kept
}

/// Puts the tasks in order: `then` waits for everything since the last `then`, `and test it` for the one before.
fn tasks(parts: Vec<RoutedClause>) -> Vec<RoutedTask> {
    let (mut stage, mut waits): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut tasks = Vec::with_capacity(parts.len());
    for (place, part) in parts.into_iter().enumerate() {
        if part.join == ClauseJoin::After && place > 0 {
            waits = std::mem::take(&mut stage);
        }
        let mut after = waits.clone();
        if place > 0 && part.join == ClauseJoin::Beside && refers_back(&part.text) {
            after.push(place - 1);
        }
        stage.push(place);
        let RankedMode { mode, confidence, reason } = part.ranked;
        tasks.push(RoutedTask { text: part.text, mode, confidence, reason, after });
    }
    tasks
}

#[cfg(test)]
#[path = "split/split_tests.rs"]
mod tests;
