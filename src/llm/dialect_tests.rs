//! Compares the requests and answers of [`CompletionsClient`] with those of genai, which it replaces.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use serde_json::json;

use super::*;
use crate::conversation::{Content, Message, MessagePart, Role, ToolResult};
use crate::llm::ProviderEndpoint;

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

/// A server that gives one answer to two requests, and then returns their bodies.
struct TwiceServer {
    address: String,
    thread: JoinHandle<Vec<String>>,
}

impl TwiceServer {
    /// Sends the answer in pieces of `size` bytes.
    fn new(answer: String, size: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/v1", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            (0..2).map(|_| answer_once(listener.accept().unwrap().0, answer.as_bytes(), size)).collect()
        });
        Self { address, thread }
    }

    fn provider(&self, model: &str) -> HttpProvider {
        self.provider_of("openai", model)
    }

    /// Returns a model of a built-in provider at the address of this server.
    fn provider_of(&self, provider: &str, model: &str) -> HttpProvider {
        let mut models = ModelRegistry::default();
        let endpoint = ProviderEndpoint { base_url: Some(self.address.clone()), ..ProviderEndpoint::default() };
        models.providers.insert(provider.to_owned(), endpoint);
        let variable = |name: &str| name.ends_with("_API_KEY").then(|| "a-long-key".to_owned());
        HttpProvider::new(&ModelRef::from(format!("{provider}:{model}")), &models, variable).unwrap()
    }
}

/// Reads one request, answers it, and returns its body.
fn answer_once(mut stream: TcpStream, answer: &[u8], size: usize) -> String {
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    for piece in answer.chunks(size) {
        // A client that has read the end may be gone.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    String::from_utf8(body).unwrap()
}

async fn events(provider: &HttpProvider, request: &ModelRequest) -> Vec<Result<StreamEvent, LlmError>> {
    provider.stream(request.clone()).collect().await
}

/// Asks with both clients. Returns the bodies and the events, each by Skein's client and by genai.
async fn ask_both(
    model: &str,
    request: &ModelRequest,
    answer: String,
    size: usize,
) -> [(String, Vec<Result<StreamEvent, LlmError>>); 2] {
    let server = TwiceServer::new(answer, size);
    let own = server.provider(model);
    assert!(own.completions.is_some(), "{model}");
    let genai = server.provider(model).with_genai_only();
    let by_own = events(&own, request).await;
    let by_genai = events(&genai, request).await;
    let mut bodies = server.thread.join().unwrap().into_iter();
    let mut body = || bodies.next().unwrap();
    [(body(), by_own), (body(), by_genai)]
}

fn prompt(text: &str) -> ModelRequest {
    let messages = vec![Arc::new(Message::user(vec![Content::text(text)]))];
    ModelRequest { system: "Be brief.".into(), tools: Arc::from([]), messages }
}

/// A request with every kind of message and part.
fn rich_request() -> ModelRequest {
    let properties = json!({"path": {"type": "string"}, "n": {"maximum": 1.5}});
    let schema = json!({"type": "object", "required": ["path"], "properties": properties});
    let Value::Object(schema) = schema else { unreachable!("a schema is an object") };
    let tool = |name: &str| OfferedTool {
        name: name.to_owned(),
        description: format!("Reads \"{name}\".\nSecond line."),
        schema: Arc::new(schema.clone()),
    };
    let media = |mime: &str, is_audio: bool| {
        let (mime, data) = (mime.to_owned(), "aGVsbG8=".to_owned());
        MessagePart::Content(if is_audio { Content::Audio { mime, data } } else { Content::Image { mime, data } })
    };
    let text = |text: &str| MessagePart::Content(Content::text(text));
    let call = |id: &str, arguments: Value| {
        MessagePart::ToolUse(ToolUse::new(id.to_owned(), "developer__read file".to_owned(), arguments))
    };
    let result = |id: &str, content: Vec<Content>, is_error: bool| {
        MessagePart::ToolResult(ToolResult { id: id.to_owned(), name: "read".to_owned(), content, is_error })
    };
    let image = Content::Image { mime: "image/png".to_owned(), data: "aW1hZ2U=".to_owned() };
    let message = |role, parts| Arc::new(Message { role, parts });
    let messages = vec![
        message(Role::User, vec![text("one\n"), text("two"), text("")]),
        message(Role::User, vec![MessagePart::Content(Content::Injected("beside ü \u{1F600}".to_owned()))]),
        message(Role::Assistant, vec![MessagePart::Thought("hm".to_owned()), text("first"), text("second")]),
        message(
            Role::User,
            vec![text("see"), media("image/png", false), media("audio/mpeg", true), media("audio/wav", true)],
        ),
        message(
            Role::User,
            vec![media("video/mp4", false), media("application/pdf", false), media("IMAGE/JPEG", false)],
        ),
        message(Role::Assistant, vec![call("c1", json!({"path": "a\\b", "n": 1.0})), call("c2", json!("no object"))]),
        message(Role::User, vec![result("c1", vec![Content::text("x"), image], false), result("c2", vec![], true)]),
        message(Role::Assistant, vec![text("done"), call("c3", Value::Null)]),
        message(Role::User, vec![result("c3", vec![Content::text("y"), Content::text("z")], true), text("and?")]),
    ];
    ModelRequest { system: "System\n\"prompt\"".into(), tools: Arc::from([tool("read"), tool("write")]), messages }
}

#[tokio::test]
async fn requests_have_the_bytes_of_genai() {
    let answer = || format!("{HEAD}data: [DONE]\n\n");
    for model in [
        "gpt-4o",
        "gpt-4.1-mini",
        "gpt-5",
        "gpt-5.5-mini",
        "gpt-oss-20b",
        "gpt-4o-audio-preview",
        "o3-mini",
        "org/model:free",
        "llama3.2",
    ] {
        let [own, genai] = ask_both(model, &rich_request(), answer(), 4096).await;
        assert_eq!(own.0, genai.0, "{model}");
    }
    let [own, genai] = ask_both("gpt-4o", &prompt("hello"), answer(), 4096).await;
    assert_eq!(own.0, genai.0, "without tools");
    let bare = ModelRequest { system: "".into(), ..prompt("hello") };
    let [own, genai] = ask_both("gpt-4o", &bare, answer(), 4096).await;
    assert_eq!(own.0, genai.0, "without a system prompt");
}

#[tokio::test]
async fn only_deepseek_gets_the_thoughts_of_its_answers() {
    let request = thoughtful_request();
    for provider in ["deepseek", "openai", "mistral", "xai"] {
        let server = TwiceServer::new(format!("{HEAD}data: [DONE]\n\n"), 4096);
        let model = server.provider_of(provider, "model");
        for _ in 0..2 {
            events(&model, &request).await;
        }
        let expected = if provider == "deepseek" { EarlierThoughts::Repeated } else { EarlierThoughts::LeftOut };
        assert_eq!(model.earlier_thoughts(), expected, "{provider}: the size of a request is estimated with them");
        let thoughts = |text: &str| if provider == "deepseek" { json!(text) } else { Value::Null };
        let none = Value::Null;
        let expected = [&none, &none, &thoughts("I must read"), &none, &thoughts("I must answer"), &none];
        assert_eq!(sent_thoughts(&server.thread.join().unwrap()[0]).iter().collect::<Vec<_>>(), expected, "{provider}");
    }
}

#[tokio::test]
async fn a_provider_at_the_host_of_deepseek_gets_thoughts() {
    let server = TwiceServer::new(format!("{HEAD}data: [DONE]\n\n"), 4096);
    let mut provider = server.provider("deepseek-v4-pro");
    let host = "https://api.deepseek.com/v1/";
    provider.rules = RequestRules::new(AdapterKind::OpenAI, "own:deepseek-v4-pro", "deepseek-v4-pro", host);
    assert!(provider.completions.is_some());
    events(&provider, &thoughtful_request()).await;
    events(&provider.with_genai_only(), &thoughtful_request()).await;
    let bodies = server.thread.join().unwrap();
    assert_eq!(bodies[0], bodies[1]);
    assert_eq!(sent_thoughts(&bodies[0])[2], json!("I must read"));
}

/// The thoughts of each message in the body of a request.
fn sent_thoughts(body: &str) -> Vec<Value> {
    let body: Value = serde_json::from_str(body).unwrap();
    body["messages"].as_array().unwrap().iter().map(|it| it["reasoning_content"].clone()).collect()
}

/// A request with thoughts before a call and before an answer.
fn thoughtful_request() -> ModelRequest {
    let mut request = prompt("hello");
    let part = |text: &str| MessagePart::Content(Content::text(text));
    let call = ToolUse::new("a".to_owned(), "read".to_owned(), json!({}));
    let result = ToolResult { id: "a".to_owned(), name: "read".to_owned(), content: Vec::new(), is_error: false };
    let of_model = |parts| Arc::new(Message { role: Role::Assistant, parts });
    request.messages.extend([
        of_model(vec![MessagePart::Thought("I must read".to_owned()), part("wait"), MessagePart::ToolUse(call)]),
        Arc::new(Message { role: Role::User, parts: vec![MessagePart::ToolResult(result)] }),
        of_model(vec![MessagePart::Thought("I must answer".to_owned()), part("done")]),
        Arc::new(Message::user(vec![Content::text("and now?")])),
    ]);
    request
}

/// A piece of an answer with this delta, and more fields of its choice.
fn delta(delta: &Value, more: &str) -> String {
    format!(r#"{{"id":"1","object":"chat.completion.chunk","choices":[{{"index":0,"delta":{delta}{more}}}]}}"#)
}

fn call_delta(index: u32, more: &Value) -> String {
    let mut call = json!({"index": index});
    call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    delta(&json!({"tool_calls": [call]}), "")
}

/// Answers, each as the data of its events.
fn answers() -> Vec<Vec<String>> {
    let text = |text: &str| delta(&json!({"content": text}), r#","finish_reason":null"#);
    let stop = |reason: &str| delta(&json!({}), &format!(r#","finish_reason":"{reason}""#));
    let usage = |usage: &str| format!(r#"{{"choices":[],"usage":{usage}}}"#);
    let begin = || delta(&json!({"role": "assistant", "content": ""}), "");
    let done = || "[DONE]".to_owned();
    let numbers =
        r#"{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}"#;
    let fact =
        |id: &str, name: &str, arguments: &str| json!({"id": id, "function": {"name": name, "arguments": arguments}});
    let more = |arguments: &str| json!({"function": {"arguments": arguments}});
    vec![
        vec![begin(), text("hello"), text(" \"wörld\"\n\u{1F600}"), stop("stop"), usage(numbers), done()],
        vec![text("no usage"), stop("length"), usage("null"), done()],
        vec![text("odd usage"), stop("content_filter"), usage(r#"{"prompt_tokens":"many"}"#), done()],
        vec![text("no end"), stop("stop")],
        vec![text("broken"), r#"{"choices":[{"delta":{"content":"x"#.to_owned(), done()],
        vec![text("error"), r#"{"error":{"message":"server_error"}}"#.to_owned(), done()],
        vec![r#"{"error":null,"choices":[{"delta":{"content":"x"}}]}"#.to_owned(), done()],
        vec![delta(&json!({"reasoning_content": "hm", "content": null}), ""), text("so"), done()],
        vec![
            delta(&json!({"reasoning": "hm", "content": ""}), ""),
            delta(&json!({"reasoning": 1, "content": "so"}), ""),
            done(),
        ],
        vec![
            delta(
                &json!({"content": [{"type": "thinking", "thinking": [{"text": "hm"}]}, {"type": "text", "text": "a"}]}),
                "",
            ),
            done(),
        ],
        vec![delta(&json!({"content": "last"}), r#","finish_reason":"stop""#), done(), text("after the end")],
        vec![
            delta(&Value::Null, ""),
            delta(&json!({"content": 5}), ""),
            r#"{"choices":null}"#.to_owned(),
            "5".to_owned(),
            done(),
        ],
        vec![
            call_delta(0, &fact("a", "read", "{\"pa")),
            call_delta(0, &more("th\":\"x\"}")),
            call_delta(1, &fact("b", "write", "")),
            call_delta(1, &more("no json")),
            stop("tool_calls"),
            done(),
        ],
        vec![call_delta(0, &json!({"function": {"name": "read"}})), call_delta(0, &json!({"id": "late"})), done()],
        vec![
            delta(
                &json!({"content": "and", "tool_calls": [{"index": 0, "id": "a", "function": {"arguments": "{}"}}]}),
                r#","finish_reason":"tool_calls""#,
            ),
            done(),
        ],
        vec![
            format!(r#"{{"choices":[{{"delta":{{"content":"x"}},"finish_reason":"stop"}}],"usage":{numbers}}}"#),
            usage(r#"{"prompt_tokens":1}"#),
            done(),
        ],
        vec![
            format!(r#"{{"choices":[{{"delta":{{"content":"a"}}}},{{"delta":{{"content":"b"}}}}],"usage":{numbers}}}"#),
            done(),
        ],
        vec![],
    ]
}

#[tokio::test]
async fn answers_have_the_events_of_genai() {
    for (number, pieces) in answers().iter().enumerate() {
        for (end, size) in [("\n\n", 4096), ("\n\n", 3), ("\r\n\r\n", 4096), ("\r\r", 4096), ("\n\n: ping\n\n", 7)] {
            let body: String = pieces.iter().map(|piece| format!("data: {piece}{end}")).collect();
            let [own, genai] = ask_both("gpt-4o", &prompt("hello"), format!("{HEAD}{body}"), size).await;
            assert_eq!(own.1, genai.1, "answer {number}, {end:?}, {size} bytes at a time");
        }
    }
}

#[tokio::test]
async fn events_without_the_usual_form_are_those_of_genai() {
    let text = |text: &str| delta(&json!({"content": text}), "");
    let bodies = [
        format!("event: message\nid: 1\ndata:{}\n\ndata:[DONE]", text("no blank line at the end")),
        "data: {\"choices\":\ndata: [{\"delta\":{\"content\":\"two lines\"}}]}\n\ndata: [DONE]\n\n".to_owned(),
        format!("\n\n\n  data: {}  \n\n\ndata: [DONE]\n\n", text("spaces")),
        "<html>no model</html>".to_owned(),
    ];
    for body in bodies {
        let [own, genai] = ask_both("gpt-4o", &prompt("hello"), format!("{HEAD}{body}"), 4096).await;
        assert_eq!(own.1, genai.1, "{body}");
    }
}

#[tokio::test]
async fn refusals_are_those_of_genai() {
    let refusals = [
        ("400 Bad Request", "", r#"{"error":{"message":"bad"}}"#),
        ("400 Bad Request", "", r#"{"error":{"code":"context_length_exceeded"}}"#),
        ("401 Unauthorized", "", "the key a-long-key is wrong"),
        ("413 Payload Too Large", "", ""),
        ("429 Too Many Requests", "retry-after: 7\r\n", "later"),
        ("503 Service Unavailable", "retry-after-ms: 1500\r\n", "later"),
        ("302 Found", "location: http://127.0.0.1:1/\r\n", ""),
    ];
    for (status, headers, body) in refusals {
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
        let [own, genai] = ask_both("gpt-4o", &prompt("hello"), answer, 4096).await;
        assert_eq!(own.1, genai.1, "{status}");
        assert!(matches!(own.1.as_slice(), [Err(_)]), "{status}: {:?}", own.1);
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_a_lost_connection() {
    // The response promises more bytes than it has.
    let body = format!("data: {}\n\n", delta(&json!({"content": "half"}), ""));
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len() + 100);
    let [own, genai] = ask_both("gpt-4o", &prompt("hello"), answer, 4096).await;
    // The words of the error are those of the HTTP client, and depend on how a body is read.
    for (_, events) in [own, genai] {
        let is_lost = matches!(events.as_slice(), [Ok(StreamEvent::Text(_)), Err(LlmError::Transient { .. })]);
        assert!(is_lost, "{events:?}");
    }
}

#[tokio::test]
async fn gemini_says_why_it_gave_no_answer() {
    let blocked = json!({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}});
    let malformed = json!({"candidates": [{"content": {}, "finishReason": "MALFORMED_FUNCTION_CALL"}]});
    for (piece, is_transient, expected) in
        [(blocked, false, "it blocked the prompt: SAFETY"), (malformed, true, "it broke off: MALFORMED_FUNCTION_CALL")]
    {
        let server = TwiceServer::new(format!("{HEAD}data: {piece}\n\n"), 4096);
        let events = events(&server.provider_of("google", "gemini-2.5-flash"), &prompt("hello")).await;
        match events.as_slice() {
            [Err(LlmError::Failed { reason, .. })] if !is_transient => assert_eq!(reason, expected),
            [Err(LlmError::Transient { reason, .. })] if is_transient => assert_eq!(reason, expected),
            events => panic!("{events:?}"),
        }
    }
}

#[tokio::test]
async fn gemini_gets_the_signatures_of_its_calls_back() {
    let call = |number: u32| json!({"functionCall": {"name": "read", "args": {"number": number}}});
    let mut first = call(1);
    first["thoughtSignature"] = json!("c2lnbmVk");
    let piece = json!({"candidates": [{"content": {"parts": [first, call(2)]}, "finishReason": "STOP"}]});
    for (provider, model, expected) in [
        ("google", "gemini-3-pro", json!(["c2lnbmVk", null])),
        ("google", "gemini-pro-latest", json!(["c2lnbmVk", null])),
        // Another model answers the next request.
        ("google", "gemini-4-pro", json!(["skip_thought_signature_validator", null])),
    ] {
        let server = TwiceServer::new(format!("{HEAD}data: {piece}\n\n"), 4096);
        let signer = if model == "gemini-4-pro" { "gemini-3-pro" } else { model };
        let mut request = prompt("hello");
        let answer = events(&server.provider_of(provider, signer), &request).await;
        let calls = answer.into_iter().filter_map(|event| match event.unwrap() {
            StreamEvent::ToolUse(call) => Some(call),
            _ => None,
        });
        let (mut uses, mut results) = (Vec::new(), Vec::new());
        for (number, call) in calls.enumerate() {
            let call = ToolUse { id: format!("call-{number}"), ..call };
            let (id, name) = (call.id.clone(), call.name.clone());
            results.push(MessagePart::ToolResult(ToolResult { id, name, content: Vec::new(), is_error: false }));
            uses.push(MessagePart::ToolUse(call));
        }
        // The store keeps messages as JSON.
        let stored = serde_json::to_string(&Message { role: Role::Assistant, parts: uses }).unwrap();
        request.messages.push(Arc::new(serde_json::from_str(&stored).unwrap()));
        request.messages.push(Arc::new(Message { role: Role::User, parts: results }));
        events(&server.provider_of(provider, model), &request).await;
        let body: Value = serde_json::from_str(&server.thread.join().unwrap()[1]).unwrap();
        let parts = body["contents"][1]["parts"].as_array().unwrap();
        let sent: Vec<_> = parts.iter().map(|part| part["thoughtSignature"].clone()).collect();
        assert_eq!(Value::Array(sent), expected, "{model}: {body}");
    }
}

/// genai repeats the call for each index that is missing before it.
#[tokio::test]
async fn a_call_behind_missing_indexes_is_one_call() {
    let call = call_delta(4_000_000_000, &json!({"id": "a", "function": {"name": "read", "arguments": "{}"}}));
    let server = TwiceServer::new(format!("{HEAD}data: {call}\n\ndata: [DONE]\n\n"), 4096);
    let events = events(&server.provider("gpt-4o"), &prompt("hello")).await;
    let uses: Vec<_> = events.iter().filter(|event| matches!(event, Ok(StreamEvent::ToolUse(_)))).collect();
    let read = ToolUse::new("a".to_owned(), "read".to_owned(), json!({}));
    assert_eq!(uses, [&Ok(StreamEvent::ToolUse(read))]);
}

#[tokio::test]
async fn an_event_without_an_end_is_cut_off() {
    for begin in ["data: ", "", ": "] {
        let body = format!("{HEAD}{begin}{}", "x".repeat(MAX_ANSWER + 1));
        let events = events(&TwiceServer::new(body, 1 << 20).provider("gpt-4o"), &prompt("hello")).await;
        let [Err(LlmError::Failed { reason, .. })] = events.as_slice() else { panic!("{events:?}") };
        assert!(reason.contains("one event of its answer is longer than 8 MiB"), "{reason}");
    }
}

#[tokio::test]
async fn the_body_of_an_error_is_read_only_in_part() {
    // The body has no end.
    let answer = format!("HTTP/1.1 500 Wrong\r\ncontent-length: 1000000000\r\n\r\n{}", "x".repeat(1 << 20));
    let events = events(&TwiceServer::new(answer, 1 << 20).provider("gpt-4o"), &prompt("hello")).await;
    let [Err(LlmError::Transient { reason, .. })] = events.as_slice() else { panic!("{events:?}") };
    assert!(reason.starts_with("it answered 500 Internal Server Error: xxx"), "{reason}");
}

#[tokio::test]
async fn an_error_does_not_show_the_query_of_an_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}/v1/?key=hidden&end=/", listener.local_addr().unwrap());
    // The connection breaks before the response.
    let thread = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let variable = |name: &str| (name == "OPENAI_BASE_URL").then(|| base.clone());
    let provider = HttpProvider::new(&ModelRef::from("openai:gpt-4o".to_owned()), &ModelRegistry::default(), variable);
    let events = events(&provider.unwrap(), &prompt("hello")).await;
    thread.join().unwrap();
    let [Err(LlmError::Transient { reason, .. })] = events.as_slice() else { panic!("{events:?}") };
    assert!(reason.contains("chat/completions") && !reason.contains("hidden"), "{reason}");
}

#[tokio::test]
async fn calls_that_are_too_long_end_the_answer() {
    let piece = "x".repeat(MAX_ANSWER / 4);
    let mut body = String::new();
    for _ in 0..5 {
        body += &format!("data: {}\n\n", call_delta(0, &json!({"id": "a", "function": {"arguments": piece}})));
    }
    let server = TwiceServer::new(format!("{HEAD}{body}"), 1 << 20);
    let provider = server.provider("gpt-4o");
    let events = events(&provider, &prompt("hello")).await;
    assert!(matches!(events.as_slice(), [Err(LlmError::AnswerTooLong { .. })]), "{} events", events.len());
}
