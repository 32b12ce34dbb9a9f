//! Decides which addresses a fetch may reach: public ones, and the hosts that the manifest lists.
//!
//! Invariant: an address is refused unless it is known to be public. Host names decide nothing; only the address
//! that is connected to counts.

use std::net::IpAddr;

use url::{Host, Url};

use super::super::answer::ToolRefusal;
use crate::network::{AddressKind, address_kind};

/// A URL that passed the checks before name resolution. Its addresses are checked later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) host: Host<String>,
    pub(super) port: u16,
    pub(super) secure: bool,
    /// The host is in the manifest's `allow_hosts`.
    listed: bool,
}

/// An entry of `allow_hosts` that is not a host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` in `allow_hosts` is no host; write `host` or `host:port`, without scheme and path")]
pub struct AllowedHostError {
    text: String,
}

/// The hosts that the manifest allows in addition to public ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AllowedHosts {
    hosts: Vec<(Host<String>, Option<u16>)>,
}

impl AllowedHosts {
    /// Parses `host` or `host:port` entries, which match exactly. Without a port, an entry covers the default ports
    /// of http and https. Returns an error if an entry is not a host.
    pub(super) fn new(hosts: &[String]) -> Result<Self, AllowedHostError> {
        let hosts = hosts.iter().map(|text| entry(text).ok_or_else(|| AllowedHostError { text: text.clone() }));
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
            let kind = address_kind(*address);
            let reason = match kind {
                AddressKind::Public => continue,
                AddressKind::Loopback | AddressKind::Private(_) if self.listed => continue,
                AddressKind::LinkLocal if self.listed && literal => continue,
                AddressKind::Loopback | AddressKind::Private(_) | AddressKind::LinkLocal => {
                    format!("is {kind}; {UNLISTED}")
                }
                AddressKind::Multicast | AddressKind::Unspecified | AddressKind::Reserved(_) => {
                    format!("is {kind}, which is no host to read from")
                }
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
