//! Git inside the sandbox of a session: pushes, fetches and signatures with the user's credentials, one question each,
//! and work in a repository whose config is protected.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::needs_tool;
use super::session::{SandboxedSession, structured, titles};
use crate::support::{Sandbox, free_address, full_tests, repository};

const TOKEN: &str = "TOKEN-0123456789abcdef";

/// A process of the host, which ends with the test.
struct HostProcess(Child);

impl Drop for HostProcess {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[expect(clippy::disallowed_methods, reason = "servers and set-up outside of the sandbox")]
fn program(machine: &Sandbox, program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env_clear().env("HOME", machine.path("home")).env("PATH", super::tool_path());
    command.current_dir(machine.path("host")).stdin(Stdio::null());
    command
}

/// Runs a script outside of every sandbox.
fn outside(machine: &Sandbox, script: &str) -> String {
    let output = program(machine, "sh", &["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", super::text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A machine with a bare repository `host/origin.git` and its clone `project`, which has one commit.
fn machine() -> Sandbox {
    let machine = Sandbox::outside_tmp();
    fs::create_dir(machine.path("host")).unwrap();
    let config = "[user]\n\tname = Test\n\temail = test@example.com\n[init]\n\tdefaultBranch = main\n\
                  [protocol \"file\"]\n\tallow = always\n[credential]\n\thelper = store\n";
    machine.write("home/.gitconfig", config);
    let script = "git init -q --bare origin.git && git -C origin.git config http.receivepack true && \
                  git clone -q origin.git ../project 2>/dev/null && cd ../project && git commit -q --allow-empty -m first && \
                  git push -q origin main";
    outside(&machine, script);
    machine
}

/// Serves the folder `host` over https. Returns the URL of the repository.
fn serve_https(machine: &Sandbox) -> (HostProcess, String) {
    let script = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem \
                  -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 2>/dev/null";
    outside(machine, script);
    let server = repository("tests/it/sandbox/git_server.py");
    let args = [server.to_str().unwrap(), ".", "cert.pem", "key.pem", &format!("me:{TOKEN}")];
    let mut child = program(machine, "/usr/bin/python3", &args).stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let address = format!("127.0.0.1:{}", port.trim());
    machine.write("home/.git-credentials", &format!("https://me:{TOKEN}@{address}\n"));
    let certificate = machine.path("host/cert.pem");
    outside(machine, &format!("git config --global http.sslCAInfo {}", certificate.display()));
    let url = format!("https://{address}/origin.git");
    outside(machine, &format!("git -C ../project remote set-url origin {url}"));
    (HostProcess(child), address)
}

/// Starts an ssh-agent with one key, whose files are in `~/.ssh`. Returns its socket.
fn start_agent(machine: &Sandbox) -> (HostProcess, String) {
    fs::create_dir_all(machine.path("home/.ssh")).unwrap();
    outside(machine, "ssh-keygen -q -t ed25519 -N '' -C me@host -f ../home/.ssh/id_ed25519");
    let socket = machine.path("host/agent").to_str().unwrap().to_owned();
    let mut agent = program(machine, "ssh-agent", &["-D", "-a", &socket]);
    let agent = HostProcess(agent.stdout(Stdio::null()).spawn().unwrap());
    wait_for(|| Path::new(&socket).exists());
    outside(machine, &format!("SSH_AUTH_SOCK={socket} ssh-add -q ../home/.ssh/id_ed25519"));
    (agent, socket)
}

/// Serves ssh logins of this user with the key of the agent. Returns the address.
fn serve_ssh(machine: &Sandbox) -> (HostProcess, String) {
    if rustix::process::geteuid().is_root() {
        fs::create_dir_all("/run/sshd").unwrap();
    }
    let port = free_address().port();
    outside(machine, "ssh-keygen -q -t ed25519 -N '' -f host_key");
    let folder = machine.path("host");
    let folder = folder.display();
    let config = format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/../home/.ssh/id_ed25519.pub\n\
         UsePAM no\nStrictModes no\nPidFile none\nPasswordAuthentication no\n"
    );
    machine.write("host/sshd_config", &config);
    let config = machine.path("host/sshd_config");
    let args = ["-D", "-e", "-f", config.to_str().unwrap()];
    let server = program(machine, "/usr/sbin/sshd", &args).stderr(Stdio::null()).spawn().unwrap();
    let key = fs::read_to_string(machine.path("host/host_key.pub")).unwrap();
    machine.write("home/.ssh/known_hosts", &format!("[127.0.0.1]:{port} {key}"));
    wait_for(|| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    (HostProcess(server), format!("127.0.0.1:{port}"))
}

fn wait_for(fits: impl Fn() -> bool) {
    let start = Instant::now();
    while !fits() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A session that reaches one address, with the variables of Skein.
fn session(machine: Sandbox, address: &str, variables: &[(&str, &str)]) -> SandboxedSession {
    SandboxedSession::start(machine, &json!({"network": {"allow": [address], "otherwise": "off"}}), variables)
}

#[test]
fn https_uses_the_users_helper_after_one_question() {
    if !full_tests() {
        return;
    }
    let machine = machine();
    let (_server, address) = serve_https(&machine);
    let mut session = session(machine, &address, &[]);
    let (result, questions) = session.shell("git push origin HEAD:refs/heads/topic 2>&1");
    assert_eq!(structured(&result)["exit_code"], 0, "{result}");
    let title = format!("Use your credentials: push HEAD:refs/heads/topic to origin: password for https://{address}");
    assert_eq!(titles(&questions), [title.as_str()]);
    assert_eq!(questions[0]["rawInput"]["command"], "git push origin HEAD:refs/heads/topic 2>&1");
    assert_eq!(outside(&session.machine, "git -C origin.git log --format=%s topic"), "first\n");

    let (result, questions) =
        session.shell("git fetch origin topic 2>&1 && git rev-parse FETCH_HEAD HEAD | uniq | wc -l");
    assert_eq!(structured(&result)["stdout"].as_str().unwrap().lines().last(), Some("1"), "{result}");
    let title = format!("Use your credentials: fetch topic from origin: password for https://{address}");
    assert_eq!(titles(&questions), [title.as_str()]);

    session.will_answer("reject_once");
    let (result, questions) = session.shell("git push origin HEAD:refs/heads/other");
    assert_ne!(structured(&result)["exit_code"], 0, "{result}");
    assert_eq!(questions.len(), 1);
    assert!(result.to_string().contains("no password for git: the user refused"), "{result}");

    // Neither the password nor the helper's file is inside.
    let search = "cat ~/.git-credentials; env; cat /proc/*/environ 2>/dev/null; grep -rs TOKEN- ~ /run /tmp";
    let (result, _) = session.shell(search);
    assert!(!result.to_string().contains(TOKEN), "{result}");
}

#[test]
fn ssh_logins_and_signatures_ask_once_each() {
    if !full_tests() {
        return;
    }
    let machine = machine();
    let (_agent, socket) = start_agent(&machine);
    let (_server, address) = serve_ssh(&machine);
    let user = outside(&machine, "id -un").trim().to_owned();
    let repository = machine.path("host/origin.git");
    let url = format!("ssh://{user}@{address}{}", repository.display());
    outside(&machine, &format!("git -C ../project remote set-url origin {url}"));
    let mut session = session(machine, &address, &[("SSH_AUTH_SOCK", &socket)]);
    // ssh takes the home folder from the user database, and this test has another one.
    let ssh = "export GIT_SSH_COMMAND=\"$GIT_SSH_COMMAND -o UserKnownHostsFile=$HOME/.ssh/known_hosts\"";
    let login = format!("ssh login as `{user}` with the ssh key `me@host`");

    let (result, questions) = session.shell(&format!("{ssh}; git push origin HEAD:topic 2>&1"));
    assert_eq!(structured(&result)["exit_code"], 0, "{result}");
    assert_eq!(titles(&questions), [format!("Use your credentials: push HEAD:topic to origin: {login}")]);
    let (result, questions) = session.shell(&format!("{ssh}; git fetch origin topic 2>&1"));
    assert_eq!(structured(&result)["exit_code"], 0, "{result}");
    assert_eq!(titles(&questions), [format!("Use your credentials: fetch topic from origin: {login}")]);

    let sign =
        "git -c gpg.format=ssh -c user.signingkey=$HOME/.ssh/id_ed25519.pub commit -q --allow-empty -S -m signed";
    let (result, questions) = session.shell(sign);
    assert_eq!(structured(&result)["exit_code"], 0, "{result}");
    let title = "Use your credentials: signature under a commit or tag with the ssh key `me@host`";
    assert_eq!(titles(&questions), [title]);
    let verify = "echo \"* $(cat ../home/.ssh/id_ed25519.pub)\" > signers && \
                  git -C ../project -c gpg.ssh.allowedSignersFile=$PWD/signers verify-commit HEAD 2>&1";
    assert!(outside(&session.machine, verify).contains("Good \"git\" signature"));

    session.will_answer("reject_once");
    let (result, questions) = session.shell(&format!("{ssh}; git push origin HEAD:other"));
    assert_ne!(structured(&result)["exit_code"], 0, "{result}");
    assert_eq!(questions.len(), 1);

    // The key and the user's agent are out of reach; the filtered agent only lists and signs.
    let (result, questions) = session.shell(&format!("SSH_AUTH_SOCK={socket} ssh-add -l; cat ~/.ssh/id_ed25519"));
    assert!(!result.to_string().contains("PRIVATE KEY") && !result.to_string().contains("me@host"), "{result}");
    assert!(session.works("ssh-add -l").contains("me@host"));
    let (result, _) = session.shell("ssh-add -D; ssh-keygen -q -t ed25519 -N '' -f k && ssh-add k");
    assert_ne!(structured(&result)["exit_code"], 0, "{result}");
    assert!(outside(&session.machine, &format!("SSH_AUTH_SOCK={socket} ssh-add -l")).contains("me@host"));
    assert_eq!(questions.len(), 0, "nothing was signed");
}

#[test]
fn everyday_git_works_in_a_protected_repository() {
    if !needs_tool("git") {
        return;
    }
    let machine = machine();
    let script = "git init -q lib.src && git -C lib.src commit -q --allow-empty -m lib && cd ../project && \
                  git submodule --quiet add $OLDPWD/lib.src lib && git commit -qm 'add lib'";
    outside(&machine, script);
    let mut session = SandboxedSession::start(machine, &json!({"network": "off"}), &[]);
    let uses = [
        ("echo a > a && git add a && git commit -qm second && git log -1 --format=%s", "second"),
        ("git switch -qc topic && git branch --show-current", "topic"),
        (
            "git commit -q --allow-empty -m third && git switch -q main && git commit -q --allow-empty -m fourth && \
             git switch -q topic && git rebase -q main && git log -2 --format=%s | tr '\\n' ' '",
            "third fourth ",
        ),
        (
            "git worktree add -q -b side ../project/side && git -C side log -1 --format=%s && git worktree remove side",
            "third",
        ),
        ("git clone -q --recurse-submodules . copy && git -C copy/lib log -1 --format=%s && rm -rf copy", "lib"),
        (
            "git -C lib commit -q --allow-empty -m inner && git add lib && git commit -qm 'move lib' && \
             git submodule foreach -q 'git log -1 --format=%s'",
            "inner",
        ),
        (
            "git -C lib checkout -q HEAD~1 && git submodule update 2>&1 && git -C lib log -1 --format=%s && \
             git submodule update --init --recursive && git -C lib rev-parse --show-toplevel | xargs basename",
            "lib",
        ),
        ("git stash list | wc -l && git clean -qfd && git status --porcelain | wc -l", "0"),
    ];
    for (command, expected) in uses {
        let printed = session.works(command);
        assert_eq!(printed.lines().last(), Some(expected), "{command}");
    }
    assert!(session.questions().is_empty());
}

#[test]
fn submodules_are_fetched_without_a_change_of_the_config() {
    if !needs_tool("git") {
        return;
    }
    let machine = machine();
    let script = "git init -q lib.src && git -C lib.src commit -q --allow-empty -m lib && git init -q whole && \
                  cd whole && git submodule --quiet add $PWD/../lib.src lib && \
                  git config -f .gitmodules submodule.lib.url ../lib.src && git commit -qam 'add lib' && \
                  cd .. && git clone -q whole ../project/copy";
    outside(&machine, script);
    let mut session = SandboxedSession::start(machine, &json!({"network": "off"}), &[]);
    let configs = |session: &SandboxedSession| fs::read_to_string(session.machine.path("project/copy/.git/config"));
    let before = configs(&session).unwrap();
    // The first update clones the submodule, the others find it.
    for _ in 0..2 {
        let printed = session.works("cd copy && git submodule update --init 2>&1 && git -C lib log -1 --format=%s");
        assert_eq!(printed.lines().last(), Some("lib"), "{printed}");
    }
    assert_eq!(configs(&session).unwrap(), before);
    assert!(session.questions().is_empty(), "a submodule names no program");
    // A later sandbox protects the config of the submodule, and git still updates it.
    let machine = session.end();
    let mut session = SandboxedSession::start(machine, &json!({"network": "off"}), &[]);
    let printed = session.works("cd copy && git submodule update --init 2>&1 && git -C lib log -1 --format=%s");
    assert_eq!(printed.lines().last(), Some("lib"), "{printed}");
    let config = "copy/.git/modules/lib/config";
    for attempt in [
        format!("git config -f {config} core.fsmonitor ./run"),
        format!("echo '[core] hooksPath = .' >> {config}"),
        format!("mv {config} moved"),
        "echo run > copy/.git/modules/lib/hooks/post-checkout".to_owned(),
        "git -C copy config core.sshCommand ./run".to_owned(),
    ] {
        let (result, _) = session.shell(&attempt);
        assert_ne!(structured(&result)["exit_code"], 0, "{attempt}: {result}");
    }
    let kept = fs::read_to_string(session.machine.path("project").join(config)).unwrap();
    assert!(kept.contains("worktree = ") && !kept.contains("fsmonitor") && !kept.contains("hooksPath"), "{kept}");
}

#[test]
fn a_file_that_is_replaced_outside_stays_protected_or_hidden() {
    if !needs_tool("git") {
        return;
    }
    let machine = machine();
    machine.write("home/.netrc", "SECRET");
    let mut session = SandboxedSession::start(machine, &json!({"network": "off"}), &[]);
    let attempts = "cat ~/.netrc; git config core.fsmonitor ./run; echo '[core]' >> .git/config";
    for _ in 0..2 {
        let (result, _) = session.shell(attempts);
        assert!(!result.to_string().contains("SECRET"), "{result}");
        let config = fs::read_to_string(session.machine.path("project/.git/config")).unwrap();
        assert!(!config.contains("fsmonitor") && config.matches("[core]").count() == 1, "{config}");
        // Both programs write a new file and rename it.
        let change = "git -C ../project config user.name Other && cp ../home/.netrc new && mv new ../home/.netrc";
        outside(&session.machine, change);
    }
    assert_eq!(session.works("git config user.name"), "Other\n", "inside has the new config");
}

#[test]
fn an_unsaved_tracking_branch_is_explained() {
    if !needs_tool("git") {
        return;
    }
    let machine = machine();
    // The bare repository is outside of the workspace, so the push goes to a copy inside.
    outside(&machine, "git clone -q --bare origin.git ../project/remote.git");
    outside(&machine, "git -C ../project remote add inside ./remote.git");
    let mut session = SandboxedSession::start(machine, &json!({"network": "off"}), &[]);
    let (result, _) = session.shell("git push -u inside HEAD:topic");
    assert!(result.to_string().contains("could not write config file"), "{result}");
    assert!(result.to_string().contains("the tracking branch were not saved"), "{result}");
    let (result, _) = session.shell("git push inside HEAD:topic");
    assert!(!result.to_string().contains("tracking branch"), "{result}");
    // The same in the background.
    let command = json!({"command": "git push -u inside HEAD:later", "timeout": 60, "background": true});
    let (result, _) = session.call("shell", &command);
    let id = structured(&result)["id"].clone();
    let mut heard = String::new();
    let mut is_running = true;
    while is_running {
        let (result, _) = session.call("shell_output", &json!({"id": id, "wait_seconds": 20}));
        heard.push_str(&result.to_string());
        is_running = structured(&result)["running"] == true;
    }
    assert!(heard.contains("the tracking branch were not saved"), "{heard}");
}
