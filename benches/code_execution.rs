//! Ten calls by a model, one by one, all at once, and from code: how often it is asked and how much it reads. And what
//! the first code of a process costs.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "a benchmark that cannot be set up ends, and prints")]

use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use serde_json::{Value, json};
use skein::agents::{Event, Exchange, History, Notifier, StatusUpdate, StopReason, TurnLimits};
use skein::broker::BindRequest;
use skein::conversation::{Content, ToolUse, Usage};
use skein::ids::ModelRef;
use skein::llm::{LlmError, ModelRequest, ModelStop, Provider, StreamEvent};
use skein::manifest::{ApprovalLevel, Layer, Root};
use skein::runtime::Runtime;
use skein::services::{BuiltinRegistry, PoolOptions};
use skein::tool::SessionContext;
use skein::tool::ask::NoAsker;
use tokio_util::sync::CancellationToken;

const FILES: usize = 10;
const WORDS: usize = 400;

/// Two modes that differ in nothing else, with the tools of `goose/assistant`.
const AGENT: &str = "version: 1
kind: agent
name: bench
description: Ten calls.
metadata: {dependencies: [developer, memory, todo]}
runtime: {acp: {command: none}}
modes:
  - {slug: direct, description: Tools., tool_groups: [developer, memory, todo], dependencies: [developer, memory, todo]}
  - {slug: code, description: Code., tool_groups: [developer, memory, todo], dependencies: [developer, memory, todo], code_execution: on}
";

const CODE: &str = "const names = Array.from({length: 10}, (_, at) => `${at}.txt`);
const texts = await Promise.all(names.map(path => developer.read_file({path})));
return texts.map(text => (text.match(/word/g) ?? []).length)";

/// A model that takes the turns it was given, and weighs every request.
struct Script {
    turns: Mutex<std::vec::IntoIter<Vec<StreamEvent>>>,
    bytes: Mutex<Vec<usize>>,
}

impl Provider for Script {
    fn name(&self) -> &ModelRef {
        static NAME: LazyLock<ModelRef> = LazyLock::new(|| ModelRef::from("script"));
        &NAME
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'_, Result<StreamEvent, LlmError>> {
        let tool = |tool: &skein::llm::OfferedTool| json!({"name": tool.name, "description": tool.description, "input_schema": *tool.schema});
        let tools: Vec<_> = request.tools.iter().map(tool).collect();
        let whole = json!({"system": &*request.system, "tools": tools, "messages": request.messages});
        self.bytes.lock().expect("the sizes").push(whole.to_string().len());
        let turn = self.turns.lock().expect("the turns").next().expect("a turn is left");
        stream::iter(turn.into_iter().map(Ok)).boxed()
    }
}

struct Ear;

impl Notifier for Ear {
    fn log(&self, _: Event) {}

    fn status(&self, _: StatusUpdate) {}
}

fn calls(calls: &[(&str, Value)]) -> Vec<StreamEvent> {
    let wish = |(name, arguments): &(&str, Value)| {
        StreamEvent::ToolUse(ToolUse::new(String::new(), (*name).to_owned(), arguments.clone()))
    };
    let done = StreamEvent::Done { stop: ModelStop::Finished, usage: Usage::default() };
    calls.iter().map(wish).chain([done]).collect()
}

fn says() -> Vec<StreamEvent> {
    let mut said = vec![StreamEvent::Text("Each of the ten files has 400 words.".to_owned())];
    said.extend(calls(&[]));
    said
}

struct Bench {
    runtime: Runtime,
    session: Arc<SessionContext>,
}

impl Bench {
    fn new(folder: &std::path::Path) -> Self {
        for at in 0..FILES {
            std::fs::write(folder.join(format!("{at}.txt")), "word ".repeat(WORDS)).expect("a file");
        }
        let files = [(PathBuf::from("agents/bench.yaml"), AGENT.as_bytes().to_vec())].into();
        let own = Root::Snapshot { files, shown: String::new() };
        let (manifests, found) = skein::manifest::load(&[(Layer::Builtin, Root::Builtin), (Layer::User, own)]);
        let plan = skein::graph::resolve(manifests, found).plan.expect("the manifests are right");
        let options = PoolOptions { data: folder.join("data"), ..PoolOptions::default() };
        let runtime = Runtime::start(Arc::new(plan), BuiltinRegistry::builtin(), options, None);
        let session = SessionContext::new("bench", folder.to_owned(), Vec::new(), folder.join("scratch"));
        Self { runtime, session }
    }

    /// One turn: how long it took, and how many bytes each request had.
    async fn turn(&self, mode: &str, turns: Vec<Vec<StreamEvent>>) -> (Duration, Vec<usize>) {
        let terms = BindRequest {
            session: Arc::clone(&self.session),
            approval: Some(ApprovalLevel::Auto),
            asker: Arc::new(NoAsker),
            client_services: Vec::new(),
        };
        let mode = format!("bench/{mode}").parse().expect("a mode");
        let binding = Arc::new(self.runtime.broker().bind(&mode, terms).await.expect("the mode can be entered"));
        let script = Arc::new(Script { turns: Mutex::new(turns.into_iter()), bytes: Mutex::default() });
        let model: Arc<dyn Provider> = Arc::clone(&script) as _;
        let exchange = Exchange::new(
            model,
            binding,
            Arc::clone(&self.session),
            Arc::new(Ear),
            TurnLimits::default(),
            "You count words.",
        );
        let mut history = History::default();
        let prompt = vec![Content::text("How many words do the ten files have?")];
        let begun = Instant::now();
        let end = exchange.turn(&mut history, prompt, &CancellationToken::new()).await;
        let took = begun.elapsed();
        assert_eq!(end.ending, StopReason::EndTurn);
        let whole = json!(history.messages()).to_string();
        assert!(!whole.contains("\"is_error\":true"), "{whole}");
        let bytes = script.bytes.lock().expect("the sizes").clone();
        (took, bytes)
    }
}

/// The most memory that this process has had so far, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or_default()
}

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    tokio.block_on(async {
        let bench = Bench::new(folder.path());
        let read = |at: usize| ("developer__read_file", json!({"path": format!("{at}.txt")}));
        let execute = || calls(&[("code_execution__execute", json!({"code": CODE}))]);
        let details = calls(&[("code_execution__get_function_details", json!({"names": ["developer.read_file"]}))]);
        let nothing = calls(&[("code_execution__execute", json!({"code": "return 1"}))]);

        let before = peak();
        let (first, _) = bench.turn("code", vec![nothing.clone(), says()]).await;
        let after = peak();
        let (ten, _) = bench.turn("code", vec![execute(), says()]).await;
        let (again, _) = bench.turn("code", vec![nothing, says()]).await;

        let one_by_one: Vec<_> = (0..FILES).map(|at| calls(&[read(at)])).chain([says()]).collect();
        let at_once = vec![calls(&(0..FILES).map(read).collect::<Vec<_>>()), says()];
        println!("{FILES} files of {WORDS} words\n");
        println!("| | requests | bytes in all requests | about tokens |\n|---|---|---|---|");
        for (name, mode, turns) in [
            ("tools, one call in each answer", "direct", one_by_one),
            ("tools, all calls in one answer", "direct", at_once),
            ("code, after asking for the details of one function", "code", vec![details, execute(), says()]),
            ("code", "code", vec![execute(), says()]),
        ] {
            let (_, bytes) = bench.turn(mode, turns).await;
            let sum: usize = bytes.iter().sum();
            println!("| {name} | {} | {sum} | {} |", bytes.len(), sum / 4);
        }
        println!("\n| | time | peak memory of the process |\n|---|---|---|");
        let ms = |time: Duration| time.as_secs_f64() * 1_000.0;
        let mib = |kib: u64| kib as f64 / 1_024.0;
        println!(
            "| the first code of a process, `return 1` | {:.1} ms | {:.1} MiB, of which {:.1} for it |",
            ms(first),
            mib(after),
            mib(after - before)
        );
        println!("| code with {FILES} calls | {:.1} ms | {:.1} MiB |", ms(ten), mib(peak()));
        println!("| `return 1` once more | {:.1} ms | |", ms(again));
        println!("| goose, the first code of a process; not measured here | 2,700 ms | 160 MiB |");
        bench.runtime.stop().await;
    });
}
