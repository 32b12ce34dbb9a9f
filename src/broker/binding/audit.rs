//! Records the decisions of a binding in the audit log of its session.
//!
//! Invariant: a call has exactly one entry of the kind `call`, `escape` or `managed`, whether it runs or not.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::super::bound_tool::SandboxChoice;
use super::super::gate::DecisionReason;
use super::{Binding, CallPolicy};
use crate::manifest::ConfiguredHook;
use crate::permissions::{RuleOrigin, SourcedRule};
use crate::tool::ask::Asker;
use crate::tool::{AuditKind, AuditRecord, AuditSource, AuditVerdict, CallContext};

/// The name of a tool that the mode does not have. Models invent such names, so the log does not have them.
const UNKNOWN_TOOL: &str = "unknown tool";

/// What decided about a call, and the rule, level or setting that applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::broker) struct AuditBasis {
    pub(in crate::broker) source: AuditSource,
    pub(in crate::broker) rule: Option<String>,
}

impl From<AuditSource> for AuditBasis {
    fn from(source: AuditSource) -> Self {
        Self { source, rule: None }
    }
}

impl AuditBasis {
    /// Returns the basis of a decision on a reason of the gate. It has no text that a model or a hook wrote.
    pub(in crate::broker) fn of(policy: &CallPolicy, because: &DecisionReason, decision: AuditVerdict) -> Self {
        if let (Some(level), Some((loosest, setting)), AuditVerdict::Refuse) =
            (because.level(), &policy.managed_approval, decision)
            && level == *loosest
        {
            return Self { source: AuditSource::Managed, rule: Some(setting.to_string()) };
        }
        let with = |source, rule: String| Self { source, rule: Some(rule) };
        match because {
            DecisionReason::Level(level) | DecisionReason::ReadOnly(level) | DecisionReason::Host { level, .. } => {
                with(AuditSource::Level, level.as_str().to_owned())
            }
            DecisionReason::Rules(rules) => Self::of_rules(rules),
            DecisionReason::Unsure(rule) => Self::of_rules(std::slice::from_ref(rule)),
            DecisionReason::UserNamed(_) => AuditSource::Prompt.into(),
            DecisionReason::Unsandboxed { .. } => AuditSource::Sandbox.into(),
            DecisionReason::ManagedSandbox(setting) => with(AuditSource::Managed, setting.to_string()),
            DecisionReason::Protected { path, .. } => with(AuditSource::ProtectedPath, path.name.to_owned()),
            DecisionReason::Hook { .. } => AuditSource::Hook.into(),
        }
    }

    pub(in crate::broker) fn of_rules(rules: &[SourcedRule]) -> Self {
        let is_managed = rules.iter().any(|rule| matches!(rule.origin, RuleOrigin::Managed { .. }));
        let shown: Vec<_> = rules.iter().map(ToString::to_string).collect();
        let source = if is_managed { AuditSource::Managed } else { AuditSource::Rule };
        Self { source, rule: Some(shown.join(", ")) }
    }

    /// Returns the basis with another source, such as the user who answered. Keeps the rule that led to the question.
    pub(super) fn with_source(&self, source: AuditSource) -> Self {
        Self { source, rule: self.rule.clone() }
    }
}

impl Binding {
    /// Returns the asker of the session. It records the answers in the audit log.
    pub fn asker(&self) -> &Arc<dyn Asker> {
        &self.request.asker
    }

    /// Records the decision on a call of a tool.
    pub(super) fn record_call(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
        context: &CallContext,
        decision: AuditVerdict,
        basis: AuditBasis,
    ) {
        let tool = self.tools.get(name);
        let leaves = |choice: SandboxChoice<'_>| matches!(choice, SandboxChoice::Unsandboxed(_));
        let is_escape = self.sandbox.is_some() && tool.is_some_and(|tool| leaves(tool.sandbox_choice(arguments)));
        let kind = if is_escape { AuditKind::Escape } else { AuditKind::Call };
        let subject = if tool.is_some() { name } else { UNKNOWN_TOOL };
        self.record_decision(kind, subject, arguments, context, decision, basis);
    }

    /// Records a decision. A refusal by a managed setting has the kind `managed`.
    pub(super) fn record_decision(
        &self,
        kind: AuditKind,
        subject: &str,
        arguments: &Map<String, Value>,
        context: &CallContext,
        decision: AuditVerdict,
        basis: AuditBasis,
    ) {
        let AuditBasis { source, rule } = basis;
        let is_managed = decision == AuditVerdict::Refuse && source == AuditSource::Managed;
        self.request.session.audit.record(AuditRecord {
            kind: if is_managed { AuditKind::Managed } else { kind },
            actor: self.mode.to_string(),
            subject: subject.to_owned(),
            call: context.id.as_deref().map(str::to_owned),
            decision,
            source,
            rule,
            arguments: Some(arguments.clone()),
        });
    }

    /// Records what a hook decided. The log has the place of the hook, not what it wrote.
    pub(super) fn record_hook(&self, hook: &ConfiguredHook, decision: AuditVerdict, context: &CallContext) {
        self.request.session.audit.record(AuditRecord {
            kind: AuditKind::Hook,
            actor: self.mode.to_string(),
            subject: hook.event.as_str().to_owned(),
            call: context.id.as_deref().map(str::to_owned),
            decision,
            source: AuditSource::Hook,
            rule: Some(hook.place.to_string()),
            arguments: None,
        });
    }
}
