//! Runs queries on the connection for reading.

use std::sync::{Arc, PoisonError};

use super::SessionStore;
use super::backend::SessionReads;
use super::job::Work;
use super::view::SessionView;
use crate::store::StoreError;

impl SessionStore {
    /// Reads what is stored, with everything that this process queued before.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut dyn SessionReads, &SessionView) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        // The way to the writer and back changes threads twice. Usually the writer has nothing to do.
        if !self.shared.pending.is_empty() {
            self.ask("", Work::Nothing).await?;
        }
        self.read_as_it_is(query).await
    }

    /// Reads without waiting for the queue, so the query may miss the latest jobs.
    pub(super) async fn read_as_it_is<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut dyn SessionReads, &SessionView) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Some(reader) = self.shared.reader.clone() else { return Err(self.unusable("it is closed")) };
        let view = Arc::clone(&self.view);
        let read = crate::task::run_blocking(move || {
            let mut reads = reader.lock().unwrap_or_else(PoisonError::into_inner);
            query(&mut **reads, &view)
        });
        match read.await {
            Ok(result) => result,
            Err(error) => Err(self.unusable(&format!("reading it broke off: {error}"))),
        }
    }
}
