//! Formats a report as one HTML page with charts.
//!
//! Invariant: the page has no script and reaches nothing outside, and names in it are escaped.

use serde_json::{Value, json};

use super::super::output::display_line;
use super::summary::{ActivityReport, DayActivity, PrincipalActivity};
use super::text::usage_line;
use crate::chart::{self, ChartData, ChartError, ChartKind, ChartOptions, ChartSpec};
use crate::clock;

/// Bars of a chart.
const MAX_BARS: usize = 15;
const STYLE: &str = "body{font-family:system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color-scheme:light dark}table{border-collapse:collapse;margin:1rem 0}\
th,td{border:1px solid #8884;padding:.25rem .6rem;text-align:left}td.n{text-align:right}svg{max-width:100%;height:auto}";

/// Returns the page. Fails if a chart cannot be drawn.
pub(super) fn render(report: &ActivityReport) -> Result<String, ChartError> {
    let (from, to) = (clock::moment(report.since), clock::moment(report.until));
    let ActivityReport { sessions, turns, calls, .. } = report;
    let mut body = format!("<h1>Report of Skein</h1>\n<p>From {from} to {to}</p>\n");
    body.push_str(&format!(
        "<p>{sessions} sessions, {turns} turns, {calls} calls; {}.</p>\n",
        usage_line(&report.spent)
    ));
    let days: Vec<Value> = report
        .days
        .iter()
        .map(|(day, of)| json!({"day": day, "turns": of.turns, "calls": of.calls, "refusals": of.refusals}))
        .collect();
    add_chart(&mut body, "Activity by day", "day", &["turns", "calls", "refusals"], days)?;
    let tokens = report.days.iter().map(|(day, of)| json!({"day": day, "tokens": of.tokens})).collect();
    add_chart(&mut body, "Tokens by day", "day", &["tokens"], tokens)?;
    if report.days.values().any(|of| of.cost.is_some()) {
        let cost = |(day, of): (&String, &DayActivity)| json!({"day": day, "dollars": of.cost.unwrap_or_default()});
        add_chart(&mut body, "Cost by day", "day", &["dollars"], report.days.iter().map(cost).collect())?;
    }
    let tools = top(report.tools.iter().map(|(name, tool)| {
        (tool.calls, json!({"tool": display_line(name), "calls": tool.calls, "failed": tool.failures}))
    }));
    add_chart(&mut body, "Calls by tool", "tool", &["calls", "failed"], tools)?;
    let refused = top(report.refusals.iter().map(|refusal| {
        let subject = format!("{} ({})", display_line(&refusal.subject), refusal.source);
        (refusal.count, json!({"what": subject, "refusals": refusal.count}))
    }));
    add_chart(&mut body, "Refusals", "what", &["refusals"], refused)?;
    let questions = &report.questions;
    add_table(
        &mut body,
        "Permission requests",
        &["allowed", "refused", "without a user"],
        vec![vec![json!(questions.allowed), json!(questions.refused), json!(questions.unanswered)]],
    );
    if report.has_several_principals() {
        let row = |(name, of): (&String, &PrincipalActivity)| {
            let spent = &of.spent;
            let cost = spent.cost.map_or_else(String::new, |cost| format!("${cost:.2}"));
            let counts = [of.sessions, of.turns, of.calls, of.refusals, spent.input, spent.output];
            let mut row = vec![json!(name)];
            row.extend(counts.map(|count| json!(count)));
            row.push(json!(cost));
            row
        };
        let heads = ["principal", "sessions", "turns", "calls", "refused", "tokens in", "tokens out", "cost"];
        add_table(&mut body, "Principals", &heads, report.principals.iter().map(row).collect());
    }
    let modes = report.modes.iter().map(|(name, mode)| {
        vec![
            json!(name),
            json!(mode.sessions),
            json!(mode.turns),
            json!(mode.calls),
            json!(mode.changes),
            json!(mode.tokens),
        ]
    });
    add_table(&mut body, "Modes", &["mode", "sessions", "turns", "calls", "changes", "tokens"], modes.collect());
    let files = report.files.iter().map(|(path, count)| vec![json!(path), json!(count)]);
    add_table(&mut body, "Changed files", &["file", "changes"], files.collect());
    let rules = report.refusals.iter().map(|refusal| {
        let rule = refusal.rule.as_deref().unwrap_or_default();
        vec![json!(refusal.subject), json!(refusal.source), json!(rule), json!(refusal.count)]
    });
    add_table(&mut body, "Refused", &["what", "by", "rule", "count"], rules.collect());
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>Report of Skein</title><style>{STYLE}</style></head>\n<body>\n{body}</body>\n</html>\n"
    ))
}

/// Adds a bar chart. Without rows there is none.
fn add_chart(body: &mut String, title: &str, x: &str, y: &[&str], rows: Vec<Value>) -> Result<(), ChartError> {
    if rows.is_empty() {
        return Ok(());
    }
    let options = ChartOptions {
        x: Some(x.to_owned()),
        y: y.iter().map(|name| (*name).to_owned()).collect(),
        ..ChartOptions::default()
    };
    let data = ChartData::from_json(ChartKind::Bar, &Value::Array(rows))?;
    let spec = ChartSpec { kind: ChartKind::Bar, data, title: Some(title.to_owned()), options };
    body.push_str(&format!("<figure>{}</figure>\n", chart::draw(&spec)?.svg));
    Ok(())
}

fn add_table(body: &mut String, title: &str, heads: &[&str], rows: Vec<Vec<Value>>) {
    if rows.is_empty() {
        return;
    }
    let heads: String = heads.iter().map(|head| format!("<th>{}</th>", escape(head))).collect();
    let cell = |value: &Value| match value {
        Value::String(text) => format!("<td>{}</td>", escape(&display_line(text))),
        other => format!("<td class=\"n\">{other}</td>"),
    };
    let rows: String =
        rows.iter().map(|row| format!("<tr>{}</tr>\n", row.iter().map(cell).collect::<String>())).collect();
    body.push_str(&format!("<h2>{}</h2>\n<table><tr>{heads}</tr>\n{rows}</table>\n", escape(title)));
}

/// Returns the rows with the largest numbers.
fn top(rows: impl Iterator<Item = (u64, Value)>) -> Vec<Value> {
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    rows.into_iter().take(MAX_BARS).map(|(_, row)| row).collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_the_page_has_charts() {
        let mut report = ActivityReport::new(0, 86_400_000);
        report.files.insert("<script>alert(1)</script>".to_owned(), 1);
        report.tools.entry("a__b".to_owned()).or_default().calls = 3;
        report.days.entry("1970-01-01".to_owned()).or_default().calls = 3;
        let page = render(&report).unwrap();
        assert!(!page.contains("<script"), "{page}");
        assert!(page.contains("&lt;script&gt;alert(1)") && page.matches("<svg").count() == 3, "{page}");
    }

    #[test]
    fn an_empty_report_has_no_chart() {
        let page = render(&ActivityReport::new(0, 0)).unwrap();
        assert!(!page.contains("<svg") && page.contains("0 sessions"), "{page}");
    }
}
