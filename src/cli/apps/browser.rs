//! Opens a file in the user's browser.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::minimal_environment;

/// How long a program may take to report that it cannot open the file. A browser that runs on has opened it.
const PATIENCE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

/// Variables that a browser needs to find the screen and a running browser, in addition to the minimal environment.
const DESKTOP: [&str; 8] = [
    "BROWSER",
    "DBUS_SESSION_BUS_ADDRESS",
    "DESKTOP_SESSION",
    "DISPLAY",
    "KDE_FULL_SESSION",
    "KDE_SESSION_VERSION",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
];

/// Why no browser was opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenBrowserError {
    #[error("there is no display, and BROWSER is not set")]
    NoDisplay,
    #[error("no program of BROWSER can be started: {tried}")]
    NoProgram { tried: String },
    #[error("`{program}` could not open the file ({status})")]
    Failed { program: String, status: String },
}

/// Opens a file with the first program of `BROWSER` that starts, else with the program of the desktop. Returns the name of
/// the program. The browser stays open when this program ends.
pub(super) fn open(
    file: &Path,
    variable: &dyn Fn(&str) -> Option<String>,
    is_macos: bool,
) -> Result<String, OpenBrowserError> {
    let mut tried = Vec::new();
    for words in candidates(file, variable, is_macos)? {
        let Some((program, arguments)) = words.split_first() else { continue };
        match start(program, arguments) {
            Ok(child) => return wait(child, program),
            Err(error) => tried.push(format!("{program} ({error})")),
        }
    }
    Err(OpenBrowserError::NoProgram { tried: tried.join(", ") })
}

/// Returns the command lines to try, each with the file.
fn candidates(
    file: &Path,
    variable: &dyn Fn(&str) -> Option<String>,
    is_macos: bool,
) -> Result<Vec<Vec<String>>, OpenBrowserError> {
    let file = file.to_string_lossy().into_owned();
    if let Some(browsers) = variable("BROWSER") {
        let command = |line: &str| {
            let mut words: Vec<_> = line.split_whitespace().map(|word| word.replace("%s", &file)).collect();
            if !line.contains("%s") {
                words.push(file.clone());
            }
            words
        };
        return Ok(browsers.split(':').filter(|line| !line.trim().is_empty()).map(command).collect());
    }
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| variable(name).is_some());
    match (is_macos, has_display) {
        (true, _) => Ok(vec![vec!["open".to_owned(), file]]),
        (false, true) => Ok(vec![vec!["xdg-open".to_owned(), file]]),
        (false, false) => Err(OpenBrowserError::NoDisplay),
    }
}

/// Starts a program without the secrets of this one. What it prints is not part of the answer.
#[expect(clippy::disallowed_methods, reason = "the browser outlives this command")]
fn start(program: &str, arguments: &[String]) -> std::io::Result<Child> {
    let is_desktop = |name: &OsString| {
        DESKTOP.iter().any(|known| name == known) || name.to_str().is_some_and(|name| name.starts_with("XDG_"))
    };
    let desktop = std::env::vars_os().filter(|(name, _)| is_desktop(name));
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(minimal_environment(std::env::vars_os())).envs(desktop);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Ctrl-C in the terminal does not reach the browser.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn()
}

/// Waits for a program that reports a failure. A program that ends well or runs on has opened the file.
fn wait(mut child: Child, program: &str) -> Result<String, OpenBrowserError> {
    let begun = Instant::now();
    let failed = |status: String| OpenBrowserError::Failed { program: program.to_owned(), status };
    while begun.elapsed() < PATIENCE {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(program.to_owned()),
            Ok(Some(status)) => return Err(failed(status.to_string())),
            Ok(None) => std::thread::sleep(POLL),
            Err(error) => return Err(failed(error.to_string())),
        }
    }
    Ok(program.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(variables: &[(&str, &str)], is_macos: bool) -> String {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        match candidates(Path::new("/a b/timer.html"), &variable, is_macos) {
            Ok(lines) => lines.iter().map(|words| words.join("|")).collect::<Vec<_>>().join(" or "),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_variable_comes_before_the_desktop() {
        for (variables, is_macos, expected) in [
            (vec![], false, "there is no display, and BROWSER is not set"),
            (vec![("DISPLAY", ":0")], false, "xdg-open|/a b/timer.html"),
            (vec![("WAYLAND_DISPLAY", "wayland-0")], false, "xdg-open|/a b/timer.html"),
            (vec![], true, "open|/a b/timer.html"),
            (vec![("BROWSER", "w3m")], false, "w3m|/a b/timer.html"),
            (
                vec![("BROWSER", "firefox --new-window %s::lynx"), ("DISPLAY", ":0")],
                false,
                "firefox|--new-window|/a b/timer.html or lynx|/a b/timer.html",
            ),
        ] {
            assert_eq!(chosen(&variables, is_macos), expected, "{variables:?}");
        }
    }
}
