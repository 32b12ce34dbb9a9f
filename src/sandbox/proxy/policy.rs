//! The network part of a sandbox profile, compiled for the proxy: which hosts it lists, and which addresses they lift.

use std::net::{IpAddr, SocketAddr};

use crate::network::{AddressKind, HostPattern, HostPatternError, REGISTRIES, RemoteHost, UnstatedPort, address_kind};
use crate::sandbox::{NetworkAccess, OtherHosts};

/// The entry that stands for all package registries.
const REGISTRIES_ENTRY: &str = "registries";
const HTTPS: u16 = 443;

/// The compiled lists of a [`NetworkAccess`].
#[derive(Debug, Clone)]
pub struct HostPolicy {
    allow: HostList,
    deny: HostList,
    otherwise: OtherHosts,
}

/// The answer of the profile alone, before rules and consent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProfileDecision {
    /// The host is in `deny`.
    Denied,
    /// The host is in `allow`, or all hosts are allowed.
    Allowed(AddressReach),
    /// The host is in neither list, and the user decides.
    Ask,
    /// The host is in neither list, and others are off.
    Unlisted,
}

/// The addresses that a grant covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressReach {
    /// Public addresses: the host matches a pattern for many hosts.
    Public,
    /// Also private networks: the host is listed by its exact name, or the user consented to it.
    Private,
}

impl HostPolicy {
    /// Compiles the lists. Fails if an entry is neither a host pattern nor `registries`.
    pub fn new(access: &NetworkAccess) -> Result<Self, HostPatternError> {
        Ok(Self {
            allow: HostList::new(&access.allow)?,
            deny: HostList::new(&access.deny)?,
            otherwise: access.otherwise,
        })
    }

    pub(super) fn decide(&self, host: &RemoteHost) -> ProfileDecision {
        if self.deny.find(host, UnstatedPort::Any).is_some() {
            return ProfileDecision::Denied;
        }
        match (self.allow.find(host, UnstatedPort::Web), self.otherwise) {
            (Some(reach), _) => ProfileDecision::Allowed(reach),
            (None, OtherHosts::On) => ProfileDecision::Allowed(AddressReach::Public),
            (None, OtherHosts::Ask) => ProfileDecision::Ask,
            (None, OtherHosts::Off) => ProfileDecision::Unlisted,
        }
    }

    /// Returns the addresses in `allow`, each of which gets a relay inside the sandbox.
    pub fn relays(&self) -> Vec<SocketAddr> {
        let listed = self.allow.patterns.iter().filter_map(HostPattern::address);
        listed
            .filter(|address| self.deny.find(&RemoteHost::of_address(*address), UnstatedPort::Any).is_none())
            .collect()
    }

    /// Returns true if `address` is in `allow` as `IP:PORT`.
    pub(super) fn lists_address(&self, address: SocketAddr) -> bool {
        let plain = SocketAddr::new(address.ip().to_canonical(), address.port());
        self.relays().contains(&plain)
    }

    /// Fails with the kind of the address unless a grant with this reach covers it.
    pub(super) fn check_address(&self, ip: IpAddr, port: u16, reach: AddressReach) -> Result<(), AddressKind> {
        let kind = address_kind(ip);
        let allowed = match kind {
            AddressKind::Public => true,
            AddressKind::Loopback => self.lists_address(SocketAddr::new(ip, port)),
            AddressKind::Private(_) | AddressKind::Reserved(_) => reach == AddressReach::Private,
            AddressKind::LinkLocal | AddressKind::Multicast | AddressKind::Unspecified => false,
        };
        if allowed { Ok(()) } else { Err(kind) }
    }
}

#[derive(Debug, Clone)]
struct HostList {
    patterns: Vec<HostPattern>,
    registries: bool,
}

impl HostList {
    fn new(entries: &[String]) -> Result<Self, HostPatternError> {
        let patterns = entries.iter().filter(|entry| *entry != REGISTRIES_ENTRY).map(|entry| HostPattern::parse(entry));
        Ok(Self {
            patterns: patterns.collect::<Result<_, _>>()?,
            registries: entries.iter().any(|entry| entry == REGISTRIES_ENTRY),
        })
    }

    /// Returns the widest reach of the entries that match. `None` if no entry matches.
    fn find(&self, host: &RemoteHost, unstated: UnstatedPort) -> Option<AddressReach> {
        let matching = || self.patterns.iter().filter(|pattern| pattern.matches(host, unstated));
        let port = unstated == UnstatedPort::Any || host.port() == HTTPS;
        let registry = self.registries && port && REGISTRIES.contains(&host.name());
        if matching().any(HostPattern::is_exact) {
            Some(AddressReach::Private)
        } else if registry || matching().next().is_some() {
            Some(AddressReach::Public)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow: &[&str], deny: &[&str], otherwise: OtherHosts) -> HostPolicy {
        let list = |entries: &[&str]| entries.iter().map(|entry| (*entry).to_owned()).collect();
        HostPolicy::new(&NetworkAccess { allow: list(allow), deny: list(deny), otherwise }).unwrap()
    }

    fn decide(policy: &HostPolicy, authority: &str) -> ProfileDecision {
        policy.decide(&RemoteHost::of_authority(authority).expect(authority))
    }

    #[test]
    fn deny_beats_allow_and_otherwise_covers_the_rest() {
        let policy = policy(&["*.example.com", "a.test:8080"], &["bad.example.com"], OtherHosts::Ask);
        assert_eq!(decide(&policy, "www.example.com:443"), ProfileDecision::Allowed(AddressReach::Public));
        assert_eq!(decide(&policy, "www.example.com:22"), ProfileDecision::Ask);
        assert_eq!(decide(&policy, "bad.example.com:443"), ProfileDecision::Denied);
        assert_eq!(decide(&policy, "bad.example.com:22"), ProfileDecision::Denied);
        assert_eq!(decide(&policy, "a.test:8080"), ProfileDecision::Allowed(AddressReach::Private));
        assert_eq!(decide(&policy, "a.test:443"), ProfileDecision::Ask);
    }

    #[test]
    fn registries_stand_for_the_known_hosts_over_https() {
        let listed = policy(&["registries"], &[], OtherHosts::Off);
        assert_eq!(decide(&listed, "static.crates.io:443"), ProfileDecision::Allowed(AddressReach::Public));
        assert_eq!(decide(&listed, "static.crates.io:80"), ProfileDecision::Unlisted);
        assert_eq!(decide(&listed, "evil.crates.io:443"), ProfileDecision::Unlisted);
        let denied = policy(&[], &["registries"], OtherHosts::On);
        assert_eq!(decide(&denied, "pypi.org:80"), ProfileDecision::Denied);
        assert_eq!(decide(&denied, "example.com:9"), ProfileDecision::Allowed(AddressReach::Public));
    }

    #[test]
    fn address_classes_follow_the_reach() {
        let policy = policy(&["127.0.0.1:5432", "169.254.169.254:80"], &[], OtherHosts::On);
        let check = |ip: &str, port, reach| policy.check_address(ip.parse().unwrap(), port, reach).is_ok();
        for (ip, port, public, private) in [
            ("93.184.216.34", 443, true, true),
            ("10.0.0.1", 443, false, true),
            ("fd00::1", 443, false, true),
            ("198.18.0.1", 443, false, true),
            ("127.0.0.1", 5432, true, true),
            ("::ffff:127.0.0.1", 5432, true, true),
            ("127.0.0.1", 5433, false, false),
            ("127.0.0.2", 5432, false, false),
            ("::1", 5432, false, false),
            ("169.254.169.254", 80, false, false),
            ("::ffff:169.254.169.254", 80, false, false),
            ("fe80::1", 80, false, false),
            ("224.0.0.1", 80, false, false),
            ("0.0.0.0", 80, false, false),
            ("::", 80, false, false),
        ] {
            assert_eq!(check(ip, port, AddressReach::Public), public, "{ip}:{port}");
            assert_eq!(check(ip, port, AddressReach::Private), private, "{ip}:{port}");
        }
    }

    #[test]
    fn relays_are_the_listed_addresses() {
        let policy = policy(
            &["127.0.0.1:5432", "[::1]:9", "10.0.0.1", "a.test:1", "10.0.0.2:1"],
            &["10.0.0.2"],
            OtherHosts::Off,
        );
        let expected: Vec<SocketAddr> = vec!["127.0.0.1:5432".parse().unwrap(), "[::1]:9".parse().unwrap()];
        assert_eq!(policy.relays(), expected);
    }
}
