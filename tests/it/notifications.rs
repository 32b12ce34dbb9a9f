//! A permission request that stays open: who is notified, how often, and of what.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::acp::{Acp, selected};
use crate::support::http::{HttpServer, Reply};
use crate::support::tmux::{Terminal, eventually};
use crate::support::{Sandbox, full_tests, require_full_tests, until};

const ASKED: &str = "session/request_permission";

/// An editor whose user is away, and the request that waits for them: its id, and the id of the prompt.
fn open_request(client: &mut Acp) -> (Value, Value) {
    client.introduce(&json!({}));
    client.on(ASKED, |_| None);
    let session = client.session();
    let mark = client.mark();
    let prompt = client.begin(&session, "run touch made-by-a-secret-name");
    let question = client.wait(mark, "a question", |message| message["method"] == ASKED);
    (question["id"].clone(), prompt)
}

fn editor(sandbox: &Sandbox) -> Acp {
    Acp::launch(sandbox, sandbox.command(&["acp", "-a", "goose"]))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhook_gets_one_post_with_a_link_and_no_arguments() {
    let hook = HttpServer::start(|_| Reply::Json(json!({}))).await;
    let sandbox = Sandbox::new();
    sandbox.write(
        "config/config.yaml",
        &format!(
            "version: 1\nnotifications: {{after: 300ms, webhook: '{}', console: 'https://skein.example.com/'}}\n",
            hook.url
        ),
    );
    let mut client = editor(&sandbox);
    let (question, prompt) = open_request(&mut client);
    until("a post", || (!hook.requests().is_empty()).then_some(())).await;
    // More time than a second notification would take.
    tokio::time::sleep(Duration::from_millis(900)).await;
    client.reply(&question, selected("allow_once"));
    assert_eq!(client.ended(&prompt), "end_turn");
    assert!(sandbox.path("project/made-by-a-secret-name").exists(), "the request works as before");
    let posts = hook.requests();
    assert_eq!((posts.len(), posts[0].line().0), (1, "POST"));
    let body = &posts[0].body;
    let session = body["session"].as_str().unwrap();
    assert_eq!(body["link"], json!(format!("https://skein.example.com/console/sessions/{session}")));
    assert_eq!((&body["principal"], &body["asked_by"]), (&json!("local"), &json!("developer__shell")));
    assert!(!posts[0].text.contains("secret-name"), "{}", posts[0].text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_answered_in_time_notifies_nobody() {
    let hook = HttpServer::start(|_| Reply::Json(json!({}))).await;
    let sandbox = Sandbox::new();
    let config = format!("version: 1\nnotifications: {{after: 1h, webhook: '{}'}}\n", hook.url);
    sandbox.write("config/config.yaml", &config);
    let mut client = editor(&sandbox);
    let (question, prompt) = open_request(&mut client);
    client.reply(&question, selected("allow_once"));
    assert_eq!(client.ended(&prompt), "end_turn");
    assert!(hook.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_fails_changes_nothing() {
    let hook = HttpServer::start(|_| Reply::Status(500)).await;
    let sandbox = Sandbox::new();
    let config = format!("version: 1\nnotifications: {{after: 100ms, webhook: '{}?key=hidden'}}\n", hook.url);
    sandbox.write("config/config.yaml", &config);
    let mut client = editor(&sandbox);
    let (question, prompt) = open_request(&mut client);
    until("a post", || (!hook.requests().is_empty()).then_some(())).await;
    let logged = || std::fs::read_to_string(sandbox.path("data/state/log/skein.log")).unwrap_or_default();
    let warning = "the webhook of `notifications` failed";
    until("a warning in the log", || logged().contains(warning).then_some(())).await;
    assert!(!logged().contains("key=hidden"), "{}", logged());
    client.reply(&question, selected("reject_once"));
    assert_eq!(client.ended(&prompt), "end_turn");
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_settings_reach_a_session_that_is_open() {
    let hook = HttpServer::start(|_| Reply::Json(json!({}))).await;
    let sandbox = Sandbox::new();
    let mut client = editor(&sandbox);
    client.introduce(&json!({}));
    client.on(ASKED, |_| None);
    let session = client.session();
    let config = format!("version: 1\nnotifications: {{after: 100ms, webhook: '{}'}}\n", hook.url);
    sandbox.write("config/config.yaml", &config);
    let mark = client.mark();
    let prompt = client.begin(&session, "run touch later");
    let question = client.wait(mark, "a question", |message| message["method"] == ASKED);
    until("a post", || (!hook.requests().is_empty()).then_some(())).await;
    client.reply(&question["id"], selected("reject_once"));
    assert_eq!(client.ended(&prompt), "end_turn");
}

#[test]
fn a_project_cannot_choose_a_webhook() {
    let sandbox = Sandbox::new();
    let config = "version: 1\nnotifications: {webhook: 'https://example.com/hook'}\n";
    sandbox.write("project/.skein/config.yaml", config);
    let checked = sandbox.skein(&["check"]);
    let expected = "error[E122]: a project's config cannot set `notifications`";
    assert!(checked.code != 0 && checked.stderr.contains(expected), "{}", checked.whole());
}

#[test]
fn the_terminal_rings_once_for_a_question() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.write("config/config.yaml", "version: 1\nnotifications: {after: 2s, desktop: false}\n");
    let terminal = Terminal::start(&sandbox, None, (100, 40), &["chat", "-a", "goose", "--approval", "ask"]);
    let output = sandbox.path("output");
    let bells = || std::fs::read(&output).unwrap_or_default().iter().filter(|byte| **byte == 7).count();
    terminal.copy_output(&output);
    let before = bells();
    terminal.enter("run touch made");
    terminal.shows("wants to run:");
    eventually("it rings", || bells() > before);
    // More time than a second bell would take.
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(bells(), before + 1);
    terminal.press(&["n"]);
}

/// The bus has no desktop, so the call fails; a monitor sees that it was made, once.
#[test]
#[expect(clippy::disallowed_methods, reason = "the bus is another program")]
fn the_desktop_gets_a_notification() {
    if !full_tests() {
        return;
    }
    require_full_tests("a session bus");
    let sandbox = Sandbox::new();
    let script = "echo \"$DBUS_SESSION_BUS_ADDRESS\"; exec dbus-monitor --session \"member='Notify'\"";
    let mut bus = Command::new("dbus-run-session")
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("dbus-run-session starts: install the Debian package dbus");
    let mut lines = BufReader::new(bus.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.next().expect("an address");
    // The monitor is ready when it prints the first signal.
    let first = lines.next().expect("the monitor starts");
    assert!(first.contains("NameAcquired"), "{first}");
    let (send, seen) = mpsc::channel();
    std::thread::spawn(move || lines.try_for_each(|line| send.send(line)));
    sandbox.write("config/config.yaml", "version: 1\nnotifications: {after: 100ms}\n");
    let mut command = sandbox.command(&["acp", "-a", "goose"]);
    command.env("DBUS_SESSION_BUS_ADDRESS", address);
    let mut client = Acp::launch(&sandbox, command);
    let (question, prompt) = open_request(&mut client);
    let mut shown = String::new();
    while !shown.contains("int32 -1") {
        shown += &seen.recv_timeout(Duration::from_secs(20)).unwrap_or_else(|error| panic!("{error}: {shown}"));
    }
    assert!(shown.contains("developer__shell waits for your consent"), "{shown}");
    client.reply(&question, selected("reject_once"));
    assert_eq!(client.ended(&prompt), "end_turn");
    bus.kill().unwrap();
    bus.wait().unwrap();
}
