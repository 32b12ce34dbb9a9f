//! Sends spans in batches, from a thread with a separate runtime.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::encoding::{count_rejected, encode_request};
use super::settings::{CertificateFile, ExportSettings, ExportSettingsError};
use super::{FinishedSpan, SpanCounts};
use crate::network::{JsonClient, JsonClientError, TrustedRoots};

/// Pauses before a request is sent again.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];
/// The longest pause that a receiver can ask for. The queue fills meanwhile.
const MAX_PAUSE: Duration = Duration::from_secs(30);

pub(super) struct SpanSender {
    settings: ExportSettings,
    client: JsonClient,
    counts: Arc<SpanCounts>,
    /// Cancelled when the program ends.
    stop: CancellationToken,
}

impl SpanSender {
    /// Reads the certificates of the receiver. Fails if they cannot be used or a header is not valid.
    pub(super) fn new(
        settings: ExportSettings,
        counts: Arc<SpanCounts>,
        stop: CancellationToken,
    ) -> Result<Self, ExportSettingsError> {
        let encoding = settings.with_gzip.then(|| ("content-encoding".to_owned(), "gzip".to_owned()));
        let headers = settings.headers.iter().cloned().chain(encoding);
        let client = match &settings.certificate {
            None => JsonClient::new(headers),
            Some(CertificateFile { variable, path }) => {
                let roots = TrustedRoots::read(path);
                let roots = roots.map_err(|source| ExportSettingsError::Certificate { variable, source })?;
                JsonClient::with_roots(&roots, headers)
            }
        };
        let client = client.map_err(|error| ExportSettingsError::Headers { reason: error.to_string() })?;
        Ok(Self { settings, client, counts, stop })
    }

    /// Sends what arrives until the program ends, and then what is left.
    pub(super) fn run(self, queue: mpsc::Receiver<FinishedSpan>) {
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(self.send_all(queue)),
            Err(error) => tracing::warn!(%error, "no telemetry is exported"),
        }
    }

    async fn send_all(&self, mut queue: mpsc::Receiver<FinishedSpan>) {
        let mut batch = Vec::new();
        let mut timer = tokio::time::interval(self.settings.delay);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let is_due = tokio::select! {
                () = self.stop.cancelled() => break,
                _ = timer.tick() => true,
                span = queue.recv() => match span {
                    Some(span) => {
                        batch.push(span);
                        batch.len() >= self.settings.batch
                    }
                    None => break,
                },
            };
            if is_due {
                self.send(&mut batch, &PAUSES).await;
            }
        }
        queue.close();
        while let Ok(span) = queue.try_recv() {
            batch.push(span);
            if batch.len() >= self.settings.batch {
                self.send(&mut batch, &[]).await;
            }
        }
        self.send(&mut batch, &[]).await;
    }

    /// Sends a batch and empties it. A batch that the receiver does not take is lost and logged.
    async fn send(&self, batch: &mut Vec<FinishedSpan>, pauses: &[Duration]) {
        let dropped = self.counts.take_dropped();
        if dropped > 0 {
            tracing::warn!(dropped, "spans did not fit the queue of the export");
        }
        if batch.is_empty() {
            return;
        }
        let body = encode_request(&self.settings.resource, batch);
        let body = if self.settings.with_gzip { compress(&body) } else { Ok(body) };
        let sent = match body {
            Ok(body) => self.post_repeatedly(&body, pauses).await,
            Err(error) => Err(SendFailure { is_transient: false, pause: None, reason: error.to_string() }),
        };
        // The text of the answer may repeat what was sent, so the log has only the number.
        match sent {
            Ok(0) => {}
            Ok(rejected) => tracing::warn!(spans = rejected, "the receiver of telemetry rejected spans"),
            Err(SendFailure { reason, .. }) => {
                tracing::warn!(spans = batch.len(), reason, "spans could not be exported");
            }
        }
        self.counts.waiting.fetch_sub(batch.len() as u64, Ordering::Relaxed);
        batch.clear();
    }

    /// Sends a request again after each pause, as long as the protocol lets it. A receiver can ask for a longer pause, up
    /// to a limit. The end of the program ends a pause. Returns how many spans the receiver rejected.
    async fn post_repeatedly(&self, body: &[u8], pauses: &[Duration]) -> Result<u64, SendFailure> {
        let mut pauses = pauses.iter();
        loop {
            let failure = match self.post(body.to_vec()).await {
                Ok(rejected) => return Ok(rejected),
                Err(failure) => failure,
            };
            let asked = failure.pause.unwrap_or_default();
            let pause = pauses.next().map(|pause| asked.max(*pause));
            let Some(pause) = pause.filter(|pause| failure.is_transient && *pause <= MAX_PAUSE) else {
                return Err(failure);
            };
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn post(&self, body: Vec<u8>) -> Result<u64, SendFailure> {
        let request = self.client.post_bytes(&self.settings.url, "application/x-protobuf", body);
        match tokio::time::timeout(self.settings.timeout, request).await {
            Ok(Ok(answer)) => Ok(count_rejected(&answer)),
            Ok(Err(error)) => Err(SendFailure::from(error)),
            Err(_) => {
                let reason = "it gave no answer in time".to_owned();
                Err(SendFailure { is_transient: true, pause: None, reason })
            }
        }
    }
}

fn compress(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body)?;
    encoder.finish()
}

struct SendFailure {
    /// True if the protocol lets a client send the request again.
    is_transient: bool,
    /// The pause that the receiver asks for.
    pause: Option<Duration>,
    reason: String,
}

impl From<JsonClientError> for SendFailure {
    fn from(error: JsonClientError) -> Self {
        let is_transient = match &error {
            JsonClientError::Unreachable { .. } => true,
            JsonClientError::Status { status, .. } => matches!(status, 429 | 502 | 503 | 504),
            JsonClientError::HeaderName { .. }
            | JsonClientError::HeaderValue { .. }
            | JsonClientError::Client { .. }
            | JsonClientError::NotJson { .. }
            | JsonClientError::TooLarge => false,
        };
        // The text of an answer may repeat what was sent.
        let (pause, reason) = match error {
            JsonClientError::Status { status, retry_after, .. } => {
                (retry_after, format!("it answered with HTTP {status}"))
            }
            other => (None, other.to_string()),
        };
        Self { is_transient, pause, reason }
    }
}
