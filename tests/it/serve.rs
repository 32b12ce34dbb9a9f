//! `skein serve` as a client meets it: what is checked before a handler runs, who may come in, and how it is operated.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use skein::principal::{Principal, TokenLimits};
use skein::store::{NewToken, TokenStore};

use crate::support::Sandbox;
use crate::support::serve::{HttpAnswer, PATIENCE, Server, bearer, eventually, token};

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn health_is_public_and_everything_else_needs_a_token() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    for path in ["/healthz", "/readyz", "/.well-known/agent-card.json"] {
        assert_eq!(server.request("GET", path, &[], "").status, 200, "{path}");
    }
    for path in ["/agents", "/acp", "/metrics", "/sessions", "/a2a/goose", "/no/such", "/healthz/x", "/consoles"] {
        assert_eq!(server.request("GET", path, &[], "").status, 401, "{path}");
    }
    let token = token(&sandbox, "ci", &[]);
    assert_eq!(server.get("/no/such", &token).status, 404);
    assert_eq!(server.get("/agents", &token).status, 200);
}

#[test]
fn agents_are_listed_with_their_modes() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let whole = token(&sandbox, "ci", &[]);
    let listed = server.get("/agents", &whole).json();
    let names: Vec<_> = listed["agents"].as_array().unwrap().iter().map(|agent| agent["name"].clone()).collect();
    for name in ["coding", "coding-backend", "goose", "goose-assistant"] {
        assert!(names.contains(&name.into()), "{name} in {names:?}");
    }
    assert!(names.iter().all(|name| !name.as_str().unwrap().contains(['_', '/'])), "{names:?}");
    assert!(listed["agents"][0]["description"].is_string() && listed["agents"][0]["metadata"].is_object());
    let second = server.get("/agents?limit=1&offset=1", &whole).json();
    assert_eq!(second["agents"], serde_json::json!([listed["agents"][1]]));
    assert_eq!(server.get("/agents?limit=none", &whole).status, 422);
    let limited = token(&sandbox, "qa", &["--modes", "coding/qa"]);
    let listed = server.get("/agents", &limited).json();
    let modes =
        listed["agents"].as_array().unwrap().iter().map(|agent| &agent["metadata"]["annotations"]["skein/mode"]);
    assert!(modes.clone().count() > 0 && modes.clone().all(|mode| mode == "coding/qa"), "{listed}");
}

/// Missing, malformed, unknown and revoked tokens get one answer, byte for byte.
#[test]
fn tokens_that_do_not_work_get_one_answer() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let good = token(&sandbox, "ci", &[]);
    let revoked = token(&sandbox, "ci", &[]);
    let id = revoked.split('_').nth(1).expect("an id").to_owned();
    assert_eq!(server.get("/agents", &revoked).status, 200);
    assert_eq!(sandbox.skein(&["token", "revoke", &id]).code, 0);
    let missing = server.request("GET", "/agents", &[], "").timeless();
    assert_eq!(missing.status, 401);
    assert!(missing.header("www-authenticate").is_some_and(|value| value.starts_with("Bearer")), "{missing:?}");
    let wrong_secret = format!("{}{}", &good[..good.len() - 1], if good.ends_with('0') { '1' } else { '0' });
    for token in [&*revoked, &wrong_secret, "x", "skein_000000000000_0000", ""] {
        assert_eq!(server.get("/agents", token).timeless(), missing, "{token}");
    }
    let basic = server.request("GET", "/agents", &[("authorization", "Basic eDp5")], "");
    assert_eq!(basic.timeless(), missing);
    assert_eq!(server.get("/agents", &good).status, 200);
}

#[tokio::test]
async fn a_token_that_expires_is_refused() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let tokens = TokenStore::open(&sandbox.path("data")).unwrap();
    let expires = Some(jiff::Timestamp::now() + jiff::SignedDuration::from_secs(10));
    let new = NewToken { principal: Principal::new("ci").unwrap(), limits: TokenLimits::default(), expires };
    let token = tokens.create(new).await.unwrap().token;
    assert_eq!(server.get("/agents", &token).status, 200);
    eventually("the token has expired", || server.get("/agents", &token).status == 401);
}

/// A web page elsewhere is refused on every path, with and without a token, and before anything else is looked at.
#[test]
fn a_foreign_host_or_origin_is_refused_first() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let good = token(&sandbox, "ci", &[]);
    let own = format!("http://{}", server.address);
    let bearer = bearer(&good);
    let foreign: [&[(&str, &str)]; 5] = [
        &[("host", "evil.example")],
        &[("origin", "https://evil.example")],
        &[("host", "evil.example"), ("origin", "https://evil.example")],
        &[("origin", "null")],
        &[("host", "127.0.0.2")],
    ];
    for headers in foreign {
        for path in ["/healthz", "/agents", "/acp", "/no/such"] {
            let with_token = [headers, &[("authorization", &*bearer)]].concat();
            for headers in [headers, &with_token] {
                assert_eq!(server.request("GET", path, headers, "").status, 403, "{path} {headers:?}");
            }
        }
    }
    // The size is checked after the host.
    let large = [("host", "evil.example"), ("content-length", "99999999999")];
    assert_eq!(server.request("POST", "/acp", &large, "").status, 403);
    let port = server.address.port();
    for host in [format!("localhost:{port}"), format!("127.0.0.1:{port}")] {
        assert_eq!(server.request("GET", "/agents", &[("host", &host), ("authorization", &bearer)], "").status, 200);
    }
    assert_eq!(server.request("GET", "/agents", &[("origin", &own), ("authorization", &bearer)], "").status, 200);
    assert_eq!(server.raw(b"GET /healthz HTTP/1.0\r\n\r\n").status, 403, "a request without a host");
}

#[test]
fn a_public_url_is_accepted_as_host_and_origin() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--public-url", "https://skein.example.com"]);
    let at = |headers: &[(&str, &str)]| server.request("GET", "/healthz", headers, "").status;
    assert_eq!(at(&[("host", "skein.example.com")]), 200);
    assert_eq!(at(&[("host", "skein.example.com"), ("origin", "https://skein.example.com")]), 200);
    assert_eq!(at(&[("origin", "https://skein.example.com")]), 200, "a proxy may change the host");
    assert_eq!(at(&[("host", "other.example.com")]), 403);
}

/// The size is checked before the token, and a body without a length is counted while it is read.
#[test]
fn a_body_that_is_too_large_is_refused() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let length = ((16 << 20) + 1).to_string();
    let declared = server.request("POST", "/acp", &[("content-length", &length)], "");
    assert_eq!(declared.status, 413);
    let good = token(&sandbox, "ci", &[]);
    let mut stream = server.connect();
    let head = format!(
        "POST /acp HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {good}\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n",
        server.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    // The server may answer and close before it has read all.
    for _ in 0..18 {
        if stream.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 413");
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let large = "x".repeat(70 << 10);
    assert_eq!(server.request("GET", "/healthz", &[("x-large", &large)], "").status, 431);
    let fits = "x".repeat(50 << 10);
    assert_eq!(server.request("GET", "/healthz", &[("x-large", &fits)], "").status, 200);
}

/// A client has 30 seconds for the head of a request, whether it sends nothing, a part or the beginning of HTTP/2.
#[test]
fn a_head_that_takes_too_long_is_refused() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let begun = Instant::now();
    let slow = [&b""[..], b"GET /healthz HTTP/1.1\r\nhost: loc", b"PRI * HT"].map(|start| {
        let mut stream = server.connect();
        stream.write_all(start).unwrap();
        stream
    });
    for mut stream in slow {
        assert_eq!(HttpAnswer::read(&mut stream).status, 408);
    }
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(29) && took < Duration::from_secs(45), "{took:?}");
}

#[test]
fn too_many_requests_must_wait() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let (busy, other) = (token(&sandbox, "ci", &["--requests", "3/m"]), token(&sandbox, "ci", &[]));
    for _ in 0..3 {
        assert_eq!(server.get("/agents", &busy).status, 200);
    }
    let refused = server.get("/agents", &busy);
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.header("retry-after").expect("a time").parse().expect("seconds");
    assert!((1..=61).contains(&wait), "{wait}");
    assert_eq!(server.get("/agents", &other).status, 200, "another token does not wait");
}

#[test]
fn too_many_connections_must_wait() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--connections", "1"]);
    let open = server.connect();
    // The connection counts as soon as it is accepted.
    eventually("the second connection is refused", || {
        let answer = server.request("GET", "/readyz", &[], "");
        answer.status == 503 && answer.header("retry-after").is_some()
    });
    drop(open);
    eventually("there is room again", || server.request("GET", "/readyz", &[], "").status == 200);
}

/// The client and the server each need more open files than macOS admits.
#[cfg(target_os = "linux")]
#[test]
fn connections_over_those_that_are_refused_are_closed() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &["--connections", "1"]);
    let _open = server.connect();
    let mut refused: Vec<_> = (0..256).map(|_| server.connect()).collect();
    let request = format!("GET /readyz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", server.address);
    let answer_to_further = || {
        let mut stream = server.connect();
        // The server may have closed the connection already.
        drop(stream.write_all(request.as_bytes()));
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer));
        answer
    };
    eventually("a further connection is closed at once", || answer_to_further().is_empty());
    let mut last = refused.pop().expect("a connection");
    last.write_all(request.as_bytes()).unwrap();
    assert_eq!(HttpAnswer::read(&mut last).status, 503);
    drop(refused);
    eventually("a further connection is refused", || answer_to_further().starts_with(b"HTTP/1.1 503 "));
}

#[test]
fn clients_leave_places_for_health_and_metrics() {
    let sandbox = Sandbox::new();
    let mut server = Server::start(&sandbox, &["--connections", "1", "--metrics-listen", "127.0.0.1:0"]);
    let line = server.line();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address").to_owned();
    let _open = server.connect();
    eventually("no place is free", || server.request("GET", "/readyz", &[], "").status == 503);
    assert_eq!(server.request("GET", "/healthz", &[], "").status, 200, "the process runs");
    let mut scraping = TcpStream::connect(&address).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    scraping.write_all(request.as_bytes()).unwrap();
    assert_eq!(HttpAnswer::read(&mut scraping).status, 200);
    // The metrics have limited places, too.
    let _idle: Vec<_> = (0..32).map(|_| TcpStream::connect(&address).unwrap()).collect();
    eventually("the metrics are refused", || {
        let mut refused = TcpStream::connect(&address).unwrap();
        refused.write_all(request.as_bytes()).unwrap();
        HttpAnswer::read(&mut refused).status == 503
    });
}

#[test]
fn listening_outside_loopback_needs_tls_or_a_proxy() {
    let sandbox = Sandbox::new();
    for flag in ["--listen", "--metrics-listen"] {
        let refused = sandbox.skein(&["serve", flag, "0.0.0.0:0"]);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(
            refused.stderr.contains("--tls-cert") && refused.stderr.contains("--behind-proxy"),
            "{}",
            refused.stderr
        );
    }
    let without_url = sandbox.skein(&["serve", "--listen", "0.0.0.0:0", "--behind-proxy"]);
    assert_eq!(without_url.code, 2);
    assert!(without_url.stderr.contains("--public-url"), "{}", without_url.stderr);
    let mut behind = sandbox.command(&["serve", "--listen", "0.0.0.0:0", "--behind-proxy"]);
    behind.args(["--public-url", "https://skein.example.com"]);
    let server = Server::launch(behind);
    let request = "GET /healthz HTTP/1.1\r\nhost: skein.example.com\r\nconnection: close\r\n\r\n";
    let mut stream = TcpStream::connect(("127.0.0.1", server.address.port())).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    assert_eq!(HttpAnswer::read(&mut stream).status, 200);
}

#[test]
fn wrong_flags_are_explained() {
    let sandbox = Sandbox::new();
    for (args, word) in [
        (&["--listen", "nowhere"][..], "HOST:PORT"),
        (&["--public-url", "skein.example.com"], "https://"),
        (&["--drain", "soon"], "length of time"),
        (&["--tls-cert", "cert.pem"], "--tls-key"),
        (&["--tls-cert", "no.pem", "--tls-key", "no.pem"], "no.pem"),
        (&["--sandbox", "off"], "--sandbox"),
    ] {
        let refused = sandbox.skein(&[&["serve"], args].concat());
        assert_eq!(refused.code, 2, "{args:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(word), "{args:?}: {}", refused.stderr);
    }
    let first = Server::start(&sandbox, &[]);
    let taken = sandbox.skein(&["serve", "--listen", &first.address.to_string()]);
    assert_eq!(taken.code, 1);
    assert!(taken.stderr.contains(&first.address.to_string()), "{}", taken.stderr);
}

#[test]
fn metrics_need_a_token_or_an_address_of_their_own() {
    let sandbox = Sandbox::new();
    let mut server = Server::start(&sandbox, &["--metrics-listen", "127.0.0.1:0"]);
    let line = server.line();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address").to_owned();
    let token = token(&sandbox, "ci", &[]);
    let metrics = server.get("/metrics", &token);
    assert_eq!(metrics.status, 200);
    assert!(metrics.header("content-type").is_some_and(|kind| kind.starts_with("text/plain; version=0.0.4")));
    for name in ["skein_sessions{", "skein_turns_total{", "skein_calls_total{", "skein_connections{", "skein_services{"]
    {
        assert!(metrics.body.contains(name), "{name} in {}", metrics.body);
    }
    let mut stream = TcpStream::connect(&address).unwrap();
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request("/metrics").as_bytes()).unwrap();
    assert!(HttpAnswer::read(&mut stream).body.contains("skein_connections{"));
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(request("/agents").as_bytes()).unwrap();
    assert_eq!(HttpAnswer::read(&mut stream).status, 404, "only the metrics are there");
}

#[test]
fn the_access_log_has_no_secrets() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "ci", &[]);
    server.get("/agents?secret=in-the-query", &token);
    server.request("POST", "/acp", &[JSON, ("authorization", &bearer(&token))], r#"{"secret":"in-the-body"}"#);
    let entries =
        || sandbox.log().into_iter().filter(|entry| entry["fields"]["message"] == "request").collect::<Vec<_>>();
    eventually("both requests are logged", || entries().len() >= 2);
    let entries = entries();
    let listed = entries.iter().find(|entry| entry["fields"]["path"] == "/agents").expect("the request");
    assert_eq!((&listed["fields"]["method"], &listed["fields"]["status"]), (&"GET".into(), &200.into()));
    assert_eq!(listed["fields"]["principal"], "ci");
    let log: String = sandbox.log().iter().map(ToString::to_string).collect();
    let secret = token.rsplit('_').next().expect("a secret");
    for secret in [secret, "in-the-query", "in-the-body"] {
        assert!(!log.contains(secret), "{secret}");
    }
}

#[test]
fn a_server_that_is_asked_to_end_ends() {
    let sandbox = Sandbox::new();
    let mut server = Server::start(&sandbox, &[]);
    let begun = Instant::now();
    server.interrupt();
    assert_eq!(server.wait(), 0);
    assert!(begun.elapsed() < PATIENCE, "nothing is running");
}

#[expect(clippy::disallowed_methods, reason = "the test ends the task itself")]
#[tokio::test]
async fn http2_works_without_tls() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let token = token(&sandbox, "ci", &[]);
    let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let serving = tokio::task::spawn(connection);
    for (host, status) in [(server.address.to_string(), 200), ("evil.example".to_owned(), 403)] {
        let request = hyper::Request::get(format!("http://{host}/agents")).header("authorization", bearer(&token));
        let answer = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (status, hyper::Version::HTTP_2), "{host}");
        answer.into_body().collect().await.unwrap();
    }
    serving.abort();
}
