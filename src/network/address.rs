//! Classifies IP addresses by where they lead.
//!
//! Invariant: an address is public only if it belongs to no network with another purpose. An IPv6 address that carries an
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
    Multicast,
    Unspecified,
    /// Addresses with another purpose than hosts; the text describes it.
    Reserved(&'static str),
}

/// `private`, `link-local`, …, as in "the address is private".
impl std::fmt::Display for AddressKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            AddressKind::Public => "public",
            AddressKind::Loopback => "this machine",
            AddressKind::LinkLocal => "link-local",
            AddressKind::Multicast => "multicast",
            AddressKind::Unspecified => "unspecified",
            AddressKind::Private(what) | AddressKind::Reserved(what) => what,
        })
    }
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
        [0, ..] => AddressKind::Unspecified,
        [10, ..] | [192, 168, ..] => AddressKind::Private("private"),
        [172, second, ..] if (16..32).contains(&second) => AddressKind::Private("private"),
        [100, second, ..] if (64..128).contains(&second) => AddressKind::Private("behind a carrier's NAT"),
        [127, ..] => AddressKind::Loopback,
        [169, 254, ..] => AddressKind::LinkLocal,
        [192, 0, 0, _] | [192, 88, 99, _] => AddressKind::Reserved("for protocols"),
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => AddressKind::Reserved("for documentation"),
        [198, 18 | 19, ..] => AddressKind::Reserved("for benchmarks"),
        [224..=239, ..] => AddressKind::Multicast,
        [240..=255, ..] => AddressKind::Reserved("reserved"),
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
        _ if address.is_unspecified() => AddressKind::Unspecified,
        _ if address.is_loopback() => AddressKind::Loopback,
        // Mapped, translated, compatible, NAT64.
        (0, 0) if (c, d, e) == (0, 0, 0) && (f == 0xffff || f == 0) => carried(),
        (0, 0) if (c, d, e, f) == (0, 0, 0xffff, 0) => carried(),
        (0x64, 0xff9b) if (c, d, e, f) == (0, 0, 0, 0) => carried(),
        (0xfc00..=0xfdff, _) => AddressKind::Private("private"),
        (0xfe80..=0xfebf, _) => AddressKind::LinkLocal,
        (0xfec0..=0xfeff, _) => AddressKind::Reserved("site-local"),
        (0xff00..=0xffff, _) => AddressKind::Multicast,
        // Teredo, ORCHID, benchmarks.
        (0x2001, 0..0x200) => AddressKind::Reserved("for protocols"),
        (0x2001, 0xdb8) | (0x3fff, 0..0x1000) => AddressKind::Reserved("for documentation"),
        (0x2002, _) => AddressKind::Reserved("6to4"),
        (0x2000..0x4000, _) => AddressKind::Public,
        _ => AddressKind::Reserved("reserved"),
    }
}

#[cfg(test)]
#[path = "address_tests.rs"]
pub(crate) mod tests;
