//! Keys of clients, stored keys and keys in requests; and places that need a running server or a child to be looked at:
//! console pages, metrics, environments of children. `secret_canaries` has the other sources and places.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::Command;

use regex::Regex;
use serde_json::{Value, json};

use crate::console::Browser;
use crate::keyring::{self, Desktop};
use crate::secret_canaries::{KEYS, OUTPUT, PROMPT, files_with, key, model, sandbox_with_keys};
use crate::support::acp::Acp;
use crate::support::http::{HttpServer, Reply, good_server};
use crate::support::model::{Answer, ScriptedModel, has_result};
use crate::support::serve::{Server, bearer, eventually, token};
use crate::support::{Sandbox, full_tests, read, repository, servers};

pub(crate) const ARGUMENT: &str = "canary-argument-2c6f18";
pub(crate) const ASSIGNMENT: &str = "canary-assignment-d05b7e";
pub(crate) const VARIABLE: &str = "canary-client-variable-47a1c9";
pub(crate) const HEADER: &str = "canary-client-header-b3e82f";
pub(crate) const QUERY: &str = "canary-client-query-5f90d4";
/// In a manifest that an administrator edits in the console.
const EDITED: &str = "canary-edited-e61a30";

/// Streams, which do not end. Their updates are the HTML of the pages.
const STREAMS: [&str; 2] = ["/console/events", "/console/socket"];

/// Fails if a text has one of the keys.
pub(crate) fn assert_clean<'a>(place: &str, text: &str, keys: impl IntoIterator<Item = &'a str>) {
    for key in keys {
        assert!(!text.contains(key), "{key} is in {place}: {text}");
    }
}

/// Fails if a file that the program wrote has one of the keys: the store, the log, temporary files.
pub(crate) fn assert_clean_files<'a>(sandbox: &Sandbox, keys: impl IntoIterator<Item = &'a str>) {
    for key in keys {
        for place in ["data", "home", "tmp", "errors"] {
            assert_eq!(files_with(&sandbox.path(place), key, ""), [""; 0], "{key} is in {place}");
        }
    }
}

/// The command with a receiver of traces, a folder for temporary files, and its stderr in a file.
pub(crate) fn observed(sandbox: &Sandbox, mut command: Command, receiver: &HttpServer) -> Command {
    for folder in ["tmp", "errors"] {
        std::fs::create_dir_all(sandbox.path(folder)).expect("a folder");
    }
    let errors = File::options().create(true).append(true).open(sandbox.path("errors/stderr"));
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url.trim_end_matches("/mcp"));
    command.env("TMPDIR", sandbox.path("tmp")).stderr(errors.expect("a file for stderr"));
    command
}

/// Everything that a receiver of traces got.
pub(crate) fn traces(receiver: &HttpServer) -> String {
    receiver.requests().iter().map(|request| request.text.clone()).collect()
}

/// The log so far.
pub(crate) fn logged(sandbox: &Sandbox) -> String {
    read(sandbox.path("data/state/log/skein.log"))
}

/// The stored sessions in both formats of an export.
fn exports(sandbox: &Sandbox) -> String {
    let listed = sandbox.skein(&["sessions", "list", "--json"]).json();
    let ids = listed.as_array().expect("sessions").iter().map(|session| session["id"].as_str().expect("an id"));
    let export = |id: &str, format: &str| sandbox.skein(&["sessions", "export", id, "--format", format]).stdout;
    ids.map(|id| export(id, "json") + &export(id, "markdown")).collect()
}

/// Every page that the console has for GET, with this session.
fn console_pages(session: &str) -> BTreeSet<String> {
    let source = read(repository("src/serve/console.rs"));
    let route = Regex::new(r#"\.route\("(/console[^"]*)", get\("#).unwrap();
    let routes: BTreeSet<_> = route.captures_iter(&source).map(|found| found[1].to_owned()).collect();
    assert!(routes.len() >= 20, "{routes:?}");
    let pages = routes.into_iter().filter(|path| !STREAMS.contains(&path.as_str())).flat_map(|path| {
        let names: &[&str] = match path.as_str() {
            "/console/services/{name}" => &["good", "bad", "away", "edited"],
            "/console/assets/{name}" => &["console.js"],
            _ => &["none"],
        };
        let query = match path.rsplit('/').next() {
            Some("entries") => "?after=0",
            Some("export") => "?format=json",
            Some("edit" | "preview" | "form" | "save") => "?file=services%2Fedited.yaml",
            _ => "",
        };
        let path = path.replace("{id}", session).replace("{agent}/{mode}", "test/good");
        names.iter().map(move |name| format!("{}{query}", path.replace("{name}", name)))
    });
    let pages: BTreeSet<_> = pages.collect();
    assert!(pages.iter().all(|page| !page.contains('{')), "a page with another parameter: {pages:?}");
    pages
}

/// The pages as this browser gets them, with their paths.
pub(crate) fn console_texts(browser: &Browser<'_>, session: &str) -> Vec<(String, String)> {
    let pages = console_pages(session).into_iter().map(|page| {
        let answer = browser.get(&page);
        // There is no app with this name, and not every test has this service.
        let may_be_missing = page.contains("/none") || page.ends_with("/edited");
        let is_expected = [200, 204, 303].contains(&answer.status) || (may_be_missing && answer.status == 404);
        assert!(is_expected, "{page}: {answer:?}");
        (page, answer.body)
    });
    pages.collect()
}

/// Opens a session in a mode of the agent `test`. Returns its path; `None` if that is refused.
fn open_session(browser: &Browser<'_>, sandbox: &Sandbox, mode: &str, prompt: &str) -> (Option<String>, String) {
    let folder = sandbox.path("project").to_string_lossy().into_owned();
    let fields = [("mode", mode), ("folder", folder.as_str()), ("prompt", prompt)];
    let answer = browser.post("/console/sessions", &fields);
    (answer.header("x-console-next").map(str::to_owned), answer.body)
}

fn wait_for_turn(browser: &Browser<'_>, path: &str) {
    eventually("the turn has ended", || browser.get(&format!("{path}/entries?after=0")).json()["running"] == false);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_of_the_console_has_a_key() {
    let (sandbox, model) = (sandbox_with_keys(), model());
    let receiver = HttpServer::start(|_| Reply::Status(200)).await;
    sandbox.write("config/config.yaml", "version: 1\napproval: ask\n");
    let manifest = format!(
        "version: 1\nkind: service\nname: edited\ndescription: For a test.\ntransport:\n  http:\n    \
         url: http://127.0.0.1:9/\n    headers:\n      authorization: Bearer {EDITED}\n"
    );
    sandbox.write("config/services/edited.yaml", &manifest);
    let command = sandbox.command(&["--manifests", "wiring", "console", "--no-browser"]);
    let mut command = observed(&sandbox, model.offered_to(command), &receiver);
    command.env("OPENAI_API_KEY", key("the key of the model"));
    command.env("OTEL_EXPORTER_OTLP_HEADERS", format!("x-key={}", key("a header for telemetry")));
    let mut server = Server::launch(command);
    let line = server.line();
    let browser = Browser::log_in_with_code(&server, &line);
    let (path, refusal) = open_session(&browser, &sandbox, "test/good", PROMPT);
    let path = path.unwrap_or_else(|| panic!("{refusal}"));
    let rows = || browser.get("/console/approvals/rows").body;
    eventually("the session asks", || rows().contains("data-state=\"open\""));
    let mut texts = vec![("an open request".to_owned(), rows())];
    let number = rows().split("data-request=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    assert_eq!(browser.post(&format!("/console/approvals/{number}"), &[("answer", "allow")]).status, 204);
    wait_for_turn(&browser, &path);
    for mode in ["test/bad", "test/away"] {
        let (failed, refusal) = open_session(&browser, &sandbox, mode, "hello");
        texts.push((mode.to_owned(), refusal));
        if let Some(failed) = failed {
            wait_for_turn(&browser, &failed);
            texts.push((mode.to_owned(), browser.get(&failed).body));
        }
    }
    eventually("the service has said why it ended", || {
        // The page has the key as it is in the manifest.
        browser.get("/console/services/bad").body.contains("no-such-flag-${env:API_TOKEN}")
    });
    let session = path.rsplit('/').next().expect("an id");
    texts.extend(console_texts(&browser, session));
    // The test can fail: the pages show the session, the errors and the manifest.
    let text_of = |page: &str| &texts.iter().find(|(known, _)| known.starts_with(page)).expect("a page").1;
    assert!(text_of(&path).contains(PROMPT) && text_of(&path).contains(OUTPUT), "{}", text_of(&path));
    assert!(text_of("/console/health").contains("skein_turns_total"));
    assert!(text_of("/console/services/edited").contains("For a test."));
    assert!(text_of("/console/manifests/edit").contains(EDITED), "an administrator edits the file");
    assert!(model.keys().iter().any(|sent| sent.contains(key("the key of the model"))));
    let keys = || KEYS.iter().map(|(_, canary)| *canary);
    for (page, text) in &texts {
        assert_clean(page, text, keys());
        if !page.contains("?file=") {
            assert_clean(page, text, [EDITED]);
        }
    }
    server.interrupt();
    assert_eq!(server.wait(), 0);
    let traces = traces(&receiver);
    assert!(traces.contains("execute_tool"), "no spans arrived");
    assert_clean("traces", &traces, keys().chain([EDITED, PROMPT, OUTPUT]));
    assert_clean("the log", &logged(&sandbox), [PROMPT, OUTPUT]);
    // The test wrote one of them into the home.
    assert_clean_files(&sandbox, keys().filter(|canary| *canary != key("a key in a file of keys")).chain([EDITED]));
}

/// Repeats what it was given, and ends.
pub(crate) fn loud_server() -> Value {
    let script = "echo \"refused: $* $SERVICE_KEY\" >&2; exit 1";
    let assigned = format!("--token={ASSIGNMENT}");
    let args = ["-c", script, "loud", "--api-key", ARGUMENT, assigned.as_str()];
    json!({"name": "loud", "command": "/bin/sh", "args": args, "env": [{"name": "SERVICE_KEY", "value": VARIABLE}]})
}

pub(crate) fn remote_server(name: &str, url: &str) -> Value {
    let headers = json!([{"name": "Authorization", "value": format!("Bearer {HEADER}")}]);
    json!({"type": "http", "name": name, "url": format!("{url}?key={QUERY}"), "headers": headers})
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_of_a_clients_server_is_kept_or_shown() {
    let receiver = HttpServer::start(|_| Reply::Status(200)).await;
    // It refuses a call, and repeats the request.
    let server = HttpServer::start(|request| {
        let (id, head) = (request.body["id"].clone(), request.head.replace("\r\n", " "));
        good_server(request, move || {
            let error = json!({"code": -32000, "message": format!("refused: {head}")});
            Reply::Json(json!({"jsonrpc": "2.0", "id": id, "error": error}))
        })
    })
    .await;
    let sandbox = Sandbox::new().with("SKEIN_LOG", "debug");
    let command = observed(&sandbox, sandbox.command(&["acp"]), &receiver);
    let mut client = Acp::launch(&sandbox, command);
    client.introduce(&json!({"session": {"notices": {}}}));
    client.on_permission("allow_once");
    let mark = client.mark();
    // Nobody listens on the discard port.
    let away = remote_server("away", "http://127.0.0.1:9/mcp");
    let session = client.session_with(json!([loud_server(), remote_server("host", &server.url), away]));
    for name in ["loud", "away"] {
        client.wait(mark, &format!("a notice of {name}"), |message| {
            let update = &message["params"]["update"];
            update["sessionUpdate"] == "notice" && update.to_string().contains(name)
        });
    }
    client.prompt(&session, "/host.greet {}");
    assert_eq!(client.finish().1, 0);
    // The test can fail: the keys arrived, and those who got them repeated them.
    let heads: String = server.requests().iter().map(|request| request.head.clone()).collect();
    assert!(heads.contains(HEADER) && heads.contains(QUERY), "{heads}");
    let told: String = client.heard().iter().map(Value::to_string).collect();
    assert!(told.contains("refused: POST"), "{told}");
    let log = logged(&sandbox);
    assert!(log.contains("refused: --api-key ${env:api-key} --token=${env:token} ${env:SERVICE_KEY}"), "{log}");
    let exported = exports(&sandbox);
    assert!(exported.contains("/host.greet"), "{exported}");
    let traces = traces(&receiver);
    assert!(traces.contains("start_service"), "no spans arrived");
    let keys = [ARGUMENT, ASSIGNMENT, VARIABLE, HEADER, QUERY];
    assert_clean("what the client is told", &told, keys);
    assert_clean("the log", &log, keys);
    assert_clean("stderr", &read(sandbox.path("stderr")), keys);
    assert_clean("exports", &exported, keys);
    assert_clean("traces", &traces, keys);
    assert_clean_files(&sandbox, keys);
}

/// The library that speaks MCP would log the whole notification.
#[test]
fn a_key_in_a_log_message_of_a_server_is_not_logged() {
    let sandbox = Sandbox::new().with("SKEIN_LOG", "debug");
    let mut client = Acp::able(&sandbox, &[], &json!({"session": {"notices": {}}}));
    client.on_permission("allow_once");
    let env = json!([{"name": "SERVICE_KEY", "value": VARIABLE}]);
    let server = json!({"name": "parrot", "command": servers::mcp_echo(), "args": ["--talks"], "env": env});
    let session = client.session_with(json!([server]));
    // The second one waits until the client has heard both.
    for tool in ["whisper", "warn"] {
        client.prompt(&session, &format!("/parrot.{tool} {}", json!({"text": format!("{tool}: {VARIABLE}")})));
    }
    assert_eq!(client.finish().1, 0);
    for (place, text) in [("the log", logged(&sandbox)), ("stderr", read(sandbox.path("stderr")))] {
        for tool in ["warn", "whisper"] {
            assert!(text.contains(&format!("it says: {tool}: ${{env:SERVICE_KEY}}")), "{tool} in {place}: {text}");
        }
        assert_clean(place, &text, [VARIABLE]);
    }
}

#[test]
fn a_key_in_the_refusal_of_a_subscription_is_not_logged() {
    let sandbox = Sandbox::new().with("SKEIN_LOG", "debug");
    let mut client = Acp::able(&sandbox, &[], &json!({"session": {"notices": {}}}));
    client.on_permission("allow_once");
    let env = json!([{"name": "SERVICE_KEY", "value": VARIABLE}]);
    let args = ["--talks", "--newer", "--refuse-subscriptions"];
    let server = json!({"name": "parrot", "command": servers::mcp_echo(), "args": args, "env": env});
    let session = client.session_with(json!([server]));
    client.prompt(&session, "/parrot.whisper {\"text\": \"hello\"}");
    eventually("the refusal is logged", || logged(&sandbox).contains("changes of its lists are not received"));
    assert_eq!(client.finish().1, 0);
    let log = logged(&sandbox);
    assert!(log.contains("no subscription with ${env:SERVICE_KEY}"), "{log}");
    assert_clean("the log", &log, [VARIABLE]);
    assert_clean("stderr", &read(sandbox.path("stderr")), [VARIABLE]);
}

/// Shows its environment, with a service if it has one, and else with the shell.
fn environment_model() -> ScriptedModel {
    ScriptedModel::new(|request| {
        let has_service = request["tools"].to_string().contains("good__env");
        match (has_result(request), has_service) {
            (true, _) => Answer::Says(vec!["goodbye".to_owned()]),
            (false, true) => Answer::Calls { id: "call-1", tool: "good__env", arguments: json!({}) },
            (false, false) => {
                Answer::Calls { id: "call-1", tool: "developer__shell", arguments: json!({"command": "env"}) }
            }
        }
    })
}

/// Stores a key, uses it, and looks for it everywhere. `files` may have it.
async fn search_stored_key(sandbox: &Sandbox, bus: &str, location: &str, files: &[&str]) {
    let receiver = HttpServer::start(|_| Reply::Status(200)).await;
    let model = environment_model();
    let hook = "version: 1\nhooks:\n  UserPromptSubmit:\n    - hooks:\n        - command: env > hook.txt\n";
    sandbox.write("config/config.yaml", hook);
    let configured = keyring::skein(sandbox, bus, model.address(), keyring::CONFIGURE, &format!("{}\n", keyring::KEY));
    assert_eq!(keyring::kept_in(&configured), location);
    let command = |args: &[&str]| {
        let mut command = observed(sandbox, sandbox.command(args), &receiver);
        command.env("DBUS_SESSION_BUS_ADDRESS", bus).env("OPENAI_BASE_URL", model.address());
        command.env("OTEL_EXPORTER_OTLP_HEADERS", format!("x-key={}", key("a header for telemetry")));
        command
    };
    let wired = ["--manifests", "wiring", "--record", "recording.jsonl"];
    let mut said = String::new();
    let runs: [(&[&str], [&str; 2]); 2] = [(&wired, ["test", "good"]), (&[], ["goose", "assistant"])];
    for (flags, [agent, mode]) in runs {
        let rest = ["--approval", "auto", "run", "hello", "-a", agent, "-m", mode];
        let output = command(&[flags, &rest[..]].concat()).output().expect("the program runs");
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(answer.contains("goodbye"), "{answer}");
        said.push_str(&answer);
    }
    said.push_str(&keyring::skein(sandbox, bus, model.address(), &["doctor"], "").whole());
    said.push_str(&exports(sandbox));
    let listed = sandbox.skein(&["sessions", "list", "--json"]).json();
    let mut server = Server::launch(command(&["--manifests", "wiring", "console", "--no-browser"]));
    let line = server.line();
    let browser = Browser::log_in_with_code(&server, &line);
    said.extend(console_texts(&browser, listed[0]["id"].as_str().expect("an id")).into_iter().map(|(_, text)| text));
    server.interrupt();
    assert_eq!(server.wait(), 0);
    // The test can fail: the key was used, and children showed their environments.
    assert!(!model.keys().is_empty() && model.keys().iter().all(|sent| sent.ends_with(keyring::KEY)));
    let recording = read(sandbox.path("project/recording.jsonl"));
    let hook = read(sandbox.path("project/hook.txt"));
    for (place, text) in [("the exports", &said), ("the recording", &recording), ("the hook", &hook)] {
        assert!(text.contains("PATH"), "{place}: {text}");
    }
    let traces = traces(&receiver);
    assert!(traces.contains("execute_tool"), "no spans arrived");
    // A service has what its manifest gives it. It may repeat that to the model, but the recording does not have it.
    let given = ["a variable that manifests name", "the environment of a service in a manifest"].map(key);
    let others = || KEYS.iter().map(|(_, canary)| *canary).filter(move |canary| !given.contains(canary));
    assert!(given.iter().all(|canary| said.contains(canary)), "the service shows its variables: {said}");
    assert_clean("what commands and pages show", &said, others().chain([keyring::KEY]));
    assert_clean("the recording", &recording, others().chain(given).chain([keyring::KEY]));
    assert_clean("the environment of a hook", &hook, others().chain(given).chain([keyring::KEY]));
    assert_clean("traces", &traces, others().chain(given).chain([keyring::KEY]));
    assert_eq!(keyring::files_with_the_key(sandbox), files);
    for place in ["tmp", "project", "errors"] {
        assert_eq!(files_with(&sandbox.path(place), keyring::KEY, ""), [""; 0], "{place}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_the_keyring_stays_there() {
    if !full_tests() {
        return;
    }
    let sandbox = sandbox_with_keys();
    let desktop = Desktop::start(&sandbox);
    search_stored_key(&sandbox, &desktop.address, "keyring", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_the_file_of_keys_stays_there() {
    search_stored_key(&sandbox_with_keys(), "", "file", &["keys.json"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_error_of_a_provider_repeats_a_key_of_the_config() {
    let provider = HttpServer::start(|request| {
        let message = format!("refused: {}", request.head.replace("\r\n", " "));
        Reply::Full(401, String::new(), json!({"error": {"message": message}}))
    })
    .await;
    let sandbox =
        Sandbox::new().with("OWN_KEY", VARIABLE).with("SKEIN_MODEL", "own:scripted").with("SKEIN_LOG", "debug");
    let address = provider.url.replace("/mcp", "/v1/");
    let config = format!("version: 1\nproviders:\n  own:\n    base_url: '{address}?key={QUERY}'\n    key: OWN_KEY\n");
    sandbox.write("config/config.yaml", &config);
    let failed = sandbox.skein(&["run", "-a", "goose", "hello"]).whole();
    let mut said = failed.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("refused: POST") && said.contains("(key of the address)"), "{said}");
    said.push_str(&sandbox.skein(&["doctor"]).whole());
    said.push_str(&exports(&sandbox));
    let heads: String = provider.requests().iter().map(|request| request.head.clone()).collect();
    assert!(heads.contains(QUERY) && heads.contains(VARIABLE), "{heads}");
    assert_clean("what commands print", &said, [QUERY, VARIABLE]);
    assert_clean_files(&sandbox, [QUERY, VARIABLE]);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_in_requests_reach_neither_log_nor_metrics() {
    const COOKIE: &str = "canary-cookie-8c14f7";
    const WRONG: &str = "canary-wrong-token-13d6ab";
    let receiver = HttpServer::start(|_| Reply::Status(200)).await;
    let model = ScriptedModel::new(|_| Answer::Says(vec![OUTPUT.to_owned()]));
    let sandbox = Sandbox::new().with("SKEIN_LOG", "debug");
    let command = model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"]));
    let mut server = Server::launch(observed(&sandbox, command, &receiver));
    let root = sandbox.path("project").display().to_string();
    let token = token(&sandbox, "ci", &["--root", &root]);
    let (authorization, cookie) = (bearer(&token), format!("other={COOKIE}"));
    let headers = [("authorization", authorization.as_str()), ("x-api-key", HEADER), ("cookie", cookie.as_str())];
    for path in ["/agents", "/metrics", "/console/login", "/console/sessions", "/nowhere"] {
        server.request("GET", &format!("{path}?key={QUERY}"), &headers, "");
        server.request("GET", &format!("{path}?key={QUERY}"), &[("authorization", &bearer(WRONG))], "");
    }
    server.request("POST", &format!("/mcp/agents?key={QUERY}"), &headers, "{}");
    let run = json!({"agent_name": "goose-assistant", "input": [{"parts": [{"content": PROMPT}]}]}).to_string();
    let ran = server.request("POST", "/runs", &headers, &run);
    assert!(ran.status == 200 && ran.body.contains(OUTPUT), "{ran:?}");
    let metrics = server.get("/metrics", &token).body;
    assert!(metrics.contains("skein_turns_total"), "{metrics}");
    server.interrupt();
    assert_eq!(server.wait(), 0);
    // The test can fail: the log has the requests, and the receiver has spans of the turn.
    let (log, traces) = (logged(&sandbox), traces(&receiver));
    for path in ["/agents", "/metrics"] {
        assert!(log.contains(&format!("\"path\":\"{path}\"")), "{path}: {log}");
    }
    assert!(traces.contains("invoke_agent"), "no spans arrived");
    let secret = token.rsplit('_').next().expect("a secret");
    let keys = [QUERY, HEADER, COOKIE, WRONG, secret];
    assert_clean("metrics", &metrics, keys.into_iter().chain([PROMPT, OUTPUT]));
    assert_clean("traces", &traces, keys.into_iter().chain([PROMPT, OUTPUT]));
    assert_clean("the log", &log, [PROMPT, OUTPUT]);
    assert_clean_files(&sandbox, keys);
}
