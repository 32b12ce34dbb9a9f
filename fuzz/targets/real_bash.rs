//! Runs command lines in bash, with programs that only write down that they ran.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAMS: [&str; 15] =
    ["safe", "ok", "evil", "if", "then", "do", "sudo", "env", "xargs", "one", "sh", "X=1", "{safe,one}", "safex", "fd"];

/// Makes a folder that is the whole PATH: each program writes its name and its arguments to a file. `0` is a folder that
/// `printf %n PATH` leads to, with a `safe` of another name in the log.
pub(super) fn programs(folder: &Path) {
    std::fs::create_dir_all(folder.join("bin")).expect("a folder");
    std::fs::create_dir_all(folder.join("work/0")).expect("a folder");
    let log = folder.join("log");
    let script = |name: &str| {
        format!(
            "#!/bin/bash -p\nline={name}\nfor a in \"$@\"; do line+=\"[${{a@Q}}]\"; done\necho \"$line\" >> '{}'\n",
            log.display()
        )
    };
    let program = |file: PathBuf, script: String| {
        std::fs::write(&file, script).expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("executable");
    };
    for name in PROGRAMS {
        program(folder.join("bin").join(name), script("\"${0##*/}\""));
    }
    for name in ["safe", "ok"] {
        program(folder.join("work/0").join(name), script(&format!("planted-{name}")));
    }
    for file in ["evil", "one", "-x", "a b"] {
        std::fs::write(folder.join("work").join(file), "evil\n").expect("written");
    }
}

/// Returns the programs that ran, and the files that appeared.
#[expect(clippy::disallowed_methods, reason = "bash is the judge of what a command line means")]
pub(super) fn really_ran(folder: &Path, command: &str) -> Vec<String> {
    let log = folder.join("log");
    std::fs::write(&log, "").expect("written");
    Command::new("/usr/bin/timeout")
        .args(["5", "/bin/bash", "-c", command])
        .current_dir(folder.join("work"))
        .env_clear()
        .env("PATH", folder.join("bin"))
        .env("x", "evil; evil")
        .env("y", "a[$(evil)]")
        .env("e", "evil")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("bash starts");
    let mut ran: Vec<_> = std::fs::read_to_string(&log).expect("a log").lines().map(str::to_owned).collect();
    for entry in std::fs::read_dir(folder.join("work")).expect("a folder") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        if !["evil", "one", "-x", "a b", "0"].contains(&name.as_str()) {
            ran.push(format!("wrote {name}"));
        }
    }
    ran
}

/// Returns whether a program that ran is one that the rules `safe`, `safe one` and `ok *` name.
pub(super) fn is_named(line: &str) -> bool {
    line == "safe" || line == "safe['one']" || line == "ok" || line.starts_with("ok[")
}
