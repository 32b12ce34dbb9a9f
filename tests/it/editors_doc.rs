//! docs/editors.md against the program, and the entry for the ACP registry, docs/registry/skein, against the rules of that
//! registry, as its CONTRIBUTING.md has them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::cli::code_blocks;
use crate::client::Client;
use crate::support::{Sandbox, read, repository};

const PLATFORMS: [&str; 6] =
    ["darwin-aarch64", "darwin-x86_64", "linux-aarch64", "linux-x86_64", "windows-aarch64", "windows-x86_64"];

/// Every `"args"` in a value.
fn arguments(value: &Value) -> Vec<Vec<String>> {
    match value {
        Value::Object(fields) => {
            let own = fields.get("args").map(|args| serde_json::from_value(args.clone()).expect("a list of texts"));
            own.into_iter().chain(fields.values().flat_map(arguments)).collect()
        }
        _ => Vec::new(),
    }
}

/// Settings that people copy must be JSON, start the program, and name modes and options that are there.
#[test]
fn the_settings_in_the_docs_fit_the_program() {
    let blocks = code_blocks(&read(repository("docs/editors.md")));
    let settings: Vec<Value> = blocks
        .iter()
        .filter(|(info, _)| info == "json")
        .map(|(_, block)| serde_json::from_str(block).unwrap_or_else(|error| panic!("{error}: {block}")))
        .collect();
    let sandbox = Sandbox::new();
    let cwd = sandbox.path("project").display().to_string();
    let started: Vec<_> = settings.iter().flat_map(arguments).collect();
    assert_eq!(started.len(), 4, "one for each entry: {started:?}");
    for args in started {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let mut client = Client::start(sandbox.command(&args));
        client.result("initialize", json!({"protocolVersion": 1}));
        let session = client.result("session/new", json!({"cwd": cwd, "mcpServers": []}));
        for option in settings.iter().flat_map(|value| value["agent_servers"].as_object().into_iter().flatten()) {
            for (id, value) in option.1["default_config_options"].as_object().into_iter().flatten() {
                let asked = json!({"sessionId": session["sessionId"], "configId": id, "value": value});
                client.result("session/set_config_option", asked);
            }
        }
    }
}

/// `scripts/editors` needs folders that no test can have. It says which, and how to get them.
#[test]
#[expect(clippy::disallowed_methods, reason = "a script of the repository")]
fn the_script_for_editors_names_a_missing_folder() {
    let docs = read(repository("docs/testing.md"));
    for (editor, variable) in [
        ("codecompanion", "SKEIN_CODECOMPANION"),
        ("avante", "SKEIN_AVANTE"),
        ("agentic", "SKEIN_AGENTIC"),
        ("agent-shell", "SKEIN_AGENT_SHELL"),
    ] {
        let mut command = std::process::Command::new(repository("scripts/editors"));
        let output = command.arg(editor).env_remove(variable).output().expect("the script starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with(&format!("editors: {variable} is not set: name the folder of a clone of")), "{said}");
        assert!(docs.contains(&format!("| `{editor}` | `{variable}`")), "{variable} is in docs/testing.md");
    }
}

fn entry() -> Value {
    serde_json::from_str(&read(repository("docs/registry/skein/agent.json"))).expect("JSON")
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// The name that `scripts/release` gives the npm package.
fn npm_name() -> String {
    let script = read(repository("scripts/release"));
    let line = script.lines().find_map(|line| line.strip_prefix("NPM_NAME = \""));
    line.expect("a name").trim_end_matches('"').to_owned()
}

/// The schema is that of the registry of 7 February 2026 (Apache-2.0).
#[test]
fn the_entry_is_valid_by_the_schema_of_the_registry() {
    let schema: Value =
        serde_json::from_str(&read(repository("tests/fixtures/registry/agent.schema.json"))).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let mut entry = entry();
    let faults = |entry: &Value| validator.iter_errors(entry).map(|error| error.to_string()).collect::<Vec<_>>();
    assert_eq!(faults(&entry), Vec::<String>::new());
    entry["distribution"]["binary"]["linux"] = json!({});
    assert!(!faults(&entry).is_empty(), "the schema knows the platforms");
}

#[test]
fn the_entry_says_what_the_package_says() {
    let entry = entry();
    assert_eq!(entry["id"], "skein", "the name of its folder");
    assert_eq!(entry["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(entry["description"], env!("CARGO_PKG_DESCRIPTION"));
    assert_eq!(entry["license"], env!("CARGO_PKG_LICENSE"));
    let image = format!("image: registry.example.com/skein:{}\n", env!("CARGO_PKG_VERSION"));
    assert!(read(repository("deploy/kubernetes/skein.yaml")).contains(&image), "the example names this version");
    let known = ["id", "name", "version", "description", "license", "distribution"];
    assert_eq!(keys(&entry), BTreeSet::from(known), "no more than we can tell the truth about");
    let version = entry["version"].as_str().expect("text").split('.');
    assert_eq!(version.filter(|part| part.parse::<u32>().is_ok()).count(), 3);
}

#[test]
fn the_entry_can_be_installed_by_the_rules() {
    let entry = entry();
    assert_eq!(keys(&entry["distribution"]), BTreeSet::from(["binary", "npx"]));
    let package = format!("{}@{}", npm_name(), env!("CARGO_PKG_VERSION"));
    assert_eq!(entry["distribution"]["npx"], json!({"package": package, "args": ["acp"]}));
    let binary = &entry["distribution"]["binary"];
    assert!(!keys(binary).is_empty() && keys(binary).is_subset(&BTreeSet::from(PLATFORMS)), "{binary}");
    for (platform, target) in binary.as_object().expect("an object") {
        assert_eq!(keys(target), BTreeSet::from(["archive", "args", "cmd"]));
        let archive = target["archive"].as_str().expect("text");
        let version = entry["version"].as_str().expect("text");
        assert!(archive.starts_with("https://") && archive.contains(&format!("/releases/{version}/")), "{archive}");
        assert!(archive.contains(platform) && archive.ends_with(".tar.gz"), "{archive}");
        assert_eq!((&target["cmd"], &target["args"]), (&json!("./skein"), &json!(["acp"])));
    }
}

/// The registry starts every agent with an empty home, and lists none that offers no way to log in.
#[test]
fn the_program_passes_the_check_that_the_registry_makes() {
    let sandbox = Sandbox::new();
    let args = entry()["distribution"]["binary"]["linux-x86_64"]["args"].clone();
    let args: Vec<_> = args.as_array().expect("a list").iter().map(|arg| arg.as_str().expect("text")).collect();
    let mut client = Client::start({
        let mut command = sandbox.command(&args);
        command.env_remove("SKEIN_CONFIG_DIR").env_remove("SKEIN_DATA_DIR").env("TERM", "dumb");
        command
    });
    let asked = json!({
        "protocolVersion": 1,
        "clientInfo": {"name": "registry", "version": "1"},
        "clientCapabilities": {"fs": {"readTextFile": true, "writeTextFile": true}, "terminal": true},
    });
    let methods = client.result("initialize", asked)["authMethods"].clone();
    let methods = methods.as_array().expect("a list");
    let fits = |method: &Value| method.get("type").is_none_or(|kind| kind == "agent" || kind == "terminal");
    assert!(methods.iter().any(fits), "{methods:?}");
    client.hang_up();
    assert!(client.ended().success());
}

#[test]
fn icon_is_small_square_and_uses_the_current_colour() {
    let icon = read(repository("docs/registry/skein/icon.svg"));
    let root = icon.lines().next().expect("a line");
    assert_eq!(root, r#"<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16">"#);
    assert!(!icon.contains("<!--") && !icon.contains("style"), "comments and styles are refused");
    let colours: BTreeSet<_> = [" fill=\"", " stroke=\""]
        .into_iter()
        .flat_map(|attribute| icon.split(attribute).skip(1))
        .map(|rest| rest.split('"').next().expect("a value"))
        .collect();
    assert_eq!(colours, BTreeSet::from(["currentColor", "none"]));
}
