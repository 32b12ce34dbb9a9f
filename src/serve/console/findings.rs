//! Diagnostics on a page: those of a file next to its lines, and the others as a list.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::transcript::display_text;
use crate::diagnostic::{Diagnostic, Severity};

/// Lines around a line with a finding.
const CONTEXT: usize = 2;
/// Findings on one page.
const MAX_FINDINGS: usize = 100;

/// Shows the findings of a file next to its lines, then those without a line and those of other files.
pub(super) fn findings_in_place(file: &str, text: &str, diagnostics: &[Diagnostic]) -> Markup {
    let mut by_line: BTreeMap<usize, Vec<&Diagnostic>> = BTreeMap::new();
    let mut others = Vec::new();
    for found in diagnostics.iter().take(MAX_FINDINGS) {
        match found.at.span.as_ref().filter(|_| found.at.file == file) {
            Some(span) => by_line.entry(span.line).or_default().push(found),
            None => others.push(found),
        }
    }
    let is_near = |number: usize| by_line.range(number.saturating_sub(CONTEXT)..=number + CONTEXT).next().is_some();
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line)).filter(|(number, _)| is_near(*number));
    html! {
        @if diagnostics.is_empty() { p class="empty" { "No findings." } }
        @if !by_line.is_empty() {
            ol class="source" aria-label="Lines with findings" {
                @for (number, line) in lines {
                    li value=(number) {
                        code { (display_text(line)) }
                        @for found in by_line.get(&number).into_iter().flatten() { (finding(found)) }
                    }
                }
            }
        }
        (finding_list(&others))
        @if diagnostics.len() > MAX_FINDINGS {
            p class="meta" { "… and " (diagnostics.len() - MAX_FINDINGS) " more; " code { "skein check" } " has them all" }
        }
    }
}

/// Shows findings with their places.
pub(super) fn finding_list(diagnostics: &[&Diagnostic]) -> Markup {
    html! {
        @if !diagnostics.is_empty() {
            ul class="rows" {
                @for found in diagnostics.iter().take(MAX_FINDINGS) {
                    li { span class="meta" { (display_text(&found.at.to_string())) } (finding(found)) }
                }
            }
        }
    }
}

fn finding(found: &Diagnostic) -> Markup {
    html! {
        div class={ "finding " (severity_class(found.severity)) } {
            strong { (found.severity.to_string()) " " (found.code) } ": " (display_text(&found.problem))
            div class="meta" { "Fix: " (display_text(&found.help)) }
            @for (place, what) in &found.related {
                div class="meta" { (display_text(&place.to_string())) ": " (display_text(what)) }
            }
        }
    }
}

/// Returns the class of the style sheet for a severity.
pub(super) fn severity_class(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

/// Counts errors and warnings, as in "1 error, 2 warnings". `None` if there is neither.
pub(super) fn count_text<'a>(diagnostics: impl Iterator<Item = &'a Diagnostic>) -> Option<String> {
    let (mut errors, mut warnings) = (0_usize, 0_usize);
    for found in diagnostics {
        match found.severity {
            Severity::Error => errors += 1,
            Severity::Warning => warnings += 1,
            Severity::Note => {}
        }
    }
    let word = |count: usize, thing: &str| {
        (count > 0).then(|| format!("{count} {thing}{}", if count == 1 { "" } else { "s" }))
    };
    let words: Vec<_> = [word(errors, "error"), word(warnings, "warning")].into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::SourceLocation;

    #[test]
    fn a_finding_stands_below_its_line_and_is_escaped() {
        let text = "one\ntwo\nthree\nfour\nfive\nsix\n";
        let at = SourceLocation::at("a.yaml", text, 5, 1, 4);
        let found = [
            Diagnostic::error("E1", at, "bad <b>", "better"),
            Diagnostic::warning("W1", SourceLocation::file("b.yaml"), "elsewhere", "look"),
        ];
        let page = findings_in_place("a.yaml", text, &found).into_string();
        let (before, after) = page.split_once("<code>five</code>").unwrap();
        assert!(before.contains("<li value=\"3\"><code>three</code>") && !before.contains("two"), "{page}");
        assert!(after.contains("bad &lt;b&gt;") && after.contains("b.yaml"), "{page}");
        assert_eq!(count_text(found.iter()).as_deref(), Some("1 error, 1 warning"));
        assert_eq!(count_text([].iter()), None);
    }
}
