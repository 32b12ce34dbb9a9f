//! Opens a page in the user's browser.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;

use tempfile::TempPath;

use super::environment::{find_in_path, variable};
use super::folders::Folders;
use super::private_files;
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

/// Opens a page whose address contains a secret. Other users of the machine can see the arguments of programs, so the
/// browser gets a file that only this user can read, and that leads to the page. The file is removed when the returned
/// path is dropped. `None` if there is no screen, no program for it, or no place for the file.
pub(super) fn open_secret_page(url: &str, folders: &Folders) -> Option<TempPath> {
    let folder = folders.state.join("run");
    private_files::make_folder(&folder).ok()?;
    // The system lets only the user read a temporary file.
    let mut file = tempfile::Builder::new().prefix("console-").suffix(".html").tempfile_in(&folder).ok()?;
    file.write_all(redirect(url).as_bytes()).ok()?;
    let path = file.into_temp_path();
    open_browser(path.to_str()?, folders)?;
    Some(path)
}

/// Returns a page that leads to another one.
fn redirect(url: &str) -> String {
    let url = url.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Skein</title>\n\
         <meta http-equiv=\"refresh\" content=\"0;url={url}\"></head>\n\
         <body><p><a href=\"{url}\">Open the console</a></p></body></html>\n"
    )
}

/// Returns whether programs of the desktop need this variable.
fn is_of_desktop(name: &OsStr) -> bool {
    const NAMES: [&str; 6] =
        ["BROWSER", "DBUS_SESSION_BUS_ADDRESS", "DESKTOP_SESSION", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"];
    name.to_str().is_some_and(|name| NAMES.contains(&name) || name.starts_with("XDG_") || name.starts_with("KDE_"))
}
