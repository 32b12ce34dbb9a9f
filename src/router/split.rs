//! Splits a prompt into tasks with a small grammar of conjunctions.
//!
//! It prefers to keep two tasks together over splitting one. A conjunction counts only if a request follows it, and if
//! the two sides clearly belong to different modes or are clearly ordered.

mod clauses;

use super::{RankedMode, Router, THRESHOLD};
use crate::ids::ModeId;
use clauses::{Clause, ClauseJoin, clauses, refers_back};

/// The maximum number of tasks. A prompt with more needs a plan by a model.
pub const MAX_TASKS: usize = 5;
/// The minimum confidence for both sides of an `and`. It is above `THRESHOLD` because the sides are short and may be
/// halves of one task.
const SURE: f64 = 0.6;

/// A task for one mode.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutedTask {
    pub text: String,
    pub mode: ModeId,
    pub confidence: f64,
    pub reason: String,
    /// Indices of the tasks that must be done before.
    pub after: Vec<usize>,
}

/// Returns the tasks of a prompt in order. Returns one if the prompt is not compound, and none if there are no modes.
pub fn split(prompt: &str, router: &Router) -> Vec<RoutedTask> {
    let Some(whole) = router.rank(prompt).into_iter().next() else { return Vec::new() };
    let single = RoutedClause { text: prompt.trim().to_owned(), join: ClauseJoin::Beside, ranked: whole };
    let parts = match clauses(prompt) {
        clauses if clauses.len() > 1 => with_same_modes_joined(join_clauses(prompt, &clauses, router, &single.ranked)),
        _ => Vec::new(),
    };
    if parts.len() < 2 || parts.len() > MAX_TASKS { tasks(vec![single]) } else { tasks(parts) }
}

/// A clause and its mode.
#[derive(Debug, Clone)]
struct RoutedClause {
    text: String,
    join: ClauseJoin,
    ranked: RankedMode,
}

/// Joins clauses that are not separate tasks.
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
            ClauseJoin::After | ClauseJoin::Item => settle(last, whole) && settle(&mut next, whole),
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

/// Returns true if the clause has a confident mode. An ordered clause such as `then test it` may be too short to route;
/// it then takes the mode of the whole prompt.
fn settle(routed: &mut RoutedClause, whole: &RankedMode) -> bool {
    if routed.ranked.confidence < THRESHOLD {
        routed.ranked = RankedMode { reason: "the prompt as a whole".to_owned(), ..whole.clone() };
    }
    routed.ranked.confidence >= THRESHOLD
}

/// Joins neighbours with the same mode if there are too many tasks.
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

/// Orders the tasks: `then` waits for everything since the last `then`, `and test it` for the task before it.
fn tasks(parts: Vec<RoutedClause>) -> Vec<RoutedTask> {
    let (mut stage, mut waits): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut tasks = Vec::with_capacity(parts.len());
    for (place, part) in parts.into_iter().enumerate() {
        if part.join == ClauseJoin::After && place > 0 {
            waits = std::mem::take(&mut stage);
        }
        let mut after = waits.clone();
        if place > 0 && part.join != ClauseJoin::After && refers_back(&part.text) {
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
