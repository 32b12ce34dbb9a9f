//! Everything that is printed goes through here: answers to stdout, everything else to stderr, colour only on
//! a terminal, and a reader that went away is no error.

use std::io::Write as _;

use anstyle::{AnsiColor, Style};
use serde_json::Value;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::diagnostic::{Diagnostic, Severity, printable};
use crate::text::{escape_json, is_invisible, shapes};

/// What a command has said so far.
#[derive(Debug, Default)]
pub(super) struct CommandOutput {
    failed: bool,
}

impl CommandOutput {
    /// Part of the answer; terminal styles are stripped where there is no terminal.
    pub(super) fn text(&mut self, text: &str) {
        let result = anstream::stdout().write_all(text.as_bytes());
        self.note_write(result);
    }

    pub(super) fn line(&mut self, line: &str) {
        self.text(&format!("{line}\n"));
    }

    /// Characters that do not show are escaped, to a terminal and to a pipe alike: it is the same value.
    pub(super) fn json(&mut self, value: &Value) {
        self.line(&escape_json(&format!("{value:#}")));
    }

    /// Something the user should know that is not the answer.
    pub(super) fn note(&mut self, text: &str) {
        let quiet = AnsiColor::Cyan.on_default();
        let text = display_lines(text);
        let result = writeln!(anstream::stderr(), "{quiet}note{quiet:#}: {text}");
        self.note_write(result);
    }

    /// Text that belongs to a question, not to the answer.
    pub(super) fn aside(&mut self, text: &str) {
        let result = anstream::stderr().write_all(text.as_bytes());
        self.note_write(result);
    }

    pub(super) fn diagnostics(&mut self, diagnostics: &[Diagnostic]) {
        let text: String = diagnostics.iter().map(Diagnostic::render).collect();
        self.aside(&text);
    }

    fn note_write(&mut self, result: std::io::Result<()>) {
        // `skein graph | head` closes the pipe early, which is the reader's right.
        self.failed |= result.is_err_and(|error| error.kind() != std::io::ErrorKind::BrokenPipe);
    }

    /// The exit code: what could not be printed was not done.
    pub(super) fn finish(self, code: u8) -> u8 {
        if self.failed { 1 } else { code }
    }
}

/// Why a command did not do its work, with the exit code that says so.
#[derive(Debug)]
pub(super) enum CommandError {
    /// The work failed: exit 1.
    Work { problem: String, help: String },
    /// The command line or a config file is wrong: exit 2.
    Usage { problem: String, help: String },
    /// Manifests are wrong and have been reported: exit 6.
    Manifests { errors: usize },
    /// The turn ended because a call was refused: exit 5.
    Refused { tool: String },
    /// It took longer than it may: exit 3.
    TimeLimit,
    /// There is no such session: exit 4.
    NoSession { problem: String, help: String },
    /// Somebody ended it: exit 130.
    Interrupted,
}

impl CommandError {
    pub(super) fn work(problem: impl Into<String>, help: impl Into<String>) -> Self {
        CommandError::Work { problem: problem.into(), help: help.into() }
    }

    pub(super) fn usage(problem: impl Into<String>, help: impl Into<String>) -> Self {
        CommandError::Usage { problem: problem.into(), help: help.into() }
    }

    pub(super) fn manifests(diagnostics: &[Diagnostic]) -> Self {
        CommandError::Manifests { errors: diagnostics.iter().filter(|found| found.severity == Severity::Error).count() }
    }

    pub(super) fn no_session(id: &str, help: impl Into<String>) -> Self {
        CommandError::NoSession { problem: format!("there is no session `{}`", display_line(id)), help: help.into() }
    }

    pub(super) fn code(&self) -> u8 {
        match self {
            CommandError::Work { .. } => 1,
            CommandError::Usage { .. } => 2,
            CommandError::TimeLimit => 3,
            CommandError::NoSession { .. } => 4,
            CommandError::Refused { .. } => 5,
            CommandError::Manifests { .. } => 6,
            CommandError::Interrupted => 130,
        }
    }

    /// What went wrong and what to do about it; nothing if the user did it, or knows already.
    fn problem_and_help(&self) -> Option<(String, String)> {
        Some(match self {
            CommandError::Work { problem, help }
            | CommandError::Usage { problem, help }
            | CommandError::NoSession { problem, help } => (problem.clone(), help.clone()),
            CommandError::TimeLimit => {
                ("the time limit was reached".to_owned(), "give it more with --time-limit, or ask for less".to_owned())
            }
            CommandError::Refused { tool } => (
                format!("the turn ended because {tool} was refused"),
                "consent to it, or allow such calls with `--approval auto`; if a rule denies it, only another rule helps: \
                 `skein permissions` lists them"
                    .to_owned(),
            ),
            CommandError::Manifests { .. } | CommandError::Interrupted => return None,
        })
    }

    /// The same on one line, for one who cannot print.
    pub(super) fn problem(&self) -> String {
        self.problem_and_help().map(|(problem, help)| format!("{problem}; {help}")).unwrap_or_default()
    }

    pub(super) fn print(&self, output: &mut CommandOutput) {
        output.aside(&self.render());
    }

    /// As it is printed; empty if there is nothing to say.
    pub(super) fn render(&self) -> String {
        let red = AnsiColor::Red.on_default().bold();
        let quiet = AnsiColor::BrightBlack.on_default();
        match (self, self.problem_and_help()) {
            (_, Some((problem, help))) => {
                // A provider's or a service's own words may be among them.
                let (problem, help) = (display_lines(&problem), display_lines(&help));
                format!("{red}error{red:#}: {problem}\n  {quiet}help{quiet:#}: {help}\n")
            }
            (CommandError::Manifests { errors: 1 }, None) => format!("{red}error{red:#}: the manifests have 1 error\n"),
            (CommandError::Manifests { errors }, None) => {
                format!("{red}error{red:#}: the manifests have {errors} errors\n")
            }
            (_, None) => String::new(),
        }
    }
}

/// A manifest's own words on one line, without anything that would steer a terminal.
pub(super) fn display_line(text: &str) -> String {
    printable(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Takes what stands on the line of the cursor away, whether or not colours are wanted.
pub(super) fn clear_line() {
    if can_redraw() {
        drop(write!(std::io::stderr(), "\r\x1b[2K"));
    }
}

/// Whether the terminal can go back on a line.
pub(super) fn can_redraw() -> bool {
    std::env::var("TERM").is_ok_and(|term| !term.is_empty() && term != "dumb")
}

/// Names in listings.
pub(super) const BOLD: Style = Style::new().bold();
/// What is beside the point.
pub(super) const QUIET: Style = AnsiColor::BrightBlack.on_default();

/// Many lines of somebody's words, without anything that would steer a terminal.
pub(super) fn display_lines(text: &str) -> String {
    text.lines().map(|line| printable(line.trim_end())).collect::<Vec<_>>().join("\n")
}

/// What may reach a terminal: no control, invisible or bidirectional character. Characters that shape the one before
/// them stay: in emoji and in the scripts that need them.
pub(super) fn tame(c: char, before: Option<char>) -> char {
    match c {
        '\t' => ' ',
        c if shapes(c, before) => c,
        c if c.is_control() || is_invisible(c) => '\u{FFFD}',
        c => c,
    }
}

/// Code as it is, but for what would steer the terminal. A line that is too long is left to the terminal, so that it
/// can be copied whole.
pub(super) fn verbatim(line: &str) -> String {
    let mut out = String::new();
    let mut last = None;
    for c in line.trim_end_matches('\r').chars() {
        let c = if c == '\t' { "    ".to_owned() } else { tame(c, last).to_string() };
        last = c.chars().next_back();
        out.push_str(&c);
    }
    out
}

/// As much of a text without styles as so many columns hold.
pub(super) fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let (mut kept, mut used) = (String::new(), 0);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used + 1 > columns {
            break;
        }
        kept.push(c);
    }
    kept + "…"
}
