//! Reads and writes the audit log through a handle of a principal.

use super::audit::{AuditEntry, AuditFilter, ChainReport, NewAuditEntry};
use super::job::Work;
use super::{SessionStore, StoreError};

impl SessionStore {
    /// Queues an entry of a session's chain, in order with the events. A chain needs no stored session: clients without
    /// one have a chain, too.
    pub fn audit(&self, id: &str, entry: NewAuditEntry) {
        self.store_unused(id);
        self.queue(id, Work::Audit(Box::new(entry)), None);
    }

    /// Returns entries, oldest first. The handle of `local` sees those of all principals, other handles their own.
    pub async fn audit_entries(&self, filter: AuditFilter) -> Result<Vec<AuditEntry>, StoreError> {
        self.read(move |reads, view| reads.audit_entries(view, &filter)).await
    }

    /// Returns the pseudonyms whose principal is known, with its name. A handle other than that of `local` sees its own.
    pub async fn audit_names(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.read(|reads, view| reads.audit_names(view)).await
    }

    /// Checks all chains, their heads and the counts of the sessions.
    pub async fn verify_audit(&self) -> Result<ChainReport, StoreError> {
        self.read(|reads, _| reads.verify_audit()).await
    }

    /// Returns the ids of sessions in the audit log that start with `prefix`, at most a few.
    pub async fn audit_sessions(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let prefix = prefix.trim().to_ascii_lowercase();
        self.read(move |reads, view| reads.audit_sessions(view, &prefix)).await
    }
}
