//! Asks a model in OpenAI's chat completions dialect, which most providers speak.
//!
//! genai speaks it, too. It copies the tools of a request three times, and builds a tree of values for every piece of
//! an answer. This client writes the text of the tools once per binding, and reads a piece of text without a tree.
//!
//! Invariant: requests and events are those of genai, which a test compares byte by byte. Only the words of an error may
//! differ if the connection breaks. Models for whose names genai changes the request stay with genai.

mod body;
mod decoder;
mod tool_texts;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt as _, Stream, StreamExt as _};
use genai::adapter::AdapterKind;
use genai::chat::{ChatMessage, ChatStreamEvent, ReasoningEffort};
use genai::resolver::AuthData;
use genai::webc::StreamTimeout;
use genai::{BoxError, ModelIden, ServiceTarget};
use http_body_util::BodyExt as _;
use reqwest::header::CONTENT_TYPE;
use tokio::time::timeout;

use super::OfferedTool;
use decoder::StreamDecoder;
use tool_texts::ToolTexts;

/// How long a provider may take until it begins to answer.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(120);
/// How long an answer may pause.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// Bytes of the body of an error response that are read.
const MAX_ERROR: usize = 64 << 10;

/// The events of an answer, in the types of genai.
pub(super) type AnswerEvents = BoxStream<'static, genai::Result<ChatStreamEvent>>;

/// A client of one model.
pub(super) struct CompletionsClient {
    http: reqwest::Client,
    url: reqwest::Url,
    key: String,
    model: ModelIden,
    tool_texts: ToolTexts,
}

impl CompletionsClient {
    /// Returns the client of a model. `None` if genai must ask it: the model speaks another dialect, its name changes
    /// the request, or its address is not valid.
    pub(super) fn for_target(target: &ServiceTarget, http: reqwest::Client) -> Option<Self> {
        let model = target.model.clone();
        if model.adapter_kind != AdapterKind::OpenAI || changes_request(&model.model_name) {
            return None;
        }
        let base = reqwest::Url::parse(target.endpoint.base_url()).ok()?;
        let mut url = base.join("chat/completions").ok()?;
        url.set_query(base.query());
        let AuthData::Key(key) = &target.auth else { return None };
        Some(Self { http, url, key: key.clone(), model, tool_texts: ToolTexts::default() })
    }

    /// Returns the events of the answer. The first poll sends the request. Fails if the request cannot be written as
    /// JSON.
    pub(super) fn ask(&self, messages: &[ChatMessage], tools: &Arc<[OfferedTool]>) -> genai::Result<AnswerEvents> {
        let tools = self.tool_texts.text(tools)?;
        let body = body::write_body(&self.model.model_name, tools.as_deref(), messages)?;
        let request = self.http.post(self.url.clone()).bearer_auth(&self.key);
        let request = request.header(CONTENT_TYPE, "application/json").body(body);
        let decoder = StreamDecoder::new(self.model.clone());
        let reader = AnswerReader {
            source: AnswerSource::Request(Box::pin(send_request(request, self.model.clone()))),
            decoder,
            ready: VecDeque::new(),
            model: self.model.clone(),
            read_timer: Box::pin(tokio::time::sleep(READ_TIMEOUT)),
        };
        Ok(reader.boxed())
    }
}

/// Returns true if genai changes the request because of the model's name: a namespace, an effort as a suffix, or an
/// OpenAI model with marks for the cache, which are those from 5.6 on. True for all names that may be such a model.
fn changes_request(name: &str) -> bool {
    name.contains("::") || ReasoningEffort::from_model_name(name).0.is_some() || may_mark_cache(name)
}

fn may_mark_cache(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("gpt") else { return false };
    let rest = rest.strip_prefix('-').unwrap_or(rest);
    let mut characters = rest.chars();
    match (characters.next(), characters.next(), characters.next(), characters.next()) {
        (Some('o'), ..) => false,
        (Some('3' | '4'), next, ..) => next.is_some_and(|next| next.is_ascii_digit()),
        (Some('5'), Some('.'), Some('0'..='5'), next) => next.is_some_and(|next| next.is_ascii_digit()),
        (Some('5'), next, ..) => next.is_some_and(|next| next == '.' || next.is_ascii_digit()),
        _ => true,
    }
}

/// Where the next bytes of an answer come from.
enum AnswerSource {
    Request(BoxFuture<'static, genai::Result<reqwest::Response>>),
    Body(reqwest::Body),
    End,
}

/// Reads one answer. It implements [`Stream`] without futures, which would be moved for each piece.
struct AnswerReader {
    source: AnswerSource,
    decoder: StreamDecoder,
    /// Events that were decoded and not returned yet: one read contains many.
    ready: VecDeque<genai::Result<ChatStreamEvent>>,
    model: ModelIden,
    /// Ends when the answer has paused for too long.
    read_timer: Pin<Box<tokio::time::Sleep>>,
}

impl Stream for AnswerReader {
    type Item = genai::Result<ChatStreamEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(event));
            }
            let reader = &mut *self;
            match &mut reader.source {
                AnswerSource::End => return Poll::Ready(None),
                AnswerSource::Request(request) => match ready!(request.poll_unpin(context)) {
                    Ok(response) => {
                        reader.source = AnswerSource::Body(response.into());
                        reader.restart_timer();
                    }
                    Err(error) => reader.fail(error),
                },
                AnswerSource::Body(body) => match body.frame().poll_unpin(context) {
                    Poll::Ready(Some(Ok(frame))) => {
                        reader.restart_timer();
                        // A frame without data has headers that follow the body.
                        if let Ok(bytes) = frame.into_data() {
                            reader.decoder.feed(&bytes, &mut reader.ready);
                        }
                        if reader.decoder.is_over() {
                            reader.source = AnswerSource::End;
                        }
                    }
                    Poll::Ready(None) => {
                        reader.decoder.finish(&mut reader.ready);
                        reader.source = AnswerSource::End;
                    }
                    Poll::Ready(Some(Err(error))) => reader.fail(stream_failure(&reader.model, error)),
                    Poll::Pending => {
                        ready!(reader.read_timer.poll_unpin(context));
                        reader.fail(stream_failure(&reader.model, StreamTimeout::Read));
                    }
                },
            }
        }
    }
}

impl AnswerReader {
    fn restart_timer(&mut self) {
        self.read_timer.as_mut().reset(tokio::time::Instant::now() + READ_TIMEOUT);
    }

    /// Ends the answer with an error.
    fn fail(&mut self, error: genai::Error) {
        self.ready.push_back(Err(error));
        self.source = AnswerSource::End;
    }
}

/// Sends the request and waits for the head of the response. Fails if the status is not a success.
async fn send_request(request: reqwest::RequestBuilder, model: ModelIden) -> genai::Result<reqwest::Response> {
    let response = match timeout(HEADER_TIMEOUT, request.send()).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(stream_failure(&model, without_query(error))),
        Err(_) => return Err(stream_failure(&model, StreamTimeout::Headers)),
    };
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let canonical_reason = status.canonical_reason().unwrap_or("Unknown").to_owned();
    let headers = Box::new(response.headers().clone());
    let body = read_error(response).await.unwrap_or_else(|error| format!("Failed to read error body: {error}"));
    Err(genai::Error::HttpError { status, canonical_reason, body, headers })
}

/// Removes the query from the address that an error shows: it may have a key.
fn without_query(mut error: reqwest::Error) -> reqwest::Error {
    if let Some(url) = error.url_mut() {
        url.set_query(None);
    }
    error
}

/// Reads the begin of the body of an error response.
async fn read_error(mut response: reqwest::Response) -> Result<String, BoxError> {
    let mut body = Vec::new();
    while body.len() < MAX_ERROR
        && let Some(bytes) = timeout(READ_TIMEOUT, response.chunk()).await.map_err(|_| StreamTimeout::Read)??
    {
        body.extend_from_slice(&bytes);
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Returns the error of a stream that broke.
fn stream_failure(model: &ModelIden, error: impl Into<BoxError>) -> genai::Error {
    let error = error.into();
    genai::Error::WebStream { model_iden: model.clone(), cause: error.to_string(), error }
}

/// Returns the events in the pieces of an answer, for the fuzzer.
#[cfg(any(test, fuzzing))]
pub fn decode_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let mut decoder = StreamDecoder::new(ModelIden::new(AdapterKind::OpenAI, "model"));
    let mut events = VecDeque::new();
    for piece in pieces {
        decoder.feed(piece, &mut events);
    }
    decoder.finish(&mut events);
    events.iter().map(|event| format!("{event:?}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_change_the_request_stay_with_genai() {
        let changed =
            ["gpt-5.6", "gpt-5.6-mini", "gpt-5.10", "gpt-6", "gpt-12", "gpt6", "gpt-41", "gpt-5-high", "a::b"];
        assert_eq!(changed.map(changes_request), changed.map(|_| true), "{changed:?}");
        let plain =
            ["gpt-4o", "gpt-4.1-mini", "gpt-5", "gpt-5.5", "gpt-5-mini", "gpt-oss-20b", "o3", "llama3.2", "a/b"];
        assert_eq!(plain.map(changes_request), plain.map(|_| false), "{plain:?}");
    }
}
