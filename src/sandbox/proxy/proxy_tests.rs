//! The proxy over real sockets. The network of these tests knows a few names and dials nothing but loopback.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use tokio::io::AsyncReadExt as _;

use super::client_hello::tests::hello;
use super::*;
use crate::sandbox::{NetworkAccess, OtherHosts};

/// A public address behind which the test's server stands.
const PUBLIC: &str = "93.184.216.34";

#[derive(Default)]
struct TestNetwork {
    names: HashMap<&'static str, Vec<&'static str>>,
    /// Where dials of [`PUBLIC`] end.
    server: Option<SocketAddr>,
    resolved: Mutex<Vec<String>>,
    dialled: Mutex<Vec<SocketAddr>>,
}

impl Network for TestNetwork {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        self.resolved.lock().unwrap().push(host.to_owned());
        let found = self.names.get(host).map(|list| list.iter().map(|ip| ip.parse().unwrap()).collect());
        Box::pin(async move { found.ok_or_else(|| io::Error::other("no such name")) })
    }

    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        self.dialled.lock().unwrap().push(address);
        let public = address.ip().to_string() == PUBLIC;
        let real = self.server.filter(|_| public).or(Some(address)).filter(|address| address.ip().is_loopback());
        Box::pin(async move { TcpStream::connect(real.ok_or_else(|| io::Error::other("not in a test"))?).await })
    }
}

#[derive(Default)]
struct TestGate {
    rules: Vec<(&'static str, HostRuling)>,
    /// The answer to all questions. `None`: the user does not answer.
    answer: Option<HostAnswer>,
    asked: Mutex<Vec<String>>,
    records: Mutex<Vec<String>>,
}

impl HostGate for TestGate {
    fn rule(&self, host: &RemoteHost) -> HostRuling {
        let found = self.rules.iter().find(|(name, _)| *name == host.name());
        found.map_or(HostRuling::Silent, |(_, ruling)| ruling.clone())
    }

    fn settle(&self, _: &RemoteHost) -> Option<HostAnswer> {
        None
    }

    fn ask(&self, question: HostQuestion) -> BoxFuture<'_, HostAnswer> {
        self.asked.lock().unwrap().push(question.host.authority());
        Box::pin(async {
            match &self.answer {
                Some(answer) => answer.clone(),
                None => std::future::pending().await,
            }
        })
    }

    fn record(&self, record: &HostRecord) {
        let outcome = record.refusal.as_ref().map_or("allowed".to_owned(), ToString::to_string);
        self.records.lock().unwrap().push(format!("{}: {outcome}", record.host.authority()));
    }
}

/// A server that sends a banner to each client, and keeps what it receives.
struct TestServer {
    address: SocketAddr,
    received: Arc<Mutex<Vec<u8>>>,
}

impl TestServer {
    async fn new(banner: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received: Arc<Mutex<Vec<u8>>> = Arc::default();
        let kept = Arc::clone(&received);
        TaskScope::new().spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let kept = Arc::clone(&kept);
                TaskScope::new().spawn(async move {
                    stream.write_all(banner).await.unwrap();
                    let mut buffer = [0; 4096];
                    loop {
                        match stream.read(&mut buffer).await {
                            Ok(count) if count > 0 => kept.lock().unwrap().extend_from_slice(&buffer[..count]),
                            _ => return,
                        }
                    }
                });
            }
        });
        Self { address, received }
    }

    fn received(&self) -> Vec<u8> {
        self.received.lock().unwrap().clone()
    }

    /// Waits until the server has received exactly these bytes, or more.
    async fn receives(&self, bytes: &[u8]) {
        for _ in 0..400 {
            if self.received().len() >= bytes.len() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(String::from_utf8_lossy(&self.received()), String::from_utf8_lossy(bytes));
    }
}

struct Setup {
    allow: &'static [&'static str],
    otherwise: OtherHosts,
    gate: TestGate,
    network: TestNetwork,
    company: CompanyProxy,
    token: Option<&'static str>,
    servers: Option<Arc<dyn InsideNetwork>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            allow: &["example.com", "example.com:22"],
            otherwise: OtherHosts::Off,
            gate: TestGate::default(),
            network: TestNetwork::default(),
            company: CompanyProxy::default(),
            token: None,
            servers: None,
        }
    }
}

struct Fixture {
    proxy: Proxy,
    address: SocketAddr,
    gate: Arc<TestGate>,
    network: Arc<TestNetwork>,
}

impl Setup {
    fn with_server(mut self, server: &TestServer) -> Self {
        self.network.names.insert("example.com", vec![PUBLIC]);
        self.network.server = Some(server.address);
        self
    }

    fn start(self) -> Fixture {
        let allow = self.allow.iter().map(|entry| (*entry).to_owned()).collect();
        let access = NetworkAccess { allow, deny: vec!["denied.test".into()], otherwise: self.otherwise };
        let (gate, network) = (Arc::new(self.gate), Arc::new(self.network));
        let proxy = Proxy::new(ProxyParts {
            policy: HostPolicy::new(&access).unwrap(),
            gate: Arc::clone(&gate) as Arc<dyn HostGate>,
            network: Arc::clone(&network) as Arc<dyn Network>,
            company: self.company,
            servers: self.servers,
            token: self.token.map(str::to_owned),
        });
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        proxy.serve(listener).unwrap();
        Fixture { proxy, address, gate, network }
    }
}

impl Fixture {
    async fn send(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }

    /// Sends a request and returns all that comes back.
    async fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = self.send(bytes).await;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn connect(&self, authority: &str) -> (TcpStream, String) {
        let mut stream =
            self.send(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").as_bytes()).await;
        let head = read_head(&mut stream).await;
        (stream, head)
    }

    fn dialled(&self) -> usize {
        self.network.dialled.lock().unwrap().len()
    }
}

/// Reads a head, and the body of an error.
async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    if !head.starts_with(b"HTTP/1.1 200") {
        stream.read_to_end(&mut head).await.unwrap();
    }
    String::from_utf8(head).unwrap()
}

async fn read_bytes(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).await.unwrap();
    bytes
}

#[tokio::test]
async fn a_tunnel_passes_the_banner_of_a_server_that_speaks_first() {
    let server = TestServer::new(b"SSH-2.0-server\r\n").await;
    let fixture = Setup::default().with_server(&server).start();
    let (mut stream, head) = fixture.connect("example.com:22").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    // The client has sent nothing yet.
    assert_eq!(read_bytes(&mut stream, 16).await, b"SSH-2.0-server\r\n");
    stream.write_all(b"SSH-2.0-client\r\n").await.unwrap();
    server.receives(b"SSH-2.0-client\r\n").await;
    assert_eq!(*fixture.gate.records.lock().unwrap(), ["example.com:22: allowed"]);
}

#[tokio::test]
async fn refused_hosts_get_403_and_are_reported_to_the_command() {
    let fixture = Setup::default().start();
    let command = fixture.proxy.begin_command("curl https://evil.test", &[]);
    let (_, head) = fixture.connect("evil.test:443").await;
    let text = "refused by the sandbox: evil.test:443 (the sandbox profile does not list this host)";
    assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\n") && head.ends_with(&format!("\r\n\r\n{text}\n")), "{head}");
    assert_eq!(command.refusals().iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
    let answer = fixture.exchange(b"GET http://denied.test/ HTTP/1.1\r\n\r\n").await;
    assert!(answer.contains("denied.test:80 (the sandbox profile denies this host)"), "{answer}");
    assert_eq!((fixture.dialled(), fixture.network.resolved.lock().unwrap().len()), (0, 0));
}

#[tokio::test]
async fn a_tunnel_passes_a_split_client_hello_of_its_host() {
    let server = TestServer::new(b"").await;
    let fixture = Setup::default().with_server(&server).start();
    let bytes = hello(Some("example.com"), 20);
    let (mut stream, _) = fixture.connect("example.com:443").await;
    stream.set_nodelay(true).unwrap();
    for byte in &bytes[..bytes.len() - 1] {
        stream.write_all(&[*byte]).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(server.received().is_empty(), "nothing passes before the name is known");
    stream.write_all(&bytes[bytes.len() - 1..]).await.unwrap();
    server.receives(&bytes).await;
}

#[tokio::test]
async fn a_tunnel_with_another_name_is_closed() {
    let server = TestServer::new(b"").await;
    let fixture = Setup::default().with_server(&server).start();
    let command = fixture.proxy.begin_command("curl", &[]);
    for bytes in [hello(Some("evil.test"), 7), b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n".to_vec()] {
        let (mut stream, head) = fixture.connect("example.com:443").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        stream.write_all(&bytes).await.unwrap();
        // A reset is as good as an end.
        assert_eq!(stream.read(&mut [0; 10]).await.unwrap_or(0), 0);
    }
    assert!(server.received().is_empty());
    let refusals: Vec<_> = command.refusals().iter().map(ToString::to_string).collect();
    let expected = [
        "refused by the sandbox: example.com:443 (TLS names another server, `evil.test`)",
        "refused by the sandbox: example.com:443 (the Host header names `evil.test`)",
    ];
    assert_eq!(refusals, expected);
}

#[tokio::test]
async fn a_forwarded_request_takes_no_second_one_along() {
    let server = TestServer::new(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let fixture = Setup::default().with_server(&server).start();
    let request = b"POST http://example.com/a HTTP/1.1\r\nHost: example.com\r\nContent-Length: 4\r\n\r\nbodyGET \
                    http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    let mut stream = fixture.send(request).await;
    assert_eq!(read_bytes(&mut stream, 40).await, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let expected = b"POST /a HTTP/1.1\r\nhost: example.com\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbody";
    server.receives(expected).await;
}

#[tokio::test]
async fn socks_reaches_names_and_reports_refusals() {
    let server = TestServer::new(b"hi").await;
    let fixture = Setup::default().with_server(&server).start();
    let request =
        |name: &str| [&[5, 1, 0, 3, u8::try_from(name.len()).unwrap()][..], name.as_bytes(), &[0, 22]].concat();
    let mut stream = fixture.send(&[5, 1, 0]).await;
    assert_eq!(read_bytes(&mut stream, 2).await, [5, 0]);
    stream.write_all(&request("example.com")).await.unwrap();
    assert_eq!(read_bytes(&mut stream, 12).await, b"\x05\0\0\x01\0\0\0\0\0\0hi");
    // All in one packet, with a password that is not needed.
    let mut stream = fixture.send(&[&[5, 2, 0, 2, 1, 1, b'u', 1, b'p'][..], &request("evil.test")].concat()).await;
    assert_eq!(read_bytes(&mut stream, 14).await, b"\x05\x02\x01\0\x05\x02\0\x01\0\0\0\0\0\0");
    // UDP and BIND do not exist.
    let mut stream = fixture.send(&[5, 1, 0, 5, 3, 0, 1]).await;
    assert_eq!(read_bytes(&mut stream, 4).await, [5, 0, 5, 7]);
}

#[tokio::test]
async fn hostile_requests_reach_nothing() {
    let setup = Setup { otherwise: OtherHosts::On, ..Setup::default() };
    let fixture = setup.start();
    let huge = format!("GET http://example.com/ HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(40_000));
    for (request, status) in [
        ("CONNECT 127.0.0.1:22 HTTP/1.1\r\n\r\n", 403),
        ("CONNECT [::1]:22 HTTP/1.1\r\n\r\n", 403),
        ("CONNECT [::ffff:127.0.0.1]:22 HTTP/1.1\r\n\r\n", 403),
        ("CONNECT [::ffff:a9fe:a9fe]:80 HTTP/1.1\r\n\r\n", 403),
        ("CONNECT [64:ff9b::7f00:1]:80 HTTP/1.1\r\n\r\n", 403),
        ("CONNECT 0x7f000001:22 HTTP/1.1\r\n\r\n", 403),
        ("CONNECT 0:22 HTTP/1.1\r\n\r\n", 403),
        ("CONNECT localhost:22 HTTP/1.1\r\n\r\n", 403),
        ("CONNECT a.localhost:22 HTTP/1.1\r\n\r\n", 403),
        ("GET http://169.254.169.254/latest/ HTTP/1.1\r\n\r\n", 403),
        ("GET http://10.0.0.1/ HTTP/1.1\r\n\r\n", 403),
        ("GET http://example.com/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        ("GET http://example.com@127.0.0.1/ HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n", 400),
        ("GET http://example.com/ HTTP/1.1\nHost: example.com\n\n", 400),
        ("POST http://example.com/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ("\r\n\r\n", 400),
        (&huge, 431),
    ] {
        let answer = fixture.exchange(request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    // An address class is refused after the reach of the grant, so 10.0.0.1 is not dialled either.
    assert_eq!(fixture.dialled(), 0);
    let answer = fixture.exchange(b"CONNECT nowhere.test:443 HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}

#[tokio::test]
async fn names_lead_only_to_addresses_that_the_grant_covers() {
    let names = [
        ("private.test", vec!["10.0.0.1"]),
        ("mixed.test", vec![PUBLIC, "10.0.0.1"]),
        ("loop.test", vec!["127.0.0.1"]),
        ("meta.test", vec!["169.254.169.254"]),
        ("sub.wild.test", vec!["10.0.0.1"]),
    ];
    let setup = Setup {
        allow: &["private.test", "loop.test", "meta.test", "*.wild.test"],
        otherwise: OtherHosts::On,
        network: TestNetwork { names: names.into(), ..TestNetwork::default() },
        ..Setup::default()
    };
    let fixture = setup.start();
    for (host, outcome) in [
        ("private.test", "502"),
        ("mixed.test", "mixed.test:443 (its address 10.0.0.1 is private)"),
        ("loop.test", "loop.test:443 (its address 127.0.0.1 is this machine)"),
        ("meta.test", "meta.test:443 (its address 169.254.169.254 is link-local)"),
        ("sub.wild.test", "sub.wild.test:443 (its address 10.0.0.1 is private)"),
    ] {
        let (_, head) = fixture.connect(&format!("{host}:443")).await;
        assert!(head.contains(outcome), "{host}: {head}");
    }
    assert_eq!(*fixture.network.dialled.lock().unwrap(), ["10.0.0.1:443".parse().unwrap()]);
}

#[tokio::test]
async fn rules_and_consent_decide_about_unlisted_hosts() {
    let server = TestServer::new(b"").await;
    let names = ["example.com", "ruled.test", "asked.test", "listed.test", "denied-rule.test"];
    let gate = TestGate {
        rules: vec![
            ("ruled.test", HostRuling::Allow),
            ("listed.test", HostRuling::Ask),
            ("denied-rule.test", HostRuling::Deny("{host: x, then: deny}".into())),
        ],
        answer: Some(HostAnswer::Once),
        ..TestGate::default()
    };
    let mut setup =
        Setup { allow: &["listed.test", "denied-rule.test"], otherwise: OtherHosts::Ask, gate, ..Setup::default() };
    setup.network.names = names.iter().map(|name| (*name, vec![PUBLIC])).collect();
    setup.network.server = Some(server.address);
    let fixture = setup.start();
    let _command = fixture.proxy.begin_command("curl", &[RemoteHost::of_text("example.com").unwrap()]);
    for (host, status) in [
        ("ruled.test", 200),
        ("asked.test", 200),
        ("listed.test", 200),
        ("denied-rule.test", 403),
        ("example.com", 200),
        ("denied.test", 403),
    ] {
        let (_, head) = fixture.connect(&format!("{host}:443")).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {head}");
    }
    assert_eq!(*fixture.gate.asked.lock().unwrap(), ["asked.test:443", "listed.test:443"]);
}

#[tokio::test]
async fn a_listed_address_is_relayed_and_reached_through_the_proxy() {
    let server = TestServer::new(b"hello").await;
    let entry: &'static str = Box::leak(server.address.to_string().into_boxed_str());
    let allow: &'static [&'static str] = Box::leak(vec![entry].into_boxed_slice());
    let fixture = Setup { allow, ..Setup::default() }.start();
    let inside = StdListener::bind("127.0.0.1:0").unwrap();
    let relay = inside.local_addr().unwrap();
    assert_eq!(fixture.proxy.inner.policy.relays(), [server.address]);
    fixture.proxy.relay(inside, server.address).unwrap();
    let mut stream = TcpStream::connect(relay).await.unwrap();
    assert_eq!(read_bytes(&mut stream, 5).await, b"hello");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: any\r\n\r\n").await.unwrap();
    server.receives(b"GET / HTTP/1.1\r\nHost: any\r\n\r\n").await;
    let (mut stream, head) = fixture.connect(&format!("localhost:{}", server.address.port())).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(read_bytes(&mut stream, 5).await, b"hello");
}

#[tokio::test]
async fn a_company_proxy_gets_names_and_credentials() {
    let company = TestServer::new(b"HTTP/1.1 200 OK\r\n\r\nbanner").await;
    let address = format!("http://user:pass@{}", company.address);
    let variables =
        ProxyVariables { https_proxy: Some(&address), http_proxy: Some(&address), no_proxy: Some("direct.test") };
    let fixture = Setup {
        allow: &["inner.corp", "direct.test"],
        company: CompanyProxy::new(variables).unwrap(),
        ..Setup::default()
    }
    .start();
    let (mut stream, head) = fixture.connect("inner.corp:443").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(read_bytes(&mut stream, 6).await, b"banner");
    let hello = hello(Some("inner.corp"), 100);
    stream.write_all(&hello).await.unwrap();
    let connect =
        b"CONNECT inner.corp:443 HTTP/1.1\r\nhost: inner.corp:443\r\nproxy-authorization: Basic dXNlcjpwYXNz\r\n\r\n";
    company.receives(&[&connect[..], &hello].concat()).await;
    company.received.lock().unwrap().clear();
    let mut plain = fixture.send(b"GET http://inner.corp/x HTTP/1.1\r\n\r\n").await;
    assert_eq!(read_bytes(&mut plain, 25).await, b"HTTP/1.1 200 OK\r\n\r\nbanner");
    company.receives(b"GET http://inner.corp/x HTTP/1.1\r\nhost: inner.corp\r\nproxy-authorization: Basic dXNlcjpwYXNz\r\nconnection: close\r\n\r\n").await;
    // Skein resolves only what it reaches itself.
    let (_, head) = fixture.connect("direct.test:443").await;
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert_eq!(*fixture.network.resolved.lock().unwrap(), ["direct.test"]);
}

#[tokio::test]
async fn a_company_proxy_that_refuses_is_named() {
    let company = TestServer::new(b"HTTP/1.1 407 Who are you\r\n\r\n").await;
    let address = company.address.to_string();
    let variables = ProxyVariables { https_proxy: Some(&address), ..ProxyVariables::default() };
    let fixture = Setup { company: CompanyProxy::new(variables).unwrap(), ..Setup::default() }.start();
    let (_, head) = fixture.connect("example.com:443").await;
    assert!(head.contains("502") && head.contains("answered `HTTP/1.1 407 Who are you`"), "{head}");
}

#[tokio::test]
async fn a_token_is_required_if_there_is_one() {
    let server = TestServer::new(b"").await;
    let fixture = Setup { token: Some("secret"), ..Setup::default() }.with_server(&server).start();
    let request = |password: &str| {
        let credentials = head::ProxyCredentials { user: "command-1".into(), password: password.into() };
        format!("CONNECT example.com:443 HTTP/1.1\r\nProxy-Authorization: {}\r\n\r\n", credentials.to_header())
    };
    for (request, status) in [
        (request("secret"), "HTTP/1.1 200 "),
        (request("secres"), "HTTP/1.1 407 "),
        (request(""), "HTTP/1.1 407 "),
        ("CONNECT example.com:443 HTTP/1.1\r\n\r\n".to_owned(), "HTTP/1.1 407 "),
    ] {
        let mut stream = fixture.send(request.as_bytes()).await;
        let head = read_head(&mut stream).await;
        assert!(head.starts_with(status), "{request} {head}");
    }
    let mut stream = fixture.send(&[5, 1, 0]).await;
    assert_eq!(read_bytes(&mut stream, 2).await, [5, 0xff]);
    let mut stream = fixture.send(&[5, 1, 2, 1, 1, b'u', 1, b'p']).await;
    assert_eq!(read_bytes(&mut stream, 4).await, [5, 2, 1, 1]);
}

#[tokio::test]
async fn a_client_that_stops_reading_stops_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    TaskScope::new().spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let block = vec![b'x'; 64 * 1024];
        while stream.write_all(&block).await.is_ok() {
            count.fetch_add(block.len(), Ordering::Relaxed);
        }
    });
    let mut setup = Setup::default();
    setup.network.names.insert("example.com", vec![PUBLIC]);
    setup.network.server = Some(address);
    let fixture = setup.start();
    let (stream, _) = fixture.connect("example.com:443").await;
    let mut before = usize::MAX;
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = sent.load(Ordering::Relaxed);
        if now == before {
            break;
        }
        before = now;
    }
    // The buffers of the kernel's sockets are a few megabytes; the proxy itself adds 16 KiB.
    assert!(before < 32_000_000, "{before}");
    drop(stream);
}

#[tokio::test]
async fn half_closed_connections_deliver_the_rest() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    TaskScope::new().spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        stream.read_to_end(&mut request).await.unwrap();
        stream.write_all(&[&b"got "[..], &request].concat()).await.unwrap();
    });
    let mut setup = Setup::default();
    setup.network.names.insert("example.com", vec![PUBLIC]);
    setup.network.server = Some(address);
    let fixture = setup.start();
    let (mut stream, _) = fixture.connect("example.com:443").await;
    stream.write_all(b"question").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "got question");
}

#[tokio::test(start_paused = true)]
async fn slow_clients_and_silent_users_run_into_limits() {
    let fixture = Setup { otherwise: OtherHosts::Ask, ..Setup::default() }.start();
    let start = tokio::time::Instant::now();
    let answer = fixture.exchange(b"CONNECT example.com:443 HTTP/1.1\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(start.elapsed() >= Duration::from_secs(30));
    let start = tokio::time::Instant::now();
    let (_, head) = fixture.connect("asked.test:443").await;
    assert!(head.starts_with("HTTP/1.1 403 ") && head.contains("has not answered yet; try again"), "{head}");
    assert!(start.elapsed() >= Duration::from_secs(30));
}

#[tokio::test]
async fn connections_over_the_limit_are_closed() {
    let fixture = Setup::default().start();
    let _all = fixture.proxy.inner.connections.clone().try_acquire_many_owned(MAX_CONNECTIONS as u32).unwrap();
    let mut stream = TcpStream::connect(fixture.address).await.unwrap();
    assert_eq!(stream.read(&mut [0; 10]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn stopping_ends_listeners_and_tunnels() {
    let server = TestServer::new(b"").await;
    let fixture = Setup::default().with_server(&server).start();
    let (mut stream, _) = fixture.connect("example.com:443").await;
    fixture.proxy.stop().await;
    assert_eq!(stream.read(&mut [0; 10]).await.unwrap_or(0), 0);
    assert!(TcpStream::connect(fixture.address).await.is_err());
}

#[test]
fn variables_lead_to_the_proxy_in_both_cases() {
    let listener = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 3128);
    let proxy = Setup::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let command = proxy.start().proxy.begin_command("a", &[]).id();
    let variables: HashMap<_, _> =
        proxy_variables(listener, &proxy_credentials(Some(command), Some("t"))).into_iter().collect();
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        assert_eq!(variables[name], "http://command-1:t@127.0.0.1:3128", "{name}");
    }
    assert_eq!(
        (variables["no_proxy"].as_str(), variables["NODE_USE_ENV_PROXY"].as_str()),
        ("localhost,127.0.0.1,::1", "1")
    );
    assert_eq!(proxy_credentials(None, None), "skein:x");
}

/// A session with one server.
struct OneServer {
    port: u16,
    address: SocketAddr,
}

impl InsideNetwork for OneServer {
    fn dial(&self, port: u16) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(async move {
            if port != self.port {
                return Err(io::ErrorKind::NotFound.into());
            }
            TcpStream::connect(self.address).await
        })
    }
}

#[tokio::test]
async fn loopback_leads_a_browser_to_the_servers_of_its_session() {
    let server = TestServer::new(b"").await;
    let servers: Arc<dyn InsideNetwork> = Arc::new(OneServer { port: 5173, address: server.address });
    let fixture = Setup { allow: &[], servers: Some(servers), ..Setup::default() }.start();
    for authority in ["localhost:5173", "app.localhost:5173", "127.0.0.1:5173", "[::1]:5173"] {
        let (_, head) = fixture.connect(authority).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{authority}: {head}");
    }
    let mut stream = fixture.send(b"GET http://localhost:5173/a HTTP/1.1\r\nHost: localhost:5173\r\n\r\n").await;
    server.receives(b"GET /a HTTP/1.1\r\nhost: localhost:5173\r\nconnection: close\r\n\r\n").await;
    stream.shutdown().await.unwrap();
    for authority in ["localhost:5174", "127.0.0.2:5173"] {
        let (_, head) = fixture.connect(authority).await;
        assert!(head.contains("is this machine)"), "{authority}: {head}");
    }
    assert_eq!(fixture.dialled(), 0);
}

#[tokio::test]
async fn a_rule_denies_a_server_of_the_session_too() {
    let server = TestServer::new(b"").await;
    let servers: Arc<dyn InsideNetwork> = Arc::new(OneServer { port: 5173, address: server.address });
    let gate = TestGate { rules: vec![("127.0.0.1", HostRuling::Deny("no".into()))], ..TestGate::default() };
    let fixture = Setup { gate, servers: Some(servers), ..Setup::default() }.start();
    let (_, head) = fixture.connect("localhost:5173").await;
    assert!(head.contains("(the rule no)"), "{head}");
}

#[tokio::test]
async fn consent_of_a_browser_covers_public_addresses_only() {
    let server = TestServer::new(b"").await;
    let servers: Arc<dyn InsideNetwork> = Arc::new(OneServer { port: 1, address: server.address });
    let gate = TestGate { answer: Some(HostAnswer::Once), ..TestGate::default() };
    let setup = Setup { allow: &[], otherwise: OtherHosts::Ask, gate, servers: Some(servers), ..Setup::default() };
    let mut setup = setup.with_server(&server);
    setup.network.names.insert("intranet.test", vec!["10.0.0.1"]);
    let fixture = setup.start();
    let (_, head) = fixture.connect("example.com:443").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let (_, head) = fixture.connect("intranet.test:443").await;
    assert!(head.contains("its address 10.0.0.1 is private"), "{head}");
    let (_, head) = fixture.connect("10.0.0.1:80").await;
    assert!(head.contains("its address 10.0.0.1 is private"), "{head}");
    assert_eq!(*fixture.gate.asked.lock().unwrap(), ["example.com:443", "intranet.test:443"]);
}

#[tokio::test]
async fn a_level_that_asks_nothing_opens_no_private_address() {
    let gate = TestGate { answer: Some(HostAnswer::Permitted), ..TestGate::default() };
    let mut setup = Setup { allow: &[], otherwise: OtherHosts::Ask, gate, ..Setup::default() };
    setup.network.names.insert("intranet.test", vec!["10.0.0.1"]);
    let fixture = setup.start();
    for host in ["intranet.test:443", "10.0.0.1:80"] {
        let (_, head) = fixture.connect(host).await;
        assert!(head.contains("its address 10.0.0.1 is private"), "{head}");
    }
}
