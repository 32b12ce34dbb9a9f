//! Profiles: which models, agent, mode and services a session has, from the config or a file.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::model::{Answer, ScriptedModel};
use crate::support::{Sandbox, servers};

const CONFIG: &str = "version: 1
profile: work
profiles:
  work: {agent: coding, mode: pm}
  lean: {agent: goose, mode: assistant, services: [developer, second]}
";

/// A sandbox with two services of the user.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    for name in ["first", "second"] {
        let manifest = json!({"version": 1, "kind": "service", "name": name, "description": "Echoes.",
            "transport": {"stdio": {"command": servers::mcp_echo()}}});
        sandbox.write(&format!("config/services/{name}.json"), &manifest.to_string());
    }
    sandbox.write("config/config.yaml", CONFIG);
    sandbox
}

fn mode_of(sandbox: &Sandbox, args: &[&str]) -> String {
    let said = sandbox.skein(&[&["run", "--json"], args, &["list"]].concat());
    let said: Value = serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("{}", said.whole()));
    format!("{}/{}", said["agent"].as_str().unwrap(), said["mode"].as_str().unwrap())
}

#[test]
fn the_flag_chooses_a_profile_of_the_config() {
    let sandbox = sandbox();
    assert_eq!(mode_of(&sandbox, &[]), "coding/pm");
    assert_eq!(mode_of(&sandbox, &["--profile", "lean"]), "goose/assistant");
    let mut named = sandbox.command(&["run", "--json", "list"]);
    let said: Value = serde_json::from_slice(&named.env("SKEIN_PROFILE", "lean").output().unwrap().stdout).unwrap();
    assert_eq!(said["agent"], "goose");
    let wrong = sandbox.skein(&["run", "--profile", "leen", "list"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("did you mean `lean`?"), "{}", wrong.whole());
}

#[test]
fn a_profile_leaves_out_services_also_built_in_ones() {
    let sandbox = sandbox();
    let tools = sandbox.skein(&["tools", "-a", "goose/assistant", "--profile", "lean", "--json"]).json();
    let mut services: Vec<_> =
        tools["tools"].as_array().unwrap().iter().filter(|tool| tool["absent"].is_null()).collect();
    services.dedup_by_key(|tool| &tool["service"]);
    let services: Vec<_> = services.iter().map(|tool| tool["service"].as_str().unwrap()).collect();
    assert_eq!(services, ["developer", "second"]);
    let absent = tools["absent_services"].as_array().unwrap().iter().map(|of| of["service"].as_str().unwrap());
    let absent: BTreeSet<_> = absent.collect();
    assert_eq!(absent, BTreeSet::from(["knowledge", "memory", "todo"]));
    let text = sandbox.skein(&["tools", "-a", "goose/assistant", "--profile", "lean"]).stdout;
    assert!(text.contains("the active profile leaves out the service memory"), "{text}");
    // The orchestrator keeps what it works with.
    let own = sandbox.skein(&["tools", "-a", "orchestrator", "--profile", "lean"]).stdout;
    assert!(own.contains("summon__delegate"), "{own}");
}

#[test]
fn services_shows_what_the_profile_leaves_out() {
    let sandbox = sandbox();
    let text = sandbox.skein(&["services", "--profile", "lean"]).stdout;
    for name in ["first", "memory", "fetch"] {
        assert!(text.contains(&format!("{name} (off)  ")), "{name}: {text}");
    }
    assert!(text.contains("\n  the profile `lean` leaves it out\n"), "{text}");
    assert!(!text.contains("developer (off)") && !text.contains("summon (off)"), "{text}");
    let listed = sandbox.skein(&["services", "--profile", "lean", "--json"]).json();
    let of = |name: &str| listed.as_array().unwrap().iter().find(|service| service["name"] == name).unwrap().clone();
    assert_eq!((&of("first")["enabled"], &of("first")["left_out_by"]), (&json!(false), &json!("lean")));
    assert_eq!((&of("second")["enabled"], &of("second")["left_out_by"]), (&json!(true), &Value::Null));
    assert!(!sandbox.skein(&["services"]).stdout.contains("(off)"));
}

#[test]
fn a_file_is_a_profile_with_models_and_extensions() {
    let sandbox = sandbox();
    let model = ScriptedModel::new(|_| Answer::Says(vec!["from the file".to_owned()]));
    sandbox.write(
        "project/work.yaml",
        "processor: openai:scripted\nmoderator: passive\nagent: goose\nextensions:\n- developer\n- second\n",
    );
    let mut command = sandbox.command(&["run", "--profile", "work.yaml", "hello"]);
    command.env("OPENAI_BASE_URL", model.address()).env("OPENAI_API_KEY", "a-key");
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "from the file");
    let request = &model.requests()[0];
    assert_eq!(request["model"], "scripted");
    let tools = request["tools"].to_string();
    assert!(tools.contains("developer__shell") && tools.contains("second__"), "{tools}");
    assert!(!tools.contains("memory__") && !tools.contains("first__"), "{tools}");
    sandbox.write("project/wrong.yaml", "procesor: openai:scripted\nextensions: [calender]\n");
    let wrong = sandbox.skein(&["check", "--profile", "wrong.yaml"]);
    assert!(wrong.code == 6 && wrong.stderr.contains("wrong.yaml:1:1: error[E011]"), "{}", wrong.whole());
    sandbox.write("project/wrong.yaml", "extensions: [develper, {name: first, requires: {calendar: second}}]\n");
    let wrong = sandbox.skein(&["check", "--profile", "wrong.yaml"]).stderr;
    assert!(wrong.contains("wrong.yaml:1:14: error[E103]") && wrong.contains("has no role `calendar`"), "{wrong}");
    let gone = sandbox.skein(&["check", "--profile", "./gone.yaml"]);
    assert!(gone.code == 2 && gone.stderr.contains("./gone.yaml cannot be used: cannot be read"), "{}", gone.whole());
}
