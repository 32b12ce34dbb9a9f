//! `skein token`: created once, listed without its secret, revoked; and every wrong argument.

use serde_json::{Value, json};
use skein::principal::TokenGrant;
use skein::store::TokenStore;

use crate::support::{Run, Sandbox};

/// What the store says about a token, as another process sees it.
fn verify(sandbox: &Sandbox, token: &str) -> Option<TokenGrant> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { TokenStore::open(&sandbox.path("data")).unwrap().verify(token).await.unwrap() })
}

fn create(sandbox: &Sandbox, args: &[&str]) -> (Run, String) {
    let run = sandbox.skein(&[&["token", "create"], args].concat());
    assert_eq!(run.code, 0, "{}", run.whole());
    let token = run.stdout.split_whitespace().last().unwrap().to_owned();
    (run, token)
}

fn list(sandbox: &Sandbox) -> Vec<Value> {
    sandbox.skein(&["token", "list", "--json"]).json().as_array().unwrap().clone()
}

#[test]
fn a_token_is_printed_once_as_the_last_word() {
    let sandbox = Sandbox::new();
    let (run, token) = create(&sandbox, &["--name", "ann"]);
    assert!(run.stdout.ends_with(&format!("{token}\n")) && token.starts_with("skein_"), "{}", run.stdout);
    let grant = verify(&sandbox, &token).expect("accepted");
    assert_eq!((grant.principal.name(), grant.expires), ("ann", None));
    let secret = token.rsplit('_').next().unwrap();
    for args in [&["token", "list"][..], &["token", "list", "--json"]] {
        let run = sandbox.skein(args);
        assert!(run.stdout.contains(&grant.id) && !run.whole().contains(secret), "{}", run.whole());
    }
    for file in crate::support::files_below(&sandbox.path("data")) {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()), "{}", file.display());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_token_that_cannot_be_printed_is_revoked() {
    let sandbox = Sandbox::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = sandbox.command(&["token", "create", "--name", "ann"]).stdout(full).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("could not be printed and is revoked"), "{said}");
    let tokens = list(&sandbox);
    assert!(tokens.len() == 1 && tokens[0]["state"] == "revoked", "{tokens:?}");
}

#[test]
fn every_limit_is_stored_and_listed() {
    let sandbox = Sandbox::new();
    sandbox.write("project/sub/a.txt", "");
    let args = [
        "--name",
        "ci",
        "--modes",
        "coding/*",
        "--modes",
        "goose/planner",
        "--services",
        "mem*",
        "--client-services",
        "--approval",
        "read-only",
        "--root",
        "sub",
        "--sessions",
        "3",
        "--turns",
        "2",
        "--requests",
        "60/m",
        "--admin",
        "--expires",
        "30d",
    ];
    let (_, token) = create(&sandbox, &args);
    // The support code replaces the temporary folder.
    let root = "[TMP]/project/sub";
    let listed = &list(&sandbox)[0];
    let limits = json!({
        "modes": ["coding/*", "goose/planner"], "services": ["mem*"], "client_services": true,
        "approval": "read-only", "roots": [root], "sessions": 3, "turns": 2, "requests_per_minute": 60, "admin": true,
    });
    assert_eq!((&listed["name"], &listed["state"], &listed["limits"]), (&json!("ci"), &json!("active"), &limits));
    let grant = verify(&sandbox, &token).expect("accepted");
    let days = (grant.expires.unwrap().as_second() - jiff::Timestamp::now().as_second()) / 86_400;
    assert!((29..=30).contains(&days), "{days}");
    let text = sandbox.skein(&["token", "list"]).stdout;
    for line in ["--modes coding/*", "--services mem*", "--approval read-only", "--requests 60/m", "--admin"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn a_level_from_the_environment_limits_no_token() {
    let sandbox = Sandbox::new().with("SKEIN_APPROVAL", "deny");
    create(&sandbox, &["--name", "ann"]);
    assert_eq!(list(&sandbox)[0]["limits"]["approval"], Value::Null);
}

#[test]
fn a_revoked_token_is_listed_and_no_longer_accepted() {
    let sandbox = Sandbox::new();
    let (_, token) = create(&sandbox, &["--name", "ann"]);
    let id = list(&sandbox)[0]["id"].as_str().unwrap().to_owned();
    for _ in 0..2 {
        let run = sandbox.skein(&["token", "revoke", &id]);
        assert_eq!((run.code, run.stdout.as_str()), (0, format!("revoked {id}\n").as_str()), "{}", run.whole());
    }
    assert_eq!(list(&sandbox)[0]["state"], "revoked");
    assert_eq!(verify(&sandbox, &token), None);
}

#[test]
fn wrong_arguments_are_exit_code_2() {
    let sandbox = Sandbox::new();
    sandbox.write("project/file.txt", "");
    for (args, problem) in [
        (&["--name", "local"][..], "reserved"),
        (&["--name", "Ann Lee"], "is not a name"),
        (&["--name", "../ann"], "is not a name"),
        (&[], "--name"),
        (&["--name", "ann", "--root", "nowhere"], "`nowhere` of --root cannot be used"),
        (&["--name", "ann", "--root", "file.txt"], "`file.txt` of --root is not a folder"),
        (&["--name", "ann", "--approval", "sometimes"], "sometimes"),
        (&["--name", "ann", "--modes", "codng/*"], "--modes `codng/*` matches no mode"),
        (&["--name", "ann", "--modes", "goose/judge"], "--modes `goose/judge` matches no mode"),
        (&["--name", "ann", "--modes", "coding/*", "--modes", "x"], "--modes `x` matches no mode"),
        (&["--name", "ann", "--services", "nothing"], "--services `nothing` matches no service"),
        (&["--name", "ann", "--sessions", "0"], "0"),
        (&["--name", "ann", "--turns", "many"], "many"),
        (&["--name", "ann", "--requests", "60"], "60/m"),
        (&["--name", "ann", "--expires", "soon"], "30d"),
    ] {
        let run = sandbox.skein(&[&["token", "create"], args].concat());
        assert_eq!(run.code, 2, "{args:?}: {}", run.whole());
        assert!(run.stderr.contains(problem) && run.stdout.is_empty(), "{args:?}: {}", run.whole());
    }
    assert_eq!(list(&sandbox), Vec::<Value>::new(), "nothing was created");
    let run = sandbox.skein(&["token", "revoke", "000000000000"]);
    assert_eq!(run.code, 2, "{}", run.whole());
    assert!(run.stderr.contains("there is no token `000000000000`"), "{}", run.whole());
}

/// Trust of one principal is not that of another, nor that of the user.
#[test]
fn a_project_is_trusted_for_one_principal() {
    let sandbox = Sandbox::new();
    sandbox.write("project/.mcp.json", r#"{"mcpServers": {}}"#);
    let trust = |args: &[&str]| sandbox.skein(&[&["trust"], args, &["--json"]].concat()).json()["trust"].clone();
    assert_eq!(trust(&["--yes", "--principal", "ann"]), "trusted");
    assert_eq!(trust(&["--status", "--principal", "ann"]), "trusted");
    for args in [&["--status", "--principal", "bob"][..], &["--status"]] {
        assert_eq!(trust(args), "unknown", "{args:?}");
    }
    assert_eq!(trust(&["--revoke", "--principal", "bob"]), "unknown");
    assert_eq!(trust(&["--status", "--principal", "ann"]), "trusted");
    let run = sandbox.skein(&["trust", "--yes", "--principal", "local"]);
    assert_eq!(run.code, 2, "{}", run.whole());
}
