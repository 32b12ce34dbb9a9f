//! Parses the head of a request to the proxy, and writes the head that goes to the server.
//!
//! Invariant: the parser accepts one reading only. A head that two programs could read differently is refused, so that
//! no second request hides in a first one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::body::BodyLength;
use crate::network::RemoteHost;

/// Maximum size of a head.
pub(super) const MAX_HEAD: usize = 32 * 1024;
const MAX_HEADERS: usize = 128;
/// The headers that the proxy adds to a request: `Host`, `Connection` and its credentials.
const ADDED_HEADERS: usize = 3;
const HTTP: u16 = 80;

/// A request to the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestHead {
    pub(super) target: RequestTarget,
    pub(super) credentials: Option<ProxyCredentials>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestTarget {
    /// `CONNECT HOST:PORT`
    Tunnel(RemoteHost),
    /// `GET http://HOST/PATH`
    Forward(ForwardRequest),
}

/// A request in absolute form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ForwardRequest {
    pub(super) host: RemoteHost,
    pub(super) body: BodyLength,
    method: String,
    /// Path and query.
    path: String,
    version: HttpVersion,
    /// All but `Host` and the headers for the proxy itself.
    headers: Vec<(String, String)>,
}

/// The user name and password of the proxy's address, as the client sends them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProxyCredentials {
    pub(super) user: String,
    pub(super) password: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HttpVersion {
    V10,
    V11,
}

/// The reason why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeadError {
    #[error("the request line is malformed")]
    RequestLine,
    #[error("only HTTP/1.0 and HTTP/1.1 are supported")]
    Version,
    #[error("this is a proxy: send CONNECT HOST:PORT or an absolute http URL")]
    NoProxyRequest,
    #[error("the target is no host with a port")]
    Target,
    #[error("a header is malformed")]
    Header,
    #[error("there are too many headers")]
    TooManyHeaders,
    #[error("the Host header names another host than the URL")]
    OtherHost,
    #[error("the length of the body is ambiguous")]
    BodyLength,
}

/// Headers that belong to one connection and are not forwarded.
const HOP_HEADERS: [&str; 8] = [
    "connection",
    "proxy-connection",
    "proxy-authorization",
    "proxy-authenticate",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
];

/// Parses a head with its final empty line.
pub(super) fn parse_head(bytes: &[u8]) -> Result<RequestHead, HeadError> {
    let text = std::str::from_utf8(bytes).map_err(|_| HeadError::Header)?;
    let text = text.strip_suffix("\r\n\r\n").ok_or(HeadError::Header)?;
    let mut lines = text.split("\r\n");
    let (method, target, version) = parse_request_line(lines.next().unwrap_or_default())?;
    let headers = lines.map(parse_header).collect::<Result<Vec<_>, _>>()?;
    if headers.len() > MAX_HEADERS {
        return Err(HeadError::TooManyHeaders);
    }
    let credentials = values(&headers, "proxy-authorization").next().and_then(parse_basic);
    let target = if method == "CONNECT" {
        let host = RemoteHost::of_authority(target).ok_or(HeadError::Target)?;
        check_host(&headers, &host)?;
        RequestTarget::Tunnel(host)
    } else {
        RequestTarget::Forward(parse_forward(method, target, version, &headers)?)
    };
    Ok(RequestHead { target, credentials })
}

fn parse_request_line(line: &str) -> Result<(&str, &str, HttpVersion), HeadError> {
    let mut parts = line.split(' ');
    let (Some(method), Some(target), Some(version), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(HeadError::RequestLine);
    };
    let printable = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_control() || c == ' ');
    if !is_token(method) || !printable(target) {
        return Err(HeadError::RequestLine);
    }
    let version = match version {
        "HTTP/1.0" => HttpVersion::V10,
        "HTTP/1.1" => HttpVersion::V11,
        _ => return Err(HeadError::Version),
    };
    Ok((method, target, version))
}

fn parse_header(line: &str) -> Result<(String, String), HeadError> {
    let (name, value) = line.split_once(':').ok_or(HeadError::Header)?;
    // A folded line starts with a space, so its name is no token.
    if !is_token(name) || value.contains(|c: char| c.is_control() && c != '\t') {
        return Err(HeadError::Header);
    }
    Ok((name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned()))
}

fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

fn parse_forward(
    method: &str,
    target: &str,
    version: HttpVersion,
    headers: &[(String, String)],
) -> Result<ForwardRequest, HeadError> {
    let rest = match target.split_at_checked("http://".len()) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http://") => rest,
        _ => return Err(HeadError::NoProxyRequest),
    };
    if rest.contains('#') {
        return Err(HeadError::Target);
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let host = parse_authority(authority).ok_or(HeadError::Target)?;
    check_host(headers, &host)?;
    let body = body_length(headers)?;
    if body == BodyLength::Chunked && version == HttpVersion::V10 {
        return Err(HeadError::BodyLength);
    }
    let listed: Vec<String> = values(headers, "connection")
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    // The framing belongs to the message, even if a client calls it a header of the connection.
    if listed.iter().any(|name| ["content-length", "transfer-encoding", "host"].contains(&name.as_str())) {
        return Err(HeadError::Header);
    }
    let stays = |name: &str| name != "host" && !HOP_HEADERS.contains(&name) && !listed.iter().any(|hop| hop == name);
    let headers: Vec<_> = headers.iter().filter(|(name, _)| stays(name)).cloned().collect();
    // The next proxy may have the same limit.
    if headers.len() + ADDED_HEADERS > MAX_HEADERS {
        return Err(HeadError::TooManyHeaders);
    }
    Ok(ForwardRequest {
        host,
        body,
        method: method.to_owned(),
        path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
        version,
        headers,
    })
}

/// Parses `HOST` or `HOST:PORT` with the default port of http.
fn parse_authority(text: &str) -> Option<RemoteHost> {
    RemoteHost::of_authority(text).or_else(|| RemoteHost::new(text, HTTP))
}

/// Fails if there are several `Host` headers, or one that names another host.
fn check_host(headers: &[(String, String)], host: &RemoteHost) -> Result<(), HeadError> {
    let mut hosts = values(headers, "host");
    match (hosts.next(), hosts.next()) {
        (None, _) => Ok(()),
        (Some(value), None) => {
            let named = RemoteHost::of_authority(value).or_else(|| RemoteHost::new(value, host.port()));
            if named.as_ref() == Some(host) { Ok(()) } else { Err(HeadError::OtherHost) }
        }
        (Some(_), Some(_)) => Err(HeadError::OtherHost),
    }
}

fn body_length(headers: &[(String, String)]) -> Result<BodyLength, HeadError> {
    let mut lengths = values(headers, "content-length");
    let mut codings = values(headers, "transfer-encoding");
    match (lengths.next(), codings.next(), lengths.next(), codings.next()) {
        (None, None, None, None) => Ok(BodyLength::Bytes(0)),
        (Some(length), None, None, None) => {
            let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
            let length = length.parse().ok().filter(|_| digits);
            length.map(BodyLength::Bytes).ok_or(HeadError::BodyLength)
        }
        (None, Some(coding), None, None) if coding.eq_ignore_ascii_case("chunked") => Ok(BodyLength::Chunked),
        _ => Err(HeadError::BodyLength),
    }
}

fn values<'a>(headers: &'a [(String, String)], name: &'a str) -> impl Iterator<Item = &'a str> {
    headers.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
}

fn parse_basic(value: &str) -> Option<ProxyCredentials> {
    let (scheme, encoded) = value.split_once(' ')?;
    let decoded = STANDARD.decode(encoded.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let text = String::from_utf8(decoded).ok()?;
    let (user, password) = text.split_once(':')?;
    Some(ProxyCredentials { user: user.to_owned(), password: password.to_owned() })
}

impl ProxyCredentials {
    /// Returns the value of `Proxy-Authorization`.
    pub(super) fn to_header(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.user, self.password)))
    }
}

impl ForwardRequest {
    /// Writes the head for the server itself.
    pub(super) fn origin_head(&self) -> Vec<u8> {
        self.write_head(&self.path, None)
    }

    /// Writes the head for another proxy.
    pub(super) fn proxy_head(&self, credentials: Option<&ProxyCredentials>) -> Vec<u8> {
        self.write_head(&format!("http://{}{}", self.authority(), self.path), credentials)
    }

    fn authority(&self) -> String {
        if self.host.port() == HTTP { self.host.name().to_owned() } else { self.host.authority() }
    }

    fn write_head(&self, target: &str, credentials: Option<&ProxyCredentials>) -> Vec<u8> {
        let version = match self.version {
            HttpVersion::V10 => "HTTP/1.0",
            HttpVersion::V11 => "HTTP/1.1",
        };
        let mut head = format!("{} {target} {version}\r\nhost: {}\r\n", self.method, self.authority());
        for (name, value) in &self.headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        if let Some(credentials) = credentials {
            head.extend(["proxy-authorization: ", &credentials.to_header(), "\r\n"]);
        }
        // One request per connection: the proxy decides about each one.
        head.push_str("connection: close\r\n\r\n");
        head.into_bytes()
    }
}

/// Returns the values of all headers that a lenient server could take for `Host`.
pub(super) fn host_header(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    head.split(|byte| *byte == b'\n').skip(1).filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        line[..colon].trim_ascii().eq_ignore_ascii_case(b"host").then(|| line[colon + 1..].trim_ascii())
    })
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
