//! Hosts and addresses: their patterns and kinds, the known package registries, and the port to the network.

mod address;
mod dial;
mod host;
mod registries;

pub use address::{AddressKind, address_kind};
pub use dial::{Network, SystemNetwork};
pub use host::{HostPattern, HostPatternError, RemoteHost, UnstatedPort};
pub use registries::REGISTRIES;

#[cfg(test)]
pub(crate) use address::tests as address_strategies;
