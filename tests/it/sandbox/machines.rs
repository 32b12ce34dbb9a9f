//! Each row of the table of machines in docs/sandbox.md, as root and as an ordinary user.

use super::{Place, TestUser, has_tool, text, users};

struct Row {
    layers: &'static str,
    flags: &'static [&'static str],
    /// Whether `required` holds.
    holds: bool,
    /// With a protected path in the project.
    protected: bool,
}

const WORKSPACE: &[&str] = &["--files", "workspace"];
const READ_ONLY: &[&str] = &["--files", "read-only"];
const NONE: &[&str] = &["--files", "none", "--read", "."];
const LIST: &[&str] = &["--files", "read-only", "--network", "example.com"];

const ROWS: &[Row] = &[
    // User namespaces, and Landlock of every age.
    Row { layers: "", flags: WORKSPACE, holds: true, protected: true },
    Row { layers: "landlock=6", flags: WORKSPACE, holds: true, protected: true },
    Row { layers: "landlock=4", flags: WORKSPACE, holds: true, protected: true },
    Row { layers: "landlock=3", flags: WORKSPACE, holds: true, protected: true },
    Row { layers: "landlock=1", flags: WORKSPACE, holds: true, protected: true },
    Row { layers: "landlock=0", flags: WORKSPACE, holds: true, protected: true },
    Row { layers: "landlock=0", flags: NONE, holds: true, protected: true },
    // Docker: the old `/proc` stays. Without Landlock, other processes would be visible.
    Row { layers: "no-new-proc", flags: WORKSPACE, holds: true, protected: true },
    Row { layers: "no-new-proc,landlock=0", flags: WORKSPACE, holds: false, protected: true },
    Row { layers: "no-overlay", flags: WORKSPACE, holds: true, protected: true },
    // No user namespaces.
    Row { layers: "no-namespaces", flags: READ_ONLY, holds: true, protected: true },
    Row { layers: "no-namespaces", flags: NONE, holds: true, protected: true },
    Row { layers: "no-namespaces", flags: WORKSPACE, holds: true, protected: false },
    Row { layers: "no-namespaces", flags: WORKSPACE, holds: false, protected: true },
    Row { layers: "no-namespaces", flags: LIST, holds: false, protected: false },
    Row { layers: "no-namespaces,landlock=6", flags: READ_ONLY, holds: true, protected: true },
    Row { layers: "no-namespaces,landlock=4", flags: READ_ONLY, holds: true, protected: true },
    Row { layers: "no-namespaces,landlock=3", flags: READ_ONLY, holds: true, protected: true },
    // Version 1 does not stop truncation.
    Row { layers: "no-namespaces,landlock=1", flags: READ_ONLY, holds: false, protected: true },
    Row { layers: "no-namespaces,landlock=0", flags: READ_ONLY, holds: false, protected: true },
];

#[test]
fn every_machine_holds_or_refuses() {
    for user in users() {
        for row in ROWS {
            let place = prepare(user, row.protected);
            let shown = format!("{} {:?} as {user:?}", row.layers, row.flags);
            let mut args = row.flags.to_vec();
            args.extend(["--", "sh", "-c", "cat ../home/.ssh/id_rsa; echo x > ../outside/file; echo ran"]);
            let output = place.sandbox(row.layers, &args).output().unwrap();
            let printed = text(&output);
            assert_eq!(printed.contains("ran\n"), row.holds, "{shown}: {printed}");
            assert_eq!(output.status.code(), Some(if row.holds { 0 } else { 125 }), "{shown}: {printed}");
            assert!(!printed.contains("SECRET"), "{shown}: {printed}");
            assert_eq!(place.read("outside/file"), "text", "{shown}: {printed}");
            if !row.holds {
                assert!(printed.contains("the sandbox cannot enforce `") && printed.contains(": no "), "{printed}");
                assert!(printed.contains("help: ") && printed.contains("enforce: preferred"), "{printed}");
            }
            let mut args = row.flags.to_vec();
            args.push("--explain");
            let explained = text(&place.sandbox(row.layers, &args).output().unwrap());
            let verdict = if row.holds { "`required` holds" } else { "`required` refuses" };
            assert!(explained.contains(verdict), "{shown}: {explained}");
        }
    }
}

fn prepare(user: TestUser, has_protected: bool) -> Place {
    let place = Place::new(user);
    place.write("home/.ssh/id_rsa", "SECRET");
    place.write("outside/file", "text");
    if has_protected {
        place.write("project/.mcp.json", "{}");
    }
    place
}

#[test]
fn exit_codes_are_those_of_the_command() {
    for user in users() {
        let place = Place::new(user);
        let code = |args: &[&str]| place.sandbox("", args).output().unwrap().status.code();
        assert_eq!(code(&["--", "true"]), Some(0));
        assert_eq!(code(&["--", "sh", "-c", "exit 42"]), Some(42));
        assert_eq!(code(&["--", "sh", "-c", "kill -TERM $$"]), Some(128 + 15));
        assert_eq!(code(&["--", "no-such-program"]), Some(127));
        assert_eq!(code(&["--", "/etc/passwd"]), Some(126));
        assert_eq!(code(&["--network", "0.0.0.0:0", "--", "true"]), Some(125));
    }
}

#[test]
fn none_shows_only_the_system() {
    for user in users() {
        let place = Place::new(user);
        place.write("outside/file", "SECRET");
        let output =
            place.sandbox("", &["--files", "none", "--read", ".", "--", "sh", "-c", "ls /; cat ../outside/file"]);
        let printed = text(&{ output }.output().unwrap());
        assert!(printed.contains("usr\n"), "{printed}");
        assert!(!printed.contains("SECRET") && !printed.contains("home\n"), "{printed}");
    }
}

/// With a network, the first process is Skein's program, started again; without one, it is a copy of `skein sandbox`.
#[test]
fn the_first_process_shows_nothing_of_skein() {
    for user in users() {
        let place = Place::new(user);
        for network in ["off", "example.com"] {
            for file in ["environ", "maps", "fd/0", "cwd/x", "root/x", "mem"] {
                let output = place.shell(&["--network", network], &format!("cat /proc/1/{file}"));
                let printed = text(&output);
                assert!(!output.status.success() && printed.contains("Permission denied"), "{user:?}: {printed}");
                assert!(!printed.contains("SECRET"), "{user:?}: {printed}");
            }
        }
    }
}

#[test]
fn home_is_never_a_workspace() {
    for user in users() {
        let place = Place::new(user);
        let mut command = place.sandbox("", &["--", "touch", "new"]);
        let printed = text(&command.env("HOME", place.path("project")).output().unwrap());
        assert!(printed.contains("contains your home folder"), "{printed}");
        assert!(!place.path("project/new").exists(), "{printed}");
    }
}

#[test]
fn caches_of_the_user_do_not_change() {
    for user in users() {
        let place = Place::new(user);
        place.write("home/.cargo/config.toml", "old");
        place.write("home/.cache/kept", "kept");
        let script =
            "cat ~/.cache/kept && echo new > ~/.cargo/config.toml && echo new > ~/.cache/made && rm ~/.cache/kept";
        assert_eq!(place.works(&[], script), "kept");
        assert_eq!(place.read("home/.cargo/config.toml"), "old");
        assert_eq!(place.read("home/.cache/kept"), "kept");
        assert!(!place.path("home/.cache/made").exists());
        // The next sandbox of the project has the changes.
        assert_eq!(place.works(&[], "cat ~/.cargo/config.toml ~/.cache/made; test ! -e ~/.cache/kept"), "new\nnew\n");
    }
}

#[test]
fn settings_are_shown_without_credentials() {
    let place = Place::new(users()[0]);
    place.write("home/.npmrc", "registry=https://npm.example.com/\n//npm.example.com/:_authToken=SECRET\n");
    place.write("home/.docker/config.json", r#"{"auths":{"x":{"auth":"SECRET"}},"proxies":{"default":{}}}"#);
    let printed = place.works(&[], "cat ~/.npmrc ~/.docker/config.json");
    assert_eq!(printed, "registry=https://npm.example.com/\n{\"proxies\":{\"default\":{}}}");
}

#[test]
fn write_paths_open_only_what_they_name() {
    let place = Place::new(users()[0]);
    place.write("project/.gitignore", "/build/\n*.log\n.vscode/\n");
    place.write("project/.vscode/tasks.json", "{}");
    place.write("project/src/main.rs", "");
    place.write("project/a.log", "");
    let flags = ["--files", "read-only", "--write", "git-ignored", "--write", "dist/", "--write", "tests"];
    place.works(&flags, "touch build/x dist/y && echo z > a.log");
    for path in ["src/main.rs", "new", ".vscode/tasks.json", "tests/new"] {
        let output = place.shell(&flags, &format!("echo x > {path}"));
        assert!(!output.status.success(), "{path}");
    }
    std::os::unix::fs::symlink("../outside", place.path("project/link")).unwrap();
    let output = place.shell(&["--files", "read-only", "--write", "link"], "touch link/x");
    assert!(text(&output).contains("leads out of the project"), "{}", text(&output));
    assert!(!place.path("outside/x").exists());
}

/// What a machine lacks, refused by a seccomp filter, and what `required` then accepts: a workspace, a workspace with a
/// protected path, read-only files, and a list of hosts.
const REFUSED_BY_KERNEL: &[(&str, [bool; 4])] = &[
    ("landlock", [true, true, true, true]),
    ("user-namespaces", [true, false, true, false]),
    ("landlock,user-namespaces", [false, false, false, false]),
];

/// Skein finds out by itself what the machine lacks.
#[test]
fn a_kernel_that_refuses_a_layer_is_found_out() {
    if !has_tool("python3") {
        return;
    }
    let wrapper = crate::support::repository("tests/it/sandbox/without.py");
    for user in users() {
        for (missing, holds) in REFUSED_BY_KERNEL {
            let cases = [(WORKSPACE, false), (WORKSPACE, true), (READ_ONLY, true), (LIST, false)];
            for ((flags, protected), holds) in cases.into_iter().zip(holds) {
                let place = prepare(user, protected);
                std::fs::copy(&wrapper, place.path("without.py")).unwrap();
                let script = place.path("without.py");
                let mut args = vec![script.to_str().unwrap(), missing, env!("CARGO_BIN_EXE_skein"), "sandbox"];
                args.extend(flags);
                args.extend(["--", "sh", "-c", "cat ../home/.ssh/id_rsa; echo x > ../outside/file; echo ran"]);
                let output = place.program("/usr/bin/python3", &args).output().unwrap();
                let (printed, shown) = (text(&output), format!("{missing} {flags:?} as {user:?}"));
                assert_eq!(output.status.code(), Some(if *holds { 0 } else { 125 }), "{shown}: {printed}");
                assert_eq!(printed.contains("ran\n"), *holds, "{shown}: {printed}");
                assert!(!printed.contains("SECRET"), "{shown}: {printed}");
                assert_eq!(place.read("outside/file"), "text", "{shown}: {printed}");
            }
        }
    }
}
