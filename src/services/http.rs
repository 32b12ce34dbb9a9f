//! Connects to an MCP server over streamable HTTP, of either protocol era, with the user's login if there is one.

mod event_stream;
mod post;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use reqwest::StatusCode;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use rmcp::model::{ClientJsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, SseError, StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::Sse;

use super::environment::{Environment, MissingVariableError};
use super::login::{LoginError, LoginStore, RightsRefusal, ServiceLogin, rights_refusal};
use super::replies::{error_for, requests_of};
use crate::ids::ServiceName;
use crate::manifest::HttpTransport;
use crate::network::{self, RemoteHost};
use crate::task::TaskScope;
use crate::tool::RequirementError;
use post::Post;

/// Maximum number of redirects for one request.
const MAX_REDIRECTS: usize = 10;

/// The reason why an HTTP connection cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpSetupError {
    #[error(transparent)]
    Variable(#[from] MissingVariableError),
    #[error(transparent)]
    Requirement(#[from] RequirementError),
    #[error("`{header}` is not a header name")]
    HeaderName { header: String },
    #[error("the value of the header `{header}` is not valid")]
    HeaderValue { header: String },
    #[error("no HTTP client can be made: {0}")]
    Client(#[source] reqwest::Error),
}

/// Time for a server to begin the stream of the old transport.
const OLD_TRANSPORT_TIME: Duration = Duration::from_secs(2);
/// Maximum bytes of an event, or of an answer in JSON. rmcp's transport gets it too, so that this is the only limit.
const MAX_EVENT: usize = 16 * 1024 * 1024;
/// Maximum bytes to read until the first event of that stream.
const MAX_FIRST_EVENT: usize = 4096;

/// Returns the login of a service, with a token that is not about to expire. `None` if the manifest has its own
/// `Authorization` header, or the address is not safe for tokens. Boxed for the same reason as
/// [`speaks_old_transport`].
pub(super) fn login<'a>(
    service: &'a ServiceName,
    transport: &'a HttpTransport,
    environment: &'a Environment,
    store: &'a Arc<dyn LoginStore>,
    scope: &'a TaskScope,
) -> BoxFuture<'a, Result<Option<Arc<ServiceLogin>>, HttpSetupError>> {
    Box::pin(async move {
        let has_own = transport.headers.keys().any(|name| name.eq_ignore_ascii_case(AUTHORIZATION.as_str()));
        if has_own {
            return Ok(None);
        }
        let url = environment.fill_in(&transport.url)?;
        let login = match ServiceLogin::load(service.clone(), url, Arc::clone(store), scope.clone()).await {
            Ok(login) => login,
            Err(error) => {
                tracing::debug!(%service, %error, "no login is used");
                return Ok(None);
            }
        };
        // Renews the token before the time limits of the handshake begin. The first request reports a failure.
        drop(login.token().await);
        Ok(Some(login))
    })
}

/// The name of a service, and the login that its requests show.
#[derive(Debug)]
pub(super) struct ServiceIdentity {
    pub(super) service: ServiceName,
    /// `None` if the service gets no token from Skein.
    pub(super) login: Option<Arc<ServiceLogin>>,
}

/// Prepares a connection. `requirements` are headers with the addresses of required services. Fails if there are any
/// and the server is not on this machine: it could not reach them, and another machine must not learn them.
pub(super) fn start(
    transport: &HttpTransport,
    environment: &Environment,
    requirements: &BTreeMap<String, String>,
    identity: ServiceIdentity,
) -> Result<StreamableHttpClientTransport<CheckedClient>, HttpSetupError> {
    let url = environment.fill_in(&transport.url)?;
    if !requirements.is_empty() && !RemoteHost::of_url(&url).is_some_and(|host| host.is_loopback()) {
        return Err(RequirementError::Remote.into());
    }
    let config = transport_config(url, headers(transport, environment, requirements)?);
    let client = CheckedClient { http: client()?, service: identity.service, login: identity.login };
    Ok(StreamableHttpClientTransport::with_client(client, config))
}

/// Returns the settings of rmcp's transport.
fn transport_config(url: String, headers: Headers) -> StreamableHttpClientTransportConfig {
    StreamableHttpClientTransportConfig::with_uri(url)
        .custom_headers(headers)
        .max_sse_event_size(MAX_EVENT)
        // With reinit, rmcp resends a call that was answered with 404. Only the server claims that it did not run
        // the call.
        .reinit_on_expired_session(false)
}

fn headers(
    transport: &HttpTransport,
    environment: &Environment,
    requirements: &BTreeMap<String, String>,
) -> Result<Headers, HttpSetupError> {
    let mut headers = HashMap::new();
    let of_manifest = transport.headers.iter().map(|(name, value)| (name, environment.fill_in(value)));
    let of_skein = requirements.iter().map(|(name, value)| (name, Ok(value.clone())));
    for (name, filled) in of_manifest.chain(of_skein) {
        let filled = filled?;
        let header =
            HeaderName::try_from(name.as_str()).map_err(|_| HttpSetupError::HeaderName { header: name.clone() })?;
        let mut value =
            HeaderValue::try_from(filled).map_err(|_| HttpSetupError::HeaderValue { header: name.clone() })?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

fn client() -> Result<reqwest::Client, HttpSetupError> {
    network::client_builder()
        // As in rmcp's client: a reused connection can stall for 40 ms.
        .pool_max_idle_per_host(0)
        .redirect(same_origin())
        .build()
        .map_err(HttpSetupError::Client)
}

/// Returns true if the server speaks the HTTP+SSE transport of MCP 2024-11-05: a GET opens a stream of events, and the
/// first one is `endpoint`. For a server that refused the newer transport. The future is boxed, because the compiler
/// cannot follow the types of the HTTP client as part of a session's future.
pub(super) fn speaks_old_transport<'a>(
    transport: &'a HttpTransport,
    environment: &'a Environment,
) -> BoxFuture<'a, bool> {
    Box::pin(async move {
        let first = tokio::time::timeout(OLD_TRANSPORT_TIME, first_event(transport, environment)).await;
        first.is_ok_and(|event| event.as_deref() == Some("endpoint"))
    })
}

/// Opens the stream of a server and returns the name of its first event. `None` if there is none.
async fn first_event(transport: &HttpTransport, environment: &Environment) -> Option<String> {
    let mut request = client().ok()?.get(environment.fill_in(&transport.url).ok()?);
    for (name, value) in headers(transport, environment, &BTreeMap::new()).ok()? {
        request = request.header(name, value);
    }
    let mut response = request.header("accept", "text/event-stream").send().await.ok()?.error_for_status().ok()?;
    let kind = response.headers().get("content-type")?.to_str().ok()?;
    if !kind.starts_with("text/event-stream") {
        return None;
    }
    let mut text = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        text.extend_from_slice(&chunk);
        let lines = String::from_utf8_lossy(&text).replace('\r', "");
        let complete = lines.rsplit_once('\n').map_or("", |(complete, _)| complete);
        if let Some(event) = complete.lines().find_map(|line| line.strip_prefix("event:")) {
            return Some(event.trim().to_owned());
        }
        if lines.contains("\n\n") || text.len() > MAX_FIRST_EVENT {
            return None;
        }
    }
    None
}

/// Follows only redirects that keep the message and stay on the same origin, so that no other origin receives
/// headers.
fn same_origin() -> Policy {
    Policy::custom(|attempt| {
        let keeps_message = matches!(attempt.status().as_u16(), 307 | 308);
        let first = attempt.previous().first();
        if !keeps_message || !first.is_some_and(|first| first.origin() == attempt.url().origin()) {
            attempt.stop()
        } else if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error(format!("more than {MAX_REDIRECTS} redirects"))
        } else {
            attempt.follow()
        }
    })
}

/// rmcp's HTTP client with its own POST, which limits what it reads. rmcp skips an unreadable answer in a stream, and
/// this client turns it into an error. It also sends the token of the login. It sends a request once more with a new
/// token if the server refused it with 401, or with 403 because the token lacks rights.
#[derive(Debug, Clone)]
pub(super) struct CheckedClient {
    http: reqwest::Client,
    service: ServiceName,
    /// `None` if the service gets no token from Skein.
    login: Option<Arc<ServiceLogin>>,
}

type Headers = HashMap<HeaderName, HeaderValue>;
type Events = BoxStream<'static, Result<Sse, SseError>>;
type HttpError = StreamableHttpError<reqwest::Error>;

/// Formats an error with its causes. rmcp's error of an HTTP client hides the causes of the error inside it.
pub(super) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let inner = |error: &'_ (dyn std::error::Error + 'static)| match error.downcast_ref::<HttpError>() {
        Some(StreamableHttpError::Client(client)) => Some(chain(client)),
        // The text is from `auth_error`.
        Some(StreamableHttpError::AuthRequired(error)) => Some(error.www_authenticate_header.clone()),
        _ => None,
    };
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.into_iter().find_map(inner).unwrap_or_else(|| chain(error))
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

impl CheckedClient {
    async fn token(&self) -> Result<Option<String>, HttpError> {
        match &self.login {
            Some(login) => login.token().await.map_err(|error| self.login_failure(&error)),
            None => Ok(None),
        }
    }

    /// Returns the token with which a refused request is sent again. Fails if the error has another reason, or there is
    /// no other token.
    async fn next_token(&self, error: HttpError, used: Option<String>) -> Result<String, HttpError> {
        if let Some(lack) = rights_problem(&error) {
            return self.wider_token(lack, used.as_deref()).await;
        }
        if !is_refusal(&error) {
            return Err(hide_token(error, used.as_deref()));
        }
        let Some(login) = &self.login else {
            return Err(auth_error("it refused the request (HTTP 401): check `headers` in its manifest".to_owned()));
        };
        match login.renew(used).await {
            Ok(Some(token)) => Ok(token),
            Ok(None) => Err(self.login_required("it wants a login")),
            Err(error) => Err(self.login_failure(&error)),
        }
    }

    /// Returns the token of a newer login, after a request that lacked rights. Fails if there is none. Then the next login
    /// asks for the rights.
    async fn wider_token(&self, lack: RightsRefusal, used: Option<&str>) -> Result<String, HttpError> {
        let Some(login) = &self.login else {
            let rights = format_rights(&lack);
            return Err(auth_error(format!(
                "it refused the request (HTTP 403): `headers` in its manifest lack {rights}"
            )));
        };
        match login.widen(used, lack.scope.as_deref()).await {
            Ok(Some(token)) => Ok(token),
            Ok(None) => Err(self.rights_required(&lack)),
            Err(error) => Err(auth_error(format!("its login lacks {}: {error}", format_rights(&lack)))),
        }
    }

    /// Returns the error of a request that was sent with a new token.
    fn final_error(&self, error: HttpError, used: &str) -> HttpError {
        match (rights_problem(&error), is_refusal(&error)) {
            (Some(lack), _) => self.rights_required(&lack),
            (None, true) => self.login_required("it does not accept its login"),
            (None, false) => hide_token(error, Some(used)),
        }
    }

    fn rights_required(&self, lack: &RightsRefusal) -> HttpError {
        self.login_required(&format!("its login lacks {}, which this request needs", format_rights(lack)))
    }

    fn login_failure(&self, error: &LoginError) -> HttpError {
        match error {
            LoginError::Refused { .. } => self.login_required("its login is no longer valid"),
            error => auth_error(format!("its login cannot be renewed: {error}")),
        }
    }

    fn login_required(&self, problem: &str) -> HttpError {
        auth_error(format!("{problem}: run `skein services login {}`", self.service))
    }
}

/// Returns an error with these words. rmcp's error has a text only for the challenge of the server.
fn auth_error(text: String) -> HttpError {
    StreamableHttpError::AuthRequired(AuthRequiredError::new(text))
}

/// Returns the rights that the login lacks. `None` if the server did not answer with 403 for this reason.
fn rights_problem(error: &HttpError) -> Option<RightsRefusal> {
    match error {
        StreamableHttpError::InsufficientScope(refusal) => rights_refusal(&refusal.www_authenticate_header),
        _ => None,
    }
}

fn format_rights(lack: &RightsRefusal) -> String {
    lack.scope.as_ref().map_or_else(|| "rights".to_owned(), |scope| format!("the rights `{scope}`"))
}

/// Returns whether the server answered with 401.
fn is_refusal(error: &HttpError) -> bool {
    match error {
        StreamableHttpError::AuthRequired(_) => true,
        StreamableHttpError::Client(error) => error.status() == Some(StatusCode::UNAUTHORIZED),
        _ => false,
    }
}

/// Removes the token from an answer that the error quotes.
fn hide_token(error: HttpError, token: Option<&str>) -> HttpError {
    match (error, token) {
        (StreamableHttpError::UnexpectedServerResponse(text), Some(token)) => {
            let mut hidden = text.replace(token, "(token)");
            // The text may end within the token, because only the beginning of an answer is read.
            let mut parts = (4..token.len()).rev().filter_map(|length| token.get(..length));
            if let Some(part) = parts.find(|part| hidden.ends_with(part)) {
                hidden.truncate(hidden.len() - part.len());
            }
            StreamableHttpError::UnexpectedServerResponse(hidden.into())
        }
        // The server chooses this text.
        (StreamableHttpError::InsufficientScope(_), _) => auth_error("it refused the request (HTTP 403)".to_owned()),
        (error, _) => error,
    }
}

impl StreamableHttpClient for CheckedClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        self.post_message_with_max_sse_event_size(uri, message, session_id, auth_header, custom_headers, MAX_EVENT)
            .await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: Headers,
        max_sse_event_size: usize,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let post = Post {
            http: &self.http,
            url: &uri,
            message: &message,
            session: session_id.as_deref(),
            headers: &custom_headers,
            max_answer: max_sse_event_size,
        };
        let token = self.token().await?;
        let posted = match post.send(token.as_deref()).await {
            Ok(posted) => posted,
            Err(error) => {
                let next = self.next_token(error, token).await?;
                post.send(Some(&next)).await.map_err(|error| self.final_error(error, &next))?
            }
        };
        Ok(check_events(posted, request_id(&message)))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<(), HttpError> {
        let token = self.token().await?;
        let deleted = self.http.delete_session(uri, session_id, token.clone(), custom_headers).await;
        deleted.map_err(|error| hide_token(error, token.as_deref()))
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<Events, HttpError> {
        let (id, last, limit) = (session_id, last_event_id, MAX_EVENT);
        self.get_stream_with_max_sse_event_size(uri, id, last, auth_header, custom_headers, limit).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: Headers,
        max_sse_event_size: usize,
    ) -> Result<Events, HttpError> {
        let limit = max_sse_event_size;
        let token = self.token().await?;
        let (id, last, headers) = (session_id.clone(), last_event_id.clone(), custom_headers.clone());
        let opening =
            self.http.get_stream_with_max_sse_event_size(uri.clone(), id, last, token.clone(), headers, limit);
        match opening.await {
            Ok(events) => Ok(events),
            Err(error) => {
                let next = self.next_token(error, token).await?;
                let (used, id, last) = (Some(next.clone()), session_id, last_event_id);
                let opening = self.http.get_stream_with_max_sse_event_size(uri, id, last, used, custom_headers, limit);
                opening.await.map_err(|error| self.final_error(error, &next))
            }
        }
    }
}

fn request_id(message: &ClientJsonRpcMessage) -> Option<RequestId> {
    match message {
        ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
        _ => None,
    }
}

/// Replaces unreadable answers to the request `asked` with errors.
fn check_events(posted: StreamableHttpPostResponse, asked: Option<RequestId>) -> StreamableHttpPostResponse {
    let (events, session, asked) = match (posted, asked) {
        (StreamableHttpPostResponse::Sse(events, session), Some(asked)) => (events, session, asked),
        (other, _) => return other,
    };
    let events = events.map(move |event| event.map(|event| readable(event, &asked)));
    StreamableHttpPostResponse::Sse(events.boxed(), session)
}

fn readable(mut event: Sse, asked: &RequestId) -> Sse {
    let is_message = matches!(event.event.as_deref(), None | Some("" | "message"));
    let Some(data) = event.data.as_deref().filter(|_| is_message) else { return event };
    if let Err(error) = serde_json::from_str::<ServerJsonRpcMessage>(data)
        && !requests_of(data.as_bytes(), &HashSet::from([asked.clone()])).is_empty()
    {
        event.data = Some(error_for(asked, &error.to_string()).to_string());
    }
    event
}

#[cfg(test)]
mod tests {
    use rmcp::model::{ClientRequest, PingRequest};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    fn checked_client() -> CheckedClient {
        CheckedClient { http: client().unwrap(), service: ServiceName::new("large"), login: None }
    }

    /// Accepts a connection, reads the request and sends the head of an answer.
    async fn begin_answer(listener: &TcpListener, head: &str) -> TcpStream {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
        let head = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }

    #[test]
    fn an_error_shows_no_part_of_a_token() {
        let shown = |text: &str| {
            let error = StreamableHttpError::UnexpectedServerResponse(text.to_owned().into());
            hide_token(error, Some("token-of-ann")).to_string()
        };
        assert!(shown("no: Bearer token-of-ann.").ends_with("no: Bearer (token)."));
        assert!(shown("no: Bearer token-of-an").ends_with("no: Bearer "), "the answer was cut off");
    }

    #[tokio::test]
    async fn an_event_of_a_service_that_is_too_large_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let config = transport_config(url, Headers::new());
        assert_eq!(config.max_sse_event_size, MAX_EVENT, "the transport has the same limit");
        let serve = async {
            let mut stream = begin_answer(&listener, "200 OK\r\ncontent-type: text/event-stream").await;
            // A client that gives up does not read all of it.
            drop(stream.write_all(format!("data: {}\n\n", "x".repeat(MAX_EVENT)).as_bytes()).await);
        };
        let client = checked_client();
        let read = async {
            // The transport opens its streams with its limit.
            let (uri, headers, limit) = (config.uri, config.custom_headers, config.max_sse_event_size);
            let opening = client.get_stream_with_max_sse_event_size(uri, None, None, None, headers, limit);
            opening.await.unwrap().next().await
        };
        let (event, ()) = tokio::join!(read, serve);
        assert!(matches!(event, Some(Err(SseError::Body(_)))));
    }

    /// Sends bytes until the client ends the connection. Fails if it does not.
    async fn send_without_end(mut stream: TcpStream) {
        let bytes = vec![b'x'; MAX_EVENT / 16];
        for _ in 0..128 {
            if stream.write_all(&bytes).await.is_err() {
                return;
            }
        }
        panic!("the client reads without a limit");
    }

    /// Returns the error of a request to a server that sends this head, then bytes without an end.
    async fn error_of_endless_answer(head: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let config = transport_config(url, Headers::new());
        let client = checked_client();
        let request = async {
            let ping = ClientRequest::PingRequest(PingRequest::default());
            let message = ClientJsonRpcMessage::request(ping, RequestId::Number(1));
            // The transport sends its messages with its limit.
            let (uri, headers, limit) = (config.uri, config.custom_headers, config.max_sse_event_size);
            let posting = client.post_message_with_max_sse_event_size(uri, message, None, None, headers, limit);
            match posting.await {
                Ok(StreamableHttpPostResponse::Json(answer, _)) => serde_json::to_string(&answer).unwrap(),
                Ok(StreamableHttpPostResponse::Sse(mut events, _)) => {
                    events.next().await.unwrap().unwrap().data.unwrap()
                }
                Ok(other) => panic!("{other:?}"),
                Err(error) => error.to_string(),
            }
        };
        let serve = async { send_without_end(begin_answer(&listener, head).await).await };
        tokio::join!(request, serve).0
    }

    /// The error in place of an answer that is too large.
    fn too_large() -> String {
        error_for(&RequestId::Number(1), "it has more than 16 MiB").to_string()
    }

    #[tokio::test]
    async fn an_answer_of_a_service_in_json_that_is_too_large_is_an_error() {
        let error = error_of_endless_answer("200 OK\r\ncontent-type: application/json").await;
        assert_eq!(error, too_large());
    }

    #[tokio::test]
    async fn an_event_that_is_too_large_fails_its_request() {
        let error = error_of_endless_answer("200 OK\r\ncontent-type: text/event-stream").await;
        assert_eq!(error, too_large());
    }

    #[tokio::test]
    async fn the_body_of_an_http_error_of_a_service_is_read_only_in_part() {
        let error = error_of_endless_answer("400 Bad Request\r\ncontent-type: text/plain").await;
        let body = error.strip_prefix("unexpected server response: HTTP 400 Bad Request: ");
        assert_eq!(body.map(str::len), Some(64 * 1024), "{error:.100}");
    }
}
