//! Answers in the dialects of Anthropic and Google, most of them compared with what genai reads.

use serde_json::json;

use super::dialect_tests::{HEAD, TwiceServer, ask_both, events, prompt};
use super::*;
use crate::conversation::{Message, MessagePart, Role, ToolResult};
use crate::llm::MAX_ANSWER;

const CLAUDE: (&str, &str) = ("anthropic", "claude-opus-4-8");
const GEMINI: (&str, &str) = ("google", "gemini-2.5-flash");

/// Writes an answer of events, each with its type as its name.
fn named_events(pieces: &[Value]) -> String {
    let event = |piece: &Value| format!("event: {}\ndata: {piece}\n\n", piece["type"].as_str().unwrap());
    pieces.iter().map(event).collect()
}

fn start(index: u32, block: &Value) -> Value {
    json!({"type": "content_block_start", "index": index, "content_block": block})
}

fn delta(index: u32, delta: &Value) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

fn stop(index: u32) -> Value {
    json!({"type": "content_block_stop", "index": index})
}

fn message_start(usage: &Value) -> Value {
    json!({"type": "message_start", "message": {"role": "assistant", "content": [], "usage": usage}})
}

fn message_end(reason: &str, usage: &Value) -> [Value; 2] {
    let delta = json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage});
    [delta, json!({"type": "message_stop"})]
}

fn text_block() -> Vec<Value> {
    let text = |text: &str| delta(0, &json!({"type": "text_delta", "text": text}));
    vec![start(0, &json!({"type": "text", "text": ""})), text("hello"), text(" \"wörld\"\n\u{1F600}"), stop(0)]
}

fn call_block(index: u32, pieces: &[&str]) -> Vec<Value> {
    let id = format!("toolu_{index}");
    let input = |piece: &&str| delta(index, &json!({"type": "input_json_delta", "partial_json": piece}));
    let begin = start(index, &json!({"type": "tool_use", "id": id, "name": "read", "input": {}}));
    [begin].into_iter().chain(pieces.iter().map(input)).collect()
}

fn answers_of_claude() -> Vec<Vec<Value>> {
    let usage =
        json!({"input_tokens": 7, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": 1});
    let (begin, ping) = (message_start(&usage), json!({"type": "ping"}));
    let end = |reason: &str| message_end(reason, &json!({"output_tokens": 20})).to_vec();
    let thinking = vec![
        start(0, &json!({"type": "thinking", "thinking": "h", "signature": ""})),
        delta(0, &json!({"type": "thinking_delta", "thinking": "m"})),
        delta(0, &json!({"type": "signature_delta", "signature": "c2lnbmVk"})),
        stop(0),
    ];
    let redacted = vec![start(0, &json!({"type": "redacted_thinking", "data": "x"})), stop(0)];
    let whole =
        |blocks: Vec<Vec<Value>>, end: Vec<Value>| [vec![begin.clone(), ping.clone()], blocks.concat(), end].concat();
    let call = |index, pieces: &[&str]| [call_block(index, pieces), vec![stop(index)]].concat();
    vec![
        whole(vec![text_block()], end("end_turn")),
        whole(vec![thinking, text_block()], end("max_tokens")),
        whole(vec![redacted, text_block()], end("refusal")),
        whole(
            vec![text_block(), call(1, &["{\"pa", "th\":\"x\"}"]), call(2, &[]), call(3, &["no json"])],
            end("tool_use"),
        ),
        // The maximum length ended the answer within a call.
        whole(vec![call_block(1, &["{\"pa"])], end("max_tokens")),
        whole(vec![call_block(1, &[])], end("max_tokens")),
        whole(vec![call_block(1, &["{}"])], end("end_turn")),
        // Other numbers of tokens at the end.
        whole(
            vec![text_block()],
            message_end(
                "end_turn",
                &json!({"input_tokens": 9, "cache_creation_input_tokens": 1, "cache_read_input_tokens": 4}),
            )
            .to_vec(),
        ),
        whole(vec![text_block()], message_end("stop_sequence", &json!({"output_tokens": "many"})).to_vec()),
        whole(vec![text_block(), vec![json!({"type": "error", "error": {"type": "overloaded_error"}})]], vec![]),
        // No end.
        whole(vec![text_block()], vec![]),
        vec![],
        [text_block(), vec![json!({"type": "message_stop"}), delta(0, &json!({"text": "late"}))]].concat(),
    ]
}

#[tokio::test]
async fn answers_of_claude_are_those_of_genai() {
    for (number, pieces) in answers_of_claude().iter().enumerate() {
        for size in [4096, 3] {
            let body = format!("{HEAD}{}", named_events(pieces));
            let [own, genai] = ask_both(CLAUDE, &prompt("hello"), body, size).await;
            assert_eq!(own.1, genai.1, "answer {number}, {size} bytes at a time");
        }
    }
    let body = format!("{HEAD}event: message_start\ndata: {{\"broken\n\n");
    let [own, genai] = ask_both(CLAUDE, &prompt("hello"), body, 4096).await;
    assert_eq!(own.1, genai.1);
}

#[tokio::test]
async fn tokens_of_claudes_cache_count_as_input() {
    let server = TwiceServer::new(format!("{HEAD}{}", named_events(&answers_of_claude()[0])), 4096);
    let events = events(&server.provider_of(CLAUDE.0, CLAUDE.1), &prompt("hello")).await;
    let usage = crate::conversation::Usage { input: 15, output: 20, cached: 3 };
    assert_eq!(events.last(), Some(&Ok(StreamEvent::Done { stop: ModelStop::Finished, usage })));
}

#[tokio::test]
async fn blocks_of_a_later_version_are_left_out() {
    let search = start(0, &json!({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}));
    let query = delta(0, &json!({"type": "input_json_delta", "partial_json": "{}"}));
    let pieces = [vec![search, query, stop(0)], text_block(), message_end("end_turn", &json!({})).to_vec()].concat();
    let server = TwiceServer::new(format!("{HEAD}{}", named_events(&pieces)), 4096);
    let events = events(&server.provider_of(CLAUDE.0, CLAUDE.1), &prompt("hello")).await;
    let is_complete =
        matches!(events.as_slice(), [Ok(StreamEvent::Text(_)), Ok(StreamEvent::Text(_)), Ok(StreamEvent::Done { .. })]);
    assert!(is_complete, "{events:?}");
}

#[tokio::test]
async fn numbers_that_a_later_event_leaves_out_stay() {
    let usage = json!({"input_tokens": 7, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 3});
    let end = message_end("end_turn", &json!({"input_tokens": 8, "output_tokens": 20}));
    let answer = named_events(&[&[message_start(&usage)], &end[..]].concat());
    let server = TwiceServer::new(format!("{HEAD}{answer}"), 4096);
    let events = events(&server.provider_of(CLAUDE.0, CLAUDE.1), &prompt("hello")).await;
    let usage = crate::conversation::Usage { input: 16, output: 20, cached: 3 };
    assert_eq!(events, [Ok(StreamEvent::Done { stop: ModelStop::Finished, usage })]);
}

#[tokio::test]
async fn a_block_that_starts_with_its_content_keeps_it() {
    let text = [start(0, &json!({"type": "text", "text": "Here"})), delta(0, &json!({"text": " it is"})), stop(0)];
    let call = [start(1, &json!({"type": "tool_use", "id": "a", "name": "read", "input": {"path": "x"}})), stop(1)];
    let answer = named_events(&[&text[..], &call, &message_end("tool_use", &json!({}))].concat());
    let server = TwiceServer::new(format!("{HEAD}{answer}"), 4096);
    let events = events(&server.provider_of(CLAUDE.0, CLAUDE.1), &prompt("hello")).await;
    let call = ToolUse::new("a".to_owned(), "read".to_owned(), json!({"path": "x"}));
    let expected =
        [StreamEvent::Text("Here".to_owned()), StreamEvent::Text(" it is".to_owned()), StreamEvent::ToolUse(call)];
    assert_eq!(events[..3], expected.map(Ok));
}

#[tokio::test]
async fn a_block_of_claude_ends_where_the_next_one_starts() {
    let blocks = [call_block(0, &["{\"path\":\"x\"}"]), call_block(1, &[]), text_block(), call_block(2, &["{}"])];
    let pieces = [blocks.concat(), message_end("tool_use", &json!({})).to_vec()].concat();
    let server = TwiceServer::new(format!("{HEAD}{}", named_events(&pieces)), 4096);
    let events = events(&server.provider_of(CLAUDE.0, CLAUDE.1), &prompt("hello")).await;
    let calls = events.into_iter().filter_map(|event| match event {
        Ok(StreamEvent::ToolUse(call)) => Some((call.id, call.arguments)),
        _ => None,
    });
    let expected = [("toolu_0", json!({"path": "x"})), ("toolu_1", json!({})), ("toolu_2", json!({}))];
    let expected: Vec<_> = expected.map(|(id, arguments)| (id.to_owned(), arguments)).into();
    assert_eq!(calls.collect::<Vec<_>>(), expected);
}

/// Writes an answer of chunks.
fn chunks(pieces: &[Value]) -> String {
    pieces.iter().map(|piece| format!("data: {piece}\r\n\r\n")).collect()
}

fn chunk(parts: &Value) -> Value {
    json!({"candidates": [{"content": {"role": "model", "parts": parts}}]})
}

fn last_chunk(parts: &Value, reason: &str) -> Value {
    let usage = json!({"promptTokenCount": 7, "candidatesTokenCount": 2, "thoughtsTokenCount": 4, "cachedContentTokenCount": 3, "toolUsePromptTokenCount": 1});
    json!({"candidates": [{"content": {"parts": parts}, "finishReason": reason}], "usageMetadata": usage})
}

#[tokio::test]
async fn answers_of_gemini_are_those_of_genai() {
    let text = |text: &str| chunk(&json!([{"text": text}]));
    let call = json!({"functionCall": {"name": "read", "args": {"path": "x"}}});
    let known = json!({"functionCall": {"name": "read", "id": "a"}, "thoughtSignature": "c2lnbmVk"});
    let answers = [
        vec![text("hello"), text(" \"wörld\"\n\u{1F600}"), last_chunk(&json!([{"text": ""}]), "STOP")],
        vec![chunk(&json!([{"text": "hm", "thought": true}, {"text": "so"}])), last_chunk(&json!([]), "MAX_TOKENS")],
        vec![last_chunk(&json!([{"text": "two"}, {"text": " parts"}, known, call, call]), "STOP")],
        vec![text("blocked"), last_chunk(&Value::Null, "SAFETY")],
        vec![text("odd"), last_chunk(&json!([{"inlineData": {"mimeType": "image/png", "data": "aGk="}}, 5]), "STOP")],
        vec![text("wrong call"), last_chunk(&Value::Null, "MALFORMED_FUNCTION_CALL")],
        vec![text("error"), json!({"error": {"code": 503, "message": "overloaded"}})],
        vec![text("no end")],
    ];
    for (number, pieces) in answers.iter().enumerate() {
        for size in [4096, 3] {
            let answer = format!("{HEAD}{}", chunks(pieces));
            let [own, mut genai] = ask_both(GEMINI, &prompt("hello"), answer, size).await;
            // genai gives calls without an id one of its own.
            for event in &mut genai.1 {
                if let Ok(StreamEvent::ToolUse(call)) = event
                    && call.id.starts_with("call#")
                {
                    call.id.clear();
                }
            }
            assert_eq!(own.1, genai.1, "answer {number}, {size} bytes at a time");
        }
    }
}

#[tokio::test]
async fn an_error_of_gemini_that_is_null_is_no_error() {
    let mut last = last_chunk(&json!([{"text": "so"}]), "STOP");
    last["error"] = Value::Null;
    let server = TwiceServer::new(format!("{HEAD}{}", chunks(&[last])), 4096);
    let events = events(&server.provider_of(GEMINI.0, GEMINI.1), &prompt("hello")).await;
    assert!(matches!(events.as_slice(), [Ok(StreamEvent::Text(_)), Ok(StreamEvent::Done { .. })]), "{events:?}");
}

#[tokio::test]
async fn chunks_after_a_reason_to_end_count() {
    let numbers = json!({"usageMetadata": {"thoughtsTokenCount": 5}});
    let pieces = [last_chunk(&json!([]), "STOP"), last_chunk(&json!([{"text": "late"}]), "MAX_TOKENS"), numbers];
    // The response promises more bytes than it has, so that the connection breaks after the last chunk.
    for length in ["", "content-length: 100000\r\n"] {
        let answer = format!("HTTP/1.1 200 OK\r\n{length}\r\n{}", chunks(&pieces));
        let events = events(&TwiceServer::new(answer, 4096).provider_of(GEMINI.0, GEMINI.1), &prompt("hello")).await;
        let usage = crate::conversation::Usage { input: 8, output: 7, cached: 3 };
        let done = StreamEvent::Done { stop: ModelStop::Length, usage };
        assert_eq!(events, [Ok(StreamEvent::Text("late".to_owned())), Ok(done)], "{length}");
    }
}

/// Returns the first line of a request for a model of Google at an address with this path.
async fn request_line(path: &str, model: &str) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}{path}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(listener.accept().unwrap().0), &mut line).unwrap();
        line
    });
    events(&super::dialect_tests::provider_at(&base, "google", model), &prompt("hello")).await;
    thread.join().unwrap()
}

#[tokio::test]
async fn a_query_of_an_address_stays() {
    let line = request_line("/v1beta?version=2", "gemini-3-pro").await;
    assert_eq!(line, "POST /v1beta/models/gemini-3-pro:streamGenerateContent?version=2&alt=sse HTTP/1.1\r\n");
}

#[tokio::test]
async fn names_of_gemini_models_cannot_leave_their_folder() {
    for (model, path) in [
        ("gemini-3-pro", "/v1/models/gemini-3-pro:"),
        ("models/gemini-3-pro", "/v1/models/gemini-3-pro:"),
        ("tunedModels/mine", "/v1/tunedModels/mine:"),
        ("gemini-2.5-flash/../gemini-3-pro", "/v1/models/gemini-2.5-flash%2F..%2Fgemini-3-pro:"),
        ("models/..", "/v1/models/..:"),
        ("x?y#z", "/v1/models/x%3Fy%23z:"),
    ] {
        assert!(request_line("/v1", model).await.starts_with(&format!("POST {path}streamGenerateContent?")), "{model}");
    }
}

/// It loads the model and reads the prompt before it sends the head of its response.
#[tokio::test]
async fn a_local_server_has_ten_minutes_until_it_answers() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/v1", listener.local_addr().unwrap());
    let server = async {
        let (stream, _) = listener.accept().await.unwrap();
        stream.readable().await.unwrap();
        // From here on, time passes while all tasks wait.
        tokio::time::pause();
        std::future::pending::<()>().await;
        drop(stream);
    };
    let provider = super::dialect_tests::provider_at(&base, "ollama", "llama3.2");
    let request = prompt("hello");
    let events = tokio::select! {
        events = events(&provider, &request) => events,
        () = server => panic!("the server waits"),
    };
    let [Err(LlmError::Transient { reason, .. })] = events.as_slice() else { panic!("{events:?}") };
    assert!(reason.contains("no answer began within 600 s"), "{reason}");
}

#[tokio::test]
async fn many_calls_without_text_end_the_answer() {
    let of_gpt: Vec<_> = (0..60_000).map(|index| json!({"index": index, "id": "", "function": {}})).collect();
    let of_gpt = json!({"choices": [{"delta": {"tool_calls": of_gpt}}]});
    let of_claude = [start(0, &json!({"type": "tool_use"})), stop(0)];
    let of_gemini = chunk(&json!(vec![json!({"functionCall": {"id": "", "args": {}}}); 60_000]));
    for ((provider, model), body) in [
        (("openai", "gpt-4o"), chunks(&[of_gpt])),
        (CLAUDE, named_events(&of_claude).repeat(60_000)),
        (GEMINI, chunks(&[of_gemini])),
    ] {
        let server = TwiceServer::new(format!("{HEAD}{body}"), 1 << 20);
        let events = events(&server.provider_of(provider, model), &prompt("hello")).await;
        let is_cut = matches!(events.as_slice(), [Err(LlmError::AnswerTooLong { .. })]);
        assert!(is_cut, "{provider}: {} events", events.len());
    }
}

/// OpenRouter sends them after the end of the choice, with an empty one. Other servers send them with each piece.
#[tokio::test]
async fn numbers_of_tokens_may_come_with_any_piece() {
    let piece = |usage: Value| json!({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": null}], "usage": usage});
    let tokens = |prompt: u32, answer: u32| json!({"prompt_tokens": prompt, "completion_tokens": answer});
    let groq = json!({"choices": [{"delta": {}, "finish_reason": "stop"}], "x_groq": {"usage": tokens(7, 2)}});
    for (provider, pieces) in [
        ("openrouter", vec![piece(Value::Null), piece(tokens(7, 2))]),
        ("openai", vec![piece(tokens(7, 1)), piece(tokens(7, 2)), piece(tokens(0, 0))]),
        ("groq", vec![piece(Value::Null), groq]),
    ] {
        let server = TwiceServer::new(format!("{HEAD}{}data: [DONE]\n\n", chunks(&pieces)), 4096);
        let events = events(&server.provider_of(provider, "model"), &prompt("hello")).await;
        let usage = crate::conversation::Usage { input: 7, output: 2, cached: 0 };
        assert_eq!(events, [Ok(StreamEvent::Done { stop: ModelStop::Finished, usage })], "{provider}");
    }
}

#[tokio::test]
async fn a_passing_error_within_an_answer_has_its_status() {
    let error = |code: u32| json!({"error": {"code": code, "message": "An internal error", "status": "INTERNAL"}});
    for ((provider, model), (code, is_transient)) in
        [(GEMINI, (500, true)), (("openrouter", "model"), (502, true)), (GEMINI, (400, false))]
    {
        let server = TwiceServer::new(format!("{HEAD}{}", chunks(&[error(code)])), 4096);
        let events = events(&server.provider_of(provider, model), &prompt("hello")).await;
        let found = matches!(events.as_slice(), [Err(LlmError::Transient { .. })]);
        assert_eq!(found, is_transient, "{provider} {code}: {events:?}");
    }
    let server = TwiceServer::new(format!("{HEAD}{}", chunks(&[error(429)])), 4096);
    let events = events(&server.provider_of(GEMINI.0, GEMINI.1), &prompt("hello")).await;
    assert!(matches!(events.as_slice(), [Err(LlmError::RateLimited { .. })]), "{events:?}");
}

#[tokio::test]
async fn the_body_of_an_error_counts_although_it_breaks_off() {
    let body = r#"{"error":{"code":"context_length_exceeded"}}"#;
    let answer = format!("HTTP/1.1 400 Bad Request\r\ncontent-length: 1000\r\n\r\n{body}");
    let server = TwiceServer::new(answer, 4096);
    let events = events(&server.provider_of("openai", "gpt-4o"), &prompt("hello")).await;
    assert!(matches!(events.as_slice(), [Err(LlmError::Overflow { .. })]), "{events:?}");
}

#[tokio::test]
async fn calls_that_are_too_long_end_the_answer() {
    let piece = "x".repeat(MAX_ANSWER / 4);
    let of_gpt =
        json!({"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": piece}}]}}]});
    let of_claude = named_events(&call_block(0, &[piece.as_str(); 5]));
    let of_gemini = chunk(&json!([{"functionCall": {"name": "read", "args": {"text": piece}}}]));
    for ((provider, model), body) in
        [(("openai", "gpt-4o"), chunks(&vec![of_gpt; 5])), (CLAUDE, of_claude), (GEMINI, chunks(&vec![of_gemini; 5]))]
    {
        let server = TwiceServer::new(format!("{HEAD}{body}"), 1 << 20);
        let events = events(&server.provider_of(provider, model), &prompt("hello")).await;
        assert!(
            matches!(events.as_slice(), [Err(LlmError::AnswerTooLong { .. })]),
            "{provider}: {} events",
            events.len()
        );
    }
}

#[tokio::test]
async fn calls_count_before_they_are_complete() {
    let usage = json!({"input_tokens": 7, "cache_read_input_tokens": 3, "output_tokens": 1});
    let of_claude = [vec![message_start(&usage)], call_block(0, &["{\"path\":", "\"x\"}"])].concat();
    let call = |arguments: &str| json!({"index": 0, "function": {"name": "read", "arguments": arguments}});
    let of_gpt = |arguments: &str| json!({"choices": [{"delta": {"tool_calls": [call(arguments)]}}]});
    let of_gemini = last_chunk(&json!([{"functionCall": {"name": "read", "args": {}}}]), "MALFORMED_FUNCTION_CALL");
    let stated = |input, output, cached| Some(crate::conversation::Usage { input, output, cached });
    for ((provider, model), body, expected) in [
        (CLAUDE, named_events(&of_claude), vec![(0, stated(10, 1, 3)), (4, None), (8, None), (4, None)]),
        (("openai", "gpt-4o"), chunks(&[of_gpt("{\"path\":"), of_gpt("\"x\"}")]), vec![(12, None), (8, None)]),
        (GEMINI, chunks(&[of_gemini]), vec![(0, stated(8, 6, 3))]),
    ] {
        let server = TwiceServer::new(format!("{HEAD}{body}"), 4096);
        let events: Vec<_> = server.provider_of(provider, model).stream(prompt("hello")).collect().await;
        let progress = events.iter().filter_map(|event| match event {
            Ok(StreamEvent::Progress { bytes, usage }) => Some((*bytes, *usage)),
            _ => None,
        });
        assert_eq!(progress.collect::<Vec<_>>(), expected, "{provider}: {events:?}");
    }
}

#[tokio::test]
async fn arguments_of_many_small_values_end_the_answer() {
    let arguments = format!("{{\"a\":[{}0]}}", "0,".repeat(100_000));
    let of_gpt = json!({"index": 0, "id": "a", "function": {"name": "read", "arguments": arguments}});
    let of_gpt = json!({"choices": [{"delta": {"tool_calls": [of_gpt]}, "finish_reason": "tool_calls"}]});
    let of_claude = [call_block(0, &[arguments.as_str()]), vec![stop(0)]].concat();
    let parsed: Value = serde_json::from_str(&arguments).unwrap();
    let of_gemini = last_chunk(&json!([{"functionCall": {"name": "read", "args": parsed}}]), "STOP");
    for ((provider, model), body) in
        [(("openai", "gpt-4o"), chunks(&[of_gpt])), (CLAUDE, named_events(&of_claude)), (GEMINI, chunks(&[of_gemini]))]
    {
        let server = TwiceServer::new(format!("{HEAD}{body}"), 1 << 20);
        let events = events(&server.provider_of(provider, model), &prompt("hello")).await;
        let is_cut = matches!(events.as_slice(), [Err(LlmError::AnswerTooLong { .. })]);
        assert!(is_cut, "{provider}: {} events", events.len());
    }
}

#[tokio::test]
async fn gemini_says_why_it_gave_no_answer() {
    let blocked = json!({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}});
    let malformed = json!({"candidates": [{"content": {}, "finishReason": "MALFORMED_FUNCTION_CALL"}]});
    let with_message = json!({"candidates": [{"finishReason": "OTHER", "finishMessage": "odd"}]});
    let too_many = json!({"candidates": [{"finishReason": "TOO_MANY_TOOL_CALLS", "finishMessage": "over 100"}]});
    let unsigned = json!({"candidates": [{"finishReason": "MISSING_THOUGHT_SIGNATURE"}]});
    for (piece, is_transient, expected) in [
        (blocked, false, "it blocked the prompt: SAFETY"),
        (malformed, true, "it broke off: MALFORMED_FUNCTION_CALL"),
        (with_message, true, "it broke off: OTHER: odd"),
        (too_many, false, "it stopped the answer: TOO_MANY_TOOL_CALLS: over 100"),
        (unsigned, false, "it stopped the answer: MISSING_THOUGHT_SIGNATURE"),
    ] {
        let server = TwiceServer::new(format!("{HEAD}data: {piece}\n\n"), 4096);
        let events = events(&server.provider_of("google", "gemini-2.5-flash"), &prompt("hello")).await;
        match events.as_slice() {
            [Err(LlmError::Failed { reason, .. })] if !is_transient => assert_eq!(reason, expected),
            [Err(LlmError::Transient { reason, .. })] if is_transient => assert_eq!(reason, expected),
            events => panic!("{events:?}"),
        }
    }
}

/// Asks `signer`, whose answer has calls, and then `model` with their results. Returns the body of the second request.
async fn ask_with_results(answer: String, provider: &str, signer: &str, model: &str) -> Value {
    let server = TwiceServer::new(format!("{HEAD}{answer}"), 4096);
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
    serde_json::from_str(&server.thread.join().unwrap()[1]).unwrap()
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
        let signer = if model == "gemini-4-pro" { "gemini-3-pro" } else { model };
        let body = ask_with_results(chunks(std::slice::from_ref(&piece)), provider, signer, model).await;
        let parts = body["contents"][1]["parts"].as_array().unwrap();
        let sent: Vec<_> = parts.iter().map(|part| part["thoughtSignature"].clone()).collect();
        assert_eq!(Value::Array(sent), expected, "{model}: {body}");
    }
}

#[tokio::test]
async fn gemini_in_the_dialect_of_openai_gets_signatures_back() {
    let call = |index: u32| json!({"index": index, "id": format!("tool_{index}"), "function": {"name": "read"}});
    let detail = |id: &str| json!({"type": "reasoning.encrypted", "data": "c2lnbmVk", "id": id, "index": 0});
    let thought = json!({"type": "reasoning.text", "text": "hm", "index": 0});
    let mut signed = call(0);
    signed["extra_content"] = json!({"google": {"thought_signature": "c2lnbmVk"}});
    let piece = |delta: Value| json!({"choices": [{"delta": delta}]});
    let details = piece(json!({"content": "", "reasoning_details": [thought, detail("tool_0")]}));
    let end = json!({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]});
    let by_google = chunks(&[piece(json!({"tool_calls": [signed, call(1)]})), end.clone()]);
    let by_router = chunks(&[piece(json!({"tool_calls": [call(0), call(1)]})), details, end]);
    let (gemini, other) = ("google/gemini-3-flash-preview", "google/gemini-3-pro-preview");
    for (answer, model, extra, details) in [
        (&by_google, gemini, json!({"google": {"thought_signature": "c2lnbmVk"}}), Value::Null),
        (&by_google, other, Value::Null, Value::Null),
        // The call may have another id now.
        (&by_router, gemini, Value::Null, json!([detail("call-0")])),
        (&by_router, other, Value::Null, Value::Null),
    ] {
        let body = ask_with_results(answer.clone(), "openrouter", gemini, model).await;
        let message = &body["messages"][2];
        let extras: Vec<_> = (0..2).map(|number| &message["tool_calls"][number]["extra_content"]).collect();
        assert_eq!((extras, &message["reasoning_details"]), (vec![&extra, &Value::Null], &details), "{model}: {body}");
    }
}
