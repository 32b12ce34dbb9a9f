//! Formats reports about files: severity, stable code, location with source line, problem and help.
//!
//! Invariant: knows text and locations, nothing about manifests. Every diagnostic has a help line; the constructor
//! requires it. No quoted line shows a value that may be a secret.

mod mask;

use std::fmt::{self, Write as _};

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

pub use mask::{hides_value, mask_keys};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Error,
    Warning,
    Note,
}

impl Severity {
    fn style(self) -> Style {
        let colour = match self {
            Severity::Error => AnsiColor::Red,
            Severity::Warning => AnsiColor::Yellow,
            Severity::Note => AnsiColor::Cyan,
        };
        colour.on_default().bold()
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

/// A file and, if known, a span in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceLocation {
    pub file: String,
    pub span: Option<SourceSpan>,
}

/// A part of one source line. Lines and columns start at 1; columns count characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceSpan {
    pub line: usize,
    pub column: usize,
    pub width: usize,
    /// The whole source line. Values of fields that may hold secrets are masked, character by character.
    pub text: String,
}

impl SourceLocation {
    pub fn file(file: impl Into<String>) -> Self {
        Self { file: file.into(), span: None }
    }

    /// Creates a location `width` characters wide at a line and column of `text`, both starting at 1. Moves positions
    /// past the end of a line or of the text, such as "unexpected end", back to that end.
    pub fn at(file: impl Into<String>, text: &str, line: usize, column: usize, width: usize) -> Self {
        let lines = text.lines().count().max(1);
        let (line, column) = if line > lines { (lines, usize::MAX) } else { (line.max(1), column.max(1)) };
        let source = mask::mask_line(text, line - 1);
        let length = source.chars().count();
        let column = column.min(length + 1);
        let width = width.clamp(1, (length + 1 - column).max(1));
        Self { file: file.into(), span: Some(SourceSpan { line, column, width, text: source }) }
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        match &self.span {
            Some(span) => write!(f, ":{}:{}", span.line, span.column),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    /// Stable: documented in docs/diagnostics.md and never reused.
    pub code: &'static str,
    pub at: SourceLocation,
    pub problem: String,
    pub help: String,
    /// Other locations of the problem, each with an explanation: the edges of a cycle, the first of two duplicates.
    pub related: Vec<(SourceLocation, String)>,
}

impl Diagnostic {
    pub fn error(code: &'static str, at: SourceLocation, problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(Severity::Error, code, at, problem, help)
    }

    pub fn warning(
        code: &'static str,
        at: SourceLocation,
        problem: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self::new(Severity::Warning, code, at, problem, help)
    }

    pub fn note(code: &'static str, at: SourceLocation, problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(Severity::Note, code, at, problem, help)
    }

    fn new(
        severity: Severity,
        code: &'static str,
        at: SourceLocation,
        problem: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self { severity, code, at, problem: problem.into(), help: help.into(), related: Vec::new() }
    }

    #[must_use]
    pub fn with_related(mut self, at: SourceLocation, what: impl Into<String>) -> Self {
        self.related.push((at, what.into()));
        self
    }

    /// Formats the diagnostic with terminal styles. Strip them if the output is not a terminal.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let severity = self.severity.style();
        let bold = Style::new().bold();
        let quiet = AnsiColor::BrightBlack.on_default();
        // Writing to a `String` cannot fail.
        _ = writeln!(
            out,
            "{bold}{}{bold:#}: {severity}{}[{}]{severity:#}: {bold}{}{bold:#}",
            printable(&self.at.to_string()),
            self.severity,
            self.code,
            printable(&self.problem)
        );
        render_source(&mut out, &self.at, severity);
        for (place, what) in &self.related {
            _ = writeln!(out, "  {quiet}at{quiet:#} {}: {}", printable(&place.to_string()), printable(what));
        }
        _ = writeln!(out, "  {quiet}help{quiet:#}: {}", printable(&self.help));
        out
    }

    /// Formats the diagnostic without styles. The styles are its only escape sequences.
    pub fn render_plain(&self) -> String {
        let styled = self.render();
        let mut parts = styled.split('\u{1b}');
        let mut plain = parts.next().unwrap_or_default().to_owned();
        plain.extend(parts.map(|part| part.split_once('m').map_or("", |(_, text)| text)));
        plain
    }

    pub fn to_json(&self) -> serde_json::Value {
        let place = |place: &SourceLocation| {
            serde_json::json!({
                "file": place.file,
                "line": place.span.as_ref().map(|span| span.line),
                "column": place.span.as_ref().map(|span| span.column),
            })
        };
        let mut value = place(&self.at);
        value["severity"] = serde_json::json!(self.severity);
        value["code"] = serde_json::json!(self.code);
        value["problem"] = serde_json::json!(self.problem);
        value["help"] = serde_json::json!(self.help);
        value["related"] = self
            .related
            .iter()
            .map(|(at, what)| {
                let mut related = place(at);
                related["what"] = serde_json::json!(what);
                related
            })
            .collect();
        value
    }
}

fn render_source(out: &mut String, at: &SourceLocation, style: Style) {
    let Some(span) = &at.span else { return };
    // Show only the part of a long line around the span: a minified JSON file must not fill the screen.
    const SHOWN: usize = 160;
    let skip = (span.column + span.width.min(40)).saturating_sub(SHOWN);
    let shown: String = mask_keys(&span.text).chars().skip(skip).take(SHOWN).collect();
    let shown = printable(&shown);
    let before: String = shown.chars().take(span.column - 1 - skip).collect();
    let marked: String = shown.chars().skip(span.column - 1 - skip).take(span.width).collect();
    let number = span.line.to_string();
    let margin = " ".repeat(number.len());
    let carets = "^".repeat(marked.width().max(1));
    _ = writeln!(out, "  {number} | {shown}");
    _ = writeln!(out, "  {margin} | {}{style}{carets}{style:#}", " ".repeat(before.width()));
}

/// Replaces control and bidirectional characters, because files are untrusted and these must not reach a terminal.
pub fn printable(text: &str) -> String {
    crate::text::visible(text)
}

/// Sorts by location and removes duplicates.
pub fn sort(diagnostics: &mut Vec<Diagnostic>) {
    diagnostics.sort_by(|a, b| (&a.at, a.severity, a.code, &a.problem).cmp(&(&b.at, b.severity, b.code, &b.problem)));
    diagnostics.dedup();
}

pub fn has_errors(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn plain(diagnostic: &Diagnostic) -> String {
        anstream::adapter::strip_str(&diagnostic.render()).to_string()
    }

    #[test]
    fn shows_the_line_with_a_caret_and_the_help() {
        let text = "modes:\n  - dependencies: [develper]\n";
        let found = Diagnostic::error(
            "E103",
            SourceLocation::at("a.yaml", text, 2, 20, 8),
            "no such service",
            "write developer",
        );
        expect![[r"
            a.yaml:2:20: error[E103]: no such service
              2 |   - dependencies: [develper]
                |                    ^^^^^^^^
              help: write developer
        "]]
        .assert_eq(&plain(&found));
    }

    #[test]
    fn a_quoted_line_shows_no_secret_and_keeps_its_caret() {
        let text = "headers:\n  X-A: 鍵 canary-1\n";
        let found =
            |line, column| Diagnostic::error("E011", SourceLocation::at("a.yaml", text, line, column, 3), "p", "h");
        expect![[r"
            a.yaml:2:3: error[E011]: p
              2 |   X-A: **********
                |   ^^^
              help: h
        "]]
        .assert_eq(&plain(&found(2, 3)));
        let text = "{title: DB_PASSWORD=canary-2, tittle: x}\n";
        let shown = plain(&Diagnostic::error("E011", SourceLocation::at("a.yaml", text, 1, 30, 6), "p", "h"));
        assert!(!shown.contains("canary") && shown.contains("tittle: x"), "{shown}");
    }

    #[test]
    fn the_caret_stands_under_wide_characters() {
        let text = "名前: おかしい";
        let found = Diagnostic::error("E013", SourceLocation::at("a.yaml", text, 1, 5, 4), "bad", "better");
        expect![[r"
            a.yaml:1:5: error[E013]: bad
              1 | 名前: おかしい
                |       ^^^^^^^^
              help: better
        "]]
        .assert_eq(&plain(&found));
    }

    #[test]
    fn escape_sequences_in_a_file_do_not_reach_the_terminal() {
        let found = Diagnostic::error(
            "E013",
            SourceLocation::at("a.yaml", "x: \u{1b}[2J\u{202e}y", 1, 1, 1),
            "bad \u{7}",
            "help",
        );
        assert!(!plain(&found).contains(['\u{1b}', '\u{7}', '\u{202e}']));
    }

    #[test]
    fn a_long_line_is_shown_around_the_place() {
        let text = format!("{}HERE{}", "a".repeat(5000), "b".repeat(5000));
        let shown = plain(&Diagnostic::error("E013", SourceLocation::at("a.json", &text, 1, 5001, 4), "bad", "help"));
        assert!(shown.contains("HERE") && shown.len() < 600, "{shown}");
    }
}
