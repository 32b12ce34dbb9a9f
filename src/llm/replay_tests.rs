//! What was recorded is what is played, and what does not fit is said.

use super::*;
use crate::conversation::{Content, Message, Role, ToolResult};
use serde_json::json;
use std::sync::{LazyLock, Mutex};

struct Once(Mutex<Vec<Vec<Result<StreamEvent, LlmError>>>>);

impl Provider for Once {
    fn name(&self) -> &ModelRef {
        static NAME: LazyLock<ModelRef> = LazyLock::new(|| ModelRef::from("once"));
        &NAME
    }

    fn stream(&self, _: ModelRequest) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
        stream::iter(self.0.lock().unwrap().remove(0)).boxed()
    }
}

fn asks(message: Message) -> ModelRequest {
    ModelRequest { system: "".into(), tools: Arc::default(), messages: vec![Arc::new(message)] }
}

fn prompt(text: &str) -> ModelRequest {
    asks(Message::user(vec![Content::text(text)]))
}

async fn heard(model: &dyn Provider, request: ModelRequest) -> Vec<Result<StreamEvent, LlmError>> {
    model.stream(request).collect().await
}

#[tokio::test]
async fn a_recording_plays_what_was_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.jsonl");
    let call = ToolUse::new("1".into(), "developer__shell".into(), json!({"command": "ls"}));
    let usage = Usage { input: 3, output: 2, cached: 1 };
    let text = |text: &str| Ok(StreamEvent::Text(text.into()));
    let done = |stop| Ok(StreamEvent::Done { stop, usage });
    let busy = || Err(LlmError::Transient { model: "once".into(), reason: "busy".into(), retry_after: None });
    let wish = vec![Ok(StreamEvent::Thought("hm".into())), Ok(StreamEvent::ToolUse(call)), done(ModelStop::Finished)];
    let turns = vec![
        wish.clone(),
        vec![busy()],
        vec![text("half"), busy()],
        vec![text("a sen"), text("tence"), done(ModelStop::Length)],
    ];
    let recorder = ModelRecorder::new(Arc::new(Once(Mutex::new(turns))), &file).unwrap();
    let result = ToolResult { id: "1".into(), name: "developer__shell".into(), content: vec![], is_error: false };
    let results = || asks(Message { role: Role::User, parts: vec![MessagePart::ToolResult(result.clone())] });
    assert_eq!(heard(&recorder, prompt("go")).await, wish, "who listens hears the same");
    heard(&recorder, results()).await;
    heard(&recorder, results()).await;
    heard(&recorder, prompt("go on")).await;
    drop(recorder);

    let replay = ReplayProvider::new(&file).unwrap();
    assert_eq!(heard(&replay, prompt("go")).await, wish);
    assert_eq!(heard(&replay, results()).await, [text("half")], "what was cut off is cut off again");
    assert_eq!(heard(&replay, prompt("go on")).await, [text("a sentence"), done(ModelStop::Length)]);
    let error = heard(&replay, prompt("more")).await.remove(0).unwrap_err().to_string();
    assert!(error.contains("it holds 3 answers, and one more was asked for"), "{error}");
}

#[tokio::test]
async fn models_of_one_run_share_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.jsonl");
    fs::write(&file, "{\"answer\": [{\"text\": \"earlier\"}]}\n").unwrap();
    let says = |text: &str| Arc::new(Once(Mutex::new(vec![vec![Ok(StreamEvent::Text(text.into()))]])));
    let first = ModelRecorder::new(says("one"), &file).unwrap();
    let second = first.with_model(says("two"));
    assert!(fs::read_to_string(&file).unwrap().contains("earlier"), "no model has answered yet");
    heard(&first, prompt("a")).await;
    heard(&second, prompt("b")).await;
    drop((first, second));
    let replay = ReplayProvider::new(&file).unwrap();
    assert_eq!(heard(&replay, prompt("a")).await, [Ok(StreamEvent::Text("one".into()))]);
    assert_eq!(heard(&replay, prompt("b")).await, [Ok(StreamEvent::Text("two".into()))]);
}

#[tokio::test]
async fn other_questions_are_an_error_that_shows_both() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.jsonl");
    fs::write(&file, "\n{\"asked\": \"the weather\", \"answer\": [{\"text\": \"rain\"}]}\n").unwrap();
    let said = heard(&ReplayProvider::new(&file).unwrap(), prompt("how is the weather?")).await;
    assert_eq!(said[0], Ok(StreamEvent::Text("rain".into())));
    let error = heard(&ReplayProvider::new(&file).unwrap(), prompt("what time is it?"))
        .await
        .remove(0)
        .unwrap_err()
        .to_string();
    assert!(error.contains("line 2 answers \"the weather\", and what was asked is \"what time is it?\""), "{error}");
}

#[test]
fn a_file_that_is_no_recording_is_named_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.jsonl");
    fs::write(&file, "{\"answer\": []}\n{\"answer\": [{\"song\": \"la\"}]}\n").unwrap();
    let error = ReplayProvider::new(&file).unwrap_err().to_string();
    assert!(error.contains("talk.jsonl") && error.contains("line 2") && error.contains("song"), "{error}");
    let missing = ReplayProvider::new(&folder.path().join("none")).unwrap_err().to_string();
    assert!(missing.contains("No such file"), "{missing}");
}
