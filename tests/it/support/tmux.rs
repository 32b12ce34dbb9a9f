//! The program in a real terminal: tmux draws the screen, types, pastes, resizes and hangs up.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::model::ScriptedModel;
use super::{Sandbox, require_full_tests};

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
/// A prompt that already has text is never empty, so the wait for an empty one ends.
const READY: Duration = Duration::from_secs(10);

/// Waits for something that no screen shows.
pub(crate) fn eventually(what: &str, check: impl Fn() -> bool) {
    let began = Instant::now();
    while !check() {
        assert!(began.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::sleep(PAUSE);
    }
}

/// A terminal that has its own tmux server, which ends with it.
pub(crate) struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    /// `skein` with these arguments, on a screen of this size. What it exits with stands there in the end.
    pub(crate) fn start(sandbox: &Sandbox, model: Option<&ScriptedModel>, size: (u16, u16), args: &[&str]) -> Self {
        Self::start_redirected(sandbox, model, size, args, "")
    }

    /// As [`Self::start`], with a redirection of the shell, such as `2>FILE`, in the project folder.
    pub(crate) fn start_redirected(
        sandbox: &Sandbox,
        model: Option<&ScriptedModel>,
        size: (u16, u16),
        args: &[&str],
        redirection: &str,
    ) -> Self {
        require_full_tests("tmux");
        let mut inner = sandbox.command(args);
        if let Some(model) = model {
            inner = model.offered_to(inner);
        }
        let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
        let mut line = "exec env -i TERM=tmux-256color LC_ALL=C.UTF-8".to_owned();
        for (name, value) in inner.get_envs() {
            let value = value.unwrap_or_default().to_string_lossy().into_owned();
            line.push_str(&format!(" {}", quoted(&format!("{}={value}", name.to_string_lossy()))));
        }
        line.push_str(&format!(" sh -c 'trap : INT; \"$@\" {redirection}; echo \"[exit $?]\"; read -r rest' sh "));
        line.push_str(&quoted(&inner.get_program().to_string_lossy()));
        for arg in args {
            line.push_str(&format!(" {}", quoted(arg)));
        }
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let terminal = Self { socket: sandbox.path(&format!("tmux{number}")) };
        let (width, height) = (size.0.to_string(), size.1.to_string());
        let folder = sandbox.path("project");
        let folder = folder.to_string_lossy();
        let started =
            terminal.tmux(&["new-session", "-d", "-x", &width, "-y", &height, "-c", folder.as_ref(), line.as_str()]);
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        terminal
    }

    #[expect(clippy::disallowed_methods, reason = "the terminal is not part of the program")]
    fn tmux(&self, args: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        command.env("LC_ALL", "C.UTF-8").env_remove("TMUX").arg("-u").arg("-S").arg(&self.socket);
        command.args(["-f", "/dev/null"]).args(args).output().expect("tmux runs")
    }

    /// Copies all that the program writes from now on to this file, with control characters.
    pub(crate) fn copy_output(&self, file: &std::path::Path) {
        let copied = self.tmux(&["pipe-pane", "-o", &format!("cat >> '{}'", file.display())]);
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    }

    /// What is on the screen.
    pub(crate) fn screen(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p"]).stdout).into_owned()
    }

    /// What is and was on the screen, with colours as escape sequences.
    pub(crate) fn styled(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p", "-e", "-S", "-"]).stdout).into_owned()
    }

    /// What is and was on the screen.
    pub(crate) fn whole(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p", "-S", "-"]).stdout).into_owned()
    }

    /// Waits until `text` is or was on the screen, so often.
    pub(crate) fn shows_times(&self, text: &str, times: usize) {
        let began = Instant::now();
        while self.whole().matches(text).count() < times {
            assert!(began.elapsed() < PATIENCE, "no {text:?} ({times}):\n{}", self.whole());
            std::thread::sleep(PAUSE);
        }
    }

    pub(crate) fn shows(&self, text: &str) {
        self.shows_times(text, 1);
    }

    /// Presses keys by the names that tmux has for them: `Enter`, `C-c`, `y`.
    pub(crate) fn press(&self, keys: &[&str]) {
        let mut args = vec!["send-keys"];
        args.extend(keys);
        self.tmux(&args);
    }

    /// Types all of it at once.
    pub(crate) fn type_in(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    /// Types a line and sends it at once, for questions that have no prompt of their own.
    pub(crate) fn type_line(&self, line: &str) {
        self.type_in(line);
        self.press(&["Enter"]);
    }

    /// Waits until the prompt is empty and reads keys: before that, the terminal itself takes them.
    pub(crate) fn waits_for_input(&self) {
        let begun = Instant::now();
        let ready = || self.screen().trim_end().lines().next_back().is_some_and(|last| last.trim() == "›");
        while !ready() && begun.elapsed() < READY {
            std::thread::sleep(PAUSE);
        }
    }

    /// Types a line and sends it as soon as the prompt reads keys.
    pub(crate) fn enter(&self, line: &str) {
        self.waits_for_input();
        self.type_line(line);
    }

    /// Pastes as a terminal does that brackets what is pasted.
    pub(crate) fn paste(&self, text: &str) {
        self.tmux(&["set-buffer", text]);
        self.tmux(&["paste-buffer", "-p", "-r"]);
    }

    pub(crate) fn resize(&self, width: u16, height: u16) {
        self.tmux(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    }

    /// The window is closed, as by a click.
    pub(crate) fn hang_up(&self) {
        self.tmux(&["kill-server"]);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.hang_up();
    }
}
