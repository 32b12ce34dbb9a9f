//! Samples of the metrics over the last hour, and their small charts.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use maud::{Markup, html};
use tokio_util::sync::CancellationToken;

use super::super::ServerState;

/// The time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// The samples of an hour.
const MAX_SAMPLES: usize = 360;
/// The size of a chart, in its own units.
const WIDTH: f64 = 240.0;
const HEIGHT: f64 = 48.0;

/// The metrics at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct MetricSample {
    open_sessions: u64,
    running_turns: u64,
    services: u64,
    /// Counted since the start of the server, as the next two.
    calls: u64,
    requests: u64,
    failures: u64,
}

impl MetricSample {
    fn take(state: &ServerState) -> Self {
        let sessions = &state.parts.sessions;
        let (requests, failures) = state.metrics.request_counts();
        let running = (state.parts.services)().into_iter().filter(|(label, _)| *label == "healthy");
        Self {
            open_sessions: sessions.open_sessions(),
            running_turns: sessions.running_turns(),
            services: running.map(|(_, count)| count as u64).sum(),
            calls: sessions.calls_by_outcome().map(|(_, count)| count).sum(),
            requests,
            failures,
        }
    }
}

/// The samples of the last hour, oldest first.
#[derive(Debug, Default)]
pub(in crate::serve) struct MetricHistory(Mutex<VecDeque<MetricSample>>);

impl MetricHistory {
    fn add(&self, sample: MetricSample) {
        let mut samples = self.samples();
        if samples.len() >= MAX_SAMPLES {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    fn samples(&self) -> MutexGuard<'_, VecDeque<MetricSample>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a sample at each interval, until `stop` is cancelled.
pub(in crate::serve) async fn sample(state: &ServerState, stop: &CancellationToken) {
    loop {
        state.history.add(MetricSample::take(state));
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(SAMPLE_INTERVAL) => {}
        }
    }
}

/// Returns the charts of the last hour.
pub(super) fn charts(state: &ServerState) -> Markup {
    let mut samples: Vec<_> = state.history.samples().iter().copied().collect();
    samples.push(MetricSample::take(state));
    let gauge = |read: fn(&MetricSample) -> u64| samples.iter().map(read).collect::<Vec<_>>();
    let rate = |read: fn(&MetricSample) -> u64| {
        samples.windows(2).map(|pair| read(&pair[1]).saturating_sub(read(&pair[0]))).collect::<Vec<_>>()
    };
    let series = [
        ("Open sessions", gauge(|sample| sample.open_sessions)),
        ("Running turns", gauge(|sample| sample.running_turns)),
        ("Healthy services", gauge(|sample| sample.services)),
        ("Tool calls in 10 s", rate(|sample| sample.calls)),
        ("Requests in 10 s", rate(|sample| sample.requests)),
        ("Failed requests in 10 s", rate(|sample| sample.failures)),
    ];
    html! {
        ul class="charts" { @for (title, values) in &series { (chart(title, values)) } }
    }
}

/// Draws one series. The label says in words what the line shows.
fn chart(title: &str, values: &[u64]) -> Markup {
    let highest = values.iter().copied().max().unwrap_or_default();
    let now = values.last().copied().unwrap_or_default();
    let label = format!("{title}: now {now}, highest {highest} in the last hour");
    html! {
        li {
            strong { (title) }
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(label) {
                polyline points=(points(values, highest)) {}
            }
            span class="meta" { "now " (now) " · highest " (highest) }
        }
    }
}

fn points(values: &[u64], highest: u64) -> String {
    let step = WIDTH / values.len().saturating_sub(1).max(1) as f64;
    let scale = (HEIGHT - 4.0) / highest.max(1) as f64;
    let point = |(index, value): (usize, &u64)| {
        format!("{:.1},{:.1}", index as f64 * step, HEIGHT - 2.0 - *value as f64 * scale)
    };
    values.iter().enumerate().map(point).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_keeps_an_hour() {
        let history = MetricHistory::default();
        for count in 0..400 {
            history.add(MetricSample { requests: count, ..MetricSample::default() });
        }
        let samples = history.samples();
        assert_eq!((samples.len(), samples[0].requests), (MAX_SAMPLES, 40));
    }

    #[test]
    fn a_line_spans_the_chart_and_says_its_values() {
        assert_eq!(points(&[0, 2, 1], 2), "0.0,46.0 120.0,2.0 240.0,24.0");
        assert_eq!(points(&[0], 0), "0.0,46.0");
        assert_eq!(points(&[], 0), "");
        let drawn = chart("Turns", &[1, 3, 2]).into_string();
        assert!(drawn.contains("aria-label=\"Turns: now 2, highest 3 in the last hour\""), "{drawn}");
        assert!(!drawn.contains("style="), "the policy allows no inline style");
    }
}
