//! Defines what the broker remembers about a session: consents, pinned tool specs and hosts that the user named.

use super::consent::SessionConsents;
use super::named_hosts::NamedHosts;
use super::pinned_specs::PinnedSpecs;

/// The state of one session. It ends with the session.
#[derive(Debug, Default)]
pub(super) struct BrokerState {
    pub(super) consents: SessionConsents,
    pub(super) specs: PinnedSpecs,
    pub(super) hosts: NamedHosts,
}
