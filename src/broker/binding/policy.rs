//! Holds what decides about the calls of a binding, and explains the decisions.

use std::sync::{Arc, Mutex, PoisonError};

use super::super::ParentLimits;
use super::super::gate::{self, DecisionReason, GateDecision, Judge};
use super::super::session_state::BrokerState;
use crate::manifest::{ApprovalLevel, ConfiguredHook, ManagedSetting};
use crate::permissions::SourcedRule;
use crate::services::Pool;
use crate::tool::SessionStates;

/// Decides about calls that are in scope.
pub(in crate::broker) struct CallPolicy {
    /// Can become stricter while calls run, never looser.
    pub(in crate::broker) approval: Mutex<ApprovalLevel>,
    pub(in crate::broker) rules: Vec<SourcedRule>,
    /// Consulted at the level `smart`.
    pub(in crate::broker) judge: Option<Arc<dyn Judge>>,
    pub(in crate::broker) limits: ParentLimits,
    /// What the broker remembers about each session.
    pub(in crate::broker) states: Arc<SessionStates<BrokerState>>,
    /// The loosest level of managed settings.
    pub(in crate::broker) managed_approval: Option<(ApprovalLevel, ManagedSetting)>,
    /// The managed setting that forbids commands without a sandbox.
    pub(in crate::broker) managed_sandbox: Option<ManagedSetting>,
    pub(in crate::broker) hooks: Vec<ConfiguredHook>,
    /// Runs hooks, and knows what this machine enforces.
    pub(in crate::broker) pool: Pool,
}

impl CallPolicy {
    /// Returns the approval level. Never looser than the parent's current level.
    pub(in crate::broker) fn approval(&self) -> ApprovalLevel {
        let own = *self.approval.lock().unwrap_or_else(PoisonError::into_inner);
        self.limits.parent.as_ref().map_or(own, |parent| own.stricter(parent.approval()))
    }

    /// Returns the reason as text. Names the managed setting if it sets the level that decides.
    pub(in crate::broker) fn explain(&self, because: &DecisionReason) -> String {
        format!("{because}{}", self.floor_note(because))
    }

    /// Returns the reason for a refusal when there is no user to ask.
    pub(in crate::broker) fn explain_no_asker(&self, because: &DecisionReason) -> String {
        format!("{}{}", gate::no_asker_reason(because), self.floor_note(because))
    }

    /// Turns the decision on a command without a sandbox into a refusal, if a managed setting forbids such commands.
    pub(in crate::broker) fn refuse_unsandboxed(&self, verdict: GateDecision) -> GateDecision {
        match (&self.managed_sandbox, verdict) {
            (_, refused @ GateDecision::Refuse(_)) => refused,
            (Some(setting), _) => GateDecision::Refuse(DecisionReason::ManagedSandbox(setting.clone())),
            (None, verdict) => verdict,
        }
    }

    fn floor_note(&self, because: &DecisionReason) -> String {
        match (because.level(), &self.managed_approval) {
            (Some(level), Some((loosest, setting))) if level == *loosest => {
                format!("; {setting} allows no looser level")
            }
            _ => String::new(),
        }
    }
}
