//! Calls that only Linux has are behind `cfg`, so that the rest builds on macOS and other Unix systems.

use crate::support::{files_below, read, repository};

/// Parts that have a `cfg` for Linux where another file declares them. This file has the names as text.
const LINUX_PARTS: [&str; 10] = [
    "src/cli/attention/desktop.rs",
    "src/cli/keys/keyring/secret_service.rs",
    "src/process/proc_files.rs",
    "src/sandbox/sandbox_process/single.rs",
    "src/sandbox/setup.rs",
    "src/sandbox/setup/",
    "src/screen/labels/at_spi.rs",
    "tests/it/portable.rs",
    "tests/it/sandbox.rs",
    "tests/it/sandbox/",
];
/// Names in `rustix`, `nix`, `libc` and the standard library that macOS does not have, and crates for Linux.
const LINUX_NAMES: [&str; 39] = [
    "AtFlags::EMPTY_PATH",
    "CMSG_CLOEXEC",
    "ClockId::Boottime",
    "MemfdFlags",
    "OFlags::PATH",
    "OFlags::TMPFILE",
    "PidfdFlags",
    "ResolveFlags",
    "SendFlags::NOSIGNAL",
    "SocketAddrExt",
    "SocketFlags",
    "TimerfdFlags",
    "UCred",
    "accept_with",
    "copy_file_range",
    "eventfd(",
    "from_abstract_name",
    "gettid",
    "inotify::",
    "landlock::",
    "linux_ext",
    "mallopt",
    "malloc_trim",
    "memfd_create",
    "mkfifoat",
    "mknodat",
    "openat2(",
    "pidfd_open",
    "pipe_with",
    "rustix::mount",
    "rustix::thread",
    "seccompiler::",
    "set_child_subreaper",
    "set_dumpable_behavior",
    "set_parent_process_death_signal",
    "signalfd",
    "socket_peercred",
    "std::os::linux",
    "zbus::",
];
/// Files that name `/proc` in rules for paths, and those that use it on Linux only. All others use `process::read_proc`.
const PROC_FILES: [&str; 7] = [
    "src/broker/files.rs",
    "src/cli/private_files.rs",
    "src/process/proc_files.rs",
    "src/sandbox/expand/grants.rs",
    "src/sandbox/path_refusals.rs",
    "src/sandbox/quarantine.rs",
    "src/sandbox/setup",
];
/// How many lines above a call its `cfg` may be.
const REACH: usize = 8;

/// Returns the lines with a name of [`LINUX_NAMES`] that no `cfg` for Linux is above.
fn unguarded_lines(code: &str) -> Vec<&str> {
    let lines: Vec<_> = code.lines().collect();
    let is_guard =
        |line: &&str| line.contains("cfg(") && line.contains("target_os = \"linux\"") && !line.contains("not(");
    let uses_linux =
        |line: &str| !line.trim_start().starts_with("//") && LINUX_NAMES.iter().any(|name| line.contains(name));
    let numbered = lines.iter().enumerate().filter(|(_, line)| uses_linux(line));
    let unguarded = numbered.filter(|(index, _)| !lines[index.saturating_sub(REACH)..*index].iter().any(is_guard));
    unguarded.map(|(_, line)| line.trim()).collect()
}

/// Returns the source files of the program, its tests and its benchmarks, except those that start with one of `without`.
fn source_files(without: &[&str]) -> Vec<(String, String)> {
    let files = ["benches", "src", "tests"].into_iter().flat_map(|folder| files_below(&repository(folder)));
    let named = files.map(|file| {
        let path = file.strip_prefix(repository("")).expect("in the repository").to_string_lossy().into_owned();
        (path, file)
    });
    let wanted = named.filter(|(path, _)| path.ends_with(".rs") && !without.iter().any(|part| path.starts_with(part)));
    wanted.map(|(path, file)| (path, read(file))).collect()
}

#[test]
fn calls_that_only_linux_has_are_behind_cfg() {
    for (path, text) in source_files(&LINUX_PARTS) {
        assert_eq!(unguarded_lines(&text), Vec::<&str>::new(), "{path} does not build on macOS");
    }
}

#[test]
fn only_one_module_reads_proc() {
    for (path, text) in source_files(&PROC_FILES).iter().filter(|(path, _)| path.starts_with("src/")) {
        let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
        assert!(path.ends_with("tests.rs") || path.ends_with("testing.rs") || !code.contains("\"/proc"), "{path}");
    }
}

#[test]
fn a_call_without_cfg_is_found() {
    let guarded = "#[cfg(target_os = \"linux\")]\nfn one() {\n    openat2()\n}\n";
    assert_eq!(unguarded_lines(guarded), Vec::<&str>::new());
    let call = "fn one() {\n    openat2()\n}\n";
    assert_eq!(unguarded_lines(call), ["openat2()"]);
    assert_eq!(unguarded_lines(&format!("#[cfg(not(target_os = \"linux\"))]\n{call}")), ["openat2()"]);
}

#[test]
fn linux_parts_and_their_crates_are_only_for_linux() {
    for (file, part, replacement) in [
        ("src/cli/attention.rs", "desktop", "attention/no_desktop.rs"),
        ("src/cli/keys/keyring.rs", "secret_service", "keyring/no_secret_service.rs"),
        ("src/process.rs", "proc_files", "process/no_proc_files.rs"),
        ("src/sandbox.rs", "setup", "sandbox/other_system.rs"),
        ("src/screen/labels.rs", "at_spi", "labels/no_at_spi.rs"),
    ] {
        let text = read(repository(file));
        assert!(text.contains(&format!("#[cfg(target_os = \"linux\")]\nmod {part};\n")), "{file}");
        let other = format!("#[cfg(not(target_os = \"linux\"))]\n#[path = \"{replacement}\"]\nmod {part};\n");
        assert!(text.contains(&other), "{file}");
    }
    let text = read(repository("src/sandbox/sandbox_process.rs"));
    assert!(text.contains("#[cfg(not(target_os = \"linux\"))]\nmod no_single;\n"));
    assert!(text.contains("#[cfg(target_os = \"linux\")]\nmod single;\n"));
    let tests = read(repository("tests/it/main.rs"));
    for part in ["hardening", "sandbox", "sandboxed_agents", "sandboxed_services", "shell_sandbox"] {
        assert!(tests.contains(&format!("#[cfg(target_os = \"linux\")]\nmod {part};\n")), "{part}");
    }
    let package = read(repository("Cargo.toml"));
    let (everywhere, linux) =
        package.split_once("[target.'cfg(target_os = \"linux\")'.dependencies]").expect("a section");
    for name in ["landlock", "seccompiler", "zbus"] {
        assert!(!everywhere.contains(&format!("\n{name} = ")) && linux.contains(&format!("\n{name} = ")), "{name}");
    }
}

#[test]
fn the_workflow_builds_and_tests_on_macos() {
    let workflow = read(repository(".github/workflows/ci.yml"));
    let quick = workflow.split("\n  quick:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a job");
    assert!(quick.contains("macos-latest") && quick.contains("cargo +stable test --locked"), "{quick}");
}
