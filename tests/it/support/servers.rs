//! Finds the test servers of `tests/servers`, which cargo builds as examples. `cargo test` builds them first;
//! `cargo test --test it` does not, so a server that is missing or older than its source is built here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use super::{files_below, repository};

/// The program of the MCP server for tests.
pub(crate) fn mcp_echo() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| find("skein-mcp-echo"))
}

/// The program of the ACP agent for tests.
pub(crate) fn acp_echo() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| find("skein-acp-echo"))
}

fn find(name: &str) -> String {
    // The test itself is PROFILE_FOLDER/deps/it-HASH.
    let test = std::env::current_exe().expect("the path of this test");
    let folder = test.ancestors().nth(2).expect("the folder of the build profile");
    let program = folder.join("examples").join(name);
    if modified(&program).is_none_or(|built| built < newest_source(name)) {
        build(name, folder);
    }
    assert!(program.exists(), "the test server {} is missing: run `cargo build --examples`", program.display());
    program.to_string_lossy().into_owned()
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// When the source of a server was last changed: `tests/servers/mcp_echo.rs` and `tests/servers/mcp_echo/`.
fn newest_source(name: &str) -> SystemTime {
    let source = repository("tests/servers").join(name.trim_start_matches("skein-").replace('-', "_"));
    let files = files_below(&source).into_iter().chain([source.with_extension("rs")]);
    files.filter_map(|file| modified(&file)).max().expect("the source of a test server")
}

#[expect(clippy::disallowed_methods, reason = "cargo, which builds a server for the tests")]
fn build(name: &str, folder: &Path) {
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let target: PathBuf = folder.parent().expect("the target folder").to_owned();
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--locked", "--quiet", "--example", name, "--profile", profile]);
    command.arg("--target-dir").arg(target).current_dir(repository(""));
    let output = command.output().expect("cargo starts");
    assert!(
        output.status.success(),
        "the test server {name} cannot be built; try `cargo build --examples`:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
