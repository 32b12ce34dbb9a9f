//! Writes the body of a request. Only the messages are new in each request of a turn.

use genai::chat::{BinarySource, ChatMessage, ChatRole, ContentPart, ToolResponse};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use crate::llm::OfferedTool;
use crate::llm::dialect::join_texts;

/// How a model should think.
#[derive(Clone, Copy)]
pub(super) enum ThinkingConfig {
    Level(&'static str),
    /// Tokens.
    Budget(u32),
}

/// Returns the body of a request as JSON.
pub(super) fn write_body(
    thinking: Option<ThinkingConfig>,
    tools: Option<&RawValue>,
    messages: &[ChatMessage],
) -> serde_json::Result<Vec<u8>> {
    let system: Vec<_> = messages.iter().filter(|message| message.role == ChatRole::System).collect();
    let system: Vec<_> = system.iter().map(|message| join_texts(&message.content.texts())).collect();
    let system = system.join("\n");
    let mut contents: Vec<GeminiContent<'_>> = Vec::with_capacity(messages.len());
    for entry in messages.iter().filter_map(content_entry) {
        match contents.last_mut() {
            // The results of one answer's calls must be in one entry.
            Some(last) if last.has_only_results() && entry.has_only_results() => last.parts.extend(entry.parts),
            _ => contents.push(entry),
        }
    }
    // The tools come before the messages, which change: providers cache the beginning of a request.
    let body = GeminiRequest {
        generation_config: thinking.map(|thinking| GenerationConfig { thinking_config: thinking.into() }),
        system_instruction: (!system.is_empty()).then(|| SystemInstruction { parts: [TextEntry { text: &system }] }),
        tools,
        contents,
    };
    serde_json::to_vec(&body)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GeminiRequest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    generation_config: Option<GenerationConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_instruction: Option<SystemInstruction<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
    contents: Vec<GeminiContent<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GenerationConfig {
    thinking_config: ThinkingEntry,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct ThinkingEntry {
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking_level: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking_budget: Option<u32>,
}

impl From<ThinkingConfig> for ThinkingEntry {
    fn from(config: ThinkingConfig) -> Self {
        match config {
            ThinkingConfig::Level(level) => Self { thinking_level: Some(level), ..Self::default() },
            ThinkingConfig::Budget(tokens) => Self { thinking_budget: Some(tokens), ..Self::default() },
        }
    }
}

#[derive(Serialize)]
struct SystemInstruction<'a> {
    parts: [TextEntry<'a>; 1],
}

#[derive(Serialize)]
struct TextEntry<'a> {
    text: &'a str,
}

#[derive(Serialize)]
struct GeminiContent<'a> {
    role: &'static str,
    parts: Vec<GeminiPart<'a>>,
}

/// A part, and the signature that came with it.
#[derive(Serialize)]
struct GeminiPart<'a> {
    #[serde(flatten)]
    part: PartData<'a>,
    #[serde(rename = "thoughtSignature", skip_serializing_if = "Option::is_none")]
    signature: Option<&'a str>,
}

#[derive(Serialize)]
enum PartData<'a> {
    #[serde(rename = "text")]
    Text(&'a str),
    #[serde(rename = "inline_data")]
    Data { mime_type: &'a str, data: &'a str },
    #[serde(rename = "functionCall")]
    Call(CallData<'a>),
    #[serde(rename = "functionResponse")]
    Result(ResponseData<'a>),
}

#[derive(Serialize)]
struct CallData<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    name: &'a str,
    args: &'a Value,
}

#[derive(Serialize)]
struct ResponseData<'a> {
    name: &'a str,
    response: ResponseContent<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
}

#[derive(Serialize)]
struct ResponseContent<'a> {
    name: &'a str,
    content: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolList<'a> {
    function_declarations: Vec<FunctionDeclaration<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FunctionDeclaration<'a> {
    name: &'a str,
    description: &'a str,
    parameters_json_schema: &'a Map<String, Value>,
}

pub(super) fn write_tools(tools: &[OfferedTool]) -> serde_json::Result<Box<RawValue>> {
    let function_declarations = tools.iter().map(tool_entry).collect();
    to_raw_value(&[ToolList { function_declarations }])
}

fn tool_entry(tool: &OfferedTool) -> FunctionDeclaration<'_> {
    FunctionDeclaration { name: &tool.name, description: &tool.description, parameters_json_schema: &tool.schema }
}

/// Returns the entry of a message. `None` if it is a system message, or nothing of it is sent.
fn content_entry(message: &ChatMessage) -> Option<GeminiContent<'_>> {
    let role = match message.role {
        ChatRole::System => return None,
        ChatRole::User | ChatRole::Tool => "user",
        ChatRole::Assistant => "model",
    };
    let parts: Vec<_> = message.content.parts().iter().filter_map(part_item).collect();
    (!parts.is_empty()).then_some(GeminiContent { role, parts })
}

impl GeminiContent<'_> {
    fn has_only_results(&self) -> bool {
        self.parts.iter().all(|item| matches!(item.part, PartData::Result(_)))
    }
}

fn part_item(part: &ContentPart) -> Option<GeminiPart<'_>> {
    let mut signature = None;
    let part = match part {
        ContentPart::Text(text) => PartData::Text(text),
        ContentPart::Binary(binary) => match &binary.source {
            BinarySource::Base64(data) => PartData::Data { mime_type: &binary.content_type, data },
            BinarySource::Url(_) => return None,
        },
        ContentPart::ToolCall(call) => {
            signature = call.thought_signatures.as_ref().and_then(|signatures| signatures.first().map(String::as_str));
            PartData::Call(CallData { id: find_id(&call.call_id), name: &call.fn_name, args: &call.fn_arguments })
        }
        ContentPart::ToolResponse(result) => PartData::Result(result_entry(result)),
        // Skein repeats no thoughts to this provider.
        _ => return None,
    };
    Some(GeminiPart { part, signature })
}

fn result_entry(result: &ToolResponse) -> ResponseData<'_> {
    let name = result.fn_name.as_deref().unwrap_or(&result.call_id);
    let response = ResponseContent { name, content: result.content.as_str() };
    ResponseData { name, response, id: find_id(&result.call_id) }
}

/// Returns the id of a call. `None` if it has none.
fn find_id(id: &str) -> Option<&str> {
    (!id.is_empty()).then_some(id)
}
