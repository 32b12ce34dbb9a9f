//! The process itself: whose home it uses, who can read its memory and its files, how large they get, and what ends
//! with a session. Everything runs as an unprivileged user: where the tests run as root, as `nobody`.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::client::{Client, PATIENCE};
use crate::support::acp::{Acp, said};
use crate::support::{Sandbox, files_below, servers};

/// A user without rights and, on this machine, without processes.
const NOBODY: u32 = 65534;

/// A sandbox that belongs to an unprivileged user, with the programs in it.
struct Unprivileged(Sandbox);

impl Unprivileged {
    fn new() -> Self {
        Self::with_service("exec \"$0\"")
    }

    /// The service `echo` is started by a shell with this script; `$0` is the program.
    fn with_service(script: &str) -> Self {
        let sandbox = Sandbox::new();
        let programs =
            [env!("CARGO_BIN_EXE_skein"), servers::mcp_echo()].map(|program| copy(Path::new(program), &sandbox));
        let [_, echo] = &programs;
        let transport = json!({"stdio": {"command": "sh", "args": ["-c", script, echo]}});
        let service = json!({"version": 1, "kind": "service", "name": "echo", "description": "Echo.",
            "transport": transport});
        sandbox.write("config/services/echo.yaml", &service.to_string());
        sandbox.write(
            "config/agents/tester.yaml",
            "version: 1\nkind: agent\nname: tester\ndescription: Tests.\nmetadata: {dependencies: [echo]}\n\
             runtime: {acp: {command: none}}\n\
             modes: [{slug: all, description: All., tool_groups: [echo], dependencies: [echo]}]\n",
        );
        Self(sandbox)
    }

    #[expect(clippy::disallowed_methods, reason = "the program under test is started from outside")]
    fn command(&self, args: &[&str]) -> Command {
        let template = self.0.command(args);
        let mut command = Command::new(self.0.path("bin/skein"));
        command.args(args).env_clear().envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(self.0.path("project")).env("SKEIN_APPROVAL", "auto").env("SKEIN_MODEL", "offline");
        if is_root() {
            own(&self.0.path(""));
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// What a command of the shell tool prints.
    fn shell(&self, line: &str) -> String {
        let flags = ["run", "-a", "coding", "-m", "backend", "--sandbox", "off"];
        printed(&mut self.command(&[&flags[..], &[&format!("run {line}")]].concat()))
    }

    /// Skein as an MCP server in front of the service `echo`.
    fn serve(&self) -> Client {
        Client::connect(self.command(&["mcp", "-a", "tester"])).0
    }

    fn pid_in(&self, file: &str) -> u32 {
        let path = self.0.path(file);
        eventually(file, || fs::read_to_string(&path).ok()?.trim().split_once('=')?.1.parse().ok())
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Another process copies the file. If this one did, a child of another test could still have it open for writing when
/// it is started, which is then refused.
#[expect(clippy::disallowed_methods, reason = "a tool of the test")]
fn copy(program: &Path, sandbox: &Sandbox) -> PathBuf {
    let folder = sandbox.path("bin");
    fs::create_dir_all(&folder).unwrap();
    let copy = folder.join(program.file_name().unwrap());
    assert!(Command::new("cp").arg(program).arg(&copy).status().unwrap().success());
    copy
}

/// Gives a folder and everything in it to the unprivileged user.
fn own(path: &Path) {
    chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    if fs::symlink_metadata(path).unwrap().is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| own(&entry.unwrap().path()));
    }
}

fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| !fields.trim_start().starts_with('Z'))
}

fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn ends(pid: u32) {
    eventually("the end of the process", || (!alive(pid)).then_some(()));
}

/// The pid after `name=` in what was printed.
fn pid_of(name: &str, text: &str) -> u32 {
    let (_, rest) = text.split_once(&format!("{name}=")).unwrap_or_else(|| panic!("no {name} in {text}"));
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

// home

/// Before, `.` was the home, and the project's file was the user's config.
#[test]
fn without_home_a_project_is_not_the_users_home() {
    let place = Unprivileged::new();
    place.0.write(
        "project/.config/skein/config.yaml",
        "version: 1\nproviders: {planted: {base_url: \"http://127.0.0.1:9/v1\"}}\n\
         permissions: [{tool: developer__shell, then: allow}]\n",
    );
    for home in [None, Some("")] {
        let command = |args: &[&str]| {
            let mut command = place.command(args);
            command.env_remove("HOME").env_remove("SKEIN_CONFIG_DIR").env("SKEIN_APPROVAL", "ask");
            command.envs(home.map(|home| ("HOME", home)));
            command
        };
        let output = printed(&mut command(&["run", "-a", "coding", "-m", "backend", "run touch stolen"]));
        assert!(!place.0.path("project/stolen").exists(), "{output}");
        let output = printed(&mut command(&["run", "--model", "planted/x", "hello"]));
        assert!(!output.contains("127.0.0.1:9"), "{output}");
        let home = printed(
            command(&["run", "-a", "coding", "-m", "backend", "run echo home=$HOME"]).env("SKEIN_APPROVAL", "auto"),
        );
        assert!(home.contains("home=/"), "children have the home, too: {home}");
    }
    // Without any folder named, nothing lands in the project either.
    let mut command = place.command(&["permissions"]);
    command.env_remove("HOME").env_remove("SKEIN_CONFIG_DIR");
    if is_root() {
        command.env_remove("SKEIN_DATA_DIR");
    }
    let output = printed(&mut command);
    assert!(!output.contains("developer__shell"), "{output}");
    assert_eq!(files_below(&place.0.path("project")), [place.0.path("project/.config/skein/config.yaml")]);
}

#[test]
fn a_relative_home_is_refused() {
    let sandbox = Sandbox::new();
    for name in ["HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "SKEIN_CONFIG_DIR", "SKEIN_DATA_DIR"] {
        let output = sandbox.command(&["check"]).env(name, "here").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(&format!("{name} is `here`, which is not an absolute path")), "{stderr}");
        assert!(files_below(&sandbox.path("project")).is_empty());
    }
}

// memory and limits

/// Before, the shell printed the key.
#[test]
fn children_cannot_read_the_memory_of_skein() {
    let place = Unprivileged::new();
    let line = "cat /proc/$PPID/environ; head -c 1 /proc/$PPID/mem; ls /proc/$PPID/fd; echo done";
    let flags = ["run", "-a", "coding", "-m", "backend", "--sandbox", "off"];
    let mut command = place.command(&[&flags[..], &[&format!("run {line}")]].concat());
    let output = printed(command.env("SOME_API_KEY", "marked-key"));
    assert!(output.contains("done") && !output.contains("marked-key"), "{output}");
    assert_eq!(output.matches("Permission denied").count(), 3, "{output}");

    let mut command = place.command(&["mcp", "-a", "tester"]);
    command.env("SOME_API_KEY", "marked-key");
    let mut client = Client::connect(command).0;
    for file in ["environ", "mem"] {
        let path = format!("/proc/{}/{file}", client.pid());
        let answer = client.call("echo__read", json!({"path": path})).to_string();
        assert!(answer.contains("Permission denied"), "{answer}");
    }
}

/// Before, both were unlimited.
#[test]
fn children_have_limits() {
    let place = Unprivileged::new();
    let output = place.shell("echo core=$(ulimit -Hc) file=$(ulimit -Hf)");
    assert!(output.contains("core=0 file=8388608"), "{output}");
    let output = place.shell("truncate -s 9G large");
    assert!(output.contains("8 GiB") || output.contains("File too large"), "{output}");
    assert!(fs::metadata(place.0.path("project/large")).is_ok_and(|file| file.len() == 0), "{output}");
    let limits = place.serve().call("echo__read", json!({"path": "/proc/self/limits"})).to_string();
    assert!(limits.contains("8589934592"), "{limits}");
}

// files and log

/// Before, the folders were 0755 and the log 0644.
#[test]
fn what_is_kept_is_for_the_user_alone() {
    let place = Unprivileged::new();
    let data = place.0.path("data");
    fs::create_dir_all(data.join("state/log")).unwrap();
    fs::write(data.join("state/log/skein.log.1"), "old\n").unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    place.shell("echo hello");
    let kept = files_below(&data);
    assert!(kept.iter().any(|file| file.ends_with("sessions.db")), "{kept:?}");
    for file in kept {
        for path in file.ancestors().take_while(|path| path.starts_with(&data)) {
            let mode = fs::metadata(path).unwrap().mode();
            assert_eq!(mode & 0o077, 0, "{} is {mode:o}", path.display());
        }
    }
}

/// Before, all of it was in the log.
#[test]
fn a_service_cannot_fill_the_log() {
    let script = "yes $(printf 'x%.0s' $(seq 1000)) | head -c 40000000 >&2; exec \"$0\"";
    let place = Unprivileged::with_service(script);
    let mut client = place.serve();
    assert!(client.call("echo__echo", json!({"text": "still here"})).to_string().contains("still here"));
    client.hang_up();
    client.ended();
    let log = place.0.path("data/state/log");
    let size: u64 = files_below(&log).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(size < 2 << 20, "{size} bytes");
    let lines = place.0.log();
    let reports = lines.iter().filter(|line| line["fields"]["message"].to_string().contains("were dropped"));
    assert!((1..=4).contains(&reports.count()), "{lines:?}");
}

// setsid

/// Waits until the process `$p` has left its group.
const HAS_LEFT: &str = "until [ \"$(cut -d' ' -f6 /proc/$p/stat)\" = $p ]; do :; done";

/// A process that has left its group.
fn left() -> String {
    format!("setsid sleep 1000 >/dev/null 2>&1 & p=$!; {HAS_LEFT}; echo left=$p")
}

/// One that also has no environment, and whose parent has ended.
fn hidden() -> String {
    format!("(env -i setsid sleep 1000 >/dev/null 2>&1 & p=$!; {HAS_LEFT}; echo hidden=$p)")
}

/// Before, both went on after the end of Skein.
#[test]
fn what_left_its_group_ends_with_skein() {
    let place = Unprivileged::new();
    let output = place.shell(&format!("{}; {}", hidden(), left()));
    ends(pid_of("hidden", &output));
    ends(pid_of("left", &output));
}

#[test]
fn what_left_its_group_lives_as_long_as_the_session() {
    let place = Unprivileged::new();
    let mut client =
        Acp::launch(&place.0, place.command(&["acp", "-a", "coding", "-m", "backend", "--sandbox", "off"]));
    client.introduce(&json!({}));
    let [first, second] = [(); 2].map(|()| client.session());
    let mut start = |session: &str, line: &str| {
        let (_, updates) = client.prompt(session, &format!("run {line}"));
        said(&updates, "agent_message_chunk")
    };
    let ending = [pid_of("left", &start(&first, &left())), pid_of("hidden", &start(&first, &hidden()))];
    let staying = pid_of("left", &start(&second, &left()));
    assert!(alive(ending[0]) && alive(ending[1]) && alive(staying), "a daemon outlives its command");
    client.ask("session/close", json!({"sessionId": first}));
    ends(ending[0]);
    assert!(alive(staying), "the other session goes on");
    client.ask("session/close", json!({"sessionId": second}));
    ends(staying);
    assert_eq!(client.finish().1, 0);
    // It could be a process of the service, which is older and runs as long as Skein.
    ends(ending[1]);
}

fn service_with_daemons(place: &str) -> String {
    format!("({}) > {place}/left; {} > {place}/hidden; exec \"$0\"", left(), hidden())
}

#[test]
fn what_left_the_group_of_a_service_ends_with_it() {
    let place = Unprivileged::with_service(&service_with_daemons("$HOME"));
    let mut client = place.serve();
    let pids = ["home/left", "home/hidden"].map(|file| place.pid_in(file));
    assert!(pids.into_iter().all(alive));
    // It ends by itself; Skein goes on.
    client.request("tools/call", json!({"name": "echo__crash", "arguments": {}}));
    pids.into_iter().for_each(ends);
    client.hang_up();
    client.ended();
}

#[test]
fn what_left_the_group_of_an_external_agent_ends_with_it() {
    let place = Unprivileged::new();
    let agent = copy(Path::new(servers::acp_echo()), &place.0);
    let args = json!(["-c", service_with_daemons("$HOME"), agent]);
    place.0.install(&json!({"version": 1, "kind": "agent", "name": "outside", "description": "Outside.",
        "runtime": {"acp": {"command": "sh", "args": args}},
        "modes": [{"slug": "default", "description": "All.", "tool_groups": [], "dependencies": []}]}));
    let output = printed(&mut place.command(&["run", "-a", "outside", "say hello"]));
    assert!(output.contains("hello"), "{output}");
    ["home/left", "home/hidden"].into_iter().for_each(|file| ends(place.pid_in(file)));
}

/// A process without the environment it was given is out of reach then.
#[test]
fn what_left_its_group_ends_with_a_killed_skein() {
    let place = Unprivileged::with_service(&service_with_daemons("$HOME"));
    let mut client = place.serve();
    let [left, hidden] = ["home/left", "home/hidden"].map(|file| place.pid_in(file));
    assert!(alive(left));
    let pid = |pid: u32| Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(pid(client.pid()), Signal::KILL).unwrap();
    client.ended();
    ends(left);
    if alive(hidden) {
        kill_process(pid(hidden), Signal::KILL).unwrap();
    }
}
