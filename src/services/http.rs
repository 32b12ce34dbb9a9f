//! Connects to an MCP server over streamable HTTP, of either protocol era.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use reqwest::header::{HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use rmcp::model::{ClientJsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::Sse;

use super::environment::{Environment, MissingVariableError};
use super::replies::{error_for, requests_of};
use crate::manifest::HttpTransport;
use crate::network::{self, RemoteHost};
use crate::tool::RequirementError;

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
/// Maximum bytes to read until the first event of that stream.
const MAX_FIRST_EVENT: usize = 4096;

/// Prepares a connection. `requirements` are headers with the addresses of required services. Fails if there are any
/// and the server is not on this machine: it could not reach them, and another machine must not learn them.
pub(super) fn start(
    transport: &HttpTransport,
    environment: &Environment,
    requirements: &BTreeMap<String, String>,
) -> Result<StreamableHttpClientTransport<CheckedClient>, HttpSetupError> {
    let url = environment.fill_in(&transport.url)?;
    if !requirements.is_empty() && !RemoteHost::of_url(&url).is_some_and(|host| host.is_loopback()) {
        return Err(RequirementError::Remote.into());
    }
    let config = StreamableHttpClientTransportConfig::with_uri(url)
        .custom_headers(headers(transport, environment, requirements)?)
        // With reinit, rmcp resends a call that was answered with 404. Only the server claims that it did not run
        // the call.
        .reinit_on_expired_session(false);
    Ok(StreamableHttpClientTransport::with_client(CheckedClient(client()?), config))
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

/// rmcp's HTTP client, which skips an unreadable answer in a stream. This wrapper turns such an answer into an
/// error.
#[derive(Debug, Clone)]
pub(super) struct CheckedClient(reqwest::Client);

type Headers = HashMap<HeaderName, HeaderValue>;
type Events = BoxStream<'static, Result<Sse, SseError>>;
type HttpError = StreamableHttpError<reqwest::Error>;

/// Formats an error with its causes. rmcp's error of an HTTP client hides the causes of the error inside it.
pub(super) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let inner = |error: &'_ (dyn std::error::Error + 'static)| match error.downcast_ref::<HttpError>() {
        Some(StreamableHttpError::Client(client)) => Some(chain(client)),
        _ => None,
    };
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.into_iter().find_map(inner).unwrap_or_else(|| chain(error))
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
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
        let asked = request_id(&message);
        let posted = self.0.post_message(uri, message, session_id, auth_header, custom_headers).await?;
        Ok(check_events(posted, asked))
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
        max_sse_event_size: usize,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let asked = request_id(&message);
        let limit = max_sse_event_size;
        let posting =
            self.0.post_message_with_max_sse_event_size(uri, message, session_id, auth_header, custom_headers, limit);
        Ok(check_events(posting.await?, asked))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<(), HttpError> {
        self.0.delete_session(uri, session_id, auth_header, custom_headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<Events, HttpError> {
        self.0.get_stream(uri, session_id, last_event_id, auth_header, custom_headers).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: Headers,
        max_sse_event_size: usize,
    ) -> Result<Events, HttpError> {
        let (id, last, limit) = (session_id, last_event_id, max_sse_event_size);
        self.0.get_stream_with_max_sse_event_size(uri, id, last, auth_header, custom_headers, limit).await
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
