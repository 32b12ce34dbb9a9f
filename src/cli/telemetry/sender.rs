//! Sends spans in batches, from a thread with a separate runtime.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::{mpsc, oneshot};

use super::FinishedSpan;
use super::encoding::encode_request;
use super::settings::{CertificateFile, ExportSettings, ExportSettingsError};
use crate::network::{JsonClient, JsonClientError, TrustedRoots};

/// Pauses before a request is sent again.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

pub(super) struct SpanSender {
    settings: ExportSettings,
    client: JsonClient,
    dropped: Arc<AtomicU64>,
}

impl SpanSender {
    /// Reads the certificates of the receiver. Fails if they cannot be used or a header is not valid.
    pub(super) fn new(settings: ExportSettings, dropped: Arc<AtomicU64>) -> Result<Self, ExportSettingsError> {
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
        Ok(Self { settings, client, dropped })
    }

    /// Sends what arrives until `stop`, and then what is left.
    pub(super) fn run(self, queue: mpsc::Receiver<FinishedSpan>, stop: oneshot::Receiver<()>) {
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(self.send_all(queue, stop)),
            Err(error) => tracing::warn!(%error, "no telemetry is exported"),
        }
    }

    async fn send_all(&self, mut queue: mpsc::Receiver<FinishedSpan>, mut stop: oneshot::Receiver<()>) {
        let mut batch = Vec::new();
        let mut timer = tokio::time::interval(self.settings.delay);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let is_due = tokio::select! {
                // Resolves also if the guard is dropped.
                _ = &mut stop => break,
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
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
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
            Err(error) => Err(SendFailure { is_transient: false, reason: error.to_string() }),
        };
        if let Err(SendFailure { reason, .. }) = sent {
            tracing::warn!(spans = batch.len(), reason, "spans could not be exported");
        }
        batch.clear();
    }

    /// Sends a request again after each pause, as long as the protocol lets it.
    async fn post_repeatedly(&self, body: &[u8], pauses: &[Duration]) -> Result<(), SendFailure> {
        let mut pauses = pauses.iter();
        loop {
            match (self.post(body.to_vec()).await, pauses.next()) {
                (Err(failure), Some(pause)) if failure.is_transient => tokio::time::sleep(*pause).await,
                (sent, _) => return sent,
            }
        }
    }

    async fn post(&self, body: Vec<u8>) -> Result<(), SendFailure> {
        let request = self.client.post_bytes(&self.settings.url, "application/x-protobuf", body);
        match tokio::time::timeout(self.settings.timeout, request).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(SendFailure::from(error)),
            Err(_) => Err(SendFailure { is_transient: true, reason: "it gave no answer in time".to_owned() }),
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
        let reason = match error {
            JsonClientError::Status { status, .. } => format!("it answered with HTTP {status}"),
            other => other.to_string(),
        };
        Self { is_transient, reason }
    }
}
