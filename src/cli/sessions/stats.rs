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
use crate::store::{ListFilter, SessionStore, StoreError, StoredEvent, StoredSession};

/// Tools that the text shows. JSON has all.
const MAX_TOOLS: usize = 20;

/// The charts of a picture: the title, and the columns that each bar of a day consists of.
const CHARTS: [(&str, &[&str]); 5] = [
    ("Turns per day", &["turns"]),
    ("Tokens per day", &["input", "output"]),
    ("Cost per day in USD", &["cost"]),
    ("Tool calls per day", &["successful", "failed"]),
    ("Minutes in turns per day", &["minutes"]),
];
/// Charts side by side.
const CHART_COLUMNS: usize = 2;
/// The size of the picture for each unit of a chart.
const CHART_SCALE: f64 = 0.75;

#[derive(Debug, Args)]
pub(super) struct StatsArgs {
    /// Session id or a prefix; without one, the sessions of this project
    pub(super) id: Option<String>,
    /// Count sessions of every folder
    #[arg(long, conflicts_with = "id")]
    pub(super) all: bool,
    /// Also draw turns, tokens, cost, tools and times by day as SVG
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
    /// With the calls of child sessions, whose tokens and cost are part of those of their parents.
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
    turn_time: u64,
    input: u64,
    output: u64,
    /// The cost of the sessions that changed last on this day. `None` if none of them has a known cost.
    cost: Option<f64>,
    calls: usize,
    errors: usize,
}

impl SessionStats {
    fn add(&mut self, session: &StoredSession, events: &[StoredEvent]) {
        self.sessions += 1;
        self.input += session.spent.input;
        self.output += session.spent.output;
        self.cached += session.spent.cached;
        if let Some(cost) = session.spent.cost {
            *self.cost.get_or_insert(0.0) += cost;
            *self.day(session.updated_at).cost.get_or_insert(0.0) += cost;
        }
        self.add_events(events);
    }

    /// Adds the calls of a child session.
    fn add_child(&mut self, events: &[StoredEvent]) {
        let mut child = Self::default();
        child.add_events(events);
        self.unreadable += child.unreadable;
        for (name, ToolStats { calls, errors, time }) in child.tools {
            let tool = self.tools.entry(name).or_default();
            tool.calls += calls;
            tool.errors += errors;
            tool.time += time;
        }
        for (day, DayStats { calls, errors, .. }) in child.days {
            let day = self.days.entry(day).or_default();
            day.calls += calls;
            day.errors += errors;
        }
    }

    fn day(&mut self, at: u64) -> &mut DayStats {
        self.days.entry(clock::date(at)).or_default()
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
                        let day = self.day(event.at);
                        day.calls += 1;
                        day.errors += usize::from(outcome.is_error);
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
        let day = self.day(at);
        day.turns += 1;
        day.turn_time += time;
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

    /// Draws the figures of each day as one picture with a chart for each of them.
    fn draw(&self) -> Result<String, CommandError> {
        if self.days.is_empty() {
            return Err(CommandError::work("there is no turn to draw", "run one first, or use --all"));
        }
        let row = |(day, of): (&String, &DayStats)| {
            json!({"day": day, "turns": of.turns, "input": of.input, "output": of.output, "cost": of.cost,
                "successful": of.calls - of.errors, "failed": of.errors, "minutes": of.turn_time as f64 / 60_000.0})
        };
        let rows = json!(self.days.iter().map(row).collect::<Vec<_>>());
        let failure = |error: chart::ChartError| CommandError::work(format!("no chart: {error}"), "report this");
        let data = ChartData::Table(DataTable::from_json(&rows).map_err(failure)?);
        let (mut charts, mut width, mut height) = (String::new(), 0.0_f64, 0.0_f64);
        // Without a known cost, its chart would be empty.
        let drawn = CHARTS.iter().filter(|(_, columns)| *columns != ["cost"] || self.cost.is_some());
        for (index, (title, columns)) in drawn.enumerate() {
            let y = columns.iter().map(ToString::to_string).collect();
            let options = ChartOptions { x: Some("day".to_owned()), y, stacked: true, ..ChartOptions::default() };
            let (data, title) = (data.clone(), Some((*title).to_owned()));
            let picture = chart::draw(&ChartSpec { kind: ChartKind::Bar, data, title, options }).map_err(failure)?;
            let (column, line) = (index % CHART_COLUMNS, index / CHART_COLUMNS);
            let (left, top) = (column as f64 * picture.width, line as f64 * picture.height);
            charts.push_str(&picture.svg.replacen("<svg ", &format!("<svg x=\"{left}\" y=\"{top}\" "), 1));
            width = width.max(left + picture.width);
            height = height.max(top + picture.height);
        }
        let (shown_width, shown_height) = (width * CHART_SCALE, height * CHART_SCALE);
        Ok(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{shown_width}\" \
             height=\"{shown_height}\">\n{charts}</svg>\n"
        ))
    }
}

/// Returns the figures of these sessions, with the calls of their child sessions.
async fn collect(store: &SessionStore, sessions: &[StoredSession]) -> Result<SessionStats, StoreError> {
    let mut stats = SessionStats::default();
    for session in sessions {
        stats.add(session, &store.events(&session.id).await?);
        let children = ListFilter { parent: Some(session.id.clone()), ..ListFilter::default() };
        for child in store.list(children).await? {
            stats.add_child(&store.events(&child.id).await?);
        }
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
    let stats = collect(store, sessions).await.map_err(|error| store_failure(&error))?;
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
