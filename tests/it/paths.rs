//! The files that calls are about: what the user is shown, what is written after an answer, and which paths are
//! protected or hidden.
#![allow(clippy::expect_used, reason = "helpers of tests fail the test")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use serde_json::{Value, json};
use skein::broker::BindRequest;
use skein::manifest::ApprovalLevel;
use skein::tool::ask::{Asker, NoAsker, PermissionRequest, PermissionResponse as UserAnswer};

use crate::model::{Answer, Model, calls, says};
use crate::support::acp::{Acp, of_kind, selected};
use crate::support::outside::{manifest, mode as outside_mode};
use crate::support::peers;
use crate::support::{Sandbox, Wired, agent, echo, mode};

fn write_file(path: &str) -> String {
    format!("/developer.write_file {}", json!({"path": path, "content": "new\n", "overwrite": true}))
}

/// A repository with a folder beside the git folder.
fn repository() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("project/.git/config", "[core]\n");
    sandbox.write("project/documentation/notes.md", "old\n");
    sandbox.write("project/src/main.rs", "fn main() {}\n");
    sandbox
}

fn text(sandbox: &Sandbox, path: &str) -> String {
    std::fs::read_to_string(sandbox.path(path)).unwrap_or_default()
}

fn question(client: &mut Acp, mark: usize) -> Value {
    let asked = client.wait(mark, "a question", |message| message["method"] == "session/request_permission");
    asked["params"].clone()
}

#[test]
fn a_question_shows_where_a_path_leads() {
    let sandbox = repository();
    let mut client = Acp::start(&sandbox);
    client.on_permission("reject_once");
    let session = client.session();
    let mark = client.mark();
    client.prompt(&session, &write_file("documentation/../.git/config"));
    let asked = question(&mut client, mark);
    let call = &asked["toolCall"];
    assert_eq!(call["title"], ".git/config (given as documentation/../.git/config)");
    let path = sandbox.path("project/.git/config").to_string_lossy().into_owned();
    assert_eq!(call["locations"], json!([{"path": path, "line": 1}]), "{asked}");
    let reason = call["content"][0]["content"]["text"].as_str().expect("a reason");
    assert!(reason.contains("`.git/config` is a protected path: git runs programs"), "{asked}");
    assert_eq!((&call["content"][1]["type"], &call["content"][1]["path"]), (&json!("diff"), &json!(path)), "{asked}");
    let names: Vec<_> = asked["options"].as_array().expect("options").iter().map(|option| &option["name"]).collect();
    assert_eq!(names, ["Allow", "Reject", "Reject writing of .git/config in this session"]);
    let begun = of_kind(&client.updates(mark, &session), "tool_call")[0].clone();
    assert_eq!((&begun["title"], &begun["locations"][0]["path"]), (&call["title"], &json!(path)));
    assert_eq!(text(&sandbox, "project/.git/config"), "[core]\n");
}

#[test]
fn a_path_that_means_two_things_is_not_asked_about() {
    let sandbox = repository();
    let mut client = Acp::start(&sandbox);
    let session = client.session();
    for (path, reason) in [
        ("documentation/notes.md                                   /../../.git/config", "does not exist"),
        ("documentation/notes.md/../../.git/config", "not a folder"),
        ("documentation/new                                        /../../.git/config", "does not exist"),
        ("documentation/no\u{200b}tes.md", "characters that do not show"),
        ("documentation/\u{202e}dm.eton", "characters that do not show"),
        ("documentation/notes.md\u{7f}", "characters that do not show"),
    ] {
        let mark = client.mark();
        let (_, updates) = client.prompt(&session, &write_file(path));
        let ended = of_kind(&updates, "tool_call_update").last().expect("an end").clone();
        assert!(ended["status"] == "failed" && ended.to_string().contains(reason), "{path}: {ended}");
        let asked = client.heard()[mark..].iter().any(|message| message["method"] == "session/request_permission");
        assert!(!asked, "{path}");
    }
    assert_eq!(text(&sandbox, "project/.git/config"), "[core]\n");
}

/// The link is exchanged while the question is open.
#[test]
fn a_path_that_leads_elsewhere_after_the_answer_is_refused() {
    for mode in ["coding/architect", "coding/backend"] {
        let sandbox = repository();
        let mut client = Acp::start(&sandbox);
        let session = client.session();
        client.set_mode(&session, mode);
        let notes = sandbox.path("project/documentation/notes.md");
        client.on("session/request_permission", move |_| {
            std::fs::remove_file(&notes).expect("removed");
            symlink("../src/main.rs", &notes).expect("linked");
            Some(selected("allow_once"))
        });
        let (_, updates) = client.prompt(&session, &write_file("documentation/notes.md"));
        let ended = of_kind(&updates, "tool_call_update").last().expect("an end").clone();
        assert_eq!(ended["status"], "failed", "{mode}: {ended}");
        assert_eq!(text(&sandbox, "project/src/main.rs"), "fn main() {}\n", "{mode}");
        // Nor is the folder on the way exchanged.
        let sandbox = repository();
        sandbox.write("project/other/notes.md", "other\n");
        let mut client = Acp::start(&sandbox);
        let session = client.session();
        client.set_mode(&session, mode);
        let folder = sandbox.path("project/documentation");
        client.on("session/request_permission", move |_| {
            std::fs::remove_dir_all(&folder).expect("removed");
            symlink("other", &folder).expect("linked");
            Some(selected("allow_once"))
        });
        let (_, updates) = client.prompt(&session, &write_file("documentation/notes.md"));
        let ended = of_kind(&updates, "tool_call_update").last().expect("an end").clone();
        assert!(ended.to_string().contains("leads elsewhere now"), "{mode}: {ended}");
        assert_eq!(text(&sandbox, "project/other/notes.md"), "other\n", "{mode}");
    }
}

#[test]
fn consent_to_a_protected_path_is_for_one_call() {
    let sandbox = repository();
    let mut client = Acp::able(&sandbox, &["--approval", "auto"], &json!({}));
    // A client that answers what it was not offered.
    client.on_permission("allow_always");
    let session = client.session();
    for count in 1..=2 {
        let mark = client.mark();
        client.prompt(&session, &write_file(".git/hooks/pre-commit"));
        question(&mut client, mark);
        assert_eq!(text(&sandbox, "project/.git/hooks/pre-commit"), "new\n", "{count}");
    }
    let mark = client.mark();
    client.prompt(&session, &write_file("src/new.rs"));
    assert_eq!(text(&sandbox, "project/src/new.rs"), "new\n");
    assert!(client.heard()[mark..].iter().all(|message| message["method"] != "session/request_permission"));
}

#[test]
fn every_level_asks_for_protected_paths_without_a_rule() {
    let sandbox = repository();
    sandbox.write("project/lib/.git/HEAD", "");
    let outcome = |flags: &[&str], path: &str| {
        let call = format!("developer__write_file {}", json!({"path": path, "content": "x"}));
        let run = sandbox
            .skein(&[&["permissions", "test", "-a", "coding", "-m", "backend", "--json"], flags, &[&call]].concat());
        assert_eq!(run.code, 0, "{}", run.whole());
        (run.json()["outcome"].as_str().expect("an outcome").to_owned(), run.json()["because"].to_string())
    };
    for path in
        [".git/config", "lib/.git/hooks/x", ".GIT/config", ".envrc", "docs/AGENTS.md", ".github/workflows/ci.yml"]
    {
        let (verdict, because) = outcome(&["--approval", "auto"], path);
        assert!(verdict == "ask" && because.contains("protected path"), "{path}: {because}");
        assert_eq!(outcome(&["--approval", "read-only"], path).0, "refuse", "{path}");
    }
    let auto = |rule: &str, path: &str| outcome(&["--approval", "auto", "--allow", rule], path).0;
    for rule in ["developer__write_file", "developer__*: {path: \"*\"}", "developer__*: {path: \"*config\"}"] {
        assert_eq!(auto(rule, ".git/config"), "ask", "{rule}");
    }
    for rule in ["developer__write_file: {path: \".git/config\"}", "developer__*: {path: \".git/*\"}"] {
        assert_eq!(auto(rule, ".git/config"), "run", "{rule}");
        assert_eq!(auto(rule, ".vscode/tasks.json"), "ask", "{rule}");
    }
    assert_eq!(outcome(&["--approval", "auto"], "src/main.rs").0, "run");
}

#[test]
fn without_a_user_a_protected_path_needs_the_rule_that_is_named() {
    let wish = || calls("developer__write_file", &json!({"path": ".git/hooks/post-checkout", "content": "x"}));
    let sandbox = repository();
    let model = Model::new([wish(), says("done")].map(Answer::Stream).into());
    let run = model.run(&sandbox, &["-a", "coding", "-m", "backend", "--approval", "auto", "go"]);
    assert_eq!(run.code, 5, "{}", run.whole());
    let rule = r#"developer__write_file: {path: ".git/hooks/post-checkout"}"#;
    let result = model.request(1)["messages"].to_string();
    assert!(result.contains(&rule.replace('"', r#"\""#)), "the rule is named: {result}");
    assert!(!sandbox.path("project/.git/hooks").exists());
    let model = Model::new([wish(), says("done")].map(Answer::Stream).into());
    let run = model.run(&sandbox, &["-a", "coding", "-m", "backend", "--approval", "auto", "--allow", rule, "go"]);
    assert_eq!((run.code, text(&sandbox, "project/.git/hooks/post-checkout").as_str()), (0, "x"), "{}", run.whole());
}

#[test]
fn hidden_paths_are_refused_in_a_session_of_the_home() {
    let sandbox = Sandbox::new();
    sandbox.write("home/.ssh/id_ed25519", "PRIVATE KEY\n");
    sandbox.write("home/.ssh/known_hosts", "example.org ssh-ed25519\n");
    let mut client = Acp::able(&sandbox, &["--approval", "auto"], &json!({}));
    for folder in ["home", "home/.ssh"] {
        let cwd = sandbox.path(folder).to_string_lossy().into_owned();
        let session = client.ask("session/new", json!({"cwd": cwd, "mcpServers": []}))["sessionId"].clone();
        let session = session.as_str().expect("an id");
        let key = sandbox.path("home/.ssh/id_ed25519").to_string_lossy().into_owned();
        let read = |path: &str| format!("/developer.read_file {}", json!({"path": path}));
        let (_, updates) = client.prompt(session, &read(&key));
        let said = of_kind(&updates, "tool_call_update").last().expect("an end").to_string();
        assert!(said.contains("hidden path") && !said.contains("PRIVATE"), "{folder}: {said}");
        let (_, updates) = client.prompt(session, &read(&key.replace("id_ed25519", "known_hosts")));
        let said = of_kind(&updates, "tool_call_update").last().expect("an end").to_string();
        assert!(said.contains("example.org"), "{folder}: {said}");
        let (_, updates) = client.prompt(session, r#"/developer.search {"pattern": "PRIVATE"}"#);
        let said = of_kind(&updates, "tool_call_update").last().expect("an end").to_string();
        assert!(!said.contains("PRIVATE KEY"), "{folder}: {said}");
    }
}

#[test]
fn external_agents_ask_for_protected_and_read_no_hidden_paths() {
    let sandbox = repository();
    let modes = [outside_mode("runner", json!(["read", "edit"]), json!(["developer"]))];
    sandbox.install(&manifest("echo", &peers::echo(&[]), &modes));
    sandbox.write("home/.ssh/id_ed25519", "PRIVATE KEY\n");
    let mut client = Acp::able(&sandbox, &["--approval", "auto"], &json!({}));
    client.on_permission("reject_once");
    let session = client.session();
    client.set_mode(&session, "echo/runner");
    let config = sandbox.path("project/.git/config").to_string_lossy().into_owned();
    let mark = client.mark();
    let (_, updates) = client.prompt(&session, &format!("write {config} x"));
    assert!(crate::support::acp::spoken(&updates).contains("the user refused"), "{updates:?}");
    assert!(question(&mut client, mark)["toolCall"].to_string().contains("protected path"));
    assert_eq!(text(&sandbox, "project/.git/config"), "[core]\n");
    let home = sandbox.path("home").to_string_lossy().into_owned();
    let session = client.ask("session/new", json!({"cwd": home, "mcpServers": []}))["sessionId"].clone();
    let session = session.as_str().expect("an id").to_owned();
    client.set_mode(&session, "echo/runner");
    let (_, updates) = client.prompt(&session, &format!("read {home}/.ssh/id_ed25519"));
    let said = crate::support::acp::spoken(&updates);
    assert!(said.contains("hidden path") && !said.contains("PRIVATE"), "{said}");
}

/// Remembers the protected paths it was asked about, and refuses.
#[derive(Default)]
struct Refusing(Mutex<Vec<String>>);

impl Asker for Refusing {
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, UserAnswer> {
        let protected = question.protected.map(|protected| protected.shown).unwrap_or_default();
        self.0.lock().expect("the questions").push(protected);
        Box::pin(async { UserAnswer::Refuse })
    }
}

#[tokio::test]
async fn third_party_tools_ask_for_protected_paths_too() {
    let wired = Wired::with_manifests(&[echo("echo", &[]), agent(&[mode("work", json!(["echo"]), json!(["echo"]))])]);
    let asker = Arc::new(Refusing::default());
    let terms = |asker| BindRequest {
        session: wired.session("s"),
        approval: Some(ApprovalLevel::Auto),
        asker,
        client_services: Vec::new(),
    };
    let binding = wired.bind_terms("work", terms(Arc::clone(&asker) as _)).await.expect("bound");
    let absolute = wired.path("project/.git/config").display().to_string();
    for path in [absolute.as_str(), ".git/config"] {
        let said = wired.refused(&binding, "echo__write", json!({"path": path, "content": "x"})).await;
        assert!(said.contains("the user refused"), "{path}: {said}");
    }
    let asked = std::mem::take(&mut *asker.0.lock().expect("the questions"));
    assert_eq!(asked, [".git/config", ".git/config"]);
    let fine = wired.path("project/notes.md").display().to_string();
    wired.said(&binding, "echo__write", json!({"path": fine, "content": "x"})).await;
    let binding = wired.bind_terms("work", terms(Arc::new(NoAsker))).await.expect("bound");
    let said = wired.refused(&binding, "echo__write", json!({"path": absolute, "content": "x"})).await;
    assert!(said.contains(r#"echo__write: {path: ".git/config"}"#), "{said}");
    wired.stop().await;
}

/// A file `link.txt`, which leads to a file whose name is not UTF-8.
fn latin1_file() -> Sandbox {
    let sandbox = Sandbox::new();
    let file = sandbox.path("project").join(OsStr::from_bytes(b"caf\xe9.txt"));
    std::fs::write(&file, "needle\n").expect("written");
    symlink(&file, sandbox.path("project/link.txt")).expect("a link");
    sandbox
}

const SEARCH: &str = r#"/developer.search {"pattern":"needle"}"#;

#[test]
fn a_session_keeps_a_file_name_that_is_not_utf8() {
    let sandbox = latin1_file();
    for (flags, prompt) in [(&["-a", "coding/backend"][..], SEARCH), (&["-c"], "read link.txt"), (&["-c"], "list")] {
        let run = sandbox.skein(&[&["run", "--output", "stream-json"], flags, &[prompt]].concat());
        assert_eq!(run.code, 0, "{prompt}: {}", run.whole());
        let ended = run.stdout.lines().filter(|line| line.contains("\"event\":\"tool_ended\"")).count();
        assert_eq!(ended, 1, "{prompt}: {}", run.whole());
    }
}

#[test]
fn a_client_sees_calls_on_a_file_name_that_is_not_utf8() {
    let sandbox = latin1_file();
    let mut client = Acp::able(&sandbox, &["-a", "coding/backend"], &json!({}));
    let session = client.session();
    for prompt in [SEARCH, "read link.txt"] {
        let (reason, updates) = client.prompt(&session, prompt);
        let last = of_kind(&updates, "tool_call_update").pop().expect("an update");
        assert_eq!((reason.as_str(), &last["status"]), ("end_turn", &json!("completed")), "{updates:#?}");
    }
    client.finish();
    let mut again = Acp::able(&sandbox, &["-a", "coding/backend"], &json!({}));
    let params = json!({"sessionId": session, "cwd": again.cwd(), "mcpServers": []});
    assert!(again.ask("session/load", params)["modes"].is_object());
}

/// Earlier versions stored nothing for an event with a file name that is not UTF-8.
#[test]
fn a_session_with_an_event_without_content_opens() {
    let sandbox = latin1_file();
    let run = sandbox.skein(&["run", "-a", "coding/backend", SEARCH]);
    assert_eq!(run.code, 0, "{}", run.whole());
    let store = rusqlite::Connection::open(sandbox.path("data/sessions.db")).expect("opens");
    let emptied = store.execute("UPDATE event SET body = '' WHERE kind = 'tool_ended'", []).expect("changed");
    assert_eq!(emptied, 1);
    drop(store);
    let run = sandbox.skein(&["run", "-c", "list"]);
    assert_eq!(run.code, 0, "{}", run.whole());
    let mut client = Acp::able(&sandbox, &["-a", "coding/backend"], &json!({}));
    let listed = client.ask("session/list", json!({}));
    let params = json!({"sessionId": listed["sessions"][0]["sessionId"], "cwd": client.cwd(), "mcpServers": []});
    assert!(client.ask("session/load", params)["modes"].is_object());
}

#[test]
fn a_working_folder_that_is_not_utf8_is_refused() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path("project").join(OsStr::from_bytes(b"caf\xe9"));
    std::fs::create_dir(&folder).expect("a folder");
    let output = sandbox.command(&["run", "list"]).current_dir(&folder).output().expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("is not UTF-8") && stderr.contains("cd into another folder"), "{stderr}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a shell starts the program in a folder that it has removed")]
fn a_working_folder_that_was_removed_is_refused() {
    let sandbox = Sandbox::new();
    let run = |args: &str| {
        let skein = sandbox.command(&[]);
        let mut shell = std::process::Command::new("/bin/sh");
        let script = format!("mkdir gone && cd gone && rmdir ../gone && exec \"$0\" {args}");
        shell.args(["-c", &script]).arg(skein.get_program()).current_dir(sandbox.path("project")).env_clear();
        shell.envs(skein.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.output().expect("a shell")
    };
    let refused = run("run list");
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("the working folder no longer exists"), "{stderr}");
    for args in ["--version", "help", "completions bash"] {
        assert!(run(args).status.success(), "{args}");
    }
}

#[test]
fn trust_prints_a_folder_without_invisible_characters() {
    let sandbox = Sandbox::new();
    let folder = "project/a\u{202e}b";
    sandbox.write(&format!("{folder}/.mcp.json"), "{}");
    let mut command = sandbox.command(&["trust", "--status"]);
    let output = command.current_dir(sandbox.path(folder)).output().expect("it starts");
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(stdout.contains("not trusted") && !stdout.contains('\u{202e}'), "{stdout:?}");
}
