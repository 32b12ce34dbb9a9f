//! Opens a page in the user's browser.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;

use super::environment::{find_in_path, variable};
use super::folders::Folders;
use crate::process::minimal_environment;

/// Opens a page in the user's browser. `None` if there is no screen or no program for it.
#[expect(clippy::disallowed_methods, reason = "the user's browser outlives this command")]
pub(super) fn open_browser(url: &str, folders: &Folders) -> Option<()> {
    let is_mac = cfg!(target_os = "macos");
    let has_screen = is_mac || variable("DISPLAY").is_some() || variable("WAYLAND_DISPLAY").is_some();
    let program = find_in_path(if is_mac { "open" } else { "xdg-open" }).filter(|_| has_screen)?;
    // The browser gets no key from the environment.
    let mut environment = minimal_environment(folders.environment());
    environment.extend(folders.environment().filter(|(name, _)| is_of_desktop(name)));
    let mut command = std::process::Command::new(program);
    command.arg(url).env_clear().envs(environment).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.process_group(0).spawn().ok()?;
    drop(std::thread::spawn(move || drop(child.wait())));
    Some(())
}

/// Returns whether programs of the desktop need this variable.
fn is_of_desktop(name: &OsStr) -> bool {
    const NAMES: [&str; 6] =
        ["BROWSER", "DBUS_SESSION_BUS_ADDRESS", "DESKTOP_SESSION", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"];
    name.to_str().is_some_and(|name| NAMES.contains(&name) || name.starts_with("XDG_") || name.starts_with("KDE_"))
}
