//! The proxy of a company, from the proxy variables of Skein's own environment.

use std::net::IpAddr;

use url::Url;

use super::head::ProxyCredentials;
use crate::network::RemoteHost;

/// Which hosts Skein reaches through which proxy. The default uses none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompanyProxy {
    /// For tunnels: https and all other protocols.
    tunnel: Option<ProxyAddress>,
    /// For requests of plain http.
    forward: Option<ProxyAddress>,
    direct: Vec<DirectHosts>,
}

/// The values of Skein's proxy variables, of either case.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProxyVariables<'a> {
    pub https_proxy: Option<&'a str>,
    pub http_proxy: Option<&'a str>,
    pub no_proxy: Option<&'a str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProxyAddress {
    pub(super) host: RemoteHost,
    pub(super) credentials: Option<ProxyCredentials>,
}

/// An entry of `NO_PROXY`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DirectHosts {
    All,
    /// A name with its subdomains, and a port if one is stated.
    Domain(String, Option<u16>),
    /// The addresses of a network: its first address and the length of its prefix.
    Network(IpAddr, u32),
}

/// A proxy variable that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{variable}` is not an http proxy; write `http://HOST:PORT`")]
pub struct CompanyProxyError {
    variable: &'static str,
}

impl CompanyProxy {
    /// Parses the variables. Fails if a proxy is not reached over http.
    pub fn new(variables: ProxyVariables<'_>) -> Result<Self, CompanyProxyError> {
        let entries = variables.no_proxy.unwrap_or_default().split([',', ' ']).filter(|entry| !entry.is_empty());
        Ok(Self {
            tunnel: parse_address("HTTPS_PROXY", variables.https_proxy)?,
            forward: parse_address("HTTP_PROXY", variables.http_proxy)?,
            direct: entries.filter_map(parse_direct).collect(),
        })
    }

    pub(super) fn for_tunnel(&self, host: &RemoteHost) -> Option<&ProxyAddress> {
        self.tunnel.as_ref().filter(|_| !self.is_direct(host))
    }

    pub(super) fn for_forward(&self, host: &RemoteHost) -> Option<&ProxyAddress> {
        self.forward.as_ref().filter(|_| !self.is_direct(host))
    }

    /// Returns true for hosts in `NO_PROXY` and for this machine.
    fn is_direct(&self, host: &RemoteHost) -> bool {
        let loopback = host.is_localhost() || host.ip().is_some_and(|ip| ip.is_loopback());
        loopback || self.direct.iter().any(|entry| entry.matches(host))
    }
}

impl DirectHosts {
    fn matches(&self, host: &RemoteHost) -> bool {
        match self {
            DirectHosts::All => true,
            DirectHosts::Domain(name, port) => {
                let sub =
                    host.name().strip_suffix(name.as_str()).is_some_and(|sub| sub.is_empty() || sub.ends_with('.'));
                sub && port.is_none_or(|port| port == host.port())
            }
            DirectHosts::Network(first, length) => match (first, host.ip()) {
                (IpAddr::V4(first), Some(IpAddr::V4(ip))) => {
                    let differing = first.to_bits() ^ ip.to_bits();
                    differing.checked_shr(32_u32.saturating_sub(*length)).unwrap_or(0) == 0
                }
                (IpAddr::V6(first), Some(IpAddr::V6(ip))) => {
                    let differing = first.to_bits() ^ ip.to_bits();
                    differing.checked_shr(128_u32.saturating_sub(*length)).unwrap_or(0) == 0
                }
                (IpAddr::V4(_) | IpAddr::V6(_), _) => false,
            },
        }
    }
}

fn parse_address(variable: &'static str, value: Option<&str>) -> Result<Option<ProxyAddress>, CompanyProxyError> {
    let Some(text) = value.map(str::trim).filter(|text| !text.is_empty()) else { return Ok(None) };
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url = Url::parse(&with_scheme).ok().filter(|url| url.scheme() == "http");
    let url = url.ok_or(CompanyProxyError { variable })?;
    let host = RemoteHost::of_url(url.as_str()).ok_or(CompanyProxyError { variable })?;
    let credentials = (!url.username().is_empty()).then(|| ProxyCredentials {
        user: decode(url.username()),
        password: decode(url.password().unwrap_or_default()),
    });
    Ok(Some(ProxyAddress { host, credentials }))
}

/// Decodes `%41`. Other text stays.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = (*first == b'%').then(|| tail.get(..2)).flatten().and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parses an entry of `NO_PROXY`. `None` if it is malformed: other tools ignore such entries, too.
fn parse_direct(entry: &str) -> Option<DirectHosts> {
    if entry == "*" {
        return Some(DirectHosts::All);
    }
    if let Some((ip, length)) = entry.split_once('/') {
        return Some(DirectHosts::Network(ip.trim_matches(['[', ']']).parse().ok()?, length.parse().ok()?));
    }
    if let Ok(ip) = entry.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Some(DirectHosts::Network(ip, if ip.is_ipv4() { 32 } else { 128 }));
    }
    let name = entry.trim_start_matches("*.").trim_start_matches('.');
    match name.rsplit_once(':') {
        Some(_) => {
            RemoteHost::of_authority(name).map(|host| DirectHosts::Domain(host.name().to_owned(), Some(host.port())))
        }
        None => RemoteHost::of_text(name).map(|host| DirectHosts::Domain(host.name().to_owned(), None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(authority: &str) -> RemoteHost {
        RemoteHost::of_authority(authority).expect(authority)
    }

    #[test]
    fn no_proxy_lists_hosts_that_are_reached_directly() {
        let proxy = CompanyProxy::new(ProxyVariables {
            https_proxy: Some("proxy.corp:3128"),
            http_proxy: None,
            no_proxy: Some(".corp, intra.test:8443,10.0.0.0/8 [fd00::]/16,192.168.1.1,bad/x"),
        })
        .unwrap();
        for (name, direct) in [
            ("git.corp:443", true),
            ("corp:443", true),
            ("notcorp:443", false),
            ("intra.test:8443", true),
            ("intra.test:443", false),
            ("10.1.2.3:443", true),
            ("11.1.2.3:443", false),
            ("192.168.1.1:1", true),
            ("192.168.1.2:1", false),
            ("localhost:1", true),
            ("127.0.0.1:1", true),
            ("example.com:443", false),
        ] {
            assert_eq!(proxy.for_tunnel(&host(name)).is_none(), direct, "{name}");
        }
        assert_eq!(proxy.for_forward(&host("example.com:80")), None);
    }

    #[test]
    fn addresses_may_contain_credentials() {
        let variables =
            ProxyVariables { http_proxy: Some("http://us%40er:p%3Aw@proxy.corp:8080/"), ..Default::default() };
        let proxy = CompanyProxy::new(variables).unwrap();
        let address = proxy.for_forward(&host("example.com:80")).unwrap();
        assert_eq!(address.host.authority(), "proxy.corp:8080");
        assert_eq!(address.credentials, Some(ProxyCredentials { user: "us@er".into(), password: "p:w".into() }));
        for wrong in ["socks5h://proxy.corp:1080", "https://proxy.corp", "http://", "::"] {
            assert!(
                CompanyProxy::new(ProxyVariables { https_proxy: Some(wrong), ..Default::default() }).is_err(),
                "{wrong}"
            );
        }
    }
}
