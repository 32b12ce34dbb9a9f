//! Sends spans in batches, from a thread with a separate runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::FinishedSpan;
use super::encoding::encode_request;
use super::settings::{ExportSettings, ExportSettingsError};
use crate::network::{JsonClient, JsonClientError};

/// Pauses before a request is sent again.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

pub(super) struct SpanSender {
    settings: ExportSettings,
    client: JsonClient,
    dropped: Arc<AtomicU64>,
}

impl SpanSender {
    /// Fails if a header is not valid.
    pub(super) fn new(settings: ExportSettings, dropped: Arc<AtomicU64>) -> Result<Self, ExportSettingsError> {
        let client = JsonClient::new(settings.headers.clone());
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
        let mut pauses = pauses.iter();
        let failure = loop {
            match self.post(body.clone()).await {
                Ok(()) => break None,
                Err(failure) if failure.is_transient => match pauses.next() {
                    Some(pause) => tokio::time::sleep(*pause).await,
                    None => break Some(failure),
                },
                Err(failure) => break Some(failure),
            }
        };
        if let Some(SendFailure { reason, .. }) = failure {
            tracing::warn!(spans = batch.len(), reason, "spans could not be exported");
        }
        batch.clear();
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
