//! Heads that are accepted, what becomes of them, and heads with two readings, which are refused.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<RequestHead, HeadError> {
    parse_head(text.as_bytes())
}

fn forward(text: &str) -> ForwardRequest {
    match parse(text).expect(text).target {
        RequestTarget::Forward(request) => request,
        RequestTarget::Tunnel(host) => panic!("a tunnel to {host}"),
    }
}

fn tunnel(target: &str) -> Option<String> {
    match parse(&format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")).ok()?.target {
        RequestTarget::Tunnel(host) => Some(host.authority()),
        RequestTarget::Forward(_) => None,
    }
}

#[test]
fn tunnels_name_a_host_and_a_port() {
    for (target, host) in [
        ("example.com:443", Some("example.com:443")),
        ("EXAMPLE.com.:443", Some("example.com:443")),
        ("[::1]:443", Some("[::1]:443")),
        ("[::ffff:127.0.0.1]:443", Some("127.0.0.1:443")),
        ("0x7f.1:443", Some("127.0.0.1:443")),
        ("2130706433:443", Some("127.0.0.1:443")),
        ("example.com", None),
        ("example.com:0", None),
        ("example.com:99999", None),
        ("example.com:443:80", None),
        ("::1:443", None),
        ("[fe80::1%25eth0]:443", None),
        ("user@example.com:443", None),
        ("example.com:443/path", None),
        ("*.example.com:443", None),
        ("http://example.com:443", None),
        (":443", None),
        ("exa%6dple.com:443", None),
    ] {
        assert_eq!(tunnel(target).as_deref(), host, "{target}");
    }
}

#[test]
fn forwarded_heads_lose_what_belongs_to_the_connection() {
    let request = forward(
        "POST http://example.com:8080/a?b=c HTTP/1.1\r\nHost: example.com:8080\r\nProxy-Authorization: Basic YTpi\r\n\
         Connection: keep-alive, X-Private\r\nX-Private: 1\r\nProxy-Connection: keep-alive\r\nUpgrade: websocket\r\n\
         TE: trailers\r\nContent-Length: 3\r\nAccept: */*\r\n\r\n",
    );
    assert_eq!((request.host.authority().as_str(), request.body), ("example.com:8080", BodyLength::Bytes(3)));
    let head = String::from_utf8(request.origin_head()).unwrap();
    let expected = "POST /a?b=c HTTP/1.1\r\nhost: example.com:8080\r\ncontent-length: 3\r\naccept: */*\r\n\
                    connection: close\r\n\r\n";
    assert_eq!(head, expected);
    let credentials = ProxyCredentials { user: "u".into(), password: "p:w".into() };
    let head = String::from_utf8(request.proxy_head(Some(&credentials))).unwrap();
    assert!(head.starts_with("POST http://example.com:8080/a?b=c HTTP/1.1\r\nhost: example.com:8080\r\n"), "{head}");
    assert!(head.contains("\r\nproxy-authorization: Basic dTpwOnc=\r\n"), "{head}");
}

#[test]
fn the_path_of_a_url_may_be_empty() {
    for (url, line) in [
        ("http://a.test", "GET / HTTP/1.1\r\nhost: a.test\r\n"),
        ("http://a.test:80/", "GET / HTTP/1.1\r\nhost: a.test\r\n"),
        ("HTTP://A.test?x", "GET /?x HTTP/1.1\r\nhost: a.test\r\n"),
        ("http://[::1]:9/", "GET / HTTP/1.1\r\nhost: [::1]:9\r\n"),
    ] {
        let head = String::from_utf8(forward(&format!("GET {url} HTTP/1.1\r\n\r\n")).origin_head()).unwrap();
        assert!(head.starts_with(line), "{head}");
    }
}

#[test]
fn credentials_are_read_from_the_header() {
    let head = parse("CONNECT a.test:1 HTTP/1.1\r\nProxy-Authorization: basic YzE6dG9rZW4=\r\n\r\n").unwrap();
    assert_eq!(head.credentials, Some(ProxyCredentials { user: "c1".into(), password: "token".into() }));
    for value in ["Bearer YzE6dG9rZW4=", "Basic", "Basic !", "Basic YQ=="] {
        let head = parse(&format!("CONNECT a.test:1 HTTP/1.1\r\nProxy-Authorization: {value}\r\n\r\n")).unwrap();
        assert_eq!(head.credentials, None, "{value}");
    }
}

#[test]
fn heads_with_two_readings_are_refused() {
    for (head, error) in [
        ("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", HeadError::NoProxyRequest),
        ("GET https://a.test/ HTTP/1.1\r\n\r\n", HeadError::NoProxyRequest),
        ("GET http://a.test/ HTTP/2.0\r\n\r\n", HeadError::Version),
        ("GET http://a.test/\r\n\r\n", HeadError::RequestLine),
        ("GET  http://a.test/ HTTP/1.1\r\n\r\n", HeadError::RequestLine),
        ("GET http://a.test/ x HTTP/1.1\r\n\r\n", HeadError::RequestLine),
        ("G(T http://a.test/ HTTP/1.1\r\n\r\n", HeadError::RequestLine),
        ("GET http://a.test/\tx HTTP/1.1\r\n\r\n", HeadError::RequestLine),
        ("GET http://u:p@a.test/ HTTP/1.1\r\n\r\n", HeadError::Target),
        ("GET http:///x HTTP/1.1\r\n\r\n", HeadError::Target),
        ("GET http://a.test\\@b.test/ HTTP/1.1\r\n\r\n", HeadError::Target),
        ("GET http://a.test/#b HTTP/1.1\r\n\r\n", HeadError::Target),
        ("GET http://a.test:x/ HTTP/1.1\r\n\r\n", HeadError::Target),
        ("GET http://a.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n", HeadError::OtherHost),
        ("GET http://a.test/ HTTP/1.1\r\nHost: a.test:81\r\n\r\n", HeadError::OtherHost),
        ("GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n\r\n", HeadError::OtherHost),
        ("CONNECT a.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n", HeadError::OtherHost),
        ("GET http://a.test/ HTTP/1.1\r\nX : 1\r\n\r\n", HeadError::Header),
        ("GET http://a.test/ HTTP/1.1\r\nX: 1\r\n folded\r\n\r\n", HeadError::Header),
        ("GET http://a.test/ HTTP/1.1\r\nX: 1\nY: 2\r\n\r\n", HeadError::Header),
        ("GET http://a.test/ HTTP/1.1\r\nX: 1\rY: 2\r\n\r\n", HeadError::Header),
        ("GET http://a.test/ HTTP/1.1\r\nX: a\0b\r\n\r\n", HeadError::Header),
        ("GET http://a.test/ HTTP/1.1\r\n: 1\r\n\r\n", HeadError::Header),
        ("GET http://a.test/ HTTP/1.1\r\nConnection: content-length\r\nContent-Length: 1\r\n\r\n", HeadError::Header),
        ("POST http://a.test/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", HeadError::BodyLength),
        ("POST http://a.test/ HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", HeadError::BodyLength),
        ("POST http://a.test/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n", HeadError::BodyLength),
        ("POST http://a.test/ HTTP/1.1\r\nContent-Length: -1\r\n\r\n", HeadError::BodyLength),
        ("POST http://a.test/ HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", HeadError::BodyLength),
        (
            "POST http://a.test/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            HeadError::BodyLength,
        ),
        ("POST http://a.test/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", HeadError::BodyLength),
        ("POST http://a.test/ HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", HeadError::BodyLength),
        ("POST http://a.test/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", HeadError::BodyLength),
    ] {
        assert_eq!(parse(head), Err(error), "{head}");
    }
    let many = "A: 1\r\n".repeat(MAX_HEADERS + 1);
    assert_eq!(parse(&format!("GET http://a.test/ HTTP/1.1\r\n{many}\r\n")), Err(HeadError::TooManyHeaders));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        drop(parse_head(&bytes));
        host_header(&bytes).for_each(drop);
    }

    /// Whatever is accepted: the head for the server names the host that was decided about, exactly once.
    #[test]
    fn forwarded_heads_name_exactly_the_decided_host(
        url in "(http|HTTP)://[a-c.:0-9@\\[\\]%/?#\\\\ -]{1,12}(/[a-z]{0,3})?",
        name in "(Host|host|X-Host|Connection|Content-Length|Transfer-Encoding)",
        value in "[a-c.:0-9 ,]{0,8}|chunked|close",
    ) {
        let text = format!("GET {url} HTTP/1.1\r\n{name}: {value}\r\n\r\n");
        if let Ok(RequestHead { target: RequestTarget::Forward(request), .. }) = parse_head(text.as_bytes()) {
            let head = request.origin_head();
            let hosts: Vec<&[u8]> = host_header(&head).collect();
            prop_assert_eq!(hosts.len(), 1);
            let host = std::str::from_utf8(hosts[0]).unwrap();
            prop_assert_eq!(parse_authority(host), Some(request.host.clone()));
            prop_assert!(head.ends_with(b"\r\n\r\n"));
            prop_assert_eq!(head.windows(4).filter(|part| *part == b"\r\n\r\n").count(), 1);
        }
    }
}
