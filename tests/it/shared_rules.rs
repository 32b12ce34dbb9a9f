//! The rules that a principal keeps: in the files of one server, or in a database that servers share.

use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use skein::principal::Principal;
use skein::store::{StoreAddress, StorePlace};

use crate::support::model::{Answer, ScriptedModel, has_result};
use crate::support::postgres::Postgres;
use crate::support::serve::{Server, bearer, token_with};
use crate::support::{Sandbox, full_tests};

/// Writes a file, and then says so.
fn writer() -> ScriptedModel {
    ScriptedModel::new(|request| match has_result(request) {
        true => Answer::Says(vec!["done".to_owned()]),
        false => {
            let arguments = json!({"path": "new.txt", "content": "new\n", "overwrite": true});
            Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
        }
    })
}

/// Runs a prompt; the status of the run.
fn run(server: &Server, token: &str) -> Value {
    let input = json!([{"role": "user", "parts": [{"content": "write it"}]}]);
    let body = json!({"agent_name": "goose-assistant", "mode": "sync", "input": input});
    server.request("POST", "/runs", &[("authorization", &bearer(token))], &body.to_string()).json()["status"].clone()
}

#[test]
fn a_rule_that_one_server_keeps_applies_on_another() {
    if !full_tests() {
        return;
    }
    let (postgres, one, two) = (Postgres::start(), Sandbox::new(), Sandbox::new());
    let url = postgres.database("own");
    let with_store = |mut command: Command| {
        command.env("SKEIN_STORE", &url);
        command
    };
    let root = one.path("project").to_string_lossy().into_owned();
    let [ann, bob] = ["ann", "bob"].map(|name| {
        let create = ["token", "create", "--name", name, "--root", &root, "--approval", "ask"];
        token_with(with_store(one.command(&create)))
    });
    let model = writer();
    let serve = |sandbox: &Sandbox| {
        Server::launch(model.offered_to(with_store(sandbox.command(&["serve", "--listen", "127.0.0.1:0"]))))
    };
    let (first, second) = (serve(&one), serve(&two));
    for server in [&first, &second] {
        assert_eq!(run(server, &ann), "awaiting");
    }
    // As the answer "always in this project" on a third server does.
    let address: StoreAddress = url.parse().unwrap();
    let consents = StorePlace::default().with_database(Arc::new(address)).consents().unwrap();
    let rule = json!({"tool": "developer__write_file", "project": root, "then": "allow"});
    consents.of(Principal::new("ann").unwrap()).keep(&rule.to_string()).unwrap();
    for server in [&first, &second] {
        assert_eq!(run(server, &ann), "completed");
        assert_eq!(run(server, &bob), "awaiting", "it is the rule of ann");
    }
    let rules = |args: &[&str]| {
        let output = with_store(one.command(&[&["principal", "rules"], args].concat())).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, listed) = rules(&["ann"]);
    assert!(code == Some(0) && listed.contains("developer__write_file") && listed.contains("rule 1 in"), "{listed}");
    assert_eq!(rules(&["bob", "--remove", "1"]).0, Some(2), "it is the rule of ann");
    assert_eq!(rules(&["ann", "--remove", "1"]).0, Some(0));
    assert_eq!(run(&second, &ann), "awaiting");
}

#[test]
fn a_rule_in_the_files_of_a_server_is_of_one_principal() {
    let sandbox = Sandbox::new();
    let root = sandbox.path("project").to_string_lossy().into_owned();
    let [ann, bob] = ["ann", "bob"].map(|name| {
        token_with(sandbox.command(&["token", "create", "--name", name, "--root", &root, "--approval", "ask"]))
    });
    let model = writer();
    let server = Server::launch(model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])));
    assert_eq!(run(&server, &ann), "awaiting");
    // As the answer "always in this project" does.
    let consents = StorePlace::files(sandbox.path("data")).consents().unwrap();
    let rule = json!({"tool": "developer__write_file", "project": root, "then": "allow"});
    consents.of(Principal::new("ann").unwrap()).keep(&rule.to_string()).unwrap();
    assert_eq!((run(&server, &ann), run(&server, &bob)), (json!("completed"), json!("awaiting")));
    let listed = sandbox.skein(&["principal", "rules", "ann"]);
    let listed = listed.stdout;
    assert!(listed.contains("developer__write_file") && listed.contains("rule 1 in"), "{listed}");
    assert_eq!(sandbox.skein(&["principal", "rules", "bob", "--remove", "1"]).code, 2, "it is the rule of ann");
    assert_eq!(sandbox.skein(&["principal", "rules", "ann", "--remove", "1"]).code, 0);
    assert_eq!(run(&server, &ann), "awaiting");
    // A rule that an administrator writes for a principal applies as well.
    sandbox.write("data/principals/ann/config/config.yaml", &format!("version: 1\npermissions:\n  - {rule}\n"));
    assert_eq!(run(&server, &ann), "completed");
}
