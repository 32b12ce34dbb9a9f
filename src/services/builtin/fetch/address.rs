//! Decides which addresses a fetch may reach: public ones, and the hosts that the manifest lists.
//!
//! Invariant: an address is refused unless it is known to be public. Host names decide nothing; only the address
//! that is connected to counts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

use super::super::answer::ToolRefusal;

/// A URL that passed the checks before name resolution. Its addresses are checked later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) host: Host<String>,
    pub(super) port: u16,
    pub(super) secure: bool,
    /// The host is in the manifest's `allow_hosts`.
    listed: bool,
}

/// The hosts that the manifest allows in addition to public ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AllowedHosts {
    hosts: Vec<(Host<String>, Option<u16>)>,
}

impl AllowedHosts {
    /// Parses `host` or `host:port` entries, which match exactly. Without a port, an entry covers the default ports
    /// of http and https. Returns an error if an entry is not a host.
    pub(super) fn new(hosts: &[String]) -> Result<Self, String> {
        let hosts = hosts.iter().map(|text| entry(text).ok_or_else(|| host_error(text)));
        Ok(Self { hosts: hosts.collect::<Result<_, _>>()? })
    }

    /// Checks everything about a URL that can be checked before its name is resolved.
    pub(super) fn target(&self, url: &Url) -> Result<Target, ToolRefusal> {
        let refused = |reason: &str| ToolRefusal::new(format!("`{}` is refused: {reason}", display_url(url)));
        let secure = match url.scheme() {
            "http" => false,
            "https" => true,
            scheme => return Err(refused(&format!("only http and https are fetched, not `{scheme}:`"))),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused("it holds a user name or password; leave them out"));
        }
        let (Some(host), Some(port)) = (url.host().map(|host| host.to_owned()), url.port_or_known_default()) else {
            return Err(refused("it names no host"));
        };
        let default = if secure { 443 } else { 80 };
        let listed = |(known, only): &(Host<String>, Option<u16>)| *known == host && port == only.unwrap_or(default);
        let target = Target { listed: self.hosts.iter().any(listed), host, port, secure };
        match &target.host {
            Host::Domain(name) => {
                if name.ends_with('.') {
                    return Err(refused("its host ends with a dot; write it without"));
                }
                let local = name == "localhost" || name.ends_with(".localhost");
                if local && !target.listed {
                    return Err(refused(&format!("the host is this machine; {UNLISTED}")));
                }
            }
            Host::Ipv4(address) => target.check(url, &[IpAddr::V4(*address)])?,
            Host::Ipv6(address) => target.check(url, &[IpAddr::V6(*address)])?,
        }
        Ok(target)
    }
}

const UNLISTED: &str = "only a manifest of the service `fetch` can allow it, under `settings: {allow_hosts: [host:port]}`. \
                        Tell the user if it is needed";

impl Target {
    /// Fails unless every address may be connected to. One forbidden address fails them all: a name that resolves
    /// to public and internal addresses is probably an attack.
    pub(super) fn check(&self, url: &Url, addresses: &[IpAddr]) -> Result<(), ToolRefusal> {
        for address in addresses {
            let literal = !matches!(self.host, Host::Domain(_));
            let reason = match kind(*address) {
                AddressKind::Public => continue,
                AddressKind::Inner(_) if self.listed => continue,
                AddressKind::LinkLocal if self.listed && literal => continue,
                AddressKind::Inner(what) => format!("is {what}; {UNLISTED}"),
                AddressKind::LinkLocal => format!("is link-local; {UNLISTED}"),
                AddressKind::Never(what) => format!("is {what}, which is no host to read from"),
            };
            let subject = if literal { String::new() } else { ", to which it leads,".to_owned() };
            return Err(ToolRefusal::new(format!(
                "`{}` is refused: the address {address}{subject} {reason}",
                display_url(url)
            )));
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddressKind {
    Public,
    /// This machine and private networks; allowed for listed hosts.
    Inner(&'static str),
    /// Link-local addresses, where clouds serve credentials; allowed only if the address itself is listed.
    LinkLocal,
    Never(&'static str),
}

pub(super) fn kind(address: IpAddr) -> AddressKind {
    match address {
        IpAddr::V4(address) => kind_v4(address),
        IpAddr::V6(address) => kind_v6(address),
    }
}

fn kind_v4(address: Ipv4Addr) -> AddressKind {
    match address.octets() {
        [0, ..] => AddressKind::Never("unspecified"),
        [10, ..] | [192, 168, ..] => AddressKind::Inner("private"),
        [172, second, ..] if (16..32).contains(&second) => AddressKind::Inner("private"),
        [100, second, ..] if (64..128).contains(&second) => AddressKind::Inner("behind a carrier's NAT"),
        [127, ..] => AddressKind::Inner("this machine"),
        [169, 254, ..] => AddressKind::LinkLocal,
        [192, 0, 0, _] | [192, 88, 99, _] => AddressKind::Never("for protocols"),
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => AddressKind::Never("for documentation"),
        [198, 18 | 19, ..] => AddressKind::Never("for benchmarks"),
        [224..=239, ..] => AddressKind::Never("multicast"),
        [240..=255, ..] => AddressKind::Never("reserved"),
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
        _ if address.is_unspecified() => AddressKind::Never("unspecified"),
        _ if address.is_loopback() => AddressKind::Inner("this machine"),
        // Mapped, translated, compatible, NAT64.
        (0, 0) if (c, d, e) == (0, 0, 0) && (f == 0xffff || f == 0) => carried(),
        (0, 0) if (c, d, e, f) == (0, 0, 0xffff, 0) => carried(),
        (0x64, 0xff9b) if (c, d, e, f) == (0, 0, 0, 0) => carried(),
        (0xfc00..=0xfdff, _) => AddressKind::Inner("private"),
        (0xfe80..=0xfebf, _) => AddressKind::LinkLocal,
        (0xfec0..=0xfeff, _) => AddressKind::Never("site-local"),
        (0xff00..=0xffff, _) => AddressKind::Never("multicast"),
        // Teredo, ORCHID, benchmarks.
        (0x2001, 0..0x200) => AddressKind::Never("for protocols"),
        (0x2001, 0xdb8) | (0x3fff, 0..0x1000) => AddressKind::Never("for documentation"),
        (0x2002, _) => AddressKind::Never("6to4"),
        (0x2000..0x4000, _) => AddressKind::Public,
        _ => AddressKind::Never("reserved"),
    }
}

/// Formats a URL for messages, without credentials and with a bounded length.
pub(super) fn display_url(url: &Url) -> String {
    let mut url = url.clone();
    // Both setters fail only for a URL without a host, which has no credentials.
    if url.set_username("").is_err() || url.set_password(None).is_err() {
        return super::super::answer::truncate(url.as_str(), 200).to_owned();
    }
    let text = url.as_str();
    let head = super::super::answer::truncate(text, 200);
    if head.len() < text.len() { format!("{head}…") } else { text.to_owned() }
}

fn host_error(text: &str) -> String {
    format!("`{text}` in `allow_hosts` is no host; write `host` or `host:port`, without scheme and path")
}

fn entry(text: &str) -> Option<(Host<String>, Option<u16>)> {
    let plain =
        !text.is_empty() && !text.contains(['/', '\\', '?', '#', '@', '*', '%']) && !text.contains(char::is_whitespace);
    let url = Url::parse(&format!("http://{text}/")).ok().filter(|_| plain)?;
    let host = url.host()?.to_owned();
    if matches!(&host, Host::Domain(name) if name.ends_with('.')) {
        return None;
    }
    // The URL's port is not used, because it is `None` for the default port.
    let written = text.rsplit_once(':').filter(|(before, _)| !before.starts_with('[') || before.ends_with(']'));
    match written {
        Some((_, port)) => Some((host, Some(port.parse().ok().filter(|port| *port != 0)?))),
        None => Some((host, None)),
    }
}

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;
