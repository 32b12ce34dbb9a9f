//! Decides which `Host` and `Origin` headers belong to this server. A web page that a browser loads from elsewhere
//! reaches a server on loopback or in a private network; these two headers tell it apart.

use std::net::{IpAddr, SocketAddr};

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Request, header};
use url::Url;

/// The address under which clients reach the server through a proxy or a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl {
    host: String,
    origin: String,
}

impl PublicUrl {
    /// Returns whether clients reach the server with TLS.
    pub(super) fn is_https(&self) -> bool {
        self.origin.starts_with("https:")
    }
}

/// A text that is not the public address of a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a public address: {problem}")]
pub struct PublicUrlError {
    text: String,
    problem: &'static str,
}

impl std::str::FromStr for PublicUrl {
    type Err = PublicUrlError;

    /// Reads `https://host` or `http://host:port`, without a path.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |problem| PublicUrlError { text: text.to_owned(), problem };
        let url = Url::parse(text).map_err(|_| wrong("write it like https://skein.example.com"))?;
        if !["http", "https"].contains(&url.scheme()) {
            return Err(wrong("it must begin with https:// or http://"));
        }
        if url.path() != "/" || url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() {
            return Err(wrong("leave out the path, the query and the user"));
        }
        let host = url.host_str().ok_or_else(|| wrong("it has no host"))?.to_lowercase();
        Ok(Self { host, origin: url.origin().ascii_serialization() })
    }
}

/// The hosts and origins that the server accepts.
#[derive(Debug, Clone, Default)]
pub(super) struct HostFilter {
    pub(super) public: Option<PublicUrl>,
}

impl HostFilter {
    /// Returns whether the request names this server. `local` is the address on which its connection arrived.
    pub(super) fn admits<B>(&self, request: &Request<B>, local: SocketAddr) -> bool {
        let Some(host) = authority_of(request) else { return false };
        self.admits_host(&host, local) && self.admits_origin(request.headers(), &host)
    }

    /// Returns the address under which the client reaches the server, without a path.
    pub(super) fn base_url<B>(&self, request: &Request<B>, scheme: &str) -> String {
        match (&self.public, authority_of(request)) {
            (Some(public), _) => public.origin.clone(),
            (None, Some(host)) => format!("{scheme}://{host}"),
            // The checks admit no request without a host.
            (None, None) => String::new(),
        }
    }

    fn admits_host(&self, authority: &Authority, local: SocketAddr) -> bool {
        let host = host_name(authority);
        let local = local.ip().to_canonical();
        if let Ok(address) = host.parse::<IpAddr>()
            && address.to_canonical() == local
        {
            return true;
        }
        (host == "localhost" && local.is_loopback()) || self.public.as_ref().is_some_and(|public| public.host == host)
    }

    /// Only pages of this server itself may send requests from a browser. Other programs send no `Origin`.
    fn admits_origin(&self, headers: &HeaderMap, host: &Authority) -> bool {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let Some(origin) = origins.next() else { return true };
        let Ok(origin) = origin.to_str() else { return false };
        if origins.next().is_some() {
            return false;
        }
        let is_same = ["http://", "https://"].iter().any(|scheme| {
            origin.strip_prefix(scheme).is_some_and(|authority| authority.eq_ignore_ascii_case(host.as_str()))
        });
        is_same || self.public.as_ref().is_some_and(|public| public.origin.eq_ignore_ascii_case(origin))
    }
}

/// Returns the server that the request names: `Host`, or `:authority` of HTTP/2. `None` if it names none or several.
fn authority_of<B>(request: &Request<B>) -> Option<Authority> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = match hosts.next() {
        Some(host) => Some(host.to_str().ok()?.parse::<Authority>().ok()?),
        None => None,
    };
    if hosts.next().is_some() {
        return None;
    }
    let host = match (host, request.uri().authority()) {
        (Some(host), Some(target)) if host != *target => return None,
        (Some(host), _) => host,
        (None, target) => target?.clone(),
    };
    (!host.as_str().contains('@')).then_some(host)
}

fn host_name(authority: &Authority) -> String {
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    host.trim_end_matches('.').to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: Option<&str>, origin: Option<&str>) -> Request<()> {
        let mut request = Request::builder().uri("/agents");
        for (name, value) in [(header::HOST, host), (header::ORIGIN, origin)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        request.body(()).unwrap()
    }

    fn admits(public: Option<&str>, local: &str, host: Option<&str>, origin: Option<&str>) -> bool {
        let hosts = HostFilter { public: public.map(|text| text.parse().unwrap()) };
        hosts.admits(&request(host, origin), local.parse().unwrap())
    }

    #[test]
    fn the_host_is_the_address_localhost_or_the_public_name() {
        let loopback = "127.0.0.1:4780";
        for host in ["127.0.0.1:4780", "localhost:4780", "LOCALHOST", "localhost.", "127.0.0.1:9"] {
            assert!(admits(None, loopback, Some(host), None), "{host}");
        }
        for host in ["evil.example", "127.0.0.2", "192.168.1.7:4780", "localhost.evil.example", "a@localhost", "[::1]"]
        {
            assert!(!admits(None, loopback, Some(host), None), "{host}");
        }
        assert!(!admits(None, loopback, None, None), "a request without a host");
        assert!(admits(None, "[::1]:4780", Some("[::1]:4780"), None));
        assert!(admits(None, "[::ffff:10.0.0.1]:80", Some("10.0.0.1"), None));
        assert!(!admits(None, "10.0.0.1:80", Some("localhost"), None), "localhost is only loopback");
        let public = Some("https://Skein.example.com");
        assert!(admits(public, "10.0.0.1:80", Some("skein.example.com"), None));
        assert!(!admits(public, "10.0.0.1:80", Some("example.com"), None));
    }

    #[test]
    fn the_origin_is_missing_or_this_server() {
        let (loopback, host) = ("127.0.0.1:4780", Some("localhost:4780"));
        assert!(admits(None, loopback, host, Some("http://localhost:4780")));
        for origin in ["http://localhost:3000", "https://evil.example", "null", "", "file://", "http://127.0.0.1:4780"]
        {
            assert!(!admits(None, loopback, host, Some(origin)), "{origin}");
        }
        let public = Some("https://skein.example.com");
        assert!(admits(public, loopback, Some("127.0.0.1:4780"), Some("https://skein.example.com")));
        assert!(!admits(public, loopback, Some("127.0.0.1:4780"), Some("http://skein.example.com:81")));
    }

    #[test]
    fn addresses_have_the_public_name_or_the_host_of_the_request() {
        let named = request(Some("localhost:4780"), None);
        assert_eq!(HostFilter::default().base_url(&named, "https"), "https://localhost:4780");
        let hosts = HostFilter { public: "https://skein.example.com".parse().ok() };
        assert_eq!(hosts.base_url(&named, "http"), "https://skein.example.com");
    }

    #[test]
    fn two_hosts_are_none() {
        let mut two = request(Some("localhost"), None);
        two.headers_mut().append(header::HOST, "localhost".parse().unwrap());
        let hosts = HostFilter::default();
        assert!(!hosts.admits(&two, "127.0.0.1:1".parse().unwrap()));
        let mut other = request(Some("localhost"), None);
        *other.uri_mut() = "http://evil.example/agents".parse().unwrap();
        assert!(!hosts.admits(&other, "127.0.0.1:1".parse().unwrap()));
    }

    #[test]
    fn a_public_url_has_no_path() {
        for text in ["skein.example.com", "ftp://a", "https://a/path", "https://u@a", "https://a?b"] {
            assert!(text.parse::<PublicUrl>().is_err(), "{text}");
        }
        assert!("https://a:8443/".parse::<PublicUrl>().is_ok());
    }
}
