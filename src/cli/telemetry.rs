//! Exports spans in the OpenTelemetry protocol (OTLP over HTTP), as the standard environment variables say.
//!
//! A separate thread sends the spans, so that a slow receiver delays nothing. The queue has a limit: spans that do not
//! fit are dropped.
//!
//! Invariant: the log has the number of spans that the receiver did not take.

mod encoding;
mod layer;
mod sender;
mod settings;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(super) use layer::SpanLayer;

use crate::manifest::{ManagedLayer, ManagedSetting};
use sender::SpanSender;
use settings::{CONTENT_VARIABLE, ExportSettings, ExportSettingsError};

/// How long the end of the program waits for the last spans.
const FLUSH_TIME: Duration = Duration::from_secs(5);

/// The variables that name the receiver.
const RECEIVER_VARIABLES: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// A value of an attribute.
#[derive(Debug, Clone, PartialEq)]
enum AttributeValue {
    Text(String),
    Texts(Vec<String>),
    Integer(i64),
    Float(f64),
    Flag(bool),
}

/// A span that has ended.
#[derive(Debug, Clone, PartialEq)]
struct FinishedSpan {
    trace: [u8; 16],
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    name: String,
    is_client: bool,
    /// Nanoseconds since 1970.
    start: u64,
    end: u64,
    attributes: Vec<(String, AttributeValue)>,
    failed: bool,
}

/// Counts spans that may be lost. The layer and the sender share it.
#[derive(Debug, Default)]
struct SpanCounts {
    /// Spans that did not fit the queue and are not logged yet.
    dropped: AtomicU64,
    /// Spans that are queued or in a request.
    waiting: AtomicU64,
}

impl SpanCounts {
    /// Takes the number of spans that did not fit the queue since the last call.
    fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

/// Ends the export when it is dropped, after the last spans are sent.
#[derive(Debug)]
pub(super) struct ExportGuard {
    stop: Option<DropGuard>,
    end: Receiver<()>,
    counts: Arc<SpanCounts>,
}

impl Drop for ExportGuard {
    fn drop(&mut self) {
        // The thread may have ended already, and then `end` is closed.
        drop(self.stop.take());
        if self.end.recv_timeout(FLUSH_TIME).is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("the receiver of telemetry is too slow");
        }
        let spans = self.counts.take_dropped() + self.counts.waiting.load(Ordering::Relaxed);
        if spans > 0 {
            tracing::warn!(spans, "the last spans were not exported before the end");
        }
    }
}

/// Returns the variables of the environment that managed settings refuse, and the settings.
pub(super) fn refusals(managed: &ManagedLayer) -> Vec<(&'static str, ManagedSetting)> {
    // An invalid variable is reported at the start of the program.
    let Ok(Some(settings)) = ExportSettings::read(super::environment::variable) else { return Vec::new() };
    let receiver = managed.receiver_refusal(&settings.url).map(|setting| (RECEIVER_VARIABLES, setting));
    let content = managed.content_refusal().filter(|_| settings.with_content);
    receiver.into_iter().chain(content.map(|setting| (CONTENT_VARIABLE, setting))).collect()
}

/// Starts the export if the environment asks for it. Returns `None` if it does not. `managed` reads the managed settings
/// and returns `None` if they cannot be used. Fails if a variable is not valid, or the receiver is not allowed.
pub(super) fn start(
    managed: impl FnOnce() -> Option<ManagedLayer>,
) -> Result<Option<(SpanLayer, ExportGuard)>, ExportSettingsError> {
    let Some(mut settings) = ExportSettings::read(super::environment::variable)? else { return Ok(None) };
    settings.limit_to(&managed().ok_or(ExportSettingsError::ManagedSettings)?)?;
    let (spans, queue) = mpsc::channel(settings.queue);
    let stop = CancellationToken::new();
    let (ended, end) = sync_channel(1);
    let counts: Arc<SpanCounts> = Arc::default();
    let layer = SpanLayer::new(spans, Arc::clone(&counts), settings.with_content);
    let sender = SpanSender::new(settings, Arc::clone(&counts), stop.clone())?;
    let thread = std::thread::Builder::new().name("telemetry".to_owned()).spawn(move || {
        sender.run(queue);
        if ended.send(()).is_err() {
            tracing::trace!("the program no longer waits for its telemetry");
        }
    });
    thread.map_err(|error| ExportSettingsError::Thread { reason: error.to_string() })?;
    Ok(Some((layer, ExportGuard { stop: Some(stop.drop_guard()), end, counts })))
}
