//! Keys in every source that Skein reads, searched for in every place that Skein writes.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::http::{HttpServer, Reply};
use crate::support::model::{Answer, ScriptedModel, has_result};
use crate::support::outside;
use crate::support::peers::Peer;
use crate::support::serve::{Server, bearer, token};
use crate::support::{Sandbox, agent, echo, files_below, mode, service, with};

/// Keys. No place may have one.
pub(crate) const KEYS: [(&str, &str); 8] = [
    ("the key of the model", "canary-model-5d1f0c"),
    ("a variable that manifests name", "canary-variable-8a77e2"),
    ("a variable that nobody names", "canary-unnamed-c3b91d"),
    ("a header in a manifest", "canary-header-29f6aa"),
    ("the query of an address in a manifest", "canary-query-71e08b"),
    ("a header for telemetry", "canary-export-e41c75"),
    ("the environment of a service in a manifest", "canary-literal-0b5d3e"),
    ("a key in a file of keys", "canary-file-94ac16"),
];
/// Text of the conversation. It belongs in the store, in exports and in the answer, and nowhere else.
pub(crate) const PROMPT: &str = "canary-prompt-6ee1b2";
pub(crate) const OUTPUT: &str = "canary-output-f0973c";

pub(crate) fn key(source: &str) -> &'static str {
    KEYS.iter().find(|(name, _)| *name == source).expect("a source").1
}

/// A machine with a key in every source.
pub(crate) fn sandbox_with_keys() -> Sandbox {
    let sandbox = Sandbox::outside_tmp()
        .with("API_TOKEN", key("a variable that manifests name"))
        .with("UNRELATED_TOKEN", key("a variable that nobody names"))
        .with("SKEIN_LOG", "debug");
    sandbox.write("home/.netrc", &format!("password {}\n", key("a key in a file of keys")));
    let mut good = echo("good", &[]);
    good["transport"]["stdio"]["env"] = json!({
        "KEY": "${env:API_TOKEN}", "SERVICE_TOKEN": key("the environment of a service in a manifest"),
    });
    // It repeats the flag that it does not know.
    let bad = echo("bad", &["--no-such-flag-${env:API_TOKEN}"]);
    // Nobody listens on the discard port.
    let headers = json!({"authorization": format!("Bearer {}", key("a header in a manifest"))});
    let url =
        format!("http://127.0.0.1:9/mcp?key={}&other=${{env:API_TOKEN}}", key("the query of an address in a manifest"));
    let away = service("away", json!({"http": {"url": url, "headers": headers}}));
    let names = ["good", "bad", "away"];
    for (name, manifest) in names.iter().zip([good, bad, away]) {
        // All in one line, because warnings quote lines.
        sandbox.write(&format!("project/wiring/{name}.yaml"), &format!("{manifest}\n"));
    }
    let mut agent =
        agent(&names.map(|name| with(mode(name, json!([name]), json!([name])), json!({"prompt": "prompt.md"}))));
    // Skein runs the agent itself.
    agent.as_object_mut().expect("an object").remove("runtime");
    sandbox.write("project/wiring/agent.yaml", &agent.to_string());
    sandbox.write("project/wiring/prompt.md", "Do what the user asks.\n");
    sandbox.write("tmp/present", "");
    sandbox
}

/// Calls a tool that repeats its argument, and then says goodbye.
pub(crate) fn model() -> ScriptedModel {
    ScriptedModel::new(|request| {
        if has_result(request) {
            return Answer::Says(vec!["goodbye".to_owned()]);
        }
        Answer::Calls { id: "call-1", tool: "good__echo", arguments: json!({"text": OUTPUT}) }
    })
}

/// The files below a folder that contain the text, except those whose name starts with `except`. Checkpoints are copies of
/// the project's files.
pub(crate) fn files_with(folder: &Path, text: &str, except: &str) -> Vec<String> {
    if !folder.exists() {
        return Vec::new();
    }
    let has = |file: &Path| {
        let bytes = std::fs::read(file).unwrap_or_default();
        memchr::memmem::find(&bytes, text.as_bytes()).is_some()
    };
    let is_copy = |file: &Path| file.starts_with(folder.join("checkpoints"));
    let files = files_below(folder).into_iter().filter(|file| !is_copy(file) && has(file));
    let names = files.map(|file| file.file_name().expect("a name").to_string_lossy().into_owned());
    names.filter(|name| except.is_empty() || !name.starts_with(except)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_leaves_the_place_it_came_from() {
    let (sandbox, model) = (sandbox_with_keys(), model());
    let receiver = HttpServer::start(|_| Reply::Status(200)).await;
    let endpoint = receiver.url.trim_end_matches("/mcp").to_owned();
    let run = |name: &str, more: &[&str]| {
        let args = [&["--manifests", "wiring"], more, &["-a", "test", "-m", name]].concat();
        let mut command = model.offered_to(sandbox.command(&args));
        command.env("OPENAI_API_KEY", key("the key of the model")).env("TMPDIR", sandbox.path("tmp"));
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
        command.env("OTEL_EXPORTER_OTLP_HEADERS", format!("x-key={}", key("a header for telemetry")));
        let output = command.output().expect("the program runs");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let mut said = run("good", &["--record", "recording.jsonl", "--approval", "auto", "run", PROMPT]);
    assert!(said.contains("goodbye"), "{said}");
    for name in ["bad", "away"] {
        said.push_str(&run(name, &["run", "hello"]));
        said.push_str(&run(name, &["tools"]));
    }
    let listed = sandbox.skein(&["sessions", "list", "--json"]).json();
    for session in listed.as_array().expect("sessions") {
        let id = session["id"].as_str().expect("an id");
        said.push_str(&sandbox.skein(&["sessions", "export", id]).stdout);
        said.push_str(&sandbox.skein(&["sessions", "export", id, "--format", "markdown"]).stdout);
    }
    said.push_str(&sandbox.skein(&["doctor"]).whole());
    let probe = sandbox.skein(&["--manifests", "wiring", "services", "--probe", "away"]).whole();
    assert!(probe.contains("a server answers at"), "{probe}");
    said.push_str(&probe);
    let services = sandbox.skein(&["--manifests", "wiring", "services"]).whole();
    assert!(services.contains("at http://127.0.0.1:9/mcp?"), "{services}");
    said.push_str(&services);
    // The test can fail: the conversation is in the export, and the model got its key.
    assert!(said.contains(PROMPT) && said.contains(OUTPUT), "{said}");
    assert!(model.keys().iter().any(|sent| sent.contains(key("the key of the model"))));
    let traces: String = receiver.requests().iter().map(|request| request.text.clone()).collect();
    assert!(traces.contains("execute_tool"), "no spans arrived");
    assert!(receiver.requests().iter().all(|it| it.header("x-key") == Some(key("a header for telemetry"))));
    let asked: String = model.requests().iter().map(Value::to_string).collect();
    for (source, canary) in KEYS {
        assert!(!said.contains(canary), "{source} is in what commands print");
        assert!(!traces.contains(canary), "{source} is in traces");
        assert!(!asked.contains(canary), "{source} is in requests to the model");
        for place in ["data", "tmp", "config"] {
            assert_eq!(files_with(&sandbox.path(place), canary, ""), [""; 0], "{source} is in {place}");
        }
        assert_eq!(files_with(&sandbox.path("project"), canary, "away"), expected_manifests(source), "{source}");
    }
    for text in [PROMPT, OUTPUT] {
        assert!(!traces.contains(text), "{text} is in traces");
        assert_eq!(files_with(&sandbox.path("data"), text, "sessions.db"), [""; 0], "{text} is outside the store");
        assert_eq!(files_with(&sandbox.path("tmp"), text, ""), [""; 0], "{text} is in temporary files");
    }
}

/// The files of the project that contain the key because the test wrote it there.
fn expected_manifests(source: &str) -> Vec<String> {
    let is_there = source == "the environment of a service in a manifest";
    is_there.then(|| "good.yaml".to_owned()).into_iter().collect()
}

#[test]
fn the_server_shows_no_key_and_no_conversation() {
    let (sandbox, model) = (sandbox_with_keys(), ScriptedModel::new(|_| Answer::Says(vec![OUTPUT.to_owned()])));
    let mut command = model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"]));
    command.env("OPENAI_API_KEY", key("the key of the model"));
    let server = Server::launch(command);
    let root = sandbox.path("project").display().to_string();
    let token = token(&sandbox, "ci", &["--root", &root]);
    let run = json!({"agent_name": "goose-assistant", "input": [{"parts": [{"content": PROMPT}]}]}).to_string();
    let ran = server.request("POST", "/runs", &[("authorization", &bearer(&token))], &run);
    assert_eq!(ran.status, 200, "{ran:?}");
    let mut seen = ran.body;
    assert!(seen.contains(OUTPUT), "{seen}");
    let metrics = server.get("/metrics", &token).body;
    assert!(metrics.contains("skein_turns_total"), "{metrics}");
    seen.push_str(&server.get("/agents", &token).body);
    seen.push_str(&server.get("/console", &token).body);
    let log: String = sandbox.log().iter().map(Value::to_string).collect();
    let secret = token.rsplit('_').next().expect("a secret");
    for canary in KEYS.iter().map(|(_, canary)| *canary).chain([secret]) {
        assert!(!seen.contains(canary) && !metrics.contains(canary) && !log.contains(canary), "{canary}");
        assert_eq!(files_with(&sandbox.path("data"), canary, ""), [""; 0], "{canary}");
    }
    for text in [PROMPT, OUTPUT] {
        assert!(!metrics.contains(text) && !log.contains(text), "{text}");
    }
}

/// An external agent that names its keys in `agentInfo`, and in the error with which it answers each prompt.
const LOUD_AGENT: &str = r#"
all="$KEY $VALUE $2"
while read -r line; do
  id=${line#*'"id":'}
  id=${id%%,*}
  case $line in
    *'"method":"initialize"'*)
      printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":1,"agentCapabilities":{},' "$id"
      printf '"agentInfo":{"name":"helper with %s","version":"1"}}}\n' "$all" ;;
    *'"method":"session/new"'*)
      printf '{"jsonrpc":"2.0","id":%s,"result":{"sessionId":"s1"}}\n' "$id" ;;
    *'"method":"session/prompt"'*)
      printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"no %s",' "$id" "$all"
      printf '"data":{"details":"but %s"}}}\n' "$all" ;;
  esac
done
"#;

#[test]
fn no_key_of_an_external_agent_is_kept_or_shown() {
    const REFERENCE: &str = "canary-agent-reference-64c0d1";
    const LITERAL: &str = "canary-agent-literal-a90be2";
    const ARGUMENT: &str = "canary-agent-argument-17f5c8";
    let sandbox = Sandbox::outside_tmp().with("EXT_KEY", REFERENCE).with("SKEIN_LOG", "debug");
    sandbox.write("home/loud.sh", LOUD_AGENT);
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let script = sandbox.path("home/loud.sh").display().to_string();
    let peer = Peer {
        command: "sh".to_owned(),
        args: vec![script, "--api-key".to_owned(), ARGUMENT.to_owned()],
        env: vec![pair("KEY", "${env:EXT_KEY}"), pair("VALUE", LITERAL)],
    };
    let manifest = outside::manifest("helper", &peer, &[outside::mode("default", json!([]), json!([]))]);
    // One field on each line, because warnings quote lines.
    sandbox.write("config/agents/helper.json", &format!("{manifest:#}\n"));
    let shown = sandbox.skein(&["agents", "show", "helper"]).whole();
    assert!(shown.contains("--api-key ${env:api-key}"), "{shown}");
    let failed = sandbox.skein(&["run", "-a", "helper", "hello"]).whole();
    let said = failed.split_whitespace().collect::<Vec<_>>().join(" ");
    // The test can fail: the agent repeated its keys.
    assert!(said.contains("the agent `helper` failed: no ${env:") && said.contains(": but ${env:"), "{said}");
    let model = ["run", "-a", "coding", "-m", "security", "--model", "acp:helper", "hello"];
    let as_model = sandbox.skein(&model).whole();
    assert!(as_model.contains("${env:"), "{as_model}");
    let log: String = sandbox.log().iter().map(Value::to_string).collect();
    assert!(log.contains("an external agent runs") && log.contains("helper with ${env:"), "{log}");
    let mut exported = String::new();
    let listed = sandbox.skein(&["sessions", "list", "--json"]).json();
    for session in listed.as_array().expect("sessions") {
        let id = session["id"].as_str().expect("an id");
        exported.push_str(&sandbox.skein(&["sessions", "export", id]).stdout);
        exported.push_str(&sandbox.skein(&["sessions", "export", id, "--format", "markdown"]).stdout);
    }
    assert!(exported.contains("hello"), "{exported}");
    for canary in [REFERENCE, LITERAL, ARGUMENT] {
        let texts = [("stderr", &failed), ("the model", &as_model), ("the log", &log), ("exports", &exported)];
        for (place, text) in texts.into_iter().chain([("the agent", &shown)]) {
            assert!(!text.contains(canary), "{canary} is in {place}: {text}");
        }
        assert_eq!(files_with(&sandbox.path("data"), canary, ""), [""; 0], "{canary}");
    }
}

/// A server that repeats its secrets in other forms than those of the manifest.
#[tokio::test(flavor = "multi_thread")]
async fn no_secret_of_a_url_is_shown_in_another_form() {
    const PAIR: &str = "app:canary-password-31d5a8";
    const PATH: &str = "canarypath0123456789abcdef";
    const QUERY: [&str; 2] = ["canary%2Bsig%2F5e0b17", "canary+sig/5e0b17"];
    const HEADER: &str = "Token user=\"canary-escaped-c4e1f2\"x";
    const ARGUMENT: &str = "canary-listed-08bd36";
    let basic = STANDARD.encode(PAIR);
    let decoded = format!("{PAIR} {basic} {PATH} {} {}", QUERY[1], json!({"x-auth": HEADER}));
    let server = HttpServer::start(move |request| {
        let id = &request.body["id"];
        let message = format!("refused: {} {decoded}", request.head.replace("\r\n", " "));
        match &request.body["method"] {
            Value::Null => Reply::Status(405),
            _ if id.is_null() => Reply::Status(202),
            _ => Reply::Json(json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": message}})),
        }
    })
    .await;
    let sandbox = Sandbox::outside_tmp().with("SKEIN_LOG", "debug");
    let url = server.url.replace("http://", &format!("http://{PAIR}@"));
    let url = format!("{}?sig={}", url.replace("/mcp", &format!("/{PATH}/mcp")), QUERY[0]);
    let away = service("away", json!({"http": {"url": url, "headers": {"x-auth": HEADER}}}));
    let listed = json!({"stdio": {"command": "sh", "args": ["-c", "exit 1", "listed", "--api-key", ARGUMENT]}});
    for (name, manifest) in [("away", away), ("listed", service("listed", listed))] {
        sandbox.write(&format!("config/services/{name}.yaml"), &format!("{manifest:#}\n"));
    }
    let probe = sandbox.skein(&["services", "--probe", "away"]).whole();
    let services = sandbox.skein(&["services"]).whole();
    // The test can fail: the server got the secrets, and the list has the services.
    let heads: String = server.requests().iter().map(|request| request.head.clone()).collect();
    assert!(heads.contains(QUERY[0]) && heads.contains(PATH) && heads.contains(HEADER), "{heads}");
    assert!(probe.contains("refused:"), "{probe}");
    assert!(services.contains("at http://${env:user}@127.0.0.1:"), "{services}");
    assert!(services.contains("runs sh -c exit 1 listed --api-key ${env:api-key}"), "{services}");
    let log: String = sandbox.log().iter().map(Value::to_string).collect();
    for canary in ["canary-password", basic.as_str(), PATH, QUERY[0], QUERY[1], "canary-escaped", ARGUMENT] {
        for (place, text) in [("the probe", &probe), ("the list", &services), ("the log", &log)] {
            assert!(!text.contains(canary), "{canary} is in {place}: {text}");
        }
        assert_eq!(files_with(&sandbox.path("data"), canary, ""), [""; 0], "{canary}");
    }
}
