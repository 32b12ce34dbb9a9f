//! `skein acp` on its lines: envelopes, errors, what is greeted and what is refused. The numbers in the comments are
//! those of the assertions for a conformant agent; `support/acp.rs` holds every line of every test against 1, 2, 4,
//! 14, 31, 50 and 52.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::Sandbox;
use crate::support::acp::Acp;

/// 3, 49: ids come back as they were, numbers and texts, and `_meta` is nobody's business.
#[test]
pub(crate) fn an_answer_has_the_id_of_its_question() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    for id in [json!(0), json!(-7), json!(9_007_199_254_740_993_i64), json!("a text"), json!("0")] {
        let params = json!({"_meta": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}});
        client.say(&json!({"jsonrpc": "2.0", "id": id, "method": "session/list", "params": params}));
        assert_eq!(client.answer(&id)["id"], id);
    }
    let meta = json!({"cwd": client.cwd(), "mcpServers": [], "_meta": {"x": [1]}});
    assert!(client.ask("session/new", meta)["sessionId"].is_string());
}

/// Input and output do not wait for each other: a client may send all its requests before it reads an answer.
#[test]
fn a_client_that_reads_late_gets_every_answer() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let ears = client.ears();
    let deaf = ears.lock().unwrap();
    let line = "x".repeat(1_000);
    let asked: Vec<_> = (0..1_000).map(|_| client.send("_no/such/method", json!({"text": line}))).collect();
    drop(deaf);
    for id in asked {
        assert!(client.answer(&id)["error"].is_object(), "{id}");
    }
}

/// SIGHUP makes Skein read its files again. It may interrupt any system call.
#[test]
fn signals_do_not_disturb_the_connection() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let agent = Pid::from_raw(client.pid().cast_signed()).unwrap();
    std::thread::scope(|scope| {
        let signals = scope.spawn(|| (0..20_000).for_each(|_| kill_process(agent, Signal::HUP).unwrap()));
        let mut asked = 0;
        while !signals.is_finished() || asked < 100 {
            client.refused("_no/such/method", json!({}));
            asked += 1;
        }
    });
}

/// 5: known, unknown and malformed notifications are never answered.
#[test]
pub(crate) fn notifications_are_not_answered() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let mark = client.mark();
    client.notify("session/cancel", json!({"sessionId": "nobody"}));
    client.notify("session/cancel", json!({"session": 7}));
    client.notify("_no/such", json!({}));
    client.notify("no/such", json!([1]));
    client.notify("$/cancel_request", json!({"requestId": 4711}));
    client.notify("$/unknown", json!(null));
    client.settle();
    assert_eq!(client.mark(), mark + 1, "nothing but the answer that was waited for");
}

/// 6, 7, 8: what is not known is refused by its code, and the connection goes on.
#[test]
pub(crate) fn unknown_methods_are_refused() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    for method in ["no/such", "_custom/thing", "session/status", "providers/list", "auth/status", "session/fork"] {
        let params = json!({"sessionId": "s", "cwd": client.cwd(), "mcpServers": []});
        assert_eq!(client.refused(method, params)["code"], -32601, "{method}");
    }
    client.settle();
}

/// 1, 2, 8: a line that is no message is answered with `id: null` and survived.
#[test]
pub(crate) fn a_line_that_is_no_message_is_answered_and_survived() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    let large = format!("{}\n", "x".repeat(1 << 20)).into_bytes();
    let bad: [(&[u8], i64); 8] = [
        (b"{nope\n", -32700),
        (b"\n", -32700),
        (b"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"\xff\xfe\"}\n", -32700),
        (&large, -32700),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/list\",\"params\":{}}]\n", -32600),
        (b"{\"id\":5,\"method\":\"session/list\",\"params\":{}}\n", -32600),
        (b"7\n", -32600),
        (b"{}\n", -32600),
    ];
    for (line, code) in bad {
        let mark = client.mark();
        client.raw(line);
        let answer = client.wait(mark, "an answer", |message| message.get("error").is_some());
        let shown = String::from_utf8_lossy(&line[..line.len().min(40)]);
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &Value::Null), "{shown}");
        client.settle();
        assert_eq!(client.mark(), mark + 2, "one answer: {shown}");
    }
    // A request of a megabyte is one all the same.
    let session = client.session();
    let words = "word ".repeat(200_000);
    assert_eq!(client.prompt(&session, &words).0, "end_turn");
    // The end of a line may be that of Windows.
    let mark = client.mark();
    client.raw(b"{\"jsonrpc\":\"2.0\",\"method\":\"session/cancel\",\"params\":{\"sessionId\":\"x\"}}\r\n");
    client.settle();
    assert_eq!(client.mark(), mark + 1);
}

/// 9, 12: who answers, and what it can do.
#[test]
pub(crate) fn the_agent_introduces_itself() {
    let sandbox = Sandbox::new();
    let mut client = Acp::launch(&sandbox, sandbox.command(&["acp"]));
    let said = client.introduce(&json!({}));
    assert_eq!(said["protocolVersion"], 1);
    assert_eq!(said["agentInfo"]["name"], "skein");
    assert_eq!(said["agentInfo"]["version"], env!("CARGO_PKG_VERSION"));
    let able = &said["agentCapabilities"];
    assert_eq!(able["loadSession"], true);
    assert_eq!(able["promptCapabilities"], json!({"image": true, "audio": false, "embeddedContext": true}));
    assert_eq!(able["mcpCapabilities"]["http"], true);
    for capability in ["list", "resume", "close", "delete", "additionalDirectories"] {
        assert!(able["sessionCapabilities"][capability].is_object(), "{capability}: {able}");
    }
    assert!(able["sessionCapabilities"].get("fork").is_none(), "{able}");
}

/// 10, 11: version 1 is answered with 1, and any other with ours, never with an error.
#[test]
pub(crate) fn a_version_that_is_not_spoken_is_answered_with_ours() {
    let sandbox = Sandbox::new();
    for version in [0, 1, 2, 65_535] {
        let mut client = Acp::launch(&sandbox, sandbox.command(&["acp"]));
        let info = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": version, "clientCapabilities": {}, "clientInfo": info, "info": info});
        assert_eq!(client.ask("initialize", params)["protocolVersion"], 1, "{version}");
        client.session();
    }
    let mut client = Acp::launch(&sandbox, sandbox.command(&["acp"]));
    assert_eq!(client.refused("initialize", json!({}))["code"], -32602);
    assert_eq!(client.refused("initialize", json!({"protocolVersion": "one"}))["code"], -32602);
    client.introduce(&json!({}));
}

/// 13: nothing is done for a client that did not introduce itself.
#[test]
pub(crate) fn before_initialize_everything_is_refused() {
    let sandbox = Sandbox::new();
    let mut client = Acp::launch(&sandbox, sandbox.command(&["acp"]));
    let cwd = client.cwd();
    for (method, params) in [
        ("session/new", json!({"cwd": cwd, "mcpServers": []})),
        ("session/list", json!({})),
        ("session/prompt", json!({"sessionId": "x", "prompt": [{"type": "text", "text": "x"}]})),
    ] {
        assert_eq!(client.refused(method, params)["code"], -32600, "{method}");
    }
    client.introduce(&json!({}));
    client.session();
}

/// 47, 48: the terminal method is only for clients with a terminal, and no session ever asks for a login.
#[test]
pub(crate) fn logging_in_is_offered_and_never_asked_for() {
    let sandbox = Sandbox::new();
    let mut client = Acp::launch(&sandbox, sandbox.command(&["acp"]));
    let methods = client.introduce(&json!({}))["authMethods"].clone();
    let of_type = |methods: &Value, kind: &str| {
        methods.as_array().unwrap().iter().filter(|method| method["type"] == json!(kind)).count()
    };
    assert_eq!(of_type(&methods, "terminal"), 0, "{methods}");
    assert!(!methods.as_array().unwrap().is_empty(), "the registry wants one");
    client.session();
    for method in methods.as_array().unwrap() {
        client.ask("authenticate", json!({"methodId": method["id"]}));
    }
    client.session();
    assert_eq!(client.refused("authenticate", json!({"methodId": "magic"}))["code"], -32602);
    client.ask("logout", json!({}));
    client.session();
    let mut command = sandbox.command(&["acp"]);
    command.env("SKEIN_MODEL", "openai:gpt");
    let mut other = Acp::launch(&sandbox, command);
    let methods = other.introduce(&json!({"auth": {"terminal": true}}))["authMethods"].clone();
    assert_eq!(of_type(&methods, "terminal"), 1, "{methods}");
    // A key that is missing is told to whoever asks, and keeps nobody from a session.
    let error = other.refused("authenticate", json!({"methodId": "environment"}));
    assert_eq!(error["code"], -32000);
    assert!(error["message"].as_str().unwrap().contains("OPENAI_API_KEY"), "{error}");
    other.session();
}

/// 51: the end of stdin is the end of the agent.
#[test]
pub(crate) fn the_agent_ends_with_its_stdin() {
    let sandbox = Sandbox::new();
    let mut unspoken = Acp::launch(&sandbox, sandbox.command(&["acp"]));
    assert_eq!(unspoken.finish(), (vec![], 0));
    let mut idle = Acp::start(&sandbox);
    idle.session();
    assert_eq!(idle.finish(), (vec![], 0));
}

/// Some editors use sockets in place of pipes, and a script may use files.
#[test]
fn stdio_may_be_a_socket_or_a_file() {
    let sandbox = Sandbox::new();
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}});
    let is_answer = |line: &str| serde_json::from_str::<Value>(line).unwrap()["result"]["protocolVersion"] == 1;

    let (ours, theirs) = UnixStream::pair().unwrap();
    let [input, output] = [theirs.try_clone().unwrap(), theirs].map(|end| Stdio::from(OwnedFd::from(end)));
    let mut command = sandbox.command(&["acp"]);
    let mut agent = command.stdin(input).stdout(output).spawn().unwrap();
    // The command keeps its ends of the socket open.
    drop(command);
    writeln!(&ours, "{hello}").unwrap();
    let mut answers = BufReader::new(&ours).lines().map(Result::unwrap);
    assert!(is_answer(&answers.next().unwrap()));
    ours.shutdown(Shutdown::Write).unwrap();
    assert_eq!(answers.next(), None);
    assert!(agent.wait().unwrap().success());

    let [asked, answered] = ["asked", "answered"].map(|name| sandbox.path(name));
    fs::write(&asked, format!("{hello}\n")).unwrap();
    let mut command = sandbox.command(&["acp"]);
    let files = command.stdin(File::open(&asked).unwrap()).stdout(File::create(&answered).unwrap());
    assert!(files.status().unwrap().success());
    let text = fs::read_to_string(&answered).unwrap();
    assert!(text.lines().count() == 1 && is_answer(&text), "{text}");
}

/// 51: also in the middle of a turn, and what the turn started is gone with it.
#[test]
pub(crate) fn the_end_of_stdin_in_a_turn_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let mut client = Acp::start(&sandbox);
    client.on_permission("allow_once");
    let session = client.session();
    let mark = client.mark();
    client.begin(&session, "run sleep 61");
    client.wait_update(mark, &session, "tool_call_update");
    client.until("the command runs", |client| !client.running("sleep 61").is_empty());
    let (_, code) = client.finish();
    assert_eq!(code, 0);
    client.until("nothing is left", |client| client.processes().is_empty());
}

/// Manifests that are wrong do not keep the agent from answering: it says what `skein check` says.
#[test]
pub(crate) fn a_broken_configuration_is_explained_over_the_protocol() {
    let sandbox = Sandbox::new();
    sandbox
        .write("config/services/clock.yaml", "version: 1\nkind: service\nname: clock\ndescription: x\ntransprt: {}\n");
    let mut client = Acp::start(&sandbox);
    let params = json!({"cwd": client.cwd(), "mcpServers": []});
    let error = client.refused("session/new", params.clone());
    assert_eq!(error["code"], -32603);
    let checked = sandbox.skein(&["check"]);
    assert_eq!(checked.code, 6);
    let real = std::fs::canonicalize(sandbox.path("")).unwrap();
    let text = error["data"]["text"].as_str().unwrap();
    let text = text.replace(&*real.to_string_lossy(), "[TMP]").replace(&*sandbox.path("").to_string_lossy(), "[TMP]/");
    assert!(text.contains("error[") && !text.contains("note["), "{text}");
    for line in text.lines() {
        assert!(checked.whole().contains(line), "{line}\n{}", checked.whole());
    }
    let found = error["data"]["diagnostics"].as_array().unwrap();
    assert!(found.iter().any(|found| found["severity"] == "error"), "{error}");
    // Once it is mended, the same agent goes on.
    std::fs::remove_file(sandbox.path("config/services/clock.yaml")).unwrap();
    client.ask("session/new", params);
}

/// A record that cannot be read is explained and left as it is.
#[test]
pub(crate) fn a_damaged_record_is_explained_and_not_touched() {
    let sandbox = Sandbox::new();
    let damaged = "this is no database, but it may be all that is left of one\n".repeat(100);
    sandbox.write("data/sessions.db", &damaged);
    let mut client = Acp::start(&sandbox);
    let params = json!({"cwd": client.cwd(), "mcpServers": []});
    let error = client.refused("session/new", params);
    assert_eq!(error["code"], -32603);
    assert!(error["message"].as_str().unwrap().contains("sessions.db"), "{error}");
    assert_eq!(client.refused("session/list", json!({}))["code"], -32603);
    client.finish();
    assert_eq!(std::fs::read_to_string(sandbox.path("data/sessions.db")).unwrap(), damaged);
}
