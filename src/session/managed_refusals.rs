//! Records in the audit log what managed settings refuse to a session, or to a client before it has one.

use std::fmt::Display;

use super::{Session, SessionAuditLog, Sessions};
use crate::ids::random_id;
use crate::manifest::ManagedRefusal;
use crate::tool::{AuditRecord, AuditSink as _};

/// Who acts if there is no session, and so no mode.
const CLIENT: &str = "client";

impl Session {
    /// Records the refusal of an approval level.
    pub(super) fn record_refusal(&self, refusal: &ManagedRefusal) {
        let ManagedRefusal::Approval { level, setting, .. } = refusal;
        self.record_managed(level.as_str(), setting);
    }

    /// Records that a managed setting refuses a mode, a model or a level to this session.
    pub fn record_managed(&self, subject: &str, setting: &impl Display) {
        let actor = self.choice().mode.to_string();
        self.context().audit.record(AuditRecord::setting_refusal(actor, subject, setting.to_string()));
    }
}

impl Sessions {
    /// Records that a managed setting refuses a mode or a service to a client without a session. The entry has its own
    /// chain.
    pub fn record_managed(&self, subject: &str, setting: &impl Display) {
        let log = SessionAuditLog::new(self.store().clone(), random_id(CLIENT));
        log.record(AuditRecord::setting_refusal(CLIENT, subject, setting.to_string()));
    }
}
