//! The two tiers of tests. `cargo test` needs a Rust toolchain and nothing else. Tests that need another program, such
//! as node, Python, tmux, Chromium or a keyring, run with `SKEIN_FULL_TESTS=1`, which `scripts/test` sets.

use std::io::Write as _;

/// Returns whether the running test may start other programs. If not, prints the one line that says so.
///
/// A test that needs a peer begins with `if !full_tests() { return; }`.
pub(crate) fn full_tests() -> bool {
    let full = are_enabled();
    if !full {
        let test = std::thread::current();
        let line = format!("skipped: needs SKEIN_FULL_TESTS=1 ({})\n", test.name().unwrap_or("unknown"));
        // The test harness hides what `eprintln!` writes in a test that passes.
        std::io::stderr().write_all(line.as_bytes()).expect("stderr");
    }
    full
}

/// Fails a test that starts a peer although it has not asked [`full_tests`].
pub(crate) fn require_full_tests(peer: &str) {
    assert!(are_enabled(), "{peer} needs SKEIN_FULL_TESTS=1: begin the test with `if !full_tests() {{ return; }}`");
}

fn are_enabled() -> bool {
    std::env::var_os("SKEIN_FULL_TESTS").is_some_and(|value| value == "1")
}
