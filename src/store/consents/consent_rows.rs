//! What a kind of store does for consents: SQLite in `file_consents`, PostgreSQL in `shared_consents`.

use super::StoredConsent;
use crate::store::StoreError;

/// Reads and writes the rows of a principal. It may wait for another process or the network.
pub(super) trait ConsentRows: Send + std::fmt::Debug {
    /// Stores a rule, unless it is there already.
    fn keep(&mut self, principal: &str, rule: &str) -> Result<(), StoreError>;

    /// Returns the rules, newest first.
    fn list(&mut self, principal: &str) -> Result<Vec<StoredConsent>, StoreError>;

    /// Returns false if the principal has no such rule.
    fn remove(&mut self, principal: &str, id: i64) -> Result<bool, StoreError>;
}
