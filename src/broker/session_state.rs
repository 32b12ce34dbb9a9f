//! Defines what the broker remembers about a session: consents, pinned tool specs, hosts that the user named, who
//! decides about hosts, and who binds required services.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::RequiredBinder;
use super::consent::SessionConsents;
use super::named_hosts::NamedHosts;
use super::pinned_specs::PinnedSpecs;
use crate::sandbox::proxy::{HostGate, HostRecord};
use crate::tool::AuditSource;

/// The gate of a binding, which also decides for the programs of its session.
pub(super) trait BindingGate: HostGate {
    /// Returns what decided about a host that needed consent, and the rule or level that led to the question.
    fn basis(&self, record: &HostRecord) -> (AuditSource, Option<String>);
}

/// The state of one session. It ends with the session.
#[derive(Default)]
pub(super) struct BrokerState {
    pub(super) consents: SessionConsents,
    pub(super) specs: PinnedSpecs,
    pub(super) hosts: NamedHosts,
    /// The gates of the bindings, the latest last. Bindings hold them.
    gates: Mutex<Vec<Weak<dyn BindingGate>>>,
    /// The binders of the bindings, the latest last. Bindings hold them.
    binders: Mutex<Vec<Weak<dyn RequiredBinder>>>,
}

impl BrokerState {
    /// Adds the gate of a new binding. When the binding ends, the gate before counts again, as after a turn of another
    /// token.
    pub(super) fn add_gate(&self, gate: Weak<dyn BindingGate>) {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|gate| gate.strong_count() > 0);
        gates.push(gate);
    }

    /// Returns the gate of the latest binding. `None` if there is no binding.
    pub(super) fn current_gate(&self) -> Option<Arc<dyn BindingGate>> {
        let gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.iter().rev().find_map(Weak::upgrade)
    }

    /// Adds the binder of a new binding. An attempt to bind that fails drops its binder, and the one before counts
    /// again.
    pub(super) fn add_binder(&self, binder: Weak<dyn RequiredBinder>) {
        let mut binders = self.binders.lock().unwrap_or_else(PoisonError::into_inner);
        binders.retain(|binder| binder.strong_count() > 0);
        binders.push(binder);
    }

    /// Returns the binder of the latest binding. `None` if there is no binding.
    pub(super) fn current_binder(&self) -> Option<Arc<dyn RequiredBinder>> {
        let binders = self.binders.lock().unwrap_or_else(PoisonError::into_inner);
        binders.iter().rev().find_map(Weak::upgrade)
    }
}
