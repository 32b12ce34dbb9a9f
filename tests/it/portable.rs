//! Calls that only Linux has are behind `cfg`, so that the rest builds on macOS and other Unix systems.

use crate::support::{files_below, read, repository};

/// Parts that `src/sandbox.rs` and `src/sandbox/sandbox_process.rs` replace on other systems.
const LINUX_PARTS: [&str; 3] = ["sandbox/setup.rs", "sandbox/setup/", "sandbox/sandbox_process/single.rs"];
/// Names in `rustix`, `nix`, `libc` and the standard library that macOS does not have, and crates for Linux.
const LINUX_NAMES: [&str; 18] = [
    "CMSG_CLOEXEC",
    "OFlags::PATH",
    "landlock::",
    "malloc_trim",
    "memfd_create",
    "openat2",
    "pidfd_open",
    "pipe_with",
    "renameat_with",
    "rustix::mount",
    "rustix::thread",
    "seccompiler::",
    "set_child_subreaper",
    "set_dumpable_behavior",
    "set_parent_process_death_signal",
    "signalfd",
    "socket_peercred",
    "std::os::linux",
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

#[test]
fn calls_that_only_linux_has_are_behind_cfg() {
    let source = repository("src");
    for file in files_below(&source) {
        let path = file.strip_prefix(&source).expect("below src").to_string_lossy().into_owned();
        if !path.ends_with(".rs") || path.ends_with("tests.rs") || LINUX_PARTS.iter().any(|part| path.starts_with(part))
        {
            continue;
        }
        let text = read(&file);
        let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
        assert_eq!(unguarded_lines(code), Vec::<&str>::new(), "src/{path} does not build on macOS");
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
        ("src/sandbox.rs", "setup", "#[path = \"sandbox/other_system.rs\"]\nmod setup;"),
        ("src/sandbox/sandbox_process.rs", "single", "mod no_single;"),
    ] {
        let text = read(repository(file));
        assert!(text.contains(&format!("#[cfg(target_os = \"linux\")]\nmod {part};\n")), "{file}");
        assert!(text.contains(&format!("#[cfg(not(target_os = \"linux\"))]\n{replacement}\n")), "{file}");
    }
    let package = read(repository("Cargo.toml"));
    let (everywhere, linux) =
        package.split_once("[target.'cfg(target_os = \"linux\")'.dependencies]").expect("a section");
    for name in ["landlock", "seccompiler"] {
        assert!(!everywhere.contains(&format!("\n{name} = ")) && linux.contains(&format!("\n{name} = ")), "{name}");
    }
}

#[test]
fn the_workflow_builds_and_tests_on_macos() {
    let workflow = read(repository(".github/workflows/ci.yml"));
    let quick = workflow.split("\n  quick:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a job");
    assert!(quick.contains("macos-latest") && quick.contains("cargo +stable test --locked"), "{quick}");
}
