//! Reads environment variables, and finds programs on the PATH.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Returns the variable's value. An empty variable counts as unset.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the address of the session's D-Bus. Tries no other address: a program started without a session has no bus.
#[cfg(target_os = "linux")]
pub(super) fn session_bus() -> Option<String> {
    variable("DBUS_SESSION_BUS_ADDRESS").or_else(|| {
        let bus = Path::new(&variable("XDG_RUNTIME_DIR")?).join("bus");
        // A relative path would be in a folder of the project.
        (bus.is_absolute() && bus.exists()).then(|| format!("unix:path={}", bus.display()))
    })
}

/// Returns the program's file in a folder of the PATH. `None` if there is none.
pub(super) fn find_in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_executable(file))
}

pub(super) fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
