//! Writes the body of a request. Only the messages are new in each request of a turn.

use std::borrow::Cow;

use genai::chat::{Binary, BinarySource, ChatMessage, ChatRole, ContentPart};
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::call_extras::CallExtras;
use crate::llm::OfferedTool;
use crate::llm::dialect::{is_cached, join_texts};

/// What a request has besides tools and messages.
pub(super) struct RequestOptions<'a> {
    pub(super) model: &'a str,
    /// Whether the model thinks. `None` if the provider takes no such field.
    pub(super) thinking: Option<bool>,
    pub(super) effort: Option<&'static str>,
    pub(super) marks_cache: bool,
}

/// Returns the body of a request as JSON.
pub(super) fn write_body(
    options: &RequestOptions<'_>,
    tools: Option<&RawValue>,
    messages: &[ChatMessage],
) -> serde_json::Result<Vec<u8>> {
    let mut entries = Vec::with_capacity(messages.len());
    for message in messages {
        let is_marked = options.marks_cache && is_cached(message);
        push_entries(&mut entries, message, is_marked);
    }
    let ttl = messages.iter().any(is_cached).then_some("30m");
    // The tools come before the messages, which change: providers cache the beginning of a request.
    let body = RequestBody {
        model: options.model,
        stream: true,
        prompt_cache_options: options.marks_cache.then_some(CacheOptions { mode: "explicit", ttl }),
        thinking: options.thinking.map(|thinks| ThinkingSwitch { kind: if thinks { "enabled" } else { "disabled" } }),
        reasoning_effort: options.effort,
        tools,
        messages: entries,
        stream_options: StreamOptions { include_usage: true },
    };
    serde_json::to_vec(&body)
}

#[derive(Serialize)]
struct RequestBody<'a> {
    model: &'a str,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_options: Option<CacheOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<ThinkingSwitch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
    messages: Vec<MessageEntry<'a>>,
    stream_options: StreamOptions,
}

#[derive(Serialize)]
struct CacheOptions {
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<&'static str>,
}

#[derive(Serialize)]
struct ThinkingSwitch {
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct ToolEntry<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: ToolFunction<'a>,
}

#[derive(Serialize)]
struct ToolFunction<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Map<String, Value>,
    strict: bool,
}

pub(super) fn write_tools(tools: &[OfferedTool]) -> serde_json::Result<Box<RawValue>> {
    to_raw_value(&tools.iter().map(tool_entry).collect::<Vec<_>>())
}

fn tool_entry(tool: &OfferedTool) -> ToolEntry<'_> {
    let (name, description) = (tool.name.as_str(), tool.description.as_str());
    let function = ToolFunction { name, description, parameters: &tool.schema, strict: false };
    ToolEntry { kind: "function", function }
}

#[derive(Serialize)]
struct MessageEntry<'a> {
    role: &'static str,
    content: ContentEntry<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallEntry<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    /// The thoughts, for providers that refuse an answer without them.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    /// The signatures of the calls, if the provider writes them here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasoning_details: Vec<Value>,
}

impl<'a> MessageEntry<'a> {
    fn new(role: &'static str, content: ContentEntry<'a>) -> Self {
        Self {
            role,
            content,
            tool_calls: Vec::new(),
            tool_call_id: None,
            reasoning_content: None,
            reasoning_details: Vec::new(),
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum ContentEntry<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<PartItem<'a>>),
}

/// A part, and whether the provider caches the request up to it.
#[derive(Serialize)]
struct PartItem<'a> {
    #[serde(flatten)]
    part: PartEntry<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_breakpoint: Option<CacheOptions>,
}

impl<'a> From<PartEntry<'a>> for PartItem<'a> {
    fn from(part: PartEntry<'a>) -> Self {
        Self { part, prompt_cache_breakpoint: None }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum PartEntry<'a> {
    Text { text: Cow<'a, str> },
    InputAudio { input_audio: AudioEntry<'a> },
    ImageUrl { image_url: UrlEntry<'a> },
    VideoUrl { video_url: UrlEntry<'a> },
    File { file: AttachmentEntry<'a> },
}

#[derive(Serialize)]
struct AudioEntry<'a> {
    data: &'a str,
    format: &'a str,
}

#[derive(Serialize)]
struct UrlEntry<'a> {
    url: DataUrl<'a>,
}

#[derive(Serialize)]
struct AttachmentEntry<'a> {
    filename: Option<&'a str>,
    file_data: DataUrl<'a>,
}

#[derive(Serialize)]
struct CallEntry<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    id: &'a str,
    function: CallFunction<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_content: Option<Value>,
    /// An entry of the message.
    #[serde(skip)]
    reasoning_detail: Option<Value>,
}

#[derive(Serialize)]
struct CallFunction<'a> {
    name: &'a str,
    /// JSON in a string.
    arguments: String,
}

/// The address of a binary part. Its data is written as it is, without a copy.
struct DataUrl<'a>(&'a Binary);

impl Serialize for DataUrl<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0.source {
            BinarySource::Url(url) => serializer.serialize_str(url),
            BinarySource::Base64(data) => {
                serializer.collect_str(&format_args!("data:{};base64,{data}", self.0.content_type))
            }
        }
    }
}

/// Adds the entries of a message. If it is marked, the provider caches the request up to its last part.
fn push_entries<'a>(entries: &mut Vec<MessageEntry<'a>>, message: &'a ChatMessage, is_marked: bool) {
    let texts = message.content.texts();
    match message.role {
        ChatRole::System if texts.is_empty() => {}
        ChatRole::System if is_marked => {
            let text = PartEntry::Text { text: join_texts(&texts) };
            entries.push(MessageEntry::new("system", mark_last_part([text])));
        }
        ChatRole::System => entries.push(MessageEntry::new("system", ContentEntry::Text(join_texts(&texts)))),
        ChatRole::User if is_marked => {
            let parts = message.content.parts().iter().filter_map(part_entry);
            entries.push(MessageEntry::new("user", mark_last_part(parts)));
        }
        ChatRole::User if message.content.is_text_only() => {
            entries.push(MessageEntry::new("user", ContentEntry::Text(join_texts(&texts))));
        }
        ChatRole::User => {
            let parts = message.content.parts().iter().filter_map(part_entry).map(PartItem::from).collect();
            entries.push(MessageEntry::new("user", ContentEntry::Parts(parts)));
        }
        ChatRole::Assistant => {
            let content = match texts.as_slice() {
                texts if is_marked => {
                    mark_last_part(texts.iter().map(|text| PartEntry::Text { text: Cow::Borrowed(text) }))
                }
                &[text] => ContentEntry::Text(Cow::Borrowed(text)),
                texts => ContentEntry::Text(Cow::Owned(texts.join("\n\n"))),
            };
            let parts = message.content.parts();
            let mut tool_calls: Vec<_> = parts.iter().filter_map(call_entry).collect();
            let reasoning_details = tool_calls.iter_mut().filter_map(|call| call.reasoning_detail.take()).collect();
            let thoughts: Vec<_> = parts.iter().filter_map(ContentPart::as_reasoning_content).collect();
            let reasoning_content = (!thoughts.is_empty()).then(|| thoughts.join("\n"));
            let entry = MessageEntry::new("assistant", content);
            entries.push(MessageEntry { tool_calls, reasoning_content, reasoning_details, ..entry });
        }
        ChatRole::Tool => entries.extend(message.content.parts().iter().filter_map(|part| match part {
            ContentPart::ToolResponse(result) => {
                let content = ContentEntry::Text(Cow::Borrowed(result.content.as_str()));
                Some(MessageEntry { tool_call_id: Some(result.call_id.as_str()), ..MessageEntry::new("tool", content) })
            }
            _ => None,
        })),
    }
}

/// Marks the last part that a provider can cache up to.
fn mark_last_part<'a>(parts: impl IntoIterator<Item = PartEntry<'a>>) -> ContentEntry<'a> {
    let mut items: Vec<_> = parts.into_iter().map(PartItem::from).collect();
    let is_markable = |item: &&mut PartItem<'_>| !matches!(item.part, PartEntry::VideoUrl { .. });
    if let Some(last) = items.iter_mut().rev().find(is_markable) {
        last.prompt_cache_breakpoint = Some(CacheOptions { mode: "explicit", ttl: None });
    }
    ContentEntry::Parts(items)
}

fn part_entry(part: &ContentPart) -> Option<PartEntry<'_>> {
    match part {
        ContentPart::Text(text) => Some(PartEntry::Text { text: Cow::Borrowed(text) }),
        ContentPart::Binary(binary) => binary_entry(binary),
        // A message of the user has no other parts.
        _ => None,
    }
}

fn binary_entry(binary: &Binary) -> Option<PartEntry<'_>> {
    let url = || DataUrl(binary);
    match &binary.source {
        BinarySource::Base64(data) if binary.is_audio() => {
            let format = binary.content_type.split('/').next_back().unwrap_or_default();
            let format = if format == "mpeg" { "mp3" } else { format };
            Some(PartEntry::InputAudio { input_audio: AudioEntry { data: data.as_ref(), format } })
        }
        BinarySource::Url(_) if binary.is_audio() => None,
        _ if binary.is_image() => Some(PartEntry::ImageUrl { image_url: UrlEntry { url: url() } }),
        _ if binary.is_video() => Some(PartEntry::VideoUrl { video_url: UrlEntry { url: url() } }),
        BinarySource::Url(_) => None,
        BinarySource::Base64(_) => {
            Some(PartEntry::File { file: AttachmentEntry { filename: binary.name.as_deref(), file_data: url() } })
        }
    }
}

fn call_entry(part: &ContentPart) -> Option<CallEntry<'_>> {
    let ContentPart::ToolCall(call) = part else { return None };
    let function = CallFunction { name: &call.fn_name, arguments: call.fn_arguments.to_string() };
    let signature = call.thought_signatures.as_ref().and_then(|signatures| signatures.first());
    let extras = signature.map(|text| CallExtras::parse(text, &call.call_id)).unwrap_or_default();
    let CallExtras { extra_content, reasoning_detail } = extras;
    Some(CallEntry { kind: "function", id: &call.call_id, function, extra_content, reasoning_detail })
}
