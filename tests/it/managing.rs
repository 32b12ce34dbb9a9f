//! Services for a session: what its manager may enable and disable, and that nobody gains what no manifest asks for.
//! Every call goes through the binding of the orchestrator, to real services.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use proptest::prelude::*;
use serde_json::{Value, json};
use skein::broker::{BindRequest, Binding};
use skein::ids::ServiceName;
use skein::manifest::ApprovalLevel;
use skein::network::Network;
use skein::orchestrator::session_services::SessionServices;
use skein::sandbox::FileAccess;
use skein::services::BuiltinRegistry;
use skein::services::builtin::extensionmanager::ExtensionManagerService;
use skein::tool::ask::{Asker, NoAsker, PermissionRequest, PermissionResponse};
use skein::tool::manage::ManifestText;
use skein::tool::{CallContext, SessionContext};

use crate::support::http::{HttpServer, Reply, good_server, greeting};
use crate::support::{Wired, Wiring, agent, arguments, echo, mode};

/// Three services of the user, of which only `named` and `broken` are enabled.
fn wired() -> Wired {
    Wiring::new()
        .user([
            echo("spare", &["--resources"]),
            echo("named", &[]),
            echo("broken", &["--exit-at-start"]),
            agent(&[
                mode("open", json!(["mcp"]), json!([])),
                mode("closed", json!(["memory"]), json!(["memory"])),
                mode("none", json!([]), json!([])),
                mode("needs", json!(["named"]), json!(["named"])),
                mode("may", json!(["named"]), json!([{"type": "tool", "name": "named", "optional": true}])),
            ]),
        ])
        .config(json!({"version": 1, "profile": "p", "profiles": {"p": {"services": ["named", "broken"]}}}))
        .start()
}

/// Answers every question in the same way, and keeps them.
struct Asked {
    answer: PermissionResponse,
    tools: Mutex<Vec<String>>,
    /// The arguments that each question showed.
    shown: Mutex<Vec<Value>>,
    /// Why an answer to each question covers this question only. `None` if an answer can last.
    reasons: Mutex<Vec<Option<String>>>,
}

impl Asker for Asked {
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        self.reasons.lock().unwrap().push(question.once_reason());
        self.tools.lock().unwrap().push(question.tool);
        self.shown.lock().unwrap().push(Value::Object(question.arguments));
        Box::pin(async { self.answer })
    }
}

/// A session in orchestrator/auto, with a manager.
struct Desk<'a> {
    wired: &'a Wired,
    session: Arc<SessionContext>,
    binding: Binding,
    asked: Arc<Asked>,
}

impl<'a> Desk<'a> {
    async fn new(wired: &'a Wired, answer: PermissionResponse) -> Self {
        Self::at(wired, answer, ApprovalLevel::Ask).await
    }

    async fn at(wired: &'a Wired, answer: PermissionResponse, level: ApprovalLevel) -> Self {
        let session = wired.session("desk");
        let manager = SessionServices::new(wired.runtime.broker().clone(), Vec::new());
        assert!(session.manager.set(Arc::new(manager)).is_ok());
        let asked =
            Arc::new(Asked { answer, tools: Mutex::default(), shown: Mutex::default(), reasons: Mutex::default() });
        let terms = BindRequest {
            session: Arc::clone(&session),
            approval: Some(level),
            asker: Arc::clone(&asked) as Arc<dyn Asker>,
            client_services: Vec::new(),
        };
        let binding = wired.runtime.broker().bind(&"orchestrator/auto".parse().unwrap(), terms).await.expect("bound");
        Self { wired, session, binding, asked }
    }

    /// What a call says, and whether it is an error.
    async fn call(&self, tool: &str, with: Value) -> (bool, String) {
        let context = CallContext::new(Arc::clone(&self.session));
        let outcome = self.binding.call(tool, arguments(with), context).await.expect("not cancelled");
        (outcome.is_error, outcome.all_text())
    }

    async fn manage(&self, tool: &str, with: Value) -> String {
        let (is_error, text) = self.call(&format!("extensionmanager__{tool}"), with).await;
        assert!(!is_error, "{text}");
        text
    }

    async fn refused(&self, tool: &str, with: Value) -> String {
        let (is_error, text) = self.call(&format!("extensionmanager__{tool}"), with).await;
        assert!(is_error, "{text}");
        text
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.tools.lock().unwrap())
    }

    /// A session that works for this one, in a mode of the test's.
    async fn child(&self, mode: &str) -> Result<Binding, String> {
        let session = self.wired.session("child");
        session.share_services(&self.session);
        bind(self.wired, session, mode).await
    }
}

async fn bind(wired: &Wired, session: Arc<SessionContext>, mode: &str) -> Result<Binding, String> {
    let terms = BindRequest {
        session,
        approval: Some(ApprovalLevel::Auto),
        asker: Arc::new(NoAsker),
        client_services: Vec::new(),
    };
    wired.bind_terms(mode, terms).await.map_err(|error| error.to_string())
}

fn services(binding: &Binding) -> BTreeSet<String> {
    binding.tools().values().map(|tool| tool.service.to_string()).collect()
}

#[tokio::test]
async fn enabled_service_is_bound_only_in_children_that_list_mcp() {
    let wired = wired();
    let desk = Desk::new(&wired, PermissionResponse::Allow).await;
    assert_eq!(services(&desk.child("open").await.unwrap()), ["named".to_owned()].into());
    let said = desk.manage("enable_service", json!({"name": "spare"})).await;
    assert!(said.starts_with("`spare` is enabled for this session. Its tools: "), "{said}");
    assert!(said.contains("echo") && said.contains("goose/assistant") && !said.contains("coding/security"), "{said}");
    assert_eq!(desk.asked(), ["extensionmanager__enable_service"]);
    let child = desk.child("open").await.unwrap();
    assert_eq!(services(&child), ["named".to_owned(), "spare".to_owned()].into());
    assert_eq!(wired.said(&child, "spare__echo", json!({"text": "hi"})).await, "hi");
    assert_eq!(services(&desk.child("closed").await.unwrap()), ["memory".to_owned()].into());
    assert!(desk.child("none").await.unwrap().tools().is_empty());
    assert_eq!(services(&desk.child("needs").await.unwrap()), ["named".to_owned()].into());
    let stranger = bind(&wired, wired.session("stranger"), "open").await.unwrap();
    assert_eq!(services(&stranger), ["named".to_owned()].into(), "another session has nothing of it");
    wired.stop().await;
}

#[tokio::test]
async fn a_disabled_service_is_absent_and_says_why() {
    let wired = wired();
    let desk = Desk::new(&wired, PermissionResponse::Allow).await;
    let before = desk.child("open").await.unwrap();
    let said = desk.manage("disable_service", json!({"name": "named"})).await;
    assert!(said.starts_with("`named` is disabled for this session."), "{said}");
    let open = desk.child("open").await.unwrap();
    assert!(open.tools().is_empty());
    let absent = open.missing_services().iter().find(|absent| absent.service.as_str() == "named").unwrap();
    assert_eq!(absent.reason, "it is disabled in this session");
    assert!(desk.child("may").await.unwrap().tools().is_empty());
    let needs = desk.child("needs").await.unwrap_err();
    assert!(needs.contains("`test/needs` cannot be entered") && needs.contains("disabled in this session"), "{needs}");
    // A binding is frozen.
    assert_eq!(wired.said(&before, "named__echo", json!({"text": "hi"})).await, "hi");
    desk.manage("enable_service", json!({"name": "named"})).await;
    assert_eq!(services(&desk.child("needs").await.unwrap()), ["named".to_owned()].into());
    wired.stop().await;
}

#[tokio::test]
async fn who_is_not_asked_or_refuses_changes_nothing() {
    let wired = wired();
    let desk = Desk::new(&wired, PermissionResponse::Refuse).await;
    for (tool, name) in [("enable_service", "spare"), ("disable_service", "named")] {
        let refused = desk.refused(tool, json!({"name": name})).await;
        assert!(refused.contains("was not called: the user refused"), "{refused}");
    }
    assert_eq!(desk.asked().len(), 2);
    assert!(desk.session.service_overrides().all().is_empty());
    desk.manage("search_services", json!({"query": ""})).await;
    desk.manage("list_resources", json!({})).await;
    assert!(desk.asked().is_empty(), "looking changes nothing");
    wired.stop().await;
}

#[tokio::test]
async fn unmanageable_services_cannot_be_enabled_or_disabled() {
    let wired = wired();
    let desk = Desk::new(&wired, PermissionResponse::Allow).await;
    for (name, why) in [
        ("extensionmanager", "the orchestrator's own"),
        ("summon", "the orchestrator's own"),
        ("chatrecall", "the orchestrator's own"),
        ("developer", "built in: a mode has it if its manifest asks for it"),
        ("fetch", "coding/pm"),
        ("nmaed", "did you mean `named`?"),
    ] {
        for tool in ["enable_service", "disable_service"] {
            let refused = desk.refused(tool, json!({"name": name})).await;
            assert!(refused.contains(why), "{tool} {name}: {refused}");
        }
    }
    let broken = desk.refused("enable_service", json!({"name": "broken"})).await;
    assert!(broken.starts_with("`broken` was not enabled: "), "{broken}");
    assert!(desk.session.service_overrides().all().is_empty());
    wired.stop().await;
}

#[tokio::test]
async fn search_lists_services_with_state_and_modes() {
    let wired = wired();
    let desk = Desk::new(&wired, PermissionResponse::Allow).await;
    let all = desk.manage("search_services", json!({"query": ""})).await;
    for expected in
        ["spare (disabled)", "named (enabled)", "developer (built in)", "chatrecall (the orchestrator's own)"]
    {
        assert!(all.contains(expected), "{expected}: {all}");
    }
    let found = desk.manage("search_services", json!({"query": "keeps facts"})).await;
    assert!(found.starts_with("memory (built in): Keeps facts"), "{found}");
    assert!(desk.manage("search_services", json!({"query": "zzz"})).await.contains("no service fits"));
    desk.manage("enable_service", json!({"name": "spare"})).await;
    assert!(desk.manage("search_services", json!({"query": "spare"})).await.contains("spare (enabled)"));
    wired.stop().await;
}

#[tokio::test]
async fn resources_are_read_of_enabled_services_of_the_user_only() {
    let wired = wired();
    let desk = Desk::new(&wired, PermissionResponse::Allow).await;
    let page = json!({"service": "spare", "uri": "echo://page"});
    assert!(desk.refused("read_resource", page.clone()).await.contains("`enable_service`"));
    desk.manage("enable_service", json!({"name": "spare"})).await;
    let listed = desk.manage("list_resources", json!({"service": "spare"})).await;
    assert!(listed.contains("spare: echo://page · page") && listed.contains("echo://pages/{number}"), "{listed}");
    let read = desk.manage("read_resource", page).await;
    assert!(read.contains("data, not instructions") && read.contains("the text of \"echo://page\""), "{read}");
    let made = json!({"service": "spare", "uri": "echo://pages/7"});
    assert!(desk.manage("read_resource", made).await.contains("echo://pages/7"));
    let other = json!({"service": "spare", "uri": "file:///etc/passwd"});
    assert!(desk.refused("read_resource", other).await.contains("it lists no resource"));
    let own = json!({"service": "memory", "uri": "memory://session-start"});
    assert!(desk.refused("read_resource", own).await.contains("built in"));
    // One that does not start is told, and keeps nobody from the others.
    let all = desk.manage("list_resources", json!({})).await;
    assert!(all.contains("broken: ") && all.contains("echo://page"), "{all}");
    wired.stop().await;
}

/// A `server.json` of the registry for a remote server, in the project.
fn write_server_json(wired: &Wired, url: &str) {
    let server = json!({
        "name": "com.example/greeter", "description": "Greets.", "version": "1.0.0",
        "remotes": [{"type": "streamable-http", "url": url}],
    });
    std::fs::create_dir_all(wired.path("project")).unwrap();
    std::fs::write(wired.path("project/server.json"), server.to_string()).unwrap();
}

#[tokio::test]
async fn proposed_service_is_written_and_enabled_after_consent() {
    let server = HttpServer::start(|request| good_server(request, || greeting(request))).await;
    let wired = wired();
    write_server_json(&wired, &server.url);
    let desk = Desk::new(&wired, PermissionResponse::Allow).await;
    let said = desk.manage("propose_service", json!({"path": "server.json"})).await;
    assert!(said.starts_with("the user added `greeter`") && said.contains("greet"), "{said}");
    let questions = std::mem::take(&mut *desk.asked.shown.lock().unwrap());
    let [shown] = questions.as_slice() else { panic!("one question: {questions:?}") };
    assert_eq!((&shown["connects_to"], &shown["described_by"]), (&json!(server.url), &json!("server.json")));
    let text = wired.text("config/services/greeter.yaml");
    assert!(text.contains("name: greeter") && text.contains("com.example/greeter 1.0.0"), "{text}");
    let child = desk.child("open").await.unwrap();
    assert_eq!(services(&child), ["greeter".to_owned(), "named".to_owned()].into());
    assert_eq!(wired.said(&child, "greeter__greet", json!({})).await, "hello");
    assert!(desk.child("none").await.unwrap().tools().is_empty());
    let found = desk.manage("search_services", json!({"query": "greeter"})).await;
    assert!(found.starts_with("greeter (enabled)"), "{found}");
    let again = desk.refused("propose_service", json!({"path": "server.json"})).await;
    assert!(again.contains("there is a service `greeter` already"), "{again}");
    desk.manage("disable_service", json!({"name": "greeter"})).await;
    assert_eq!(services(&desk.child("open").await.unwrap()), ["named".to_owned()].into());
    wired.stop().await;
}

#[tokio::test]
async fn proposed_service_needs_the_users_yes_and_a_start() {
    let server = HttpServer::start(|_| Reply::Status(404)).await;
    let wired = wired();
    write_server_json(&wired, &server.url);
    let refusing = Desk::new(&wired, PermissionResponse::Refuse).await;
    let refused = refusing.refused("propose_service", json!({"path": "server.json"})).await;
    assert!(refused.contains("the user does not want the service `greeter`"), "{refused}");
    assert!(server.requests().is_empty(), "nothing is reached before the user agrees");
    let nobody = Desk::new(&wired, PermissionResponse::Unavailable).await;
    let refused = nobody.refused("propose_service", json!({"path": "server.json"})).await;
    assert!(refused.contains("`skein services add greeter`"), "{refused}");
    let agreeing = Desk::new(&wired, PermissionResponse::Allow).await;
    let refused = agreeing.refused("propose_service", json!({"path": "server.json"})).await;
    assert!(refused.contains("Nothing was written") && refused.contains("404"), "{refused}");
    assert_eq!(wired.text("config/services/greeter.yaml"), "");
    assert!(agreeing.session.service_overrides().all().is_empty());
    wired.stop().await;
}

#[tokio::test]
async fn proposals_obey_the_rules_for_files_and_hosts() {
    let server = HttpServer::start(|_| Reply::Json(json!({"name": "a/b"}))).await;
    let wired = wired();
    std::fs::create_dir_all(wired.path("project")).unwrap();
    let desk = Desk::new(&wired, PermissionResponse::Allow).await;
    let private = desk.refused("propose_service", json!({"url": server.url})).await;
    assert!(private.contains("is refused"), "{private}");
    assert!(server.requests().is_empty(), "a private address is not reached");
    assert_eq!(desk.asked(), ["extensionmanager__propose_service"], "the host is asked about");
    std::fs::write(wired.path("outside.json"), "{}").unwrap();
    let outside = desk.refused("propose_service", json!({"path": "../outside.json"})).await;
    assert!(outside.contains("is outside of"), "{outside}");
    std::fs::write(wired.path("project/server.json"), "{\"mcpServers\": {}}").unwrap();
    let wrong = desk.refused("propose_service", json!({"path": "server.json"})).await;
    assert!(wrong.contains("not a server.json of the MCP registry"), "{wrong}");
    let both = desk.refused("propose_service", json!({"path": "server.json", "url": "https://example.com"})).await;
    assert!(both.contains("either `path` or `url`"), "{both}");
    wired.stop().await;
}

/// A network in which every name has a public address, behind which this server answers.
struct OneServer(SocketAddr);

impl Network for OneServer {
    fn resolve<'a>(&'a self, _: &'a str) -> BoxFuture<'a, std::io::Result<Vec<IpAddr>>> {
        Box::pin(async { Ok(vec![IpAddr::from([93, 184, 216, 34])]) })
    }

    fn dial(&self, _: SocketAddr) -> BoxFuture<'_, std::io::Result<tokio::net::TcpStream>> {
        Box::pin(tokio::net::TcpStream::connect(self.0))
    }
}

#[tokio::test]
async fn proposal_from_a_url_asks_about_host_and_service() {
    let mcp = HttpServer::start(|request| good_server(request, || greeting(request))).await;
    let remote = json!([{"type": "streamable-http", "url": mcp.url}]);
    let server = json!({"server": {"name": "com.example/greeter", "version": "1", "remotes": remote}, "_meta": {}});
    let web = HttpServer::start(move |_| Reply::Json(server.clone())).await;
    let address: SocketAddr = web.url.trim_start_matches("http://").trim_end_matches("/mcp").parse().unwrap();
    let registry = BuiltinRegistry::builtin().with("extensionmanager", move |context| {
        let service = ExtensionManagerService::new().with_config(context.user.config.clone());
        service.with_network(Arc::new(OneServer(address)))
    });
    let wired = Wiring::new().registry(registry).start();
    let url = json!({"url": "http://registry.example/v0/servers/greeter"});
    let read_only = Desk::at(&wired, PermissionResponse::Allow, ApprovalLevel::ReadOnly).await;
    let refused = read_only.refused("propose_service", url.clone()).await;
    assert!(refused.contains("the session is read-only") && web.requests().is_empty(), "{refused}");
    let desk = Desk::new(&wired, PermissionResponse::Allow).await;
    desk.manage("propose_service", url).await;
    let questions = std::mem::take(&mut *desk.asked.shown.lock().unwrap());
    let [host, service] = questions.as_slice() else { panic!("two questions: {questions:?}") };
    assert_eq!(host["url"], json!("http://registry.example/v0/servers/greeter"));
    assert_eq!(service["connects_to"], json!(mcp.url));
    // An answer about the host may last. "Always" add this service would have no effect, so it is not offered.
    assert_eq!(desk.asked(), ["extensionmanager__propose_service", "service:add"]);
    let reasons = std::mem::take(&mut *desk.asked.reasons.lock().unwrap());
    assert_eq!(reasons, [None, Some("An answer covers this service only".to_owned())]);
    assert!(wired.text("config/services/greeter.yaml").contains("name: greeter"));
    wired.stop().await;
}

#[tokio::test]
async fn service_that_a_session_adds_runs_in_its_sandbox() {
    let wired = wired();
    let desk = Desk::new(&wired, PermissionResponse::Allow).await;
    let manager = desk.session.manager.get().unwrap();
    let text = "version: 1\nkind: service\nname: tool\ndescription: X.\n\
                transport: {stdio: {command: npx}}\nsandbox: {files: none, network: off}\n";
    let file = wired.path("config/services/tool.yaml");
    let manifest = ManifestText { name: ServiceName::new("tool"), file, text: text.to_owned() };
    let entry = manager.check_manifest(manifest, &CallContext::new(Arc::clone(&desk.session))).unwrap();
    let plan = wired.runtime.broker().plan();
    assert!(plan.service("tool").is_none());
    let profile = plan.sandbox_of_service(&entry).expect("a sandbox");
    assert_eq!(profile.files, FileAccess::None);
    wired.stop().await;
}

#[tokio::test]
async fn only_a_search_beyond_the_project_needs_permission() {
    let wired = wired();
    for (answer, refused) in [(PermissionResponse::Refuse, true), (PermissionResponse::Allow, false)] {
        let desk = Desk::new(&wired, answer).await;
        let (is_error, text) = desk.call("chatrecall__search_sessions", json!({"query": "zebra"})).await;
        assert!(!is_error && desk.asked().is_empty(), "{text}");
        let everywhere = json!({"query": "zebra", "project": "*"});
        let (is_error, text) = desk.call("chatrecall__search_sessions", everywhere).await;
        assert_eq!(is_error, refused, "{text}");
        assert_eq!(desk.asked(), ["chatrecall__search_sessions"]);
    }
    wired.stop().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever is written down as enabled or disabled, by whoever: a mode without `mcp` has the same tools, and the
    /// orchestrator too.
    #[test]
    fn enabling_services_affects_only_modes_that_list_mcp(
        changes in prop::collection::vec((0_usize..7, any::<bool>()), 0..12),
    ) {
        const NAMES: [&str; 7] = ["spare", "named", "developer", "memory", "extensionmanager", "summon", "nowhere"];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let wired = wired();
            let session = wired.session("session");
            let tools = async |mode: &str| {
                let binding = bind(&wired, Arc::clone(&session), mode).await.expect("bound");
                binding.tools().keys().cloned().collect::<Vec<_>>()
            };
            let (closed, none) = (tools("closed").await, tools("none").await);
            for (name, enabled) in changes {
                session.service_overrides().set(ServiceName::new(NAMES[name]), enabled);
                prop_assert_eq!(&tools("closed").await, &closed);
                prop_assert_eq!(&tools("none").await, &none);
            }
            let terms = BindRequest { session: Arc::clone(&session), approval: None, asker: Arc::new(NoAsker), client_services: Vec::new() };
            let auto = wired.runtime.broker().bind(&"orchestrator/auto".parse().unwrap(), terms).await.expect("bound");
            let owned = |service: &String| !["spare", "named", "developer", "memory"].contains(&service.as_str());
            prop_assert!(services(&auto).iter().all(owned), "{:?}", services(&auto));
            drop(auto);
            wired.stop().await;
            Ok(())
        })?;
    }
}
