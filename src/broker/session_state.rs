//! Defines what the broker remembers about a session: consents, pinned tool specs, hosts that the user named, and who
//! decides about hosts.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::consent::SessionConsents;
use super::named_hosts::NamedHosts;
use super::pinned_specs::PinnedSpecs;
use crate::sandbox::proxy::HostGate;

/// The state of one session. It ends with the session.
#[derive(Default)]
pub(super) struct BrokerState {
    pub(super) consents: SessionConsents,
    pub(super) specs: PinnedSpecs,
    pub(super) hosts: NamedHosts,
    /// The gate of the latest binding. Bindings hold it.
    gate: Mutex<Option<Weak<dyn HostGate>>>,
}

impl BrokerState {
    pub(super) fn set_gate(&self, gate: Weak<dyn HostGate>) {
        *self.gate.lock().unwrap_or_else(PoisonError::into_inner) = Some(gate);
    }

    /// Returns the gate of the latest binding. `None` if there is no binding.
    pub(super) fn current_gate(&self) -> Option<Arc<dyn HostGate>> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.upgrade()
    }
}
