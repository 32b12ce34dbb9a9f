//! Estimates the tokens of an answer that was stopped. Providers report tokens at the end of an answer, and charge for
//! what they have sent until the connection ends.

use super::history::{tokens_of, total_weight};
use crate::conversation::Usage;
use crate::ids::ModelRef;
use crate::llm::{EarlierThoughts, ModelRequest, Provider, StreamEvent};

/// A request, and how much of its answer has arrived.
pub(super) struct UsageEstimate {
    /// `None` if the model costs nothing.
    request: Option<ModelRequest>,
    thoughts: EarlierThoughts,
    /// Bytes of the answer, without the calls that are not complete.
    received: usize,
    /// Bytes of the calls that are not complete.
    open_calls: usize,
    /// The tokens that the provider has stated so far.
    stated: Usage,
}

impl UsageEstimate {
    pub(super) fn new(provider: &dyn Provider, request: &ModelRequest) -> Self {
        let is_hosted = matches!(provider.name(), ModelRef::Hosted { .. });
        let thoughts = provider.earlier_thoughts();
        Self {
            request: is_hosted.then(|| request.clone()),
            thoughts,
            received: 0,
            open_calls: 0,
            stated: Usage::default(),
        }
    }

    /// Notes a part of the answer.
    pub(super) fn add(&mut self, event: &StreamEvent) {
        self.received += event.size();
        match event {
            StreamEvent::Progress { bytes, usage } => {
                self.open_calls += bytes;
                self.stated = usage.unwrap_or(self.stated);
            }
            StreamEvent::ToolUse(_) => self.open_calls = self.open_calls.saturating_sub(event.size()),
            StreamEvent::Text(_) | StreamEvent::Thought(_) | StreamEvent::Done { .. } | StreamEvent::Queued { .. } => {}
        }
    }

    /// Returns the tokens of the request and of the part of the answer that arrived. Zero if no part arrived, because a
    /// request that was refused cost nothing.
    pub(super) fn usage(&self) -> Usage {
        let received = self.received + self.open_calls;
        let output = tokens_of(received).max(self.stated.output);
        match &self.request {
            Some(_) if self.stated.input > 0 => Usage { output, ..self.stated },
            Some(request) if received > 0 => Usage { input: request_tokens(request, self.thoughts), output, cached: 0 },
            _ => Usage::default(),
        }
    }
}

fn request_tokens(request: &ModelRequest, thoughts: EarlierThoughts) -> u64 {
    let tools = request.tools.iter().map(|tool| {
        let schema: usize = tool.schema.iter().map(|(name, value)| name.len() + value.to_string().len()).sum();
        tool.name.len() + tool.description.len() + schema
    });
    let fixed = tokens_of(request.system.len() + tools.sum::<usize>());
    fixed + total_weight(&request.messages, thoughts)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::stream::{self, BoxStream, StreamExt as _};
    use serde_json::json;

    use super::*;
    use crate::conversation::{Content, Message, ToolUse};
    use crate::llm::LlmError;

    struct NamedModel(ModelRef);

    impl Provider for NamedModel {
        fn name(&self) -> &ModelRef {
            &self.0
        }

        fn stream(&self, _: ModelRequest) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
            stream::empty().boxed()
        }
    }

    #[test]
    fn a_stopped_answer_counts_its_request_and_what_arrived() {
        let messages = vec![Arc::new(Message::user(vec![Content::text("x".repeat(400))]))];
        let request = ModelRequest { system: "s".repeat(80).into(), tools: Arc::default(), messages };
        let of = |model: &str, events: &[StreamEvent]| {
            let mut estimate = UsageEstimate::new(&NamedModel(ModelRef::from(model)), &request);
            events.iter().for_each(|event| estimate.add(event));
            estimate.usage()
        };
        let events = [StreamEvent::Queued { waiting: 1 }, StreamEvent::Text("four".to_owned())];
        assert_eq!(of("openai:gpt-5", &events), Usage { input: 120, output: 1, cached: 0 });
        assert_eq!(of("openai:gpt-5", &events[..1]), Usage::default(), "no part of an answer arrived");
        let stated = Usage { input: 100, output: 1, cached: 20 };
        let call = |usage| StreamEvent::Progress { bytes: 40, usage };
        assert_eq!(of("openai:gpt-5", &[call(None)]), Usage { input: 120, output: 10, cached: 0 });
        assert_eq!(of("openai:gpt-5", &[call(Some(stated)), call(None)]), Usage { output: 20, ..stated });
        let complete = ToolUse::new("1".to_owned(), "x".repeat(40), json!({}));
        assert_eq!(of("openai:gpt-5", &[call(None), StreamEvent::ToolUse(complete)]).output, 10, "a call counts once");
        assert_eq!(of("offline", &events), Usage::default(), "it costs nothing");
    }
}
