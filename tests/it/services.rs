//! The pool: what is started, shared and stopped, and what a child process gets to see of us.

#![expect(clippy::expect_used, reason = "what a test cannot go on without ends it")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::join_all;
use serde_json::{Map, Value, json};
use skein::ids::{RoleName, ServiceName, ToolName};
use skein::manifest::Transport;
use skein::services::{BuiltinContext, BuiltinRegistry, ServiceSpec};
use skein::tool::{ServiceHealth, ToolCall};

use crate::support::{Fake, Run, Sandbox, Wired, Wiring, agent, echo, mode, processes_of, service, until, with};

/// One service `echo`, and a mode that has all of it.
fn echo_alone(more: Value) -> Wired {
    let manifests = [with(echo("echo", &[]), more), agent(&[mode("work", json!(["echo"]), json!(["echo"]))])];
    Wired::with_manifests(&manifests)
}

#[tokio::test]
async fn twenty_sessions_share_one_process() {
    let wired = echo_alone(json!({}));
    assert!(wired.processes().is_empty(), "nothing starts before a binding needs it");
    let sessions: Vec<_> = (0..20).map(|number| format!("session-{number}")).collect();
    let bindings = join_all(sessions.iter().map(|session| wired.bind_session(session, "work"))).await;
    let bindings: Vec<_> = bindings.into_iter().map(|binding| binding.expect("bound")).collect();
    let pids = join_all(bindings.iter().map(|binding| wired.said(binding, "echo__pid", json!({})))).await;
    let pids: BTreeSet<u32> = pids.iter().map(|pid| pid.parse().expect("a process id")).collect();
    assert_eq!(pids.iter().copied().collect::<Vec<_>>(), wired.processes());
    assert_eq!(pids.len(), 1);
    assert_eq!(wired.status("echo").expect("in the pool").leases, 20);
    wired.stop().await;
}

#[tokio::test]
async fn session_scoped_service_has_a_process_per_session() {
    let wired = echo_alone(json!({"scope": "session"}));
    let session = wired.session("one");
    let one = wired.bind_context(session.clone(), "work").await.expect("bound");
    let again = wired.bind_context(session, "work").await.expect("bound");
    let two = wired.bind_session("two", "work").await.expect("bound");
    let mut pids = Vec::new();
    for binding in [&one, &again, &two] {
        pids.push(wired.said(binding, "echo__pid", json!({})).await);
    }
    assert_eq!(pids[0], pids[1]);
    assert_ne!(pids[0], pids[2]);
    assert_eq!(wired.processes().len(), 2);
    // The process of a session ends with it, and that of another one stays.
    drop((one, again));
    wired.until_processes(1).await;
    wired.stop().await;
}

/// The idle time is for sessions that may need the service again.
#[tokio::test]
async fn a_service_leaves_memory_with_its_session() {
    let wired = echo_alone(json!({"scope": "session", "timeouts": {"idle": "5m"}}));
    let (broker, session) = (wired.runtime.broker(), wired.session("one"));
    let entry = broker.plan().service("echo").expect("a service");
    let lease = broker.lease_service(entry, &session);
    lease.start().await.expect("started");
    let service = Arc::downgrade(&lease.service());
    drop(lease);
    assert!(service.strong_count() > 0, "it is kept for the session");
    drop(session);
    until("the service is gone", || (service.strong_count() == 0).then_some(())).await;
    wired.stop().await;
}

#[tokio::test]
async fn service_requiring_a_session_service_is_not_shared() {
    let manifests = [
        with(echo("notes", &[]), json!({"scope": "session"})),
        with(service("echo", json!({"builtin": "echo"})), json!({"requires": ["notes"]})),
    ];
    let pid = |surroundings: &BuiltinContext| {
        let notes = Arc::clone(&surroundings.roles[&RoleName::new("notes")]);
        Fake::new(&["pid"], move |_, context| {
            let notes = Arc::clone(&notes);
            Box::pin(async move {
                let call = ToolCall { tool: ToolName::new("pid"), arguments: Map::new(), context };
                notes.call(call).await.expect("notes answers").all_text()
            })
        })
    };
    let wired = Wiring::new()
        .registry(BuiltinRegistry::builtin().with("echo", pid))
        .builtin(manifests)
        .user([agent(&[mode("work", json!(["echo"]), json!(["echo"]))])])
        .start();
    let one = wired.bind_session("one", "work").await.expect("bound");
    let two = wired.bind_session("two", "work").await.expect("bound");
    assert_ne!(wired.said(&one, "echo__pid", json!({})).await, wired.said(&two, "echo__pid", json!({})).await);
    wired.stop().await;
}

#[tokio::test]
async fn another_environment_is_another_connection() {
    let wired = echo_alone(json!({}));
    let manifest = wired.runtime.broker().plan().service("echo").expect("in the plan").manifest.clone();
    let mut other = manifest.clone();
    let Transport::Stdio(transport) = &mut other.transport else { panic!("a child process") };
    transport.env.insert("COLOUR".to_owned(), "blue".to_owned());
    let (session, none) = (wired.session("session"), |_: &ServiceName| None);
    let specs = [&manifest, &manifest, &other].map(|manifest| ServiceSpec::without_sandbox(manifest.clone()));
    let leases = specs.map(|spec| wired.runtime.pool().lease(&spec, &session, &none));
    for lease in &leases {
        lease.start().await.expect("started");
    }
    assert_eq!(wired.processes().len(), 2);
    drop(leases);
    wired.stop().await;
}

#[tokio::test]
async fn idle_service_stops_and_restarts_on_demand() {
    let wired = echo_alone(json!({"timeouts": {"idle": "50ms"}}));
    let binding = wired.bind("work").await.expect("bound");
    let first = wired.said(&binding, "echo__pid", json!({})).await;
    drop(binding);
    wired.until_processes(0).await;
    until("it is out of the pool", || wired.status("echo").is_none().then_some(())).await;
    let binding = wired.bind("work").await.expect("bound");
    assert_ne!(wired.said(&binding, "echo__pid", json!({})).await, first);
    wired.stop().await;
}

/// Each session drops leases on shared services, and a task of each would stay for the idle time.
#[tokio::test]
async fn one_task_waits_for_the_idle_time_of_a_service() {
    let wired = echo_alone(json!({"timeouts": {"idle": "1h"}}));
    let mut tasks = Vec::new();
    for session in ["one", "two", "three", "four", "five"] {
        drop(wired.bind_session(session, "work").await.expect("bound"));
        tasks.push(skein::task::alive_tasks());
    }
    assert!(tasks[4] < tasks[0] + 4, "{tasks:?}");
    wired.stop().await;
}

#[tokio::test]
async fn a_lease_taken_before_the_idle_time_ends_keeps_the_service() {
    let idle = json!({"timeouts": {"idle": "200ms"}});
    let manifests = [
        with(echo("kept", &[]), idle.clone()),
        with(echo("left", &[]), idle),
        agent(&[mode("kept", json!(["kept"]), json!(["kept"])), mode("left", json!(["left"]), json!(["left"]))]),
    ];
    let wired = Wired::with_manifests(&manifests);
    let kept = wired.bind("kept").await.expect("bound");
    let left = wired.bind("left").await.expect("bound");
    let pid = wired.said(&kept, "kept__pid", json!({})).await;
    drop(kept);
    let kept = wired.bind("kept").await.expect("bound");
    drop(left);
    // Its idle time began after that of the other.
    until("the other has gone", || wired.status("left").is_none().then_some(())).await;
    assert_eq!(wired.said(&kept, "kept__pid", json!({})).await, pid);
    wired.stop().await;
}

#[tokio::test]
async fn a_mode_that_asks_for_nothing_starts_nothing() {
    let wired = Wired::with_manifests(&[echo("echo", &[]), agent(&[mode("idle", json!([]), json!([]))])]);
    let binding = wired.bind("idle").await.expect("bound");
    assert!(binding.tools().is_empty());
    assert_eq!(wired.runtime.pool().status(), []);
    assert!(wired.processes().is_empty());
    wired.stop().await;
}

/// When a service was started and when it was ready, as it wrote it down itself.
fn times(wired: &Wired, file: &str) -> (u128, u128) {
    let text = wired.text(file);
    let at = |event: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(event)).unwrap_or_else(|| panic!("{event}: {text}"));
        line.trim().parse().expect("a time")
    };
    (at("start"), at("ready"))
}

#[tokio::test]
async fn levels_start_in_order_and_each_level_in_parallel() {
    let logs = tempfile::tempdir().expect("a folder");
    let slow = |name: &str| {
        let log = logs.path().join(name).display().to_string();
        echo(name, &["--slow-start", "3000", "--log-start", &log])
    };
    let manifests = [
        slow("left"),
        slow("right"),
        with(slow("above"), json!({"requires": ["left", "right"]})),
        agent(&[mode("work", json!(["above"]), json!(["above"]))]),
    ];
    let wired = Wiring::new().user(manifests).attachable().start();
    let binding = wired.bind("work").await.expect("bound");
    let time = |name: &str| times(&wired, &logs.path().join(name).display().to_string());
    let (left, right, above) = (time("left"), time("right"), time("above"));
    assert!(left.0 < right.1 && right.0 < left.1, "left {left:?} and right {right:?} overlap");
    assert!(above.0 > left.1.max(right.1), "above {above:?} came after left {left:?} and right {right:?}");
    assert!(binding.tools().keys().all(|name| name.starts_with("above__")), "{:?}", binding.tools().keys());
    wired.stop().await;
}

#[tokio::test]
async fn required_service_is_reached_by_role_and_hidden_from_the_mode() {
    let calendar = |_: &BuiltinContext| Fake::new(&["events"], |_, _| Box::pin(async { "dentist at nine".to_owned() }));
    let scheduling = |surroundings: &BuiltinContext| {
        let calendar = Arc::clone(&surroundings.roles[&RoleName::new("calendar")]);
        Fake::new(&["plan_day"], move |_, context| {
            let calendar = Arc::clone(&calendar);
            Box::pin(async move {
                let call = ToolCall { tool: ToolName::new("events"), arguments: Map::new(), context };
                let events = calendar.call(call).await.expect("the calendar answers").all_text();
                format!("{} says {events}", calendar.name())
            })
        })
    };
    let wired = Wiring::new()
        .registry(BuiltinRegistry::builtin().with("scheduling", scheduling).with("agenda", calendar))
        .builtin([
            service("agenda", json!({"builtin": "agenda"})),
            with(service("scheduling", json!({"builtin": "scheduling"})), json!({"requires": {"calendar": "agenda"}})),
        ])
        .user([agent(&[mode("work", json!(["scheduling"]), json!(["scheduling"]))])])
        .start();
    let binding = wired.bind("work").await.expect("bound");
    assert_eq!(binding.tools().keys().collect::<Vec<_>>(), ["scheduling__plan_day"]);
    assert_eq!(wired.said(&binding, "scheduling__plan_day", json!({})).await, "agenda says dentist at nine");
    assert!(wired.refused(&binding, "agenda__events", json!({})).await.contains("there is no tool"));
    assert!(binding.exclusions().is_empty() && binding.missing_services().is_empty(), "the mode does not hear of it");
    assert_eq!(wired.status("agenda").expect("it runs").leases, 2, "of the binding and of the service");
    wired.stop().await;
}

#[tokio::test]
async fn status_tells_how_a_service_is() {
    let wired = echo_alone(json!({"timeouts": {"idle": "1h"}}));
    let binding = wired.bind("work").await.expect("bound");
    let status = wired.status("echo").expect("in the pool");
    assert_eq!((status.health, status.leases, status.restarts), (ServiceHealth::Healthy, 1, 0));
    assert_eq!(status.last_error, None);
    assert_eq!(status.tools, Some(binding.tools().len()));
    assert_eq!(status.pid.map(|pid| vec![pid]), Some(wired.processes()));
    assert!(status.memory_bytes.is_some_and(|bytes| bytes > 4096), "{status:?}");
    assert!(status.started_at.is_some_and(|at| at > 1_700_000_000), "{status:?}");
    assert_eq!(binding.instructions()[0].1, "Call echo to hear yourself.");
    wired.refused(&binding, "echo__crash", json!({})).await;
    let status = wired.status("echo").expect("in the pool");
    assert_eq!((status.health, status.pid), (ServiceHealth::Degraded, None));
    assert!(status.last_error.as_ref().is_some_and(|error| error.contains("exit status: 7")), "{status:?}");
    drop(binding);
    assert_eq!(wired.status("echo").expect("in the pool").leases, 0);
    wired.stop().await;
}

#[tokio::test]
async fn call_to_a_healthy_service_does_not_wait_for_others() {
    let manifests = [
        echo("echo", &[]),
        with(echo("silent", &["--silent"]), json!({"timeouts": {"start": "1h"}})),
        agent(&[mode("work", json!(["echo"]), json!(["echo"])), mode("stuck", json!([]), json!(["echo", "silent"]))]),
    ];
    let wired = Wired::with_manifests(&manifests);
    let work = wired.bind("work").await.expect("bound");
    {
        let stuck = wired.bind_session("other", "stuck");
        tokio::pin!(stuck);
        tokio::select! {
            _ = &mut stuck => panic!("it never starts"),
            () = until("it starts", || wired.status("silent").filter(|s| s.health == ServiceHealth::Starting).map(drop)) => {}
        }
        assert_eq!(wired.said(&work, "echo__echo", json!({"text": "still here"})).await, "still here");
        assert_eq!(wired.status("silent").expect("in the pool").health, ServiceHealth::Starting);
    }
    // Whoever wanted it has gone in the middle of its start.
    assert_eq!(wired.status("silent").expect("in the pool").health, ServiceHealth::Stopped);
    wired.until_processes(1).await;
    wired.stop().await;
}

#[tokio::test]
async fn a_pool_that_is_dropped_without_a_stop_leaves_no_process() {
    let above = |_: &BuiltinContext| Fake::new(&["idle"], |_, _| Box::pin(async { "idle".to_owned() }));
    let wired = Wiring::new()
        .registry(BuiltinRegistry::builtin().with("above", above))
        .builtin([
            echo("below", &[]),
            with(service("above", json!({"builtin": "above"})), json!({"requires": ["below"]})),
        ])
        .user([echo("echo", &[]), agent(&[mode("work", json!(["above", "echo"]), json!(["above", "echo"]))])])
        .start();
    let binding = wired.bind("work").await.expect("bound");
    assert_eq!(wired.processes().len(), 2);
    drop(binding);
    let folder = wired.drop_runtime();
    until("nothing is left", || processes_of(folder.path()).is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_binding_that_outlives_the_pool_starts_nothing() {
    let wired = echo_alone(json!({}));
    let binding = wired.bind("work").await.expect("bound");
    wired.runtime.pool().stop().await;
    assert!(wired.processes().is_empty());
    let refusal = wired.refused(&binding, "echo__pid", json!({})).await;
    assert!(refusal.contains("stopped"), "{refusal}");
    assert!(wired.processes().is_empty());
    wired.stop().await;
}

#[tokio::test]
async fn child_gets_a_minimal_environment_and_its_manifests_variables() {
    let mut manifest = echo("echo", &[]);
    manifest["transport"]["stdio"]["env"] = json!({"PLAIN": "text", "KEY": "Bearer ${env:API_TOKEN}"});
    let wired = Wiring::new()
        .user([manifest, agent(&[mode("work", json!(["echo"]), json!(["echo"]))])])
        .variable("API_TOKEN", "s3cret")
        .variable("OTHER_SECRET", "hidden")
        .variable("LANG", "C.UTF-8")
        .start();
    let binding = wired.bind("work").await.expect("bound");
    let seen: BTreeMap<String, String> =
        serde_json::from_str(&wired.said(&binding, "echo__env", json!({})).await).expect("an object");
    assert_eq!(
        seen.keys().collect::<Vec<_>>(),
        ["HOME", "KEY", "LANG", "PATH", "PLAIN", "SKEIN_PROCESS_SCOPE", "TMPDIR"]
    );
    assert_eq!((seen["KEY"].as_str(), seen["PLAIN"].as_str()), ("Bearer s3cret", "text"));
    wired.stop().await;
}

#[tokio::test]
async fn a_variable_that_is_not_set_is_named() {
    let mut manifest = echo("echo", &[]);
    manifest["transport"]["stdio"]["env"] = json!({"KEY": "${env:API_TOKEN}"});
    let wired = Wired::with_manifests(&[manifest, agent(&[mode("work", json!(["echo"]), json!(["echo"]))])]);
    let error = wired.bind("work").await.expect_err("not bound").to_string();
    assert!(error.contains("the environment variable API_TOKEN is not set"), "{error}");
    assert!(wired.processes().is_empty());
    wired.stop().await;
}

#[test]
fn a_secret_shows_neither_in_errors_nor_in_the_log() {
    const SECRET: &str = "canary-4711";
    let sandbox = Sandbox::new().with("API_TOKEN", SECRET).with("SKEIN_LOG", "debug");
    let mut good = echo("good", &[]);
    good["transport"]["stdio"]["env"] = json!({"KEY": "${env:API_TOKEN}"});
    // It repeats the flag it does not know.
    let bad = echo("bad", &["--no-such-flag-${env:API_TOKEN}"]);
    let lost = service("lost", json!({"stdio": {"command": "/no/such/program-${env:API_TOKEN}"}}));
    // Nobody listens on the discard port.
    let headers = json!({"authorization": "Bearer ${env:API_TOKEN}"});
    let away = service("away", json!({"http": {"url": "http://127.0.0.1:9/mcp", "headers": headers}}));
    let names = ["good", "bad", "lost", "away"];
    for (name, manifest) in names.iter().zip([good, bad, lost, away]) {
        sandbox.write(&format!("project/wiring/{name}.yaml"), &manifest.to_string());
    }
    let modes = names.map(|name| mode(name, json!([name]), json!([name])));
    sandbox.write("project/wiring/agent.yaml", &agent(&modes).to_string());
    let runs = names.map(|name| sandbox.skein(&["--manifests", "wiring", "tools", "-a", "test", "-m", name]));
    assert_eq!(runs[0].code, 0, "{}", runs[0].stderr);
    let mut said: String = runs.iter().map(Run::whole).collect();
    said.extend(sandbox.log().iter().map(Value::to_string));
    for expected in ["good__echo", "unknown flag --no-such-flag-${env:API_TOKEN}", "there is no program", "refused"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert!(!said.contains(SECRET), "{}", said.lines().filter(|line| line.contains(SECRET)).collect::<String>());
}

#[tokio::test]
async fn a_secret_in_an_address_does_not_show_in_errors() {
    let manifest = service("away", json!({"http": {"url": "http://127.0.0.1:9/mcp?key=${env:API_TOKEN}"}}));
    let wired = Wiring::new()
        .user([manifest, agent(&[mode("work", json!(["away"]), json!(["away"]))])])
        .variable("API_TOKEN", "canary-4711")
        .start();
    let error = wired.bind("work").await.expect_err("not bound");
    let said = format!("{error} {error:?} {:?}", wired.runtime);
    assert!(said.contains("key=${env:API_TOKEN}"), "{said}");
    assert!(!said.contains("canary-4711"), "{said}");
    wired.stop().await;
}
