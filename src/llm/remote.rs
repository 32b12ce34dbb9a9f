//! Language models behind HTTP, through the `genai` crate, which knows the providers' dialects.
//!
//! Invariant: keys come from the front door and go to their provider alone; they are in no error and no log.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use genai::adapter::AdapterKind;
use genai::chat::{
    Binary, CacheControl, ChatMessage, ChatOptions, ChatRequest, ChatRole, ChatStream, ChatStreamEvent, ContentPart,
    MessageContent, StopReason, StreamEnd, Tool, ToolCall, ToolResponse,
};
use genai::resolver::{AuthData, Endpoint};
use genai::{Client, ModelIden, ModelSpec, ServiceTarget};
use serde_json::Value;

use super::{LlmError, ModelStop, Provider, Request, StreamEvent};
use crate::conversation::{Content, Message, Part, Role, ToolUse, Usage};

/// How often a request that failed for a passing reason is sent again.
const RETRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// A provider that asks for a longer wait is told to the user instead.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A provider that users can name, and what is known about it.
struct Known {
    name: &'static str,
    kind: AdapterKind,
    base: &'static str,
    /// Environment variables, the first that is set counts.
    key: &'static str,
    base_variable: Option<&'static str>,
}

const KNOWN: [Known; 9] = [
    Known {
        name: "openai",
        kind: AdapterKind::OpenAI,
        base: "https://api.openai.com/v1/",
        key: "OPENAI_API_KEY",
        base_variable: Some("OPENAI_BASE_URL"),
    },
    Known {
        name: "anthropic",
        kind: AdapterKind::Anthropic,
        base: "https://api.anthropic.com/v1/",
        key: "ANTHROPIC_API_KEY",
        base_variable: Some("ANTHROPIC_BASE_URL"),
    },
    Known {
        name: "google",
        kind: AdapterKind::Gemini,
        base: "https://generativelanguage.googleapis.com/v1beta/",
        key: "GEMINI_API_KEY",
        base_variable: None,
    },
    Known {
        name: "ollama",
        kind: AdapterKind::OpenAI,
        base: "http://localhost:11434/v1/",
        key: "",
        base_variable: Some("OLLAMA_HOST"),
    },
    Known {
        name: "openrouter",
        kind: AdapterKind::OpenAI,
        base: "https://openrouter.ai/api/v1/",
        key: "OPENROUTER_API_KEY",
        base_variable: None,
    },
    Known {
        name: "groq",
        kind: AdapterKind::Groq,
        base: "https://api.groq.com/openai/v1/",
        key: "GROQ_API_KEY",
        base_variable: None,
    },
    Known {
        name: "deepseek",
        kind: AdapterKind::DeepSeek,
        base: "https://api.deepseek.com/v1/",
        key: "DEEPSEEK_API_KEY",
        base_variable: None,
    },
    Known {
        name: "mistral",
        kind: AdapterKind::Mistral,
        base: "https://api.mistral.ai/v1/",
        key: "MISTRAL_API_KEY",
        base_variable: None,
    },
    Known {
        name: "xai",
        kind: AdapterKind::Xai,
        base: "https://api.x.ai/v1/",
        key: "XAI_API_KEY",
        base_variable: None,
    },
];

/// A model of a provider.
pub struct Remote {
    name: String,
    client: Client,
    target: ServiceTarget,
}

impl Remote {
    /// `provider:model`, with keys and addresses from `variable`, which looks up the environment.
    pub fn new(name: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, LlmError> {
        let unusable = |reason: String| LlmError::Unusable { model: name.to_owned(), reason };
        let known = || KNOWN.iter().map(|known| known.name).collect::<Vec<_>>().join(", ");
        let (provider, model) = name
            .split_once(':')
            .filter(|(_, model)| !model.is_empty())
            .ok_or_else(|| unusable(format!("write it as provider:model; providers: offline, {}", known())))?;
        let known = KNOWN
            .iter()
            .find(|known| known.name == provider)
            .ok_or_else(|| unusable(format!("there is no provider `{provider}`; there are: offline, {}", known())))?;
        let base = known.base_variable.and_then(&variable).filter(|base| !base.is_empty());
        let key = variable(known.key).filter(|key| !key.is_empty());
        // A server of one's own may need no key.
        if key.is_none() && base.is_none() && !known.key.is_empty() {
            return Err(unusable(format!("set {} in the environment", known.key)));
        }
        let target = ServiceTarget {
            model: ModelIden::new(known.kind, model),
            endpoint: Endpoint::from_owned(address(known, base)),
            auth: AuthData::Key(key.unwrap_or_else(|| "none".to_owned())),
        };
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(20))
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        let client = Client::builder().with_reqwest(http).build().map_err(|error| unusable(error.to_string()))?;
        Ok(Self { name: name.to_owned(), client, target })
    }

    /// Opens the stream and waits for its first event, so that what fails at once can be tried again.
    async fn open(&self, request: &ChatRequest) -> Result<(Option<ChatStreamEvent>, ChatStream), Failed> {
        let options = ChatOptions::default()
            .with_capture_usage(true)
            .with_capture_tool_calls(true)
            .with_stream_header_timeout(Duration::from_secs(120))
            .with_stream_read_timeout(Duration::from_secs(300));
        let target = ModelSpec::Target(self.target.clone());
        let response = self.client.exec_chat_stream(target, request.clone(), Some(&options)).await;
        let mut stream = response.map_err(|error| Failed::from(&error))?.stream;
        loop {
            match stream.next().await {
                Some(Ok(ChatStreamEvent::Start | ChatStreamEvent::Heartbeat)) => {}
                Some(Ok(event)) => return Ok((Some(event), stream)),
                Some(Err(error)) => return Err(Failed::from(&error)),
                None => return Ok((None, stream)),
            }
        }
    }

    async fn open_patiently(&self, request: &ChatRequest) -> Result<(Option<ChatStreamEvent>, ChatStream), LlmError> {
        let mut attempt = 0;
        loop {
            let failed = match self.open(request).await {
                Ok(opened) => return Ok(opened),
                Err(failed) => failed,
            };
            let pause = failed.retry_after.unwrap_or(FIRST_PAUSE * 2_u32.pow(attempt));
            if !failed.passing || attempt == RETRIES || pause > LONGEST_PAUSE {
                return Err(self.failure(&failed.reason));
            }
            tracing::warn!(model = %self.name, reason = failed.reason, ?pause, "the model is asked again");
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }

    fn failure(&self, reason: &str) -> LlmError {
        LlmError::Failed { model: self.name.clone(), reason: reason.to_owned() }
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Remote({})", self.name)
    }
}

impl Provider for Remote {
    fn name(&self) -> &str {
        &self.name
    }

    fn stream(&self, request: Request) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
        let request = chat_request(&request);
        let opened = async move {
            match self.open_patiently(&request).await {
                Err(error) => stream::iter([Err(error)]).boxed(),
                Ok((first, rest)) => {
                    let first = stream::iter(first.map(Ok));
                    let events = first.chain(rest.map(|event| event.map_err(|error| Failed::from(&error))));
                    events.flat_map(move |event| stream::iter(self.translated(event))).boxed()
                }
            }
        };
        stream::once(opened).flatten().boxed()
    }
}

impl Remote {
    fn translated(&self, event: Result<ChatStreamEvent, Failed>) -> Vec<Result<StreamEvent, LlmError>> {
        match event {
            Ok(ChatStreamEvent::Chunk(chunk)) => vec![Ok(StreamEvent::Text(chunk.content))],
            Ok(ChatStreamEvent::ReasoningChunk(chunk)) => vec![Ok(StreamEvent::Thought(chunk.content))],
            Ok(ChatStreamEvent::End(end)) => ended(end).into_iter().map(Ok).collect(),
            // Pieces of calls come together at the end.
            Ok(
                ChatStreamEvent::ToolCallChunk(_)
                | ChatStreamEvent::ThoughtSignatureChunk(_)
                | ChatStreamEvent::Start
                | ChatStreamEvent::Heartbeat,
            ) => Vec::new(),
            Err(failed) => vec![Err(self.failure(&failed.reason))],
        }
    }
}

fn ended(end: StreamEnd) -> Vec<StreamEvent> {
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
        StreamEvent::ToolUse(ToolUse { id: call.call_id, name: call.fn_name, arguments: call.fn_arguments })
    });
    calls.chain([StreamEvent::Done { stop, usage }]).collect()
}

fn address(known: &Known, base: Option<String>) -> String {
    let mut base = base.unwrap_or_else(|| known.base.to_owned());
    if !base.contains("://") {
        base = format!("http://{base}");
    }
    // The endpoint is joined like a folder; Ollama's variable names the host alone.
    if known.name == "ollama" && !base.trim_end_matches('/').ends_with("/v1") {
        base = format!("{}/v1", base.trim_end_matches('/'));
    }
    if base.ends_with('/') { base } else { format!("{base}/") }
}

fn chat_request(request: &Request) -> ChatRequest {
    let mut messages: Vec<ChatMessage> = request.messages.iter().flat_map(|message| chat_messages(message)).collect();
    // What came before the last message will be sent again and again: let the provider keep it.
    if let Some(last) = messages.last_mut() {
        last.options = Some(CacheControl::Ephemeral.into());
    }
    let tools: Vec<_> = request
        .tools
        .iter()
        .map(|tool| {
            let schema = Value::Object(tool.schema.as_ref().clone());
            Tool::new(tool.name.clone()).with_description(tool.description.clone()).with_schema(schema)
        })
        .collect();
    let mut chat = ChatRequest::new(messages);
    if !request.system.is_empty() {
        chat = chat.with_system(request.system.to_string());
    }
    if tools.is_empty() { chat } else { chat.with_tools(tools) }
}

/// Results of tools are messages of their own; images in them follow as the user's.
fn chat_messages(message: &Message) -> Vec<ChatMessage> {
    let role = match message.role {
        Role::User => ChatRole::User,
        Role::Assistant => ChatRole::Assistant,
    };
    let mut parts = Vec::new();
    let mut results = Vec::new();
    for part in &message.parts {
        match part {
            Part::Content(content) => parts.push(content_part(content)),
            Part::Thought(_) => {}
            Part::ToolUse(call) => parts.push(ContentPart::ToolCall(ToolCall {
                call_id: call.id.clone(),
                fn_name: call.name.clone(),
                fn_arguments: call.arguments.clone(),
                thought_signatures: None,
            })),
            Part::ToolResult(result) => {
                let text: Vec<_> = result.content.iter().filter_map(Content::as_text).collect();
                let text = if result.is_error { format!("error: {}", text.join("\n")) } else { text.join("\n") };
                let mut response = ToolResponse::new(result.id.clone(), text);
                response.fn_name = Some(result.name.clone());
                results.push(ChatMessage::tool(vec![ContentPart::ToolResponse(response)]));
                let others = result.content.iter().filter(|content| content.as_text().is_none());
                parts.extend(others.map(content_part));
            }
        }
    }
    if !parts.is_empty() {
        results.push(ChatMessage::new(role, parts));
    }
    results
}

fn content_part(content: &Content) -> ContentPart {
    match content {
        Content::Text(text) => ContentPart::Text(text.clone()),
        Content::Image { mime, data } | Content::Audio { mime, data } => {
            ContentPart::Binary(Binary::from_base64(mime.clone(), Arc::<str>::from(data.as_str()), None))
        }
        Content::Resource(value) | Content::Link(value) => ContentPart::Text(value.to_string()),
    }
}

/// Why a request failed, and whether it may be sent again.
struct Failed {
    reason: String,
    passing: bool,
    retry_after: Option<Duration>,
}

impl From<&genai::Error> for Failed {
    fn from(error: &genai::Error) -> Self {
        use genai::webc::Error as WebError;
        // A refusal that is found while the stream opens comes wrapped.
        if let genai::Error::WebStream { error: inner, .. } = error
            && let Some(inner) = inner.downcast_ref::<genai::Error>()
        {
            return Self::from(inner);
        }
        let (status, headers, body) = match error {
            genai::Error::HttpError { status, headers, body, .. } => (Some(*status), Some(&**headers), body.as_str()),
            genai::Error::WebModelCall {
                webc_error: WebError::ResponseFailedStatus { status, body, headers }, ..
            } => (Some(*status), Some(&**headers), body.as_str()),
            _ => (None, None, ""),
        };
        let wait = headers.and_then(|headers| headers.get("retry-after")).and_then(|value| value.to_str().ok());
        let retry_after = wait.and_then(|wait| wait.trim().parse().ok()).map(Duration::from_secs);
        let body: String = body.chars().take(500).collect();
        match status {
            Some(status) => Self {
                reason: format!("it answered {status}: {body}"),
                passing: status.as_u16() == 429 || status.is_server_error(),
                retry_after,
            },
            None => {
                let passing = matches!(
                    error,
                    genai::Error::WebStream { .. }
                        | genai::Error::WebModelCall { webc_error: WebError::Reqwest(_), .. }
                );
                Self { reason: chain(error), passing, retry_after: None }
            }
        }
    }
}

/// An error and what caused it, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string().replace('\n', " ");
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(&format!(": {cause_text}"));
        }
        source = cause.source();
    }
    text
}
