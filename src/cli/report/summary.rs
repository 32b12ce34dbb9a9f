//! Counts what sessions did in a period. It keeps names and numbers, and no text of a message.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::agents::{Event, StopReason};
use crate::clock;
use crate::store::{AuditEntry, StoredSession, UsageTotals};
use crate::tool::Activity;

/// What agents did in a period.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct ActivityReport {
    /// Milliseconds since 1970.
    pub(super) since: u64,
    pub(super) until: u64,
    /// Top-level sessions.
    pub(super) sessions: u64,
    pub(super) turns: u64,
    pub(super) calls: u64,
    /// What the sessions have spent since they began. A child session counts for its parent.
    pub(super) spent: UsageTotals,
    /// How turns ended.
    pub(super) endings: BTreeMap<&'static str, u64>,
    pub(super) modes: BTreeMap<String, ModeActivity>,
    pub(super) tools: BTreeMap<String, ToolActivity>,
    /// The number of changes of each file.
    pub(super) files: BTreeMap<String, u64>,
    pub(super) questions: QuestionCounts,
    /// The most frequent refusals first.
    pub(super) refusals: Vec<RefusalCount>,
    /// By day, as `2026-11-15`.
    pub(super) days: BTreeMap<String, DayActivity>,
    /// Events that another version of Skein wrote, or that are damaged.
    pub(super) unreadable_events: u64,
    #[serde(skip)]
    refused: BTreeMap<(String, String, String), u64>,
    /// Calls of delegated tasks that their parent shows, as session and call. The child session has them, too.
    #[serde(skip)]
    relayed_calls: BTreeSet<(String, String)>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct ModeActivity {
    /// Sessions, child sessions included.
    pub(super) sessions: u64,
    pub(super) turns: u64,
    pub(super) calls: u64,
    pub(super) changes: u64,
    /// Tokens of the turns in the period.
    pub(super) tokens: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct ToolActivity {
    pub(super) calls: u64,
    pub(super) failures: u64,
    pub(super) refusals: u64,
}

/// The answers to permission requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct QuestionCounts {
    pub(super) allowed: u64,
    pub(super) refused: u64,
    /// No user could be asked.
    pub(super) unanswered: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RefusalCount {
    /// The tool, host or event.
    pub(super) subject: String,
    /// What refused.
    pub(super) source: String,
    pub(super) rule: Option<String>,
    pub(super) count: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct DayActivity {
    pub(super) turns: u64,
    pub(super) calls: u64,
    pub(super) tokens: u64,
    pub(super) refusals: u64,
}

impl ActivityReport {
    pub(super) fn new(since: u64, until: u64) -> Self {
        Self { since, until, ..Self::default() }
    }

    pub(super) fn add_session(&mut self, session: &StoredSession) {
        self.mode(session).sessions += 1;
        if session.parent.is_some() {
            return;
        }
        self.sessions += 1;
        let UsageTotals { input, output, cached, cost } = session.spent;
        self.spent.input += input;
        self.spent.output += output;
        self.spent.cached += cached;
        self.spent.cost = cost.map(|cost| self.spent.cost.unwrap_or_default() + cost).or(self.spent.cost);
    }

    pub(super) fn add_event(&mut self, session: &StoredSession, at: u64, event: &Event) {
        for event in event.native_events() {
            match event {
                Event::TurnEnded { end } => {
                    let tokens = end.usage.input + end.usage.output;
                    let is_child = session.parent.is_some();
                    let mode = self.mode(session);
                    mode.turns += 1;
                    mode.tokens += tokens;
                    if is_child {
                        continue;
                    }
                    self.turns += 1;
                    *self.endings.entry(ending_name(&end.ending)).or_default() += 1;
                    let day = self.day(at);
                    day.turns += 1;
                    day.tokens += tokens;
                }
                // A mode has a slash in its name, a service has none.
                Event::ToolStarted { call, by: Some(by) } if session.parent.is_none() && by.contains('/') => {
                    self.relayed_calls.insert((session.id.clone(), call.id.clone()));
                }
                Event::ToolEnded { id, .. } if self.relayed_calls.contains(&(session.id.clone(), id.clone())) => {}
                Event::ToolEnded { name, outcome, activity, .. } => {
                    self.calls += 1;
                    self.day(at).calls += 1;
                    let tool = self.tools.entry(name.clone()).or_default();
                    tool.calls += 1;
                    tool.refusals += u64::from(outcome.refused);
                    tool.failures += u64::from(outcome.is_error && !outcome.refused);
                    let mut changes = 0;
                    for change in activity {
                        if let Activity::Changed { path, .. } = change {
                            *self.files.entry(path.to_string_lossy().into_owned()).or_default() += 1;
                            changes += 1;
                        }
                    }
                    let mode = self.mode(session);
                    mode.calls += 1;
                    mode.changes += changes;
                }
                Event::Message { .. }
                | Event::ToolStarted { .. }
                | Event::Compacted { .. }
                | Event::External { .. }
                | Event::ExternalSessionOpened { .. }
                | Event::Undone { .. } => {}
            }
        }
    }

    pub(super) fn add_decision(&mut self, entry: &AuditEntry) {
        let is_refusal = entry.decision == "refuse";
        if entry.kind == "consent" {
            let count = match (is_refusal, entry.source.as_str()) {
                (false, _) => &mut self.questions.allowed,
                (true, "no-user") => &mut self.questions.unanswered,
                (true, _) => &mut self.questions.refused,
            };
            *count += 1;
            // The entry of the call has the refusal, too.
            return;
        }
        if is_refusal {
            self.day(entry.time).refusals += 1;
            let key = (entry.subject.clone(), entry.source.clone(), entry.rule.clone().unwrap_or_default());
            *self.refused.entry(key).or_default() += 1;
        }
    }

    /// Sorts the refusals.
    pub(super) fn finish(&mut self) {
        let refused = std::mem::take(&mut self.refused);
        self.refusals = refused
            .into_iter()
            .map(|((subject, source, rule), count)| {
                let rule = (!rule.is_empty()).then_some(rule);
                RefusalCount { subject, source, rule, count }
            })
            .collect();
        // The sort is stable, so that equal counts stay in the order of their names.
        self.refusals.sort_by_key(|refusal| std::cmp::Reverse(refusal.count));
    }

    fn mode(&mut self, session: &StoredSession) -> &mut ModeActivity {
        self.modes.entry(format!("{}/{}", session.agent, session.mode)).or_default()
    }

    fn day(&mut self, at: u64) -> &mut DayActivity {
        self.days.entry(clock::date(at)).or_default()
    }
}

fn ending_name(ending: &StopReason) -> &'static str {
    match ending {
        StopReason::EndTurn => "complete",
        StopReason::MaxTokens => "length limit",
        StopReason::Exhausted { .. } => "budget or limit",
        StopReason::Refusal => "declined by the model",
        StopReason::Cancelled => "cancelled",
        StopReason::CallRefused { .. } => "call refused",
        StopReason::Failed { .. } => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(kind: &str, decision: &str, source: &str, subject: &str) -> AuditEntry {
        AuditEntry {
            session: "s".to_owned(),
            sequence: 1,
            time: 951_782_400_000,
            pseudonym: "p".to_owned(),
            actor: "coding/backend".to_owned(),
            kind: kind.to_owned(),
            subject: subject.to_owned(),
            call: None,
            decision: decision.to_owned(),
            source: source.to_owned(),
            rule: None,
            arguments: None,
            previous: String::new(),
        }
    }

    #[test]
    fn refusals_are_counted_once_and_sorted_by_count() {
        let mut report = ActivityReport::new(0, 0);
        for entry in [
            decision("consent", "refuse", "user", "a"),
            decision("call", "refuse", "user", "a"),
            decision("host", "refuse", "sandbox", "b"),
            decision("host", "refuse", "sandbox", "b"),
            decision("consent", "refuse", "no-user", "c"),
            decision("consent", "allow", "user", "d"),
            decision("call", "allow", "user", "d"),
        ] {
            report.add_decision(&entry);
        }
        report.finish();
        let counted: Vec<_> = report.refusals.iter().map(|of| (of.subject.as_str(), of.count)).collect();
        assert_eq!(counted, [("b", 2), ("a", 1)]);
        assert_eq!(report.questions, QuestionCounts { allowed: 1, refused: 1, unanswered: 1 });
        assert_eq!(report.days["2000-02-29"].refusals, 3);
    }
}
