//! Services that call the services they require: over stdio, over HTTP, in a sandbox, and in the shipped example.

use std::cell::RefCell;
use std::fs;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Tool};
use rmcp::service::{RequestContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ErrorData, RoleClient, RoleServer, ServiceExt as _};
use serde_json::{Value, json};
use skein::broker::{BindRequest, Binding};
use skein::manifest::ApprovalLevel;
use skein::network;
use skein::task::TaskScope;
use skein::tool::ask::{Asker, PermissionRequest, PermissionResponse};

use crate::client::Client;
use crate::support::acp::{Acp, selected};
use crate::support::model::{Answer, ScriptedModel};
use crate::support::{
    Fake, Sandbox, Wired, Wiring, agent, arguments, echo, full_tests, mode, read, repository, serve_over_http, service,
    until, with,
};

/// `top` requires `notes` in the role `store`. The mode `work` has `top` only.
fn manifests() -> [Value; 3] {
    [
        with(echo("notes", &[]), json!({"groups": {"look": ["echo", "add", "sleep"], "change": ["append"]}})),
        with(echo("top", &["--requires"]), json!({"requires": {"store": "notes"}})),
        agent(&[
            mode("work", json!(["top"]), json!(["top"])),
            mode("both", json!(["top", "look"]), json!(["top", "notes"])),
            mode("other", json!(["top"]), json!(["top"])),
        ]),
    ]
}

fn wired() -> Wired {
    Wiring::new().user(manifests()).attachable().start()
}

/// What a required service answers when `top` sends it this request: the result or the error.
async fn asked(wired: &Wired, binding: &Binding, method: &str, params: Value) -> Value {
    let request = json!({"role": "store", "method": method, "params": params});
    let said = wired.said(binding, "top__ask_required", request).await;
    serde_json::from_str(&said).expect("JSON")
}

async fn called(wired: &Wired, binding: &Binding, tool: &str, with: Value) -> Value {
    asked(wired, binding, "tools/call", json!({"name": tool, "arguments": with})).await
}

fn text_of(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_default()
}

/// The token files that exist.
fn token_files(wired: &Wired) -> usize {
    let entries = fs::read_dir(wired.path("data/run")).expect("the folder of sockets").filter_map(Result::ok);
    entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "token")).count()
}

/// Answers by the name of the tool, and keeps what it was asked: the tool, and the services that ask.
struct Answering {
    answers: Vec<(&'static str, PermissionResponse)>,
    asked: Mutex<Vec<(String, Option<String>, String)>>,
}

impl Answering {
    fn new(answers: &[(&'static str, PermissionResponse)]) -> Arc<Self> {
        Arc::new(Self { answers: answers.to_vec(), asked: Mutex::default() })
    }

    fn take(&self) -> Vec<(String, Option<String>, String)> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Asker for Answering {
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        let answer = self.answers.iter().find(|(tool, _)| question.tool == *tool).map(|(_, answer)| *answer);
        let services = question.calling_services();
        self.asked.lock().unwrap().push((question.tool, services, question.always.to_string()));
        Box::pin(async move { answer.unwrap_or(PermissionResponse::Allow) })
    }
}

async fn bind_asking(wired: &Wired, mode: &str, asker: Arc<dyn Asker>) -> (BindRequest, Binding) {
    let session = wired.session("asked");
    let request = BindRequest { session, approval: Some(ApprovalLevel::Ask), asker, client_services: Vec::new() };
    let binding = wired.bind_terms(mode, request.clone()).await.expect("bound");
    (request, binding)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_reaches_exactly_the_service_that_it_requires() {
    let wired = wired();
    let binding = wired.bind("work").await.expect("bound");
    assert!(binding.tools().keys().all(|name| name.starts_with("top__")), "the mode does not see the other one");
    assert!(wired.refused(&binding, "notes__add", json!({"a": 1, "b": 2})).await.contains("there is no tool"));

    let listed = asked(&wired, &binding, "tools/list", json!({})).await;
    let names: Vec<_> = listed["tools"].as_array().expect("tools").iter().map(|tool| &tool["name"]).collect();
    assert!(names.contains(&&json!("add")) && !names.contains(&&json!("ask_required")), "{names:?}");
    assert_eq!(text_of(&called(&wired, &binding, "add", json!({"a": 40, "b": 2})).await), "42");
    let wrong = called(&wired, &binding, "add", json!({"a": "many"})).await.to_string();
    assert!(wrong.contains("`b`"), "arguments are checked: {wrong}");

    let variables: Value = serde_json::from_str(&wired.said(&binding, "top__env", json!({})).await).expect("JSON");
    let line = variables["SKEIN_REQUIRES_STORE"].as_str().expect("the address");
    assert!(line.contains(" mcp --attach-file ") && line.ends_with(".token"), "{line}");
    let names = variables.as_object().expect("variables").keys().filter(|name| name.starts_with("SKEIN_"));
    let mut of_skein: Vec<_> = names.collect();
    of_skein.sort();
    assert_eq!(of_skein, ["SKEIN_PROCESS_SCOPE", "SKEIN_REQUIRES_STORE"]);
    drop(binding);
    wired.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_groups_of_a_mode_that_has_the_service_too_apply() {
    let wired = wired();
    let binding = wired.bind("both").await.expect("bound");
    assert!(binding.tools().contains_key("notes__add") && !binding.tools().contains_key("notes__append"));
    let listed = asked(&wired, &binding, "tools/list", json!({})).await;
    let names: Vec<_> = listed["tools"].as_array().expect("tools").iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["add", "echo", "sleep"]);
    let file = wired.path("touched").display().to_string();
    let refused = called(&wired, &binding, "append", json!({"file": file, "text": "x"})).await;
    assert!(refused["message"].as_str().unwrap_or_default().contains("there is no tool `append`"), "{refused}");
    assert_eq!(wired.text("touched"), "");
    drop(binding);
    wired.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_apply_to_the_calls_of_a_service() {
    let rule = json!({"version": 1, "permissions": [{"tool": "notes__append", "then": "deny"}]});
    let wired = Wiring::new().user(manifests()).config(rule).attachable().start();
    let binding = wired.bind("work").await.expect("bound");
    let file = wired.path("touched").display().to_string();
    let refused = called(&wired, &binding, "append", json!({"file": file, "text": "x"})).await;
    assert_eq!(refused["isError"], json!(true), "{refused}");
    assert!(text_of(&refused).starts_with("`notes__append` was not called: "), "{refused}");
    assert_eq!(wired.text("touched"), "");
    assert_eq!(text_of(&called(&wired, &binding, "add", json!({"a": 1, "b": 2})).await), "3", "others are not denied");
    drop(binding);
    wired.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_user_is_asked_about_the_chain() {
    let wired = wired();
    let asker = Answering::new(&[("notes__append", PermissionResponse::Refuse)]);
    let (_, binding) = bind_asking(&wired, "work", asker.clone()).await;
    let file = wired.path("touched").display().to_string();
    let append = json!({"file": file, "text": "x"});
    let refused = called(&wired, &binding, "append", append.clone()).await;
    assert!(text_of(&refused).ends_with("the user refused"), "{refused}");
    assert_eq!(wired.text("touched"), "");
    let asked = asker.take();
    let shown: Vec<_> = asked.iter().map(|(tool, services, _)| (tool.as_str(), services.as_deref())).collect();
    assert_eq!(shown, [("top__ask_required", None), ("notes__append", Some("top"))]);
    assert_eq!(asked[1].2, "exactly this call of notes: append by top");
    drop(binding);

    // Consent lasts for the session, for the same services.
    let asker = Answering::new(&[("notes__append", PermissionResponse::AllowAlways)]);
    let (request, binding) = bind_asking(&wired, "work", asker.clone()).await;
    let context = || skein::tool::CallContext::new(Arc::clone(&request.session));
    for _ in 0..2 {
        let with = json!({"role": "store", "method": "tools/call", "params": {"name": "append", "arguments": append}});
        let outcome = binding.call("top__ask_required", arguments(with), context()).await.expect("not cancelled");
        assert!(outcome.all_text().contains("appended"), "{outcome:?}");
    }
    assert_eq!(wired.text("touched"), "xx");
    let about_notes = asker.take().into_iter().filter(|(tool, ..)| tool == "notes__append").count();
    assert_eq!(about_notes, 1, "the second call needs no question");
    drop(binding);
    wired.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_current_mode_and_level_of_the_session_decide() {
    let wired = wired();
    let asker = Answering::new(&[]);
    let (request, work) = bind_asking(&wired, "work", asker.clone()).await;
    let first = wired.said(&work, "top__pid", json!({})).await;
    assert_eq!(text_of(&called(&wired, &work, "add", json!({"a": 1, "b": 2})).await), "3");
    let request = BindRequest { approval: Some(ApprovalLevel::Auto), ..request };
    let other = wired.bind_terms("other", request).await.expect("bound");
    drop(work);
    assert_eq!(wired.said(&other, "top__pid", json!({})).await, first, "the process stays with the session");
    asker.take();
    assert_eq!(text_of(&called(&wired, &other, "add", json!({"a": 1, "b": 2})).await), "3");
    assert!(asker.take().is_empty(), "at the new level nothing is asked");
    other.tighten(ApprovalLevel::Deny);
    let outcome = wired.refused(&other, "top__ask_required", json!({"role": "store", "method": "x", "params": {}}));
    assert!(outcome.await.contains("allows no tool calls"));
    drop(other);
    wired.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_session_has_its_own_connection() {
    let wired = wired();
    let one = wired.bind_session("one", "work").await.expect("bound");
    let two = wired.bind_session("two", "work").await.expect("bound");
    assert_ne!(wired.said(&one, "top__pid", json!({})).await, wired.said(&two, "top__pid", json!({})).await);
    for binding in [&one, &two] {
        assert_eq!(text_of(&called(&wired, binding, "add", json!({"a": 1, "b": 2})).await), "3");
    }
    drop((one, two));
    wired.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_calls_only_while_it_works_on_a_call() {
    let wired = wired();
    let binding = wired.bind("work").await.expect("bound");
    let (after, answer) = (wired.path("after"), wired.path("answer"));
    let call = json!({"name": "add", "arguments": {"a": 1, "b": 2}});
    let later = json!({"role": "store", "method": "tools/call", "params": call, "after": after, "file": answer});
    assert_eq!(wired.said(&binding, "top__ask_required_later", later).await, "later");
    fs::write(&after, "").expect("written");
    let said = until("it has an answer", || Some(wired.text("answer")).filter(|text| text.ends_with('}'))).await;
    assert!(said.contains("`top` works on no call of a session now"), "{said}");
    // The connection is as good as before.
    assert_eq!(text_of(&called(&wired, &binding, "add", json!({"a": 1, "b": 2})).await), "3");
    drop(binding);
    wired.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_inside_ends_with_the_call_outside() {
    let wired = wired();
    let binding = wired.bind("work").await.expect("bound");
    let files = ["started", "cancelled"].map(|name| wired.path(name).display().to_string());
    let sleep = json!({"ms": 600_000, "started": files[0], "cancelled": files[1]});
    let with = json!({"role": "store", "method": "tools/call", "params": {"name": "sleep", "arguments": sleep}});
    let context = wired.context();
    let cancel = context.cancel.clone();
    let running = binding.call("top__ask_required", arguments(with), context);
    let stopping = async {
        until("it has started", || (wired.text("started") == "started\n").then_some(())).await;
        cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(running, stopping);
    outcome.expect_err("cancelled");
    until("it is cancelled", || (wired.text("cancelled") == "cancelled\n").then_some(())).await;
    drop(binding);
    wired.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_works_once_and_ends_with_the_process() {
    let wired = wired();
    let binding = wired.bind("work").await.expect("bound");
    assert_eq!(text_of(&called(&wired, &binding, "add", json!({"a": 1, "b": 2})).await), "3");
    let again = wired.said(&binding, "top__connect_again", json!({"role": "store"})).await;
    assert!(again.contains("the token was used already, and it is good once"), "{again}");
    assert!(again.contains("skein gives each start its own token"), "{again}");
    assert_eq!(text_of(&called(&wired, &binding, "add", json!({"a": 2, "b": 2})).await), "4", "the first one stays");

    let variables: Value = serde_json::from_str(&wired.said(&binding, "top__env", json!({})).await).expect("JSON");
    let line = variables["SKEIN_REQUIRES_STORE"].as_str().expect("the address").to_owned();
    assert_eq!(token_files(&wired), 1);
    wired.refused(&binding, "top__crash", json!({})).await;
    until("the offer is withdrawn", || (token_files(&wired) == 0).then_some(())).await;

    // A new process has a new address.
    assert_eq!(text_of(&called(&wired, &binding, "add", json!({"a": 3, "b": 2})).await), "5");
    let variables: Value = serde_json::from_str(&wired.said(&binding, "top__env", json!({})).await).expect("JSON");
    assert_ne!(variables["SKEIN_REQUIRES_STORE"], json!(line));
    drop(binding);
    wired.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_longer_chain_names_every_service() {
    let manifests = [
        echo("bottom", &[]),
        with(echo("middle", &["--requires"]), json!({"requires": {"below": "bottom"}})),
        with(echo("top", &["--requires"]), json!({"requires": {"store": "middle"}})),
        agent(&[mode("work", json!(["top"]), json!(["top"]))]),
    ];
    let wired = Wiring::new().user(manifests).attachable().start();
    let asker = Answering::new(&[]);
    let (_, binding) = bind_asking(&wired, "work", asker.clone()).await;
    let inner = json!({"name": "add", "arguments": {"a": 20, "b": 1}});
    let inner = json!({"role": "below", "method": "tools/call", "params": inner});
    let said = called(&wired, &binding, "ask_required", inner).await;
    assert!(text_of(&said).contains("21"), "{said}");
    let shown: Vec<_> = asker.take().into_iter().map(|(tool, services, _)| (tool, services)).collect();
    let expected =
        [("top__ask_required", None), ("middle__ask_required", Some("top")), ("bottom__add", Some("top → middle"))];
    assert_eq!(shown, expected.map(|(tool, services)| (tool.to_owned(), services.map(str::to_owned))));
    drop(binding);
    wired.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_in_a_sandbox_reaches_the_service_too() {
    for files in ["none", "read-only", "workspace"] {
        let [notes, top, agent] = manifests();
        let top = with(top, json!({"sandbox": {"files": files, "network": "off"}}));
        let wired = Wiring::new().user([notes, top, agent]).attachable().sandboxed("").start();
        let binding = wired.bind("work").await.unwrap_or_else(|error| panic!("{files}: {error}"));
        assert_eq!(text_of(&called(&wired, &binding, "add", json!({"a": 1, "b": 2})).await), "3", "{files}");
        drop(binding);
        wired.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_without_sockets_is_an_error_with_its_reason() {
    let [notes, top, agent] = manifests();
    let top = with(top, json!({"sandbox": {"files": "read-only", "enforce": "preferred"}}));
    let wired = Wiring::new().user([notes, top, agent]).attachable().sandboxed("no-namespaces").start();
    let error = wired.bind("work").await.expect_err("not started").to_string();
    assert!(error.contains("its sandbox has no Unix sockets on this machine"), "{error}");
    wired.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_offers_no_services_says_so() {
    let wired = Wiring::new().user(manifests()).start();
    let error = wired.bind("work").await.expect_err("not started").to_string();
    assert!(error.contains("it requires `notes`, and this program offers no service to others"), "{error}");
    wired.stop().await;
}

// over HTTP

type Required = RunningService<RoleClient, ()>;

/// A service over HTTP that calls the service which it requires, at the address in a header of its requests.
#[derive(Clone, Default)]
struct WebService {
    /// The addresses that came, in order and once each.
    addresses: Arc<Mutex<Vec<String>>>,
    required: Arc<tokio::sync::Mutex<Option<Required>>>,
}

impl WebService {
    fn server(&self) -> Fake {
        let schema = arguments(json!({"type": "object"}));
        let tool = Tool::new("add", "Lets another one add.", Arc::new(schema));
        let web = self.clone();
        Fake::with_requests(vec![tool], move |request, context| {
            let web = web.clone();
            Box::pin(async move { web.add(request, context).await })
        })
    }

    async fn add(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let parts = context.extensions.get::<axum::http::request::Parts>().expect("the request");
        let address = parts.headers.get("skein-requires-store").expect("the header").to_str().expect("text").to_owned();
        {
            let mut addresses = self.addresses.lock().unwrap();
            if !addresses.contains(&address) {
                addresses.push(address.clone());
            }
        }
        let mut required = self.required.lock().await;
        if required.is_none() {
            let transport = StreamableHttpClientTransport::from_uri(address);
            *required = Some(().serve(transport).await.expect("the first client is let in"));
        }
        let client = required.as_ref().expect("connected");
        let call = CallToolRequestParams::new("add").with_arguments(request.arguments.unwrap_or_default());
        let sum = client.call_tool(call).await.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        let text = sum.content[0].as_text().map(|text| text.text.clone()).unwrap_or_default();
        Ok(CallToolResponse::Complete(CallToolResult::success(vec![ContentBlock::text(text)])))
    }
}

/// The status and the text of an `initialize` at this address.
async fn begin(url: &str) -> (u16, String) {
    let client = network::client_builder().build().expect("a client");
    let about =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}});
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about});
    let request = client.post(url).header("content-type", "application/json").body(hello.to_string());
    let answer = request.header("accept", "application/json, text/event-stream").send().await.expect("an answer");
    let status = answer.status().as_u16();
    // The stream of a session that begins stays open.
    let text = if status == 200 { String::new() } else { answer.text().await.expect("text") };
    (status, text)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http_service_gets_an_address_that_works_once() {
    let (scope, web) = (TaskScope::new(), WebService::default());
    let served = web.clone();
    let url = serve_over_http(&scope, move || served.server()).await;
    let [notes, _, _] = manifests();
    let manifests = [
        notes,
        with(service("web", json!({"http": {"url": url}})), json!({"requires": {"store": "notes"}})),
        agent(&[mode("work", json!(["web"]), json!(["web"]))]),
    ];
    let wired = Wiring::new().user(manifests).attachable().start();
    let asker = Answering::new(&[]);
    let (_, binding) = bind_asking(&wired, "work", asker.clone()).await;
    assert_eq!(binding.tools().keys().collect::<Vec<_>>(), ["web__add"]);
    assert_eq!(wired.said(&binding, "web__add", json!({"a": 40, "b": 2})).await, "42");
    assert_eq!(wired.said(&binding, "web__add", json!({"a": 1, "b": 2})).await, "3", "the connection stays");
    let shown: Vec<_> = asker.take().into_iter().map(|(tool, services, _)| (tool, services)).collect();
    assert_eq!(shown[..2], [("web__add".to_owned(), None), ("notes__add".to_owned(), Some("web".to_owned()))]);

    let addresses = web.addresses.lock().unwrap().clone();
    let [address] = addresses.as_slice() else { panic!("one connection has one address: {addresses:?}") };
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");
    let (status, said) = begin(address).await;
    assert_eq!(status, 401, "{said}");
    assert!(said.contains("the token was used already, and it is good once"), "{said}");
    let (folder, token) = address.rsplit_once('/').expect("a path");
    for wrong in [folder.to_owned(), format!("{folder}/{}", "0".repeat(64)), format!("{folder}/{}", &token[1..])] {
        assert_eq!(begin(&wrong).await.0, 401, "{wrong}");
    }
    // A session that another client made up, and a version of MCP without sessions.
    let http = network::client_builder().build().expect("a client");
    for (header, value, expected) in [("mcp-session-id", "made-up", 401), ("mcp-method", "tools/list", 400)] {
        let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
        let request = http.post(address).header("content-type", "application/json").body(list);
        let request = request.header("accept", "application/json, text/event-stream").header(header, value);
        assert_eq!(request.send().await.expect("an answer").status(), expected, "{header}");
    }
    // Outside a call of the session nothing is called.
    let required = web.required.lock().await.take().expect("connected");
    let call = CallToolRequestParams::new("add").with_arguments(arguments(json!({"a": 1, "b": 2})));
    let error = required.call_tool(call).await.expect_err("refused").to_string();
    assert!(error.contains("`web` works on no call of a session now"), "{error}");

    let address = address.clone();
    drop(binding);
    wired.stop().await;
    assert!(network::client_builder().build().expect("a client").get(&address).send().await.is_err(), "it is gone");
    drop(required);
    scope.cancelled().cancel();
}

#[tokio::test]
async fn a_server_elsewhere_learns_no_address() {
    let url = "${env:ELSEWHERE}";
    let [notes, _, _] = manifests();
    let manifests = [
        notes,
        with(service("web", json!({"http": {"url": format!("http://{url}/mcp")}})), json!({"requires": ["notes"]})),
        agent(&[mode("work", json!(["web"]), json!(["web"]))]),
    ];
    let wiring = Wiring::new().user(manifests).attachable().variable("ELSEWHERE", "192.0.2.1");
    let wired = wiring.start();
    let error = wired.bind("work").await.expect_err("not started").to_string();
    assert!(error.contains("its URL is not on this machine"), "{error}");
    wired.stop().await;
}

// the shipped example

/// The example, in the folder of a user who copied it.
fn example() -> Sandbox {
    let sandbox = Sandbox::new();
    let programs = ["mcp_server.py", "calendar.py", "scheduling.py"];
    for file in programs.into_iter().chain(["calendar.yaml", "scheduling.yaml", "planner.yaml", "planner.md"]) {
        sandbox.write(&format!("project/{file}"), &read(repository(&format!("examples/requires/{file}"))));
    }
    sandbox
}

const MEETING: &str = "scheduling__plan_meeting";

fn meeting() -> Value {
    json!({"day": "2026-11-16", "title": "Review"})
}

#[test]
fn the_example_is_right() {
    let sandbox = example();
    let checked = sandbox.skein(&["--manifests", ".", "check"]);
    assert_eq!(checked.code, 0, "{}", checked.whole());
    let graph = sandbox.skein(&["--manifests", ".", "services", "--json"]).json();
    let scheduling = graph.as_array().expect("services").iter().find(|of| of["name"] == "scheduling");
    assert_eq!(scheduling.expect("the service")["requires"], json!({"calendar": "calendar"}));
}

#[test]
fn the_example_plans_a_meeting_and_shows_no_calendar() {
    if !full_tests() {
        return;
    }
    let sandbox = example();
    let (mut client, _) = Client::connect(sandbox.command(&["--manifests", ".", "mcp", "-a", "planner"]));
    assert_eq!(client.tools(), [MEETING]);
    for hour in ["10", "11"] {
        let planned = client.call(MEETING, meeting());
        assert_eq!(text_of(&planned), format!("planned Review on 2026-11-16 at {hour}:00"), "{planned}");
    }
    client.hang_up();
    assert!(client.ended().success());
}

#[test]
fn a_rule_refuses_what_the_example_asks_for() {
    if !full_tests() {
        return;
    }
    let sandbox = example();
    let args = ["--manifests", ".", "mcp", "-a", "planner", "--deny", "calendar__add_event"];
    let (mut client, _) = Client::connect(sandbox.command(&args));
    let refused = client.call(MEETING, meeting());
    assert_eq!(refused["isError"], json!(true));
    let text = text_of(&refused);
    assert!(text.starts_with("nothing was planned: `calendar__add_event` was not called: "), "{text}");
    client.hang_up();
    assert!(client.ended().success());
}

#[test]
fn a_refusal_inside_a_call_is_stored_and_sets_the_exit_code() {
    if !full_tests() {
        return;
    }
    let sandbox = example();
    let model = ScriptedModel::new(move |request| {
        let messages = request["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
        match messages.iter().any(|message| message["role"] == "tool") {
            false => Answer::Calls { id: "c0", tool: MEETING, arguments: meeting() },
            true => Answer::Says(vec!["Nothing is planned.".to_owned()]),
        }
    });
    let run = |more: &[&str]| {
        let args = [&["--manifests", ".", "run", "-a", "planner", "--approval", "auto", "--json"], more].concat();
        let output = model.offered_to(sandbox.command(&args)).output().expect("it runs");
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code(), said)
    };
    let (code, said) = run(&["--deny", "calendar__add_event", "plan the review"]);
    assert_eq!(code, Some(5), "{said}");
    let refused = said["refused_calls"].as_array().expect("calls");
    assert_eq!(refused.len(), 1, "{said}");
    assert_eq!((&refused[0]["tool"], &refused[0]["by"]), (&json!("calendar__add_event"), &json!("scheduling")));
    let exported = sandbox.skein(&["sessions", "export", said["session"].as_str().expect("an id")]).whole();
    let order = [MEETING, "calendar__list_events", "calendar__add_event", "Nothing is planned."];
    let places: Vec<_> = order.map(|text| exported.find(text).unwrap_or_else(|| panic!("{text}: {exported}"))).to_vec();
    assert!(places.is_sorted(), "the calls inside are events of the session: {exported}");
    let (code, said) = run(&["plan the review"]);
    assert_eq!((code, &said["refused_calls"]), (Some(0), &json!([])), "{said}");
}

#[test]
fn an_editor_shows_who_asks_in_the_example() {
    if !full_tests() {
        return;
    }
    let sandbox = example();
    let model = ScriptedModel::new(move |request| {
        let messages = request["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
        match messages.iter().any(|message| message["role"] == "tool") {
            false => Answer::Calls { id: "c0", tool: MEETING, arguments: meeting() },
            true => Answer::Says(vec!["It is planned.".to_owned()]),
        }
    });
    let args = ["--manifests", ".", "acp", "-a", "planner"];
    let mut client = Acp::launch(&sandbox, model.offered_to(sandbox.command(&args)));
    client.introduce(&json!({}));
    let asked: Rc<RefCell<Vec<String>>> = Rc::default();
    let kept = Rc::clone(&asked);
    client.on("session/request_permission", move |params| {
        kept.borrow_mut().push(params["toolCall"]["title"].as_str().unwrap_or_default().to_owned());
        Some(selected("allow_once"))
    });
    let session = client.session();
    let (reason, _) = client.prompt(&session, "plan the review");
    assert_eq!(reason, "end_turn");
    let asked = asked.borrow();
    assert_eq!(asked.len(), 3, "the plan, and both calls inside: {asked:?}");
    assert!(asked[1].starts_with("scheduling asks to call: ") && asked[2].starts_with("scheduling asks to call: "));
    let told = model.requests().last().unwrap()["messages"].to_string();
    assert!(told.contains("planned Review on 2026-11-16 at 10:00"), "{told}");
}
