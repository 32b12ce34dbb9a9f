//! The editor as a service: what `skein acp` asks of a client that lends its files and terminals, and what it does
//! when the client fails. That nothing is asked of one that lends nothing, every other test shows: its client knows
//! no such request. The numbers in the comments are those of the assertions for a conformant agent.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::support::Sandbox;
use crate::support::acp::{Acp, of_kind, spoken};

/// What the editor has open, saved or not.
type Buffers = Rc<RefCell<BTreeMap<String, String>>>;

fn path(params: &Value) -> String {
    params["path"].as_str().expect("a path").to_owned()
}

/// A client that lends its files.
fn editor(sandbox: &Sandbox, fs: &Value) -> (Acp, Buffers) {
    let mut client = Acp::able(sandbox, &[], &json!({"fs": fs}));
    let buffers = Buffers::default();
    let (read, written) = (Rc::clone(&buffers), Rc::clone(&buffers));
    client.on("fs/read_text_file", move |params| {
        Some(match read.borrow().get(&path(params)) {
            Some(text) => json!({"result": {"content": text}}),
            None => match std::fs::read_to_string(path(params)) {
                Ok(text) => json!({"result": {"content": text}}),
                Err(_) => json!({"error": {"code": -32002, "message": "no such file"}}),
            },
        })
    });
    client.on("fs/write_text_file", move |params| {
        let text = params["content"].as_str().expect("text").to_owned();
        // As an editor does that saves at once.
        std::fs::write(path(params), &text).expect("written");
        written.borrow_mut().insert(path(params), text);
        Some(json!({"result": {}}))
    });
    client.on_permission("allow_once");
    (client, buffers)
}

/// What is in the editor and not on disk yet is what a tool reads.
#[test]
pub(crate) fn an_unsaved_change_is_seen() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "as it was saved\n");
    let (mut client, buffers) = editor(&sandbox, &json!({"readTextFile": true, "writeTextFile": true}));
    let file = sandbox.path("project/a.txt").to_string_lossy().into_owned();
    buffers.borrow_mut().insert(file, "as it is being written\n".to_owned());
    let session = client.session();
    let mark = client.mark();
    let (_, updates) = client.prompt(&session, "read a.txt");
    assert!(spoken(&updates).contains("as it is being written"), "{updates:#?}");
    let asked = client.wait(mark, "a request", |message| message["method"] == "fs/read_text_file");
    assert_eq!(asked["params"]["sessionId"], json!(session));
}

/// An edit goes through the editor, by an absolute path, and is shown as a diff.
#[test]
pub(crate) fn an_edit_goes_through_the_editor() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "one\ntwo\n");
    let (mut client, buffers) = editor(&sandbox, &json!({"readTextFile": true, "writeTextFile": true}));
    let session = client.session();
    client.prompt(&session, "read a.txt");
    let edit = r#"/developer.edit_file {"path": "a.txt", "edits": [{"before": "two", "after": "three"}]}"#;
    let (reason, updates) = client.prompt(&session, edit);
    assert_eq!(reason, "end_turn");
    let file = sandbox.path("project/a.txt").to_string_lossy().into_owned();
    assert_eq!(buffers.borrow().get(&file).map(String::as_str), Some("one\nthree\n"), "{updates:#?}");
    let end = of_kind(&updates, "tool_call_update").pop().expect("a call");
    let diff = end["content"].as_array().unwrap().iter().find(|content| content["type"] == "diff").expect("a diff");
    assert_eq!((&diff["oldText"], &diff["newText"]), (&json!("one\ntwo\n"), &json!("one\nthree\n")));
}

/// 31: only what was offered is asked for.
#[test]
pub(crate) fn a_client_that_only_shows_files_is_not_asked_to_write() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "one\n");
    let (mut client, _) = editor(&sandbox, &json!({"readTextFile": true, "writeTextFile": false}));
    let session = client.session();
    let mark = client.mark();
    client.prompt(&session, "read a.txt");
    let edit = r#"/developer.edit_file {"path": "a.txt", "edits": [{"before": "one", "after": "two"}]}"#;
    client.prompt(&session, edit);
    let methods: Vec<_> = client.heard()[mark..].iter().filter_map(|message| message["method"].as_str()).collect();
    assert!(methods.contains(&"fs/read_text_file") && !methods.contains(&"fs/write_text_file"), "{methods:?}");
    assert_eq!(std::fs::read_to_string(sandbox.path("project/a.txt")).unwrap(), "two\n");
}

/// A client that fails is done without: the disk has the file, too.
#[test]
pub(crate) fn a_client_that_fails_is_done_without() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "from the disk\n");
    let (mut client, _) = editor(&sandbox, &json!({"readTextFile": true, "writeTextFile": true}));
    client.on("fs/read_text_file", |_| Some(json!({"error": {"code": -32603, "message": "the editor is upset"}})));
    let session = client.session();
    let (reason, updates) = client.prompt(&session, "read a.txt");
    assert_eq!((reason.as_str(), spoken(&updates).contains("from the disk")), ("end_turn", true), "{updates:#?}");
}

/// A client that does not answer does not keep a turn from being cancelled.
#[test]
pub(crate) fn a_client_that_is_silent_does_not_hold_a_turn() {
    let sandbox = Sandbox::new();
    sandbox.write("project/a.txt", "from the disk\n");
    let (mut client, _) = editor(&sandbox, &json!({"readTextFile": true, "writeTextFile": true}));
    client.on("fs/read_text_file", |_| None);
    let session = client.session();
    let mark = client.mark();
    let prompt = client.begin(&session, "read a.txt");
    client.wait(mark, "a request", |message| message["method"] == "fs/read_text_file");
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
}

/// What lies outside the session's folders is not asked of the editor either.
#[test]
pub(crate) fn the_editor_opens_no_other_folders() {
    let sandbox = Sandbox::new();
    sandbox.write("hidden/c.txt", "the letter c\n");
    let (mut client, _) = editor(&sandbox, &json!({"readTextFile": true, "writeTextFile": true}));
    let session = client.session();
    let mark = client.mark();
    client.prompt(&session, &format!("read {}", sandbox.path("hidden/c.txt").display()));
    client.prompt(&session, "read ../hidden/c.txt");
    let asked = client.heard()[mark..].iter().filter(|message| message["method"] == "fs/read_text_file").count();
    assert_eq!(asked, 0);
}

/// A client with terminals, each of which has said `said` and ended with 3; those that are not given back. They run
/// nothing, so nothing could enter a sandbox.
fn terminals(sandbox: &Sandbox, said: &'static str) -> (Acp, Rc<RefCell<Vec<String>>>) {
    let mut client = Acp::able(sandbox, &["--sandbox", "off"], &json!({"terminal": true}));
    let open: Rc<RefCell<Vec<String>>> = Rc::default();
    let (created, released) = (Rc::clone(&open), Rc::clone(&open));
    client.on("terminal/create", move |_| {
        let id = format!("t{}", created.borrow().len());
        created.borrow_mut().push(id.clone());
        Some(json!({"result": {"terminalId": id}}))
    });
    client.on("terminal/wait_for_exit", |_| Some(json!({"result": {"exitCode": 3}})));
    client.on("terminal/output", move |_| Some(json!({"result": {"output": said, "truncated": false}})));
    client.on("terminal/kill", |_| Some(json!({"result": {}})));
    client.on("terminal/release", move |params| {
        released.borrow_mut().retain(|id| params["terminalId"] != json!(id));
        Some(json!({"result": {}}))
    });
    client.on_permission("allow_once");
    (client, open)
}

/// A command runs in the client's terminal, which the call shows and which is given back.
#[test]
pub(crate) fn a_command_runs_in_the_clients_terminal() {
    let sandbox = Sandbox::new();
    let (mut client, open) = terminals(&sandbox, "from the terminal\n");
    let session = client.session();
    let mark = client.mark();
    let (reason, updates) = client.prompt(&session, "run touch made");
    assert_eq!(reason, "end_turn");
    assert!(spoken(&updates).contains("from the terminal") && spoken(&updates).contains("exit 3"), "{updates:#?}");
    assert!(!sandbox.path("project/made").exists(), "it runs there and nowhere else");
    let created = client.wait(mark, "a terminal", |message| message["method"] == "terminal/create");
    assert_eq!((&created["params"]["sessionId"], &created["params"]["cwd"]), (&json!(session), &json!(client.cwd())));
    assert!(created["params"].to_string().contains("touch made"), "{created}");
    // It is shown before it is given back, and stays shown.
    let position = |fits: &dyn Fn(&Value) -> bool| client.heard()[mark..].iter().position(fits).expect("it was said");
    let shows = |message: &Value| message["params"]["update"]["content"][0]["type"] == "terminal";
    let gives_back = |message: &Value| message["method"] == "terminal/release";
    assert!(position(&shows) < position(&gives_back));
    // Zed rejects an update that names a terminal which was released.
    let after = &client.heard()[mark + position(&gives_back)..];
    assert!(
        !after
            .iter()
            .any(|message| message.to_string().contains("\"terminalId\":\"t0\"")
                && message["method"] == "session/update")
    );
    assert!(open.borrow().is_empty(), "{open:?}");
}

/// A session that is loaded names no terminal of the days before; what was said in it is told instead.
#[test]
pub(crate) fn a_loaded_session_tells_what_a_terminal_said() {
    let sandbox = Sandbox::new();
    let (mut client, _open) = terminals(&sandbox, "from the terminal\n");
    let session = client.session();
    client.prompt(&session, "run touch made");
    client.finish();
    let mut later = Acp::start(&sandbox);
    let mark = later.mark();
    let load = json!({"sessionId": session, "cwd": later.cwd(), "mcpServers": []});
    later.ask("session/load", load);
    let end = of_kind(&later.updates(mark, &session), "tool_call_update").pop().expect("a call");
    assert_eq!(end["content"][0]["type"], "content", "{end}");
    assert!(end["content"][0]["content"]["text"].as_str().unwrap().contains("from the terminal"), "{end}");
}

/// 40: a terminal is given back when the turn is cancelled, too, and before that its command is killed.
#[test]
pub(crate) fn a_terminal_is_given_back_when_the_turn_is_cancelled() {
    let sandbox = Sandbox::new();
    let (mut client, open) = terminals(&sandbox, "half of it\n");
    client.on("terminal/wait_for_exit", |_| None);
    let session = client.session();
    let mark = client.mark();
    let prompt = client.begin(&session, "run sleep 64");
    client.wait(mark, "it is waited for", |message| message["method"] == "terminal/wait_for_exit");
    client.cancel(&session);
    assert_eq!(client.ended(&prompt), "cancelled");
    client.wait(mark, "it is given back", |message| message["method"] == "terminal/release");
    let methods: Vec<_> = client.heard()[mark..].iter().filter_map(|message| message["method"].as_str()).collect();
    assert!(methods.contains(&"terminal/kill"), "{methods:?}");
    assert!(open.borrow().is_empty(), "{open:?}");
    let last = of_kind(&client.updates(mark, &session), "tool_call_update").pop().expect("a call");
    assert_eq!(last["status"], "failed");
}

/// A client that makes no terminal is done without.
#[test]
pub(crate) fn a_client_that_makes_no_terminal_is_done_without() {
    let sandbox = Sandbox::new();
    let (mut client, _) = terminals(&sandbox, "");
    client.on("terminal/create", |_| Some(json!({"error": {"code": -32603, "message": "no terminals today"}})));
    let session = client.session();
    let (_, updates) = client.prompt(&session, "run echo without it");
    assert!(spoken(&updates).contains("without it"), "{updates:#?}");
}
