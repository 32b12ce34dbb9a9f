//! `skein sessions stats`: turns, tokens, cost, tools and times of stored sessions.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::super::output::{BOLD, CommandError, CommandOutput, QUIET, display_line};
use super::super::store_failure::store_failure;
use crate::agents::{Event, TurnEnd};
use crate::chart::{self, ChartData, ChartKind, ChartOptions, ChartSpec, DataTable};
use crate::clock;
use crate::store::{SessionStore, StoredEvent, StoredSession};

/// Tools that the text shows. JSON has all.
const MAX_TOOLS: usize = 20;

#[derive(Debug, Args)]
pub(super) struct StatsArgs {
    /// Session id or a prefix; without one, the sessions of this project
    pub(super) id: Option<String>,
    /// Count sessions of every folder
    #[arg(long, conflicts_with = "id")]
    pub(super) all: bool,
    /// Also draw the tokens of each day to this SVG file
    #[arg(long, value_name = "FILE")]
    pub(super) chart: Option<PathBuf>,
    /// Replace the file of the chart if it exists
    #[arg(long, requires = "chart")]
    force: bool,
}

/// Figures of one or more sessions. Times are in milliseconds.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct SessionStats {
    sessions: usize,
    turns: usize,
    /// Turns that failed, reached a limit or were cancelled are among `turns`.
    ends: BTreeMap<String, usize>,
    turn_time: u64,
    longest_turn: u64,
    input: u64,
    output: u64,
    cached: u64,
    /// `None` if no session has a known cost.
    cost: Option<f64>,
    tools: BTreeMap<String, ToolStats>,
    days: BTreeMap<String, DayStats>,
    /// Events that this Skein cannot read.
    unreadable: usize,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct ToolStats {
    calls: usize,
    errors: usize,
    time: u64,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct DayStats {
    turns: usize,
    input: u64,
    output: u64,
}

impl SessionStats {
    fn add(&mut self, session: &StoredSession, events: &[StoredEvent]) {
        self.sessions += 1;
        self.input += session.spent.input;
        self.output += session.spent.output;
        self.cached += session.spent.cached;
        if let Some(cost) = session.spent.cost {
            *self.cost.get_or_insert(0.0) += cost;
        }
        self.add_events(events);
    }

    fn add_events(&mut self, events: &[StoredEvent]) {
        let mut calls = HashMap::new();
        let mut turn_start = None;
        for event in events {
            let Ok(read) = serde_json::from_str::<Event>(&event.body) else {
                self.unreadable += 1;
                continue;
            };
            for native in read.native_events() {
                match native {
                    // A turn that a crash ended has no end, so its time is unknown.
                    Event::Message { message } if message.is_prompt() => turn_start = Some(event.at),
                    Event::Message { .. } => {
                        turn_start.get_or_insert(event.at);
                    }
                    Event::ToolStarted { call, .. } => {
                        calls.insert(call.id.clone(), event.at);
                    }
                    Event::ToolEnded { id, name, outcome, .. } => {
                        let tool = self.tools.entry(name.clone()).or_default();
                        tool.calls += 1;
                        tool.errors += usize::from(outcome.is_error);
                        let start = calls.remove(id).unwrap_or(event.at);
                        tool.time += event.at.saturating_sub(start);
                    }
                    Event::TurnEnded { end } => {
                        let time = event.at.saturating_sub(turn_start.take().unwrap_or(event.at));
                        self.add_turn(end, event.at, time);
                    }
                    Event::Compacted { .. }
                    | Event::External { .. }
                    | Event::ExternalSessionOpened { .. }
                    | Event::Undone { .. } => {}
                }
            }
        }
    }

    fn add_turn(&mut self, end: &TurnEnd, at: u64, time: u64) {
        self.turns += 1;
        self.turn_time += time;
        self.longest_turn = self.longest_turn.max(time);
        // The name of the reason, as the store has it.
        let reason = json!(end.ending)["reason"].as_str().unwrap_or("unknown").to_owned();
        *self.ends.entry(reason).or_default() += 1;
        let day = self.days.entry(clock::date(at)).or_default();
        day.turns += 1;
        day.input += end.usage.input;
        day.output += end.usage.output;
    }

    fn print(&self, output: &mut CommandOutput) {
        let ends: Vec<_> = self.ends.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        let ends = if ends.is_empty() { String::new() } else { format!(" ({})", ends.join(", ")) };
        output.line(&format!("sessions  {}", self.sessions));
        output.line(&format!("turns     {}{ends}", self.turns));
        output.line(&format!(
            "time      {} in turns, the longest {}",
            duration(self.turn_time),
            duration(self.longest_turn)
        ));
        output.line(&format!("tokens    {} in ({} cached), {} out", self.input, self.cached, self.output));
        let cost = self.cost.map_or_else(|| "unknown".to_owned(), |cost| format!("{cost:.4} USD"));
        output.line(&format!("cost      {cost}"));
        if !self.tools.is_empty() {
            output.line(&format!("{BOLD}tools{BOLD:#}"));
        }
        let mut tools: Vec<_> = self.tools.iter().collect();
        tools.sort_by_key(|(_, tool)| std::cmp::Reverse(tool.calls));
        let width = tools.iter().take(MAX_TOOLS).map(|(name, _)| display_line(name).len()).max().unwrap_or_default();
        for (name, ToolStats { calls, errors, time }) in tools.iter().take(MAX_TOOLS) {
            let failed = if *errors > 0 { format!(", {errors} failed") } else { String::new() };
            output.line(&format!("  {:width$}  {calls} calls{failed}, {}", display_line(name), duration(*time)));
        }
        if tools.len() > MAX_TOOLS {
            output.line(&format!("  {QUIET}and {} more; --json has all{QUIET:#}", tools.len() - MAX_TOOLS));
        }
        if self.unreadable > 0 {
            output.note(&format!("{} events cannot be read by this skein and do not count", self.unreadable));
        }
    }

    /// Draws the tokens of each day.
    fn draw(&self) -> Result<String, CommandError> {
        if self.days.is_empty() {
            return Err(CommandError::work("there is no turn to draw", "run one first, or use --all"));
        }
        let rows: Vec<_> =
            self.days.iter().map(|(day, of)| json!({"day": day, "input": of.input, "output": of.output})).collect();
        let failure = |error: chart::ChartError| CommandError::work(format!("no chart: {error}"), "report this");
        let options = ChartOptions {
            x: Some("day".to_owned()),
            y: vec!["input".to_owned(), "output".to_owned()],
            stacked: true,
            ..ChartOptions::default()
        };
        let data = ChartData::Table(DataTable::from_json(&json!(rows)).map_err(failure)?);
        let title = Some("Tokens per day".to_owned());
        let picture = chart::draw(&ChartSpec { kind: ChartKind::Bar, data, title, options }).map_err(failure)?;
        Ok(picture.svg)
    }
}

/// Returns the figures of these sessions.
async fn collect(store: &SessionStore, sessions: &[StoredSession]) -> Result<SessionStats, CommandError> {
    let mut stats = SessionStats::default();
    for session in sessions {
        let events = store.events(&session.id).await.map_err(|error| store_failure(&error))?;
        stats.add(session, &events);
    }
    Ok(stats)
}

pub(super) async fn run(
    store: &SessionStore,
    sessions: &[StoredSession],
    args: &StatsArgs,
    json: bool,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let stats = collect(store, sessions).await?;
    if let Some(file) = &args.chart {
        super::write_file(file, &stats.draw()?, args.force, output)?;
    }
    if json {
        output.json(&json!(stats));
    } else {
        stats.print(output);
    }
    Ok(())
}

/// Returns a time as `1 h 02 min`, `3 min 04 s` or `1.2 s`.
fn duration(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0..60 => format!("{seconds}.{} s", milliseconds % 1000 / 100),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::agents::StopReason;
    use crate::conversation::{Content, Message, Usage};

    #[test]
    fn the_time_after_a_crash_belongs_to_no_turn() {
        let prompt = || Event::Message { message: Arc::new(Message::user(vec![Content::text("go")])) };
        let end = Event::TurnEnded { end: TurnEnd { ending: StopReason::EndTurn, usage: Usage::default() } };
        let events: Vec<_> = [(1_000, prompt()), (90_000, prompt()), (92_000, end)]
            .into_iter()
            .map(|(at, event)| {
                let body = serde_json::to_string(&event).unwrap();
                StoredEvent { seq: 0, at, kind: "event".into(), body }
            })
            .collect();
        let mut stats = SessionStats::default();
        stats.add_events(&events);
        assert_eq!((stats.turns, stats.turn_time, stats.longest_turn), (1, 2_000, 2_000));
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        assert_eq!([999, 61_500, 3_720_000].map(duration), ["0.9 s", "1 min 01 s", "1 h 02 min"]);
    }
}
