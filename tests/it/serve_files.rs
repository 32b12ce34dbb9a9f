//! Files and processes of remote sessions: what a shell on the server cannot read, and sessions whose files are at the
//! client.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::rc::Rc;

use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use skein::sandbox::{FileAccess, ProfileOwner, SandboxProfile};
use skein::tool::editor::TerminalSandboxRequest;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::support::Sandbox;
use crate::support::acp::{Acp, selected, spoken};
use crate::support::model::{Answer, ScriptedModel, has_result};
use crate::support::serve::{PATIENCE, Server, bearer, token};
use crate::support::websocket_server::ScriptedServer;

/// What the editor has open, by path.
type Buffers = Rc<RefCell<BTreeMap<String, String>>>;
/// The permission requests of a client.
type Questions = Rc<RefCell<Vec<Value>>>;

const BOTH: [&str; 2] = ["readTextFile", "writeTextFile"];

fn serve(sandbox: &Sandbox) -> Server {
    Server::start(sandbox, &["-a", "coding", "-m", "backend"])
}

fn path(sandbox: &Sandbox, name: &str) -> String {
    sandbox.path(name).to_string_lossy().into_owned()
}

/// Returns whether this machine has all layers. Says so in one line otherwise.
fn has_all_layers(sandbox: &Sandbox) -> bool {
    let layers = &sandbox.skein(&["sandbox", "--explain", "--json"]).json()["layers"];
    let all = ["namespaces", "landlock", "seccomp"].iter().all(|layer| layers[*layer] == "available");
    if !all {
        drop(writeln!(std::io::stderr(), "skipped: this machine has not all layers: {layers}"));
    }
    all
}

/// `skein acp --connect` on the machine of the client, with an editor that has these capabilities.
fn connect(client: &Sandbox, server: &Server, token: &str, fs: &[&str]) -> (Acp, Buffers, Questions) {
    let mut command = client.command(&["acp", "--connect", &format!("http://{}", server.address)]);
    command.env("SKEIN_TOKEN", token);
    let mut editor = Acp::launch(client, command);
    let fs: serde_json::Map<String, Value> = fs.iter().map(|name| ((*name).to_owned(), json!(true))).collect();
    editor.introduce(&json!({"fs": fs}));
    let (buffers, questions) = (Buffers::default(), Questions::default());
    let (read, written, asked) = (Rc::clone(&buffers), Rc::clone(&buffers), Rc::clone(&questions));
    let of = |params: &Value| params["path"].as_str().expect("a path").to_owned();
    editor.on("fs/read_text_file", move |params| {
        Some(match read.borrow().get(&of(params)) {
            Some(text) => json!({"result": {"content": text}}),
            None => json!({"error": {"code": -32002, "message": "no such file"}}),
        })
    });
    editor.on("fs/write_text_file", move |params| {
        let text = params["content"].as_str().expect("text").to_owned();
        written.borrow_mut().insert(of(params), text);
        Some(json!({"result": {}}))
    });
    editor.on("session/request_permission", move |params| {
        asked.borrow_mut().push(params.clone());
        Some(selected("allow_once"))
    });
    (editor, buffers, questions)
}

/// A session in this folder, with what follows its answer.
fn session_in(client: &mut Acp, cwd: &str) -> String {
    let mark = client.mark();
    let answer = client.ask("session/new", json!({"cwd": cwd, "mcpServers": []}));
    let id = answer["sessionId"].as_str().expect("an id").to_owned();
    client.wait_update(mark, &id, "available_commands_update");
    id
}

/// Lets the agent call a tool, and returns what it said about the result.
fn call(client: &mut Acp, session: &str, tool: &str, arguments: &Value) -> String {
    let (_, updates) = client.prompt(session, &format!("/developer.{tool} {arguments}"));
    spoken(&updates)
}

/// The tools of `developer` in the last request to the model.
fn tools(model: &ScriptedModel) -> BTreeSet<String> {
    let requests = model.requests();
    // A request for a title has none.
    let request = requests.iter().rev().find(|request| request["tools"].is_array()).expect("a request with tools");
    let tools = request["tools"].as_array().cloned().unwrap_or_default();
    let names = tools.iter().filter_map(|tool| tool["function"]["name"].as_str()?.strip_prefix("developer__"));
    names.map(str::to_owned).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn quiet() -> ScriptedModel {
    ScriptedModel::new(|_| Answer::Says(vec!["done".to_owned()]))
}

/// The secrets of the server's machine, by what they belong to.
fn hide_secrets(sandbox: &Sandbox) -> [(&'static str, String); 3] {
    let secrets =
        [("OTHER-ROOT", "other/secret.txt"), ("SKEIN-DATA", "data/secret.txt"), ("SERVER-HOME", "home/secret.txt")];
    secrets.map(|(secret, file)| {
        sandbox.write(file, secret);
        (secret, path(sandbox, file))
    })
}

/// A shell on the server sees the root of its token, and neither the root of another principal nor Skein's data nor the
/// home of the server's user. Without the sandbox it sees all of them.
#[test]
fn a_remote_shell_reads_nothing_of_others() {
    let sandbox = Sandbox::outside_tmp();
    if !has_all_layers(&sandbox) {
        return;
    }
    let secrets = hide_secrets(&sandbox);
    sandbox.write("project/own.txt", "OWN-FILE");
    let server = serve(&sandbox);
    let ana = token(&sandbox, "ana", &["--root", &path(&sandbox, "project")]);
    token(&sandbox, "ben", &["--root", &path(&sandbox, "other")]);
    let (mut client, _, _) = connect(&sandbox, &server, &ana, &[]);
    let session = session_in(&mut client, &path(&sandbox, "project"));
    let own = call(&mut client, &session, "shell", &json!({"command": "cat own.txt; echo made > made.txt"}));
    assert!(own.contains("OWN-FILE"), "{own}");
    assert_eq!(std::fs::read_to_string(sandbox.path("project/made.txt")).unwrap(), "made\n");
    for (secret, file) in &secrets {
        for read_only in [false, true] {
            let command = json!({"command": format!("cat {file}; echo ended"), "read_only": read_only});
            let said = call(&mut client, &session, "shell", &command);
            assert!(said.contains("ended") && !said.contains(secret), "{said}");
        }
        let read = call(&mut client, &session, "read_file", &json!({"path": file}));
        assert!(!read.contains(secret), "{read}");
        let command = json!({"command": format!("cat {file}")});
        let prompt = format!("/developer.shell {command}");
        let control =
            sandbox.skein(&["run", "-a", "coding", "-m", "backend", "--approval", "auto", "--sandbox", "off", &prompt]);
        assert!(control.stdout.contains(secret), "without a sandbox the attack works: {}", control.whole());
    }
}

/// `unsandboxed` is refused before anybody is asked.
#[test]
fn a_remote_command_never_runs_without_its_sandbox() {
    let sandbox = Sandbox::outside_tmp();
    let server = serve(&sandbox);
    let token = token(&sandbox, "ana", &["--root", &path(&sandbox, "project")]);
    let (mut client, _, questions) = connect(&sandbox, &server, &token, &[]);
    let session = session_in(&mut client, &path(&sandbox, "project"));
    let said = call(&mut client, &session, "shell", &json!({"command": "touch made", "unsandboxed": "to see more"}));
    assert!(said.contains("always run in their sandbox"), "{said}");
    assert!(questions.borrow().is_empty() && !sandbox.path("project/made").exists());
}

/// Where the kernel cannot enforce the sandbox, a command of a local session runs and one of a remote session does not.
#[test]
fn a_remote_command_needs_a_kernel_that_enforces() {
    let sandbox = Sandbox::outside_tmp().with("SKEIN_TEST_SANDBOX_LAYERS", "no-namespaces,landlock=0");
    let server = serve(&sandbox);
    let token = token(&sandbox, "ana", &["--root", &path(&sandbox, "project")]);
    let (mut client, _, _) = connect(&sandbox, &server, &token, &[]);
    let session = session_in(&mut client, &path(&sandbox, "project"));
    let said = call(&mut client, &session, "shell", &json!({"command": "touch remote"}));
    assert!(said.contains("could not be started"), "{said}");
    assert!(!sandbox.path("project/remote").exists());
    let prompt = format!("/developer.shell {}", json!({"command": "touch local"}));
    let local = sandbox.skein(&["run", "-a", "coding", "-m", "backend", "--approval", "auto", &prompt]);
    assert!(sandbox.path("project/local").exists(), "{}", local.whole());
}

/// The folder of a session is checked again at each use: another session of the principal may replace it.
#[test]
fn a_folder_that_becomes_a_link_shows_nothing() {
    let sandbox = Sandbox::outside_tmp();
    let [(secret, file), ..] = hide_secrets(&sandbox);
    sandbox.write("project/sub/own.txt", "OWN-FILE");
    let server = serve(&sandbox);
    let token = token(&sandbox, "ana", &["--root", &path(&sandbox, "project")]);
    let (mut client, _, _) = connect(&sandbox, &server, &token, &[]);
    let session = session_in(&mut client, &path(&sandbox, "project/sub"));
    let own = call(&mut client, &session, "read_file", &json!({"path": "own.txt"}));
    assert!(own.contains("OWN-FILE"), "{own}");
    std::fs::remove_dir_all(sandbox.path("project/sub")).unwrap();
    std::os::unix::fs::symlink(Path::new(&file).parent().unwrap(), sandbox.path("project/sub")).unwrap();
    for (tool, arguments) in [
        ("read_file", json!({"path": "secret.txt"})),
        ("shell", json!({"command": "cat secret.txt"})),
        ("shell", json!({"command": "cat secret.txt", "read_only": true})),
    ] {
        let said = call(&mut client, &session, tool, &arguments);
        assert!(!said.contains(secret), "{tool}: {said}");
    }
}

/// The tools that a session with client files has follow what the client lends.
#[test]
fn tools_of_a_client_follow_its_capabilities() {
    let (machine, laptop, model) = (Sandbox::new(), Sandbox::new(), quiet());
    let command = machine.command(&["serve", "-a", "coding", "-m", "backend", "--listen", "127.0.0.1:0"]);
    let server = Server::launch(model.offered_to(command));
    let token = token(&machine, "ana", &[]);
    let commands = ["shell", "shell_output", "shell_stop", "update_plan"];
    for (fs, files) in [
        (&[][..], &[][..]),
        (&["readTextFile"][..], &["read_file"][..]),
        (&BOTH[..], &["read_file", "write_file", "edit_file"][..]),
    ] {
        let (mut client, _, _) = connect(&laptop, &server, &token, fs);
        let session = session_in(&mut client, "/nowhere/shop");
        client.prompt(&session, "hello");
        assert_eq!(tools(&model), set(&[&commands[..], files].concat()), "{fs:?}");
    }
}

/// An editor without `skein acp --connect` has no sandbox for commands, so it gets no shell, whatever it offers.
#[tokio::test]
async fn a_terminal_without_a_sandbox_gives_no_shell() {
    let (machine, model) = (Sandbox::new(), quiet());
    let command = machine.command(&["serve", "-a", "coding", "-m", "backend", "--listen", "127.0.0.1:0"]);
    let server = Server::launch(model.offered_to(command));
    let token = token(&machine, "ana", &[]);
    let mut request = format!("ws://{}/acp", server.address).into_client_request().unwrap();
    request.headers_mut().insert("authorization", bearer(&token).parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.expect("a WebSocket");
    let able = json!({"terminal": true, "fs": {"readTextFile": true, "writeTextFile": true}});
    let mut ask = async |id: u64, method: &str, params: Value| -> Value {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        socket.send(Message::text(message.to_string())).await.expect("the server reads");
        let waiting = async {
            loop {
                let Some(Ok(Message::Text(text))) = socket.next().await else { panic!("the connection ended") };
                let message: Value = serde_json::from_str(&text).expect("JSON");
                if message["id"] == id && message.get("method").is_none() {
                    return message["result"].clone();
                }
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("an answer in time")
    };
    ask(0, "initialize", json!({"protocolVersion": 1, "clientCapabilities": able})).await;
    let opened = ask(1, "session/new", json!({"cwd": "/nowhere/shop", "mcpServers": []})).await;
    let prompt = json!([{"type": "text", "text": "hello"}]);
    ask(2, "session/prompt", json!({"sessionId": opened["sessionId"], "prompt": prompt})).await;
    assert_eq!(tools(&model), set(&["read_file", "write_file", "edit_file", "update_plan"]));
}

/// The server has a folder of the same name with other files, instructions and manifests. It reads none of them.
#[test]
fn files_of_a_client_are_read_and_changed_there() {
    let (machine, laptop, model) = (Sandbox::new(), Sandbox::new(), quiet());
    machine.write("shop/a.txt", "copy of the server\n");
    machine.write("shop/AGENTS.md", "INSTRUCTIONS-OF-THE-SERVER");
    machine.write("shop/.git/HEAD", "ref: refs/heads/main\n");
    machine.write("shop/.skein/agents/x.yaml", "not: [a manifest");
    let server = Server::start(&machine, &["-a", "coding", "-m", "backend"]);
    let token = token(&machine, "ana", &["--root", &path(&machine, "project")]);
    let (mut client, buffers, _) = connect(&laptop, &server, &token, &BOTH);
    let (shop, file) = (path(&machine, "shop"), path(&machine, "shop/a.txt"));
    buffers.borrow_mut().insert(file.clone(), "copy of the client\n".to_owned());
    let session = session_in(&mut client, &shop);
    let read = call(&mut client, &session, "read_file", &json!({"path": "a.txt"}));
    assert!(read.contains("copy of the client") && !read.contains("of the server"), "{read}");
    let edits = json!([{"before": "client", "after": "editor"}]);
    call(&mut client, &session, "edit_file", &json!({"path": "a.txt", "edits": edits}));
    call(&mut client, &session, "write_file", &json!({"path": "new/b.txt", "content": "new\n"}));
    let expected = [(file.clone(), "copy of the editor\n"), (path(&machine, "shop/new/b.txt"), "new\n")];
    let expected: BTreeMap<_, _> = expected.into_iter().map(|(path, text)| (path, text.to_owned())).collect();
    assert_eq!(*buffers.borrow(), expected);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "copy of the server\n");
    assert!(!machine.path("shop/new").exists());
    let outside = call(&mut client, &session, "read_file", &json!({"path": "../project/x"}));
    assert!(outside.contains("outside of the folders"), "{outside}");
    drop((client, server));
    // What the model is told, with a model that shows it.
    let command = machine.command(&["serve", "-a", "coding", "-m", "backend", "--listen", "127.0.0.1:0"]);
    let server = Server::launch(model.offered_to(command));
    let (mut client, _, _) = connect(&laptop, &server, &token, &BOTH);
    let session = session_in(&mut client, &shop);
    client.prompt(&session, "hello");
    let told = json!(model.requests()).to_string();
    assert!(told.contains(&shop) && !told.contains("INSTRUCTIONS-OF-THE-SERVER"), "{told}");
}

/// A failed read or write at the client is an error, never an access to the server's disk.
#[test]
fn a_client_that_fails_is_not_replaced_by_the_server() {
    let (machine, laptop) = (Sandbox::new(), Sandbox::new());
    machine.write("shop/a.txt", "copy of the server\n");
    let server = serve(&machine);
    let token = token(&machine, "ana", &[]);
    let (mut client, _, _) = connect(&laptop, &server, &token, &BOTH);
    let broken = |_: &Value| Some(json!({"error": {"code": -32603, "message": "the disk is on fire"}}));
    client.on("fs/read_text_file", broken);
    client.on("fs/write_text_file", broken);
    let session = session_in(&mut client, &path(&machine, "shop"));
    let read = call(&mut client, &session, "read_file", &json!({"path": "a.txt"}));
    assert!(read.contains("the disk is on fire") && !read.contains("copy of"), "{read}");
    let new = json!({"path": "a.txt", "content": "x", "overwrite": true});
    let written = call(&mut client, &session, "write_file", &new);
    assert!(written.contains("was not written at the client"), "{written}");
    assert_eq!(std::fs::read_to_string(machine.path("shop/a.txt")).unwrap(), "copy of the server\n");
}

/// Commands run on the machine of the client, in its folder, with its home hidden from them as for a local session.
#[test]
fn commands_of_a_client_run_in_its_own_sandbox() {
    let (machine, laptop) = (Sandbox::outside_tmp(), Sandbox::outside_tmp());
    if !has_all_layers(&laptop) {
        return;
    }
    laptop.write("home/.ssh/id", "KEY-OF-THE-CLIENT");
    laptop.write("shop/a.txt", "of the client\n");
    let server = serve(&machine);
    let token = token(&machine, "ana", &["--root", &path(&machine, "project")]);
    let (mut client, _, _) = connect(&laptop, &server, &token, &[]);
    let session = session_in(&mut client, &path(&laptop, "shop"));
    let key = path(&laptop, "home/.ssh/id");
    let command = format!("cat a.txt; echo home=$HOME; echo made > made.txt; cat {key}; touch {key}.new");
    let said = call(&mut client, &session, "shell", &json!({"command": command}));
    assert!(said.contains("of the client") && said.contains(&format!("home={}", path(&laptop, "home"))), "{said}");
    assert!(!said.contains("KEY-OF-THE-CLIENT"), "{said}");
    assert_eq!(std::fs::read_to_string(laptop.path("shop/made.txt")).unwrap(), "made\n");
    assert!(!laptop.path("home/.ssh/id.new").exists());
    let prompt = format!("/developer.shell {}", json!({"command": format!("cat {key}")}));
    let control =
        laptop.skein(&["run", "-a", "coding", "-m", "backend", "--approval", "auto", "--sandbox", "off", &prompt]);
    assert!(control.stdout.contains("KEY-OF-THE-CLIENT"), "without a sandbox the attack works: {}", control.whole());
    let read_only = json!({"command": "cat a.txt; touch more.txt", "read_only": true});
    let said = call(&mut client, &session, "shell", &read_only);
    assert!(said.contains("of the client") && !laptop.path("shop/more.txt").exists(), "{said}");
}

#[test]
fn a_background_command_of_a_client_is_read_and_ended() {
    let (machine, laptop) = (Sandbox::outside_tmp(), Sandbox::outside_tmp());
    if !has_all_layers(&laptop) {
        return;
    }
    let server = serve(&machine);
    let token = token(&machine, "ana", &[]);
    let (mut client, _, _) = connect(&laptop, &server, &token, &[]);
    let session = session_in(&mut client, &path(&laptop, "project"));
    let begun = call(
        &mut client,
        &session,
        "shell",
        &json!({"command": "echo begun; exec cat <(sleep 600)", "background": true}),
    );
    assert!(begun.contains("with id 1"), "{begun}");
    let mut heard = String::new();
    while !heard.contains("begun") {
        heard = call(&mut client, &session, "shell_output", &json!({"id": 1, "wait_seconds": 1}));
        assert!(heard.contains("runs since"), "{heard}");
    }
    let ended = call(&mut client, &session, "shell_stop", &json!({"id": 1}));
    assert!(ended.contains("command 1: ") && !ended.contains("runs since"), "{ended}");
}

/// Connects an editor to a server that asks what `ask` asks, and returns the answers. `ask` gets the sandbox that a
/// command of the session `s` needs.
fn ask_client<T: Send>(laptop: &Sandbox, ask: impl FnOnce(&mut ScriptedServer, Value) -> T + Send) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = laptop.command(&["acp", "--connect", &format!("http://{}", listener.local_addr().unwrap())]);
    command.env("SKEIN_TOKEN", "token");
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let mut server = ScriptedServer::accept(&listener);
            server.answer("initialize", json!({"protocolVersion": 1}));
            server.answer("session/new", json!({"sessionId": "s"}));
            let files = FileAccess::Workspace;
            let profile = SandboxProfile { files, ..SandboxProfile::narrowest(ProfileOwner::Mode) };
            ask(&mut server, json!(TerminalSandboxRequest { profile, read_only: false }))
        });
        let mut editor = Acp::launch(laptop, command);
        editor.introduce(&json!({}));
        editor.ask("session/new", json!({"cwd": path(laptop, "project"), "mcpServers": []}));
        server.join().expect("the server gets its answers")
    })
}

/// The server names a limit for each command, and the client keeps no more than its own.
#[test]
fn a_server_cannot_raise_the_limit_of_output() {
    const LIMIT: usize = 4 << 20;
    let laptop = Sandbox::outside_tmp();
    if !has_all_layers(&laptop) {
        return;
    }
    let kept = ask_client(&laptop, |server, sandbox| {
        let prints = format!("head -c {} /dev/zero | tr '\\0' x", LIMIT + (1 << 20));
        [None, Some(100), Some(u64::MAX)].map(|limit| {
            let creation = json!({
                "sessionId": "s", "command": "bash", "args": ["-c", prints], "outputByteLimit": limit,
                "_meta": {"_skein/sandbox": sandbox},
            });
            let created = server.ask("terminal/create", creation);
            let terminal = json!({"sessionId": "s", "terminalId": created["terminalId"]});
            let exit = server.ask("terminal/wait_for_exit", terminal.clone());
            assert_eq!(exit["exitCode"], 0, "{exit}");
            let output = server.ask("terminal/output", terminal);
            (output["output"].as_str().expect("text").len(), output["truncated"] == true)
        })
    });
    assert_eq!(kept, [(LIMIT, true), (100, true), (LIMIT, true)]);
}

#[test]
fn a_server_has_a_limited_number_of_terminals() {
    let laptop = Sandbox::outside_tmp();
    if !has_all_layers(&laptop) {
        return;
    }
    let refused = ask_client(&laptop, |server, sandbox| {
        let short = json!({"sessionId": "s", "command": "true", "_meta": {"_skein/sandbox": sandbox}});
        for _ in 0..66 {
            let ended = server.ask("terminal/create", short.clone());
            server.ask("terminal/wait_for_exit", json!({"sessionId": "s", "terminalId": ended["terminalId"]}));
        }
        // Those that have ended make room.
        let mut creation = short;
        (creation["command"], creation["args"]) = (json!("sleep"), json!(["600"]));
        let terminals: Vec<_> = (0..64).map(|_| server.ask("terminal/create", creation.clone())).collect();
        let refused = server.response("terminal/create", creation.clone());
        let released = json!({"sessionId": "s", "terminalId": terminals[0]["terminalId"]});
        server.ask("terminal/release", released);
        server.ask("terminal/create", creation);
        refused["error"]["message"].as_str().expect("an error").to_owned()
    });
    assert!(refused.contains("64 terminals already"), "{refused}");
}

/// A stored session keeps its files: a token whose root contains the folder does not turn them into files of the server.
#[test]
fn a_session_never_changes_where_its_files_are() {
    let (machine, laptop) = (Sandbox::new(), Sandbox::new());
    machine.write("project/a.txt", "copy of the server\n");
    let server = serve(&machine);
    let project = path(&machine, "project");
    let (rootless, rooted) = (token(&machine, "ana", &[]), token(&machine, "ana", &["--root", &project]));
    let file = path(&machine, "project/a.txt");
    let (mut client, buffers, _) = connect(&laptop, &server, &rootless, &BOTH);
    buffers.borrow_mut().insert(file.clone(), "copy of the client\n".to_owned());
    let at_client = session_in(&mut client, &project);
    assert!(call(&mut client, &at_client, "read_file", &json!({"path": "a.txt"})).contains("of the client"));
    drop(client);
    let (mut client, buffers, _) = connect(&laptop, &server, &rooted, &BOTH);
    buffers.borrow_mut().insert(file, "copy of the client\n".to_owned());
    let load = |id: &str| json!({"sessionId": id, "cwd": project, "mcpServers": []});
    client.ask("session/load", load(&at_client));
    assert!(call(&mut client, &at_client, "read_file", &json!({"path": "a.txt"})).contains("of the client"));
    // The other way round, a token without the root does not know the session.
    let on_server = session_in(&mut client, &project);
    assert!(call(&mut client, &on_server, "read_file", &json!({"path": "a.txt"})).contains("of the server"));
    drop(client);
    let (mut client, _, _) = connect(&laptop, &server, &rootless, &BOTH);
    let unknown = client.refused("session/load", load(&on_server));
    let never = client.refused("session/load", load(&"0".repeat(20)));
    assert_eq!(unknown["code"], never["code"], "{unknown}");
}

/// A run without a root works in an empty folder of its own.
#[test]
fn a_run_without_a_root_has_an_empty_folder() {
    let sandbox = Sandbox::outside_tmp();
    if !has_all_layers(&sandbox) {
        return;
    }
    let model = ScriptedModel::new(|request| match has_result(request) {
        true => Answer::Says(vec!["done".to_owned()]),
        false => {
            let arguments = json!({"command": "echo files=$(ls -A | wc -l); pwd; echo x > made.txt && echo wrote"});
            Answer::Calls { id: "c1", tool: "developer__shell", arguments }
        }
    });
    let flags = ["serve", "--approval", "auto", "--listen", "127.0.0.1:0"];
    let server = Server::launch(model.offered_to(sandbox.command(&flags)));
    let token = token(&sandbox, "ci", &[]);
    let run = json!({"agent_name": "coding-backend", "input": [{"role": "user", "parts": [{"content": "go"}]}]});
    let mut folders = BTreeSet::new();
    for _ in 0..2 {
        let answer = server.request("POST", "/runs", &[("authorization", &bearer(&token))], &run.to_string());
        assert_eq!((answer.status, &answer.json()["status"]), (200, &json!("completed")), "{answer:?}");
        let requests = model.requests();
        let request = requests.iter().rev().find(|request| has_result(request)).expect("a request with a result");
        let result = request["messages"].as_array().and_then(|all| all.last()).expect("a result").to_string();
        assert!(result.contains("files=0") && result.contains("wrote"), "{result}");
        let folder = result.split("files=0\\n").nth(1).and_then(|rest| rest.split("\\n").next());
        folders.insert(folder.expect("a folder").to_owned());
    }
    assert_eq!(folders.len(), 2, "each session has its own: {folders:?}");
}

/// A program that a client brings would start here, so a token must allow it.
#[test]
fn a_program_of_a_client_starts_only_with_a_token_for_it() {
    let sandbox = Sandbox::outside_tmp();
    let server = serve(&sandbox);
    let project = path(&sandbox, "project");
    let token = token(&sandbox, "ana", &["--root", &project]);
    let (mut client, _, _) = connect(&sandbox, &server, &token, &[]);
    let started = path(&sandbox, "project/started");
    let servers = json!([{"name": "mine", "command": "/usr/bin/touch", "args": [started], "env": []}]);
    let answer = client.ask("session/new", json!({"cwd": project, "mcpServers": servers}));
    let session = answer["sessionId"].as_str().expect("an id").to_owned();
    let (_, updates) = client.prompt(&session, "hello");
    assert!(spoken(&updates).contains("the MCP server `mine` is left out"), "{updates:#?}");
    assert!(!sandbox.path("project/started").exists());
}
