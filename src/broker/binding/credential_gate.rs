//! Asks about what processes in a sandbox use of this machine: credentials of git, and ports.
//!
//! Each use is asked about, at every approval level. A session that changes nothing refuses.

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::super::audit_asker::read_answer;
use super::super::gate::DecisionReason;
use super::audit::AuditBasis;
use super::host_gate::SessionHostGate;
use crate::manifest::ApprovalLevel;
use crate::sandbox::ConsentRefusal;
use crate::sandbox::git::{GitGate, GitRequest};
use crate::sandbox::proxy::PortGate;
use crate::tool::ask::{ConsentSubject, PermissionRequest, PermissionResponse};
use crate::tool::{AuditKind, AuditRecord, AuditSource, AuditVerdict};

/// The tool names that these requests and their consents have.
const SANDBOX_GIT: &str = "sandbox:git";
const SANDBOX_PORT: &str = "sandbox:port";

impl GitGate for SessionHostGate {
    fn ask(&self, request: GitRequest) -> BoxFuture<'_, Result<(), ConsentRefusal>> {
        let shown = request.to_string();
        let mut arguments = Map::new();
        arguments.insert("use".to_owned(), json!(shown));
        if !request.command.is_empty() {
            arguments.insert("command".to_owned(), json!(request.command));
        }
        Box::pin(self.ask_about(SANDBOX_GIT, format!("Use your credentials: {shown}"), arguments))
    }
}

impl PortGate for SessionHostGate {
    fn ask(&self, port: u16) -> BoxFuture<'_, Result<(), ConsentRefusal>> {
        let arguments = Map::from_iter([("port".to_owned(), json!(port))]);
        let title = format!("Open port {port} of the sandbox at 127.0.0.1 of this machine");
        Box::pin(self.ask_about(SANDBOX_PORT, title, arguments))
    }
}

impl SessionHostGate {
    /// Decides about a use of this machine, and records the decision.
    async fn ask_about(&self, tool: &str, title: String, arguments: Map<String, Value>) -> Result<(), ConsentRefusal> {
        let mut basis = AuditBasis::from(AuditSource::Consent);
        let decision = self.decide_use(tool, title, arguments.clone(), &mut basis).await;
        let AuditBasis { source, rule } = basis;
        let is_managed = decision.is_err() && source == AuditSource::Managed;
        self.audit.record(AuditRecord {
            kind: if is_managed { AuditKind::Managed } else { AuditKind::Escape },
            actor: self.actor.clone(),
            subject: tool.to_owned(),
            call: None,
            decision: if decision.is_ok() { AuditVerdict::Allow } else { AuditVerdict::Refuse },
            source,
            rule,
            arguments: Some(arguments),
        });
        decision
    }

    /// Decides about a use. `basis` receives what decided; it is an earlier answer of the user at first.
    async fn decide_use(
        &self,
        tool: &str,
        title: String,
        arguments: Map<String, Value>,
        basis: &mut AuditBasis,
    ) -> Result<(), ConsentRefusal> {
        let subject = ConsentSubject::of(tool, &arguments, false, None);
        let refuse = |reason: &str| Err(ConsentRefusal { reason: reason.to_owned() });
        match self.state.consents.about(&subject) {
            Some(true) => return Ok(()),
            Some(false) => return refuse("the user refused this use for this session"),
            None => {}
        }
        let level = self.policy.approval();
        match level {
            ApprovalLevel::ReadOnly | ApprovalLevel::Deny => {
                let because = DecisionReason::Level(level);
                *basis = AuditBasis::of(&self.policy, &because, AuditVerdict::Refuse);
                return refuse(&self.policy.explain(&because));
            }
            ApprovalLevel::Ask | ApprovalLevel::Smart | ApprovalLevel::Auto => {}
        }
        let request = PermissionRequest {
            call: None,
            by: None,
            apart: None,
            chain: Vec::new(),
            tool: tool.to_owned(),
            title: Some(title.clone()),
            arguments,
            target: None,
            change: None,
            rule: None,
            protected: None,
            always: subject.clone(),
        };
        let response = self.asker.ask(request).await;
        *basis = read_answer(response).1.into();
        tracing::info!(tool, title, ?response, "the user was asked about a use of this machine");
        match response {
            PermissionResponse::Allow => Ok(()),
            PermissionResponse::AllowAlways => {
                self.state.consents.remember(subject, true);
                Ok(())
            }
            PermissionResponse::Refuse => refuse("the user refused"),
            PermissionResponse::RefuseAlways => {
                self.state.consents.remember(subject, false);
                refuse("the user refused, and refuses this use for this session")
            }
            PermissionResponse::Unavailable => refuse("this needs consent and no user can be asked"),
        }
    }
}
