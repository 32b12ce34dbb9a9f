//! `scripts/soak` for one minute: load, faults, kills and mutated lines, and then nothing leaked, lost or broken.

use std::process::Command;

use crate::support::{full_tests, repository, require_full_tests};

#[test]
#[expect(clippy::disallowed_methods, reason = "a script of this repository, which starts the program under test")]
fn one_minute_of_load_and_faults_leaves_nothing_behind() {
    if !full_tests() {
        return;
    }
    require_full_tests("python3");
    let mut command = Command::new(repository("scripts/soak"));
    command.args(["--minutes", "1", "--program", env!("CARGO_BIN_EXE_skein")]);
    let output = command.output().expect("python3 starts the script");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("| mutated lines |"), "the table is printed: {printed}");
}
