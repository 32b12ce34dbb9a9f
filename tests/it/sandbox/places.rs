//! The places in the source that start a program, and why each runs in a sandbox or not.

use std::collections::BTreeMap;

use crate::support::{files_below, read, repository};

/// Texts that start a program.
const STARTS: [&str; 7] = [
    "Command::new(",
    "ProcessGroup::spawn",
    "HelperProcess::spawn(",
    ".exec()",
    ".run(command)",
    "editor.run(",
    "run_program(",
];

/// The files with such a text, and the reason.
const PLACES: [(&str, &str); 26] = [
    ("src/process.rs", "starts every child; a launcher in `Launch` puts it into a sandbox"),
    ("src/process/helper.rs", "starts Skein's own program"),
    ("src/process/reaper.rs", "starts Skein's own program, which only ends processes"),
    ("src/sandbox/layer_probe.rs", "starts the sandbox process"),
    ("src/sandbox/setup/init.rs", "PID 1 of a sandbox starts the commands inside"),
    ("src/sandbox/setup/enter.rs", "a process that has entered a sandbox becomes the command"),
    ("src/sandbox/git/credential.rs", "the user's credential helper must run outside; each use asks"),
    ("src/sandbox/running_sandbox.rs", "commands, services and external agents with a profile, inside"),
    ("src/services/stdio.rs", "services, external agents and commands of recipes; inside if they have a profile"),
    ("src/services/hook_process.rs", "hooks, in the sandbox of their mode; without one after `--sandbox off`"),
    ("src/services/builtin/developer/shell.rs", "commands with `unsandboxed` or `--sandbox off`"),
    ("src/services/builtin/developer/terminal.rs", "terminals of the editor; the command enters the sandbox"),
    (
        "src/services/builtin/developer/client_shell.rs",
        "commands of a session with client files; `skein acp --connect` runs them inside",
    ),
    ("src/services/builtin/computercontroller/parser.rs", "parses documents with Skein's own program, inside"),
    (
        "src/services/builtin/computercontroller/script.rs",
        "scripts, and the shell that keeps one; as commands of `shell`",
    ),
    ("src/services/builtin/developer/fake_editor.rs", "a test"),
    ("src/process/program.rs", "a test"),
    ("src/external/process.rs", "a test"),
    ("src/services/builtin/computercontroller/browser/program.rs", "Chromium, inside a sandbox of its own"),
    (
        "src/worktree/git.rs",
        "git for worktrees of tasks, without programs that a repository names and without a network",
    ),
    ("src/lesson/check.rs", "checks of lessons, after consent; never in a remote session"),
    ("src/cli/open_browser.rs", "the user's browser, for a login and the console"),
    ("src/cli/apps/browser.rs", "the user's browser, for `skein apps open`"),
    ("src/session/shared_ports.rs", "passes a terminal command on to the attached editor"),
    ("src/external/client_methods.rs", "terminals that an external agent asks for, if the agent has no sandbox"),
    ("src/external/local.rs", "terminals that an external agent asks for, in the profile of the agent"),
];

/// Returns whether the line contains the text, not as the end of a longer name.
fn starts_program(line: &str, start: &str) -> bool {
    let is_whole = |at: usize| start.starts_with('.') || !line[..at].ends_with(char::is_alphanumeric);
    line.match_indices(start).any(|(at, _)| is_whole(at))
}

#[test]
fn every_place_that_starts_a_program_is_known() {
    let root = repository("");
    let mut found = BTreeMap::new();
    for file in files_below(&repository("src")) {
        let name = file.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        let is_test = name.ends_with("_tests.rs");
        if file.extension().is_none_or(|extension| extension != "rs") || is_test {
            continue;
        }
        let text = read(&file);
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let starts = code.filter(|line| STARTS.iter().any(|start| starts_program(line, start)));
        let count = starts.count();
        if count > 0 {
            found.insert(name, count);
        }
    }
    let known: Vec<&str> = PLACES.iter().map(|(file, _)| *file).collect();
    let unknown: Vec<_> = found.keys().filter(|name| !known.contains(&name.as_str())).collect();
    assert!(unknown.is_empty(), "add to PLACES why it is sandboxed or not: {unknown:?}");
    let gone: Vec<_> = known.iter().filter(|name| !found.contains_key(**name)).collect();
    assert!(gone.is_empty(), "starts nothing any more: {gone:?}");
}
