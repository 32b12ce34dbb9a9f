//! The gate of a sandbox: everything that its processes may only do after consent.

use super::git::GitGate;
use super::proxy::{HostGate, PortGate};

/// Decides about hosts, credentials of git and ports. Provided by the broker.
pub trait SandboxGate: HostGate + GitGate + PortGate {}

impl<T: HostGate + GitGate + PortGate> SandboxGate for T {}
