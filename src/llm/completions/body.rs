//! Writes the body of a request. Only the messages are new in each request of a turn.

use std::borrow::Cow;

use genai::chat::{Binary, BinarySource, ChatMessage, ChatRole, ContentPart};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// Returns the body of a request as JSON.
pub(super) fn write_body(
    model: &str,
    tools: Option<&RawValue>,
    messages: &[ChatMessage],
) -> serde_json::Result<Vec<u8>> {
    let mut entries = Vec::with_capacity(messages.len());
    for message in messages {
        push_entries(&mut entries, message);
    }
    // The tools come before the messages, which change: providers cache the beginning of a request.
    let stream_options = StreamOptions { include_usage: true };
    serde_json::to_vec(&RequestBody { model, stream: true, tools, messages: entries, stream_options })
}

#[derive(Serialize)]
struct RequestBody<'a> {
    model: &'a str,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
    messages: Vec<MessageEntry<'a>>,
    stream_options: StreamOptions,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
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
}

impl<'a> MessageEntry<'a> {
    fn new(role: &'static str, content: ContentEntry<'a>) -> Self {
        Self { role, content, tool_calls: Vec::new(), tool_call_id: None, reasoning_content: None }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum ContentEntry<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<PartEntry<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum PartEntry<'a> {
    Text { text: &'a str },
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

fn push_entries<'a>(entries: &mut Vec<MessageEntry<'a>>, message: &'a ChatMessage) {
    let texts = message.content.texts();
    match message.role {
        ChatRole::System if texts.is_empty() => {}
        ChatRole::System => entries.push(MessageEntry::new("system", ContentEntry::Text(join_texts(&texts)))),
        ChatRole::User if message.content.is_text_only() => {
            entries.push(MessageEntry::new("user", ContentEntry::Text(join_texts(&texts))));
        }
        ChatRole::User => {
            let parts = message.content.parts().iter().filter_map(part_entry).collect();
            entries.push(MessageEntry::new("user", ContentEntry::Parts(parts)));
        }
        ChatRole::Assistant => {
            let text = match texts.as_slice() {
                &[text] => Cow::Borrowed(text),
                texts => Cow::Owned(texts.join("\n\n")),
            };
            let parts = message.content.parts();
            let tool_calls = parts.iter().filter_map(call_entry).collect();
            let thoughts: Vec<_> = parts.iter().filter_map(ContentPart::as_reasoning_content).collect();
            let reasoning_content = (!thoughts.is_empty()).then(|| thoughts.join("\n"));
            let entry = MessageEntry::new("assistant", ContentEntry::Text(text));
            entries.push(MessageEntry { tool_calls, reasoning_content, ..entry });
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

fn part_entry(part: &ContentPart) -> Option<PartEntry<'_>> {
    match part {
        ContentPart::Text(text) => Some(PartEntry::Text { text: text.as_str() }),
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
    Some(CallEntry { kind: "function", id: &call.call_id, function })
}
