//! Collects the spans of `tracing` and queues those that end.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc::Sender;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::{AttributeValue, FinishedSpan, SpanCounts};
use crate::ids::random_uuid;
use crate::telemetry::{CONTENT_TARGET, MAX_TEXT, SPAN_TARGET, cut_point};

/// The attribute that the spans of a conversation share.
const CONVERSATION: &str = "gen_ai.conversation.id";
/// The attribute that spans of the conventions have.
const OPERATION: &str = "gen_ai.operation.name";

/// Turns spans into messages of the export.
#[derive(Debug)]
pub(in crate::cli) struct SpanLayer {
    queue: Sender<FinishedSpan>,
    counts: Arc<SpanCounts>,
    with_content: bool,
}

/// A span while it is open. Kept by the registry.
struct OpenSpan {
    trace: [u8; 16],
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    start: u64,
    /// The last time that its work paused or ended. `None` for a span that no work enters.
    last_exit: Option<u64>,
    /// The conversation of this span, or of the next one around it that has one.
    conversation: Option<AttributeValue>,
    fields: SpanFields,
}

#[derive(Default)]
struct SpanFields(Vec<(String, AttributeValue)>);

impl SpanLayer {
    pub(super) fn new(queue: Sender<FinishedSpan>, counts: Arc<SpanCounts>, with_content: bool) -> Self {
        Self { queue, counts, with_content }
    }

    /// Returns the filter that shows the layer only what it exports.
    pub(in crate::cli) fn filter(&self) -> Targets {
        let content = if self.with_content { LevelFilter::INFO } else { LevelFilter::OFF };
        Targets::new().with_target(SPAN_TARGET, LevelFilter::INFO).with_target(CONTENT_TARGET, content)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let parent = span.parent().and_then(|parent| {
            let extensions = parent.extensions();
            extensions.get::<OpenSpan>().map(|open| (open.trace, open.id, open.conversation.clone()))
        });
        let (trace, parent, around) = match parent {
            Some((trace, id, conversation)) => (trace, Some(id), conversation),
            None => (random_bytes(), None, None),
        };
        let mut fields = SpanFields::default();
        attributes.record(&mut fields);
        let conversation = fields.get(CONVERSATION).cloned().or(around);
        if let Some(conversation) = conversation.clone().filter(|_| fields.get(OPERATION).is_some()) {
            fields.put(CONVERSATION, conversation);
        }
        let open = OpenSpan { trace, id: random_id(), parent, start: now(), last_exit: None, conversation, fields };
        span.extensions_mut().insert(open);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<OpenSpan>() {
            values.record(&mut open.fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let Some(span) = context.event_span(event) else { return };
        let mut content = SpanFields::default();
        event.record(&mut content);
        if let (Some(AttributeValue::Text(key)), Some(value)) = (content.take("key"), content.take("value"))
            && let Some(open) = span.extensions_mut().get_mut::<OpenSpan>()
        {
            open.fields.put(&key, value);
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<OpenSpan>() {
            open.last_exit = Some(now());
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove() else { return };
        let OpenSpan { trace, id, parent, start, last_exit, mut fields, conversation: _ } = open;
        let name = match fields.take("otel.name") {
            Some(AttributeValue::Text(name)) => name,
            _ => span.name().to_owned(),
        };
        let is_client = fields.take("otel.kind").is_some_and(|kind| kind == AttributeValue::Text("client".to_owned()));
        let failed = fields.0.iter().any(|(key, _)| key == "error.type");
        // A span closes after its last child, which may outlive its work.
        let end = last_exit.unwrap_or_else(now).max(start);
        let span = FinishedSpan { trace, id, parent, name, is_client, start, end, attributes: fields.0, failed };
        // Counted first, so that the sender never subtracts more than there are.
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        if self.queue.try_send(span).is_err() {
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl SpanFields {
    fn put(&mut self, key: &str, value: AttributeValue) {
        let value = match value {
            AttributeValue::Text(mut text) => {
                text.truncate(cut_point(&text, MAX_TEXT));
                AttributeValue::Text(text)
            }
            other => other,
        };
        match self.0.iter_mut().find(|(existing, _)| existing == key) {
            Some((_, existing)) => *existing = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    fn get(&self, key: &str) -> Option<&AttributeValue> {
        self.0.iter().find(|(existing, _)| existing == key).map(|(_, value)| value)
    }

    fn take(&mut self, key: &str) -> Option<AttributeValue> {
        let index = self.0.iter().position(|(existing, _)| existing == key)?;
        Some(self.0.remove(index).1)
    }
}

impl Visit for SpanFields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field.name(), AttributeValue::Text(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let value = match field.name() {
            // The conventions define a list, and fields of `tracing` have no lists.
            "gen_ai.response.finish_reasons" => AttributeValue::Texts(vec![value.to_owned()]),
            _ => AttributeValue::Text(value.to_owned()),
        };
        self.put(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), AttributeValue::Integer(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), AttributeValue::Integer(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), AttributeValue::Float(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), AttributeValue::Flag(value));
    }
}

/// Returns nanoseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the bytes of a random UUID. They are never all zero, which the protocol forbids.
fn random_bytes() -> [u8; 16] {
    let digits = random_uuid().replace('-', "");
    u128::from_str_radix(&digits, 16).unwrap_or(1).to_be_bytes()
}

/// Returns the half of a random UUID that has the variant, so that it is never all zero.
fn random_id() -> [u8; 8] {
    let low = u128::from_be_bytes(random_bytes()) & u128::from(u64::MAX);
    u64::try_from(low).unwrap_or(1).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::channel;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::telemetry::WorkSpan;

    /// Runs work with a layer whose queue has this size. Returns what it queued, and how many spans it dropped.
    fn export(size: usize, with_content: bool, work: impl FnOnce()) -> (Vec<FinishedSpan>, u64) {
        let (queue, mut spans) = channel(size);
        let counts: Arc<SpanCounts> = Arc::default();
        let layer = SpanLayer::new(queue, Arc::clone(&counts), with_content);
        let filter = layer.filter();
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(filter));
        tracing::subscriber::with_default(subscriber, work);
        let spans: Vec<_> = std::iter::from_fn(|| spans.try_recv().ok()).collect();
        assert_eq!(counts.waiting.load(Ordering::Relaxed), spans.len() as u64);
        (spans, counts.take_dropped())
    }

    fn value<'a>(span: &'a FinishedSpan, key: &str) -> Option<&'a AttributeValue> {
        span.attributes.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    #[test]
    fn spans_over_the_limit_are_dropped_and_counted() {
        let (spans, dropped) = export(2, false, || (0..5).for_each(|_| drop(WorkSpan::sandbox_start())));
        assert_eq!((spans.len(), dropped), (2, 3));
    }

    #[test]
    fn a_span_knows_its_parent_its_name_and_its_failure() {
        let (spans, _) = export(8, false, || {
            let session = WorkSpan::session("s");
            let turn = session.turn("s", "goose", "assistant", "openai");
            turn.record_tokens(3, 2, 1);
            turn.fail("cancelled");
        });
        let [turn, session] = spans.as_slice() else { panic!("{spans:?}") };
        assert_eq!((turn.name.as_str(), session.name.as_str()), ("invoke_agent goose", "session"));
        assert_eq!((turn.trace, turn.parent, session.parent), (session.trace, Some(session.id), None));
        assert_eq!((turn.failed, session.failed), (true, false));
        assert_eq!(value(turn, "gen_ai.usage.input_tokens"), Some(&AttributeValue::Integer(3)));
        assert_eq!(value(turn, "otel.name"), None);
    }

    #[test]
    fn spans_of_a_turn_have_its_conversation_and_provider() {
        let (spans, _) = export(8, false, || {
            let turn = WorkSpan::session("s").turn("s", "goose", "assistant", "openai");
            let work = async {
                let call = WorkSpan::tool_call("delegate", None, "s", None);
                // What a call starts belongs to the same conversation, unless it says otherwise.
                call.run(async { drop(WorkSpan::model_request("openai", "m")) }).await;
                drop(WorkSpan::sandbox_start());
            };
            let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
            tokio.block_on(turn.run(work));
            turn.record_provider("acp");
            turn.mark_client();
        });
        let text = |text: &str| Some(AttributeValue::Text(text.to_owned()));
        let conversations: Vec<_> =
            spans.iter().map(|span| (span.name.as_str(), value(span, CONVERSATION).cloned())).collect();
        let expected = [
            ("chat m", text("s")),
            ("start_sandbox", None),
            ("execute_tool delegate", text("s")),
            ("invoke_agent goose", text("s")),
            ("session", text("s")),
        ];
        assert_eq!(conversations, expected);
        assert_eq!(value(&spans[3], "gen_ai.provider.name").cloned(), text("acp"));
        assert!(spans[3].is_client && !spans[2].is_client);
    }

    #[test]
    fn a_call_of_another_task_belongs_to_its_turn() {
        let (spans, _) = export(8, false, || {
            let turn = WorkSpan::session("s").turn("s", "goose", "assistant", "openai");
            drop(WorkSpan::tool_call("t", None, "s", Some(&turn)));
            drop(turn.agent_tool_call("edit", "c1"));
            drop(WorkSpan::tool_call("t", None, "client-1", None));
        });
        let [call, own, apart, turn, _] = spans.as_slice() else { panic!("{spans:?}") };
        assert_eq!((call.parent, own.parent, apart.parent), (Some(turn.id), Some(turn.id), None));
        let text = |text: &str| AttributeValue::Text(text.to_owned());
        assert_eq!((value(call, CONVERSATION), value(own, CONVERSATION)), (Some(&text("s")), Some(&text("s"))));
        assert_eq!(value(apart, CONVERSATION), Some(&text("client-1")));
    }

    #[test]
    fn unknown_usage_has_no_attribute() {
        let (spans, _) = export(8, false, || {
            let turn = WorkSpan::session("s").turn("s", "echo", "default", "acp");
            turn.record_tokens(0, 0, 0);
        });
        assert_eq!(value(&spans[0], "gen_ai.usage.input_tokens"), None);
    }

    #[test]
    fn content_is_computed_only_on_request() {
        let key = "gen_ai.tool.call.result";
        let work = |content: fn() -> String| move || WorkSpan::tool_call("t", None, "s", None).content(key, content);
        let (spans, _) = export(8, false, work(|| panic!("computed")));
        assert_eq!(value(&spans[0], key), None);
        let (spans, _) = export(8, true, work(|| "text".to_owned()));
        assert_eq!(value(&spans[0], key), Some(&AttributeValue::Text("text".to_owned())));
    }

    #[test]
    fn long_text_of_an_attribute_is_cut() {
        let (spans, _) =
            export(8, true, || WorkSpan::tool_call("t", None, "s", None).content("key", || "ä".repeat(MAX_TEXT)));
        let Some(AttributeValue::Text(text)) = value(&spans[0], "key") else { panic!("{spans:?}") };
        assert_eq!(text.len(), MAX_TEXT);
    }
}
