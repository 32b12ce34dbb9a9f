//! Skein while it runs: what it leaves behind when it ends, in whatever way, and what `skein services` says about
//! it in the meantime.

#![expect(clippy::expect_used, reason = "what a test cannot go on without ends it")]

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::client::{Client, PATIENCE};
use crate::support::{Sandbox, full_tests, plain_server, servers};

/// A sandbox with the service `plain` and an agent whose one mode has all of it.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let server = plain_server();
    sandbox.write(
        "config/services/plain.yaml",
        &format!(
            "version: 1\nkind: service\nname: plain\ndescription: A small server.\n\
             transport: {{stdio: {{command: python3, args: ['{}']}}}}\n",
            server.display()
        ),
    );
    sandbox.write(
        "config/agents/tester.yaml",
        "version: 1\nkind: agent\nname: tester\ndescription: Tests.\nmetadata: {dependencies: [plain]}\n\
         runtime: {acp: {command: none}}\n\
         modes: [{slug: all, description: All., tool_groups: [plain], dependencies: [plain]}]\n",
    );
    sandbox
}

const MCP: [&str; 3] = ["mcp", "-a", "tester"];

/// Skein in front of the server, and every process there is because of it.
fn started(sandbox: &Sandbox) -> (Client, Vec<u32>) {
    let (mut client, _) = Client::connect(sandbox.command(&MCP));
    let pids = client.call_json("plain__pids");
    let mut processes: Vec<_> =
        ["server", "child"].iter().filter_map(|key| u32::try_from(pids[key].as_u64()?).ok()).collect();
    let reaper = children(client.pid()).into_iter().find(|pid| command_line(*pid).contains("reaper"));
    processes.push(reaper.expect("a reaper"));
    assert_eq!(processes.iter().filter(|pid| alive(**pid)).count(), 3, "{processes:?}");
    (client, processes)
}

fn stat(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, and ends at the last bracket.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// A dead process that nobody has collected yet is dead.
fn alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != "Z")
}

fn children(parent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("a proc file system").filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(_, of)| of == parent)).collect()
}

fn command_line(pid: u32) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).replace('\0', " ")
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The processes and everything that marks a running skein are gone.
fn nothing_is_left(sandbox: &Sandbox, processes: &[u32]) {
    wait_until("the end of every process", || processes.iter().all(|pid| !alive(*pid)));
    let left: Vec<_> = fs::read_dir(sandbox.path("project")).expect("the project").collect();
    assert!(left.is_empty(), "{left:?}");
}

fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
    kill_process(pid, signal).expect("it can be signalled");
}

#[test]
fn client_hangup_ends_everything_without_a_failure() {
    if !full_tests() {
        return;
    }
    let sandbox = sandbox();
    let (mut client, processes) = started(&sandbox);
    client.hang_up();
    assert_eq!(client.ended().code(), Some(0));
    nothing_is_left(&sandbox, &processes);
    assert_eq!(sockets(&sandbox), [""; 0]);
}

#[test]
fn a_signal_ends_skein_and_everything_it_started() {
    if !full_tests() {
        return;
    }
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let sandbox = sandbox();
        let (mut client, processes) = started(&sandbox);
        kill(client.pid(), signal);
        assert_eq!(client.ended().code(), Some(130), "{signal:?}");
        nothing_is_left(&sandbox, &processes);
        assert_eq!(sockets(&sandbox), [""; 0], "{signal:?}");
    }
}

#[test]
fn a_signal_ends_skein_while_a_value_is_validated() {
    if !full_tests() {
        return;
    }
    let sandbox = sandbox();
    sandbox.write(
        "config/services/plain.yaml",
        &format!(
            "version: 1\nkind: service\nname: plain\ndescription: Its schemas explode.\n\
             transport: {{stdio: {{command: '{}', args: [--poisoned]}}}}\n",
            servers::mcp_echo()
        ),
    );
    let (mut client, _) = Client::connect(sandbox.command(&MCP));
    let deep = (0..60).fold(json!({}), |inner, _| json!({"x": inner}));
    client.ask("tools/call", json!({"name": "plain__doubling_schema", "arguments": deep}));
    let pid = client.pid();
    let names = || fs::read_dir(format!("/proc/{pid}/task")).expect("threads").filter_map(Result::ok);
    let is_schema = |thread: &fs::DirEntry| {
        fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "schema")
    };
    wait_until("the validation", || names().any(|thread| is_schema(&thread)));
    kill(pid, Signal::TERM);
    assert_eq!(client.ended().code(), Some(130));
}

#[test]
fn even_a_killed_skein_leaves_no_process_behind() {
    if !full_tests() {
        return;
    }
    let sandbox = sandbox();
    let (mut client, processes) = started(&sandbox);
    kill(client.pid(), Signal::KILL);
    assert_eq!(client.ended().signal(), Some(9));
    nothing_is_left(&sandbox, &processes);
}

#[test]
fn a_signal_during_a_start_that_hangs_ends_it() {
    if !full_tests() {
        return;
    }
    let sandbox = sandbox();
    sandbox.write(
        "config/services/plain.yaml",
        "version: 1\nkind: service\nname: plain\ndescription: Never answers.\n\
         transport: {stdio: {command: sleep, args: ['600']}}\n",
    );
    let mut client = Client::start(sandbox.command(&MCP));
    let mut processes = Vec::new();
    wait_until("the start of the server", || {
        processes = children(client.pid());
        processes.iter().any(|pid| command_line(*pid).starts_with("sleep"))
    });
    kill(client.pid(), Signal::TERM);
    assert_eq!(client.ended().code(), Some(130));
    nothing_is_left(&sandbox, &processes);
}

#[test]
fn cancelled_call_is_cancelled_at_the_server_unanswered() {
    if !full_tests() {
        return;
    }
    let sandbox = sandbox();
    let (mut client, _) = Client::connect(sandbox.command(&MCP));
    let call = json!({"name": "plain__wait", "arguments": {}, "_meta": {"progressToken": "mine"}});
    let id = client.ask("tools/call", call);
    let progress = client.notified("notifications/progress");
    assert_eq!(
        progress["params"],
        json!({"progressToken": "mine", "progress": 1.0, "total": 2.0, "message": "waiting"})
    );
    client.notify("notifications/cancelled", json!({"requestId": id, "reason": "enough"}));
    // Requests are answered by tasks of their own, so the cancellation may arrive a moment later.
    wait_until("the cancellation at the server", || {
        client.call_json("plain__heard").as_array().expect("a list").contains(&json!("notifications/cancelled"))
    });
    // `request` fails on an answer to anything but what it asked.
    client.result("ping", json!({}));
}

#[test]
fn a_child_gets_no_variable_of_ours_but_those_that_find_the_way() {
    if !full_tests() {
        return;
    }
    let sandbox = sandbox().with("API_KEY", "a-secret-of-the-user").with("LANG", "C.UTF-8");
    let (mut client, _) = Client::connect(sandbox.command(&MCP));
    let env = client.call_json("plain__env");
    assert_eq!(env["LANG"], "C.UTF-8");
    // What a launcher of the interpreter adds by itself is not ours.
    let names: Vec<_> = env.as_object().expect("variables").keys().collect();
    for hidden in ["API_KEY", "SKEIN_CONFIG_DIR", "SKEIN_DATA_DIR"] {
        assert!(!names.iter().any(|name| *name == hidden), "{names:?}");
    }
    assert!(!env.to_string().contains("a-secret-of-the-user"));
}

#[test]
fn approval_holds_for_the_client_of_skein_mcp() {
    if !full_tests() {
        return;
    }
    let sandbox = sandbox();
    for (level, said) in [
        ("deny", "the session allows no tool calls"),
        ("read-only", "the session is read-only, and this call may change something"),
        ("ask", "this call needs consent and no user can be asked"),
    ] {
        let mut command = sandbox.command(&MCP);
        command.env("SKEIN_APPROVAL", level);
        let (mut client, _) = Client::connect(command);
        let result = client.call("plain__heard", json!({}));
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        assert!(result["isError"] == true && text.contains(said), "{level}: {result}");
    }
}

// what others can see

/// The names in the folder of sockets.
fn sockets(sandbox: &Sandbox) -> Vec<String> {
    let entries = fs::read_dir(sandbox.path("data/state/run")).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn of_plain(sandbox: &Sandbox) -> Value {
    let services = sandbox.skein(&["services", "--json"]).json();
    let services = services.as_array().expect("a list").iter();
    services.clone().find(|service| service["name"] == "plain").expect("plain")["running"].clone()
}

#[test]
fn services_tells_how_a_service_is_in_a_skein_that_runs() {
    if !full_tests() {
        return;
    }
    let sandbox = sandbox();
    let (mut client, processes) = started(&sandbox);
    let running = of_plain(&sandbox);
    assert_eq!(running.as_array().map(Vec::len), Some(1), "{running}");
    let running = &running[0];
    assert_eq!(
        json!([running["health"], running["leases"], running["restarts"], running["last_error"], running["tools"]]),
        json!(["healthy", 1, 0, null, 5])
    );
    assert_eq!((&running["skein"], &running["pid"]), (&json!(client.pid()), &json!(processes[0])));
    assert!(running["memory_bytes"].as_u64() > Some(1_000_000), "{running}");
    assert!(running["started_at"].as_u64() > Some(1_700_000_000), "{running}");

    let died = client.call("plain__crash", json!({}));
    assert_eq!(died["isError"], true);
    client.call("plain__pids", json!({}));
    let running = &of_plain(&sandbox)[0];
    assert_eq!(running["restarts"], 1);
    assert!(running["last_error"].as_str().is_some_and(|error| error.contains("exit status: 3")), "{running}");

    let text = sandbox.skein(&["services"]).stdout;
    let line = text.lines().find(|line| line.contains("in skein")).expect("a line about it");
    let shape = r"^  \w+ in skein \d+, leases 1, restarts 1, tools 5, process \d+, \d+ MiB, up \d+ s, last error: .*exit status: 3";
    assert!(regex::Regex::new(shape).expect("a pattern").is_match(line), "{line}");
}

#[test]
fn a_service_of_another_project_is_shown_too() {
    if !full_tests() {
        return;
    }
    let sandbox = sandbox();
    let (_client, _) = started(&sandbox);
    let elsewhere = sandbox.path("other");
    let mut command = sandbox.command(&["services"]);
    let output = command.env("SKEIN_CONFIG_DIR", elsewhere).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("\nplain  of another project\n  healthy in skein "), "{text}");
}

#[test]
fn the_socket_is_for_its_user_alone_and_a_stale_one_is_removed() {
    if !full_tests() {
        return;
    }
    let sandbox = sandbox();
    // A folder that was there before, and open to all.
    let folder = sandbox.path("data/state/run");
    fs::create_dir_all(&folder).expect("a folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("ours");
    let (mut client, processes) = started(&sandbox);
    let socket = folder.join(format!("{}.sock", client.pid()));
    let mode = |path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&socket)), (0o700, 0o600));
    let mut report = String::new();
    UnixStream::connect(&socket).expect("it listens").read_to_string(&mut report).expect("a report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert!(report["pid"] == client.pid() && report["tasks"].as_u64() > Some(0), "scripts/soak reads it: {report}");

    kill(client.pid(), Signal::KILL);
    client.ended();
    nothing_is_left(&sandbox, &processes);
    assert!(socket.exists(), "a killed skein cannot clean up");
    assert_eq!(of_plain(&sandbox), json!([]));
    assert!(!socket.exists(), "whoever asks next does");
}

// probe

#[test]
fn probe_starts_a_service_and_tells_how_it_is() {
    if !full_tests() {
        return;
    }
    let sandbox = sandbox();
    let run = sandbox.skein(&["services", "--probe", "plain"]);
    let shape =
        r"^plain  healthy, restarts 0, tools 5, process \d+, \d+ MiB\n  tools: pids, crash, wait, heard, env\n$";
    assert!(regex::Regex::new(shape).expect("a pattern").is_match(&run.stdout), "{}{}", run.stdout, run.stderr);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let value = sandbox.skein(&["services", "--probe", "plain", "--json"]).json();
    assert_eq!((&value["health"], &value["tool_names"][0]), (&json!("healthy"), &json!("pids")));
    let server = u32::try_from(value["pid"].as_u64().expect("a process")).expect("a process");
    assert!(!alive(server));
}

#[test]
fn probe_of_a_service_that_fails_says_what_to_do() {
    if !full_tests() {
        return;
    }
    let sandbox = sandbox();
    let server = plain_server().display().to_string();
    for (name, command, problem) in [
        ("gone", "no-such-program".to_owned(), "there is no program `no-such-program` on the PATH"),
        (
            "failing",
            format!("python3, args: ['{server}', --fail]"),
            "it ended before it had answered (exit status: 1), and wrote: the database is not there",
        ),
        ("unset", "x, args: ['${env:NOT_SET}']".to_owned(), "the environment variable NOT_SET is not set"),
    ] {
        let manifest = format!(
            "version: 1\nkind: service\nname: {name}\ndescription: Fails.\ntransport: {{stdio: {{command: {command}}}}}\n"
        );
        sandbox.write(&format!("config/services/{name}.yaml"), &manifest);
        let run = sandbox.skein(&["services", "--probe", name]);
        assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{name}");
        assert_eq!(
            run.stderr,
            format!(
                "error: the service `{name}` could not be started: {problem}\n  help: correct `transport` in \
                 [TMP]/config/services/{name}.yaml; what it wrote to stderr is in [TMP]/data/state/log/skein.log\n"
            )
        );
    }
    let said = sandbox.log().into_iter().any(|line| line["fields"]["stderr"] == "the database is not there");
    assert!(said, "its own words are in the log");
}

#[test]
fn a_failed_probe_names_the_real_cause() {
    let sandbox = Sandbox::new();
    for (name, transport, cause) in [
        (
            "mute",
            "stdio: {command: sh, args: ['-c', 'echo no token in TOKEN_FILE >&2; exit 3']}",
            "it ended before it had answered (exit status: 3), and wrote: no token in TOKEN_FILE",
        ),
        ("remote", "http: {url: 'http://127.0.0.1:1/mcp'}", "Connection refused"),
    ] {
        let manifest =
            format!("version: 1\nkind: service\nname: {name}\ndescription: Fails.\ntransport: {{{transport}}}\n");
        sandbox.write(&format!("config/services/{name}.yaml"), &manifest);
        let run = sandbox.skein(&["services", "--probe", name]);
        assert!(run.code == 1 && run.stderr.contains(cause), "{name}: {}", run.whole());
    }
}

#[test]
fn probe_of_what_cannot_be_started_is_a_usage_error() {
    if !full_tests() {
        return;
    }
    let sandbox = sandbox();
    let later = "version: 1\nkind: service\nname: later\ndescription: x\nstatus: planned\n\
                 transport: {stdio: {command: later}}\n";
    sandbox.write("config/services/later.yaml", later);
    for (name, said) in [
        ("later", "error: the service `later` is planned: there is nothing to start\n  help: see `skein services`\n"),
        ("plaim", "error: there is no service `plaim`\n  help: did you mean `plain`?\n"),
    ] {
        let run = sandbox.skein(&["services", "--probe", name]);
        assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (2, "", said));
    }
}
