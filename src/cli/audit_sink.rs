//! Opens the audit log for clients of `skein mcp` and other commands that have no stored session.

use std::sync::{Arc, OnceLock};

use super::folders::Folders;
use crate::session::SessionAuditLog;
use crate::store::StorePlace;
use crate::tool::{AuditRecord, AuditSink, NoAuditLog};

/// An audit log that opens the store with the first decision, because most commands decide nothing.
pub(super) struct CommandAuditLog {
    store: StorePlace,
    /// The id of the chain.
    id: String,
    log: OnceLock<Arc<dyn AuditSink>>,
}

impl CommandAuditLog {
    pub(super) fn new(folders: &Folders, id: String) -> Self {
        Self { store: folders.store.clone(), id, log: OnceLock::new() }
    }

    fn open(&self) -> Arc<dyn AuditSink> {
        match self.store.sessions() {
            Ok(store) => Arc::new(SessionAuditLog::new(store, self.id.clone())),
            Err(error) => {
                tracing::error!(%error, "decisions of this command are not in the audit log");
                Arc::new(NoAuditLog)
            }
        }
    }
}

impl AuditSink for CommandAuditLog {
    fn record(&self, record: AuditRecord) {
        self.log.get_or_init(|| self.open()).record(record);
    }
}
