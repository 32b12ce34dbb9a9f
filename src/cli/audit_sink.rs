//! Opens the audit log for clients of `skein mcp` and other commands that have no stored session.

use std::sync::{Arc, OnceLock};

use super::folders::Folders;
use super::managed_files::FlagRefusal;
use super::output::CommandError;
use super::store_failure::store_failure;
use super::{Global, managed_files, telemetry};
use crate::ids::random_id;
use crate::manifest::Manifests;
use crate::session::SessionAuditLog;
use crate::store::{StoreError, StorePlace};
use crate::tool::{AuditRecord, AuditSink, NoAuditLog};

/// Fails if the stores that exist have another key, so that no command works without its audit log because of a key.
pub(super) fn check_key(folders: &Folders) -> Result<(), CommandError> {
    let store = &folders.store;
    let exists = |file: &str| store.address().is_some() || store.data().join(file).exists();
    if exists("sessions.db") {
        refuse_key(store.sessions().map(drop))?;
    }
    if exists("memory.db") {
        refuse_key(store.memories().map(drop))?;
    }
    Ok(())
}

/// Returns an error that concerns the key. Other errors do not keep a command from its work.
fn refuse_key(opened: Result<(), StoreError>) -> Result<(), CommandError> {
    match opened {
        Err(
            error @ (StoreError::KeyMissing { .. } | StoreError::WrongKey { .. } | StoreError::NotEncrypted { .. }),
        ) => Err(store_failure(&error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Who acts in a command that has no session.
const COMMAND: &str = "command";

/// Records that a managed setting refused what the command line or the settings name. Other errors are no decisions.
pub(super) fn record_refusal(failure: &CommandError, folders: &Folders) {
    if let CommandError::Managed { subject, setting, .. } = failure {
        let log = CommandAuditLog::new(folders, random_id("cli"));
        log.record(AuditRecord::setting_refusal(COMMAND, subject, setting));
    }
}

/// Records the flags and variables that managed settings override.
pub(super) fn record_flags(log: &dyn AuditSink, global: &Global, manifests: &Manifests) {
    for FlagRefusal { flag, setting, .. } in managed_files::flag_refusals(global, manifests) {
        log.record(AuditRecord::setting_refusal(COMMAND, flag, setting.to_string()));
    }
    for (variable, setting) in telemetry::refusals(&manifests.managed) {
        log.record(AuditRecord::setting_refusal(COMMAND, variable, setting.to_string()));
    }
}

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
