//! Parses the messages of a SOCKS5 client (RFC 1928, RFC 1929).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::head::ProxyCredentials;
use crate::network::RemoteHost;

pub(super) const VERSION: u8 = 5;
const AUTHENTICATION_VERSION: u8 = 1;
const CONNECT: u8 = 1;

/// A message, and how many bytes it has. `None`: more bytes are needed.
pub(super) type SocksMessage<T> = Result<Option<(T, usize)>, SocksError>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum SocksError {
    #[error("the SOCKS message is malformed")]
    Malformed,
    #[error("SOCKS supports only CONNECT here")]
    Command,
    #[error("the SOCKS target is no host with a port")]
    Target,
}

/// The authentication methods that a client offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Methods {
    pub(super) none: bool,
    pub(super) password: bool,
}

/// Answers of the proxy.
pub(super) const CHOOSE_NONE: [u8; 2] = [VERSION, 0];
pub(super) const CHOOSE_PASSWORD: [u8; 2] = [VERSION, 2];
pub(super) const NO_METHOD: [u8; 2] = [VERSION, 0xff];
pub(super) const AUTHENTICATED: [u8; 2] = [AUTHENTICATION_VERSION, 0];
pub(super) const NOT_AUTHENTICATED: [u8; 2] = [AUTHENTICATION_VERSION, 1];

/// The result of a SOCKS request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocksReply {
    Succeeded = 0,
    Failed = 1,
    NotAllowed = 2,
    Unreachable = 4,
    UnknownCommand = 7,
}

impl SocksReply {
    /// Encodes the reply with an empty address, which clients ignore.
    pub(super) fn encode(self) -> [u8; 10] {
        [VERSION, self as u8, 0, 1, 0, 0, 0, 0, 0, 0]
    }
}

pub(super) fn parse_methods(bytes: &[u8]) -> SocksMessage<Methods> {
    let [version, count, rest @ ..] = bytes else { return Ok(None) };
    if *version != VERSION || *count == 0 {
        return Err(SocksError::Malformed);
    }
    let count = usize::from(*count);
    let Some(methods) = rest.get(..count) else { return Ok(None) };
    Ok(Some((Methods { none: methods.contains(&0), password: methods.contains(&2) }, 2 + count)))
}

pub(super) fn parse_credentials(bytes: &[u8]) -> SocksMessage<ProxyCredentials> {
    let [version, length, rest @ ..] = bytes else { return Ok(None) };
    if *version != AUTHENTICATION_VERSION {
        return Err(SocksError::Malformed);
    }
    let Some((user, rest)) = rest.split_at_checked(usize::from(*length)) else { return Ok(None) };
    let [length, rest @ ..] = rest else { return Ok(None) };
    let Some(password) = rest.get(..usize::from(*length)) else { return Ok(None) };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| SocksError::Malformed);
    let credentials = ProxyCredentials { user: text(user)?, password: text(password)? };
    Ok(Some((credentials, 3 + user.len() + password.len())))
}

pub(super) fn parse_request(bytes: &[u8]) -> SocksMessage<RemoteHost> {
    let [version, command, 0, kind, rest @ ..] = bytes else {
        return if bytes.len() < 4 { Ok(None) } else { Err(SocksError::Malformed) };
    };
    if *version != VERSION {
        return Err(SocksError::Malformed);
    }
    if *command != CONNECT {
        return Err(SocksError::Command);
    }
    let (name, address_length) = match kind {
        1 => {
            let Some(octets) = rest.first_chunk::<4>() else { return Ok(None) };
            (IpAddr::V4(Ipv4Addr::from(*octets)).to_string(), 4)
        }
        4 => {
            let Some(octets) = rest.first_chunk::<16>() else { return Ok(None) };
            (IpAddr::V6(Ipv6Addr::from(*octets)).to_string(), 16)
        }
        3 => {
            let [length, rest @ ..] = rest else { return Ok(None) };
            let Some(name) = rest.get(..usize::from(*length)) else { return Ok(None) };
            (std::str::from_utf8(name).map_err(|_| SocksError::Target)?.to_owned(), 1 + name.len())
        }
        _ => return Err(SocksError::Malformed),
    };
    let Some([high, low, ..]) = rest.get(address_length..) else { return Ok(None) };
    let host = RemoteHost::new(&name, u16::from_be_bytes([*high, *low])).ok_or(SocksError::Target)?;
    Ok(Some((host, 4 + address_length + 2)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(kind: u8, address: &[u8], port: u16) -> Vec<u8> {
        [&[5, 1, 0, kind][..], address, &port.to_be_bytes()].concat()
    }

    fn domain(name: &str) -> Vec<u8> {
        [&[u8::try_from(name.len()).unwrap()][..], name.as_bytes()].concat()
    }

    #[test]
    fn targets_are_normalised() {
        let mapped = "::ffff:10.0.0.1".parse::<Ipv6Addr>().unwrap().octets();
        for (bytes, host) in [
            (request(3, &domain("Example.com."), 443), "example.com:443"),
            (request(3, &domain("127.1"), 443), "127.0.0.1:443"),
            (request(3, &domain("::1"), 443), "[::1]:443"),
            (request(1, &[10, 0, 0, 1], 22), "10.0.0.1:22"),
            (request(4, &mapped, 22), "10.0.0.1:22"),
            (request(4, &Ipv6Addr::LOCALHOST.octets(), 22), "[::1]:22"),
        ] {
            let (found, used) = parse_request(&[&bytes[..], b"rest"].concat()).unwrap().unwrap();
            assert_eq!((found.authority().as_str(), used), (host, bytes.len()));
            for cut in 0..bytes.len() {
                assert_eq!(parse_request(&bytes[..cut]), Ok(None), "{host} {cut}");
            }
        }
    }

    #[test]
    fn other_requests_are_refused() {
        for (bytes, error) in [
            (request(3, &domain("a b"), 443), SocksError::Target),
            (request(3, &domain("a.test:80"), 443), SocksError::Target),
            (request(3, &domain("a.test/x"), 443), SocksError::Target),
            (request(3, &domain(""), 443), SocksError::Target),
            (request(3, &domain("a.test"), 0), SocksError::Target),
            (request(3, &domain("*.test"), 1), SocksError::Target),
            (request(9, &domain("a.test"), 1), SocksError::Malformed),
            (vec![5, 2, 0, 1], SocksError::Command),
            (vec![5, 3, 0, 1], SocksError::Command),
            (vec![4, 1, 0, 1], SocksError::Malformed),
            (vec![5, 1, 1, 1], SocksError::Malformed),
        ] {
            assert_eq!(parse_request(&bytes), Err(error), "{bytes:?}");
        }
    }

    #[test]
    fn methods_and_credentials_are_read() {
        assert_eq!(parse_methods(&[5, 2, 0, 2, 9]), Ok(Some((Methods { none: true, password: true }, 4))));
        assert_eq!(parse_methods(&[5, 2, 0]), Ok(None));
        assert_eq!(parse_methods(&[4, 1]), Err(SocksError::Malformed));
        let credentials = ProxyCredentials { user: "c1".into(), password: "t".into() };
        assert_eq!(parse_credentials(b"\x01\x02c1\x01tx"), Ok(Some((credentials, 6))));
        assert_eq!(parse_credentials(b"\x01\x02c1\x01"), Ok(None));
        assert_eq!(parse_credentials(b"\x05\x00"), Err(SocksError::Malformed));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40), start in 0_usize..5) {
            let bytes = [&[5, 1, 0, 3][..start.min(4)], &bytes].concat();
            for (used, length) in [parse_request(&bytes).map(|found| found.map(|(_, used)| used)), parse_methods(&bytes).map(|found| found.map(|(_, used)| used))].into_iter().map(|found| (found.ok().flatten(), bytes.len())) {
                prop_assert!(used.is_none_or(|used| used <= length));
            }
            drop(parse_credentials(&bytes));
        }
    }
}
