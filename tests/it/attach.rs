//! Programs that attach to a binding of a process that runs: through `skein mcp --attach`, and over HTTP.

#![expect(clippy::expect_used, reason = "what a test cannot go on without ends it")]

use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use rmcp::ServiceExt as _;
use rmcp::model::CallToolRequestParams;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Value, json};
use skein::adapter::attach::{Attachments, SocketOffer};
use skein::adapter::export::{BindingServer, BindingSource, ToolNaming};
use skein::broker::{BindRequest, Binding};
use skein::manifest::ApprovalLevel;
use skein::network;
use skein::task::TaskScope;
use skein::tool::ask::NoAsker;

use crate::client::{Client, PATIENCE};
use crate::support::{Sandbox, Wired, agent, arguments, echo, full_tests, inspector, mode, with};

/// A process in which bindings of `test/…` can be attached to.
struct Offering {
    wired: Wired,
    scope: TaskScope,
    attachments: Attachments,
}

impl Offering {
    fn start() -> Self {
        let groups = json!({"groups": {"talk": ["echo", "add", "sleep"], "write": ["append"]}});
        let wired = Wired::with_manifests(&[
            with(echo("echo", &[]), groups),
            agent(&[
                mode("narrow", json!(["talk"]), json!(["echo"])),
                mode("wide", json!(["talk", "write"]), json!(["echo"])),
            ]),
        ]);
        let scope = TaskScope::new();
        let attachments = Attachments::new(wired.path("run"), &scope);
        Self { wired, scope, attachments }
    }

    async fn binding(&self, mode: &str, approval: ApprovalLevel) -> Arc<Binding> {
        let session = self.wired.session("session");
        let terms =
            BindRequest { session, approval: Some(approval), asker: Arc::new(NoAsker), client_services: Vec::new() };
        Arc::new(self.wired.bind_terms(mode, terms).await.expect("bound"))
    }

    fn export(&self, source: impl Into<BindingSource>) -> BindingServer {
        BindingServer::new(source, self.wired.session("session"), ToolNaming::Qualified, "For a test.")
    }

    async fn narrow(&self) -> BindingServer {
        self.export(self.binding("narrow", ApprovalLevel::Auto).await)
    }

    async fn offer(&self) -> SocketOffer {
        self.attachments.offer(self.narrow().await).expect("an offer")
    }

    async fn stop(self) {
        self.scope.stop().await;
        self.wired.stop().await;
    }
}

/// The shim, in an environment that has nothing else.
#[expect(clippy::disallowed_methods, reason = "the program under test is started from outside")]
fn shim(socket: &std::path::Path, token: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skein"));
    command.args(["mcp", "--attach"]).env_clear().current_dir("/");
    command.env("SKEIN_ATTACH_SOCKET", socket).env("SKEIN_ATTACH_TOKEN", token).stdin(Stdio::null());
    command
}

fn attach(offer: &SocketOffer) -> Command {
    shim(&offer.socket, &offer.token)
}

/// What the shim says when it is not let in.
fn refused(mut command: Command) -> String {
    let output = command.output().expect("the program starts");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
    String::from_utf8(output.stderr).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn attached_program_has_exactly_the_modes_tools() {
    let offering = Offering::start();
    let offer = offering.offer().await;
    let permissions = |path: &std::path::Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    assert_eq!(permissions(&offer.socket), 0o600);
    assert_eq!(permissions(&offering.wired.path("run")), 0o700);
    assert!(skein::runtime::reports(&offering.wired.path("run")).is_empty(), "it is no status socket");
    assert!(!format!("{offer:?}").contains(&offer.token));

    let (mut client, greeting) = Client::connect(attach(&offer));
    assert!(greeting["instructions"].as_str().expect("text").starts_with("For a test."), "{greeting}");
    assert_eq!(client.tools(), ["echo__add", "echo__echo", "echo__sleep"]);
    assert_eq!(client.call("echo__add", json!({"a": 40, "b": 2}))["content"][0]["text"], "42");
    let file = offering.wired.path("touched").display().to_string();
    let append = json!({"name": "echo__append", "arguments": {"file": file, "text": "x"}});
    let error = client.request("tools/call", append)["error"]["message"].to_string();
    assert!(error.contains("there is no tool `echo__append` in test/narrow"), "{error}");
    assert_eq!(offering.wired.text("touched"), "");

    let slow =
        json!({"name": "echo__sleep", "arguments": {"ms": 100, "progress_every": 10}, "_meta": {"progressToken": 7}});
    client.result("tools/call", slow);
    let progress = client.notifications.iter().filter(|one| one["method"] == "notifications/progress");
    assert!(progress.inspect(|one| assert_eq!(one["params"]["progressToken"], 7)).count() > 0);

    client.hang_up();
    assert!(client.ended().success());
    let socket = offer.socket.clone();
    drop(offer);
    offering.stop().await;
    assert!(!socket.exists(), "nothing is left of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_good_once_and_no_other_is_good() {
    let offering = Offering::start();
    let (offer, other) = (offering.offer().await, offering.offer().await);
    assert_ne!(offer.token, other.token);
    assert_eq!(offer.socket, other.socket);
    let wrong = "0".repeat(64);
    for token in [wrong.as_str(), "x", &offer.token[..63], &format!("{}0", offer.token)] {
        let said = refused(shim(&offer.socket, token));
        assert!(said.contains("skein does not let this in: the token is unknown"), "{token}: {said}");
    }
    let (mut client, _) = Client::connect(attach(&offer));
    let said = refused(attach(&offer));
    assert!(said.contains("the token was used already, and it is good once"), "{said}");
    assert!(said.contains("start the agent that uses it again"), "{said}");
    assert_eq!(client.tools().len(), 3, "the first one is served as before");
    drop(other);
    drop(client);
    offering.stop().await;
    let said = refused(attach(&offer));
    assert!(said.contains("cannot be reached"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_withdrawn_ends() {
    let offering = Offering::start();
    let (used, unused) = (offering.offer().await, offering.offer().await);
    let withdrawn = attach(&unused);
    let (mut client, _) = Client::connect(attach(&used));
    // A call that runs ends, too.
    client.ask("tools/call", json!({"name": "echo__sleep", "arguments": {"ms": 600_000}}));
    drop((used, unused));
    assert!(client.ended().success());
    assert!(refused(withdrawn).contains("its offer was withdrawn"));
    offering.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_that_is_replaced_judges_the_next_call() {
    let offering = Offering::start();
    let current = Arc::new(Mutex::new(offering.binding("wide", ApprovalLevel::Auto).await));
    let replace = |binding| *current.lock().expect("the binding") = binding;
    let source = Arc::clone(&current);
    let source = BindingSource::new(move || Arc::clone(&source.lock().expect("the binding")));
    let offer = offering.attachments.offer(offering.export(source)).expect("an offer");
    let (mut client, _) = Client::connect(attach(&offer));
    let listed = client.tools();
    assert_eq!(listed, ["echo__add", "echo__append", "echo__echo", "echo__sleep"]);
    assert_eq!(client.call("echo__echo", json!({"text": "hi"}))["isError"], json!(false));

    replace(offering.binding("wide", ApprovalLevel::Deny).await);
    let denied = client.call("echo__echo", json!({"text": "hi"}));
    assert_eq!(denied["isError"], json!(true));
    assert!(denied["content"][0]["text"].as_str().expect("text").contains("allows no tool calls"), "{denied}");

    // The list stays, and what is in it and no longer there is refused.
    replace(offering.binding("narrow", ApprovalLevel::Auto).await);
    assert_eq!(client.tools(), listed);
    let file = offering.wired.path("touched").display().to_string();
    let gone = client.call("echo__append", json!({"file": file, "text": "x"}));
    assert!(gone["content"][0]["text"].as_str().expect("text").contains("there is no tool `echo__append`"), "{gone}");
    assert_eq!(offering.wired.text("touched"), "");
    assert_eq!(client.call("echo__echo", json!({"text": "hi"}))["isError"], json!(false));
    drop((client, offer, current));
    offering.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_say_nothing_hold_up_nobody_and_are_dropped() {
    let offering = Offering::start();
    let offer = offering.offer().await;
    let connect = || UnixStream::connect(&offer.socket).expect("connected");
    let silent: Vec<_> = (0..50).map(|_| connect()).collect();
    let mut chatty = connect();
    // It may be closed before all of it was taken.
    drop(chatty.write_all(&[b'a'; 1 << 20]));
    let (mut client, _) = Client::connect(attach(&offer));
    assert_eq!(client.tools().len(), 3);
    for mut stream in silent {
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("it is closed");
        assert_eq!(said, "no token was shown in time\n");
    }
    drop((client, offer));
    offering.stop().await;
}

/// Reads an answer over HTTP as far as it has come.
fn read_some(stream: &mut impl Read) -> String {
    let mut bytes = vec![0; 4096];
    let read = stream.read(&mut bytes).expect("an answer in time");
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_token_are_limited() {
    let offering = Offering::start();
    let offer = offering.offer().await;
    let known = UnixStream::connect(&offer.socket).expect("connected");
    known.set_read_timeout(Some(PATIENCE)).expect("a limit");
    (&known).write_all(format!("{}\n", offer.token).as_bytes()).expect("sent");
    assert_eq!(read_some(&mut &known), "attached\n");
    let mut streams: Vec<_> = (0..129).map(|_| UnixStream::connect(&offer.socket).expect("connected")).collect();
    let last = streams.last_mut().expect("a stream");
    last.set_read_timeout(Some(PATIENCE)).expect("a limit");
    assert_eq!(read_some(last), "", "it is closed without an answer");
    streams.truncate(128);
    streams[0].set_read_timeout(Some(PATIENCE)).expect("a limit");
    assert_eq!(read_some(&mut streams[0]), "no token was shown in time\n");
    drop(streams);

    let address = offering.attachments.http_address().expect("an address");
    let mut streams: Vec<_> = (0..129).map(|_| TcpStream::connect(address).expect("connected")).collect();
    let last = streams.last_mut().expect("a stream");
    last.set_read_timeout(Some(PATIENCE)).expect("a limit");
    assert_eq!(read_some(last), "", "it is closed without an answer");
    drop((streams, known, offer));
    offering.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_reads_no_answers_is_cut_off() {
    let offering = Offering::start();
    let offer = offering.offer().await;
    let mut stream = UnixStream::connect(&offer.socket).expect("connected");
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    stream.write_all(format!("{}\n{}\n{ready}\n", offer.token, hello()).as_bytes()).expect("sent");
    let ping = |id: &u32| writeln!(stream, "{}", json!({"jsonrpc": "2.0", "id": id, "method": "ping"})).is_ok();
    let sent = (2..200_000).take_while(ping).count();
    assert!((1_024..100_000).contains(&sent), "{sent}");
    drop(offer);
    offering.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offer_has_a_limited_number_of_connections() {
    let offering = Offering::start();
    let offer = offering.attachments.offer_http(offering.narrow().await).expect("an offer");
    let address = offering.attachments.http_address().expect("an address");
    // No session, so that only the connection stays.
    let request = format!("GET /mcp HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\n\r\n", offer.token);
    let ask = || {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        stream.write_all(request.as_bytes()).expect("sent");
        let answer = read_some(&mut stream);
        (stream, answer)
    };
    let open: Vec<_> = (0..128).map(|_| ask()).collect();
    for (_, answer) in &open {
        assert!(answer.starts_with("HTTP/1.1 4") && !answer.starts_with("HTTP/1.1 401"), "{answer}");
    }
    let (_, refused) = ask();
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    drop((open, offer));
    offering.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offer_has_a_limited_number_of_sessions() {
    let offering = Offering::start();
    let offer = offering.attachments.offer_http(offering.narrow().await).expect("an offer");
    let bearer = format!("Bearer {}", offer.token);
    let client = network::client_builder().build().expect("a client");
    for _ in 0..256 {
        assert_eq!(status_of(&client, &offer.url, &[("authorization", &bearer)]).await, 200);
    }
    assert_eq!(status_of(&client, &offer.url, &[("authorization", &bearer)]).await, 503);
    drop(offer);
    offering.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inspector_attaches() {
    if !full_tests() {
        return;
    }
    let offering = Offering::start();
    let offer = offering.offer().await;
    let sandbox = Sandbox::new();
    let (code, listed, said) = inspector(&sandbox, &attach(&offer), &["tools/list"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(listed["tools"][0]["name"], "echo__add");
    drop(offer);
    offering.stop().await;
}

#[test]
fn without_its_variables_the_shim_says_what_it_is_for() {
    let sandbox = Sandbox::new();
    let run = sandbox.skein(&["mcp", "--attach"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("SKEIN_ATTACH_SOCKET is not set"), "{}", run.stderr);
    assert!(!sandbox.path("data").exists(), "it leaves nothing behind");
    let both = sandbox.skein(&["mcp", "--attach", "-a", "coding"]);
    assert_eq!(both.code, 2, "{}", both.stderr);
}

// over HTTP

fn hello() -> String {
    let params =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string()
}

/// The status of an `initialize` with these headers.
async fn status(url: &str, headers: &[(&'static str, &str)]) -> u16 {
    status_of(&network::client_builder().build().expect("a client"), url, headers).await
}

async fn status_of(client: &reqwest::Client, url: &str, headers: &[(&'static str, &str)]) -> u16 {
    let mut request = client.post(url).body(hello());
    request = request.header("content-type", "application/json");
    request = request.header("accept", "application/json, text/event-stream");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.expect("an answer").status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_every_request_shows_the_token() {
    let offering = Offering::start();
    let offer = offering.attachments.offer_http(offering.narrow().await).expect("an offer");
    assert!(offer.url.starts_with("http://127.0.0.1:"), "{}", offer.url);
    let bearer = format!("Bearer {}", offer.token);
    assert_eq!(status(&offer.url, &[]).await, 401);
    assert_eq!(status(&offer.url, &[("authorization", "Bearer x")]).await, 401);
    assert_eq!(status(&offer.url, &[("authorization", &offer.token)]).await, 401);
    let from_a_page = [("authorization", bearer.as_str()), ("origin", "http://127.0.0.1:8000")];
    assert_eq!(status(&offer.url, &from_a_page).await, 403);
    let by_another_name = [("authorization", bearer.as_str()), ("host", "example.org")];
    assert_eq!(status(&offer.url, &by_another_name).await, 403);
    assert_eq!(status(&offer.url, &[("authorization", &bearer)]).await, 200);

    let mut config = StreamableHttpClientTransportConfig::with_uri(offer.url.as_str());
    config.auth_header = Some(offer.token.clone());
    let client = ().serve(StreamableHttpClientTransport::from_config(config)).await.expect("served");
    let listed = client.list_all_tools().await.expect("tools");
    assert_eq!(
        listed.iter().map(|tool| tool.name.as_ref()).collect::<Vec<_>>(),
        ["echo__add", "echo__echo", "echo__sleep"]
    );
    let call = |name: &'static str, with: Value| CallToolRequestParams::new(name).with_arguments(arguments(with));
    let sum = client.call_tool(call("echo__add", json!({"a": 40, "b": 2}))).await.expect("a sum");
    assert_eq!(sum.content[0].as_text().expect("text").text, "42");
    let error = client.call_tool(call("echo__append", json!({}))).await.expect_err("not in the mode").to_string();
    assert!(error.contains("there is no tool `echo__append`"), "{error}");

    let url = offer.url.clone();
    drop(offer);
    client.call_tool(call("echo__add", json!({"a": 1, "b": 2}))).await.expect_err("withdrawn");
    let http = network::client_builder().build().expect("a client");
    // The server stays for other offers, and refuses the token of this one.
    let gone = http.post(url).bearer_auth("x").body(hello()).send().await.expect("an answer");
    assert_eq!(gone.status(), 401);
    drop(client);
    offering.stop().await;
}
