//! Asks a model until it has answered. Retries transient failures, and continues an answer that was cut off.
//!
//! Invariant: the stored answer is the text that the notifier received, and no text is sent twice. A tool call counts
//! only if its answer was complete.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::join::ReplyJoiner;
use super::request_span::{failure_kind, open_request_span, record_reply};
use super::usage_estimate::UsageEstimate;
use super::{Notifier, StatusUpdate};
use crate::conversation::{Content, Message, MessagePart, Role, Usage};
use crate::llm::{LlmError, MAX_ANSWER, ModelRequest, ModelStop, Provider, StreamEvent};

/// The message that asks a model to continue an answer that was cut off. Chat APIs have no common way to continue a
/// message, so this follows the part that arrived.
const GO_ON: &str = "[Your last message was cut off by a lost connection; the user has read it up to that point. Continue \
                     exactly where it stops, in the middle of a word if need be. Do not repeat or comment on any of it. \
                     If you were about to call tools, call them now.]";

/// How often a failed request is repeated before another model answers.
const FALLBACK_RETRIES: u32 = 1;
/// The longest wait that a provider may ask for before another model answers.
const FALLBACK_WAIT: Duration = Duration::from_secs(5);

/// How often a failed request is repeated, and after which pauses.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// Maximum number of retries.
    pub retries: u32,
    /// The first pause. Each later one is twice as long, unless the provider names a time.
    pub pause: Duration,
    /// The longest pause. If the provider asks for more, the request fails.
    pub longest: Duration,
    /// How long a request waits for a provider that has too many requests. These retries do not count.
    pub patience: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            retries: 4,
            pause: Duration::from_millis(500),
            longest: Duration::from_secs(60),
            patience: Duration::from_secs(600),
        }
    }
}

pub(super) struct ModelCall<'a> {
    pub(super) provider: &'a dyn Provider,
    pub(super) notifier: &'a dyn Notifier,
    pub(super) retry: RetryPolicy,
    pub(super) cancel: &'a CancellationToken,
    /// Whether the notifier receives the answer while it arrives.
    pub(super) streamed: bool,
    /// Whether another model answers if this one fails before it answers.
    pub(super) has_fallback: bool,
}

pub(super) struct ModelReply {
    pub(super) parts: Vec<MessagePart>,
    pub(super) stop: ModelStop,
    pub(super) usage: Usage,
    /// Estimated tokens of earlier attempts, whose answers were cut off.
    pub(super) stopped: Usage,
}

/// The cause of a failure, and the part of the answer that arrived before it.
pub(super) struct FailedReply {
    pub(super) parts: Vec<MessagePart>,
    pub(super) cause: FailureCause,
    /// Estimated tokens of the attempts.
    pub(super) stopped: Usage,
}

pub(super) enum FailureCause {
    Cancelled,
    /// The request is too long, and no part of an answer arrived.
    Overflow(String),
    /// A limit of the session is reached.
    Limit(String),
    /// `status` is the HTTP status with which the provider rejected the request.
    Failed {
        why: String,
        status: Option<u16>,
    },
    /// The model is overloaded or cannot be reached, and no part of an answer arrived. Another model may answer.
    Unavailable(String),
}

impl ModelCall<'_> {
    pub(super) async fn ask(&self, request: &ModelRequest) -> Result<ModelReply, FailedReply> {
        let mut answer = PartialReply::default();
        let mut tries = 0;
        let mut is_told = false;
        let start = Instant::now();
        loop {
            tries += 1;
            let why = match self.once_in_span(answer.continuation(request), &mut answer).await {
                Ok((stop, usage)) => {
                    return Ok(ModelReply { parts: answer.parts, stop, usage, stopped: answer.stopped });
                }
                Err(None) => FailureCause::Cancelled,
                // The request waits in the provider's queue until its turn.
                Err(Some(error @ LlmError::RateLimited { retry_after, .. }))
                    if !self.may_switch(&answer)
                        && start.elapsed() < self.retry.patience
                        && retry_after.is_none_or(|it| it <= self.retry.longest) =>
                {
                    if !std::mem::replace(&mut is_told, true) {
                        let notice = format!("{error}; asking again when the provider admits the request");
                        self.notifier.status(StatusUpdate::notice(notice));
                    }
                    tries -= 1;
                    answer.resume();
                    continue;
                }
                Err(Some(error)) if self.is_unavailable(&error, tries, &answer) => {
                    FailureCause::Unavailable(error.to_string())
                }
                Err(Some(error)) => match self.pause(&error, tries, &answer).await {
                    Ok(()) => {
                        answer.resume();
                        continue;
                    }
                    Err(why) => why,
                },
            };
            answer.parts.retain(is_said);
            return Err(FailedReply { parts: answer.parts, cause: why, stopped: answer.stopped });
        }
    }

    /// Returns true if another model may answer: there is one, and no part of an answer has arrived.
    fn may_switch(&self, answer: &PartialReply) -> bool {
        self.has_fallback && answer.size == 0
    }

    /// Returns true if the next model should answer now. Overload is not worth waiting for; other failures get one retry.
    fn is_unavailable(&self, error: &LlmError, tries: u32, answer: &PartialReply) -> bool {
        let is_over = match error {
            // A provider rejects with one of these if the credit is used up.
            LlmError::RateLimited { .. } | LlmError::Rejected { status: 402 | 429, .. } => true,
            LlmError::Transient { retry_after, .. } => {
                tries > FALLBACK_RETRIES || retry_after.is_some_and(|wait| wait > FALLBACK_WAIT)
            }
            LlmError::Overflow { .. }
            | LlmError::Failed { .. }
            | LlmError::Unusable { .. }
            | LlmError::UnusableRecording { .. }
            | LlmError::NotAllowed { .. }
            | LlmError::MissingKey { .. }
            | LlmError::Rejected { .. }
            | LlmError::LimitReached { .. }
            | LlmError::AnswerTooLong { .. } => false,
        };
        is_over && self.may_switch(answer)
    }

    /// Sends one request, and reports it as a span.
    async fn once_in_span(
        &self,
        request: ModelRequest,
        answer: &mut PartialReply,
    ) -> Result<(ModelStop, Usage), Option<LlmError>> {
        let span = open_request_span(self.provider, &request);
        let ended = span.run(self.once(request, answer)).await;
        match &ended {
            Ok((stop, usage)) => record_reply(&span, *stop, usage, &answer.parts),
            Err(None) => span.fail("cancelled"),
            Err(Some(error)) => span.fail(failure_kind(error)),
        }
        ended
    }

    /// Sends one request. The error is `None` if the turn was cancelled. The tokens of a failed one are added to the
    /// answer.
    async fn once(
        &self,
        request: ModelRequest,
        answer: &mut PartialReply,
    ) -> Result<(ModelStop, Usage), Option<LlmError>> {
        let mut estimate = UsageEstimate::new(self.provider, &request);
        let ended = self.receive(request, answer, &mut estimate).await;
        if ended.is_err() {
            answer.stopped += estimate.usage();
        }
        ended
    }

    /// Sends a request and receives its answer.
    async fn receive(
        &self,
        request: ModelRequest,
        answer: &mut PartialReply,
        estimate: &mut UsageEstimate,
    ) -> Result<(ModelStop, Usage), Option<LlmError>> {
        let mut stream = self.provider.stream(request);
        let mut cancelled = pin!(self.cancel.cancelled());
        loop {
            let event = tokio::select! {
                biased;
                () = &mut cancelled => return Err(None),
                event = stream.next() => event,
            };
            // Text that the joiner holds back counts, too. Dropping the stream ends the request.
            if let Some(Ok(event)) = &event {
                answer.size += event.size();
                estimate.add(event);
            }
            if answer.size > MAX_ANSWER {
                return Err(Some(LlmError::AnswerTooLong { model: self.provider.name().to_string() }));
            }
            match event {
                Some(Ok(StreamEvent::Queued { waiting })) => {
                    let model = self.provider.name();
                    let notice = format!("waiting for the model `{model}`: {waiting} requests are in the queue");
                    self.notifier.status(StatusUpdate::notice(notice));
                }
                // The estimate has counted it.
                Some(Ok(StreamEvent::Progress { .. })) => {}
                Some(Ok(StreamEvent::Text(text))) => {
                    let new = answer.joint.feed(&text);
                    self.push_text(answer, new);
                }
                Some(Ok(StreamEvent::Thought(text))) => {
                    let new = answer.joint_thought.feed(&text);
                    self.push_thought(answer, new);
                }
                Some(Ok(StreamEvent::ToolUse(call))) => answer.parts.push(MessagePart::ToolUse(call)),
                Some(Ok(StreamEvent::Done { stop, usage })) => {
                    let (thought, text) = (answer.joint_thought.end(), answer.joint.end());
                    self.push_thought(answer, thought);
                    self.push_text(answer, text);
                    return Ok((stop, usage));
                }
                Some(Err(error)) => return Err(Some(error)),
                None => {
                    let reason = "the connection was lost before the answer was complete".to_owned();
                    let model = self.provider.name().to_string();
                    return Err(Some(LlmError::Transient { model, reason, retry_after: None }));
                }
            }
        }
    }

    fn push_text(&self, answer: &mut PartialReply, text: String) {
        if !text.is_empty() {
            answer.push_text(&text);
            if self.streamed {
                self.notifier.status(StatusUpdate::Text(text));
            }
        }
    }

    fn push_thought(&self, answer: &mut PartialReply, text: String) {
        if !text.is_empty() {
            answer.push_thought(&text);
            if self.streamed {
                self.notifier.status(StatusUpdate::Thought(text));
            }
        }
    }

    /// Waits before a retry. Fails if the error is not transient, the retries are used up or the pause is too long.
    async fn pause(&self, error: &LlmError, tries: u32, answer: &PartialReply) -> Result<(), FailureCause> {
        let times = if tries > 1 { format!(" (it was asked {tries} times)") } else { String::new() };
        let retry_after = match error {
            LlmError::LimitReached { reason } => return Err(FailureCause::Limit(reason.clone())),
            LlmError::Overflow { .. } if answer.parts.is_empty() => {
                return Err(FailureCause::Overflow(error.to_string()));
            }
            LlmError::Overflow { .. }
            | LlmError::Failed { .. }
            | LlmError::Unusable { .. }
            | LlmError::UnusableRecording { .. }
            | LlmError::NotAllowed { .. }
            | LlmError::MissingKey { .. }
            | LlmError::Rejected { .. }
            | LlmError::AnswerTooLong { .. } => {
                return Err(FailureCause::Failed { why: format!("{error}{times}"), status: error.status() });
            }
            LlmError::Transient { .. } if tries > self.retry.retries => {
                return Err(FailureCause::Failed { why: format!("{error}{times}"), status: None });
            }
            LlmError::Transient { retry_after, .. } => *retry_after,
            LlmError::RateLimited { retry_after: Some(wait), .. } if *wait > self.retry.longest => Some(*wait),
            LlmError::RateLimited { .. } => {
                let waited = self.retry.patience.as_secs();
                let why = format!("{error}; it had too many requests for {waited} s");
                return Err(FailureCause::Failed { why, status: None });
            }
        };
        let pause = retry_after.unwrap_or(self.retry.pause.saturating_mul(2_u32.saturating_pow(tries - 1)));
        if pause > self.retry.longest {
            let seconds = pause.as_secs();
            let why = format!("{error}; it wants to be asked again in {seconds} s, which is too long");
            return Err(FailureCause::Failed { why, status: None });
        }
        let retries = if self.may_switch(answer) { FALLBACK_RETRIES } else { self.retry.retries };
        let (next, most) = (tries + 1, retries + 1);
        let notice = format!("{error}; asking again in {:.1} s, try {next} of {most}", pause.as_secs_f64());
        tracing::warn!(model = %self.provider.name(), "{notice}");
        self.notifier.status(StatusUpdate::notice(notice));
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(FailureCause::Cancelled),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }
}

fn is_said(part: &MessagePart) -> bool {
    !matches!(part, MessagePart::ToolUse(_))
}

/// An answer while it arrives. Adjacent chunks of one kind form one part.
#[derive(Default)]
struct PartialReply {
    parts: Vec<MessagePart>,
    joint: ReplyJoiner,
    joint_thought: ReplyJoiner,
    /// Bytes that the model has sent, over all attempts.
    size: usize,
    /// Estimated tokens of attempts that failed.
    stopped: Usage,
}

impl PartialReply {
    fn push_text(&mut self, more: &str) {
        match self.parts.last_mut() {
            Some(MessagePart::Content(Content::Text(text))) => text.push_str(more),
            _ => self.parts.push(MessagePart::Content(Content::text(more))),
        }
    }

    fn push_thought(&mut self, more: &str) {
        match self.parts.last_mut() {
            Some(MessagePart::Thought(text)) => text.push_str(more),
            _ => self.parts.push(MessagePart::Thought(more.to_owned())),
        }
    }

    /// Prepares for a retry: keeps text and thoughts, drops tool calls, and joins the next answer to the text.
    fn resume(&mut self) {
        self.parts.retain(is_said);
        self.joint = ReplyJoiner::new(self.full_text());
        let thoughts = self.parts.iter().filter_map(|part| match part {
            MessagePart::Thought(text) => Some(text.as_str()),
            MessagePart::Content(_) | MessagePart::ToolUse(_) | MessagePart::ToolResult(_) => None,
        });
        self.joint_thought = ReplyJoiner::new(thoughts.collect());
    }

    fn full_text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            MessagePart::Content(content) => content.as_text(),
            MessagePart::Thought(_) | MessagePart::ToolUse(_) | MessagePart::ToolResult(_) => None,
        });
        texts.collect()
    }

    /// Returns the request, followed by the text that has arrived and the request to continue.
    fn continuation(&self, request: &ModelRequest) -> ModelRequest {
        let mut request = request.clone();
        let said = self.full_text();
        // A model cannot continue from thoughts alone, and providers reject blank text.
        if !said.trim().is_empty() {
            let said = Message { role: Role::Assistant, parts: vec![MessagePart::Content(Content::text(said))] };
            request.messages.extend([said, Message::user(vec![Content::text(GO_ON)])].map(Arc::new));
        }
        request
    }
}
