//! Commands in the terminals of an editor: they enter the sandbox of their session, or run without the editor.
//!
//! The terminals are real ones, made by `script`, with the environment of the editor.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use serde_json::{Value, json};

use crate::support::Sandbox;
use crate::support::acp::{Acp, selected, spoken};

/// The terminals of a client, by id, each with its output.
#[derive(Default)]
struct Terminals {
    running: HashMap<String, (Child, PathBuf)>,
    created: usize,
    released: usize,
}

impl Terminals {
    fn of(&mut self, params: &Value) -> &mut (Child, PathBuf) {
        self.running.get_mut(params["terminalId"].as_str().expect("an id")).expect("a terminal")
    }
}

/// A client whose terminals run what they are asked to.
#[expect(clippy::disallowed_methods, reason = "an editor starts the programs of its terminals")]
fn client(sandbox: &Sandbox, args: &[&str]) -> (Acp, Rc<RefCell<Terminals>>) {
    let mut client = Acp::able(sandbox, args, &json!({"terminal": true}));
    let terminals: Rc<RefCell<Terminals>> = Rc::default();
    let folder = sandbox.path("");
    let open = Rc::clone(&terminals);
    client.on("terminal/create", move |params| {
        let mut terminals = open.borrow_mut();
        terminals.created += 1;
        let id = format!("t{}", terminals.created);
        let words = params["args"].as_array().expect("arguments").iter().chain([&params["command"]]);
        let mut words: Vec<String> = words.map(|word| quoted(word.as_str().expect("text"))).collect();
        words.rotate_right(1);
        let output = folder.join(&id);
        let child = Command::new("script")
            .args(["-qefc", &words.join(" "), "/dev/null"])
            .current_dir(params["cwd"].as_str().expect("a folder"))
            .env("EDITOR_SECRET", "SECRET")
            .stdin(Stdio::null())
            .stdout(File::create(&output).expect("a file"))
            .spawn()
            .expect("a terminal");
        terminals.running.insert(id.clone(), (child, output));
        Some(json!({"result": {"terminalId": id}}))
    });
    let open = Rc::clone(&terminals);
    client.on("terminal/wait_for_exit", move |params| {
        let status = open.borrow_mut().of(params).0.wait().expect("an end");
        Some(json!({"result": {"exitCode": status.code()}}))
    });
    let open = Rc::clone(&terminals);
    client.on("terminal/output", move |params| {
        let text = std::fs::read_to_string(&open.borrow_mut().of(params).1).expect("output");
        Some(json!({"result": {"output": text.replace('\r', ""), "truncated": false}}))
    });
    let open = Rc::clone(&terminals);
    client.on("terminal/kill", move |params| {
        open.borrow_mut().of(params).0.kill().expect("killed");
        Some(json!({"result": {}}))
    });
    let open = Rc::clone(&terminals);
    client.on("terminal/release", move |_| {
        open.borrow_mut().released += 1;
        Some(json!({"result": {}}))
    });
    client.on_permission("allow_once");
    (client, terminals)
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A user with a secret, and a machine that has namespaces or not.
fn machine(layers: &'static str) -> Sandbox {
    let sandbox = Sandbox::new().with("SKEIN_TEST_SANDBOX_LAYERS", layers);
    sandbox.write("home/.ssh/id", "SECRET");
    sandbox
}

#[test]
fn a_terminal_command_enters_the_sandbox() {
    for layers in ["", "no-namespaces,preferred"] {
        let sandbox = machine(layers);
        let (mut client, terminals) = client(&sandbox, &["--sandbox", "preferred"]);
        let session = client.session();
        let mark = client.mark();
        let secret = sandbox.path("home/.ssh/id");
        let outside = sandbox.path("outside");
        let command = format!(
            "cat {}; echo x > {}; echo made > here; echo ${{EDITOR_SECRET:-clear}} $TERM; echo seen > /dev/tty; exit 5",
            secret.display(),
            outside.display()
        );
        let (_, updates) = client.prompt(&session, &format!("run {command}"));
        let said = spoken(&updates);
        assert!(!said.contains("SECRET") && said.contains("clear dumb\nseen\n"), "{layers}: {said}");
        assert!(said.contains("exit 5"), "{layers}: {said}");
        assert!(!outside.exists(), "{layers}: written outside");
        assert_eq!(std::fs::read_to_string(sandbox.path("project/here")).expect("written"), "made\n");
        let shows = |message: &Value| message["params"]["update"]["content"][0]["type"] == "terminal";
        assert!(client.heard()[mark..].iter().any(shows), "{layers}: the terminal is not shown");
        let terminals = terminals.borrow();
        assert_eq!((terminals.created, terminals.released), (1, 1), "{layers}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn terminal_commands_share_the_sandbox_of_the_session() {
    let sandbox = machine("");
    let (mut client, terminals) = client(&sandbox, &["--sandbox", "preferred"]);
    let session = client.session();
    // The process must be in a session of its own before the terminal goes.
    client.prompt(
        &session,
        "run echo kept > /tmp/between; setsid sleep 300 > /dev/null 2>&1 & p=$!; \
         for i in $(seq 200); do [ \"$(cut -d' ' -f6 /proc/$p/stat)\" = $p ] && break; sleep 0.05; done",
    );
    let (_, updates) = client.prompt(&session, "run cat /tmp/between; cat /proc/[0-9]*/comm | grep -c '^sleep$'");
    assert!(spoken(&updates).contains("kept\n1\n"), "{}", spoken(&updates));
    assert_eq!(terminals.borrow().created, 2);
}

#[test]
fn a_terminal_command_may_leave_processes() {
    let sandbox = machine("");
    if sandbox.skein(&["sandbox", "--explain", "--json"]).json()["layers"]["namespaces"] != "available" {
        return;
    }
    let (mut client, terminals) = client(&sandbox, &["--approval", "auto", "--sandbox", "preferred"]);
    let requests: Rc<RefCell<Vec<String>>> = Rc::default();
    let asked = Rc::clone(&requests);
    client.on("session/request_permission", move |params| {
        asked.borrow_mut().push(params.to_string());
        Some(selected("allow_once"))
    });
    let session = client.session();
    client.prompt(&session, "run true");
    assert_eq!((terminals.borrow().created, requests.borrow().len()), (1, 0));
    // A process whose parent is outside would not be found, and could have created the folder.
    let unsandboxed = json!({"command": "mkdir .zed && touch .zed/tasks.json", "unsandboxed": "it needs the host"});
    client.prompt(&session, &format!("/developer.shell {unsandboxed}"));
    let requests = requests.borrow();
    assert!(requests.iter().any(|asked| asked.contains("`.zed` is a protected path")), "{requests:?}");
}

#[test]
fn a_terminal_that_cannot_enter_is_released() {
    let sandbox = machine("");
    let (mut client, terminals) = client(&sandbox, &["--sandbox", "preferred"]);
    // An editor on another machine has no such program.
    let open = Rc::clone(&terminals);
    client.on("terminal/create", move |_| {
        open.borrow_mut().created += 1;
        Some(json!({"result": {"terminalId": "t"}}))
    });
    client.on("terminal/wait_for_exit", |_| Some(json!({"result": {"exitCode": 127}})));
    let session = client.session();
    let mark = client.mark();
    for _ in 0..2 {
        let (_, updates) = client.prompt(&session, "run echo x >> made; echo ran");
        assert!(spoken(&updates).contains("ran\n"), "{}", spoken(&updates));
    }
    assert_eq!(std::fs::read_to_string(sandbox.path("project/made")).expect("written"), "x\nx\n", "each ran once");
    let terminals = terminals.borrow();
    assert_eq!((terminals.created, terminals.released), (1, 1), "the editor is not asked again");
    let notices = client.heard()[mark..].iter().filter(|message| message.to_string().contains("without the terminal"));
    assert_eq!(notices.count(), 1);
}
