//! Counts what sessions did in a period. It keeps names and numbers, and no text of a message.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::agents::{Event, StopReason};
use crate::clock;
use crate::principal::Principal;
use crate::store::{AuditEntry, SpentAmount, StoredSession, UsageTotals};
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
    /// What the sessions spent in the period. A child session counts for its parent.
    pub(super) spent: UsageTotals,
    /// By the name of the principal.
    pub(super) principals: BTreeMap<String, PrincipalActivity>,
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

/// What the sessions of one principal did.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct PrincipalActivity {
    pub(super) sessions: u64,
    pub(super) turns: u64,
    pub(super) calls: u64,
    pub(super) refusals: u64,
    pub(super) spent: UsageTotals,
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
    /// What was spent on the day.
    pub(super) tokens: u64,
    /// In US dollars. `None` if it is unknown.
    pub(super) cost: Option<f64>,
    pub(super) refusals: u64,
}

impl ActivityReport {
    pub(super) fn new(since: u64, until: u64) -> Self {
        Self { since, until, ..Self::default() }
    }

    pub(super) fn add_session(&mut self, principal: &str, session: &StoredSession) {
        self.mode(session).sessions += 1;
        if session.parent.is_none() {
            self.sessions += 1;
            self.principal(principal).sessions += 1;
        }
    }

    /// Adds what a top-level session spent at one time.
    pub(super) fn add_spending(&mut self, principal: &str, SpentAmount { at, amount }: SpentAmount) {
        add_usage(&mut self.spent, &amount);
        add_usage(&mut self.principal(principal).spent, &amount);
        let day = self.day(at);
        day.tokens += amount.input + amount.output;
        day.cost = sum(day.cost, amount.cost);
    }

    pub(super) fn add_event(&mut self, principal: &str, session: &StoredSession, at: u64, event: &Event) {
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
                    self.principal(principal).turns += 1;
                    *self.endings.entry(ending_name(&end.ending)).or_default() += 1;
                    self.day(at).turns += 1;
                }
                // A mode has a slash in its name, a service has none.
                Event::ToolStarted { call, by: Some(by) } if session.parent.is_none() && by.contains('/') => {
                    self.relayed_calls.insert((session.id.clone(), call.id.clone()));
                }
                Event::ToolEnded { id, .. } if self.relayed_calls.contains(&(session.id.clone(), id.clone())) => {}
                Event::ToolEnded { name, outcome, activity, .. } => {
                    self.calls += 1;
                    self.principal(principal).calls += 1;
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

    /// Adds a decision. `principal` is `None` if the key of its pseudonym is gone.
    pub(super) fn add_decision(&mut self, principal: Option<&str>, entry: &AuditEntry) {
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
            if let Some(principal) = principal {
                self.principal(principal).refusals += 1;
            }
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

    /// Returns true if there is another principal than the user of this machine.
    pub(super) fn has_several_principals(&self) -> bool {
        self.principals.keys().any(|name| name.as_str() != Principal::local().name())
    }

    fn mode(&mut self, session: &StoredSession) -> &mut ModeActivity {
        self.modes.entry(format!("{}/{}", session.agent, session.mode)).or_default()
    }

    fn principal(&mut self, name: &str) -> &mut PrincipalActivity {
        self.principals.entry(name.to_owned()).or_default()
    }

    fn day(&mut self, at: u64) -> &mut DayActivity {
        self.days.entry(clock::date(at)).or_default()
    }
}

fn add_usage(sum_of: &mut UsageTotals, more: &UsageTotals) {
    sum_of.input += more.input;
    sum_of.output += more.output;
    sum_of.cached += more.cached;
    sum_of.cost = sum(sum_of.cost, more.cost);
}

/// Adds costs. An unknown one adds nothing.
fn sum(one: Option<f64>, more: Option<f64>) -> Option<f64> {
    more.map(|more| one.unwrap_or_default() + more).or(one)
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
            report.add_decision(Some("local"), &entry);
        }
        report.finish();
        let counted: Vec<_> = report.refusals.iter().map(|of| (of.subject.as_str(), of.count)).collect();
        assert_eq!(counted, [("b", 2), ("a", 1)]);
        assert_eq!(report.questions, QuestionCounts { allowed: 1, refused: 1, unanswered: 1 });
        assert_eq!(report.days["2000-02-29"].refusals, 3);
        assert_eq!(report.principals["local"].refusals, 3);
    }

    #[test]
    fn spending_counts_at_its_time_and_for_its_principal() {
        let mut report = ActivityReport::new(0, 0);
        let spent = |at: u64, input: u64, cost: Option<f64>| SpentAmount {
            at,
            amount: UsageTotals { input, output: 1, cached: 0, cost },
        };
        report.add_spending("local", spent(951_782_400_000, 10, Some(0.5)));
        report.add_spending("ci", spent(951_782_400_000, 20, None));
        report.add_spending("ci", spent(951_868_800_000, 30, Some(0.25)));
        assert_eq!((report.spent.input, report.spent.output, report.spent.cost), (60, 3, Some(0.75)));
        assert_eq!((report.principals["ci"].spent.input, report.principals["ci"].spent.cost), (50, Some(0.25)));
        assert_eq!((report.days["2000-02-29"].tokens, report.days["2000-02-29"].cost), (32, Some(0.5)));
        assert_eq!(report.days["2000-03-01"].tokens, 31);
    }
}
