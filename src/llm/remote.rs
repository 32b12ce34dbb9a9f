//! Asks language models over HTTP, through the `genai` crate, which implements the providers' dialects.
//!
//! Invariant: keys come from the front end and go only to their provider. No error and no log contains a key.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream, Stream};
use genai::adapter::AdapterKind;
use genai::chat::{
    ChatMessage, ChatOptions, ChatRequest, ChatStreamEvent, MessageContent, StopReason, StreamEnd, Tool,
};
use genai::resolver::{AuthData, Endpoint};
use genai::{Client, ModelIden, ModelSpec, ServiceTarget};
use serde_json::{Map, Value};

use super::chat_history::chat_history;
use super::completions::{AnswerEvents, CompletionsClient, HEADER_TIMEOUT, READ_TIMEOUT};
use super::failure::{FailureKind, ProviderSecrets, RequestFailure};
use super::gemini::{self, PromptBlock};
use super::known_providers::{KNOWN, KnownProvider, OWN};
use super::queue::{QueueTicket, RequestPlace, RequestQueue};
use super::request_rules::RequestRules;
use super::{
    EarlierThoughts, LlmError, MAX_ANSWER, ModelInfo, ModelRegistry, ModelRequest, ModelStop, OfferedTool, Price,
    Provider, RequestOrigin, StreamEvent,
};
use crate::conversation::{ToolUse, Usage};
use crate::ids::ModelRef;
use crate::network;

/// How long a request waits in the queue before the user gets a notice.
const QUEUE_NOTICE: Duration = Duration::from_secs(1);

/// A model behind an HTTP API.
#[derive(Clone)]
pub struct HttpProvider {
    name: ModelRef,
    client: Client,
    /// Asks the model in place of genai, if genai is not necessary.
    completions: Option<Arc<CompletionsClient>>,
    /// Kept to remove them from error texts.
    secrets: ProviderSecrets,
    target: ServiceTarget,
    rules: RequestRules,
    facts: ModelInfo,
    /// The requests with this provider key.
    queue: RequestQueue,
    origin: RequestOrigin,
}

impl HttpProvider {
    /// Creates the provider for `provider:model`. Keys and addresses come from `variable`, which looks up the
    /// environment, or from `models`. Fails if the name is malformed, the provider unknown or its key missing.
    pub fn new(
        name: &ModelRef,
        models: &ModelRegistry,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, LlmError> {
        let unusable = |reason: String| LlmError::Unusable { model: name.to_string(), reason };
        let names = || {
            let added =
                models.providers.keys().map(String::as_str).filter(|name| KNOWN.iter().all(|it| it.name != *name));
            ModelRef::RESERVED
                .into_iter()
                .chain(KNOWN.iter().map(|it| it.name))
                .chain(added)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let ModelRef::Hosted { provider, model } = name else {
            return Err(unusable(format!("write it as provider:model; providers: {}", names())));
        };
        let configured = models.providers.get(provider);
        let known = KNOWN
            .iter()
            .find(|known| known.name == *provider)
            .or(configured.map(|_| &OWN))
            .ok_or_else(|| unusable(format!("there is no provider `{provider}`; there are: {}", names())))?;
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let base = known.base_variable.and_then(set).or(configured.and_then(|address| address.base_url.clone()));
        let has_own_address = base.is_some();
        models.policy.check(name, base.as_deref(), |base| address(known, base.map(str::to_owned)))?;
        let named = configured.and_then(|address| address.key.as_deref());
        let key_name = named.unwrap_or(known.key);
        let key = set(key_name);
        // A server at a configured address may need no key.
        if key.is_none() && !key_name.is_empty() && (base.is_none() || named.is_some()) {
            let (model, variable) = (name.to_string(), key_name.to_owned());
            return Err(LlmError::MissingKey { model, variable, note: String::new() });
        }
        let target = ServiceTarget {
            model: ModelIden::new(known.kind, model.as_str()),
            endpoint: Endpoint::from_owned(address(known, base)),
            auth: AuthData::Key(key.clone().unwrap_or_else(|| "none".to_owned())),
        };
        let http = network::client_builder()
            .connect_timeout(Duration::from_secs(20))
            // Only the provider that the user named may receive the key and the conversation, so redirects are not
            // followed.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        let completions = CompletionsClient::for_target(&target, http.clone()).map(Arc::new);
        let client = Client::builder().with_reqwest(http).build().map_err(|error| unusable(error.to_string()))?;
        let facts = models.info(name, has_own_address);
        let limits = configured.map(|address| address.limits).unwrap_or_default();
        let queue = models.queues.queue(target.endpoint.base_url(), key.as_deref(), limits);
        let secrets = ProviderSecrets::new(key.as_deref(), target.endpoint.base_url());
        let rules = RequestRules::new(known.kind, &name.to_string(), model, target.endpoint.base_url());
        let (name, origin) = (name.clone(), RequestOrigin::default());
        Ok(Self { name, client, completions, secrets, target, rules, facts, queue, origin })
    }

    /// Returns the same model, which genai always asks, for the fuzzer.
    #[cfg(any(test, fuzzing))]
    pub fn with_genai_only(self) -> Self {
        Self { completions: None, ..self }
    }

    /// Converts a request to the types of the client that sends it.
    fn prepare(&self, request: &ModelRequest) -> PreparedRequest {
        let messages = chat_history(request, &self.rules);
        match &self.completions {
            Some(client) => {
                let (client, tools) = (Arc::clone(client), Arc::clone(&request.tools));
                PreparedRequest::Completions { client, messages, tools }
            }
            None => PreparedRequest::Genai(with_tools(ChatRequest::new(messages), &request.tools)),
        }
    }

    async fn open(&self, request: PreparedRequest) -> Result<AnswerEvents, LlmError> {
        let request = match request {
            PreparedRequest::Completions { client, messages, tools } => {
                return client.ask(&messages, &tools).map_err(|error| self.failure(&error));
            }
            PreparedRequest::Genai(request) => request,
        };
        let mut options = ChatOptions::default()
            .with_capture_usage(true)
            .with_capture_tool_calls(true)
            .with_stream_header_timeout(HEADER_TIMEOUT)
            .with_stream_read_timeout(READ_TIMEOUT);
        let model = self.target.model.clone();
        let block = PromptBlock::default();
        if model.adapter_kind == AdapterKind::Gemini {
            options = block.watch(options);
        }
        let target = ModelSpec::Target(self.target.clone());
        let response = self.client.exec_chat_stream(target, request, Some(&options)).await;
        let stream = response.map_err(|error| self.failure(&error))?.stream;
        Ok(stream.map(move |event| block.explain(event, &model)).boxed())
    }

    fn failure(&self, error: &genai::Error) -> LlmError {
        let failed = RequestFailure::new(error, &self.secrets);
        let (model, reason) = (self.name.to_string(), failed.reason);
        match failed.kind {
            FailureKind::Lasting => LlmError::Failed { model, reason },
            FailureKind::Rejected(status) => LlmError::Rejected { model, status, reason },
            FailureKind::Transient { retry_after } => LlmError::Transient { model, reason, retry_after },
            FailureKind::RateLimited { retry_after } => LlmError::RateLimited { model, reason, retry_after },
            FailureKind::Overflow => LlmError::Overflow { model, reason },
        }
    }
}

impl std::fmt::Debug for HttpProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Remote({})", self.name)
    }
}

impl Provider for HttpProvider {
    fn name(&self) -> &ModelRef {
        &self.name
    }

    fn window(&self) -> Option<u64> {
        self.facts.window
    }

    fn address(&self) -> Option<&str> {
        Some(self.target.endpoint.base_url())
    }

    fn price(&self) -> Option<Price> {
        self.facts.price
    }

    fn earlier_thoughts(&self) -> EarlierThoughts {
        if self.rules.wants_thoughts { EarlierThoughts::Repeated } else { EarlierThoughts::LeftOut }
    }

    fn for_origin(&self, origin: &RequestOrigin) -> Option<Arc<dyn Provider>> {
        Some(Arc::new(Self { origin: origin.clone(), ..self.clone() }))
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
        let ticket = self.queue.enter(&self.origin);
        let begin = RequestStep::Queue { ticket, request: Box::new(self.prepare(&request)), is_told: false };
        stream::unfold(begin, |step| self.step(step)).flatten().boxed()
    }
}

/// A request in the types of the client that sends it.
enum PreparedRequest {
    Completions { client: Arc<CompletionsClient>, messages: Vec<ChatMessage>, tools: Arc<[OfferedTool]> },
    Genai(ChatRequest),
}

/// Where a request is on its way.
enum RequestStep {
    Queue { ticket: QueueTicket, request: Box<PreparedRequest>, is_told: bool },
    Sent,
}

impl HttpProvider {
    /// Returns the events of the next step of a request, and the step after it.
    async fn step(&self, step: RequestStep) -> Option<(BoxStream<'_, Result<StreamEvent, LlmError>>, RequestStep)> {
        let RequestStep::Queue { mut ticket, request, is_told } = step else { return None };
        let place = tokio::select! {
            biased;
            place = ticket.place() => place,
            () = tokio::time::sleep(QUEUE_NOTICE), if !is_told => {
                let event = StreamEvent::Queued { waiting: ticket.waiting() };
                return Some((stream::iter([Ok(event)]).boxed(), RequestStep::Queue { ticket, request, is_told: true }));
            }
        };
        let mut answer = AnswerStream {
            provider: self,
            place: Some(place),
            events: stream::empty().boxed(),
            pending: VecDeque::new(),
            is_heard: false,
            arguments: Arguments::default(),
        };
        match self.open(*request).await {
            Ok(events) => answer.events = events,
            Err(error) => answer.pending.push_back(Err(error)),
        }
        Some((answer.boxed(), RequestStep::Sent))
    }
}

/// The events of an answer. Nothing follows `Done` or an error.
struct AnswerStream<'a> {
    provider: &'a HttpProvider,
    /// The place of the request at the provider. `None` after the last event.
    place: Option<RequestPlace>,
    events: AnswerEvents,
    /// Events that were converted and not returned yet.
    pending: VecDeque<Result<StreamEvent, LlmError>>,
    is_heard: bool,
    arguments: Arguments,
}

impl Stream for AnswerStream<'_> {
    type Item = Result<StreamEvent, LlmError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let answer = &mut *self;
        let Some(place) = &mut answer.place else { return Poll::Ready(None) };
        while answer.pending.is_empty() {
            let Some(event) = ready!(answer.events.poll_next_unpin(context)) else {
                let reason = if answer.is_heard {
                    "the connection was lost before the answer was complete"
                } else {
                    "it answered without saying anything; is its address that of a model?"
                };
                answer.pending.push_back(Err(answer.provider.cut(reason)));
                break;
            };
            if answer.arguments.exceed(&event) {
                let model = answer.provider.name.to_string();
                answer.pending.push_back(Err(LlmError::AnswerTooLong { model }));
            } else {
                answer.provider.translate_event(event, &mut answer.pending);
            }
            answer.is_heard |= !answer.pending.is_empty();
        }
        let event = answer.pending.pop_front();
        match &event {
            Some(Ok(StreamEvent::Done { usage, .. })) => place.note_answer(usage.input + usage.output),
            Some(Ok(_)) => {
                place.note_start();
                return Poll::Ready(event);
            }
            Some(Err(LlmError::RateLimited { retry_after, .. })) => place.note_refusal(*retry_after),
            Some(Err(_)) | None => {}
        }
        answer.place = None;
        Poll::Ready(event)
    }
}

impl HttpProvider {
    fn cut(&self, reason: &str) -> LlmError {
        LlmError::Transient { model: self.name.to_string(), reason: reason.to_owned(), retry_after: None }
    }

    /// Adds the events that an event of the provider stands for.
    fn translate_event(
        &self,
        event: genai::Result<ChatStreamEvent>,
        pending: &mut VecDeque<Result<StreamEvent, LlmError>>,
    ) {
        match event {
            Ok(ChatStreamEvent::Chunk(chunk)) => pending.push_back(Ok(StreamEvent::Text(chunk.content))),
            Ok(ChatStreamEvent::ReasoningChunk(chunk)) => pending.push_back(Ok(StreamEvent::Thought(chunk.content))),
            Ok(ChatStreamEvent::End(end)) => {
                let is_gemini = self.target.model.adapter_kind == AdapterKind::Gemini;
                match is_gemini.then(|| gemini::find_break(&end)).flatten() {
                    Some(reason) => pending.push_back(Err(self.cut(&reason))),
                    None => pending.extend(end_events(end, &self.rules).into_iter().map(Ok)),
                }
            }
            // genai returns the complete calls with the end event, and their signatures with them.
            Ok(
                ChatStreamEvent::ToolCallChunk(_)
                | ChatStreamEvent::ThoughtSignatureChunk(_)
                | ChatStreamEvent::Start
                | ChatStreamEvent::Heartbeat,
            ) => {}
            Err(error) => pending.push_back(Err(self.failure(&error))),
        }
    }
}

/// Counts the bytes of call arguments, which genai collects until the answer ends.
#[derive(Default)]
struct Arguments {
    /// Bytes by call id. Every chunk repeats the earlier arguments of its call.
    sizes: HashMap<String, usize>,
    total: usize,
}

impl Arguments {
    /// Counts the event. Returns true once the arguments exceed [`MAX_ANSWER`].
    fn exceed(&mut self, event: &genai::Result<ChatStreamEvent>) -> bool {
        if let Ok(ChatStreamEvent::ToolCallChunk(chunk)) = event {
            let call = &chunk.tool_call;
            let size = call.fn_name.len() + call.fn_arguments.as_str().map_or(0, str::len);
            let before = self.sizes.insert(call.call_id.clone(), size).unwrap_or_default();
            self.total += size.saturating_sub(before);
        }
        self.total > MAX_ANSWER
    }
}

fn end_events(end: StreamEnd, rules: &RequestRules) -> Vec<StreamEvent> {
    let usage = end.captured_usage.unwrap_or_default();
    let count = |tokens: Option<i32>| tokens.and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or_default();
    let cached = usage.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens);
    let usage =
        Usage { input: count(usage.prompt_tokens), output: count(usage.completion_tokens), cached: count(cached) };
    let stop = match end.captured_stop_reason {
        Some(StopReason::MaxTokens(_)) => ModelStop::Length,
        Some(StopReason::ContentFilter(_)) => ModelStop::Refused,
        _ => ModelStop::Finished,
    };
    let calls = end.captured_content.map(MessageContent::into_tool_calls).unwrap_or_default();
    let calls = calls.into_iter().map(|call| {
        let arguments = match call.fn_arguments {
            // Empty text means no arguments, unless the answer reached its maximum length before they arrived.
            Value::String(text) if text.trim().is_empty() && stop != ModelStop::Length => Value::Object(Map::new()),
            other => other,
        };
        let signature = rules.sign(call.thought_signatures);
        StreamEvent::ToolUse(ToolUse { id: call.call_id, name: call.fn_name, arguments, signature })
    });
    calls.chain([StreamEvent::Done { stop, usage }]).collect()
}

/// Returns the address that the paths of the provider's API are joined to. Its path ends with `/`, as that of a folder.
fn address(known: &KnownProvider, base: Option<String>) -> String {
    let mut base = base.unwrap_or_else(|| known.base.to_owned());
    if !base.contains("://") {
        base = format!("http://{base}");
    }
    let (path, query) = base.split_at(base.find('?').unwrap_or(base.len()));
    let path = path.trim_end_matches('/');
    // `OLLAMA_HOST` names only the host, and Anthropic's programs expect only the host in `ANTHROPIC_BASE_URL`.
    let version = if ["ollama", "anthropic"].contains(&known.name) && !path.ends_with("/v1") { "/v1" } else { "" };
    format!("{path}{version}/{query}")
}

/// Adds the tools to a request of genai.
fn with_tools(chat: ChatRequest, tools: &[OfferedTool]) -> ChatRequest {
    if tools.is_empty() {
        return chat;
    }
    let tools = tools.iter().map(|tool| {
        let schema = Value::Object(tool.schema.as_ref().clone());
        Tool::new(tool.name.clone()).with_description(tool.description.clone()).with_schema(schema)
    });
    chat.with_tools(tools)
}

#[cfg(test)]
#[path = "dialect_tests.rs"]
mod dialect_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined_to_the_path_of_an_address() {
        for (provider, base, expected) in [
            ("openai", "http://host/v1", "http://host/v1/"),
            ("openai", "http://host/v1/", "http://host/v1/"),
            ("openai", "http://host/v1?version=2", "http://host/v1/?version=2"),
            ("openai", "http://host/v1/?end=/", "http://host/v1/?end=/"),
            ("ollama", "127.0.0.1:11434", "http://127.0.0.1:11434/v1/"),
            ("anthropic", "https://host?version=2", "https://host/v1/?version=2"),
            ("anthropic", "https://host/v1/", "https://host/v1/"),
        ] {
            let known = KNOWN.iter().find(|known| known.name == provider).expect("a known provider");
            assert_eq!(address(known, Some(base.to_owned())), expected, "{provider} {base}");
        }
    }
}
