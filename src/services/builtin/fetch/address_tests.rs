//! For any address and any URL: what is reached is public, or listed.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use proptest::prelude::*;
use serde_json::{Map, json};

use super::super::super::harness::{Harness, runtime};
use super::super::FetchService;
use crate::network::Network;
use crate::network::address_strategies::{any_address, is_outside};

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
        (any_address(), 0_u8..6).prop_map(|(address, form)| written(address, form)),
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

    /// Whatever the URL, whatever its name resolves to: only the public and the listed are dialled.
    #[test]
    fn no_url_reaches_what_is_not_allowed(urls in proptest::collection::vec(url(), 1..4), answers in proptest::collection::vec(any_address(), 1..3)) {
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
            prop_assert!(listed || is_outside(address.ip()), "{address} was dialled for {urls:?}");
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
