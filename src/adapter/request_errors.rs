//! Finds what is wrong with the requests of MCP clients.

use rmcp::ErrorData;
use rmcp::model::{CustomRequest, ErrorCode, Tool};
use serde_json::{Map, Value};

/// Requests whose params rmcp reads. One with params of wrong types reaches a server as a request that rmcp does not
/// know.
const KNOWN_REQUESTS: [&str; 13] = [
    "completion/complete",
    "initialize",
    "logging/setLevel",
    "ping",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    "tools/call",
    "tools/list",
];

/// Returns the error for a request that rmcp does not know: its params are wrong, or there is no such method.
pub(crate) fn refuse_request(request: CustomRequest) -> ErrorData {
    let method = request.method;
    if KNOWN_REQUESTS.contains(&method.as_str()) {
        return ErrorData::invalid_params(format!("the params of `{method}` are not those of the protocol"), None);
    }
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method, None)
}

/// Returns the required arguments of a tool that a call lacks.
pub(super) fn missing_arguments(tool: &Tool, arguments: Option<&Map<String, Value>>) -> Vec<String> {
    let required = tool.input_schema.get("required").and_then(Value::as_array);
    let required = required.into_iter().flatten().filter_map(Value::as_str);
    let given = |name: &str| arguments.is_some_and(|arguments| arguments.contains_key(name));
    required.filter(|name| !given(name)).map(|name| format!("`{name}`")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_params_and_unknown_methods_are_told_apart() {
        let code = |method: &str| refuse_request(CustomRequest::new(method, None)).code;
        assert_eq!(code("tools/call"), ErrorCode::INVALID_PARAMS);
        assert_eq!(code("no/such"), ErrorCode::METHOD_NOT_FOUND);
    }
}
