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
    CacheControl, ChatMessage, ChatOptions, ChatRequest, ChatRole, ChatStreamEvent, ContentPart, MessageContent,
    StopReason, StreamEnd, Tool, ToolCall, ToolResponse,
};
use genai::resolver::{AuthData, Endpoint};
use genai::{Client, ModelIden, ModelSpec, ServiceTarget};
use serde_json::{Map, Value, json};

use super::completions::{AnswerEvents, CompletionsClient, HEADER_TIMEOUT, READ_TIMEOUT};
use super::failure::{FailureKind, ProviderSecrets, RequestFailure};
use super::gemini::{self, PromptBlock};
use super::known_providers::{KNOWN, KnownProvider, OWN};
use super::media::content_part;
use super::queue::{QueueTicket, RequestPlace, RequestQueue};
use super::{
    LlmError, MAX_ANSWER, ModelInfo, ModelRegistry, ModelRequest, ModelStop, OfferedTool, Price, Provider,
    RequestOrigin, StreamEvent,
};
use crate::conversation::{Content, Message, MessagePart, Role, ToolUse, Usage};
use crate::ids::ModelRef;
use crate::network;

/// Maximum length of a tool name that every provider accepts.
const MAX_NAME: usize = 64;
/// How long a request waits in the queue before the user gets a notice.
const QUEUE_NOTICE: Duration = Duration::from_secs(1);
/// Stands for a message of the user without any text or media. Without the message, the roles would not alternate.
const NO_TEXT: &str = "(no text)";
/// Characters that the model sees again of arguments that are not a JSON object.
const MAX_WRONG_ARGUMENTS: usize = 1000;

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
        let (name, origin) = (name.clone(), RequestOrigin::default());
        Ok(Self { name, client, completions, secrets, target, facts, queue, origin })
    }

    /// Returns the same model, which genai always asks, for the fuzzer.
    #[cfg(any(test, fuzzing))]
    pub fn with_genai_only(self) -> Self {
        Self { completions: None, ..self }
    }

    /// Converts a request to the types of the client that sends it.
    fn prepare(&self, request: &ModelRequest) -> PreparedRequest {
        let messages = chat_history(request, self.target.model.adapter_kind);
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
                    None => pending.extend(end_events(end).into_iter().map(Ok)),
                }
            }
            // genai returns the complete calls with the end event.
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

fn end_events(end: StreamEnd) -> Vec<StreamEvent> {
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
        StreamEvent::ToolUse(ToolUse { id: call.call_id, name: call.fn_name, arguments })
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

/// Converts the system prompt and the messages of a request.
fn chat_history(request: &ModelRequest, dialect: AdapterKind) -> Vec<ChatMessage> {
    let mut messages: Vec<ChatMessage> = Vec::with_capacity(request.messages.len() + 1);
    if !request.system.is_empty() {
        // Tools and system prompt stay the same while messages change, so the provider caches them separately.
        messages.push(ChatMessage::system(request.system.to_string()).with_options(CacheControl::Ephemeral));
    }
    for message in request.messages.iter().flat_map(|message| chat_messages(message, dialect)) {
        match messages.last_mut() {
            // Some models expect alternating roles, so consecutive user messages are merged, such as a summary and a
            // prompt.
            Some(last) if last.role == ChatRole::User && message.role == ChatRole::User => {
                last.content.extend(message.content);
            }
            _ => messages.push(message),
        }
    }
    // Later requests repeat all messages up to this one, so the provider may cache them.
    if let Some(last) = messages.last_mut() {
        last.options = Some(CacheControl::Ephemeral.into());
    }
    messages
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

/// Converts a message. Tool results become a separate message; their images follow in a user message. Blank texts stay
/// out: Anthropic refuses a conversation with one, and with it every later request.
fn chat_messages(message: &Message, dialect: AdapterKind) -> Vec<ChatMessage> {
    let role = match message.role {
        Role::User => ChatRole::User,
        Role::Assistant => ChatRole::Assistant,
    };
    let calls_tools = message.parts.iter().any(|part| matches!(part, MessagePart::ToolUse(_)));
    let mut parts = Vec::new();
    let mut results = Vec::new();
    for part in &message.parts {
        match part {
            MessagePart::Content(Content::Text(text) | Content::Injected(text)) if text.trim().is_empty() => {}
            MessagePart::Content(content) => parts.push(content_part(content, dialect)),
            // DeepSeek refuses calls without the thoughts that led to them.
            MessagePart::Thought(text) if dialect == AdapterKind::DeepSeek && calls_tools => {
                parts.push(ContentPart::ReasoningContent(text.clone()));
            }
            MessagePart::Thought(_) => {}
            MessagePart::ToolUse(call) => parts.push(ContentPart::ToolCall(ToolCall {
                call_id: call.id.clone(),
                fn_name: sendable_name(&call.name),
                fn_arguments: sendable(&call.arguments),
                thought_signatures: None,
            })),
            MessagePart::ToolResult(result) => {
                let text: Vec<_> = result.content.iter().filter_map(Content::as_text).collect();
                let text = if result.is_error { format!("error: {}", text.join("\n")) } else { text.join("\n") };
                let mut response = ToolResponse::new(result.id.clone(), text);
                response.fn_name = Some(sendable_name(&result.name));
                results.push(ContentPart::ToolResponse(response));
                let others = result.content.iter().filter(|content| content.as_text().is_none());
                parts.extend(others.map(|content| content_part(content, dialect)));
            }
        }
    }
    if role == ChatRole::User && parts.is_empty() && results.is_empty() {
        parts.push(ContentPart::Text(NO_TEXT.to_owned()));
    }
    // Some providers require the results of one answer's calls in one message.
    let results = (!results.is_empty()).then(|| ChatMessage::tool(results));
    let said = (!parts.is_empty()).then(|| ChatMessage::new(role, parts));
    results.into_iter().chain(said).collect()
}

/// Converts arguments that are not a JSON object into one. Providers reject a conversation with such a call, and with
/// it every later request. The model has already received an error for the call.
fn sendable(arguments: &Value) -> Value {
    match arguments {
        Value::Object(_) => arguments.clone(),
        Value::Null => Value::Object(Map::new()),
        other => {
            let text = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
            json!({"not_a_json_object": text.chars().take(MAX_WRONG_ARGUMENTS).collect::<String>()})
        }
    }
}

/// Replaces characters that providers reject in a tool name. A model may call a made-up name that contains them.
fn sendable_name(name: &str) -> String {
    // Each request contains the names of all calls so far, and nearly all of them are plain.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_plain) {
        return name.to_owned();
    }
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = name.chars().take(MAX_NAME).map(plain).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

#[cfg(test)]
#[path = "dialect_tests.rs"]
mod dialect_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_beside_a_prompt_is_sent_before_it_as_text() {
        let message = Message::user(vec![Content::Injected("beside".to_owned()), Content::text("hello")]);
        let [sent] = chat_messages(&message, AdapterKind::OpenAI).try_into().expect("one message");
        assert_eq!(sent.content.texts(), ["beside", "hello"]);
    }

    #[test]
    fn blank_texts_are_not_sent() {
        let message = |role, texts: &[&str]| {
            let parts = texts.iter().map(|text| MessagePart::Content(Content::text(*text))).collect();
            Arc::new(Message { role, parts })
        };
        let messages = vec![
            message(Role::User, &["one", "", " \n"]),
            message(Role::Assistant, &["two", ""]),
            message(Role::User, &["  "]),
            message(Role::Assistant, &["three"]),
            message(Role::User, &["four"]),
            message(Role::Assistant, &["\n"]),
            message(Role::User, &["five"]),
        ];
        let request = ModelRequest { system: "".into(), tools: Arc::from([]), messages };
        let sent = chat_history(&request, AdapterKind::Anthropic);
        let sent: Vec<_> = sent.iter().map(|message| (message.role.clone(), message.content.texts())).collect();
        let expected = [
            (ChatRole::User, vec!["one"]),
            (ChatRole::Assistant, vec!["two"]),
            (ChatRole::User, vec![NO_TEXT]),
            (ChatRole::Assistant, vec!["three"]),
            (ChatRole::User, vec!["four", "five"]),
        ];
        assert_eq!(sent, expected);
    }

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
