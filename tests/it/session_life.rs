//! What a session keeps when it is closed and opened again, what ends with it, and how it gets its name.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::acp::{Acp, of_kind, spoken};
use crate::support::model::{Answer, ScriptedModel, asked};
use crate::support::{Sandbox, servers};

/// Servers are gone a second after their session. A machine that runs many tests gets some more; the idle period after
/// which a service stops is minutes.
const SOON: Duration = Duration::from_secs(25);

fn offline(sandbox: &Sandbox, agent: &str) -> Acp {
    Acp::able(sandbox, &["-a", agent, "--approval", "auto"], &json!({}))
}

/// Opens a stored session with `method`.
fn open(client: &mut Acp, method: &str, session: &str) {
    client.ask(method, json!({"sessionId": session, "cwd": client.cwd(), "mcpServers": []}));
}

/// The to-do list, the files read and the journal of edits are there for another process.
#[test]
fn state_of_a_session_survives_load_and_resume() {
    for method in ["session/load", "session/resume"] {
        let sandbox = Sandbox::new();
        sandbox.write("project/a.txt", "one\n");
        sandbox.write("project/b.txt", "two\n");
        let mut client = offline(&sandbox, "goose");
        let session = client.session();
        for prompt in [
            "todo buy milk; drink it",
            "read a.txt",
            r#"/write_file {"path": "new/c.txt", "content": "three\n"}"#,
            r#"/edit_file {"path": "b.txt", "edits": [{"before": "two", "after": "2"}]}"#,
        ] {
            assert_eq!(client.prompt(&session, prompt).0, "end_turn", "{prompt}");
        }
        // One session ends in order, the other does not.
        if method == "session/load" {
            drop(client.finish())
        } else {
            client.kill()
        }
        let mut client = offline(&sandbox, "goose");
        open(&mut client, method, &session);
        let mut said = |prompt: &str| spoken(&client.prompt(&session, prompt).1);
        let list = said("todo");
        assert!(list.contains("1. [ ] buy milk") && list.contains("2. [ ] drink it"), "{list}");
        let written = said(r#"/write_file {"path": "a.txt", "content": "1\n"}"#);
        assert!(written.contains("wrote `a.txt`"), "the file was read before: {written}");
        let undone = said("/undo_edit b.txt");
        assert!(undone.contains("undone"), "{undone}");
        assert!(said("/undo_edit new/c.txt").contains("removed"));
        let again = said("/undo_edit b.txt");
        assert!(again.contains("there is no edit"), "{again}");
        assert_eq!(std::fs::read_to_string(sandbox.path("project/b.txt")).unwrap(), "two\n");
        assert!(!sandbox.path("project/new").exists());
        let other = client.session();
        let (_, updates) = client.prompt(&other, r#"/write_file {"path": "b.txt", "content": "x\n"}"#);
        assert!(!spoken(&updates).contains("wrote"), "another session has not read it: {updates:#?}");
    }
}

#[test]
fn state_of_a_session_survives_run_with_continue_and_resume() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "one\n");
    let run = |args: &[&str]| {
        let run = sandbox.skein(&[&["run", "-a", "goose", "--approval", "auto"], args].concat());
        assert_eq!(run.code, 0, "{}", run.whole());
        run.stdout
    };
    let first: Value = serde_json::from_str(&run(&["--json", "todo buy milk"])).unwrap();
    let id = first["session"].as_str().unwrap();
    run(&["-c", "read a.txt"]);
    assert!(run(&["-c", r#"/write_file {"path": "a.txt", "content": "1\n"}"#]).contains("wrote `a.txt`"));
    assert!(run(&["--resume", id, "todo"]).contains("buy milk"));
    assert!(run(&["--resume", id, "/undo_edit a.txt"]).contains("undone"));
    assert_eq!(std::fs::read_to_string(sandbox.path("project/a.txt")).unwrap(), "one\n");
}

/// A command that ran in the background when the session was closed is listed as interrupted; one that had ended is not.
#[test]
fn background_commands_are_interrupted_by_the_end_of_a_session() {
    let sandbox = Sandbox::new();
    let mut client = offline(&sandbox, "goose");
    let session = client.session();
    client.prompt(&session, r#"/shell {"command": "exit 3", "background": true}"#);
    client.prompt(&session, r#"/shell_output {"id": 1, "wait_seconds": 10}"#);
    client.prompt(&session, r#"/shell {"command": "sleep 63", "background": true}"#);
    client.until("the command runs", |client| !client.running("sleep 63").is_empty());
    // In the same process, and in another one.
    for _ in 0..2 {
        open(&mut client, "session/load", &session);
        let mut said = |prompt: &str| spoken(&client.prompt(&session, prompt).1);
        let first = said(r#"/shell_output {"id": 1}"#);
        assert!(first.contains("command 1: exit 3"), "{first}");
        let second = said(r#"/shell_output {"id": 2}"#);
        assert!(second.contains("command 2 (`sleep 63`) was interrupted"), "{second}");
        let stopped = said(r#"/shell_stop {"id": 2}"#);
        assert!(stopped.contains("interrupted"), "{stopped}");
        let unknown = said(r#"/shell_output {"id": 9}"#);
        assert!(unknown.contains("there are: 1, 2 (interrupted)"), "{unknown}");
        client.until("the command has ended", |client| client.running("sleep 63").is_empty());
        client.kill();
        client = offline(&sandbox, "goose");
    }
    open(&mut client, "session/resume", &session);
    let (_, updates) = client.prompt(&session, r#"/shell {"command": "true", "background": true}"#);
    assert!(spoken(&updates).contains("with id 3"), "ids are not used again: {updates:#?}");
}

/// A task that was delegated in the background and had not ended is listed as interrupted.
#[test]
fn background_tasks_are_interrupted_by_the_end_of_a_session() {
    for killed in [false, true] {
        let sandbox = Sandbox::new();
        let mut client = offline(&sandbox, "orchestrator");
        let session = client.session();
        let task = |name: &str, text: &str, background: bool| {
            let task =
                json!({"task": text, "agent": "coding", "mode": "backend", "background": background, "name": name});
            format!("/delegate {task}")
        };
        client.prompt(&session, &task("quick", "run true", false));
        client.prompt(&session, &task("slow", "run sleep 64", true));
        client.until("the task works", |client| !client.running("sleep 64").is_empty());
        let (_, updates) = client.prompt(&session, "/task_status {}");
        assert!(spoken(&updates).contains("`slow` (coding/backend"), "{updates:#?}");
        assert!(spoken(&updates).contains("works on it"), "{updates:#?}");
        if killed {
            client.kill()
        } else {
            drop(client.finish())
        }
        let mut client = offline(&sandbox, "orchestrator");
        open(&mut client, "session/load", &session);
        let mut said = |prompt: &str| spoken(&client.prompt(&session, prompt).1);
        let status = said("/task_status {}");
        assert!(status.contains("`quick`") && status.contains("is done"), "{status}");
        assert!(status.contains("`slow`") && status.contains("was interrupted"), "{status}");
        let one = said(r#"/task_status {"id": "slow"}"#);
        assert!(one.contains("delegate it again"), "{one}");
        assert!(said(r#"/task_cancel {"id": "slow"}"#).contains("was interrupted"));
    }
}

/// The processes of servers that clients have passed.
fn servers_of(client: &Acp) -> usize {
    let is_server = |pid: &&u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(servers::mcp_echo())
    };
    client.processes().iter().filter(is_server).count()
}

/// Waits until no server of a client is left, and returns how long it took.
fn until_gone(client: &Acp) -> Duration {
    let begun = Instant::now();
    client.until("no server is left", |client| servers_of(client) == 0);
    begun.elapsed()
}

/// Servers that a client passes end with their session, however it ends and whatever they do against it.
#[test]
fn servers_of_a_client_end_with_their_session() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let echo =
        |name: &str, args: &[&str]| json!({"name": name, "command": servers::mcp_echo(), "args": args, "env": []});
    // This one ignores the end of its input and SIGTERM.
    let stubborn = ["-c", r#"trap '' TERM; exec "$0" "$@""#, servers::mcp_echo(), "--hang-on-stop"];
    let stubborn = json!({"name": "stubborn", "command": "sh", "args": stubborn, "env": []});
    for method in ["session/close", "session/delete"] {
        let sessions: Vec<_> =
            (0..4).map(|_| client.session_with(json!([echo("one", &[]), echo("two", &[])]))).collect();
        client.until("the servers run", |client| servers_of(client) == 8);
        sessions.iter().for_each(|session| drop(client.ask(method, json!({"sessionId": session}))));
        let time = until_gone(&client);
        assert!(time < SOON, "{method}: {time:?}");
        let session = client.session_with(json!([stubborn]));
        client.until("the server runs", |client| servers_of(client) == 1);
        client.ask(method, json!({"sessionId": session}));
        let time = until_gone(&client);
        assert!(time < SOON, "{method}: {time:?}");
    }
    // A server that is still starting ends too.
    let slow = json!([echo("slow", &["--slow-start", "20000"])]);
    let id = client.send("session/new", json!({"cwd": client.cwd(), "mcpServers": slow}));
    client.until("the server runs", |client| servers_of(client) == 1);
    let session = client.result(&id)["sessionId"].as_str().unwrap().to_owned();
    client.ask("session/close", json!({"sessionId": session}));
    assert!(until_gone(&client) < SOON);
    // A session that is opened again gets its own servers, and the ones before are gone.
    let session = client.session_with(json!([echo("one", &[])]));
    client.prompt(&session, "hello");
    for _ in 0..3 {
        let params = json!({"sessionId": session, "cwd": client.cwd(), "mcpServers": [echo("one", &[])]});
        client.ask("session/load", params);
        let (_, updates) = client.prompt(&session, "/tools");
        assert!(spoken(&updates).contains("`one__echo`"), "{updates:#?}");
        client.until("one server is left", |client| servers_of(client) == 1);
    }
}

/// With an accelerator, the session gets a name from it after the first turn, and nothing waits for that.
#[test]
fn the_accelerator_names_a_session_after_its_first_turn() {
    let sandbox = Sandbox::new();
    let is_naming = |request: &Value| request["messages"][0]["content"].to_string().contains("You name conversations");
    let model = ScriptedModel::new(move |request| match (is_naming(request), asked(request)) {
        (false, _) => Answer::Says(vec!["It squeaks no more.".to_owned()]),
        (true, about) if about.contains("door") => Answer::Says(vec!["\"Squeaking garden door\"".to_owned()]),
        (true, about) if about.contains("window") => Answer::Status(400),
        (true, _) => Answer::Hangs("A "),
    });
    let start = |accelerator: &str| {
        let mut command = model.offered_to(sandbox.command(&["acp", "-a", "goose"]));
        command.env("SKEIN_ACCELERATOR", accelerator);
        let mut client = Acp::launch(&sandbox, command);
        client.introduce(&json!({}));
        client
    };
    let mut client = start("openai:fast");
    let titles = |client: &mut Acp| -> Vec<Value> {
        let listed = client.ask("session/list", json!({}));
        listed["sessions"].as_array().unwrap().iter().map(|info| info["title"].clone()).collect()
    };
    let session = client.session();
    let mark = client.mark();
    client.prompt(&session, "why does the garden door squeak?");
    let named = |message: &Value| message["params"]["update"]["title"] == json!("Squeaking garden door");
    client.wait(mark, "the name", named);
    assert_eq!(titles(&mut client), [json!("Squeaking garden door")]);
    let naming = model.requests().into_iter().find(is_naming).unwrap();
    assert_eq!(naming["model"], "fast");
    assert!(asked(&naming).contains("It squeaks no more."), "{naming}");
    // The second turn does not change it.
    let (_, updates) = client.prompt(&session, "and the window?");
    assert!(of_kind(&updates, "session_info_update").is_empty(), "{updates:#?}");
    // A model that fails or hangs is left alone: turns go on, and the title stays.
    for prompt in ["why does the window squeak?", "why does the floor squeak?"] {
        let session = client.session();
        assert_eq!(client.prompt(&session, prompt).0, "end_turn");
        assert_eq!(client.prompt(&session, "again").0, "end_turn");
        assert!(titles(&mut client).contains(&json!(prompt)));
    }
    let asked_for_names = || model.requests().iter().filter(|request| is_naming(request)).count();
    client.until("each session was named once", |_| asked_for_names() == 3);
    assert_eq!(client.finish().1, 0, "a question for a name does not delay the end");
    // Nothing asks for a name without an accelerator.
    let mut client = start("offline");
    let session = client.session();
    client.prompt(&session, "hello");
    client.prompt(&session, "hello again");
    client.finish();
    assert_eq!(asked_for_names(), 3);
}

/// A session is stored with its first prompt. On a full disk, its prompts fail for that reason, and later ones work.
#[test]
fn a_prompt_on_a_full_disk_fails_with_the_true_reason() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|_| Answer::Says(vec!["hello".to_owned()]));
    let mut client = Acp::launch(&sandbox, model.offered_to(sandbox.command(&["acp", "-a", "goose"])));
    client.introduce(&json!({}));
    let session = client.session();
    let store = rusqlite::Connection::open(sandbox.path("data/sessions.db")).unwrap();
    let full = "CREATE TRIGGER full BEFORE INSERT ON session BEGIN SELECT raise(ROLLBACK, 'the disk is full'); END";
    store.execute_batch(full).unwrap();
    for text in ["a first word", "a second word"] {
        let prompt = client.begin(&session, text);
        let answer = client.answer(&prompt);
        let problem = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer} is no error"));
        assert!(problem.contains("the disk is full") && problem.contains("make room"), "{problem}");
        assert!(!problem.contains("deleted"), "{problem}");
    }
    store.execute_batch("DROP TRIGGER full").unwrap();
    let (reason, updates) = client.prompt(&session, "a third word");
    assert_eq!((reason.as_str(), spoken(&updates).as_str()), ("end_turn", "hello"));
}
