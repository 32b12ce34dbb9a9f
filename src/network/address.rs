//! Classifies IP addresses by where they lead.
//!
//! Invariant: an address is public only if it lies in no network with another purpose. An IPv6 address that carries an
//! IPv4 address has the kind of that address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The kind of network that an address belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressKind {
    Public,
    /// This machine.
    Loopback,
    /// A private network; the text describes it.
    Private(&'static str),
    /// Link-local addresses, where clouds serve credentials.
    LinkLocal,
    /// Multicast, unspecified and reserved addresses, which are no hosts; the text describes them.
    Special(&'static str),
}

/// Returns the kind of an address.
pub fn address_kind(address: IpAddr) -> AddressKind {
    match address {
        IpAddr::V4(address) => kind_v4(address),
        IpAddr::V6(address) => kind_v6(address),
    }
}

fn kind_v4(address: Ipv4Addr) -> AddressKind {
    match address.octets() {
        [0, ..] => AddressKind::Special("unspecified"),
        [10, ..] | [192, 168, ..] => AddressKind::Private("private"),
        [172, second, ..] if (16..32).contains(&second) => AddressKind::Private("private"),
        [100, second, ..] if (64..128).contains(&second) => AddressKind::Private("behind a carrier's NAT"),
        [127, ..] => AddressKind::Loopback,
        [169, 254, ..] => AddressKind::LinkLocal,
        [192, 0, 0, _] | [192, 88, 99, _] => AddressKind::Special("for protocols"),
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => AddressKind::Special("for documentation"),
        [198, 18 | 19, ..] => AddressKind::Special("for benchmarks"),
        [224..=239, ..] => AddressKind::Special("multicast"),
        [240..=255, ..] => AddressKind::Special("reserved"),
        _ => AddressKind::Public,
    }
}

/// Classifies an IPv6 address. Only 2000::/3 is allocated. An address that embeds an IPv4 address is classified by
/// that address.
fn kind_v6(address: Ipv6Addr) -> AddressKind {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let carried = || {
        let ([g1, g2], [h1, h2]) = (g.to_be_bytes(), h.to_be_bytes());
        kind_v4(Ipv4Addr::new(g1, g2, h1, h2))
    };
    match (a, b) {
        _ if address.is_unspecified() => AddressKind::Special("unspecified"),
        _ if address.is_loopback() => AddressKind::Loopback,
        // Mapped, translated, compatible, NAT64.
        (0, 0) if (c, d, e) == (0, 0, 0) && (f == 0xffff || f == 0) => carried(),
        (0, 0) if (c, d, e, f) == (0, 0, 0xffff, 0) => carried(),
        (0x64, 0xff9b) if (c, d, e, f) == (0, 0, 0, 0) => carried(),
        (0xfc00..=0xfdff, _) => AddressKind::Private("private"),
        (0xfe80..=0xfebf, _) => AddressKind::LinkLocal,
        (0xfec0..=0xfeff, _) => AddressKind::Special("site-local"),
        (0xff00..=0xffff, _) => AddressKind::Special("multicast"),
        // Teredo, ORCHID, benchmarks.
        (0x2001, 0..0x200) => AddressKind::Special("for protocols"),
        (0x2001, 0xdb8) | (0x3fff, 0..0x1000) => AddressKind::Special("for documentation"),
        (0x2002, _) => AddressKind::Special("6to4"),
        (0x2000..0x4000, _) => AddressKind::Public,
        _ => AddressKind::Special("reserved"),
    }
}

#[cfg(test)]
#[path = "address_tests.rs"]
pub(crate) mod tests;
