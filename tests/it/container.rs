//! The image of packaging/Containerfile. Its steps run in a folder with Debian, because the tests have no container
//! engine.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::{Sandbox, full_tests, installed, read, repository};

/// Namespaces in which the port of the image is free, there is no network, and nothing remains.
const UNSHARE: [&str; 7] = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// Runs the steps of a Containerfile with the built program, and starts the image. Only root can do this; another user
/// needs `sudo` without a password, as scripts/bootstrap does.
#[expect(clippy::disallowed_methods, reason = "another program, which builds the image and starts it")]
fn run_image(containerfile: &Path) -> Output {
    let as_root: &[&str] = if rustix::process::geteuid().is_root() { &[] } else { &["sudo", "-n"] };
    let words = [as_root, &UNSHARE[..], &["python3", "-B"][..]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(repository("tests/it/container/image.py"));
    command.arg("--containerfile").arg(containerfile).arg("run");
    command.arg(installed("tests/debian/image")).arg(env!("CARGO_BIN_EXE_skein"));
    command.output().unwrap_or_else(|error| panic!("cannot start `{}`: {error}", words[0]))
}

/// The server in the image answers under its public name, as a user without rights. It keeps its data, has what its
/// sandbox and git need, and ends when the engine asks it to.
#[test]
fn the_steps_of_the_containerfile_make_an_image_that_serves() {
    if !full_tests() {
        return;
    }
    let output = run_image(&repository("packaging/Containerfile"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("what was found");
    let folder = |mode: &str| json!([1000, 1000, mode]);
    let expected = json!({
        "healthz": [200, "ok\n"],
        "foreign_host": 403,
        "without_token": 401,
        "with_token": 200,
        "uids": ["1000", "1000", "1000", "1000"],
        "pid_inside": "1",
        "capabilities": ["0000000000000000"],
        "sandbox": "1000\n",
        "git": ["git", "version"],
        "folders": {
            "/var/lib/skein": folder("0o700"),
            "/srv/projects": folder("0o755"),
            "/etc/skein": folder("0o755"),
        },
        "certificates": true,
        "data": true,
        "exit": 0,
    });
    assert_eq!(found, expected);
}

/// Controls: the test above can fail, at a step and at the start.
#[test]
fn mistakes_in_the_containerfile_are_found() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let right = read(repository("packaging/Containerfile"));
    for (before, after, problem) in [
        ("--uid 1000", "--uid many", "step 3 of 10"),
        ("USER skein", "USER skien", "there is no user `skien`"),
        (", \"--behind-proxy\"", "", "--behind-proxy"),
    ] {
        let wrong = right.replace(before, after);
        assert_ne!(wrong, right, "{before}");
        sandbox.write("Containerfile", &wrong);
        let output = run_image(&sandbox.path("Containerfile"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(problem), "{after}: {said}");
    }
}
