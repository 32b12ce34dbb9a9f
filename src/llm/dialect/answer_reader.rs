//! Sends a request to a model and reads the answer while it arrives.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt as _, Stream};
use genai::chat::{StopReason, ToolCall};
use http_body_util::BodyExt as _;
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio::time::{timeout, timeout_at};

use super::event_lines::{EventError, EventLines};
use crate::conversation::Usage;
use crate::llm::MAX_ANSWER;

/// How long a provider may take until it begins to answer. A local server first loads the model and reads the prompt.
const HEADER_TIMEOUT: Duration = Duration::from_secs(600);
/// How long an answer may pause.
const READ_TIMEOUT: Duration = Duration::from_secs(300);
/// How long the body of a complete answer may take to end. A new connection takes about as long.
const REST_TIMEOUT: Duration = Duration::from_millis(100);

/// How long a complete answer may stay open.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the body of an error may take.
const ERROR_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of the body of an error response that are read.
const MAX_ERROR: usize = 64 << 10;

/// The events of an answer. Nothing follows the end or an error.
pub(in crate::llm) type AnswerEvents = BoxStream<'static, Result<AnswerEvent, ProviderError>>;

/// A piece of an answer.
#[derive(Debug)]
pub(in crate::llm) enum AnswerEvent {
    /// The provider accepted the request.
    Started,
    Text(String),
    Thought(String),
    /// Bytes of a call, or tokens that the provider states before the end.
    Progress {
        bytes: usize,
        usage: Option<Usage>,
    },
    End(AnswerEnd),
}

/// What is known at the end of an answer.
#[derive(Debug, Default)]
pub(in crate::llm) struct AnswerEnd {
    pub(in crate::llm) calls: Vec<ToolCall>,
    pub(in crate::llm) usage: Usage,
    /// `None` if the provider gave no reason.
    pub(in crate::llm) stop: Option<StopReason>,
}

/// Why there is no answer, or no end of it.
#[derive(Debug, thiserror::Error)]
pub(in crate::llm) enum ProviderError {
    #[error("the connection failed")]
    Connection(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the provider answered {status}")]
    Status { status: StatusCode, headers: Box<HeaderMap>, body: String },
    /// The provider reported an error in the middle of the answer.
    #[error("the provider reported an error")]
    Reported(Value),
    /// The provider refuses the prompt, for this reason.
    #[error("the provider blocked the prompt")]
    Blocked(String),
    /// The answer is not complete, for this reason.
    #[error("the answer broke off")]
    BrokenOff(String),
    /// The provider stopped the answer for this reason, and would stop it again.
    #[error("the provider stopped the answer")]
    Stopped(String),
    /// A response with a status of success has this text.
    #[error("the answer is not an event stream")]
    Foreign(String),
    #[error("an event of its answer is not valid")]
    Malformed(#[from] serde_json::Error),
    #[error(transparent)]
    Events(#[from] EventError),
    #[error("the arguments of its calls are too long")]
    CallsTooLong,
}

/// Why a response stopped arriving.
#[derive(Debug, thiserror::Error)]
enum Timeout {
    #[error("no answer began within {} s", HEADER_TIMEOUT.as_secs())]
    Head,
    #[error("nothing of the answer arrived for {} s", READ_TIMEOUT.as_secs())]
    Read,
}

/// Whether more events of an answer follow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum AnswerState {
    Open,
    /// The answer is complete if it ends now. More may follow, at any time.
    CompleteAtEnd,
    /// The answer has all that it needs. More may follow, but not for long.
    Complete,
    Over,
}

/// Counts the memory of calls, which stay until the answer ends.
#[derive(Default)]
pub(super) struct CallSize(usize);

impl CallSize {
    /// Counts a call, besides its texts.
    pub(super) fn add_call(&mut self) -> Result<(), ProviderError> {
        self.add(2 * size_of::<ToolCall>())
    }

    /// Fails if the calls take too much memory together.
    pub(super) fn add(&mut self, bytes: usize) -> Result<(), ProviderError> {
        self.0 += bytes;
        if self.0 > MAX_ANSWER { Err(ProviderError::CallsTooLong) } else { Ok(()) }
    }
}

pub(super) type AnswerQueue = VecDeque<Result<AnswerEvent, ProviderError>>;

/// Decodes the events of one answer in one dialect.
pub(super) trait EventDecoder: Send {
    /// Decodes an event. `name` is empty if it has none.
    fn decode(&mut self, name: &str, data: &str, events: &mut AnswerQueue) -> Result<AnswerState, ProviderError>;

    /// Returns the end of an answer that has no event for it. `None` if the answer is not complete.
    fn finish(&mut self) -> Option<Result<AnswerEnd, ProviderError>> {
        None
    }
}

/// Decodes the bytes of one answer.
pub(super) struct StreamDecoder {
    lines: EventLines,
    decoder: Box<dyn EventDecoder>,
    state: AnswerState,
}

impl StreamDecoder {
    pub(super) fn new(decoder: Box<dyn EventDecoder>) -> Self {
        Self { lines: EventLines::default(), decoder, state: AnswerState::Open }
    }

    /// Decodes the next bytes, which may end anywhere.
    pub(super) fn feed(&mut self, bytes: &[u8], events: &mut AnswerQueue) {
        let Self { lines, decoder, state } = self;
        let fed = lines.feed(bytes, |name, data| decode(decoder.as_mut(), state, name, data, events));
        self.note(fed, events);
    }

    /// Decodes an event that the end of the bytes ends, and ends the answer if it is complete.
    pub(super) fn finish(&mut self, events: &mut AnswerQueue) {
        let Self { lines, decoder, state } = self;
        let finished = lines.finish(|name, data| decode(decoder.as_mut(), state, name, data, events));
        self.note(finished, events);
        if self.state == AnswerState::CompleteAtEnd {
            self.state = AnswerState::Complete;
        }
        self.end(events);
        if self.state == AnswerState::Open
            && let Some(text) = self.lines.foreign_text()
        {
            self.state = AnswerState::Over;
            events.push_back(Err(ProviderError::Foreign(text.to_owned())));
        }
    }

    /// Ends the answer if it is complete. Returns false if it is not.
    fn end(&mut self, events: &mut AnswerQueue) -> bool {
        let is_complete = self.state == AnswerState::Complete;
        if is_complete {
            self.state = AnswerState::Over;
            events.extend(self.decoder.finish().map(|end| end.map(AnswerEvent::End)));
        }
        is_complete
    }

    fn note(&mut self, result: Result<(), EventError>, events: &mut AnswerQueue) {
        if let Err(error) = result
            && self.state != AnswerState::Over
        {
            self.state = AnswerState::Over;
            events.push_back(Err(error.into()));
        }
    }
}

/// Decodes an event, if the answer is not over.
fn decode(decoder: &mut dyn EventDecoder, state: &mut AnswerState, name: &str, data: &str, events: &mut AnswerQueue) {
    if *state == AnswerState::Over {
        return;
    }
    match decoder.decode(name, data, events) {
        Ok(next) => *state = next,
        Err(error) => {
            *state = AnswerState::Over;
            events.push_back(Err(error));
        }
    }
}

/// Where the next bytes of an answer come from.
enum AnswerSource {
    Request(BoxFuture<'static, Result<reqwest::Response, ProviderError>>),
    Body(reqwest::Body),
    /// The answer is complete, but its body is not. Dropping the body would close the connection.
    Rest(reqwest::Body),
    End,
}

/// Reads one answer. It implements [`Stream`] without futures, which would be moved for each piece.
pub(super) struct AnswerReader {
    source: AnswerSource,
    decoder: StreamDecoder,
    /// Events that were decoded and not returned yet: one read contains many.
    ready: AnswerQueue,
    /// Ends when the answer has paused for too long.
    read_timer: Pin<Box<tokio::time::Sleep>>,
}

impl AnswerReader {
    /// The first poll sends the request.
    pub(super) fn new(request: reqwest::RequestBuilder, decoder: Box<dyn EventDecoder>) -> Self {
        Self {
            source: AnswerSource::Request(Box::pin(send_request(request))),
            decoder: StreamDecoder::new(decoder),
            ready: VecDeque::new(),
            read_timer: Box::pin(tokio::time::sleep(READ_TIMEOUT)),
        }
    }

    fn restart_timer(&mut self) {
        let limit = if self.decoder.state == AnswerState::Complete { END_TIMEOUT } else { READ_TIMEOUT };
        self.read_timer.as_mut().reset(tokio::time::Instant::now() + limit);
    }

    /// Reads no more of the answer, which is over. If it is complete, the body should end at once.
    fn leave_body(&mut self) {
        let source = std::mem::replace(&mut self.source, AnswerSource::End);
        if let (AnswerSource::Body(body), Some(Ok(_))) = (source, self.ready.back()) {
            self.source = AnswerSource::Rest(body);
            self.read_timer.as_mut().reset(tokio::time::Instant::now() + REST_TIMEOUT);
        }
    }

    /// Ends the answer with an error, unless it is complete.
    fn fail(&mut self, error: ProviderError) {
        if !self.decoder.end(&mut self.ready) {
            self.ready.push_back(Err(error));
        }
        self.source = AnswerSource::End;
    }
}

impl Stream for AnswerReader {
    type Item = Result<AnswerEvent, ProviderError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            // A caller that gets the end drops the reader, and the body with it.
            let waits = matches!(self.source, AnswerSource::Rest(_))
                && matches!(self.ready.front(), Some(Ok(AnswerEvent::End(_))));
            if !waits && let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(event));
            }
            let reader = &mut *self;
            match &mut reader.source {
                AnswerSource::End => return Poll::Ready(None),
                AnswerSource::Rest(body) => {
                    let is_late = reader.read_timer.poll_unpin(context).is_ready();
                    if is_late || !matches!(ready!(body.frame().poll_unpin(context)), Some(Ok(_))) {
                        reader.source = AnswerSource::End;
                    }
                }
                AnswerSource::Request(request) => match ready!(request.poll_unpin(context)) {
                    Ok(response) => {
                        reader.source = AnswerSource::Body(response.into());
                        reader.ready.push_back(Ok(AnswerEvent::Started));
                        reader.restart_timer();
                    }
                    Err(error) => reader.fail(error),
                },
                AnswerSource::Body(body) => match body.frame().poll_unpin(context) {
                    Poll::Ready(Some(Ok(frame))) => {
                        // A frame without data has headers that follow the body.
                        if let Ok(bytes) = frame.into_data() {
                            reader.decoder.feed(&bytes, &mut reader.ready);
                        }
                        reader.restart_timer();
                        if reader.decoder.state == AnswerState::Over {
                            reader.leave_body();
                        }
                    }
                    Poll::Ready(None) => {
                        reader.decoder.finish(&mut reader.ready);
                        reader.source = AnswerSource::End;
                    }
                    Poll::Ready(Some(Err(error))) => reader.fail(ProviderError::Connection(error.into())),
                    Poll::Pending => {
                        ready!(reader.read_timer.poll_unpin(context));
                        reader.fail(ProviderError::Connection(Timeout::Read.into()));
                    }
                },
            }
        }
    }
}

/// Sends the request and waits for the head of the response. Fails if the status is not a success.
async fn send_request(request: reqwest::RequestBuilder) -> Result<reqwest::Response, ProviderError> {
    let response = match timeout(HEADER_TIMEOUT, request.send()).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(ProviderError::Connection(without_query(error).into())),
        Err(_) => return Err(ProviderError::Connection(Timeout::Head.into())),
    };
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let headers = Box::new(response.headers().clone());
    let body = read_error(response).await;
    Err(ProviderError::Status { status, headers, body })
}

/// Removes the query from the address that an error shows: it may have a key.
fn without_query(mut error: reqwest::Error) -> reqwest::Error {
    if let Some(url) = error.url_mut() {
        url.set_query(None);
    }
    error
}

/// Reads the begin of the body of an error response, or what arrives of it.
async fn read_error(mut response: reqwest::Response) -> String {
    let mut body = Vec::new();
    let end = tokio::time::Instant::now() + ERROR_TIMEOUT;
    while body.len() < MAX_ERROR
        && let Ok(Ok(Some(bytes))) = timeout_at(end, response.chunk()).await
    {
        body.extend_from_slice(&bytes);
    }
    String::from_utf8_lossy(&body).into_owned()
}
