//! Decodes the params of a client's requests as the dispatch does, for the fuzzer.

use agent_client_protocol::v1::schema as acp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::content;

/// Returns the params as Skein understands them. The content of a prompt has the form in which Skein replays it. `None`
/// if Skein does not know the method, or if it refuses the params.
pub fn read_request(method: &str, params: Value) -> Option<Value> {
    match method {
        "initialize" => decode::<acp::InitializeRequest>(params),
        "authenticate" => decode::<acp::AuthenticateRequest>(params),
        "logout" => decode::<acp::LogoutRequest>(params),
        "session/new" => decode::<acp::NewSessionRequest>(params),
        "session/load" => decode::<acp::LoadSessionRequest>(params),
        "session/resume" => decode::<acp::ResumeSessionRequest>(params),
        "session/fork" => decode::<acp::ForkSessionRequest>(params),
        "session/list" => decode::<acp::ListSessionsRequest>(params),
        "session/delete" => decode::<acp::DeleteSessionRequest>(params),
        "session/close" => decode::<acp::CloseSessionRequest>(params),
        "session/set_mode" => decode::<acp::SetSessionModeRequest>(params),
        "session/set_config_option" => decode::<acp::SetSessionConfigOptionRequest>(params),
        "session/cancel" => decode::<acp::CancelNotification>(params),
        "session/prompt" => {
            let request: acp::PromptRequest = serde_json::from_value(params).ok()?;
            let blocks: Vec<_> = content::prompt(request.prompt).ok()?.iter().map(content::block).collect();
            Some(json!({"sessionId": request.session_id, "prompt": blocks}))
        }
        _ => None,
    }
}

fn decode<T: DeserializeOwned + Serialize>(params: Value) -> Option<Value> {
    serde_json::to_value(serde_json::from_value::<T>(params).ok()?).ok()
}
