//! Skein between real servers and real clients: the reference servers and the Inspector, as npm has them.
//! `scripts/bootstrap` installs them in tests/npm.

#![expect(clippy::expect_used, reason = "what a test cannot go on without ends it")]

use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use skein::broker::BindRequest;
use skein::graph;
use skein::ids::{AgentName, ModeId, ModeSlug};
use skein::manifest::{self, ApprovalLevel, Layer, Root};
use skein::runtime::Runtime;
use skein::services::{BuiltinRegistry, Environment, PoolOptions};
use skein::tool::ask::NoAsker;
use skein::tool::{CallContext, SessionContext};

use crate::client::Client;
use crate::recordings::{RECORDED, answer, recording, request};
use crate::support::{Sandbox, full_tests, inspector, npm, repository};

/// The variables that the manifests in tests/fixtures/real ask for.
fn variables(sandbox: &Sandbox) -> [(&'static str, String); 3] {
    sandbox.write("files/notes/first.md", "First.\n");
    let folder = sandbox.path("files").canonicalize().expect("the folder is there");
    [
        ("SKEIN_TEST_NPM", npm("").display().to_string()),
        ("SKEIN_TEST_FOLDER", folder.display().to_string()),
        ("SKEIN_TEST_SECRET", "given on purpose".to_owned()),
    ]
}

fn manifests() -> String {
    repository("tests/fixtures/real").display().to_string()
}

fn skein(sandbox: &Sandbox, mode: &str) -> Command {
    let mut command = sandbox.command(&["--manifests", &manifests(), "mcp", "-a", "real", "-m", mode]);
    command.envs(variables(sandbox));
    command
}

/// The recorded answers still are what the servers of today say. Images, structured content and links are
/// among them.
#[test]
fn real_servers_answer_as_they_were_recorded() {
    if !full_tests() {
        return;
    }
    for mode in RECORDED {
        let sandbox = Sandbox::new();
        let (mut client, _) = Client::connect(skein(&sandbox, mode));
        let folder = sandbox.path("files").canonicalize().expect("the folder is there").display().to_string();
        for line in recording(mode) {
            if let Some((method, params)) = request(&line) {
                let said =
                    client.result(method, params.clone()).to_string().replace(&folder, "[env SKEIN_TEST_FOLDER]");
                let said: Value = serde_json::from_str(&said).expect("still JSON");
                assert_eq!(said, answer(&line), "{mode}: {method} {params}");
            }
        }
    }
}

#[test]
fn a_whole_service_brings_its_tools_resources_and_prompts() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (mut client, greeting) = Client::connect(skein(&sandbox, "everything"));
    let instructions = greeting["instructions"].as_str().expect("instructions");
    assert!(instructions.starts_with("Skein in the mode real/everything: The whole server."), "{instructions}");
    assert!(instructions.contains("The service everything says of itself:"), "{instructions}");
    assert_eq!(greeting["serverInfo"]["name"], "skein");

    let tools = client.tools();
    assert!(tools.len() >= 12 && tools.iter().all(|name| name.starts_with("everything__")), "{tools:?}");
    let resources = client.names("resources/list", "resources", "uri");
    assert!(resources.contains(&"demo://resource/static/document/features.md".to_owned()), "{resources:?}");
    let templates = client.names("resources/templates/list", "resourceTemplates", "uriTemplate");
    assert_eq!(templates, ["demo://resource/dynamic/blob/{resourceId}", "demo://resource/dynamic/text/{resourceId}"]);
    let read = client.result("resources/read", json!({"uri": "demo://resource/dynamic/text/7"}));
    assert_eq!(read["contents"][0]["uri"], "demo://resource/dynamic/text/7");
    let prompts = client.names("prompts/list", "prompts", "name");
    assert!(prompts.contains(&"everything__args-prompt".to_owned()), "{prompts:?}");
    for (method, params) in [
        ("resources/read", json!({"uri": "file:///etc/passwd"})),
        ("prompts/get", json!({"name": "everything__nothing"})),
        ("prompts/get", json!({"name": "args-prompt"})),
    ] {
        let refused = client.request(method, params.clone());
        assert!(refused["error"]["code"].is_i64(), "{method} {params}: {refused}");
    }
}

#[test]
fn one_group_brings_its_tools_and_neither_resources_nor_prompts() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (mut client, greeting) = Client::connect(skein(&sandbox, "demo"));
    assert_eq!(greeting["capabilities"], json!({"tools": {}}));
    assert_eq!(client.tools(), ["everything__echo", "everything__get-sum"]);
    assert_eq!(client.names("resources/list", "resources", "uri"), [""; 0]);
    assert_eq!(client.names("prompts/list", "prompts", "name"), [""; 0]);
    for (method, params) in [
        ("resources/read", json!({"uri": "demo://resource/static/document/features.md"})),
        ("prompts/get", json!({"name": "everything__simple-prompt"})),
        ("tools/call", json!({"name": "everything__get-env", "arguments": {}})),
        ("tools/call", json!({"name": "get-env", "arguments": {}})),
    ] {
        let refused = client.request(method, params.clone());
        assert!(refused["error"]["code"].is_i64(), "{method} {params}: {refused}");
    }
}

#[test]
fn an_embedded_resource_comes_through() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (mut client, _) = Client::connect(skein(&sandbox, "everything"));
    let result = client.call("everything__get-resource-reference", json!({"resourceType": "Text", "resourceId": 1}));
    let embedded: Vec<_> =
        result["content"].as_array().expect("content").iter().filter(|block| block["type"] == "resource").collect();
    assert_eq!(embedded.len(), 1, "{result}");
    assert_eq!(embedded[0]["resource"]["uri"], "demo://resource/dynamic/text/1");
    assert!(embedded[0]["resource"]["text"].as_str().is_some_and(|text| text.starts_with("Resource 1:")), "{result}");
}

#[test]
fn progress_reaches_the_client_under_its_own_token() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (mut client, _) = Client::connect(skein(&sandbox, "everything"));
    let result = client.result(
        "tools/call",
        json!({
            "name": "everything__trigger-long-running-operation",
            "arguments": {"duration": 0.6, "steps": 3},
            "_meta": {"progressToken": "mine"},
        }),
    );
    assert_eq!(result["content"][0]["text"], "Long running operation completed. Duration: 0.6 seconds, Steps: 3.");
    let progress: Vec<_> =
        client.notifications.iter().filter(|one| one["method"] == "notifications/progress").collect();
    assert!(progress.iter().all(|one| one["params"]["progressToken"] == "mine"), "{progress:?}");
    let counts: Vec<_> = progress.iter().filter_map(|one| one["params"]["progress"].as_f64()).collect();
    // The last report races with the result.
    assert!(counts.starts_with(&[1.0, 2.0]), "{counts:?}");
    // Who does not ask for progress gets none.
    client.notifications.clear();
    client.call("everything__trigger-long-running-operation", json!({"duration": 0.1, "steps": 2}));
    assert_eq!(client.notifications, [Value::Null; 0]);
}

#[test]
fn a_server_sees_no_secret_that_its_manifest_does_not_give_it() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new().with("OPENAI_API_KEY", "sk-secret").with("AWS_SESSION_TOKEN", "aws-secret");
    let (mut client, _) = Client::connect(skein(&sandbox, "everything"));
    let env = client.call_json("everything__get-env");
    assert_eq!(env["GIVEN_BY_THE_MANIFEST"], "given on purpose");
    let text = env.to_string();
    for hidden in ["sk-secret", "aws-secret", "SKEIN_TEST_SECRET", "SKEIN_DATA_DIR"] {
        assert!(!text.contains(hidden), "{hidden} in {text}");
    }
}

#[test]
fn tools_are_shown_as_the_server_lists_them() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["--manifests", &manifests(), "tools", "-a", "real", "-m", "look", "--json"]);
    let output = command.envs(variables(&sandbox)).output().expect("it runs");
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let names = |key: &str, of: &str| -> Vec<String> {
        let tools = value[key].as_array().expect("a list").iter().filter(|tool| tool["service"] == of);
        tools.filter_map(|tool| tool["tool"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(names("tools", "filesystem"), ["list_directory", "read_text_file", "search_files"]);
    // These are in no manifest.
    assert!(names("out_of_scope", "filesystem").contains(&"write_file".to_owned()), "{value}");
}

/// The same without the program: the library in a process of its own.
#[tokio::test]
async fn the_library_binds_and_calls_a_real_server() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let roots = [
        (Layer::Builtin, Root::Builtin),
        (Layer::Extra, Root::Disk { path: manifests().into(), shown: String::new() }),
    ];
    let (manifests, found) = manifest::load(&roots);
    let plan = graph::resolve(manifests, found).plan.expect("the manifests are right");
    let ours = std::env::vars_os().filter(|(name, _)| name == "PATH");
    let given = variables(&sandbox).map(|(name, value)| (name.into(), value.into()));
    let options = PoolOptions { environment: Environment::new(ours.chain(given)), ..PoolOptions::default() };
    let runtime = Runtime::start(Arc::new(plan), BuiltinRegistry::builtin(), options, None);
    let session = SessionContext::new("one", sandbox.path("files"), Vec::new(), sandbox.path("scratch"));
    let terms = BindRequest {
        session: Arc::clone(&session),
        approval: Some(ApprovalLevel::Auto),
        asker: Arc::new(NoAsker),
        client_services: Vec::new(),
    };
    let mode = ModeId::new(AgentName::new("real"), ModeSlug::new("look"));
    let binding = runtime.broker().bind(&mode, terms).await.expect("the mode can be entered");
    let arguments = json!({"path": "notes/first.md"}).as_object().cloned().unwrap_or_default();
    let context = CallContext::new(session);
    let read = binding.call("filesystem__read_text_file", arguments.clone(), context.clone()).await;
    assert_eq!(read.expect("an answer").all_text(), "First.\n");
    let write = binding.call("filesystem__write_file", arguments, context).await.expect("an answer");
    assert!(write.is_error && write.all_text().starts_with("there is no tool"), "{write:?}");
    runtime.stop().await;
}

// the Inspector

fn inspect(sandbox: &Sandbox, mode: &str, args: &[&str]) -> (i32, Value, String) {
    inspector(sandbox, &skein(sandbox, mode), args)
}

#[test]
fn the_inspector_lists_and_calls() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (code, listed, said) = inspect(&sandbox, "demo", &["tools/list"]);
    assert_eq!(code, 0, "{said}");
    let names: Vec<_> = listed["tools"].as_array().expect("tools").iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["everything__echo", "everything__get-sum"]);

    let call = ["tools/call", "--tool-name", "everything__get-sum", "--tool-arg", "a=2", "--tool-arg"];
    let (code, result, said) = inspect(&sandbox, "demo", &[&call[..], &["b=40"]].concat());
    assert_eq!((code, &result["content"][0]["text"]), (0, &json!("The sum of 2 and 40 is 42.")), "{said}");

    let (code, _, said) = inspect(&sandbox, "demo", &[&call[..], &["c=40"]].concat());
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("the call of `everything__get-sum` lacks `b`"), "{said}");

    let (code, _, said) = inspect(&sandbox, "demo", &["tools/call", "--tool-name", "everything__get-env"]);
    assert_eq!(code, 5);
    assert!(said.contains("not found"), "{said}");
}

#[test]
fn inspector_sees_resources_and_prompts_in_scope() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    for (mode, offered) in [("everything", true), ("demo", false)] {
        for (method, list) in [("resources/list", "resources"), ("prompts/list", "prompts")] {
            let (_, result, said) = inspect(&sandbox, mode, &[method]);
            let any = result[list].as_array().is_some_and(|items| !items.is_empty());
            assert_eq!(any, offered, "{mode} {method}: {result} {said}");
        }
    }
}

/// The Inspector's own lint of schemas that some clients cannot read.
#[test]
fn the_inspector_finds_no_fault_with_the_schemas() {
    if !full_tests() {
        return;
    }
    let (code, _, said) = inspect(&Sandbox::new(), "everything", &["tools/list", "--strict"]);
    assert_eq!(code, 0, "{said}");
}

// the newer era

#[test]
fn a_client_of_the_newer_era_needs_no_handshake() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let mut client = Client::start(skein(&sandbox, "demo"));
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let discovered = client.result("server/discover", json!({"_meta": meta}));
    let versions = discovered["supportedVersions"].as_array().expect("versions");
    assert!(versions.contains(&json!("2026-07-28")) && versions.contains(&json!("2025-11-25")), "{discovered}");
    let instructions = discovered["instructions"].as_str().expect("instructions");
    assert!(instructions.starts_with("Skein in the mode real/demo"), "{instructions}");

    let listed = client.result("tools/list", json!({"_meta": meta}));
    assert_eq!(listed["tools"].as_array().map(Vec::len), Some(2), "{listed}");
    let call = json!({"name": "everything__echo", "arguments": {"message": "hi"}, "_meta": meta});
    let result = client.result("tools/call", call);
    assert_eq!(result["content"], json!([{"type": "text", "text": "Echo: hi"}]));
    let unknown = json!({"name": "everything__get-env", "arguments": {}, "_meta": meta});
    assert_eq!(client.request("tools/call", unknown)["error"]["code"], -32602);
}
