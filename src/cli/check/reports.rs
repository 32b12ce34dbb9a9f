//! Formats the findings of `skein check` for other programs: SARIF for code scanning, JUnit for test reports.

use serde_json::{Value, json};

use crate::diagnostic::{Diagnostic, Severity};
use crate::graph::AssertionReport;

/// The page that explains every code.
const CODES: &str = include_str!("../../../docs/diagnostics.md");

/// Returns the findings as SARIF 2.1.0.
pub(super) fn sarif(diagnostics: &[&Diagnostic]) -> Value {
    let mut codes: Vec<_> = diagnostics.iter().map(|found| found.code).collect();
    codes.sort_unstable();
    codes.dedup();
    let rules: Vec<_> = codes.iter().map(|code| sarif_rule(code)).collect();
    let results: Vec<_> = diagnostics.iter().map(|found| sarif_result(found)).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "skein", "version": env!("CARGO_PKG_VERSION"), "rules": rules}},
            "results": results,
        }],
    })
}

/// Returns the rule of a code. GitHub requires the descriptions and the help.
fn sarif_rule(code: &str) -> Value {
    match explanation(code) {
        Some((meaning, fix)) => json!({
            "id": code,
            "shortDescription": {"text": meaning},
            "fullDescription": {"text": meaning},
            "help": {"text": format!("For example: {fix}")},
        }),
        None => json!({"id": code}),
    }
}

/// Returns the meaning of a code and the example of a fix. `None` if the page has no row for it.
fn explanation(code: &str) -> Option<(String, String)> {
    let row = CODES.lines().find_map(|line| line.strip_prefix(&format!("| `{code}` | ")))?;
    let cells: Vec<_> = row.trim_end_matches(" |").split(" | ").map(|cell| cell.replace("\\|", "|")).collect();
    match &cells[..] {
        [_, meaning, fix] => Some((meaning.clone(), fix.clone())),
        _ => None,
    }
}

fn sarif_result(found: &Diagnostic) -> Value {
    let mut location = json!({"artifactLocation": {"uri": uri(&found.at.file)}});
    if let Some(span) = &found.at.span {
        location["region"] =
            json!({"startLine": span.line, "startColumn": span.column, "endColumn": span.column + span.width});
    }
    let level = match found.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    json!({
        "ruleId": found.code,
        "level": level,
        "message": {"text": format!("{}. {}", found.problem, found.help)},
        "locations": [{"physicalLocation": location}],
    })
}

/// Returns a path as a relative reference or a `file:` URI, with other characters escaped.
fn uri(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    let escape = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    let escaped: String = path.bytes().map(escape).collect();
    if path.starts_with('/') { format!("file://{escaped}") } else { escaped }
}

/// Returns one test case for the manifests and one for each assertion, as JUnit's XML.
pub(super) fn junit(manifests: &[&Diagnostic], assertions: &[AssertionReport]) -> String {
    let errors: Vec<_> = manifests.iter().copied().filter(|found| found.severity == Severity::Error).collect();
    let mut cases = vec![test_case("manifests", "manifests", &errors)];
    for report in assertions {
        cases.push(test_case("assertions", &report.title, &report.diagnostics.iter().collect::<Vec<_>>()));
    }
    let failures =
        usize::from(!errors.is_empty()) + assertions.iter().filter(|report| !report.diagnostics.is_empty()).count();
    let suite = format!(r#"name="skein check" tests="{}" failures="{failures}" errors="0" time="0""#, cases.len());
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite {suite}>\n{}  </testsuite>\n</testsuites>\n",
        cases.concat()
    )
}

fn test_case(class: &str, name: &str, problems: &[&Diagnostic]) -> String {
    let head = format!(r#"    <testcase classname="{}" name="{}" time="0""#, xml(class), xml(name));
    let Some(first) = problems.first() else { return format!("{head}/>\n") };
    let text: Vec<_> =
        problems.iter().map(|found| format!("{}: {} [{}]", found.at, found.problem, found.code)).collect();
    let failure = format!(
        r#"      <failure message="{}" type="{}">{}</failure>"#,
        xml(&first.problem),
        xml(first.code),
        xml(&text.join("\n"))
    );
    format!("{head}>\n{failure}\n    </testcase>\n")
}

/// Escapes text for XML. Characters that XML cannot contain are replaced.
fn xml(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(letter),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_an_explanation() {
        let codes = CODES.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | ")).map(|(code, _)| code);
        let (mut count, is_digit) = (0, |c: char| c.is_ascii_digit());
        for code in codes.filter(|code| code.len() == 4 && code.ends_with(is_digit)) {
            let (meaning, fix) = explanation(code).unwrap_or_else(|| panic!("{code} has a row with four cells"));
            assert!(!meaning.is_empty() && !fix.is_empty(), "{code}");
            count += 1;
        }
        assert!(count > 50, "{count}");
        assert_eq!(explanation("no code"), None);
    }
}
