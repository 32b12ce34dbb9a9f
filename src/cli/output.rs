//! Prints all output: answers to stdout, everything else to stderr, colour only on a terminal. A closed pipe is not an
//! error.

use std::io::Write as _;

use anstyle::{AnsiColor, Style};
use serde_json::Value;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::diagnostic::{Diagnostic, Severity, printable};
use crate::project::ModeError;
use crate::text::{escape_json, is_invisible, shapes};

/// The output of a command; remembers the first write that failed.
#[derive(Debug, Default)]
pub(super) struct CommandOutput {
    failure: Option<std::io::Error>,
    /// The reader has closed the pipe.
    closed: bool,
}

impl CommandOutput {
    /// Prints a part of the answer. Strips styles if stdout is not a terminal.
    pub(super) fn text(&mut self, text: &str) {
        self.write(text);
    }

    pub(super) fn line(&mut self, line: &str) {
        self.text(&format!("{line}\n"));
    }

    /// Prints a line that cannot be printed again. Returns false if it was not written.
    pub(super) fn unique_line(&mut self, line: &str) -> bool {
        self.write(&format!("{line}\n"))
    }

    /// Writes to stdout. Returns false if that failed.
    fn write(&mut self, text: &str) -> bool {
        let mut stdout = anstream::stdout();
        // A last line without an end would stay in the buffer, and its failure unnoticed.
        let result = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        let is_written = result.is_ok();
        self.note_write(result);
        is_written
    }

    /// Prints JSON. Escapes invisible characters, for a terminal and a pipe alike; the value stays the same.
    pub(super) fn json(&mut self, value: &Value) {
        self.line(&escape_json(&format!("{value:#}")));
    }

    /// Prints a note for the user that is not part of the answer.
    pub(super) fn note(&mut self, text: &str) {
        let quiet = AnsiColor::Cyan.on_default();
        let text = display_lines(text);
        let result = writeln!(anstream::stderr(), "{quiet}note{quiet:#}: {text}");
        self.note_write(result);
    }

    /// Prints text to stderr that is not part of the answer, such as a question.
    pub(super) fn aside(&mut self, text: &str) {
        let result = anstream::stderr().write_all(text.as_bytes());
        self.note_write(result);
    }

    pub(super) fn diagnostics(&mut self, diagnostics: &[Diagnostic]) {
        let text: String = diagnostics.iter().map(Diagnostic::render).collect();
        self.aside(&text);
    }

    /// Remembers the result of a write to stdout or stderr.
    pub(super) fn note_write(&mut self, result: std::io::Result<()>) {
        // A reader may close the pipe early, as in `skein graph | head`.
        let Err(error) = result else { return };
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => self.closed = true,
            _ => self.failure = self.failure.take().or(Some(error)),
        }
    }

    /// Returns true if no more output is wanted or possible, for commands that print until they are stopped.
    pub(super) fn has_ended(&self) -> bool {
        self.closed || self.failure.is_some()
    }

    /// Returns the exit code: 1 if a write failed, which is reported, else `code`.
    pub(super) fn finish(mut self, code: u8) -> u8 {
        let Some(error) = self.failure.take() else { return code };
        let problem = format!("the output could not be written: {error}");
        CommandError::work(problem, "check the file or device that the output goes to").print(&mut self);
        1
    }
}

/// Error of a command; determines the exit code and the help line.
#[derive(Debug)]
pub(super) enum CommandError {
    /// The work failed: exit code 1.
    Work { problem: String, help: String },
    /// The command line or a config file is wrong: exit code 2.
    Usage { problem: String, help: String },
    /// A managed setting refuses an agent, a mode, a model or a service: exit code 2. The audit log gets it.
    Managed { problem: String, help: String, subject: String, setting: String },
    /// Manifests have errors that are already reported: exit code 6.
    Manifests { errors: usize },
    /// The turn ended, but calls were refused: exit code 5. Each call is one line of text.
    Refused {
        calls: Vec<String>,
        /// The approval level was `auto`, which asks for no consent.
        is_auto: bool,
    },
    /// The command exceeded its time limit: exit code 3.
    TimeLimit,
    /// The session does not exist: exit code 4.
    NoSession { problem: String, help: String },
    /// The user or a signal interrupted the command: exit code 130.
    Interrupted,
}

impl From<ModeError> for CommandError {
    fn from(error: ModeError) -> Self {
        let (problem, help) = (error.to_string(), error.help().to_owned());
        match error.exclusion() {
            Some((name, exclusion)) => {
                let (subject, setting) = (name.to_owned(), exclusion.setting.to_string());
                Self::Managed { problem, help, subject, setting }
            }
            None => Self::Usage { problem, help },
        }
    }
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
            CommandError::Usage { .. } | CommandError::Managed { .. } => 2,
            CommandError::TimeLimit => 3,
            CommandError::NoSession { .. } => 4,
            CommandError::Refused { .. } => 5,
            CommandError::Manifests { .. } => 6,
            CommandError::Interrupted => 130,
        }
    }

    /// Returns the problem and its fix. `None` if the user interrupted the command or the errors are already reported.
    fn problem_and_help(&self) -> Option<(String, String)> {
        Some(match self {
            CommandError::Work { problem, help }
            | CommandError::Usage { problem, help }
            | CommandError::Managed { problem, help, .. }
            | CommandError::NoSession { problem, help } => (problem.clone(), help.clone()),
            CommandError::TimeLimit => {
                ("the time limit was reached".to_owned(), "give it more with --time-limit, or ask for less".to_owned())
            }
            CommandError::Refused { calls, is_auto: true } => (
                refusal_text(calls, "\n  "),
                "change the hook that refuses it. For a protected path or a denied call, only a rule helps: the refusal \
                 names it, and `skein permissions list` lists yours"
                    .to_owned(),
            ),
            CommandError::Refused { calls, is_auto: false } => (
                refusal_text(calls, "\n  "),
                "consent to it, or allow such calls with `--approval auto`. For a protected path or a denied call, only a \
                 rule helps: the refusal names it, and `skein permissions list` lists yours"
                    .to_owned(),
            ),
            CommandError::Manifests { .. } | CommandError::Interrupted => return None,
        })
    }

    /// Returns problem and help on one line, for callers that cannot print.
    pub(super) fn problem(&self) -> String {
        self.problem_and_help().map(|(problem, help)| format!("{problem}; {help}")).unwrap_or_default()
    }

    pub(super) fn print(&self, output: &mut CommandOutput) {
        output.aside(&self.render());
    }

    /// Formats the error as it is printed; empty if the user interrupted the command.
    pub(super) fn render(&self) -> String {
        let red = AnsiColor::Red.on_default().bold();
        let quiet = AnsiColor::BrightBlack.on_default();
        match (self, self.problem_and_help()) {
            (_, Some((problem, help))) => {
                // The text may contain output of a provider or a service.
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

/// Lists refused calls after their number, each call after `separator`.
pub(super) fn refusal_text(calls: &[String], separator: &str) -> String {
    let count = match calls.len() {
        1 => "1 tool call was refused:".to_owned(),
        count => format!("{count} tool calls were refused:"),
    };
    calls.iter().fold(count, |text, call| text + separator + call)
}

/// Joins text from outside to one line and escapes control characters.
pub(super) fn display_line(text: &str) -> String {
    printable(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Clears the current line of the terminal, even if colours are off.
pub(super) fn clear_line() {
    if can_redraw() {
        drop(write!(std::io::stderr(), "\r\x1b[2K"));
    }
}

/// Returns true if the terminal can overwrite a line.
pub(super) fn can_redraw() -> bool {
    std::env::var("TERM").is_ok_and(|term| !term.is_empty() && term != "dumb")
}

/// Style of names in listings.
pub(super) const BOLD: Style = Style::new().bold();
/// Style of secondary text.
pub(super) const QUIET: Style = AnsiColor::BrightBlack.on_default();

/// Escapes control characters in text from outside; keeps its lines.
pub(super) fn display_lines(text: &str) -> String {
    text.lines().map(|line| printable(line.trim_end())).collect::<Vec<_>>().join("\n")
}

/// Replaces control, invisible and bidirectional characters, which must not reach a terminal. Keeps characters that
/// shape the one before them, as emoji and some scripts need.
pub(super) fn tame(c: char, before: Option<char>) -> char {
    match c {
        '\t' => ' ',
        c if shapes(c, before) => c,
        c if c.is_control() || is_invisible(c) => '\u{FFFD}',
        c => c,
    }
}

/// Returns a line of code unchanged except for control characters. Does not wrap it, so that it can be copied whole.
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

/// Truncates text without styles to `columns` columns.
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
