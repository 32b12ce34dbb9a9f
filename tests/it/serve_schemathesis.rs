//! schemathesis against `skein serve`: `/openapi.json` describes what the handlers of the REST API do.

use crate::support::model::{Answer, ScriptedModel, asked};
use crate::support::serve::{Server, bearer, token};
use crate::support::{Sandbox, full_tests, installed, repository};

/// Requests that follow the description and requests that do not, in a fixed order, alone and one after the other. Each
/// answer has a status, headers and a body that the description names.
#[expect(clippy::disallowed_methods, reason = "another program, which talks to the one under test")]
#[test]
fn the_rest_api_does_what_its_description_says() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| Answer::Says(vec!["You said ".to_owned(), asked(request)]));
    let server = Server::launch(model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])));
    let root = sandbox.path("project").display().to_string();
    let token = token(&sandbox, "ci", &["--root", &root]);
    let checked = std::process::Command::new(installed("tests/python/venv/bin/schemathesis"))
        .arg("--config-file")
        .arg(repository("tests/python/schemathesis.toml"))
        .args(["run", "--seed", "1", "--max-examples", "15", "--request-timeout", "30", "--no-color"])
        .args([
            "--generation-database",
            "none",
            "--continue-on-failure",
            "-H",
            &format!("Authorization: {}", bearer(&token)),
        ])
        .arg(format!("http://{}/openapi.json", server.address))
        .current_dir(sandbox.path("home"))
        .output()
        .expect("schemathesis starts");
    let printed = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success(), "{printed}{}", String::from_utf8_lossy(&checked.stderr));
    // All operations, except for the one that returns the description.
    assert!(printed.contains("Selected: 9/9") && printed.contains("Tested: 9"), "{printed}");
}
