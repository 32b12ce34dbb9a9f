//! Mermaid: flowcharts, state, sequence and pie diagrams.

mod flowchart;
mod sequence;
mod syntax;

use super::error::ChartError;
use super::{ChartSheet, pie};

/// Larger texts are refused.
const MAX_TEXT: usize = 100_000;

/// A line of Mermaid with its number, without comments.
type Line<'a> = (usize, &'a str);

fn fail<T>(line: usize, problem: impl Into<String>) -> Result<T, ChartError> {
    Err(ChartError::Mermaid { line, problem: problem.into() })
}

pub(super) fn draw(text: &str, title: &str) -> Result<ChartSheet, ChartError> {
    if text.len() > MAX_TEXT {
        return fail(1, format!("it has {} bytes, {MAX_TEXT} are the limit", text.len()));
    }
    let (own_title, lines) = read_lines(text);
    let title = if title.is_empty() { own_title.unwrap_or_default() } else { title };
    let Some(&(number, first)) = lines.first() else {
        return fail(1, "the text is empty; start with `flowchart LR` or `sequenceDiagram`");
    };
    let (kind, rest) = first.split_once(char::is_whitespace).unwrap_or((first, ""));
    let body = &lines[1..];
    match kind.trim_end_matches([';', ':']) {
        "flowchart" | "graph" | "flowchart-elk" => {
            let chart = syntax::read_flowchart(number, rest, body)?;
            flowchart::draw(&chart, title)
        }
        "stateDiagram" | "stateDiagram-v2" => flowchart::draw(&syntax::read_states(body)?, title),
        "sequenceDiagram" => sequence::draw(body, title),
        "pie" => draw_pie(rest, body, title),
        other => fail(
            number,
            format!(
                "`{other}` cannot be drawn; these can: flowchart (graph), stateDiagram-v2, sequenceDiagram, pie. \
                 Use one of them, or another `kind`"
            ),
        ),
    }
}

/// Returns the title of the front matter, and the lines that are neither empty nor comments.
fn read_lines(text: &str) -> (Option<&str>, Vec<Line<'_>>) {
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())).peekable();
    let mut title = None;
    while lines.next_if(|(_, line)| line.is_empty()).is_some() {}
    if lines.next_if(|(_, line)| *line == "---").is_some() {
        for (_, line) in lines.by_ref().take_while(|(_, line)| *line != "---") {
            title = line.strip_prefix("title:").map(str::trim).or(title);
        }
    }
    (title, lines.filter(|(_, line)| !line.is_empty() && !line.starts_with("%%")).collect())
}

fn draw_pie(rest: &str, body: &[Line<'_>], title: &str) -> Result<ChartSheet, ChartError> {
    let rest = rest.trim().trim_start_matches("showData").trim();
    let mut title = if title.is_empty() { rest.strip_prefix("title").map_or("", str::trim) } else { title };
    let mut parts = Vec::new();
    for &(line, text) in body {
        if let Some(text) = text.strip_prefix("title ") {
            title = if title.is_empty() { text.trim() } else { title };
            continue;
        }
        let entry = text.strip_prefix('"').and_then(|text| text.split_once('"'));
        let entry = entry.and_then(|(name, value)| Some((name, value.trim().strip_prefix(':')?.trim())));
        let Some((name, value)) = entry else { return fail(line, "write a slice as `\"Name\" : 12.5`") };
        match value.parse::<f64>() {
            Ok(value) if (0.0..1e200).contains(&value) => parts.push((name.to_owned(), value)),
            _ => return fail(line, format!("`{value}` is no positive number")),
        }
    }
    Ok(pie::draw_parts(false, parts, title))
}
