//! Sends requests to an authorization server: without redirects, with a time limit and a size limit.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{RequestBuilder, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::{Host, Url, form_urlencoded};

use super::{ClientAuthentication, ClientRegistration, LoginError};
use crate::network;

const TIME_LIMIT: Duration = Duration::from_secs(20);
const MAX_BYTES: usize = 256 * 1024;
/// Maximum length of an error code that is shown.
const MAX_CODE: usize = 60;

/// An HTTP client for the authorization server of one service.
#[derive(Debug, Clone)]
pub(super) struct LoginClient {
    http: reqwest::Client,
    /// True if the service is on this machine. Only then may the authorization server be, without TLS.
    is_local: bool,
}

/// The status and the body of an answer.
pub(super) struct LoginAnswer {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

impl LoginClient {
    /// Returns a client for the login at this service. Fails if the address of the service is not safe for tokens.
    pub(super) fn for_service(service: &Url) -> Result<Self, LoginError> {
        let http = network::client_builder().redirect(Policy::none()).timeout(TIME_LIMIT).build();
        let http = http.map_err(|error| LoginError::Unreachable { part: "the service", reason: reason(error) })?;
        let client = Self { http, is_local: is_loopback(service) };
        client.check(service.as_str())?;
        Ok(client)
    }

    /// Returns the address if secrets may be sent to it: with TLS, or on this machine if the service is there too.
    pub(super) fn check(&self, text: &str) -> Result<Url, LoginError> {
        let insecure = || LoginError::insecure_address(text);
        let url = Url::parse(text).map_err(|_| insecure())?;
        let has_user = !url.username().is_empty() || url.password().is_some();
        match url.scheme() {
            "https" if !has_user => Ok(url),
            "http" if !has_user && self.is_local && is_loopback(&url) => Ok(url),
            _ => Err(insecure()),
        }
    }

    /// Returns a JSON document. `None` if the server does not have it.
    pub(super) async fn document<T: DeserializeOwned>(
        &self,
        part: &'static str,
        url: &Url,
    ) -> Result<Option<T>, LoginError> {
        let answer = self.send(part, self.http.get(url.clone()).header("accept", "application/json")).await?;
        if !answer.status.is_success() {
            return Ok(None);
        }
        // The error of serde would quote the answer, and the path may be that of a service, with a secret.
        let origin = url.origin().ascii_serialization();
        let invalid = |_| LoginError::Invalid { part, problem: format!("{origin} has no such JSON") };
        serde_json::from_slice(&answer.body).map(Some).map_err(invalid)
    }

    pub(super) async fn post_json(
        &self,
        part: &'static str,
        url: &Url,
        body: &serde_json::Value,
    ) -> Result<LoginAnswer, LoginError> {
        let request = self.http.post(url.clone()).header("accept", "application/json");
        self.send(part, request.header("content-type", "application/json").body(body.to_string())).await
    }

    /// Sends a form as this client.
    pub(super) async fn post_form(
        &self,
        part: &'static str,
        url: &Url,
        client: &ClientRegistration,
        fields: &[(&str, &str)],
    ) -> Result<LoginAnswer, LoginError> {
        let request = self.http.post(url.clone()).header("accept", "application/json");
        let request = match (client.authentication, &client.client_secret) {
            (ClientAuthentication::ClientSecretBasic, Some(secret)) => {
                let encode = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
                request.basic_auth(encode(&client.client_id), Some(encode(secret)))
            }
            _ => request,
        };
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(form(client, fields));
        self.send(part, request).await
    }

    /// Sends a request of MCP without a token. Returns the challenges of the server if it wants a login.
    pub(super) async fn challenges(&self, service: &Url) -> Result<Option<Vec<String>>, LoginError> {
        let ping = serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
        let request = self.http.post(service.clone()).header("accept", "application/json, text/event-stream");
        let sent = request.header("content-type", "application/json").body(ping.to_string()).send().await;
        let response = sent.map_err(|error| LoginError::Unreachable { part: "the service", reason: reason(error) })?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(None);
        }
        let headers = response.headers().get_all("www-authenticate").iter();
        Ok(Some(headers.filter_map(|value| Some(value.to_str().ok()?.to_owned())).collect()))
    }

    async fn send(&self, part: &'static str, request: RequestBuilder) -> Result<LoginAnswer, LoginError> {
        let unreachable = |error| LoginError::Unreachable { part, reason: reason(error) };
        let mut response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_BYTES {
                let problem = format!("it has more than {} KiB", MAX_BYTES / 1024);
                return Err(LoginError::Invalid { part, problem });
            }
        }
        Ok(LoginAnswer { status, body })
    }
}

/// Returns the text of a form, with what identifies the client in it.
fn form(client: &ClientRegistration, fields: &[(&str, &str)]) -> String {
    let mut form = form_urlencoded::Serializer::new(String::new());
    for (name, value) in fields {
        form.append_pair(name, value);
    }
    if client.authentication != ClientAuthentication::ClientSecretBasic {
        form.append_pair("client_id", &client.client_id);
    }
    if let (ClientAuthentication::ClientSecretPost, Some(secret)) = (client.authentication, &client.client_secret) {
        form.append_pair("client_secret", secret);
    }
    form.finish()
}

impl LoginAnswer {
    /// Returns the body of a success as JSON. Fails with the server's error code, and never quotes the body.
    pub(super) fn json<T: DeserializeOwned>(&self, part: &'static str) -> Result<T, LoginError> {
        if !self.status.is_success() {
            return Err(self.failure(part));
        }
        let invalid = |_| LoginError::Invalid { part, problem: "the answer lacks a field, or is not JSON".to_owned() };
        serde_json::from_slice(&self.body).map_err(invalid)
    }

    /// Returns the error of an answer that is no success. The server has decided if it gives an OAuth error code.
    fn failure(&self, part: &'static str) -> LoginError {
        #[derive(Deserialize)]
        struct ErrorBody {
            error: String,
        }
        let code = serde_json::from_slice::<ErrorBody>(&self.body).ok().and_then(|body| error_code(&body.error));
        match code {
            Some(code) if self.status.is_client_error() && !is_temporary(&code) => LoginError::Refused { reason: code },
            Some(code) => LoginError::Unexpected { part, answer: format!("HTTP {}: {code}", self.status.as_u16()) },
            None => LoginError::Unexpected { part, answer: format!("HTTP {}", self.status.as_u16()) },
        }
    }
}

/// Returns an OAuth error code that is safe to show. `None` if the text has another form, because it may quote a token.
pub(super) fn error_code(text: &str) -> Option<String> {
    let is_code = text.len() <= MAX_CODE && text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    (is_code && !text.is_empty()).then(|| text.to_owned())
}

fn is_temporary(code: &str) -> bool {
    matches!(code, "temporarily_unavailable" | "server_error" | "slow_down")
}

pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Formats an error with its causes, without the address.
fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let causes = std::iter::successors(Some(&error as &(dyn std::error::Error + 'static)), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    fn client(service: &str) -> LoginClient {
        LoginClient::for_service(&Url::parse(service).unwrap()).unwrap()
    }

    #[test]
    fn secrets_go_only_to_safe_addresses() {
        let remote = client("https://api.example/mcp");
        assert!(remote.check("https://login.example/token").is_ok());
        for unsafe_url in ["http://login.example", "http://127.0.0.1/", "https://a:b@login.example", "file:///x", "x"] {
            assert!(remote.check(unsafe_url).is_err(), "{unsafe_url}");
        }
        let local = client("http://127.0.0.1:3000/mcp");
        assert!(local.check("http://localhost:4000/token").is_ok());
        assert!(local.check("http://login.example/token").is_err());
        assert!(LoginClient::for_service(&Url::parse("http://api.example/mcp").unwrap()).is_err());
    }

    #[test]
    fn failure_shows_a_code_and_never_the_body() {
        let answer = |status: u16, body: &str| LoginAnswer {
            status: StatusCode::from_u16(status).unwrap(),
            body: body.as_bytes().to_vec(),
        };
        let shown = |status, body| answer(status, body).failure("the token endpoint").to_string();
        assert_eq!(shown(400, r#"{"error": "invalid_grant"}"#), "the login was refused: invalid_grant");
        assert_eq!(shown(400, r#"{"error": "no token S3CRET"}"#), "the token endpoint answered with HTTP 400");
        assert_eq!(
            shown(503, r#"{"error": "temporarily_unavailable"}"#),
            "the token endpoint answered with HTTP 503: temporarily_unavailable"
        );
    }

    /// Reads a document of `size` bytes.
    async fn read_document(size: usize) -> Result<Option<String>, LoginError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let client = client(&url);
        let url = Url::parse(&url).unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n");
            let answer = format!("{head}\"{}\"", "x".repeat(size - 2));
            // A client that gives up does not read all of it.
            drop(stream.write_all(answer.as_bytes()).await);
            stream
        };
        tokio::join!(client.document("the metadata", &url), serve).0
    }

    #[tokio::test]
    async fn an_answer_of_the_login_that_is_too_large_is_refused() {
        let text = read_document(MAX_BYTES).await.unwrap();
        assert_eq!(text.map(|text| text.len()), Some(MAX_BYTES - 2));
        assert!(matches!(read_document(MAX_BYTES + 1).await, Err(LoginError::Invalid { .. })));
    }
}
