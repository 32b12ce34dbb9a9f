//! The loop between a model and its tools. The model is scripted; the binding, the services and the processes
//! are real.

use std::sync::{Arc, Mutex};

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use serde_json::{Value, json};
use skein::agents::{Ending, Event, Exchange, History, Limits, Notifier, Status};
use skein::broker::{Nobody, Terms};
use skein::conversation::{Content, Message, Part, ToolUse, Usage};
use skein::llm::{LlmError, ModelStop, Provider, Request, StreamEvent};
use skein::manifest::{Approval, Layer, Root};
use skein::runtime::Runtime;
use skein::services::{Environment, PoolOptions, Registry};
use skein::tool::Session;
use tokio_util::sync::CancellationToken;

use crate::support::until;

/// A model that takes the turns it was given, and keeps every request.
struct Script {
    turns: Mutex<std::vec::IntoIter<Vec<Result<StreamEvent, LlmError>>>>,
    requests: Mutex<Vec<Request>>,
}

impl Script {
    fn new(turns: Vec<Vec<Result<StreamEvent, LlmError>>>) -> Arc<Self> {
        Arc::new(Self { turns: Mutex::new(turns.into_iter()), requests: Mutex::default() })
    }
}

impl Provider for Script {
    fn name(&self) -> &str {
        "script"
    }

    fn stream(&self, request: Request) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
        self.requests.lock().unwrap().push(request);
        let turn = self.turns.lock().unwrap().next().expect("the script is asked no more often than it has turns");
        stream::iter(turn).boxed()
    }
}

fn says(text: &str) -> Vec<Result<StreamEvent, LlmError>> {
    vec![Ok(StreamEvent::Text(text.to_owned())), done()]
}

fn calls(calls: &[(&str, Value)]) -> Vec<Result<StreamEvent, LlmError>> {
    let wishes = calls.iter().enumerate().map(|(index, (name, arguments))| {
        let call = ToolUse { id: format!("call-{index}"), name: (*name).to_owned(), arguments: arguments.clone() };
        Ok(StreamEvent::ToolUse(call))
    });
    wishes.chain([done()]).collect()
}

fn done() -> Result<StreamEvent, LlmError> {
    Ok(StreamEvent::Done { stop: ModelStop::Finished, usage: Usage { input: 10, output: 5, cached: 0 } })
}

/// Everything that was told, in order.
#[derive(Default)]
struct Ear {
    events: Mutex<Vec<Event>>,
}

impl Notifier for Ear {
    fn log(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    fn status(&self, _: Status) {}
}

struct Stage {
    /// Goes last.
    _folder: tempfile::TempDir,
    runtime: Runtime,
    session: Arc<Session>,
    ear: Arc<Ear>,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("project")).unwrap();
        let (manifests, found) = skein::manifest::load(&[(Layer::Builtin, Root::Builtin)]);
        let plan = skein::graph::resolve(manifests, found).plan.expect("the built-in manifests are right");
        let environment = Environment::new(std::env::vars_os());
        let options = PoolOptions { environment, data: folder.path().join("data"), ..PoolOptions::default() };
        let runtime = Runtime::start(Arc::new(plan), Registry::builtin(), options, None);
        let session = Session::new("s1", folder.path().join("project"), Vec::new(), folder.path().join("scratch"));
        Self { _folder: folder, runtime, session, ear: Arc::default() }
    }

    async fn exchange(&self, mode: &str, model: &Arc<Script>, limits: Limits) -> Exchange {
        let terms = Terms {
            session: Arc::clone(&self.session),
            approval: Some(Approval::Auto),
            asker: Arc::new(Nobody),
            brought: Vec::new(),
        };
        let binding = self.runtime.broker().bind(&mode.parse().unwrap(), terms).await.expect("the mode can be entered");
        let provider: Arc<dyn Provider> = Arc::clone(model) as _;
        let notifier: Arc<dyn Notifier> = Arc::clone(&self.ear) as _;
        Exchange::new(provider, Arc::new(binding), Arc::clone(&self.session), notifier, limits, "system")
    }

    /// One turn in a mode, to its end.
    async fn turn(&self, mode: &str, model: &Arc<Script>) -> (Ending, Vec<Message>) {
        let mut history = History::default();
        let exchange = self.exchange(mode, model, Limits::default()).await;
        let end = exchange.turn(&mut history, vec![Content::text("go")], &CancellationToken::new()).await;
        (end.ending, history.messages().iter().map(|message| message.as_ref().clone()).collect())
    }
}

fn results(message: &Message) -> Vec<(String, bool)> {
    let result = |part: &Part| match part {
        Part::ToolResult(result) => {
            let text = result.content.iter().filter_map(Content::as_text).collect::<String>();
            Some((text, result.is_error))
        }
        _ => None,
    };
    message.parts.iter().filter_map(result).collect()
}

#[tokio::test]
async fn a_tool_call_is_answered_and_the_model_goes_on() {
    let stage = Stage::new();
    std::fs::write(stage.session.cwd.join("a.txt"), "the needle\n").unwrap();
    let model = Script::new(vec![calls(&[("developer__read_file", json!({"path": "a.txt"}))]), says("found it")]);
    let (ending, history) = stage.turn("coding/security", &model).await;
    assert_eq!(ending, Ending::EndTurn);
    assert_eq!(history.len(), 4, "prompt, call, result, answer");
    assert!(results(&history[2])[0].0.contains("the needle"));
    assert_eq!(history[3].text(), "found it");
    stage.runtime.stop().await;
}

#[tokio::test]
async fn a_model_sees_the_tools_of_its_mode_and_reaches_no_others() {
    let stage = Stage::new();
    let hostile = [
        ("developer__write_file", json!({"path": "b.txt", "content": "x"})),
        ("developer__shell", json!({"command": "touch b.txt"})),
        ("shell", json!({"command": "touch b.txt"})),
        ("DEVELOPER__SHELL", json!({"command": "touch b.txt"})),
        ("summon__delegate", json!({"task": "touch b.txt"})),
        ("no_such_tool", json!({})),
        ("developer__read_file", json!("not an object")),
        ("developer__read_file", json!({"path": 7})),
    ];
    let model = Script::new(vec![calls(&hostile), says("I give up")]);
    let (ending, history) = stage.turn("coding/security", &model).await;
    assert_eq!(ending, Ending::EndTurn, "a model's mistakes are answered, not fatal");
    assert!(results(&history[2]).iter().all(|(_, is_error)| *is_error));
    assert!(!stage.session.cwd.join("b.txt").exists());
    let requests = model.requests.lock().unwrap().clone();
    let offered: Vec<_> = requests[0].tools.iter().map(|tool| tool.name.as_str()).collect();
    assert!(offered.contains(&"developer__read_file") && !offered.contains(&"developer__shell"), "{offered:?}");
    stage.runtime.stop().await;
}

#[tokio::test]
async fn what_the_model_is_shown_first_keeps_its_bytes_throughout_the_turn() {
    let stage = Stage::new();
    let list = || calls(&[("developer__list_dir", json!({"path": "."}))]);
    let model = Script::new(vec![list(), list(), says("done")]);
    stage.turn("coding/backend", &model).await;
    let requests = model.requests.lock().unwrap().clone();
    assert!(requests.windows(2).all(|pair| pair[0].system == pair[1].system && pair[0].tools == pair[1].tools));
    assert!(requests.windows(2).all(|pair| pair[1].messages.starts_with(&pair[0].messages)));
    stage.runtime.stop().await;
}

#[tokio::test]
async fn a_hundred_calls_at_once_are_all_answered_in_their_order() {
    let stage = Stage::new();
    for number in 0..100 {
        std::fs::write(stage.session.cwd.join(format!("{number}.txt")), format!("number {number}\n")).unwrap();
    }
    let names: Vec<_> = (0..100).map(|number| json!({"path": format!("{number}.txt")})).collect();
    let wishes: Vec<_> = names.into_iter().map(|arguments| ("developer__read_file", arguments)).collect();
    let model = Script::new(vec![calls(&wishes), says("done")]);
    let (_, history) = stage.turn("coding/security", &model).await;
    let results = results(&history[2]);
    assert_eq!(results.len(), 100);
    for (number, (text, is_error)) in results.iter().enumerate() {
        assert!(!is_error && text.contains(&format!("number {number}")), "{number}: {text}");
    }
    stage.runtime.stop().await;
}

#[tokio::test]
async fn a_model_that_repeats_a_failing_call_is_stopped() {
    let stage = Stage::new();
    let wrong = || calls(&[("developer__read_file", json!({"path": "missing.txt"}))]);
    let model = Script::new(vec![wrong(), wrong(), wrong()]);
    let (ending, _) = stage.turn("coding/security", &model).await;
    let Ending::Exhausted { why } = ending else { panic!("{ending:?}") };
    assert!(why.contains("failed 3 times") && why.contains("missing.txt"), "{why}");
    stage.runtime.stop().await;
}

#[tokio::test]
async fn a_model_that_never_ends_is_stopped() {
    let stage = Stage::new();
    let again = || calls(&[("developer__list_dir", json!({"path": "."}))]);
    let model = Script::new((0..5).map(|_| again()).collect());
    let exchange = stage.exchange("coding/security", &model, Limits { requests: 5, ..Limits::default() }).await;
    let end = exchange.turn(&mut History::default(), vec![Content::text("go")], &CancellationToken::new()).await;
    assert!(matches!(end.ending, Ending::Exhausted { .. }), "{:?}", end.ending);
    assert_eq!(end.usage, Usage { input: 50, output: 25, cached: 0 });
    drop(exchange);
    stage.runtime.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_cut_off_is_kept_and_its_wishes_are_not() {
    let stage = Stage::new();
    let broken = LlmError::Unusable { model: "script".into(), reason: "the line went dead".into() };
    let wish = ToolUse { id: "1".into(), name: "developer__list_dir".into(), arguments: json!({"path": "."}) };
    let cut = vec![Ok(StreamEvent::Text("I was about to".into())), Ok(StreamEvent::ToolUse(wish)), Err(broken)];
    let (ending, history) = stage.turn("coding/security", &Script::new(vec![cut])).await;
    assert!(matches!(&ending, Ending::Failed { why } if why.contains("the line went dead")), "{ending:?}");
    assert_eq!(history.len(), 2);
    assert_eq!(history[1].parts, [Part::Content(Content::text("I was about to"))]);
    stage.runtime.stop().await;
}

#[tokio::test]
async fn cancelling_ends_the_command_answers_every_call_and_is_the_last_thing_told() {
    let stage = Stage::new();
    let slow = json!({"command": "echo $$ > pid; sleep 1000 & echo $! > grandchild; wait"});
    let model = Script::new(vec![calls(&[
        ("developer__shell", slow),
        ("developer__shell", json!({"command": "touch later"})),
    ])]);
    let exchange = stage.exchange("coding/backend", &model, Limits::default()).await;
    let cancel = CancellationToken::new();
    let mut history = History::default();
    let grandchild = stage.session.cwd.join("grandchild");
    let turn = exchange.turn(&mut history, vec![Content::text("go")], &cancel);
    let stop = async {
        let started = || std::fs::read_to_string(&grandchild).ok().filter(|text| !text.trim().is_empty());
        until("the grandchild runs", started).await;
        cancel.cancel();
    };
    let (end, ()) = tokio::join!(turn, stop);
    assert_eq!(end.ending, Ending::Cancelled);
    assert_eq!(results(&history.messages()[2]).len(), 2, "every wish has an answer");
    assert!(!stage.session.cwd.join("later").exists(), "nothing is started after the cancel");
    let pid = std::fs::read_to_string(&grandchild).unwrap();
    let process = std::path::Path::new("/proc").join(pid.trim());
    until("the whole process group is gone", || (!process.exists()).then_some(())).await;
    let events = stage.ear.events.lock().unwrap().clone();
    let started = events.iter().filter(|event| matches!(event, Event::ToolStarted { .. })).count();
    let ended = events.iter().filter(|event| matches!(event, Event::ToolEnded { .. })).count();
    assert_eq!(started, ended);
    assert!(matches!(events.last(), Some(Event::TurnEnded { .. })));
    drop(exchange);
    stage.runtime.stop().await;
}
