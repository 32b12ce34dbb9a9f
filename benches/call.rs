//! What a call of a built-in tool costs through a binding, beside a plain function call and beside the same
//! server behind rmcp over a duplex pipe, in one run.

#![allow(clippy::expect_used, clippy::disallowed_methods, reason = "a benchmark that cannot be set up ends")]

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::CallToolRequestParams;
use rmcp::{ServerHandler, ServiceExt as _, tool, tool_handler, tool_router};
use serde_json::{Map, Value, json};
use skein::broker::{BindRequest, Binding};
use skein::manifest::{ApprovalLevel, Layer, Root};
use skein::runtime::Runtime;
use skein::services::{BuiltinRegistry, PoolOptions};
use skein::tool::ask::NoAsker;
use skein::tool::{CallContext, SessionContext};

#[derive(Clone)]
struct Echo {
    tool_router: ToolRouter<Self>,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct EchoArgs {
    text: String,
}

#[tool_router]
impl Echo {
    fn new() -> Self {
        Self { tool_router: Self::tool_router() }
    }

    #[tool(description = "Gives the text back", annotations(read_only_hint = true))]
    async fn echo(&self, Parameters(args): Parameters<EchoArgs>) -> String {
        args.text
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Echo {}

const SERVICE: &str = "version: 1
kind: service
name: echo
description: Gives text back.
transport: {builtin: echo}
groups: {read: [echo]}
";
const AGENT: &str = "version: 1
kind: agent
name: bench
description: One mode with one tool.
metadata: {dependencies: [echo]}
runtime: {acp: {command: none}}
modes: [{slug: only, description: One tool., tool_groups: [read], dependencies: [echo]}]
";

async fn bind() -> (Runtime, Arc<SessionContext>, Binding) {
    let files = [("services/echo.yaml", SERVICE), ("agents/bench.yaml", AGENT)];
    let files = files.into_iter().map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec())).collect();
    let (manifests, found) = skein::manifest::load(&[(Layer::Builtin, Root::Snapshot { files, shown: String::new() })]);
    let plan = skein::graph::resolve(manifests, found).plan.expect("the manifests are right");
    let registry = BuiltinRegistry::empty().with("echo", |_| Echo::new());
    let runtime = Runtime::start(Arc::new(plan), registry, PoolOptions::default(), None);
    let session = SessionContext::new("bench", "/".into(), Vec::new(), "/".into());
    let terms = BindRequest {
        session: Arc::clone(&session),
        approval: Some(ApprovalLevel::Auto),
        asker: Arc::new(NoAsker),
        client_services: Vec::new(),
    };
    let binding = runtime.broker().bind(&"bench/only".parse().expect("a mode"), terms).await.expect("bound");
    (runtime, session, binding)
}

fn arguments() -> Map<String, Value> {
    json!({"text": "sixteen bytes ok"}).as_object().cloned().expect("an object")
}

fn calls(criterion: &mut Criterion) {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let mut group = criterion.benchmark_group("call");

    group.bench_function("function", |bencher| {
        let echo = |mut arguments: Map<String, Value>| arguments.remove("text");
        bencher.iter(|| black_box(echo(black_box(arguments()))));
    });

    let (runtime, session, binding) = tokio.block_on(bind());
    group.bench_function("binding", |bencher| {
        bencher.to_async(&tokio).iter(|| async {
            let context = CallContext::new(Arc::clone(&session));
            black_box(binding.call("echo__echo", arguments(), context).await.expect("an answer"))
        });
    });
    drop(binding);
    tokio.block_on(runtime.stop());

    let client = tokio.block_on(async {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let server = tokio::task::spawn(async move {
            let running = Echo::new().serve(theirs).await.expect("serves");
            running.waiting().await.expect("ends");
        });
        drop(server);
        ().serve(ours).await.expect("connects")
    });
    group.bench_function("rmcp over duplex", |bencher| {
        bencher.to_async(&tokio).iter(|| async {
            let params = CallToolRequestParams::new("echo").with_arguments(arguments());
            black_box(client.call_tool(params).await.expect("an answer"))
        });
    });
    group.finish();
}

criterion_group!(benches, calls);
criterion_main!(benches);
