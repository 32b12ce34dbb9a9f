//! Asks a model over HTTP, in the dialect of its provider.
//!
//! Invariant: an answer takes limited memory, however its events and errors look.

mod answer_reader;
mod anthropic;
mod completions;
mod event_lines;
mod gemini;
mod json_size;
mod tool_texts;

use std::borrow::Cow;
use std::sync::Arc;

use futures::StreamExt as _;
use genai::ServiceTarget;
use genai::adapter::AdapterKind;
use genai::chat::ChatMessage;
use genai::resolver::AuthData;
use reqwest::RequestBuilder;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use serde_json::value::RawValue;

use super::OfferedTool;
use crate::conversation::Usage;
pub(super) use answer_reader::{AnswerEnd, AnswerEvent, AnswerEvents, ProviderError};
use answer_reader::{AnswerReader, EventDecoder};
use anthropic::Anthropic;
use completions::Completions;
pub(super) use event_lines::EventError;
use gemini::Gemini;
use tool_texts::ToolTexts;

/// How a provider writes requests and answers.
trait Dialect: Send + Sync {
    /// Returns the parts of the path of a request, below the address of the provider.
    fn path(&self) -> Vec<String>;

    /// Returns a parameter that the query of the address must have.
    fn parameter(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Adds the key to a request.
    fn authorize(&self, request: RequestBuilder, key: &str) -> RequestBuilder;

    /// Returns the tools of a request as JSON.
    fn write_tools(&self, tools: &[OfferedTool]) -> serde_json::Result<Box<RawValue>>;

    /// Returns the body of a request with these tools.
    fn write_body(&self, tools: Option<&RawValue>, messages: &[ChatMessage]) -> serde_json::Result<Vec<u8>>;

    /// Returns a decoder for one answer.
    fn decoder(&self) -> Box<dyn EventDecoder>;
}

/// Sends requests to one model.
pub(super) struct ModelClient {
    http: reqwest::Client,
    url: reqwest::Url,
    key: String,
    dialect: Box<dyn Dialect>,
    tool_texts: ToolTexts,
}

impl ModelClient {
    /// Fails if the address of the target is not a URL.
    pub(super) fn new(target: &ServiceTarget, http: reqwest::Client) -> Result<Self, url::ParseError> {
        let model = &target.model.model_name;
        let dialect: Box<dyn Dialect> = match target.model.adapter_kind {
            AdapterKind::Anthropic => Box::new(Anthropic::new(model)),
            AdapterKind::Gemini => Box::new(Gemini::new(model)),
            provider => Box::new(Completions::new(provider, model)),
        };
        let mut url = reqwest::Url::parse(target.endpoint.base_url())?;
        // A name that is a part of the path cannot lead elsewhere: the parts are encoded.
        let parts = url.path_segments_mut().map_err(|()| url::ParseError::RelativeUrlWithCannotBeABaseBase);
        parts?.pop_if_empty().extend(dialect.path());
        if let Some((name, value)) = dialect.parameter() {
            url.query_pairs_mut().append_pair(name, value);
        }
        let key = match &target.auth {
            AuthData::Key(key) => key.clone(),
            _ => String::new(),
        };
        Ok(Self { http, url, key, dialect, tool_texts: ToolTexts::default() })
    }

    /// Returns the events of the answer. The first poll sends the request. Fails if the request cannot be written as
    /// JSON.
    pub(super) fn ask(
        &self,
        messages: &[ChatMessage],
        tools: &Arc<[OfferedTool]>,
    ) -> Result<AnswerEvents, serde_json::Error> {
        let tools = self.tool_texts.text(tools, |tools| self.dialect.write_tools(tools))?;
        let body = self.dialect.write_body(tools.as_deref(), messages)?;
        let request = self.http.post(self.url.clone()).header(CONTENT_TYPE, "application/json").body(body);
        let request = self.dialect.authorize(request, &self.key);
        Ok(AnswerReader::new(request, self.dialect.decoder()).boxed())
    }
}

/// Adds a header that no log may show. A key that is not a valid header makes the request fail.
fn secret_header(request: RequestBuilder, name: &'static str, key: &str) -> RequestBuilder {
    match HeaderValue::from_str(key) {
        Ok(mut value) => {
            value.set_sensitive(true);
            request.header(name, value)
        }
        Err(_) => request.header(name, key),
    }
}

/// Returns true if the provider should cache the request up to this message.
fn is_cached(message: &ChatMessage) -> bool {
    message.options.as_ref().is_some_and(|options| options.cache_control.is_some())
}

/// Joins the texts of a message with a blank line between two.
fn join_texts<'a>(texts: &[&'a str]) -> Cow<'a, str> {
    if let &[text] = texts {
        return Cow::Borrowed(text);
    }
    let mut joined = String::new();
    for text in texts {
        if joined.ends_with('\n') {
            joined.push('\n');
        } else if !joined.is_empty() {
            joined.push_str("\n\n");
        }
        joined.push_str(text);
    }
    Cow::Owned(joined)
}

/// Takes a text out of an event. `None` if there is none, or something else.
fn take_string(value: Option<&mut Value>) -> Option<String> {
    match value.map(Value::take) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

/// Returns a number of tokens. `None` if the value is not such a number.
fn token_count(value: &Value) -> Option<u64> {
    u64::from(u32::try_from(value.as_i64()?).ok()?).into()
}

/// Converts the usage of OpenAI's dialect. Negative numbers count as none.
pub(super) fn usage_from(usage: &genai::chat::Usage) -> Usage {
    let count = |tokens: Option<i32>| tokens.and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or_default();
    let cached = usage.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens);
    Usage { input: count(usage.prompt_tokens), output: count(usage.completion_tokens), cached: count(cached) }
}

/// Returns the events in the pieces of an answer in OpenAI's dialect, for the fuzzer.
#[cfg(any(test, fuzzing))]
pub fn decode_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let dialect = Completions::new(AdapterKind::OpenAI, &genai::ModelName::from("model"));
    let mut decoder = answer_reader::StreamDecoder::new(dialect.decoder());
    let mut events = std::collections::VecDeque::new();
    for piece in pieces {
        decoder.feed(piece, &mut events);
    }
    decoder.finish(&mut events);
    events.iter().map(|event| format!("{event:?}")).collect()
}
