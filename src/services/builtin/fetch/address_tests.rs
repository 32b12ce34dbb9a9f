//! For any address and any URL: what is reached is public, or listed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use proptest::prelude::*;
use serde_json::{Map, json};

use super::super::super::harness::{Harness, runtime};
use super::super::{FetchService, Network};
use super::{AddressKind, kind};

/// What may be reached, said once more in another way: by networks.
fn outside(address: IpAddr) -> bool {
    const INSIDE_V4: &str = "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 \
                             192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 \
                             224.0.0.0/4 240.0.0.0/4";
    const INSIDE_V6: &str = "2001::/23 2001:db8::/32 2002::/16 3fff::/20";
    let within = |networks: &str, bits: u128, width: u32, parse: &dyn Fn(&str) -> u128| {
        networks.split_whitespace().any(|network| {
            let (start, length) = network.split_once('/').unwrap();
            let shift = width - length.parse::<u32>().unwrap();
            bits >> shift == parse(start) >> shift
        })
    };
    let v4 = |text: &str| u128::from(text.parse::<Ipv4Addr>().unwrap().to_bits());
    let v6 = |text: &str| text.parse::<Ipv6Addr>().unwrap().to_bits();
    match address {
        IpAddr::V4(address) => !within(INSIDE_V4, u128::from(address.to_bits()), 32, &v4),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            let carried = within("::/96 ::ffff:0:0/96 ::ffff:0:0:0/96 64:ff9b::/96", bits, 128, &v6);
            if carried {
                return outside(IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(bits & 0xffff_ffff).unwrap())));
            }
            within("2000::/3", bits, 128, &v6) && !within(INSIDE_V6, bits, 128, &v6)
        }
    }
}

fn address() -> impl Strategy<Value = IpAddr> {
    let v4 = prop_oneof![
        any::<u32>(),
        any::<u16>().prop_map(|low| 0x7f00_0000 | u32::from(low)),
        any::<u16>().prop_map(|low| 0xa9fe_0000 | u32::from(low)),
        any::<u16>().prop_map(|low| 0xc0a8_0000 | u32::from(low)),
        any::<u16>().prop_map(|low| 0x5db8_0000 | u32::from(low)),
    ];
    let prefix = prop_oneof![
        Just(0_u128),
        Just(0xffff_u128 << 32),
        Just(0xffff_u128 << 48),
        Just(0x0064_ff9b_u128 << 96),
        Just(0x0064_ff9b_0001_u128 << 80),
        Just(0x2002_u128 << 112),
        Just(0x2001_u128 << 112),
        Just(0x2001_0db8_u128 << 96),
        Just(0x2606_u128 << 112),
        Just(0xfe80_u128 << 112),
        Just(0xfd00_u128 << 112),
        any::<u128>().prop_map(|bits| bits >> 64 << 64),
    ];
    let v6 = (prefix, v4.clone()).prop_map(|(prefix, v4)| Ipv6Addr::from_bits(prefix | u128::from(v4)));
    prop_oneof![v4.prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))), v6.prop_map(IpAddr::V6)]
}

/// An address as a URL may write it.
fn written(address: IpAddr, form: u8) -> String {
    match (address, form) {
        (IpAddr::V4(address), 0) => address.to_bits().to_string(),
        (IpAddr::V4(address), 1) => format!("0x{:x}", address.to_bits()),
        (IpAddr::V4(address), 2) => format!("0{:o}", address.to_bits()),
        (IpAddr::V4(address), 3) => {
            let [a, b, c, d] = address.octets();
            format!("0x{a:x}.0{b:o}.{}", u16::from_be_bytes([c, d]))
        }
        (IpAddr::V4(address), 4) => format!("[::ffff:{address}]"),
        (IpAddr::V4(address), _) => address.to_string(),
        (IpAddr::V6(address), _) => format!("[{address}]"),
    }
}

fn url() -> impl Strategy<Value = String> {
    let host = prop_oneof![
        (address(), 0_u8..6).prop_map(|(address, form)| written(address, form)),
        "[a-c]{1,3}\\.example\\.?",
        proptest::sample::select(vec![
            "localhost",
            "x.localhost",
            "127.0.0.1",
            "127.0.0.1:8080",
            "127.0.0.1:80800",
            "wiki.internal"
        ])
        .prop_map(str::to_owned),
        "\\PC{0,8}",
    ];
    let scheme =
        proptest::sample::select(vec!["http://", "https://", "http:", "HTTP:\\\\", "file://", "ftp://", "", "//"]);
    let user = proptest::sample::select(vec!["", "", "", "a@", "a:b@", "127.0.0.1#@"]);
    let port = proptest::sample::select(vec!["", "", ":80", ":8080", ":443"]);
    prop_oneof![
        8 => (scheme, user, host, port, "(/\\PC{0,5})?").prop_map(|(scheme, user, host, port, path)| format!("{scheme}{user}{host}{port}{path}")),
        1 => "\\PC{0,30}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_called_public_lies_in_no_network_that_is_not(address in address()) {
        prop_assert_eq!(kind(address) == AddressKind::Public, outside(address), "{}", address);
    }

    /// Whatever the URL, whatever its name resolves to: only the public and the listed are dialled.
    #[test]
    fn no_url_reaches_what_is_not_allowed(urls in proptest::collection::vec(url(), 1..4), answers in proptest::collection::vec(address(), 1..3)) {
        let dialled = Arc::new(Mutex::default());
        runtime().block_on(async {
            let anything = Anything { answers, dialled: Arc::clone(&dialled) };
            let settings = Map::from_iter([("allow_hosts".to_owned(), json!(["127.0.0.1:8080"]))]);
            let fetch = Harness::new(FetchService::with_network(&settings, Arc::new(anything)).unwrap());
            for url in &urls {
                fetch.call("fetch_url", json!({"url": url})).await;
            }
        });
        for address in dialled.lock().unwrap().iter() {
            let listed = *address == "127.0.0.1:8080".parse().unwrap();
            prop_assert!(listed || outside(address.ip()), "{address} was dialled for {urls:?}");
        }
    }
}

/// Resolves every name to the same addresses, and reaches none.
struct Anything {
    answers: Vec<IpAddr>,
    dialled: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Network for Anything {
    fn resolve<'a>(&'a self, _: &'a str) -> BoxFuture<'a, std::io::Result<Vec<IpAddr>>> {
        Box::pin(async { Ok(self.answers.clone()) })
    }

    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, std::io::Result<tokio::net::TcpStream>> {
        self.dialled.lock().unwrap().push(address);
        Box::pin(async { Err(std::io::Error::other("nothing is dialled here")) })
    }
}
