//! Asks about what processes in a sandbox use of this machine: credentials of git, and ports.
//!
//! Each use is asked about, at every approval level. A session that changes nothing refuses.

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::super::gate::DecisionReason;
use super::host_gate::SessionHostGate;
use crate::manifest::ApprovalLevel;
use crate::sandbox::ConsentRefusal;
use crate::sandbox::git::{GitGate, GitRequest};
use crate::sandbox::proxy::PortGate;
use crate::tool::ask::{ConsentSubject, PermissionRequest, PermissionResponse};

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
    async fn ask_about(&self, tool: &str, title: String, arguments: Map<String, Value>) -> Result<(), ConsentRefusal> {
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
                return refuse(&self.policy.explain(&DecisionReason::Level(level)));
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
