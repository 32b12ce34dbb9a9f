//! Counts requests and connections, and writes all metrics in the text format of Prometheus.
//!
//! Invariant: labels hold fixed words; never a session, a principal or text of a user.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::StatusCode;

use crate::session::SessionMetrics;

/// What is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    /// A TCP connection.
    Tcp,
    /// A request whose handler runs.
    Request,
    /// An ACP connection over HTTP.
    AcpHttp,
    /// An ACP connection over WebSocket.
    AcpWebSocket,
}

impl ConnectionKind {
    const ALL: [Self; 4] = [Self::Tcp, Self::Request, Self::AcpHttp, Self::AcpWebSocket];

    fn label(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Request => "request",
            Self::AcpHttp => "acp_http",
            Self::AcpWebSocket => "acp_websocket",
        }
    }
}

/// Counters of the server.
#[derive(Debug, Default)]
pub(super) struct ServerMetrics {
    connections: [AtomicU64; ConnectionKind::ALL.len()],
    /// By the first digit of the status.
    requests: [AtomicU64; 5],
}

/// An open connection. Dropping it ends the count.
pub(super) struct ConnectionGauge {
    metrics: Arc<ServerMetrics>,
    kind: ConnectionKind,
}

impl ConnectionGauge {
    pub(super) fn new(metrics: &Arc<ServerMetrics>, kind: ConnectionKind) -> Self {
        metrics.connections[kind as usize].fetch_add(1, Ordering::Relaxed);
        Self { metrics: Arc::clone(metrics), kind }
    }
}

impl Drop for ConnectionGauge {
    fn drop(&mut self) {
        self.metrics.connections[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

impl ServerMetrics {
    pub(super) fn count_request(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(1, self.requests.len()) - 1;
        self.requests[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of all answered requests, and of those that failed in the server.
    pub(super) fn request_counts(&self) -> (u64, u64) {
        (self.requests.iter().map(load).sum(), self.requests.last().map(load).unwrap_or_default())
    }

    /// Writes all metrics. `services` has the number of services in each state, `tasks` that of tasks that run.
    pub(super) fn render(&self, sessions: &SessionMetrics, services: &[(&'static str, usize)], tasks: usize) -> String {
        let mut text = MetricText::default();
        let running = sessions.running_turns();
        let idle = sessions.open_sessions().saturating_sub(running);
        text.family(
            "skein_sessions",
            "gauge",
            "Open sessions by state.",
            "state",
            [("idle", idle), ("running", running)],
        );
        text.family(
            "skein_turns_total",
            "counter",
            "Ended turns by stop reason.",
            "reason",
            sessions.turns_by_reason(),
        );
        text.family(
            "skein_calls_total",
            "counter",
            "Ended tool calls by outcome.",
            "outcome",
            sessions.calls_by_outcome(),
        );
        let connections = ConnectionKind::ALL.map(|kind| (kind.label(), load(&self.connections[kind as usize])));
        text.family("skein_connections", "gauge", "Open connections by kind.", "kind", connections);
        let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"];
        let requests = classes.into_iter().zip(self.requests.iter().map(load));
        text.family("skein_http_requests_total", "counter", "Answered requests by status.", "status", requests);
        let services = services.iter().map(|(state, count)| (*state, *count as u64));
        text.family("skein_services", "gauge", "Services by state.", "state", services);
        text.gauge("skein_tasks", "Asynchronous tasks that have not ended.", tasks as u64);
        text.0
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Text in the format of Prometheus.
#[derive(Default)]
struct MetricText(String);

impl MetricText {
    /// Writes one metric with a label.
    fn family(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        label: &str,
        samples: impl IntoIterator<Item = (&'static str, u64)>,
    ) {
        self.0.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        for (value, count) in samples {
            self.0.push_str(&format!("{name}{{{label}=\"{value}\"}} {count}\n"));
        }
    }

    /// Writes one metric without a label.
    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.0.push_str(&format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_counted_and_written() {
        let metrics = Arc::new(ServerMetrics::default());
        let open = ConnectionGauge::new(&metrics, ConnectionKind::AcpWebSocket);
        metrics.count_request(StatusCode::OK);
        metrics.count_request(StatusCode::UNAUTHORIZED);
        metrics.count_request(StatusCode::FORBIDDEN);
        let text = metrics.render(&SessionMetrics::default(), &[("running", 3)], 7);
        for line in [
            "# TYPE skein_sessions gauge",
            "skein_sessions{state=\"idle\"} 0",
            "skein_connections{kind=\"acp_websocket\"} 1",
            "skein_http_requests_total{status=\"2xx\"} 1",
            "skein_http_requests_total{status=\"4xx\"} 2",
            "skein_services{state=\"running\"} 3",
            "# TYPE skein_tasks gauge",
            "skein_tasks 7",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        drop(open);
        let text = metrics.render(&SessionMetrics::default(), &[], 0);
        assert!(text.contains("skein_connections{kind=\"acp_websocket\"} 0"), "{text}");
    }
}
