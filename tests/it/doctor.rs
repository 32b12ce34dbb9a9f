//! `skein doctor`: what is wrong with a set-up is found, with its fix, and nothing is changed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::support::{Run, Sandbox};

fn findings(run: &Run) -> Vec<Value> {
    let told: Value = serde_json::from_str(&run.stdout).expect("stdout is JSON");
    told["findings"].as_array().expect("findings").clone()
}

/// The one finding that speaks of this.
fn about(run: &Run, words: &str) -> Value {
    let found = findings(run);
    let one = found.iter().find(|finding| finding["what"].as_str().is_some_and(|what| what.contains(words)));
    let one = one.unwrap_or_else(|| panic!("{words}: {found:#?}")).clone();
    assert!(one["fix"].as_str().is_some_and(|fix| !fix.is_empty()), "{one:#}");
    one
}

fn service(transport: &str) -> String {
    format!("version: 1\nkind: service\nname: mine\ndescription: Mine.\ntransport: {transport}\n")
}

#[test]
fn an_empty_set_up_has_no_error_and_says_what_to_do() {
    let run = Sandbox::new().skein(&["doctor", "--json"]);
    assert_eq!(run.code, 0, "{}", run.stdout);
    assert_eq!(about(&run, "no model is configured")["severity"], "note");
    assert_eq!(findings(&run).len(), 1, "{}", run.stdout);
}

#[test]
fn a_data_folder_that_cannot_be_created_is_an_error() {
    let sandbox = Sandbox::new();
    sandbox.write("file", "");
    let data = sandbox.path("file/data");
    let output = sandbox.command(&["doctor", "--json"]).env("SKEIN_DATA_DIR", &data).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let problem = format!("the data folder cannot be created below {}", sandbox.path("file").display());
    assert!(found.to_string().contains(&problem), "{found:#}");
}

#[test]
fn a_program_that_is_not_there_or_cannot_be_run_is_named() {
    let sandbox = Sandbox::new();
    sandbox.write("config/services/mine.yaml", &service("{stdio: {command: no-such-program-anywhere}}"));
    let run = sandbox.skein(&["doctor", "--json"]);
    assert_eq!(run.code, 1);
    assert_eq!(about(&run, "not on the PATH")["severity"], "error");
    sandbox.write("project/server", "#!/bin/sh\n");
    sandbox.write("config/services/mine.yaml", &service("{stdio: {command: ./server}}"));
    let found = about(&sandbox.skein(&["doctor", "--json"]), "cannot be executed");
    assert!(found["fix"].as_str().is_some_and(|fix| fix.starts_with("chmod +x")), "{found}");
}

#[test]
fn whoever_lacks_the_program_of_an_agent_is_told_what_brings_it() {
    let sandbox = Sandbox::new();
    let manifest = "version: 1\nkind: agent\nname: outside\ndescription: x\n\
        runtime: {acp: {cargo: {crate: nobody-has-this@1.0, env: {A: '${env:NOT_THERE}'}}}}\n\
        modes: [{slug: default, description: x}]\n";
    sandbox.write("config/agents/outside.yaml", manifest);
    let run = sandbox.skein(&["doctor", "--json"]);
    let found = about(&run, "runs `nobody-has-this`");
    assert_eq!(found["fix"], "install it with `cargo install --locked nobody-has-this@1.0`");
    about(&run, "NOT_THERE");
}

#[test]
fn what_a_variable_holds_is_not_told() {
    let sandbox = Sandbox::new().with("PLACE", "/no/such/hunter2");
    sandbox.write("config/services/mine.yaml", &service("{stdio: {command: '${env:PLACE}/server'}}"));
    let run = sandbox.skein(&["doctor", "--json"]);
    assert!(about(&run, "does not exist")["what"].as_str().is_some_and(|it| it.contains("${env:PLACE}/server")));
    assert!(!run.whole().contains("hunter2"), "{}", run.whole());
}

#[test]
fn a_variable_that_is_not_set_is_named() {
    let sandbox = Sandbox::new().with("THERE", "x");
    let transport = "{stdio: {command: sh, env: {A: '${env:THERE}', B: '${env:NOT_THERE}'}}}";
    sandbox.write("config/services/mine.yaml", &service(transport));
    let run = sandbox.skein(&["doctor", "--json"]);
    assert_eq!(about(&run, "NOT_THERE")["severity"], "error");
    assert!(!run.stdout.contains("variable THERE"), "{}", run.stdout);
}

#[test]
fn only_addresses_of_this_machine_are_tried() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let sandbox = Sandbox::new();
    let at = |url: &str| {
        sandbox.write("config/services/mine.yaml", &service(&format!("{{http: {{url: '{url}'}}}}")));
        sandbox.skein(&["doctor", "--json"])
    };
    assert_eq!(at(&format!("http://127.0.0.1:{port}/mcp")).code, 0);
    assert_eq!(at("https://nobody.invalid/mcp").code, 0);
    about(&at("http://127.0.0.1:99999/mcp"), "malformed");
    drop(listener);
    about(&at(&format!("http://127.0.0.1:{port}/mcp")), "nothing listens");
}

#[test]
fn a_model_without_its_key_is_an_error() {
    let sandbox = Sandbox::new().with("SKEIN_MODEL", "openai:some");
    let run = sandbox.skein(&["doctor"]);
    assert_eq!(run.code, 1);
    assert!(run.stdout.contains("OPENAI_API_KEY") && run.stdout.contains("skein configure"), "{}", run.stdout);
}

#[test]
fn manifests_and_trust_are_looked_at() {
    let sandbox = Sandbox::new();
    sandbox.write("project/.skein/services/mine.yaml", &service("{stdio: {command: sh}}"));
    assert_eq!(about(&sandbox.skein(&["doctor", "--json"]), "not trusted")["severity"], "warning");
    sandbox.write("config/services/wrong.yaml", "version: 1\nkind: service\nname: wrong\n");
    let run = sandbox.skein(&["doctor", "--json"]);
    assert!(about(&run, "missing")["place"].as_str().is_some_and(|place| place.contains("wrong.yaml")));
}

#[test]
fn files_that_others_can_read_or_write_are_found() {
    let sandbox = Sandbox::new();
    let open = |path: &str, mode| fs::set_permissions(sandbox.path(path), fs::Permissions::from_mode(mode)).unwrap();
    sandbox.write("config/keys.json", "{}");
    open("config/keys.json", 0o644);
    sandbox.write("config/config.yaml", "version: 1\n");
    open("config/config.yaml", 0o666);
    let run = sandbox.skein(&["doctor", "--json"]);
    assert_eq!(run.code, 1);
    about(&run, "others can read your keys");
    about(&run, "others can change this");
    open("config/keys.json", 0o600);
    open("config/config.yaml", 0o644);
    assert_eq!(sandbox.skein(&["doctor"]).code, 0);
}

#[test]
fn databases_that_are_damaged_or_not_ours_are_found_and_left() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.skein(&["run", "remember the sea"]).code, 5);
    assert_eq!(sandbox.skein(&["doctor"]).code, 0, "{}", sandbox.skein(&["doctor"]).stdout);
    sandbox.write("data/memory.db", "this is no database, and long enough to be looked at as one");
    fs::set_permissions(sandbox.path("data/memory.db"), fs::Permissions::from_mode(0o600)).unwrap();
    let before = fs::read(sandbox.path("data/memory.db")).unwrap();
    about(&sandbox.skein(&["doctor", "--json"]), "it is not skein's");
    assert_eq!(fs::read(sandbox.path("data/memory.db")).unwrap(), before);
}

#[test]
fn a_file_where_a_folder_belongs_is_found() {
    let sandbox = Sandbox::new();
    sandbox.write("data", "not a folder");
    let run = sandbox.skein(&["doctor", "--json"]);
    assert_eq!(run.code, 1);
    assert_eq!(about(&run, "the data folder is a file")["fix"], "move it away");
}

#[test]
fn a_provider_that_nobody_knows_is_named_with_the_nearest_one() {
    let sandbox = Sandbox::new();
    sandbox.write("config/config.yaml", "version: 1\nprofiles: {default: {processor: 'opnai:gpt'}}\n");
    let run = sandbox.skein(&["doctor", "--json"]);
    assert_eq!(run.code, 1);
    assert_eq!(about(&run, "(W205)")["fix"], "did you mean `openai`?");
    let check = sandbox.skein(&["check", "-q"]);
    assert!(check.code == 0 && check.stderr.contains("warning[W205]"), "{}", check.whole());
}

#[test]
fn a_variable_with_a_default_is_not_missing() {
    let sandbox = Sandbox::new();
    let transport = "{stdio: {command: '${env:NOT_THERE:-sh}', args: ['${env:NEITHER}']}}";
    sandbox.write("config/services/mine.yaml", &service(transport));
    let run = sandbox.skein(&["doctor", "--json"]);
    about(&run, "NEITHER");
    assert_eq!(findings(&run).len(), 2, "the other is about the model: {}", run.stdout);
}

#[test]
fn one_wrong_manifest_does_not_hide_what_else_is_wrong() {
    let sandbox = Sandbox::new();
    sandbox.write("config/services/wrong.yaml", "version: 1\nkind: service\nname: wrong\n");
    sandbox.write("config/services/mine.yaml", &service("{stdio: {command: no-such-program-anywhere}}"));
    let config = "version: 1\nprofiles: {default: {processor: 'openai:some', agent: nobody}}\n";
    sandbox.write("config/config.yaml", config);
    let run = sandbox.skein(&["doctor", "--json"]);
    assert_eq!(run.code, 1);
    for expected in ["missing", "nobody", "not on the PATH", "OPENAI_API_KEY", "was not looked at"] {
        about(&run, expected);
    }
    sandbox.write("config/config.yaml", "version: 1\nprofiles: [\n");
    let run = sandbox.skein(&["doctor", "--json"]);
    assert!(!run.stdout.contains("no model is configured"), "the file may name one: {}", run.stdout);
}

#[test]
fn a_file_of_keys_that_cannot_be_read_is_found_and_not_quoted() {
    let sandbox = Sandbox::new();
    sandbox.write("config/keys.json", "{\"OPENAI_API_KEY\": hunter2");
    fs::set_permissions(sandbox.path("config/keys.json"), fs::Permissions::from_mode(0o600)).unwrap();
    let run = sandbox.skein(&["doctor", "--json"]);
    about(&run, "it is not a mapping of names to keys");
    assert!(run.code == 1 && !run.whole().contains("hunter2"), "{}", run.whole());
}

#[test]
fn what_is_no_program_is_not_to_be_made_one() {
    let sandbox = Sandbox::new();
    sandbox.write("project/users", "root:x:0:0\n");
    sandbox.write("config/services/mine.yaml", &service("{stdio: {command: ./users}}"));
    let found = about(&sandbox.skein(&["doctor", "--json"]), "cannot be executed");
    assert!(found["fix"].as_str().is_some_and(|fix| fix.contains("no program")), "{found}");
}

#[test]
fn a_skill_that_cannot_be_used_is_named_with_its_place() {
    let sandbox = Sandbox::new();
    sandbox.write("project/.agents/skills/bare/SKILL.md", "just text");
    let run = sandbox.skein(&["doctor", "--json"]);
    assert_eq!(run.code, 0, "{}", run.stdout);
    let found = about(&run, "it has no front matter");
    assert_eq!((&found["severity"], &found["place"]), (&"warning".into(), &".agents/skills/bare/SKILL.md:1:1".into()));
}
