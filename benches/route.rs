//! What a route costs: the first one with the router that is compiled in, to learn the manifests of a user, to load what
//! was learned, to rank one prompt; beside one request and its answer as lines of JSON over a pipe, which is the
//! least that asking anybody else costs.

#![allow(clippy::expect_used, reason = "a benchmark that cannot be set up ends")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::{Value, json};
use skein::manifest::{Layer, Root};
use skein::router::{Router, candidates, split};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};

const PROMPT: &str = "The login API answers 500 when the password is empty, please fix it";

fn routes(criterion: &mut Criterion) {
    let (manifests, _) = skein::manifest::load(&[(Layer::Builtin, Root::Builtin)]);
    let candidates = candidates(&manifests);
    let mut own = candidates.clone();
    own[0].examples.push("what only this user asks for".to_owned());
    let folder = tempfile::tempdir().expect("a folder");
    let router = Router::load_or_learn(folder.path(), &candidates);
    Router::load_or_learn(folder.path(), &own);
    let mut group = criterion.benchmark_group("route");
    group.sample_size(10);
    group.bench_function("learn", |bencher| bencher.iter(|| Router::learn(black_box(&own))));
    group.bench_function("load", |bencher| bencher.iter(|| Router::load_or_learn(folder.path(), black_box(&own))));
    group.bench_function("first route", |bencher| {
        bencher.iter(|| Router::load_or_learn(folder.path(), black_box(&candidates)).rank(PROMPT))
    });
    group.sample_size(100);
    group.bench_function("rank", |bencher| bencher.iter(|| router.rank(black_box(PROMPT))));
    group.bench_function("split", |bencher| {
        bencher.iter(|| split(black_box("fix the login API and add a dark theme"), &router));
    });
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    tokio.spawn(answering(theirs));
    let mut pipe = BufReader::new(ours);
    group.bench_function("one request over a pipe", |bencher| bencher.iter(|| tokio.block_on(asked(&mut pipe))));
    group.finish();
}

async fn asked(pipe: &mut BufReader<DuplexStream>) -> Value {
    let prompt = json!([{"type": "text", "text": PROMPT}]);
    let params = json!({"sessionId": "one", "prompt": prompt});
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": params});
    pipe.write_all(format!("{request}\n").as_bytes()).await.expect("written");
    let mut line = String::new();
    pipe.read_line(&mut line).await.expect("an answer");
    serde_json::from_str(&line).expect("JSON")
}

async fn answering(pipe: DuplexStream) {
    let mut pipe = BufReader::new(pipe);
    let mut line = String::new();
    while pipe.read_line(&mut line).await.is_ok_and(|length| length > 0) {
        let request: Value = serde_json::from_str(&line).expect("JSON");
        let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": {"stopReason": "end_turn"}});
        pipe.write_all(format!("{answer}\n").as_bytes()).await.expect("written");
        line.clear();
    }
}

criterion_group!(benches, routes);
criterion_main!(benches);
