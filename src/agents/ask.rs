//! Asks a model until it has answered: what passes is tried again, and an answer that was cut off is taken up where
//! it stopped.
//!
//! Invariant: what was told to the notifier is what is kept, and no word is told twice. A wish for a tool counts only
//! if the answer it belongs to came to its end.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::join::Join;
use super::{Notifier, Status};
use crate::conversation::{Content, Message, Part, Role, Usage};
use crate::llm::{LlmError, MAX_ANSWER, ModelStop, Provider, Request, StreamEvent};

/// What a model is told whose answer did not arrive whole. Chat interfaces have no common way to go on with a message,
/// so the part that arrived is shown as its own and this follows.
const GO_ON: &str = "[Your last message was cut off by a lost connection; the user has read it up to that point. Go on \
                     exactly where it stops, in the middle of a word if need be. Do not repeat or comment on any of it. \
                     If you were about to call tools, call them now.]";

/// How often and how long a model that fails is waited for.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// How often it is asked again.
    pub retries: u32,
    /// The first pause; each further one is twice as long, unless the provider says otherwise.
    pub pause: Duration,
    /// A provider that wants a longer pause is not waited for.
    pub longest: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { retries: 4, pause: Duration::from_millis(500), longest: Duration::from_secs(60) }
    }
}

pub(super) struct Asking<'a> {
    pub(super) provider: &'a dyn Provider,
    pub(super) notifier: &'a dyn Notifier,
    pub(super) patience: Patience,
    pub(super) cancel: &'a CancellationToken,
    /// Whether the notifier hears the answer as it comes.
    pub(super) aloud: bool,
}

pub(super) struct Answered {
    pub(super) parts: Vec<Part>,
    pub(super) stop: ModelStop,
    pub(super) usage: Usage,
}

/// Why there is no answer, and what was said until then.
pub(super) struct Unanswered {
    pub(super) parts: Vec<Part>,
    pub(super) why: Why,
}

pub(super) enum Why {
    Cancelled,
    /// Nothing was said: the request is too long.
    Overflow(String),
    Failed(String),
}

impl Asking<'_> {
    pub(super) async fn ask(&self, request: &Request) -> Result<Answered, Unanswered> {
        let mut answer = Answer::default();
        let mut tries = 0;
        loop {
            tries += 1;
            let why = match self.once(answer.continued(request), &mut answer).await {
                Ok((stop, usage)) => return Ok(Answered { parts: answer.parts, stop, usage }),
                Err(None) => Why::Cancelled,
                Err(Some(error)) => match self.pause(&error, tries, answer.parts.is_empty()).await {
                    Ok(()) => {
                        answer.take_up();
                        continue;
                    }
                    Err(why) => why,
                },
            };
            answer.parts.retain(is_said);
            return Err(Unanswered { parts: answer.parts, why });
        }
    }

    /// One request. `None` is a cancellation.
    async fn once(&self, request: Request, answer: &mut Answer) -> Result<(ModelStop, Usage), Option<LlmError>> {
        let mut stream = self.provider.stream(request);
        loop {
            let event = tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Err(None),
                event = stream.next() => event,
            };
            // What is held back until it is known to be new counts, too. Dropping the stream ends the request.
            answer.size += event.as_ref().and_then(|event| event.as_ref().ok()).map_or(0, StreamEvent::size);
            if answer.size > MAX_ANSWER {
                return Err(Some(LlmError::AnswerTooLong { model: self.provider.name().to_owned() }));
            }
            match event {
                Some(Ok(StreamEvent::Text(text))) => {
                    let new = answer.joint.feed(&text);
                    self.text(answer, new);
                }
                Some(Ok(StreamEvent::Thought(text))) => {
                    let new = answer.joint_thought.feed(&text);
                    self.thought(answer, new);
                }
                Some(Ok(StreamEvent::ToolUse(call))) => answer.parts.push(Part::ToolUse(call)),
                Some(Ok(StreamEvent::Done { stop, usage })) => {
                    let (thought, text) = (answer.joint_thought.end(), answer.joint.end());
                    self.thought(answer, thought);
                    self.text(answer, text);
                    return Ok((stop, usage));
                }
                Some(Err(error)) => return Err(Some(error)),
                None => {
                    let reason = "the connection was lost before the answer was complete".to_owned();
                    let model = self.provider.name().to_owned();
                    return Err(Some(LlmError::Passing { model, reason, retry_after: None }));
                }
            }
        }
    }

    fn text(&self, answer: &mut Answer, text: String) {
        if !text.is_empty() {
            answer.text(&text);
            if self.aloud {
                self.notifier.status(Status::Text(text));
            }
        }
    }

    fn thought(&self, answer: &mut Answer, text: String) {
        if !text.is_empty() {
            answer.thought(&text);
            if self.aloud {
                self.notifier.status(Status::Thought(text));
            }
        }
    }

    /// Waits until it is worth asking again, if it is.
    async fn pause(&self, error: &LlmError, tries: u32, nothing_said: bool) -> Result<(), Why> {
        let times = if tries > 1 { format!(" (it was asked {tries} times)") } else { String::new() };
        let retry_after = match error {
            LlmError::Overflow { .. } if nothing_said => return Err(Why::Overflow(error.to_string())),
            LlmError::Overflow { .. }
            | LlmError::Failed { .. }
            | LlmError::Unusable { .. }
            | LlmError::AnswerTooLong { .. } => {
                return Err(Why::Failed(format!("{error}{times}")));
            }
            LlmError::Passing { .. } if tries > self.patience.retries => {
                return Err(Why::Failed(format!("{error}{times}")));
            }
            LlmError::Passing { retry_after, .. } => *retry_after,
        };
        let pause = retry_after.unwrap_or(self.patience.pause.saturating_mul(2_u32.saturating_pow(tries - 1)));
        if pause > self.patience.longest {
            let seconds = pause.as_secs();
            return Err(Why::Failed(format!("{error}; it wants to be asked again in {seconds} s, which is too long")));
        }
        let (next, most) = (tries + 1, self.patience.retries + 1);
        let notice = format!("{error}; asking again in {:.1} s, try {next} of {most}", pause.as_secs_f64());
        tracing::warn!(model = self.provider.name(), "{notice}");
        self.notifier.status(Status::Notice(notice));
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(Why::Cancelled),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }
}

fn is_said(part: &Part) -> bool {
    !matches!(part, Part::ToolUse(_))
}

/// An answer as it grows: neighbouring pieces of one kind are one part.
#[derive(Default)]
struct Answer {
    parts: Vec<Part>,
    joint: Join,
    joint_thought: Join,
    /// Bytes that the model has sent, over all tries.
    size: usize,
}

impl Answer {
    fn text(&mut self, more: &str) {
        match self.parts.last_mut() {
            Some(Part::Content(Content::Text(text))) => text.push_str(more),
            _ => self.parts.push(Part::Content(Content::text(more))),
        }
    }

    fn thought(&mut self, more: &str) {
        match self.parts.last_mut() {
            Some(Part::Thought(text)) => text.push_str(more),
            _ => self.parts.push(Part::Thought(more.to_owned())),
        }
    }

    /// What was said stays, wishes go, and what comes next is joined to it.
    fn take_up(&mut self) {
        self.parts.retain(is_said);
        self.joint = Join::new(self.said());
        let thoughts = self.parts.iter().filter_map(|part| match part {
            Part::Thought(text) => Some(text.as_str()),
            Part::Content(_) | Part::ToolUse(_) | Part::ToolResult(_) => None,
        });
        self.joint_thought = Join::new(thoughts.collect());
    }

    fn said(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            Part::Content(content) => content.as_text(),
            Part::Thought(_) | Part::ToolUse(_) | Part::ToolResult(_) => None,
        });
        texts.collect()
    }

    /// The request again, with what has already been said.
    fn continued(&self, request: &Request) -> Request {
        let mut request = request.clone();
        let said = self.said();
        // Thoughts alone cannot be gone on with, and providers refuse blank text.
        if !said.trim().is_empty() {
            let said = Message { role: Role::Assistant, parts: vec![Part::Content(Content::text(said))] };
            request.messages.extend([said, Message::user(vec![Content::text(GO_ON)])].map(Arc::new));
        }
        request
    }
}
