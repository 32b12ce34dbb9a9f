//! The loop between a model and its tools. The model is scripted; the binding, the services and the processes
//! are real.

use std::sync::{Arc, LazyLock, Mutex};

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use serde_json::{Value, json};
use skein::agents::{
    Event, Exchange, History, Notifier, RecoveryPolicy, RetryPolicy, StatusUpdate, StopReason, TurnLimits,
};
use skein::broker::BindRequest;
use skein::conversation::{Content, Message, MessagePart, ToolUse, Usage};
use skein::ids::ModelRef;
use skein::llm::{EarlierThoughts, LlmError, ModelRequest, ModelStop, Provider, StreamEvent};
use skein::manifest::{ApprovalLevel, Layer, Root};
use skein::runtime::Runtime;
use skein::services::{BuiltinRegistry, Environment, PoolOptions};
use skein::tool::SessionContext;
use skein::tool::ask::NoAsker;
use tokio_util::sync::CancellationToken;

use crate::support::{Fake, until};

/// A model that takes the turns it was given, and keeps every request.
pub(crate) struct Script {
    turns: Mutex<std::vec::IntoIter<Said>>,
    pub(crate) requests: Mutex<Vec<ModelRequest>>,
    window: Option<u64>,
    thoughts: EarlierThoughts,
}

/// What a model says when it is asked once.
pub(crate) type Said = Vec<Result<StreamEvent, LlmError>>;

impl Script {
    pub(crate) fn new(turns: Vec<Said>) -> Arc<Self> {
        Arc::new(Self::without_window(turns))
    }

    pub(crate) fn with_window(turns: Vec<Said>, window: u64) -> Arc<Self> {
        Arc::new(Self { window: Some(window), ..Self::without_window(turns) })
    }

    pub(crate) fn with_thoughts(turns: Vec<Said>, window: u64, thoughts: EarlierThoughts) -> Arc<Self> {
        Arc::new(Self { window: Some(window), thoughts, ..Self::without_window(turns) })
    }

    fn without_window(turns: Vec<Said>) -> Self {
        let turns = Mutex::new(turns.into_iter());
        Self { turns, requests: Mutex::default(), window: None, thoughts: EarlierThoughts::LeftOut }
    }

    pub(crate) fn asked(&self) -> Vec<ModelRequest> {
        self.requests.lock().unwrap().clone()
    }
}

impl Provider for Script {
    fn name(&self) -> &ModelRef {
        static NAME: LazyLock<ModelRef> = LazyLock::new(|| ModelRef::from("script"));
        &NAME
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
        self.requests.lock().unwrap().push(request);
        let turn = self.turns.lock().unwrap().next().expect("the script is asked no more often than it has turns");
        stream::iter(turn).boxed()
    }

    fn window(&self) -> Option<u64> {
        self.window
    }

    fn earlier_thoughts(&self) -> EarlierThoughts {
        self.thoughts
    }
}

pub(crate) fn says(text: &str) -> Said {
    vec![Ok(StreamEvent::Text(text.to_owned())), done()]
}

pub(crate) fn calls(calls: &[(&str, Value)]) -> Said {
    let wishes = calls.iter().enumerate().map(|(index, (name, arguments))| {
        let call = ToolUse::new(format!("call-{index}"), (*name).to_owned(), arguments.clone());
        Ok(StreamEvent::ToolUse(call))
    });
    wishes.chain([done()]).collect()
}

pub(crate) fn done() -> Result<StreamEvent, LlmError> {
    Ok(StreamEvent::Done { stop: ModelStop::Finished, usage: Usage { input: 10, output: 5, cached: 0 } })
}

/// Everything that was told, in order.
#[derive(Default)]
pub(crate) struct Ear {
    pub(crate) events: Mutex<Vec<Event>>,
    statuses: Mutex<Vec<StatusUpdate>>,
}

impl Ear {
    pub(crate) fn notices(&self) -> Vec<String> {
        let notice = |status: &StatusUpdate| match status {
            StatusUpdate::Notice(notice) => Some(notice.text.clone()),
            _ => None,
        };
        self.statuses.lock().unwrap().iter().filter_map(notice).collect()
    }

    /// The text as someone at a terminal has read it.
    pub(crate) fn read(&self) -> String {
        let text = |status: &StatusUpdate| match status {
            StatusUpdate::Text(text) => Some(text.clone()),
            _ => None,
        };
        self.statuses.lock().unwrap().iter().filter_map(text).collect()
    }
}

impl Notifier for Ear {
    fn log(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    fn status(&self, status: StatusUpdate) {
        self.statuses.lock().unwrap().push(status);
    }
}

pub(crate) struct Stage {
    /// Goes last.
    _folder: tempfile::TempDir,
    pub(crate) runtime: Runtime,
    pub(crate) session: Arc<SessionContext>,
    pub(crate) ear: Arc<Ear>,
}

/// No test waits for a model.
pub(crate) fn upkeep() -> RecoveryPolicy {
    let patience = RetryPolicy { pause: std::time::Duration::ZERO, ..RetryPolicy::default() };
    RecoveryPolicy { retry: patience, ..RecoveryPolicy::default() }
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::with(BuiltinRegistry::builtin())
    }

    pub(crate) fn with(registry: BuiltinRegistry) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("project")).unwrap();
        let (manifests, found) = skein::manifest::load(&[(Layer::Builtin, Root::Builtin)]);
        let plan = skein::graph::resolve(manifests, found).plan.expect("the built-in manifests are right");
        let environment = Environment::new(std::env::vars_os());
        let options = PoolOptions { environment, data: folder.path().join("data"), ..PoolOptions::default() };
        let runtime = Runtime::start(Arc::new(plan), registry, options, None);
        let session =
            SessionContext::new("s1", folder.path().join("project"), Vec::new(), folder.path().join("scratch"));
        Self { _folder: folder, runtime, session, ear: Arc::default() }
    }

    pub(crate) async fn exchange(
        &self,
        mode: &str,
        model: &Arc<impl Provider + 'static>,
        limits: TurnLimits,
    ) -> Exchange {
        let terms = BindRequest {
            session: Arc::clone(&self.session),
            approval: Some(ApprovalLevel::Auto),
            asker: Arc::new(NoAsker),
            client_services: Vec::new(),
        };
        let binding = self.runtime.broker().bind(&mode.parse().unwrap(), terms).await.expect("the mode can be entered");
        let provider: Arc<dyn Provider> = Arc::clone(model) as _;
        let notifier: Arc<dyn Notifier> = Arc::clone(&self.ear) as _;
        Exchange::new(provider, Arc::new(binding), Arc::clone(&self.session), notifier, limits, "system")
            .with_recovery(upkeep())
    }

    /// One turn in a mode, to its end.
    pub(crate) async fn turn(&self, mode: &str, model: &Arc<impl Provider + 'static>) -> (StopReason, Vec<Message>) {
        let mut history = History::default();
        let exchange = self.exchange(mode, model, TurnLimits::default()).await;
        let end = exchange.turn(&mut history, vec![Content::text("go")], &CancellationToken::new()).await;
        (end.ending, history.messages().iter().map(|message| message.as_ref().clone()).collect())
    }
}

pub(crate) fn results(message: &Message) -> Vec<(String, bool)> {
    let result = |part: &MessagePart| match part {
        MessagePart::ToolResult(result) => {
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
    assert_eq!(ending, StopReason::EndTurn);
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
    assert_eq!(ending, StopReason::EndTurn, "a model's mistakes are answered, not fatal");
    assert!(results(&history[2]).iter().all(|(_, is_error)| *is_error));
    assert!(!stage.session.cwd.join("b.txt").exists());
    let requests = model.requests.lock().unwrap().clone();
    let offered: Vec<_> = requests[0].tools.iter().map(|tool| tool.name.as_str()).collect();
    assert!(offered.contains(&"developer__read_file") && !offered.contains(&"developer__shell"), "{offered:?}");
    stage.runtime.stop().await;
}

#[tokio::test]
async fn request_prefix_keeps_its_bytes_throughout_the_turn() {
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
    let StopReason::Exhausted { why } = ending else { panic!("{ending:?}") };
    assert!(why.contains("failed 3 times") && why.contains("missing.txt"), "{why}");
    stage.runtime.stop().await;
}

#[tokio::test]
async fn a_model_that_never_ends_is_stopped() {
    let stage = Stage::new();
    let again = || calls(&[("developer__list_dir", json!({"path": "."}))]);
    let model = Script::new((0..5).map(|_| again()).collect());
    let exchange = stage.exchange("coding/security", &model, TurnLimits { requests: 5, ..TurnLimits::default() }).await;
    let end = exchange.turn(&mut History::default(), vec![Content::text("go")], &CancellationToken::new()).await;
    assert!(matches!(end.ending, StopReason::Exhausted { .. }), "{:?}", end.ending);
    assert_eq!(end.usage, Usage { input: 50, output: 25, cached: 0 });
    drop(exchange);
    stage.runtime.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_cut_off_is_kept_and_its_wishes_are_not() {
    let stage = Stage::new();
    let broken = LlmError::Unusable { model: "script".into(), reason: "the line went dead".into() };
    let wish = ToolUse::new("1".into(), "developer__list_dir".into(), json!({"path": "."}));
    let cut = vec![Ok(StreamEvent::Text("I was about to".into())), Ok(StreamEvent::ToolUse(wish)), Err(broken)];
    let (ending, history) = stage.turn("coding/security", &Script::new(vec![cut])).await;
    assert!(matches!(&ending, StopReason::Failed { why, .. } if why.contains("the line went dead")), "{ending:?}");
    assert_eq!(history.len(), 2);
    assert_eq!(history[1].parts, [MessagePart::Content(Content::text("I was about to"))]);
    stage.runtime.stop().await;
}

fn text(text: &str) -> Result<StreamEvent, LlmError> {
    Ok(StreamEvent::Text(text.to_owned()))
}

fn lost() -> Result<StreamEvent, LlmError> {
    Err(LlmError::Transient { model: "script".into(), reason: "the line went dead".into(), retry_after: None })
}

#[tokio::test]
async fn an_answer_that_was_cut_off_is_taken_up_where_it_stopped() {
    let stage = Stage::new();
    let wish = ToolUse::new("1".into(), "developer__shell".into(), json!({"command": "touch made"}));
    let model = Script::new(vec![
        vec![text("Let me look at "), Ok(StreamEvent::ToolUse(wish)), lost()],
        // It ends without its end marker.
        vec![text("the fold")],
        // It begins again, though it was asked not to.
        vec![text("Let me "), text("look at the folder."), done()],
    ]);
    let (ending, history) = stage.turn("coding/backend", &model).await;
    assert_eq!(ending, StopReason::EndTurn);
    assert_eq!(history.len(), 2, "prompt and answer");
    assert_eq!(history[1].parts, [MessagePart::Content(Content::text("Let me look at the folder."))]);
    assert_eq!(stage.ear.read(), "Let me look at the folder.", "nothing is read twice");
    assert!(!stage.session.cwd.join("made").exists(), "a wish of an answer without an end is not fulfilled");
    let asked = model.asked();
    let last: Vec<_> = asked[2].messages.iter().map(|message| message.text()).collect();
    assert_eq!(
        (last.len(), last[1].as_str(), last[2].contains("Continue exactly")),
        (3, "Let me look at the fold", true)
    );
    let notices = stage.ear.notices();
    assert!(notices.len() == 2 && notices[0].contains("the line went dead") && notices[0].contains("try 2 of 5"));
    stage.runtime.stop().await;
}

#[tokio::test]
async fn repeated_connection_loss_ends_the_turn_and_keeps_the_text() {
    let stage = Stage::new();
    let model = Script::new(vec![
        vec![text("a word, "), lost()],
        vec![lost()],
        vec![text("another"), lost()],
        vec![lost()],
        vec![lost()],
    ]);
    let (ending, history) = stage.turn("coding/security", &model).await;
    let StopReason::Failed { why, .. } = ending else { panic!("{ending:?}") };
    assert!(why.contains("the line went dead") && why.contains("asked 5 times"), "{why}");
    assert_eq!(history[1].parts, [MessagePart::Content(Content::text("a word, another"))]);
    assert_eq!(stage.ear.read(), "a word, another");
    stage.runtime.stop().await;
}

#[tokio::test]
async fn whoever_waits_for_a_model_can_stop_waiting() {
    let stage = Stage::new();
    let hour = std::time::Duration::from_secs(3600);
    let busy = || LlmError::Transient { model: "script".into(), reason: "busy".into(), retry_after: Some(hour) };
    let model = Script::new(vec![vec![Err(busy())], vec![Err(busy())]]);
    let (ending, _) = stage.turn("coding/security", &model).await;
    assert!(
        matches!(&ending, StopReason::Failed { why, .. } if why.contains("3600 s")),
        "too long to wait: {ending:?}"
    );
    let patience = RetryPolicy { longest: hour, ..RetryPolicy::default() };
    let exchange = stage.exchange("coding/security", &model, TurnLimits::default()).await;
    let exchange = exchange.with_recovery(RecoveryPolicy { retry: patience, ..RecoveryPolicy::default() });
    let cancel = CancellationToken::new();
    let mut history = History::default();
    let turn = exchange.turn(&mut history, vec![Content::text("go")], &cancel);
    let stop = async {
        until("it waits", || (!stage.ear.notices().is_empty()).then_some(())).await;
        cancel.cancel();
    };
    let (end, ()) = tokio::join!(turn, stop);
    assert_eq!(end.ending, StopReason::Cancelled);
    drop(exchange);
    stage.runtime.stop().await;
}

#[tokio::test]
async fn every_call_has_an_id_of_its_own_whatever_the_model_calls_it() {
    let stage = Stage::new();
    let list = |id: &str| {
        let call = ToolUse::new(id.into(), "developer__list_dir".into(), json!({"path": "."}));
        Ok(StreamEvent::ToolUse(call))
    };
    let model = Script::new(vec![
        vec![list("a"), list("a"), list(""), list("call#list#0"), done()],
        vec![list("a"), list("call#list#0"), done()],
        says("done"),
        vec![list("a"), done()],
        says("done"),
    ]);
    let exchange = stage.exchange("coding/security", &model, TurnLimits::default()).await;
    let mut history = History::default();
    for _ in 0..2 {
        exchange.turn(&mut history, vec![Content::text("go")], &CancellationToken::new()).await;
    }
    let (mut uses, mut answers) = (Vec::new(), Vec::new());
    for part in history.messages().iter().flat_map(|message| &message.parts) {
        match part {
            MessagePart::ToolUse(call) => uses.push(call.id.clone()),
            MessagePart::ToolResult(result) => answers.push(result.id.clone()),
            MessagePart::Content(_) | MessagePart::Thought(_) => {}
        }
    }
    assert_eq!((uses.len(), &uses), (7, &answers));
    let harmless = |id: &String| !id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    assert!(uses.iter().all(harmless), "{uses:?}");
    uses.sort();
    uses.dedup();
    assert_eq!(uses.len(), 7);
    drop(exchange);
    stage.runtime.stop().await;
}

#[tokio::test]
async fn empty_answer_ends_the_turn_without_an_empty_message() {
    let stage = Stage::new();
    let (ending, history) = stage.turn("coding/security", &Script::new(vec![vec![done()]])).await;
    assert_eq!((ending, history.len()), (StopReason::EndTurn, 1));
    assert!(stage.ear.notices()[0].contains("said nothing"));
    stage.runtime.stop().await;
}

#[tokio::test]
async fn cancelling_answers_every_call_and_is_the_last_event() {
    let stage = Stage::new();
    let slow = json!({"command": "echo $$ > pid; sleep 1000 & echo $! > grandchild; wait"});
    let model = Script::new(vec![calls(&[
        ("developer__shell", slow),
        ("developer__shell", json!({"command": "touch later"})),
    ])]);
    let exchange = stage.exchange("coding/backend", &model, TurnLimits::default()).await;
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
    assert_eq!(end.ending, StopReason::Cancelled);
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

#[tokio::test]
async fn a_tool_can_read_the_talk_up_to_its_call() {
    let heard = |_: String, call: skein::tool::CallContext| -> futures::future::BoxFuture<'static, String> {
        let said: Vec<_> = call.view.messages().iter().map(|message| message.text()).collect();
        Box::pin(async move { said.join("|") })
    };
    let stage = Stage::with(BuiltinRegistry::builtin().with("todo", move |_| Fake::new(&["list_todos"], heard)));
    let model = Script::new(vec![calls(&[("todo__list_todos", json!({}))]), says("done")]);
    let (ending, history) = stage.turn("goose/assistant", &model).await;
    assert_eq!(ending, StopReason::EndTurn);
    assert_eq!(results(&history[2])[0].0, "go|", "the prompt, and the message that holds the call");
}
