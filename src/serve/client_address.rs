//! Finds the address of the client of a request, also behind a proxy.

use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderMap;

/// The header to whose end a proxy adds the address of its client.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// Where the address of a client comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressSource {
    /// The connection. Any client can send a header.
    Connection,
    /// The header of the proxy, through which all requests come.
    ProxyHeader,
}

impl AddressSource {
    /// Returns the address of the client of a request whose connection came from `peer`. Without a valid header of the
    /// proxy, it is `peer`.
    pub(super) fn address(self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        let forwarded = match self {
            Self::Connection => None,
            Self::ProxyHeader => last_forwarded(headers),
        };
        forwarded.unwrap_or(peer).to_canonical()
    }
}

/// Returns the address that the proxy has added. What is before it came from the client, which may lie.
fn last_forwarded(headers: &HeaderMap) -> Option<IpAddr> {
    let last = headers.get_all(FORWARDED_FOR).iter().next_back()?.to_str().ok()?;
    let text = last.rsplit(',').next()?.trim();
    // Some proxies add the port.
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    text.trim_start_matches('[').trim_end_matches(']').parse().ok().or_else(with_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(source: AddressSource, values: &[&str]) -> String {
        let headers: HeaderMap =
            values.iter().map(|value| (FORWARDED_FOR.parse().unwrap(), value.parse().unwrap())).collect();
        source.address(&headers, "10.0.0.1".parse().unwrap()).to_string()
    }

    #[test]
    fn the_last_address_is_the_one_that_the_proxy_saw() {
        for (values, expected) in [
            (&["203.0.113.7"][..], "203.0.113.7"),
            (&["1.2.3.4, 203.0.113.7"], "203.0.113.7"),
            (&["1.2.3.4", "5.6.7.8,203.0.113.7 "], "203.0.113.7"),
            (&["203.0.113.7:5120"], "203.0.113.7"),
            (&["2001:db8::1"], "2001:db8::1"),
            (&["[2001:db8::1]:5120"], "2001:db8::1"),
            (&["::ffff:203.0.113.7"], "203.0.113.7"),
            (&["203.0.113.7, unknown"], "10.0.0.1"),
            (&[""], "10.0.0.1"),
            (&[], "10.0.0.1"),
        ] {
            assert_eq!(address(AddressSource::ProxyHeader, values), expected, "{values:?}");
        }
    }

    #[test]
    fn without_a_proxy_the_header_counts_for_nothing() {
        assert_eq!(address(AddressSource::Connection, &["203.0.113.7"]), "10.0.0.1");
    }
}
