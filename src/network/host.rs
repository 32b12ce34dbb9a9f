//! Host names and the patterns that match them.
//!
//! Invariant: hosts and patterns are normalised in the same way before they are compared (lower case, IDNA, no trailing
//! dot), so that no spelling of a host escapes a pattern.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use url::{Host as UrlHost, Url};

/// A normalised host that a call reaches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RemoteHost {
    name: String,
    port: u16,
}

impl RemoteHost {
    /// Parses the host of a URL as a tool would. `None` if the text is not a URL or the URL has no host.
    pub fn of_url(url: &str) -> Option<Self> {
        let url = Url::parse(url.trim()).ok()?;
        Self::of_name(canonical_name(&url.host()?), url.port_or_known_default()?)
    }

    /// Parses `HOST` or `HOST:PORT`. The port defaults to 443. `None` if the text is not a host.
    pub fn of_text(text: &str) -> Option<Self> {
        let (name, port) = parts(text).ok()?;
        Self::of_name(canonical_name(&name), port.unwrap_or(HTTPS))
    }

    /// Returns `None` for the name `.`, which is empty when it is normalised.
    fn of_name(name: String, port: u16) -> Option<Self> {
        (!name.is_empty()).then_some(Self { name, port })
    }

    /// Normalises a name or an IP address without port. `None` if it is neither, or the port is 0.
    pub fn new(name: &str, port: u16) -> Option<Self> {
        let bare_address = name.parse::<Ipv6Addr>().is_ok();
        let text = if bare_address { format!("[{name}]") } else { name.to_owned() };
        match parts(&text).ok()? {
            (host, None) if port != 0 => Self::of_name(canonical_name(&host), port),
            _ => None,
        }
    }

    /// Parses `HOST:PORT`. `None` if the text is not a host or the port is missing.
    pub fn of_authority(text: &str) -> Option<Self> {
        match parts(text).ok()? {
            (host, Some(port)) => Self::of_name(canonical_name(&host), port),
            (_, None) => None,
        }
    }

    /// Converts an address.
    pub fn of_address(address: SocketAddr) -> Self {
        let host = match address.ip() {
            IpAddr::V4(ip) => UrlHost::<&str>::Ipv4(ip),
            IpAddr::V6(ip) => UrlHost::Ipv6(ip),
        };
        Self { name: canonical_name(&host), port: address.port() }
    }

    /// Returns the normalised name. IPv6 addresses are in brackets.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address if the host is written as one.
    pub fn ip(&self) -> Option<IpAddr> {
        self.name.trim_start_matches('[').trim_end_matches(']').parse().ok()
    }

    /// Returns `example.com:443`, always with the port.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.name, self.port)
    }

    /// Returns true for `localhost` and the names below it.
    pub fn is_localhost(&self) -> bool {
        self.name == "localhost" || self.name.ends_with(".localhost")
    }

    /// Returns true for `localhost` and for an address of this machine alone, such as 127.0.0.1.
    pub fn is_loopback(&self) -> bool {
        self.is_localhost() || self.ip().is_some_and(|ip| ip.is_loopback())
    }

    /// Returns true if both are the same host; 80 and 443 count as one port.
    pub fn is_same(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }

    fn has_web_port(&self) -> bool {
        [HTTP, HTTPS].contains(&self.port)
    }
}

/// `example.com`, or `example.com:8080` if the port is neither 80 nor 443.
impl std::fmt::Display for RemoteHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.has_web_port() { f.write_str(&self.name) } else { write!(f, "{}:{}", self.name, self.port) }
    }
}

const HTTP: u16 = 80;
const HTTPS: u16 = 443;

/// The reason why a text is not a host pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostPatternError {
    #[error("`{0}` is no host; write `HOST`, `HOST:PORT` or `*.HOST`, without scheme and path")]
    NoHost(String),
    #[error("`{0}` has a `*` that is not the whole first part; write `*.HOST`")]
    Wildcard(String),
    #[error("`{0}` has no port between 1 and 65535 behind the `:`")]
    Port(String),
}

/// `HOST[:PORT]`, `*.HOST[:PORT]` for all subdomains without the host itself, or an IP address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPattern {
    name: String,
    subdomains: bool,
    port: Option<u16>,
}

/// The ports that a pattern without a port matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnstatedPort {
    /// 80 and 443; for patterns that allow.
    Web,
    /// Every port; for patterns that ask or deny.
    Any,
}

impl HostPattern {
    /// Parses a pattern. Fails if the text is no pattern.
    pub fn parse(text: &str) -> Result<Self, HostPatternError> {
        let (subdomains, rest) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        if rest.contains('*') {
            return Err(HostPatternError::Wildcard(text.to_owned()));
        }
        let (host, port) = parts(rest).map_err(|problem| match problem {
            HostPatternError::Port(_) => HostPatternError::Port(text.to_owned()),
            HostPatternError::NoHost(_) | HostPatternError::Wildcard(_) => HostPatternError::NoHost(text.to_owned()),
        })?;
        if subdomains && !matches!(host, UrlHost::Domain(_)) {
            return Err(HostPatternError::NoHost(text.to_owned()));
        }
        Ok(Self { name: canonical_name(&host), subdomains, port })
    }

    /// Returns true if the pattern names one host, not its subdomains.
    pub fn is_exact(&self) -> bool {
        !self.subdomains
    }

    /// Returns the address if the pattern is `IP:PORT`.
    pub fn address(&self) -> Option<SocketAddr> {
        let host = RemoteHost { name: self.name.clone(), port: self.port? };
        Some(SocketAddr::new(host.ip()?, host.port))
    }

    /// Matches a host. `unstated` says which ports a pattern without a port matches.
    pub fn matches(&self, host: &RemoteHost, unstated: UnstatedPort) -> bool {
        let port = match (self.port, unstated) {
            (Some(port), _) => port == host.port,
            (None, UnstatedPort::Web) => host.has_web_port(),
            (None, UnstatedPort::Any) => true,
        };
        let name = if self.subdomains { is_subdomain(&host.name, &self.name) } else { host.name == self.name };
        port && name
    }

    /// Returns the pattern that matches a host only if both patterns do. `None` if no host matches both. A pattern
    /// without a port counts as one for 80 and 443.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        let narrower = match (self.subdomains, other.subdomains) {
            (false, false) => Some(self).filter(|_| self.name == other.name),
            (false, true) => Some(self).filter(|_| is_subdomain(&self.name, &other.name)),
            (true, false) => Some(other).filter(|_| is_subdomain(&other.name, &self.name)),
            (true, true) if self.name == other.name || is_subdomain(&self.name, &other.name) => Some(self),
            (true, true) => Some(other).filter(|_| is_subdomain(&other.name, &self.name)),
        }?;
        let port = match (self.port, other.port) {
            (None, None) => None,
            (Some(port), None) | (None, Some(port)) => {
                Some(port).filter(|port| [HTTP, HTTPS].contains(port)).map(Some)?
            }
            (Some(one), Some(other)) => Some(one).filter(|_| one == other).map(Some)?,
        };
        Some(Self { name: narrower.name.clone(), subdomains: narrower.subdomains, port })
    }

    /// Returns true if the pattern is an IP address.
    pub fn is_address(&self) -> bool {
        self.name.starts_with('[') || self.name.parse::<std::net::Ipv4Addr>().is_ok()
    }

    pub fn has_port(&self) -> bool {
        self.port.is_some()
    }
}

/// The pattern in its normal form, which parses to the same pattern.
impl std::fmt::Display for HostPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let start = if self.subdomains { "*." } else { "" };
        write!(f, "{start}{}", self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

fn is_subdomain(name: &str, of: &str) -> bool {
    name.strip_suffix(of).is_some_and(|sub| sub.len() > 1 && sub.ends_with('.'))
}

/// Parses a host and an optional port from a text without scheme, path, user or wildcard.
fn parts(text: &str) -> Result<(UrlHost<String>, Option<u16>), HostPatternError> {
    let no_host = || HostPatternError::NoHost(text.to_owned());
    let stray = |c: char| "/\\?#@*%".contains(c) || c.is_whitespace() || c.is_control();
    if text.is_empty() || text.contains(stray) {
        return Err(no_host());
    }
    // A colon inside the brackets of an IPv6 address does not start a port.
    let (name, port) =
        match text.rsplit_once(':').filter(|(before, _)| !before.starts_with('[') || before.ends_with(']')) {
            Some((name, port)) => {
                let digits = port.bytes().all(|byte| byte.is_ascii_digit());
                let number = port.parse().ok().filter(|port| *port != 0 && digits);
                (name, Some(number.ok_or_else(|| HostPatternError::Port(text.to_owned()))?))
            }
            None => (text, None),
        };
    if name.contains(':') && !name.starts_with('[') {
        return Err(no_host());
    }
    let host = Url::parse(&format!("http://{name}/")).ok().and_then(|url| url.host().map(|host| host.to_owned()));
    match host.ok_or_else(no_host)? {
        // No such name exists. Without its last dots, `a.0..` would be a text that is no host.
        UrlHost::Domain(name) if name.contains("..") => Err(no_host()),
        host => Ok((host, port)),
    }
}

fn canonical_name<S: AsRef<str>>(host: &UrlHost<S>) -> String {
    match host {
        UrlHost::Domain(name) => name.as_ref().trim_end_matches('.').to_ascii_lowercase(),
        UrlHost::Ipv4(address) => address.to_string(),
        // `::ffff:10.0.0.1` becomes the IPv4 address it contains.
        UrlHost::Ipv6(address) => match address.to_ipv4_mapped() {
            Some(address) => address.to_string(),
            None => format!("[{address}]"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(url: &str) -> RemoteHost {
        RemoteHost::of_url(url).expect(url)
    }

    #[test]
    fn a_pattern_matches_its_host_in_every_spelling() {
        for (pattern, url, matches) in [
            ("example.com", "https://example.com/a", true),
            ("example.com", "http://EXAMPLE.com:80/", true),
            ("Example.COM.", "https://example.com./", true),
            ("example.com", "https://www.example.com/", false),
            ("example.com", "https://example.com.evil.net/", false),
            ("example.com", "https://example.com@evil.net/", false),
            ("*.example.com", "https://a.b.example.com/", true),
            ("*.example.com", "https://example.com/", false),
            ("*.example.com", "https://badexample.com/", false),
            ("bücher.de", "https://xn--bcher-kva.de/", true),
            ("xn--bcher-kva.de", "https://BÜCHER.de/", true),
            ("example.com:8080", "http://example.com:8080/", true),
            ("example.com:8080", "http://example.com/", false),
            ("example.com:443", "http://example.com/", false),
            ("*.example.com:8080", "http://a.example.com:8080/", true),
            ("127.0.0.1:9", "http://127.0.0.1:9/", true),
            ("127.0.0.1", "http://0x7f.1/", true),
            ("127.0.0.1", "http://[::ffff:127.0.0.1]/", true),
            ("[::1]:9", "http://[0:0::1]:9/", true),
            ("10.0.0.1", "http://10.0.0.10/", false),
        ] {
            for unstated in [UnstatedPort::Web, UnstatedPort::Any] {
                let matched = HostPattern::parse(pattern).expect(pattern).matches(&host(url), unstated);
                assert_eq!(matched, matches, "{pattern} {url} {unstated:?}");
            }
        }
    }

    #[test]
    fn without_a_port_a_pattern_means_web_ports_or_all() {
        let pattern = HostPattern::parse("example.com").expect("a pattern");
        assert!(!pattern.matches(&host("http://example.com:8080/"), UnstatedPort::Web));
        assert!(pattern.matches(&host("http://example.com:8080/"), UnstatedPort::Any));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in [
            "",
            "*",
            "*.",
            "https://example.com",
            "example.com/",
            "a b",
            "a*.com",
            "*.*.com",
            "www.*.com",
            "user@a.com",
            "a.com:0",
            "a.com:99999",
            "a.com:",
            "a.com:x",
            "*.127.0.0.1",
            "[::1",
            "a%41.com",
            ":80",
            "a.com:+80",
            "a.com:80:90",
            "a..com",
            "a.com..",
            "127.0.0.1..",
            "a。。com",
        ] {
            assert!(HostPattern::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_host_is_shown_without_the_ports_of_the_web() {
        assert_eq!(host("https://Example.com:443/x").to_string(), "example.com");
        assert_eq!(host("http://localhost:3000").to_string(), "localhost:3000");
        assert!(host("http://a.com/").is_same(&host("https://a.com/")));
        assert!(!host("http://a.com:8080/").is_same(&host("http://a.com/")));
    }
}
