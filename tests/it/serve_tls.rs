//! `skein serve` with TLS: the protocols it offers, and a certificate that changes while it runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};

use crate::support::Sandbox;
use crate::support::serve::{PATIENCE, Server, bearer, token, trust};

/// Writes a new certificate for `localhost` and its key.
fn certify(sandbox: &Sandbox) -> CertificateDer<'static> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    sandbox.write("project/key.pem", &signing_key.serialize_pem());
    sandbox.write("project/cert.pem", &cert.pem());
    cert.der().clone()
}

fn start(sandbox: &Sandbox) -> Server {
    Server::start(sandbox, &["--tls-cert", "cert.pem", "--tls-key", "key.pem"])
}

/// Connects as a client that trusts one certificate and speaks one protocol. Fails if the server shows another one.
async fn connect(
    server: &Server,
    trusted: &CertificateDer<'static>,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let config = trust(trusted, &[protocol]);
    let stream = TcpStream::connect(server.address).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

#[expect(clippy::disallowed_methods, reason = "the test ends the tasks itself")]
#[tokio::test]
async fn tls_serves_http1_and_http2() {
    let sandbox = Sandbox::new();
    let certificate = certify(&sandbox);
    let server = start(&sandbox);
    let token = token(&sandbox, "ci", &[]);
    let request = |uri: &str| {
        let request = hyper::Request::get(uri).header("authorization", bearer(&token));
        request.header("host", format!("localhost:{}", server.address.port())).body(Empty::<Bytes>::new()).unwrap()
    };
    let stream = connect(&server, &certificate, b"http/1.1").await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let first = tokio::task::spawn(connection);
    let answer = sender.send_request(request("/agents")).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (200, hyper::Version::HTTP_11));
    answer.into_body().collect().await.unwrap();
    let stream = connect(&server, &certificate, b"h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let second = tokio::task::spawn(connection);
    let uri = format!("https://localhost:{}/agents", server.address.port());
    let answer = sender.send_request(request(&uri)).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (200, hyper::Version::HTTP_2));
    first.abort();
    second.abort();
}

#[tokio::test]
async fn a_changed_certificate_is_used_and_a_broken_one_is_not() {
    let sandbox = Sandbox::new();
    let old = certify(&sandbox);
    let server = start(&sandbox);
    connect(&server, &old, b"http/1.1").await.unwrap();
    let new = certify(&sandbox);
    let begun = Instant::now();
    while connect(&server, &new, b"http/1.1").await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "the new certificate is not used");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(connect(&server, &old, b"http/1.1").await.is_err(), "the old one is gone");
    sandbox.write("project/cert.pem", "no certificate");
    tokio::time::sleep(Duration::from_secs(4)).await;
    connect(&server, &new, b"http/1.1").await.expect("the last good certificate stays");
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let sandbox = Sandbox::new();
    certify(&sandbox);
    sandbox.write("project/other.pem", &std::fs::read_to_string(sandbox.path("project/key.pem")).unwrap());
    certify(&sandbox);
    for (certificate, key) in [("cert.pem", "other.pem"), ("key.pem", "key.pem"), ("cert.pem", "none.pem")] {
        let refused = sandbox.skein(&["serve", "--listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key]);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(refused.stderr.contains("--tls-cert"), "{}", refused.stderr);
    }
}

#[test]
fn requests_trust_the_certificates_of_the_system_alone() {
    let sandbox = Sandbox::new();
    certify(&sandbox);
    std::fs::copy(sandbox.path("project/cert.pem"), sandbox.path("project/other.pem")).unwrap();
    certify(&sandbox);
    let server = start(&sandbox);
    let run = |trusted: &str| {
        let mut command = sandbox.command(&["run", "-a", "goose", "--model", "openai:m", "hello"]);
        command.env("OPENAI_BASE_URL", format!("https://localhost:{}/v1", server.address.port()));
        command.env("OPENAI_API_KEY", "a-key").env("SSL_CERT_FILE", sandbox.path(trusted));
        String::from_utf8_lossy(&command.output().unwrap().stderr).into_owned()
    };
    let known = run("project/cert.pem");
    assert!(known.contains("it answered 401"), "this server is no model, but it answers: {known}");
    let unknown = run("project/other.pem");
    assert!(unknown.contains("invalid peer certificate"), "{unknown}");
    let none = run("project/none.pem");
    assert!(none.contains("No CA certificates were loaded from the system"), "{none}");
    assert!(!unknown.contains("asking again") && !none.contains("asking again"), "{unknown}{none}");
}
