//! The network origins that an app may reach: none, or those that its metadata names.
//!
//! Invariant: a `NetworkOrigin` is a scheme, a host and an optional port, without characters that have a meaning in
//! a content security policy.

use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// Maximum number of origins per app; an app that needs more is not a small app.
pub(super) const MAX_ORIGINS: usize = 8;

/// An origin such as `https://api.example.com`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct NetworkOrigin(String);

impl NetworkOrigin {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether `address` belongs to this origin.
    fn holds(&self, address: &Url) -> bool {
        of(address) == self.0
    }
}

impl From<NetworkOrigin> for String {
    fn from(origin: NetworkOrigin) -> Self {
        origin.0
    }
}

/// A text that is not an origin.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no origin for `network`: {problem}")]
pub(super) struct OriginError {
    text: String,
    #[source]
    problem: OriginProblem,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum OriginProblem {
    #[error("{0}; write it like `https://api.example.com`")]
    Syntax(#[from] url::ParseError),
    #[error("it names no host")]
    NoHost,
    #[error("only `https` and `wss` are allowed, and `http` and `ws` to this machine")]
    Scheme,
    #[error("name one host, without wildcards")]
    Wildcard,
    #[error("name the origin alone: `{origin}`")]
    MoreThanOrigin { origin: String },
}

impl TryFrom<String> for NetworkOrigin {
    type Error = OriginError;

    fn try_from(text: String) -> Result<Self, OriginError> {
        parse(&text).map(Self).map_err(|problem| OriginError { text, problem })
    }
}

fn parse(text: &str) -> Result<String, OriginProblem> {
    let url = Url::parse(text)?;
    let local = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => return Err(OriginProblem::NoHost),
    };
    let secure = matches!(url.scheme(), "https" | "wss");
    if !(secure || local && matches!(url.scheme(), "http" | "ws")) {
        return Err(OriginProblem::Scheme);
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
    if !url.host_str().is_some_and(|host| host.chars().all(plain)) {
        return Err(OriginProblem::Wildcard);
    }
    let origin = of(&url);
    if text.trim_end_matches('/') != origin {
        return Err(OriginProblem::MoreThanOrigin { origin });
    }
    Ok(origin)
}

/// Formats the origin of a URL for a content security policy.
fn of(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme(), url.host_str().unwrap_or_default())
}

/// The target of an address in a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LinkTarget {
    /// The page itself, embedded data or an empty address.
    Within,
    /// An origin that the app may reach.
    Allowed,
    /// Another file, which an app does not have.
    Beside,
    /// Another origin or scheme.
    Remote(String),
}

pub(super) fn address(text: &str, network: &[NetworkOrigin]) -> LinkTarget {
    // Browsers remove these characters before they parse the address.
    let text: String = text.trim().chars().filter(|c| !matches!(c, '\t' | '\n' | '\r')).collect();
    if text.is_empty() || text.starts_with('#') {
        return LinkTarget::Within;
    }
    let relative = if text.starts_with("//") || text.starts_with("\\\\") { format!("https:{text}") } else { text };
    match Url::parse(&relative) {
        Ok(url) if matches!(url.scheme(), "data" | "blob" | "javascript" | "about") => LinkTarget::Within,
        Ok(url) if network.iter().any(|origin| origin.holds(&url)) => LinkTarget::Allowed,
        Ok(url) if url.has_host() => LinkTarget::Remote(of(&url)),
        Ok(url) => LinkTarget::Remote(format!("{}:", url.scheme())),
        Err(_) => LinkTarget::Beside,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Result<NetworkOrigin, OriginError> {
        NetworkOrigin::try_from(text.to_owned())
    }

    #[test]
    fn an_origin_is_a_scheme_and_a_host_and_nothing_that_means_more() {
        for fine in
            ["https://api.example.com", "wss://live.example.com:8443", "http://localhost:3000", "http://127.0.0.1"]
        {
            assert_eq!(origin(fine).map(String::from), Ok(fine.to_owned()));
        }
        assert_eq!(origin("https://a.example/").map(String::from), Ok("https://a.example".to_owned()));
        for (wrong, why) in [
            ("api.example.com", "write it like"),
            ("*", "write it like"),
            ("https://*.example.com", "wildcards"),
            ("http://example.com", "only `https`"),
            ("https://example.com/v1?key=1", "name the origin alone: `https://example.com`"),
            ("https://user@example.com", "name the origin alone"),
            ("https://example.com; script-src *", "no origin"),
            ("data:text/plain,x", "names no host"),
        ] {
            let said = origin(wrong).unwrap_err().to_string();
            assert!(said.contains(why), "{wrong}: {said}");
        }
    }

    #[test]
    fn address_is_in_the_page_at_an_allowed_origin_or_refused() {
        let network = [origin("https://api.example.com").unwrap()];
        for within in ["", " #top", "data:image/png;base64,AA==", "blob:null/1", "javascript:void 0"] {
            assert_eq!(address(within, &network), LinkTarget::Within, "{within}");
        }
        assert_eq!(address("https://api.example.com/v1", &network), LinkTarget::Allowed);
        for remote in
            ["https://api.example.com.evil.net/", "//evil.net/x", "https://api.example.com:444/", "ht\ntps://evil.net"]
        {
            assert!(matches!(address(remote, &network), LinkTarget::Remote(_)), "{remote}");
        }
        for beside in ["style.css", "/submit", "../x.js", "?q=1"] {
            assert_eq!(address(beside, &network), LinkTarget::Beside, "{beside}");
        }
    }
}
