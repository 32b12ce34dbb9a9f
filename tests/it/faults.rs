//! Services that break, each as a real process: the session lives on, the error says what to do, a call that may
//! have run is not repeated, and nothing is left behind. `Wired::stop` looks for that at the end of each test.

#![expect(clippy::expect_used, reason = "what a test cannot go on without ends it")]

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use skein::broker::{BindError, Binding};
use skein::services::BuiltinRegistry;
use skein::tool::{ServiceError, ServiceHealth};
use tokio_util::sync::CancellationToken;

use crate::support::http::{HttpServer, Reply, good_server, greeting};
use crate::support::{
    Fake, Sandbox, Wired, Wiring, agent, arguments, echo, mode, processes_of, service, stubborn, until, with,
};

/// A mode `work` with this service `echo`, and with a healthy one beside it.
fn beside_a_healthy_one(manifest: Value) -> Wired {
    let both = json!(["echo", "healthy"]);
    Wired::with_manifests(&[manifest, echo("healthy", &[]), agent(&[mode("work", both.clone(), both)])])
}

async fn pid(wired: &Wired, binding: &Binding) -> u32 {
    wired.said(binding, "echo__pid", json!({})).await.parse().expect("a process id")
}

/// Calls a tool that breaks the connection; what was said about it, after the next call has worked.
async fn broken_by(wired: &Wired, binding: &Binding, tool: &str, with: Value) -> String {
    let before = pid(wired, binding).await;
    let error = wired.refused(binding, tool, with).await;
    assert!(error.contains("may have taken effect and was not repeated"), "{error}");
    assert_eq!(wired.said(binding, "healthy__echo", json!({"text": "here"})).await, "here");
    assert_ne!(pid(wired, binding).await, before, "a new process");
    assert_eq!(wired.status("echo").expect("in the pool").restarts, 1);
    // The old one and all that it started are gone.
    wired.until_processes(2).await;
    error
}

#[tokio::test]
async fn death_in_a_call_restarts_the_service_without_a_retry() {
    let wired = beside_a_healthy_one(echo("echo", &[]));
    let binding = wired.bind("work").await.expect("bound");
    let file = wired.path("executions").display().to_string();
    let with = json!({"file": file, "text": "once\n"});
    let error = broken_by(&wired, &binding, "echo__append_then_crash", with).await;
    assert!(error.contains("exit status: 7"), "{error}");
    assert_eq!(wired.text("executions"), "once\n");
    assert_eq!(wired.status("echo").expect("in the pool").health, ServiceHealth::Degraded);
    wired.stop().await;
}

#[tokio::test]
async fn service_that_dies_while_idle_restarts_for_the_next_call() {
    let wired = beside_a_healthy_one(echo("echo", &[]));
    let binding = wired.bind("work").await.expect("bound");
    let before = pid(&wired, &binding).await;
    kill_process(Pid::from_raw(before.cast_signed()).expect("a process id"), Signal::KILL).expect("killed");
    until("it is known", || wired.status("echo").filter(|status| status.pid.is_none()).map(drop)).await;
    assert_ne!(pid(&wired, &binding).await, before);
    wired.stop().await;
}

/// Issue 16, point 20: an answer that cannot be read was waited for until the time limit.
#[tokio::test]
async fn an_answer_that_cannot_be_read_fails_its_call_at_once() {
    let wired = beside_a_healthy_one(echo("echo", &[]));
    let binding = wired.bind("work").await.expect("bound");
    let begun = Instant::now();
    for line in [
        r#"{"jsonrpc": "2.0", "id": $ID, "result": {"content": [{"type": "te"#,
        r#"{"jsonrpc": "2.0", "id": $ID}"#,
        r#"{"jsonrpc": "2.0", "id": $ID, "result": {"content": []}, "error": 1}"#,
        r#"{"jsonrpc": "2.0", "result": {"content": ["#,
    ] {
        let error = wired.refused(&binding, "echo__malformed", json!({"line": line})).await;
        assert!(error.contains("the answer of the server cannot be read"), "{line}: {error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // It lives on, and what it prints beside the protocol does no harm.
    assert_eq!(wired.said(&binding, "echo__echo", json!({"text": "here"})).await, "here");
    let banner = "Listening on stdio\n{\"jsonrpc\": \"2.0\", \"id\": $ID, \"result\": {\"content\": []}}";
    assert_eq!(wired.said(&binding, "echo__malformed", json!({"line": banner})).await, "");
    wired.stop().await;
}

/// The same in a stream over HTTP.
#[tokio::test]
async fn an_event_that_cannot_be_read_fails_its_call_at_once() {
    let server = HttpServer::start(|request| {
        let id = request.body["id"].clone();
        good_server(request, move || Reply::Events(vec![format!("{{\"jsonrpc\": \"2.0\", \"id\": {id}, \"resu")]))
    })
    .await;
    let wired = behind_http(&server.url);
    let binding = wired.bind("work").await.expect("bound");
    let error = wired.refused(&binding, "web__greet", json!({})).await;
    assert!(error.contains("the answer of the server cannot be read"), "{error}");
    wired.stop().await;
}

#[tokio::test]
async fn a_stream_of_garbage_ends_the_connection() {
    let wired = beside_a_healthy_one(echo("echo", &[]));
    let binding = wired.bind("work").await.expect("bound");
    let error = broken_by(&wired, &binding, "echo__garbage", json!({})).await;
    assert!(error.contains("does not speak MCP"), "{error}");
    wired.stop().await;
}

#[tokio::test]
async fn a_line_of_twenty_megabytes_ends_the_connection() {
    let wired = beside_a_healthy_one(echo("echo", &[]));
    let binding = wired.bind("work").await.expect("bound");
    let error = broken_by(&wired, &binding, "echo__big", json!({"bytes": 20_000_000})).await;
    assert!(error.contains("a line of more than 16 MiB"), "{error}");
    wired.stop().await;
}

#[tokio::test]
async fn a_service_that_asks_without_reading_answers_is_ended() {
    let wired = beside_a_healthy_one(echo("echo", &["--floods"]));
    let binding = wired.bind("work").await.expect("bound");
    let error = broken_by(&wired, &binding, "echo__flood", json!({})).await;
    assert!(error.contains("it sends requests and does not read the answers"), "{error}");
    wired.stop().await;
}

#[tokio::test]
async fn a_service_that_closes_its_output_is_ended() {
    let wired = beside_a_healthy_one(echo("echo", &[]));
    let binding = wired.bind("work").await.expect("bound");
    let error = broken_by(&wired, &binding, "echo__close_stdout", json!({})).await;
    assert!(error.contains("it closed its output"), "{error}");
    wired.stop().await;
}

/// The error of a mode whose one service cannot be started; nothing of it is left.
async fn not_started(manifest: Value) -> String {
    let wired = Wired::with_manifests(&[manifest, agent(&[mode("work", json!(["echo"]), json!(["echo"]))])]);
    let error = wired.bind("work").await.expect_err("not bound");
    assert!(matches!(&error, BindError::Service { error: ServiceError::NotStarted { .. }, .. }), "{error:?}");
    wired.until_processes(0).await;
    wired.stop().await;
    error.to_string()
}

#[tokio::test]
async fn silent_service_is_abandoned_after_its_start_timeout() {
    for flag in ["--silent", "--silent-list"] {
        let manifest = with(echo("echo", &[flag]), json!({"timeouts": {"start": "300ms"}}));
        let error = not_started(manifest).await;
        assert!(error.contains("`echo` could not be started: it was not ready after 300ms"), "{flag}: {error}");
    }
}

#[tokio::test]
async fn a_service_that_cannot_start_says_why() {
    let error = not_started(echo("echo", &["--garbage"])).await;
    assert!(error.contains("does not speak MCP"), "{error}");
    let error = not_started(echo("echo", &["--exit-at-start"])).await;
    assert!(error.contains("it ended before it had answered (exit status: 1)"), "{error}");
    let error = not_started(service("echo", json!({"stdio": {"command": "no-such-program-anywhere"}}))).await;
    assert!(error.contains("there is no program `no-such-program-anywhere` on the PATH"), "{error}");
}

#[tokio::test]
async fn session_continues_without_a_failed_optional_service() {
    let needs = json!([{"type": "tool", "name": "echo", "optional": true}, "healthy"]);
    let manifests = [
        echo("echo", &["--exit-at-start"]),
        echo("healthy", &[]),
        agent(&[mode("work", json!(["echo", "healthy"]), needs)]),
    ];
    let wired = Wired::with_manifests(&manifests);
    let binding = wired.bind("work").await.expect("bound");
    let absent: Vec<_> =
        binding.missing_services().iter().map(|absent| (absent.service.as_str(), absent.optional)).collect();
    assert_eq!(absent, [("echo", true)]);
    assert_eq!(wired.said(&binding, "healthy__echo", json!({"text": "here"})).await, "here");
    wired.stop().await;
}

#[tokio::test]
async fn a_service_that_will_not_stop_is_made_to() {
    let wired = beside_a_healthy_one(stubborn("echo", &["--hang-on-stop"]));
    let binding = wired.bind("work").await.expect("bound");
    wired.said(&binding, "echo__spawn_grandchild", json!({})).await;
    wired.until_processes(3).await;
    drop(binding);
    wired.stop().await;
}

#[tokio::test]
async fn grandchildren_go_with_a_service_that_is_stopped() {
    let wired = beside_a_healthy_one(echo("echo", &[]));
    let binding = wired.bind("work").await.expect("bound");
    wired.said(&binding, "echo__spawn_grandchild", json!({})).await;
    wired.said(&binding, "echo__spawn_grandchild", json!({"holds_output": true})).await;
    wired.until_processes(4).await;
    wired.stop().await;
}

#[tokio::test]
async fn crashed_service_takes_its_grandchildren_with_it() {
    for holds_output in [false, true] {
        let wired = beside_a_healthy_one(echo("echo", &[]));
        let binding = wired.bind("work").await.expect("bound");
        wired.said(&binding, "echo__spawn_grandchild", json!({"holds_output": holds_output})).await;
        let error = broken_by(&wired, &binding, "echo__crash", json!({})).await;
        assert!(error.contains("exit status: 7"), "{error}");
        wired.stop().await;
    }
}

#[tokio::test]
async fn grandchildren_go_with_a_service_that_is_idle() {
    let manifest = with(echo("echo", &[]), json!({"timeouts": {"idle": "50ms"}}));
    let wired = Wired::with_manifests(&[manifest, agent(&[mode("work", json!(["echo"]), json!(["echo"]))])]);
    let binding = wired.bind("work").await.expect("bound");
    wired.said(&binding, "echo__spawn_grandchild", json!({})).await;
    wired.until_processes(2).await;
    drop(binding);
    wired.until_processes(0).await;
    wired.stop().await;
}

#[tokio::test]
async fn a_list_without_end_is_cut_off() {
    let wired = beside_a_healthy_one(echo("echo", &["--endless-pages"]));
    let binding = wired.bind("work").await.expect("bound");
    let listed = binding.tools().keys().filter(|name| name.starts_with("echo__")).count();
    assert_eq!(listed, 50);
    wired.stop().await;
}

#[tokio::test]
async fn a_list_of_large_tools_is_cut_off() {
    let server = HttpServer::start(|request| {
        if request.body["method"] != "tools/list" {
            return good_server(request, || greeting(request));
        }
        let about = "x".repeat(500_000);
        let tool = |number: usize| {
            json!({"name": format!("tool_{number}"), "description": about, "inputSchema": {"type": "object"}})
        };
        let tools: Vec<_> = (0..20).map(tool).collect();
        Reply::Json(json!({"jsonrpc": "2.0", "id": request.body["id"], "result": {"tools": tools}}))
    })
    .await;
    let manifest = service("web", json!({"http": {"url": server.url}}));
    let wired = Wired::with_manifests(&[manifest, agent(&[mode("work", json!(["web"]), json!(["web"]))])]);
    let binding = wired.bind("work").await.expect("bound");
    // 8 MiB
    assert_eq!(binding.tools().len(), 16);
    wired.stop().await;
}

#[tokio::test]
async fn a_built_in_service_that_panics_is_answered_for() {
    let fragile = |_: &_| {
        Fake::new(&["explode", "answer"], |tool, _| {
            Box::pin(async move {
                assert!(tool != "explode", "out of order");
                "fine".to_owned()
            })
        })
    };
    let wired = Wiring::new()
        .registry(BuiltinRegistry::builtin().with("fragile", fragile))
        .builtin([service("fragile", json!({"builtin": "fragile"}))])
        .user([agent(&[mode("work", json!(["fragile"]), json!(["fragile"]))])])
        .start();
    let binding = wired.bind("work").await.expect("bound");
    let error = wired.refused(&binding, "fragile__explode", json!({})).await;
    assert!(error.contains("out of order") && error.contains("may have taken effect"), "{error}");
    assert_eq!(wired.said(&binding, "fragile__answer", json!({})).await, "fine");
    wired.stop().await;
}

#[tokio::test]
async fn failing_service_is_suspended_and_tried_again_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let broken = folder.path().join("broken");
    std::fs::write(&broken, "").expect("written");
    let flags = ["--exit-while", &broken.display().to_string()];
    let manifest = with(echo("echo", &flags), json!({"restart": {"max": 1, "within": "6s"}}));
    let wired = Wired::with_manifests(&[manifest, agent(&[mode("work", json!(["echo"]), json!(["echo"]))])]);
    for _ in 0..2 {
        let error = wired.bind("work").await.expect_err("not bound").to_string();
        assert!(error.contains("could not be started"), "{error}");
    }
    assert_eq!(wired.status("echo").expect("in the pool").health, ServiceHealth::Open);
    let error = wired.bind("work").await.expect_err("not bound").to_string();
    assert!(error.contains("failed too often and is left alone for") && error.contains("exit status: 1"), "{error}");
    let half_open = || wired.status("echo").filter(|status| status.health == ServiceHealth::HalfOpen).map(drop);
    until("it may be tried", half_open).await;
    wired.bind("work").await.expect_err("still broken");
    assert_eq!(wired.status("echo").expect("in the pool").health, ServiceHealth::Open, "one trial");
    std::fs::remove_file(&broken).expect("removed");
    until("it may be tried", half_open).await;
    let binding = wired.bind("work").await.expect("bound");
    assert_eq!(wired.said(&binding, "echo__echo", json!({"text": "well again"})).await, "well again");
    assert_eq!(wired.status("echo").expect("in the pool").health, ServiceHealth::Healthy);
    wired.stop().await;
}

#[tokio::test]
async fn cancelling_a_call_reaches_the_server() {
    let wired = beside_a_healthy_one(echo("echo", &[]));
    let binding = wired.bind("work").await.expect("bound");
    let (started, cancelled) = (wired.path("started"), wired.path("cancelled"));
    let with = arguments(json!({"ms": 3_600_000, "started": started, "cancelled": cancelled}));
    let cancel = CancellationToken::new();
    let call = binding.call("echo__sleep", with, wired.context().with_cancel(cancel.clone()));
    let cancelling = async {
        until("it sleeps", || started.exists().then_some(())).await;
        cancel.cancel();
    };
    let (answer, ()) = tokio::join!(call, cancelling);
    assert_eq!(answer, Err(ServiceError::Cancelled));
    until("the server has heard", || cancelled.exists().then_some(())).await;
    assert_eq!(wired.status("echo").expect("in the pool").restarts, 0);
    wired.stop().await;
}

#[tokio::test]
async fn silent_call_times_out_and_progress_extends_it() {
    let manifest = with(echo("echo", &[]), json!({"timeouts": {"call": "2s"}}));
    let wired = beside_a_healthy_one(manifest);
    let binding = wired.bind("work").await.expect("bound");
    let cancelled = wired.path("cancelled");
    let error = wired.refused(&binding, "echo__sleep", json!({"ms": 3_600_000, "cancelled": cancelled})).await;
    assert!(error.contains("`sleep` of the service `echo` gave no answer within 2 s"), "{error}");
    assert!(error.contains("may have taken effect"), "{error}");
    until("the server has heard", || cancelled.exists().then_some(())).await;
    let heard = Arc::new(AtomicUsize::new(0));
    let listener = Arc::clone(&heard);
    let context = wired.context().with_progress(move |_| {
        listener.fetch_add(1, Ordering::Relaxed);
    });
    let with = arguments(json!({"ms": 3_000, "progress_every": 50}));
    let outcome = binding.call("echo__sleep", with, context).await.expect("not cancelled");
    assert_eq!(outcome.all_text(), "awake");
    assert!(heard.load(Ordering::Relaxed) > 5);
    wired.stop().await;
}

#[tokio::test]
async fn a_call_to_a_service_that_reads_nothing_runs_out_of_time() {
    let manifest = with(echo("echo", &[]), json!({"timeouts": {"call": "2s"}}));
    let wired = beside_a_healthy_one(manifest);
    let binding = wired.bind("work").await.expect("bound");
    wired.said(&binding, "echo__go_deaf", json!({})).await;
    // More than a pipe holds, so that the call does not even leave us.
    let long = "x".repeat(1_000_000);
    let error = wired.refused(&binding, "echo__echo", json!({"text": long})).await;
    assert!(error.contains("gave no answer within 2 s"), "{error}");
    assert_eq!(wired.said(&binding, "healthy__echo", json!({"text": "here"})).await, "here");
    wired.stop().await;
}

#[tokio::test]
async fn unanswered_list_change_does_not_block_calls() {
    let manifest = with(echo("echo", &["--list-once"]), json!({"timeouts": {"start": "4s"}}));
    let wired = beside_a_healthy_one(manifest);
    let binding = wired.bind("work").await.expect("bound");
    wired.said(&binding, "echo__change_lists", json!({})).await;
    for _ in 0..3 {
        assert_eq!(wired.said(&binding, "echo__echo", json!({"text": "same"})).await, "same");
    }
    assert_eq!(wired.said(&binding, "echo__lists", json!({})).await, "2", "at the start, and once for the change");
    wired.stop().await;
}

/// A mode with a server behind HTTP.
fn behind_http(url: &str) -> Wired {
    behind_http_within(url, json!({}))
}

/// The same with these limits.
fn behind_http_within(url: &str, timeouts: Value) -> Wired {
    let transport = json!({"http": {"url": url, "headers": {"authorization": "Bearer ${env:API_TOKEN}"}}});
    let manifest = with(service("web", transport), json!({"timeouts": timeouts}));
    Wiring::new()
        .user([manifest, agent(&[mode("work", json!(["web"]), json!(["web"]))])])
        .variable("API_TOKEN", "s3cret")
        .start()
}

#[tokio::test]
async fn a_good_server_behind_http_works() {
    let server = HttpServer::start(|request| good_server(request, || greeting(request))).await;
    let wired = behind_http(&server.url);
    let binding = wired.bind("work").await.expect("bound");
    assert_eq!(wired.said(&binding, "web__greet", json!({})).await, "hello");
    let authorized = |head: &str| head.to_ascii_lowercase().contains("authorization: bearer s3cret");
    assert!(server.requests().iter().all(|request| authorized(&request.head)));
    wired.stop().await;
}

#[tokio::test]
async fn a_server_behind_http_that_refuses_to_begin_is_reported() {
    for status in [500, 404] {
        let server = HttpServer::start(move |_| Reply::Status(status)).await;
        let wired = behind_http(&server.url);
        let error = wired.bind("work").await.expect_err("not bound").to_string();
        assert!(error.contains("`web` could not be started") && error.contains(&status.to_string()), "{error}");
        assert!(!error.contains("rmcp") && !error.contains("s3cret"), "{error}");
        wired.stop().await;
    }
    let server = HttpServer::start(|_| Reply::Never).await;
    let wired = behind_http_within(&server.url, json!({"start": "500ms"}));
    let error = wired.bind("work").await.expect_err("not bound").to_string();
    assert!(error.contains("it was not ready after 500ms"), "{error}");
    wired.stop().await;
}

/// A server of MCP 2024-11-05 streams events on GET, the first of which names the address for messages.
#[tokio::test]
async fn a_server_of_the_old_transport_is_refused_with_the_reason() {
    for refusal in [404, 405] {
        let server = HttpServer::start(move |request| match request.head.starts_with("GET ") {
            true => Reply::Stream("event: endpoint\ndata: /messages?session=1\n\n".to_owned()),
            false => Reply::Status(refusal),
        })
        .await;
        let wired = behind_http(&server.url);
        let error = wired.bind("work").await.expect_err("not bound").to_string();
        assert!(error.contains("only the HTTP+SSE transport of MCP 2024-11-05"), "{error}");
        assert!(error.contains("streamable HTTP address"), "{error}");
        wired.stop().await;
    }
    // A stream alone does not make it an old server.
    let server = HttpServer::start(|request| match request.head.starts_with("GET ") {
        true => Reply::Stream("event: message\ndata: {}\n\n".to_owned()),
        false => Reply::Status(404),
    })
    .await;
    let wired = behind_http(&server.url);
    let error = wired.bind("work").await.expect_err("not bound").to_string();
    assert!(error.contains("404") && !error.contains("2024-11-05"), "{error}");
    wired.stop().await;
}

#[tokio::test]
async fn http_failure_in_a_call_reconnects_without_repeating_it() {
    for status in [500, 404] {
        let failing = Arc::new(AtomicBool::new(true));
        let fails = Arc::clone(&failing);
        let server = HttpServer::start(move |request| {
            let call = || if fails.load(Ordering::Relaxed) { Reply::Status(status) } else { greeting(request) };
            good_server(request, call)
        })
        .await;
        let wired = behind_http(&server.url);
        let binding = wired.bind("work").await.expect("bound");
        let error = wired.refused(&binding, "web__greet", json!({})).await;
        assert!(error.contains(&status.to_string()) && error.contains("was not repeated"), "{error}");
        assert_eq!(server.asked("tools/call"), 1);
        failing.store(false, Ordering::Relaxed);
        assert_eq!(wired.said(&binding, "web__greet", json!({})).await, "hello");
        assert_eq!((server.asked("tools/call"), server.asked("initialize")), (2, 2));
        wired.stop().await;
    }
}

#[tokio::test]
async fn unanswered_http_call_times_out() {
    let server = HttpServer::start(|request| good_server(request, || Reply::Never)).await;
    let wired = behind_http_within(&server.url, json!({"call": "500ms"}));
    let binding = wired.bind("work").await.expect("bound");
    let error = wired.refused(&binding, "web__greet", json!({})).await;
    assert!(error.contains("gave no answer within 500 ms"), "{error}");
    wired.stop().await;
}

#[tokio::test]
async fn a_redirect_to_another_origin_is_not_followed() {
    let thief = HttpServer::start(|request| good_server(request, || greeting(request))).await;
    let target = thief.url.clone();
    let server = HttpServer::start(move |_| Reply::Redirect(target.clone())).await;
    let wired = behind_http(&server.url);
    let error = wired.bind("work").await.expect_err("not bound").to_string();
    assert!(error.contains("307"), "{error}");
    assert!(thief.requests().is_empty(), "{:?}", thief.requests());
    wired.stop().await;
}

/// Runs the real program with a service, ends it with `signal`, and looks what is left.
async fn ended_by(signal: Signal) {
    let sandbox = Sandbox::new();
    let manifest = echo("echo", &[]);
    let agent = agent(&[mode("work", json!(["echo"]), json!(["echo"]))]);
    sandbox.write("project/wiring/echo.yaml", &manifest.to_string());
    sandbox.write("project/wiring/agent.yaml", &agent.to_string());
    let mark = sandbox.path("mark");
    let mut command = sandbox.command(&["--manifests", "wiring", "mcp", "-a", "test", "-m", "work"]);
    command.env("TMPDIR", &mark).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut skein = command.spawn().expect("the program starts");
    until("skein and its service run", || (processes_of(&mark).len() == 2).then_some(())).await;
    kill_process(Pid::from_child(&skein), signal).expect("signalled");
    until("nothing is left", || processes_of(&mark).is_empty().then_some(())).await;
    skein.wait().expect("it ended");
}

#[tokio::test]
async fn nothing_is_left_when_skein_is_terminated() {
    ended_by(Signal::TERM).await;
}

#[tokio::test]
async fn nothing_is_left_when_skein_is_killed() {
    ended_by(Signal::KILL).await;
}
