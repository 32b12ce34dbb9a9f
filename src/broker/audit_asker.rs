//! Records the user's answers, and the modes and services that managed settings refuse, in the audit log.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Map;

use super::{BindError, BindRequest};
use crate::ids::{ModeId, ServiceName};
use crate::tool::ask::{Asker, ExternalPermissionRequest, PermissionRequest, PermissionResponse};
use crate::tool::elicit::{Elicitation, ElicitationResponse};
use crate::tool::{AuditKind, AuditRecord, AuditSink, AuditSource, AuditVerdict};

/// What an external agent's own permission request is about. Its title may be any text, so the log has this name.
const EXTERNAL_REQUEST: &str = "external:request";
/// The rules of answers that hold for more than one call.
const FOR_SESSION: &str = "for this session";

/// An asker that records each answer. It holds no session, because the session holds it.
pub(super) struct AuditAsker {
    pub(super) asker: Arc<dyn Asker>,
    pub(super) audit: Arc<dyn AuditSink>,
    /// The mode that asks, as `agent/mode`.
    pub(super) actor: String,
}

/// Returns what an answer says, who gave it, and for how long it holds.
pub(super) fn read_answer(answer: PermissionResponse) -> (AuditVerdict, AuditSource, Option<&'static str>) {
    match answer {
        PermissionResponse::Allow => (AuditVerdict::Allow, AuditSource::User, None),
        PermissionResponse::AllowAlways => (AuditVerdict::Allow, AuditSource::User, Some(FOR_SESSION)),
        PermissionResponse::Refuse => (AuditVerdict::Refuse, AuditSource::User, None),
        PermissionResponse::RefuseAlways => (AuditVerdict::Refuse, AuditSource::User, Some(FOR_SESSION)),
        PermissionResponse::Unavailable => (AuditVerdict::Refuse, AuditSource::NoUser, None),
    }
}

impl BindRequest {
    /// Records the answers of the user to the requests of this mode.
    pub(super) fn record_answers(&mut self, mode: &ModeId) {
        let (asker, audit) = (Arc::clone(&self.asker), Arc::clone(&self.session.audit));
        self.asker = Arc::new(AuditAsker { asker, audit, actor: mode.to_string() });
    }

    /// Records that a managed setting keeps a service out of the mode.
    pub(super) fn record_service_refusal(&self, mode: &ModeId, service: &ServiceName, setting: String) {
        self.session.audit.record(AuditRecord::setting_refusal(mode.to_string(), service.to_string(), setting));
    }

    /// Records that a managed setting excludes the mode. Other errors are no decisions.
    pub(super) fn record_mode_refusal(&self, error: &BindError) {
        if let BindError::Managed { mode, exclusion } = error {
            let (actor, subject) = (mode.to_string(), mode.to_string());
            self.session.audit.record(AuditRecord::setting_refusal(actor, subject, exclusion.setting.to_string()));
        }
    }
}

impl AuditAsker {
    async fn record_answer(&self, question: PermissionRequest) -> PermissionResponse {
        let (subject, call) = (question.tool.clone(), question.call.as_deref().map(str::to_owned));
        let arguments = Some(question.arguments.clone());
        let answer = self.asker.ask(question).await;
        let (decision, source, rule) = read_answer(answer);
        let rule = rule.map(str::to_owned);
        self.record(AuditRecord {
            kind: AuditKind::Consent,
            actor: self.actor.clone(),
            subject,
            call,
            decision,
            source,
            rule,
            arguments,
        });
        answer
    }

    async fn record_choice(&self, request: ExternalPermissionRequest) -> Option<String> {
        let allowing: Vec<_> =
            request.options.iter().filter(|option| option.allows).map(|option| option.id.clone()).collect();
        let call = Some(request.call.clone());
        let arguments = request.input.clone().map(|input| Map::from_iter([("input".to_owned(), input)]));
        let chosen = self.asker.choose(request).await;
        let (decision, source) = match &chosen {
            Some(id) if allowing.contains(id) => (AuditVerdict::Allow, AuditSource::User),
            Some(_) => (AuditVerdict::Refuse, AuditSource::User),
            None => (AuditVerdict::Refuse, AuditSource::NoUser),
        };
        self.record(AuditRecord {
            kind: AuditKind::Consent,
            actor: self.actor.clone(),
            subject: EXTERNAL_REQUEST.to_owned(),
            call,
            decision,
            source,
            rule: None,
            arguments,
        });
        chosen
    }

    fn record(&self, record: AuditRecord) {
        self.audit.record(record);
    }
}

impl Asker for AuditAsker {
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        Box::pin(self.record_answer(question))
    }

    fn choose(&self, request: ExternalPermissionRequest) -> BoxFuture<'_, Option<String>> {
        Box::pin(self.record_choice(request))
    }

    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, ElicitationResponse> {
        self.asker.elicit(question)
    }

    fn page_done(&self, by: &str, id: &str) {
        self.asker.page_done(by, id);
    }
}
