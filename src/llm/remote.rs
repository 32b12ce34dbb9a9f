//! A model behind an HTTP API: its key, its queue, and its answers as events.
//!
//! Invariant: keys come from the front end and go only to their provider. No error and no log contains a key.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream, Stream};
use genai::chat::{ChatMessage, StopReason};
use genai::resolver::{AuthData, Endpoint};
use genai::{ModelIden, ServiceTarget};
use reqwest::header::HeaderValue;
use serde_json::{Map, Value};

use super::chat_history::chat_history;
use super::dialect::{AnswerEnd, AnswerEvent, AnswerEvents, ModelClient, ProviderError};
use super::failure::{FailureKind, ProviderSecrets, RequestFailure};
use super::known_providers::{KNOWN, KnownProvider, OWN};
use super::queue::{QueueTicket, RequestPlace, RequestQueue};
use super::request_rules::RequestRules;
use super::{
    EarlierThoughts, LlmError, ModelInfo, ModelRegistry, ModelRequest, ModelStop, OfferedTool, Price, Provider,
    RequestOrigin, StreamEvent,
};
use crate::conversation::ToolUse;
use crate::ids::ModelRef;
use crate::network;

/// How long a request waits in the queue before the user gets a notice.
const QUEUE_NOTICE: Duration = Duration::from_secs(1);

/// A model behind an HTTP API.
#[derive(Clone)]
pub struct HttpProvider {
    name: ModelRef,
    client: Arc<ModelClient>,
    /// Asks the model in place of the client.
    #[cfg(any(test, fuzzing))]
    reference: Option<super::reference::Reference>,
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
        // A key from a file often ends with a newline.
        let set = |name: &str| Some(variable(name)?.trim().to_owned()).filter(|value| !value.is_empty());
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
        if key.as_deref().is_some_and(|key| HeaderValue::from_str(key).is_err()) {
            let reason = format!("its key has a character that HTTP does not allow; set {key_name} to the key alone");
            return Err(unusable(reason));
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
        let client = ModelClient::new(&target, http)
            .map(Arc::new)
            .map_err(|error| unusable(format!("its address is not a URL: {error}")))?;
        let facts = models.info(name, has_own_address);
        let limits = configured.map(|address| address.limits).unwrap_or_default();
        let queue = models.queues.queue(target.endpoint.base_url(), key.as_deref(), limits);
        let secrets = ProviderSecrets::new(key.as_deref(), target.endpoint.base_url());
        let rules = RequestRules::new(known.kind, &name.to_string(), model, target.endpoint.base_url());
        let (name, origin) = (name.clone(), RequestOrigin::default());
        Ok(Self {
            name,
            client,
            #[cfg(any(test, fuzzing))]
            reference: None,
            secrets,
            target,
            rules,
            facts,
            queue,
            origin,
        })
    }

    /// Returns the same model, which genai asks, to compare both.
    #[cfg(any(test, fuzzing))]
    pub fn through_genai(self) -> Self {
        Self { reference: Some(super::reference::Reference::new(self.target.clone())), ..self }
    }

    /// Returns the events of the answer. The first poll sends the request.
    fn ask(&self, request: &PreparedRequest) -> Result<AnswerEvents, LlmError> {
        #[cfg(any(test, fuzzing))]
        if let Some(reference) = &self.reference {
            return Ok(reference.ask(request.messages.clone(), &request.tools));
        }
        self.client.ask(&request.messages, &request.tools).map_err(|error| LlmError::Failed {
            model: self.name.to_string(),
            reason: format!("its request cannot be written: {error}"),
        })
    }

    fn failure(&self, error: &ProviderError) -> LlmError {
        let failed = RequestFailure::new(error, &self.secrets);
        let (model, reason) = (self.name.to_string(), failed.reason);
        match failed.kind {
            FailureKind::Lasting => LlmError::Failed { model, reason },
            FailureKind::Rejected(status) => LlmError::Rejected { model, status, reason },
            FailureKind::Transient { retry_after } => LlmError::Transient { model, reason, retry_after },
            FailureKind::RateLimited { retry_after } => LlmError::RateLimited { model, reason, retry_after },
            FailureKind::Overflow => LlmError::Overflow { model, reason },
            FailureKind::TooLong => LlmError::AnswerTooLong { model },
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
        let messages = chat_history(&request, &self.rules);
        let request = PreparedRequest { messages, tools: request.tools };
        let begin = RequestStep::Queue { ticket, request, is_told: false };
        stream::unfold(begin, |step| self.step(step)).flatten().boxed()
    }
}

/// A request whose messages are converted.
struct PreparedRequest {
    messages: Vec<ChatMessage>,
    tools: Arc<[OfferedTool]>,
}

/// Where a request is on its way.
enum RequestStep {
    Queue { ticket: QueueTicket, request: PreparedRequest, is_told: bool },
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
        };
        match self.ask(&request) {
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
            match event {
                Ok(AnswerEvent::Text(text)) => answer.pending.push_back(Ok(StreamEvent::Text(text))),
                Ok(AnswerEvent::Thought(text)) => answer.pending.push_back(Ok(StreamEvent::Thought(text))),
                Ok(AnswerEvent::Started) => {
                    place.note_start();
                    continue;
                }
                Ok(AnswerEvent::Progress { bytes, usage }) => {
                    answer.pending.push_back(Ok(StreamEvent::Progress { bytes, usage }));
                }
                Ok(AnswerEvent::End(end)) => {
                    answer.pending.extend(end_events(end, &answer.provider.rules).into_iter().map(Ok));
                }
                Err(error) => answer.pending.push_back(Err(answer.provider.failure(&error))),
            }
            answer.is_heard = true;
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
}

fn end_events(end: AnswerEnd, rules: &RequestRules) -> Vec<StreamEvent> {
    let stop = match end.stop {
        Some(StopReason::MaxTokens(_)) => ModelStop::Length,
        Some(StopReason::ContentFilter(_)) => ModelStop::Refused,
        _ => ModelStop::Finished,
    };
    let calls = end.calls.into_iter().map(|call| {
        let arguments = match call.fn_arguments {
            // Empty text means no arguments, unless the answer reached its maximum length before they arrived.
            Value::String(text) if text.trim().is_empty() && stop != ModelStop::Length => Value::Object(Map::new()),
            other => other,
        };
        let signature = rules.sign(call.thought_signatures);
        StreamEvent::ToolUse(ToolUse { id: call.call_id, name: call.fn_name, arguments, signature })
    });
    calls.chain([StreamEvent::Done { stop, usage: end.usage }]).collect()
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

#[cfg(test)]
#[path = "dialect_tests.rs"]
mod dialect_tests;

#[cfg(test)]
#[path = "answer_tests.rs"]
mod answer_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_no_space_around_it_and_fits_into_a_header() {
        let provider = |key: &str| {
            let name = ModelRef::from("openai:gpt-4o".to_owned());
            HttpProvider::new(&name, &ModelRegistry::default(), |name| name.ends_with("_KEY").then(|| key.to_owned()))
        };
        let sent = provider(" a-long-key\r\n").expect("a provider").target.auth;
        assert!(matches!(sent, AuthData::Key(key) if key == "a-long-key"));
        let error = provider("a-long\nkey").expect_err("no header").to_string();
        assert!(error.ends_with("set OPENAI_API_KEY to the key alone") && !error.contains("a-long"), "{error}");
        assert!(matches!(provider(" \n"), Err(LlmError::MissingKey { .. })));
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
