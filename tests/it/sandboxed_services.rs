//! Services with a `sandbox`: their processes run inside from the first instruction, and end with the service.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use serde_json::{Value, json};
use skein::broker::BindRequest;
use skein::manifest::ApprovalLevel;
use skein::tool::ask::{Asker, PermissionRequest, PermissionResponse};
use skein::tool::{AuditRecord, AuditSink, Notice, NoticeSink, SessionContext, SessionContextPorts};

use crate::support::acp::Acp;
use crate::support::{Sandbox, Wired, Wiring, agent, echo, mode, servers, service, until, with};

/// One service `echo` with this sandbox, and a mode `work` that has all its tools.
fn manifests(sandbox: Value) -> [Value; 2] {
    [
        with(echo("echo", &["--visits"]), json!({"sandbox": sandbox})),
        agent(&[mode("work", json!(["echo"]), json!(["echo"]))]),
    ]
}

fn wired(sandbox: Value) -> Wired {
    Wiring::new().user(manifests(sandbox)).sandboxed("").start()
}

/// Answers every request with `hello`.
fn web_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            drop(stream.read(&mut [0; 4096]));
            drop(stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"));
        }
    });
    port
}

/// Allows every call, gives one answer about hosts, and records the questions about hosts.
struct Answering {
    answer: PermissionResponse,
    asked: Mutex<Vec<Value>>,
}

impl Answering {
    fn new(answer: PermissionResponse) -> Arc<Self> {
        Arc::new(Self { answer, asked: Mutex::default() })
    }

    fn asked(&self) -> Vec<Value> {
        self.asked.lock().unwrap().clone()
    }
}

impl Asker for Answering {
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        if question.tool != "sandbox:network" {
            return Box::pin(async { PermissionResponse::Allow });
        }
        self.asked.lock().unwrap().push(json!(question.arguments));
        Box::pin(async { self.answer })
    }
}

#[derive(Default)]
struct Notices(Mutex<Vec<String>>);

impl NoticeSink for Notices {
    fn send(&self, notice: Notice) {
        self.0.lock().unwrap().push(notice.text);
    }
}

impl Notices {
    fn texts(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

fn request(wired: &Wired, asker: Arc<dyn Asker>, notices: Arc<Notices>) -> BindRequest {
    let ports = SessionContextPorts { notices, ..SessionContextPorts::default() };
    let session =
        SessionContext::with_ports("session", wired.path("project"), Vec::new(), wired.path("scratch"), ports);
    BindRequest { session, approval: Some(ApprovalLevel::Ask), asker, client_services: Vec::new() }
}

#[tokio::test]
async fn a_service_writes_the_folders_of_its_session() {
    let wired = wired(json!({"files": "workspace"}));
    let binding = wired.bind("work").await.expect("bound");
    for (path, shown) in [("project/a", "the root"), ("scratch/b", "the scratch folder")] {
        let arguments = json!({"path": wired.path(path), "content": "x"});
        assert_eq!(wired.said(&binding, "echo__write", arguments).await, "written", "{shown}");
        assert_eq!(wired.text(path), "x", "{shown}");
    }
    drop(binding);
    wired.stop().await;
}

#[tokio::test]
async fn the_first_instruction_of_a_service_is_inside() {
    let script = r#"cat "$1/home/.ssh/id" > seen 2>&1; echo x > "$1/outside"; exec "$0""#;
    for (sandbox, inside) in [(Some(json!({"files": "workspace"})), true), (None, false)] {
        let args = json!(["-c", script, servers::mcp_echo(), "${env:TMPDIR}"]);
        let stdio = json!({"command": "sh", "args": args, "cwd": "${env:TMPDIR}/project"});
        let mut manifest = service("echo", json!({"stdio": stdio}));
        if let Some(sandbox) = sandbox {
            manifest["sandbox"] = sandbox;
        }
        let work = agent(&[mode("work", json!(["echo"]), json!(["echo"]))]);
        let wired = Wiring::new().user([manifest, work]).sandboxed("").start();
        fs::create_dir_all(wired.path("home/.ssh")).unwrap();
        fs::write(wired.path("home/.ssh/id"), "SECRET").unwrap();
        let binding = wired.bind("work").await.expect("bound");
        let seen = wired.text("project/seen");
        assert_eq!(seen.contains("SECRET"), !inside, "{seen}");
        assert_eq!(wired.path("outside").exists(), !inside, "it writes outside its root");
        drop(binding);
        wired.stop().await;
    }
}

#[tokio::test]
async fn a_service_reaches_the_hosts_of_its_list() {
    let port = web_server();
    let listed = format!("127.0.0.1:{port}");
    let wired = wired(json!({"files": "workspace", "network": [listed]}));
    let notices = Arc::new(Notices::default());
    let asker = Answering::new(PermissionResponse::Allow);
    let binding = wired.bind_terms("work", request(&wired, asker.clone(), Arc::clone(&notices))).await.expect("bound");
    let visit = |url: String| wired.said(&binding, "echo__visit", json!({"url": url}));
    let page = visit(format!("http://{listed}/")).await;
    assert!(page.ends_with("hello"), "{page}");
    let page = visit("http://unlisted.test/".to_owned()).await;
    assert!(page.starts_with("HTTP/1.1 403"), "{page}");
    assert!(asker.asked().is_empty(), "a list asks nothing: {:?}", asker.asked());
    let expected =
        "service `echo`: refused by the sandbox: unlisted.test:80 (the sandbox profile does not list this host)";
    assert_eq!(notices.texts(), [expected]);
    visit("http://unlisted.test/other".to_owned()).await;
    assert_eq!(notices.texts().len(), 1, "a refusal is reported once");
    drop(binding);
    wired.stop().await;
}

#[tokio::test]
async fn a_service_without_network_reaches_no_port() {
    let port = web_server();
    let wired = wired(json!({"files": "workspace", "network": "off"}));
    let binding = wired.bind("work").await.expect("bound");
    let page = wired.said(&binding, "echo__visit", json!({"url": format!("http://127.0.0.1:{port}/")})).await;
    assert!(page.contains("refused"), "{page}");
    drop(binding);
    wired.stop().await;
}

#[tokio::test]
async fn the_session_that_uses_a_service_is_asked_about_hosts() {
    for (answer, status) in [(PermissionResponse::Refuse, "403"), (PermissionResponse::Allow, "502")] {
        let wired = wired(json!({"files": "none", "network": "ask"}));
        let asker = Answering::new(answer);
        let request = request(&wired, asker.clone(), Arc::default());
        let binding = wired.bind_terms("work", request).await.expect("bound");
        for _ in 0..2 {
            let page = wired.said(&binding, "echo__visit", json!({"url": "http://asked.invalid/"})).await;
            assert!(page.starts_with(&format!("HTTP/1.1 {status}")), "{page}");
        }
        let asked = json!({"host": "asked.invalid:80", "command": "service `echo`"});
        assert_eq!(asker.asked(), [asked], "equal questions become one");
        drop(binding);
        wired.stop().await;
    }
}

#[tokio::test]
async fn a_host_refused_without_a_user_is_asked_about_later() {
    let wired = wired(json!({"files": "none", "network": "ask"}));
    let absent = Answering::new(PermissionResponse::Unavailable);
    let first = request(&wired, absent.clone(), Arc::default());
    let session = Arc::clone(&first.session);
    let binding = wired.bind_terms("work", first).await.expect("bound");
    let url = json!({"url": "http://asked.invalid/"});
    let page = wired.said(&binding, "echo__visit", url.clone()).await;
    assert!(page.starts_with("HTTP/1.1 403") && page.contains("no one to ask"), "{page}");
    let user = Answering::new(PermissionResponse::Allow);
    let later = BindRequest { session, ..request(&wired, user.clone(), Arc::default()) };
    let attended = wired.bind_terms("work", later).await.expect("bound");
    assert_eq!(wired.runtime.pool().status().len(), 1, "the process of the service is the same");
    let page = wired.said(&attended, "echo__visit", url).await;
    assert!(page.starts_with("HTTP/1.1 502"), "the host is allowed, and does not exist: {page}");
    assert_eq!((absent.asked().len(), user.asked().len()), (1, 1));
    drop((binding, attended));
    wired.stop().await;
}

/// The decisions of a session.
#[derive(Default)]
struct Decisions(Mutex<Vec<AuditRecord>>);

impl AuditSink for Decisions {
    fn record(&self, record: AuditRecord) {
        self.0.lock().unwrap().push(record);
    }
}

impl Decisions {
    /// Decision, source and rule of each entry about a host that a service wanted to reach.
    fn about_hosts(&self) -> Vec<[String; 3]> {
        let records = self.0.lock().unwrap();
        let of_services = records.iter().filter(|record| record.kind.as_str() == "host" && record.actor == "program");
        let row = |record: &AuditRecord| {
            let rule = record.rule.as_deref().unwrap_or_default();
            [record.decision.as_str(), record.source.as_str(), rule].map(str::to_owned)
        };
        of_services.map(row).collect()
    }
}

#[tokio::test]
async fn the_audit_log_names_what_decided_about_a_service() {
    let ask = json!({"files": "none", "network": "ask"});
    let listed = json!({"files": "workspace", "network": ["listed.invalid"]});
    let refuse = PermissionResponse::Refuse;
    for (sandbox, level, answer, host, expected) in [
        (&ask, ApprovalLevel::Auto, refuse, "any.invalid", ["allow", "level", "auto"]),
        (&ask, ApprovalLevel::Ask, PermissionResponse::Allow, "any.invalid", ["allow", "user", "ask"]),
        (&ask, ApprovalLevel::Ask, PermissionResponse::AllowAlways, "any.invalid", ["allow", "consent", ""]),
        (&ask, ApprovalLevel::Ask, refuse, "any.invalid", ["refuse", "user", "ask"]),
        (&ask, ApprovalLevel::Ask, PermissionResponse::Unavailable, "any.invalid", ["refuse", "no-user", "ask"]),
        (&listed, ApprovalLevel::Auto, refuse, "listed.invalid", ["allow", "sandbox", "profile"]),
        (&listed, ApprovalLevel::Auto, refuse, "any.invalid", ["refuse", "sandbox", "profile"]),
    ] {
        let wired = wired(sandbox.clone());
        let decisions = Arc::new(Decisions::default());
        let ports = SessionContextPorts { audit: decisions.clone(), ..SessionContextPorts::default() };
        let (project, scratch) = (wired.path("project"), wired.path("scratch"));
        let session = SessionContext::with_ports("session", project, Vec::new(), scratch, ports);
        let asker = Answering::new(answer);
        let request = BindRequest { session, approval: Some(level), asker, client_services: Vec::new() };
        let binding = wired.bind_terms("work", request).await.expect("bound");
        wired.said(&binding, "echo__visit", json!({"url": format!("http://{host}/")})).await;
        let expected = expected.map(str::to_owned);
        assert_eq!(decisions.about_hosts(), [expected], "{sandbox} {level:?} {answer:?} {host}");
        drop(binding);
        wired.stop().await;
    }
}

#[tokio::test]
async fn a_host_that_a_level_allowed_is_judged_by_the_next_level() {
    for (level, expected) in [
        (ApprovalLevel::ReadOnly, ["refuse", "level", "read-only"]),
        (ApprovalLevel::Deny, ["refuse", "level", "deny"]),
        (ApprovalLevel::Ask, ["refuse", "user", "ask"]),
    ] {
        let wired = wired(json!({"files": "none", "network": "ask"}));
        let decisions = Arc::new(Decisions::default());
        let ports = SessionContextPorts { audit: decisions.clone(), ..SessionContextPorts::default() };
        let (project, scratch) = (wired.path("project"), wired.path("scratch"));
        let session = SessionContext::with_ports("session", project, Vec::new(), scratch, ports);
        let asker = Answering::new(PermissionResponse::Refuse);
        let request = |level| BindRequest {
            session: Arc::clone(&session),
            approval: Some(level),
            asker: asker.clone(),
            client_services: Vec::new(),
        };
        let binding = wired.bind_terms("work", request(ApprovalLevel::Auto)).await.expect("bound");
        let url = json!({"url": "http://any.invalid/"});
        let page = wired.said(&binding, "echo__visit", url.clone()).await;
        assert!(page.starts_with("HTTP/1.1 502"), "the host is allowed, and does not exist: {page}");
        let stricter = wired.bind_terms("work", request(level)).await.expect("bound");
        assert_eq!(wired.runtime.pool().status().len(), 1, "the process of the service is the same");
        // The earlier binding lets the service work at each level. The level of the latest one decides about hosts.
        let page = wired.said(&binding, "echo__visit", url).await;
        assert!(page.starts_with("HTTP/1.1 403"), "{level:?}: {page}");
        let rows = [["allow", "level", "auto"], expected].map(|row| row.map(str::to_owned));
        assert_eq!(decisions.about_hosts(), rows, "{level:?}");
        assert_eq!(asker.asked().len(), usize::from(level == ApprovalLevel::Ask), "{level:?}");
        drop((binding, stricter));
        wired.stop().await;
    }
}

#[tokio::test]
async fn a_host_rule_beats_the_list_of_a_service() {
    let port = web_server();
    let listed = format!("127.0.0.1:{port}");
    let rule = json!({"version": 1, "permissions": [{"host": "127.0.0.1", "then": "deny"}]});
    let manifests = manifests(json!({"files": "workspace", "network": [listed]}));
    let wired = Wiring::new().user(manifests).config(rule).sandboxed("").start();
    let binding = wired.bind("work").await.expect("bound");
    let page = wired.said(&binding, "echo__visit", json!({"url": format!("http://{listed}/")})).await;
    assert!(page.starts_with("HTTP/1.1 403") && page.contains("the rule"), "{page}");
    drop(binding);
    wired.stop().await;
}

#[tokio::test]
async fn a_profile_that_depends_on_the_session_is_not_shared() {
    for (sandbox, processes) in [
        (json!({"files": "read-only"}), 1),
        (json!({"files": "workspace"}), 2),
        (json!({"files": "none", "write": ["dist/"]}), 2),
        (json!({"files": "none", "network": "ask"}), 2),
    ] {
        let wired = wired(sandbox.clone());
        let one = wired.bind_session("one", "work").await.expect("bound");
        let two = wired.bind_session("two", "work").await.expect("bound");
        assert_eq!(wired.runtime.pool().status().len(), processes, "{sandbox}");
        drop((one, two));
        wired.stop().await;
    }
}

#[tokio::test]
async fn a_required_profile_needs_a_machine_that_enforces_it() {
    let off = json!({"files": "read-only", "network": "off"});
    let list = json!({"files": "read-only", "network": ["example.test"]});
    let start = |sandbox: Value| async move {
        let wired = Wiring::new().user(manifests(sandbox)).sandboxed("no-namespaces").start();
        let bound = wired.bind("work").await.map(drop).map_err(|error| error.to_string());
        wired.stop().await;
        bound
    };
    start(off).await.expect("Landlock and seccomp are enough");
    let problem = start(list.clone()).await.expect_err("nothing enforces a list");
    assert!(problem.contains("its sandbox does not start") && problem.contains("network"), "{problem}");
    let preferred = with(list, json!({"enforce": "preferred"}));
    start(preferred).await.expect("preferred starts with the layers there are");
}

#[tokio::test]
async fn a_profile_without_a_launcher_does_not_start() {
    let wired = Wiring::new().user(manifests(json!({"files": "none"}))).start();
    let problem = wired.bind("work").await.expect_err("there is no sandbox").to_string();
    assert!(problem.contains("must run in a sandbox"), "{problem}");
    wired.stop().await;
}

/// Writes what it can read of the home, then serves.
fn curious_server(sandbox: &Sandbox) -> (&'static str, Vec<String>) {
    let script = r#"cat "$1" > "$2" 2>&1; exec "$0""#.to_owned();
    let path = |path: &str| sandbox.path(path).display().to_string();
    ("sh", vec!["-c".to_owned(), script, servers::mcp_echo().to_owned(), path("home/.ssh/id"), path("project/seen")])
}

#[test]
fn a_server_of_the_editor_has_the_profile_of_client_services() {
    for (config, inside) in
        [("version: 1\nsandbox: {client_services: {files: workspace}}", true), ("version: 1", false)]
    {
        let sandbox = Sandbox::outside_tmp();
        sandbox.write("home/.ssh/id", "SECRET");
        sandbox.write("config/config.yaml", config);
        let (command, args) = curious_server(&sandbox);
        let mut client = Acp::start(&sandbox);
        client.on_permission("allow_once");
        let session = client.session_with(json!([{"name": "mine", "command": command, "args": args, "env": []}]));
        client.set_mode(&session, "goose/assistant");
        let (_, updates) = client.prompt(&session, r#"/mine.echo {"text": "it runs"}"#);
        assert!(json!(updates).to_string().contains("it runs"), "{updates:#?}");
        let seen = fs::read_to_string(sandbox.path("project/seen")).unwrap();
        assert_eq!(seen.contains("SECRET"), !inside, "{seen}");
    }
}

#[test]
fn a_server_of_mcp_json_has_the_profile_of_client_services() {
    let sandbox = Sandbox::outside_tmp();
    sandbox.write("home/.ssh/id", "SECRET");
    sandbox.write("config/config.yaml", "version: 1\nsandbox: {client_services: {files: workspace}}");
    let (command, args) = curious_server(&sandbox);
    sandbox
        .write("project/.mcp.json", &json!({"mcpServers": {"mine": {"command": command, "args": args}}}).to_string());
    assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
    let run = sandbox.skein(&["services", "--probe", "mine"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    let seen = fs::read_to_string(sandbox.path("project/seen")).unwrap();
    assert!(!seen.contains("SECRET"), "{seen}");
}

/// Without the managed setting, a program that states no profile runs without a sandbox.
#[test]
fn a_required_sandbox_reaches_programs_without_a_profile() {
    let managed = ["--managed", "managed.yaml"];
    for (flags, inside) in [(&managed[..], true), (&[], false)] {
        let sandbox = Sandbox::outside_tmp();
        sandbox.write("home/.ssh/id", "SECRET");
        sandbox.write("project/managed.yaml", "version: 1\nsandbox: {enforce: required}\n");
        let (command, args) = curious_server(&sandbox);
        let stdio = json!({"command": command, "args": args});
        sandbox.write("config/services/own.json", &service("own", json!({"stdio": stdio})).to_string());
        sandbox.write("project/.mcp.json", &json!({"mcpServers": {"mine": stdio}}).to_string());
        assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
        for name in ["own", "mine"] {
            let run = sandbox.skein(&[flags, &["services", "--probe", name]].concat());
            assert_eq!(run.code, 0, "{}", run.whole());
            let seen = fs::read_to_string(sandbox.path("project/seen")).unwrap();
            assert_eq!(seen.contains("SECRET"), !inside, "{name}: {seen}");
        }
    }
}

/// A duration that no other process sleeps for.
fn unusual_duration(at: u32) -> String {
    format!("{}.7{at}", 200_000 + std::process::id())
}

fn is_running(text: &str) -> bool {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.any(|line| String::from_utf8_lossy(&line).replace('\0', " ").contains(&format!("sleep {text}")))
}

/// A service that hides processes in new sessions before it serves.
fn hiding(duration: &str) -> Value {
    let script = format!("setsid sleep {duration} & (setsid sh -c 'sleep {duration} &' &); exec \"$0\"");
    let stdio = json!({"command": "sh", "args": ["-c", script, servers::mcp_echo()]});
    with(service("echo", json!({"stdio": stdio})), json!({"sandbox": {"files": "workspace"}}))
}

#[tokio::test]
async fn nothing_survives_the_end_of_a_session() {
    for (at, layers) in (0..).zip(["", "no-namespaces"]) {
        let duration = unusual_duration(at);
        let mut manifest = hiding(&duration);
        manifest["sandbox"]["enforce"] = json!("preferred");
        let wired = Wiring::new()
            .user([manifest, agent(&[mode("work", json!(["echo"]), json!(["echo"]))])])
            .sandboxed(layers)
            .start();
        let binding = wired.bind("work").await.expect("bound");
        until("its processes run", || is_running(&duration).then_some(())).await;
        drop(binding);
        until("its processes are gone", || (!is_running(&duration)).then_some(())).await;
        wired.stop().await;
    }
}

#[test]
fn nothing_survives_a_killed_skein() {
    let sandbox = Sandbox::new();
    let duration = unusual_duration(5);
    sandbox.install(&hiding(&duration));
    let mut work = agent(&[mode("work", json!(["echo"]), json!(["echo"]))]);
    work["runtime"] = json!({"acp": {"command": servers::acp_echo()}});
    sandbox.install(&work);
    let mut client = Acp::start(&sandbox);
    let session = client.session();
    client.set_mode(&session, "test/work");
    client.prompt(&session, "say hi");
    wait(|| is_running(&duration));
    client.kill();
    wait(|| !is_running(&duration));
}

fn wait(mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < Duration::from_secs(60), "it takes too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}
