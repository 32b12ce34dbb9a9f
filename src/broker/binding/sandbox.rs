//! Gives calls the sandbox of their mode.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::super::named_hosts::hosts_in;
use super::Binding;
use crate::network::remote_hosts_in_command;
use crate::sandbox::SandboxProfile;
use crate::sandbox::proxy::HostGate;
use crate::tool::CallSandbox;

/// The sandbox of a binding.
pub(super) struct BoundSandbox {
    profile: Arc<SandboxProfile>,
    gate: Arc<dyn HostGate>,
}

impl Binding {
    /// Returns the sandbox of this mode, with the limits of all parents. `None` if the mode has no profile or the profile
    /// is not applied.
    pub(super) fn bind_sandbox(&self) -> Option<BoundSandbox> {
        let profile = self.sandbox_profile().filter(SandboxProfile::is_applied)?;
        Some(BoundSandbox { profile: Arc::new(profile), gate: Arc::clone(&self.gate) as Arc<dyn HostGate> })
    }

    /// Returns the effective profile of the commands of this mode, never wider than that of a parent.
    fn sandbox_profile(&self) -> Option<SandboxProfile> {
        let own = self.plan.mode_sandbox(&self.mode)?.clone();
        let parent = self.policy.limits.parent.as_ref().and_then(|parent| parent.sandbox_profile());
        Some(match parent {
            Some(parent) => own.tighten(&parent),
            None => own,
        })
    }

    /// Returns the sandbox for one call. `consented`: the user agreed to exactly this call, and so to the hosts in its
    /// command line.
    pub(super) fn call_sandbox(&self, arguments: &Map<String, Value>, consented: bool) -> Option<CallSandbox> {
        let BoundSandbox { profile, gate } = self.sandbox.as_ref()?;
        let line = arguments.get("command").and_then(Value::as_str).filter(|_| consented).unwrap_or_default();
        let consented_hosts = hosts_in(line).chain(remote_hosts_in_command(line)).collect();
        Some(CallSandbox { profile: Arc::clone(profile), gate: Arc::clone(gate), consented_hosts })
    }
}
