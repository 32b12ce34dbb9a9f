//! Everyday work inside a sandbox: version control, builds, processes, terminals and local servers.
//!
//! `USES` has 34. Seven more are in other files: cargo, npm and pip in `builds.rs`; git over https and ssh (through the
//! proxy command), signed commits and submodules in `git.rs`; a dev server for the user's browser in `ports.rs`.

use std::fs;
use std::path::Path;

use super::{Place, has_tool, text, users};
use crate::support::full_tests;

/// A use, the tool that it needs, and a script that must succeed and print the last line.
const USES: &[(&str, &str, &str, &str)] = &[
    ("write and read a file", "sh", "echo hello > a && cat a", "hello"),
    ("a pipe", "sh", "seq 1 100000 | sort -rn | head -1", "100000"),
    ("a background job", "sh", "sleep 0.1 & wait $! && echo waited", "waited"),
    ("a temporary file", "sh", "f=$(mktemp) && echo x > $f && cat $f && rm $f && echo removed", "removed"),
    ("links and renames", "sh", "mkdir a && mv a b && ln -s b c && touch b/f && ln b/f e && echo linked", "linked"),
    ("devices", "sh", "echo x > /dev/null && head -c 4 /dev/urandom | wc -c", "4"),
    ("the terminal device", "sh", "echo > /dev/tty 2>/dev/null; test -c /dev/tty && echo device", "device"),
    ("the number of cores", "sh", "nproc > /dev/null && echo counted", "counted"),
    ("process substitution", "bash", "bash -c 'cat <(echo substituted)'", "substituted"),
    ("job control", "bash", "set -m; sleep 5 & kill %1; wait; echo jobs", "jobs"),
    (
        "git: init and commit",
        "git",
        "git init -q . && git config --global --list; git commit -q --allow-empty -m a && git log --format=%s",
        "a",
    ),
    (
        "git: add and switch",
        "git",
        "git init -q . && touch f && git add -A && git commit -qm a && git switch -qc b && git branch --show-current",
        "b",
    ),
    (
        "git: rebase",
        "git",
        "git init -qb main . && git commit -q --allow-empty -m a && git switch -qc x && touch f && git add f && \
         git commit -qm b && git switch -q main && git commit -q --allow-empty -m c && git switch -q x && \
         git rebase -q main && git log --format=%s | tr '\\n' ' '",
        "b c a ",
    ),
    (
        "git: worktree",
        "git",
        "git init -q . && git commit -q --allow-empty -m a && git worktree add -q w && ls -A w && echo tree",
        "tree",
    ),
    (
        "git: stash",
        "git",
        "git init -q . && git commit -q --allow-empty -m a && touch f && git add f && git stash -q && git stash list | wc -l",
        "1",
    ),
    (
        "git: clone",
        "git",
        "git init -q a && cd a && git commit -q --allow-empty -m a && cd .. && git clone -q a b && echo cloned",
        "cloned",
    ),
    ("make", "make", "printf 'all: ; @echo made\\n' > Makefile && make -s", "made"),
    (
        "a C compiler",
        "gcc",
        "echo 'int main(void){return 0;}' > a.c && gcc a.c -o a && ./a && echo compiled",
        "compiled",
    ),
    (
        "a program with ASan and LeakSanitizer",
        "gcc",
        "echo 'int main(void){return 0;}' > a.c && gcc -fsanitize=address a.c -o a && ./a && echo sanitized",
        "sanitized",
    ),
    (
        "ASan reports an error",
        "gcc",
        "echo '#include <stdlib.h>\nint main(void){char *p = malloc(1); free(p); return *p;}' > a.c && \
         gcc -w -fsanitize=address a.c -o a && ./a 2>&1 | grep -o heap-use-after-free | head -1",
        "heap-use-after-free",
    ),
    (
        "gdb",
        "gdb",
        "gdb -q -batch -ex run -ex bt --args true 2>&1 | grep -o 'exited normally' | head -1",
        "exited normally",
    ),
    ("ptrace: strace", "strace", "strace -o trace true && test -s trace && echo traced", "traced"),
    (
        "python: a child process",
        "python3",
        "python3 -c 'import subprocess; print(subprocess.run([\"echo\", \"inner\"], capture_output=True, text=True).stdout, end=\"\")'",
        "inner",
    ),
    (
        "python: a pseudoterminal",
        "python3",
        "python3 -c 'import pty; pty.spawn([\"echo\", \"terminal\"])' | tr -d '\\r'",
        "terminal",
    ),
    (
        "python: a virtual environment",
        "python3",
        "python3 -m venv --without-pip v && v/bin/python -c 'print(1+1)'",
        "2",
    ),
    (
        "python: shared memory",
        "python3",
        "python3 -c 'import multiprocessing as m; print(sum(m.Pool(2).map(abs, [-1, -2])))'",
        "3",
    ),
    (
        "python: a thread",
        "python3",
        "python3 -c 'import ctypes, threading; t = threading.Thread(target=print, args=(\"thread\",)); t.start(); t.join()'",
        "thread",
    ),
    (
        "a Unix socket in the workspace",
        "python3",
        "python3 -c 'import socket as s, threading as t\nl = s.socket(s.AF_UNIX); l.bind(\"sock\"); l.listen()\n\
         t.Thread(target=lambda: l.accept()[0].send(b\"unix\")).start()\nc = s.socket(s.AF_UNIX); c.connect(\"sock\")\n\
         print(c.recv(9).decode())'",
        "unix",
    ),
    (
        "a dev server with curl",
        "curl",
        "echo page > index.html && python3 -m http.server 8123 --bind 127.0.0.1 2>/dev/null & \
         for i in $(seq 100); do \
         curl -sf http://127.0.0.1:8123/index.html && break; sleep 0.2; done",
        "page",
    ),
    ("network interfaces", "ip", "ip -o addr show lo | grep -c 'inet '", "1"),
    ("node", "node", "node -e 'console.log(require(\"os\").cpus().length > 0)'", "true"),
    (
        "node: a child process",
        "node",
        "node -e 'require(\"child_process\").exec(\"echo child\", (e, out) => process.stdout.write(out))'",
        "child",
    ),
    (
        "node: a server and its client",
        "node",
        "node -e 'const s = require(\"http\").createServer((q, r) => r.end(\"served\")).listen(0, () => \
         require(\"http\").get({port: s.address().port}, r => r.on(\"data\", d => { console.log(`${d}`); s.close(); })))'",
        "served",
    ),
    ("java", "java", "java -version 2>&1 | grep -ci 'version'", "1"),
];

#[test]
fn everyday_work_succeeds_inside() {
    if !full_tests() {
        return;
    }
    let mut problems = Vec::new();
    for user in users() {
        for (name, tool, script, expected) in USES {
            if !has_tool(tool) {
                continue;
            }
            let place = Place::new(user);
            place.write("home/.gitconfig", "[user]\n\tname = Test\n\temail = test@example.com\n");
            let output = place.shell(&[], script);
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            if printed.lines().last() != Some(expected) {
                problems.push(format!("{name}, as {user:?}: {script}\n  {}", super::text(&output)));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert_eq!(USES.len(), 34, "the comment above has another number");
}

#[test]
fn hidden_paths_can_be_opened_one_by_one() {
    let place = Place::new(users()[0]);
    place.write("home/.ssh/known_hosts", "host");
    place.write("home/.ssh/config", "config");
    place.write("home/.ssh/id_rsa", "SECRET");
    assert_eq!(place.works(&[], "ls -A ~/.ssh && cat ~/.ssh/known_hosts"), "known_hosts\nhost");
    assert_eq!(
        place.works(&["--read", "~/.ssh/config"], "ls -A ~/.ssh && cat ~/.ssh/config"),
        "config\nknown_hosts\nconfig"
    );
    assert!(!place.shell(&["--read", "~/.ssh/config"], "cat ~/.ssh/id_rsa").status.success());
}

#[test]
fn a_listed_address_is_reached_and_others_are_not() {
    use std::io::Write as _;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|mut peer| {
            drop(peer.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nHELLO"));
        });
    });
    if !has_tool("curl") {
        return;
    }
    for user in users() {
        let place = Place::new(user);
        // Loopback addresses are not sent to the proxy: the relay listens inside.
        let script = format!("curl -s --max-time 30 http://{address}/");
        assert_eq!(place.works(&["--network", &address], &script), "HELLO");
        assert!(!place.shell(&["--network", "off"], &script).status.success());
        let script = "curl -s --max-time 30 -o /dev/null -w '%{http_code}' http://other.example.com/";
        let output = place.shell(&["--network", "listed.example.com"], script);
        let printed = super::text(&output);
        assert!(printed.contains("403"), "{printed}");
        assert!(printed.contains("refused by the sandbox: other.example.com:80"), "{printed}");
    }
}

#[test]
fn a_named_state_folder_is_open_although_it_is_hidden() {
    for layers in ["", "no-namespaces,preferred"] {
        let place = Place::new(users()[0]);
        place.write("home/.codex/auth", "SECRET");
        place.write("home/.claude/auth", "SECRET");
        place.write("home/.claude/projects/a", "mine");
        place.write("project/.codex/config", "project");
        let script = "cat ~/.codex/auth; echo new > ~/.codex/log; echo more > ~/.claude/projects/b; \
            cat ~/.claude/projects/a; cat ~/.claude/auth; echo changed > .codex/config; cat .codex/config";
        let flags = ["--write", "~/.codex/", "--write", "~/.claude/projects"];
        let mut args = flags.to_vec();
        args.extend(["--", "sh", "-c", script]);
        let output = place.sandbox(layers, &args).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(place.read("home/.codex/log"), "new\n", "{layers}: {}", super::text(&output));
        assert_eq!(place.read("home/.claude/projects/b"), "more\n", "{layers}");
        if layers.is_empty() {
            assert_eq!(printed, "SECRETmineproject", "a protected path of the project stays: {}", super::text(&output));
        } else {
            assert!(printed.starts_with("SECRETmine") && printed.matches("SECRET").count() == 1, "{printed}");
        }
    }
}

#[test]
fn a_new_protected_path_goes_to_quarantine() {
    for user in users() {
        let place = Place::new(user);
        let script = "mkdir .vscode && echo kept > .vscode/tasks.json; chmod 555 .vscode; echo 1 > file";
        let output = place.shell(&[], script);
        let shown = text(&output);
        assert!(output.status.success(), "{shown}");
        assert!(shown.contains("the command created `.vscode`, a protected path"), "{shown}");
        assert!(!place.path("project/.vscode").exists() && place.path("project/file").exists());
        let moved = shown.split("It is now ").nth(1).unwrap().lines().next().unwrap();
        assert_eq!(fs::read_to_string(Path::new(moved).join("tasks.json")).unwrap(), "kept\n");
    }
}

#[test]
fn a_folder_of_write_keeps_no_new_protected_path() {
    for user in users() {
        let place = Place::new(user);
        place.write("home/other/file", "");
        let script = "mkdir ~/other/.vscode && echo 1 > ~/other/file";
        let shown = text(&place.shell(&["--write", "~/other"], script));
        assert!(shown.contains("the command created `.vscode`, a protected path"), "{shown}");
        assert!(!place.path("home/other/.vscode").exists() && place.read("home/other/file") == "1\n");
    }
}

/// The maker of a project makes its links.
#[test]
fn a_link_of_the_project_opens_no_hidden_path() {
    for layers in ["", "no-namespaces,preferred"] {
        let place = Place::new(users()[0]);
        place.write("home/.ssh/id_rsa", "SECRET");
        for link in [".git", "assets"] {
            std::os::unix::fs::symlink("../home/.ssh", place.path("project").join(link)).unwrap();
        }
        let script = "cat ~/.ssh/id_rsa assets/id_rsa .git/id_rsa; echo evil > ~/.ssh/authorized_keys";
        let output = place.sandbox(layers, &["--read", "assets", "--", "sh", "-c", script]).output().unwrap();
        let shown = text(&output);
        assert!(!shown.contains("SECRET"), "{layers}: {shown}");
        assert!(!place.path("home/.ssh/authorized_keys").exists(), "{layers}: {shown}");
        assert!(shown.contains("`assets` in `read` leads out of the project and opens nothing"), "{layers}: {shown}");
    }
}

#[test]
fn a_write_entry_creates_nothing_outside_the_project() {
    let place = Place::new(users()[0]);
    place.write("home/.config/file", "");
    std::os::unix::fs::symlink("../home/.config", place.path("project/out")).unwrap();
    place.works(&["--write", "out/new/", "--write", "../home/new/"], "true");
    assert!(!place.path("home/.config/new").exists() && !place.path("home/new").exists());
}
