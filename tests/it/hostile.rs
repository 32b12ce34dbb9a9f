//! Models over real HTTP that are slow, cut, wrong and hostile, in each dialect, against the whole loop: real
//! services, real processes. No test waits for a pause.

use std::sync::Arc;

use serde_json::{Value, json};
use skein::agents::{History, StopReason, TurnLimits};
use skein::conversation::{Content, Message, MessagePart, Role, ToolResult, ToolUse, Usage};
use skein::llm::remote::HttpProvider;
use skein::llm::{ModelRegistry, ProviderEndpoint};
use tokio_util::sync::CancellationToken;

use crate::exchange::{Stage, results};
use crate::model::{Answer, Model, calls, completion, says, stop, text, wishes};
use crate::support::until;

/// `provider:model` at the scripted server.
fn remote(name: &str, model: &Model) -> Arc<HttpProvider> {
    let provider = name.split(':').next().unwrap().to_owned();
    let address = ProviderEndpoint { base_url: Some(model.address.clone()), ..ProviderEndpoint::default() };
    let models = ModelRegistry { providers: [(provider, address)].into(), ..ModelRegistry::default() };
    Arc::new(HttpProvider::new(&name.into(), &models, |_| None).unwrap())
}

async fn turn(stage: &Stage, mode: &str, answers: Vec<Answer>) -> (StopReason, Vec<Message>, Model) {
    let model = Model::new(answers);
    let (ending, history) = stage.turn(mode, &remote("openai:scripted", &model)).await;
    (ending, history, model)
}

#[tokio::test]
async fn a_slow_answer_is_read_while_it_comes() {
    let stage = Stage::new();
    let (go, gate) = std::sync::mpsc::channel();
    let model = Model::new(vec![Answer::Slow(vec![text("one "), text("two"), stop("stop")], gate)]);
    let remote = remote("openai:scripted", &model);
    let exchange = stage.exchange("goose/planner", &remote, TurnLimits::default()).await;
    let mut history = History::default();
    let cancel = CancellationToken::new();
    let turn = exchange.turn(&mut history, vec![Content::text("go")], &cancel);
    let reader = async {
        for read in ["one ", "one two"] {
            go.send(()).unwrap();
            until("the next piece is read", || (stage.ear.read() == read).then_some(())).await;
        }
        go.send(()).unwrap();
    };
    let (end, ()) = tokio::join!(turn, reader);
    assert_eq!(end.ending, StopReason::EndTurn);
    drop(exchange);
    stage.runtime.stop().await;
}

#[tokio::test]
async fn cut_answer_resumes_at_any_point_without_repeated_calls() {
    let call = |arguments: &str| {
        let function = json!({"name": "developer__shell", "arguments": arguments});
        json!({"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}})
    };
    let touch = call("{\"command\": \"touch made\"}");
    let half = completion(&text("never seen"));
    let cuts = [
        ("in the text", Answer::Cut(vec![text("half a "), text("sent")])),
        ("in a call", Answer::Cut(vec![text("half a sent"), call("{\"command\": \"touch ma")])),
        ("after a call", Answer::Cut(vec![text("half a sent"), touch])),
        (
            "in the JSON of an event",
            Answer::Raw(
                "text/event-stream",
                format!("{}{}", completion(&text("half a sent")), &half[..half.len() / 2]),
            ),
        ),
        ("by a reset", Answer::Reset(completion(&text("half a sent")))),
        ("by garbage", Answer::Raw("text/event-stream", format!("{}data: {{]\n\n", completion(&text("half a sent"))))),
        (
            "by an error that is told",
            Answer::Events(vec![
                ("", json!({"choices": [text("half a sent")]})),
                ("", json!({"error": {"message": "try later", "type": "server_error"}})),
            ]),
        ),
    ];
    for (place, cut) in cuts {
        let stage = Stage::new();
        let (ending, history, model) =
            turn(&stage, "coding/backend", vec![cut, Answer::Stream(says("half a sentence"))]).await;
        assert_eq!((ending, model.asked()), (StopReason::EndTurn, 2), "cut {place}: {:?}", stage.ear.notices());
        // A reset may take what was sent before it along.
        assert_eq!(history.last().unwrap().text(), "half a sentence", "cut {place}");
        assert_eq!(stage.ear.read(), "half a sentence", "cut {place}");
        assert!(!stage.session.cwd.join("made").exists(), "cut {place}");
        stage.runtime.stop().await;
    }
}

#[tokio::test]
async fn an_answer_cut_after_its_reason_to_stop_is_complete() {
    let stage = Stage::new();
    let cut = vec![Answer::Cut(vec![text("a sentence"), stop("stop")])];
    let (ending, history, model) = turn(&stage, "coding/backend", cut).await;
    assert_eq!((ending, model.asked()), (StopReason::EndTurn, 1), "{:?}", stage.ear.notices());
    assert_eq!(history.last().unwrap().text(), "a sentence");
    stage.runtime.stop().await;
}

/// Issue 16, point 20: an answer without end filled the memory.
#[tokio::test]
async fn an_answer_that_is_too_long_is_stopped_and_said_to_be() {
    let piece = "x".repeat(64 << 10);
    let call = |arguments: &str| {
        let function = json!({"name": "developer__shell", "arguments": arguments});
        json!({"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}})
    };
    // 9 MiB of text, and 9 MiB of arguments.
    for (what, pieces) in [("text", vec![text(&piece); 144]), ("arguments", vec![call(&piece); 144])] {
        let stage = Stage::new();
        let answer = Answer::Cut(pieces);
        let (ending, history, model) = turn(&stage, "coding/backend", vec![answer]).await;
        let StopReason::Failed { why, .. } = ending else { panic!("{what}: {ending:?}") };
        assert!(why.contains("was stopped because it is longer than 8 MiB"), "{what}: {why}");
        assert_eq!(model.asked(), 1, "{what}: it is not asked again");
        let kept: usize = history.iter().map(|message| message.text().len()).sum();
        assert!(kept < 9 << 20, "{what}: {kept}");
        stage.runtime.stop().await;
    }
}

#[tokio::test]
async fn invalid_answer_is_retried_and_then_fails() {
    let page = || Answer::Raw("text/html", "<html><body>Welcome to the proxy</body></html>".to_owned());
    let stage = Stage::new();
    let (ending, _, model) = turn(&stage, "goose/planner", (0..5).map(|_| page()).collect()).await;
    let StopReason::Failed { why, .. } = ending else { panic!("{ending:?}") };
    assert!(why.contains("is its address that of a model?") && why.contains("asked 5 times"), "{why}");
    assert_eq!(model.asked(), 5);
    stage.runtime.stop().await;
}

#[tokio::test]
async fn refusals_that_pass_are_waited_for_and_others_are_not() {
    let stage = Stage::new();
    let busy = vec![
        Answer::Status(429, "retry-after: 0\r\n"),
        Answer::Status(500, ""),
        Answer::Status(503, "retry-after-ms: 1\r\n"),
        Answer::Status(529, ""),
        Answer::Stream(says("now")),
    ];
    let (ending, history, _) = turn(&stage, "goose/planner", busy).await;
    assert_eq!((ending, history[1].text().as_str()), (StopReason::EndTurn, "now"));
    let notices = stage.ear.notices();
    assert!(notices[0].contains("429") && notices[0].contains("when the provider admits"), "{notices:?}");
    assert!(notices.len() == 4 && notices[1].contains("try 2 of 5"), "it is no failed attempt: {notices:?}");
    let (ending, _, model) = turn(&stage, "goose/planner", vec![Answer::Status(429, "retry-after: 7200\r\n")]).await;
    assert!(matches!(&ending, StopReason::Failed { why, .. } if why.contains("in 7200 s")), "{ending:?}");
    assert_eq!(model.asked(), 1);
    for status in [400, 401, 403, 404] {
        let (ending, _, model) = turn(&stage, "goose/planner", vec![Answer::Status(status, "")]).await;
        let StopReason::Failed { why, status: rejection } = &ending else { panic!("{ending:?}") };
        assert!(why.contains(&status.to_string()), "{why}");
        assert_eq!((*rejection, model.asked()), (Some(status), 1));
    }
    stage.runtime.stop().await;
}

#[tokio::test]
async fn a_window_that_is_full_is_understood_in_each_dialect() {
    let cases = [
        ("openai:x", r#"{"error":{"message":"too much","code":"context_length_exceeded"}}"#),
        ("anthropic:x", r#"{"type":"error","error":{"message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#),
        (
            "google:x",
            r#"{"error":{"message":"The input token count (9) exceeds the maximum number of tokens allowed (8)."}}"#,
        ),
    ];
    for (name, body) in cases {
        let stage = Stage::new();
        let model = Model::new(vec![Answer::Refuse(400, body)]);
        let (ending, _) = stage.turn("goose/planner", &remote(name, &model)).await;
        let StopReason::Failed { why, .. } = ending else { panic!("{ending:?}") };
        assert!(why.contains("does not fit by itself"), "{name}: {why}");
        stage.runtime.stop().await;
    }
}

#[tokio::test]
async fn wrong_calls_get_results_and_the_history_stays_valid() {
    let stage = Stage::new();
    let wrong = wishes(&[
        ("a", "developer__read_file", "{\"path\": "),
        ("a", "developer__read_file", "[1, 2]"),
        ("", "no_such_tool", "{}"),
        ("b", "developer__shell", "{\"command\": \"touch made\"}"),
        ("b", "developer__list_dir", "\"text\""),
        ("c", "", "{}"),
        ("d", "functions.shell ü", "{}"),
    ]);
    let (ending, history, model) =
        turn(&stage, "coding/security", vec![Answer::Stream(wrong), Answer::Stream(says("I see"))]).await;
    assert_eq!(ending, StopReason::EndTurn);
    let answers = results(&history[2]);
    assert_eq!(answers.len(), 7);
    assert!(answers.iter().all(|(_, is_error)| *is_error), "{answers:?}");
    assert!(answers[0].0.contains("no valid JSON") && answers[0].0.contains("{\"path\": "), "{answers:?}");
    assert!(!stage.session.cwd.join("made").exists());
    let sent = model.request(1);
    let messages = sent["messages"].as_array().unwrap();
    let wishes =
        messages.iter().find(|message| message["role"] == "assistant").unwrap()["tool_calls"].as_array().unwrap();
    let mut ids: Vec<_> = wishes.iter().map(|wish| wish["id"].as_str().unwrap()).collect();
    let answered: Vec<_> = messages.iter().filter_map(|message| message["tool_call_id"].as_str()).collect();
    assert_eq!(ids, answered);
    for wish in wishes {
        let arguments: Value = serde_json::from_str(wish["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments.is_object(), "{wish}");
        let name = wish["function"]["name"].as_str().unwrap();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        assert!(!name.is_empty() && name.chars().all(plain), "{wish}");
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 7);
    stage.runtime.stop().await;
}

#[tokio::test]
async fn a_tool_without_arguments_may_be_called_with_none() {
    let stage = Stage::new();
    let none = wishes(&[("a", "todo__list_todos", "")]);
    let (_, history, _) = turn(&stage, "goose/assistant", vec![Answer::Stream(none), Answer::Stream(says("ok"))]).await;
    assert!(!results(&history[2])[0].1, "{:?}", history[2]);
    stage.runtime.stop().await;
}

#[tokio::test]
async fn a_call_that_was_cut_at_the_longest_answer_is_not_run() {
    let stage = Stage::new();
    let mut cut = wishes(&[("a", "todo__list_todos", ""), ("b", "developer__shell", "{\"command\": \"touch made")]);
    *cut.last_mut().unwrap() = stop("length");
    let (_, history, _) = turn(&stage, "goose/assistant", vec![Answer::Stream(cut), Answer::Stream(says("ok"))]).await;
    assert!(results(&history[2]).iter().all(|(_, is_error)| *is_error), "{:?}", history[2]);
    assert!(!stage.session.cwd.join("made").exists());
    stage.runtime.stop().await;
}

#[tokio::test]
async fn a_hundred_calls_and_five_megabytes_are_only_large() {
    let stage = Stage::new();
    let arguments: Vec<_> = (0..100).map(|number| json!({"path": format!("{number}.txt")}).to_string()).collect();
    let many: Vec<_> = arguments.iter().map(|arguments| ("same", "developer__read_file", arguments.as_str())).collect();
    let large = json!({"path": "large.txt", "content": "x".repeat(5_000_000)});
    let words = "word ".repeat(400_000);
    let answers = vec![
        Answer::Stream(wishes(&many)),
        Answer::Stream(calls("developer__write_file", &large)),
        Answer::Stream(says(&words)),
    ];
    let (ending, history, _) = turn(&stage, "coding/backend", answers).await;
    assert_eq!(ending, StopReason::EndTurn);
    assert_eq!(results(&history[2]).len(), 100);
    assert_eq!(std::fs::metadata(stage.session.cwd.join("large.txt")).unwrap().len(), 5_000_000);
    assert_eq!(history.last().unwrap().text(), words);
    stage.runtime.stop().await;
}

#[tokio::test]
async fn images_thoughts_and_usage_go_over_the_wire() {
    let stage = Stage::new();
    let thought = json!({"index": 0, "delta": {"reasoning_content": "let me see"}});
    let model = Model::new(vec![Answer::Stream(vec![thought, text("a cat"), stop("stop")])]);
    let remote = remote("openai:scripted", &model);
    let exchange = stage.exchange("goose/planner", &remote, TurnLimits::default()).await;
    let image = |data: &str| Content::Image { mime: "image/png".into(), data: data.into() };
    let call = ToolUse::new("1".into(), "camera__shoot".into(), json!({}));
    let result = ToolResult {
        id: "1".into(),
        name: "camera__shoot".into(),
        content: vec![Content::text("click"), image("c2hvdA==")],
        is_error: false,
    };
    let mut history = History::default();
    history.push(Arc::new(Message::user(vec![Content::text("shoot")])));
    history.push(Arc::new(Message { role: Role::Assistant, parts: vec![MessagePart::ToolUse(call)] }));
    history.push(Arc::new(Message { role: Role::User, parts: vec![MessagePart::ToolResult(result)] }));
    let prompt = vec![Content::text("what is this?"), image("cHJvbXB0")];
    let end = exchange.turn(&mut history, prompt, &CancellationToken::new()).await;
    assert_eq!(end.usage, Usage { input: 100, output: 7, cached: 60 });
    let sent = model.body(0);
    assert!(
        sent.contains("data:image/png;base64,c2hvdA==") && sent.contains("data:image/png;base64,cHJvbXB0"),
        "{sent}"
    );
    let answer = history.messages().last().unwrap();
    assert_eq!(answer.parts, [MessagePart::Thought("let me see".into()), MessagePart::Content(Content::text("a cat"))]);
    drop(exchange);
    stage.runtime.stop().await;
}

/// The bytes of one field at the top of a JSON object.
fn raw<'a>(body: &'a str, field: &str) -> &'a str {
    let start = body.find(&format!("\"{field}\":")).unwrap() + field.len() + 3;
    let mut stream = serde_json::Deserializer::from_str(&body[start..]).into_iter::<Value>();
    stream.next().unwrap().unwrap();
    &body[start..start + stream.byte_offset()]
}

#[tokio::test]
async fn unchanged_request_parts_keep_their_bytes_for_caching() {
    let stage = Stage::new();
    let list = || Answer::Stream(calls("developer__list_dir", &json!({"path": "."})));
    let model = Model::new(vec![list(), list(), Answer::Stream(says("one")), list(), Answer::Stream(says("two"))]);
    let remote = remote("openai:scripted", &model);
    let exchange = stage.exchange("coding/backend", &remote, TurnLimits::default()).await;
    let mut history = History::default();
    for prompt in ["first", "second"] {
        exchange.turn(&mut history, vec![Content::text(prompt)], &CancellationToken::new()).await;
    }
    let bodies: Vec<_> = (0..5).map(|index| model.body(index)).collect();
    for pair in bodies.windows(2) {
        assert_eq!(raw(&pair[0], "tools"), raw(&pair[1], "tools"));
        let (before, after) = (raw(&pair[0], "messages"), raw(&pair[1], "messages"));
        assert!(after.starts_with(before.trim_end_matches(']')), "what was sent is sent again:\n{before}\n{after}");
    }
    drop(exchange);
    stage.runtime.stop().await;
}

fn anthropic(blocks: Vec<Vec<(&'static str, Value)>>, stop: &str) -> Answer {
    let usage = json!({"input_tokens": 40, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 0, "output_tokens": 1});
    let mut events = vec![("message_start", json!({"type": "message_start", "message": {"usage": usage}}))];
    for (index, block) in blocks.into_iter().enumerate() {
        for (name, mut data) in block {
            data["type"] = json!(name);
            data["index"] = json!(index);
            events.push((name, data));
        }
        events.push(("content_block_stop", json!({"type": "content_block_stop", "index": index})));
    }
    events.push(("message_delta", json!({"delta": {"stop_reason": stop}, "usage": {"output_tokens": 7}})));
    events.push(("message_stop", json!({"type": "message_stop"})));
    Answer::Events(events)
}

fn block(kind: &str, start: Value, deltas: &[Value]) -> Vec<(&'static str, Value)> {
    let mut content = start;
    content["type"] = json!(kind);
    let mut events = vec![("content_block_start", json!({"content_block": content}))];
    events.extend(deltas.iter().map(|delta| ("content_block_delta", json!({"delta": delta}))));
    events
}

#[tokio::test]
async fn the_dialect_of_anthropic() {
    let stage = Stage::new();
    std::fs::write(stage.session.cwd.join("a.txt"), "the needle\n").unwrap();
    let thinking =
        block("thinking", json!({"thinking": ""}), &[json!({"type": "thinking_delta", "thinking": "where?"})]);
    let wish = |id: &str, json: &str| {
        let delta = json!({"type": "input_json_delta", "partial_json": json});
        block("tool_use", json!({"id": id, "name": "developer__read_file", "input": {}}), &[delta])
    };
    let said = |text: &str| block("text", json!({"text": ""}), &[json!({"type": "text_delta", "text": text})]);
    let mut cut = said("I fou");
    cut.insert(0, ("message_start", json!({"message": {"usage": {"input_tokens": 1}}})));
    let overloaded =
        ("error", json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}));
    cut.push(overloaded);
    let model = Model::new(vec![
        anthropic(vec![thinking, wish("toolu_1", "{\"path\": \"a.txt\"}"), wish("toolu_2", "{\"path\": ")], "tool_use"),
        Answer::Events(cut),
        anthropic(vec![said("nd it.")], "end_turn"),
    ]);
    let remote = remote("anthropic:claude", &model);
    let exchange = stage.exchange("coding/security", &remote, TurnLimits::default()).await;
    let mut history = History::default();
    let end = exchange.turn(&mut history, vec![Content::text("find it")], &CancellationToken::new()).await;
    assert_eq!(end.ending, StopReason::EndTurn);
    // Two answers report 14 tokens. The tokens of the one that was cut, and of its request, are estimates.
    assert_eq!((end.usage.output, end.usage.cached), (14 + 2, 120));
    assert!(end.usage.input > 200, "{:?}", end.usage);
    assert_eq!(history.messages()[1].parts[0], MessagePart::Thought("where?".into()));
    let answers = results(&history.messages()[2]);
    assert!(answers[0].0.contains("the needle") && answers[1].1, "{answers:?}");
    assert_eq!(history.messages()[3].text(), "I found it.");
    let first = model.request(0);
    let kept = json!({"type": "ephemeral"});
    assert_eq!(first["system"][0]["cache_control"], kept, "{}", first["system"]);
    assert_eq!(first["messages"][0]["content"][0]["cache_control"], kept, "{}", first["messages"]);
    let second = model.request(1);
    let wishes = second["messages"][1]["content"].as_array().unwrap();
    assert!(wishes.iter().all(|wish| wish["input"].is_object()), "{wishes:?}");
    let results = second["messages"][2]["content"].as_array().unwrap();
    assert_eq!(results.iter().map(|result| &result["tool_use_id"]).collect::<Vec<_>>(), ["toolu_1", "toolu_2"]);
    assert_eq!(raw(&model.body(0), "tools"), raw(&model.body(2), "tools"));
    assert_eq!(raw(&model.body(0), "system"), raw(&model.body(2), "system"));
    drop(exchange);
    stage.runtime.stop().await;
}

#[tokio::test]
async fn the_dialect_of_google() {
    let stage = Stage::new();
    std::fs::write(stage.session.cwd.join("a.txt"), "the needle\n").unwrap();
    let piece = |parts: Value, reason: Option<&str>| {
        let mut candidate = json!({"content": {"role": "model", "parts": parts}});
        if let Some(reason) = reason {
            candidate["finishReason"] = json!(reason);
        }
        let usage = json!({"promptTokenCount": 100, "candidatesTokenCount": 7, "cachedContentTokenCount": 60});
        ("", json!({"candidates": [candidate], "usageMetadata": usage}))
    };
    let wish = || json!({"functionCall": {"name": "developer__read_file", "args": {"path": "a.txt"}}});
    let model = Model::new(vec![
        Answer::Events(vec![piece(json!([wish(), wish()]), Some("STOP"))]),
        Answer::Events(vec![piece(json!([wish()]), Some("STOP"))]),
        // It ends in order, and without a reason to.
        Answer::Events(vec![piece(json!([{"text": "I fou"}]), None)]),
        Answer::Events(vec![piece(json!([{"text": "nd it."}]), Some("STOP"))]),
    ]);
    let remote = remote("google:gemini", &model);
    let exchange = stage.exchange("coding/security", &remote, TurnLimits::default()).await;
    let mut history = History::default();
    let end = exchange.turn(&mut history, vec![Content::text("find it")], &CancellationToken::new()).await;
    assert_eq!(end.ending, StopReason::EndTurn);
    // Three answers report 21 tokens. The tokens of the one that was cut, and of its request, are estimates.
    assert_eq!((end.usage.output, end.usage.cached), (21 + 2, 180));
    assert!(end.usage.input > 300, "{:?}", end.usage);
    let answers: Vec<_> = [2, 4].into_iter().flat_map(|at| results(&history.messages()[at])).collect();
    assert!(answers.len() == 3 && answers.iter().all(|(text, _)| text.contains("the needle")), "{answers:?}");
    let uses = history.messages().iter().flat_map(|message| &message.parts).filter_map(|part| match part {
        MessagePart::ToolUse(call) => Some(call.id.as_str()),
        _ => None,
    });
    assert_eq!(uses.collect::<std::collections::BTreeSet<_>>().len(), 3, "ids that Google does not give are made up");
    assert_eq!(history.messages().last().unwrap().text(), "I found it.");
    let second = model.request(1);
    let contents = second["contents"].as_array().unwrap();
    assert_eq!(contents.last().unwrap()["parts"].as_array().unwrap().len(), 2, "results of one answer stay together");
    assert_eq!(raw(&model.body(0), "tools"), raw(&model.body(3), "tools"));
    drop(exchange);
    stage.runtime.stop().await;
}

#[tokio::test]
async fn a_key_follows_no_redirect_and_is_in_no_words_about_a_failure() {
    let stage = Stage::new();
    let elsewhere = Model::new(vec![Answer::Stream(says("stolen"))]);
    let location: &'static str = Box::leak(
        format!("location: {}/messages\r\n", elsewhere.address.replace("127.0.0.1", "localhost")).into_boxed_str(),
    );
    let model = Model::new(vec![Answer::Status(307, location), Answer::Refuse(401, "no such key: a-marked-secret")]);
    let (base_url, key) = (Some(model.address.clone()), Some("A_KEY".to_owned()));
    let address = ProviderEndpoint { base_url, key, ..ProviderEndpoint::default() };
    let models = ModelRegistry { providers: [("anthropic".to_owned(), address)].into(), ..ModelRegistry::default() };
    let remote = Arc::new(
        HttpProvider::new(&"anthropic:m".into(), &models, |name| {
            (name == "A_KEY").then(|| "a-marked-secret".to_owned())
        })
        .unwrap(),
    );
    let (ending, _) = stage.turn("goose/planner", &remote).await;
    assert!(matches!(ending, StopReason::Failed { .. }), "{ending:?}");
    assert_eq!(elsewhere.asked(), 0);
    let (ending, _) = stage.turn("goose/planner", &remote).await;
    let StopReason::Failed { why, .. } = ending else { panic!("{ending:?}") };
    assert!(why.contains("no such key") && !why.contains("a-marked-secret"), "{why}");
}
