//! Renders a Markdown table in columns, or as a list if the screen is too narrow.

use anstyle::Style;
use unicode_width::UnicodeWidthStr as _;

use super::super::output::QUIET;
use super::super::wrap::{Margin, Wrap};
use super::inline;

/// Spaces between two columns.
const GAP: usize = 2;
/// Minimum width of a column that is narrowed to fit.
const NARROWEST: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Side {
    Left,
    Middle,
    Right,
}

/// Returns true if the line may be a table row.
pub(super) fn is_row(line: &str) -> bool {
    line.trim_start_matches([' ', '\t']).starts_with('|')
}

/// Returns true if the line is the rule between the head and the rows of a table.
pub(super) fn is_rule(line: &str) -> bool {
    let cells = cells(line);
    !cells.is_empty() && cells.iter().all(|cell| cell.contains('-') && cell.trim_matches([':', '-']).is_empty())
}

/// Renders the lines of a table; the second line is its rule.
pub(super) fn set(lines: &[String], width: usize) -> String {
    let sides: Vec<_> =
        lines.get(1).map(|rule| cells(rule).iter().map(|cell| side(cell)).collect()).unwrap_or_default();
    let rows: Vec<Vec<String>> =
        lines.iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, line)| cells(line)).collect();
    let count = rows.iter().map(Vec::len).max().unwrap_or_default();
    let natural: Vec<usize> = (0..count)
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(|cell| columns(cell)).max().unwrap_or(0))
        .collect();
    match fit(natural, width) {
        Some(widths) => render_columns(&rows, &widths, &sides),
        None => render_list(&rows, width),
    }
}

/// Narrows the columns, the widest first, until they fit. `None` if they cannot.
fn fit(mut widths: Vec<usize>, width: usize) -> Option<Vec<usize>> {
    let gaps = GAP * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > width {
        let widest = widths.iter_mut().max()?;
        if *widest <= NARROWEST {
            return None;
        }
        *widest -= 1;
    }
    Some(widths)
}

fn render_columns(rows: &[Vec<String>], widths: &[usize], sides: &[Side]) -> String {
    let mut out = String::new();
    for (at, row) in rows.iter().enumerate() {
        let style = if at == 0 { Style::new().bold() } else { Style::new() };
        let cells: Vec<Vec<String>> = widths
            .iter()
            .enumerate()
            .map(|(column, width)| wrap_cell(row.get(column).map_or("", String::as_str), style, *width))
            .collect();
        for line in 0..cells.iter().map(Vec::len).max().unwrap_or_default() {
            let mut set = String::new();
            for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
                let text = cell.get(line).map_or("", String::as_str);
                let room = width.saturating_sub(visible(text));
                let before = match sides.get(column).copied().unwrap_or(Side::Left) {
                    Side::Left => 0,
                    Side::Middle => room / 2,
                    Side::Right => room,
                };
                let gap = if column == 0 { 0 } else { GAP };
                set.push_str(&format!("{}{text}{}", " ".repeat(gap + before), " ".repeat(room - before)));
            }
            out.push_str(set.trim_end());
            out.push('\n');
        }
        if at == 0 {
            let rule = widths.iter().map(|width| "─".repeat(*width)).collect::<Vec<_>>().join(&" ".repeat(GAP));
            out.push_str(&format!("{QUIET}{rule}{QUIET:#}\n"));
        }
    }
    out
}

/// Renders each row as a list of cells, with the names of their columns.
fn render_list(rows: &[Vec<String>], width: usize) -> String {
    let Some((head, rows)) = rows.split_first() else { return String::new() };
    let mut wrap = Wrap::default();
    let mut line = |name: Option<&str>, cell: &str, first: &str| {
        wrap.begin(Margin { first: first.to_owned(), next: "  ".to_owned(), width: 2 });
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            feed(&mut wrap, name, Style::new().bold(), width);
            wrap.push(": ", Style::new(), width);
        }
        feed(&mut wrap, cell, Style::new(), width);
        wrap.end(width);
    };
    if rows.is_empty() {
        head.iter().for_each(|cell| line(None, cell, "• "));
    }
    for row in rows {
        for column in 0..row.len().max(head.len()) {
            let cell = row.get(column).map_or("", String::as_str);
            line(head.get(column).map(String::as_str), cell, if column == 0 { "• " } else { "  " });
        }
    }
    wrap.take()
}

fn wrap_cell(cell: &str, style: Style, width: usize) -> Vec<String> {
    let mut wrap = Wrap::default();
    wrap.begin(Margin::default());
    feed(&mut wrap, cell, style, width);
    wrap.end(width);
    wrap.take().lines().map(str::to_owned).collect()
}

fn feed(wrap: &mut Wrap, cell: &str, style: Style, width: usize) {
    let mut pieces = Vec::new();
    inline::read(cell, None, style, true, &mut pieces);
    pieces.iter().for_each(|(text, style)| wrap.push(text, *style, width));
}

/// Returns the width of a cell on one line.
fn columns(cell: &str) -> usize {
    wrap_cell(cell, Style::new(), usize::MAX).iter().map(|line| visible(line)).max().unwrap_or_default()
}

fn visible(text: &str) -> usize {
    anstream::adapter::strip_str(text).to_string().width()
}

/// Splits a row into cells. A bar in code or after a backslash does not separate cells.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim();
    let line = line.strip_prefix('|').unwrap_or(line);
    let (mut cells, mut cell, mut in_code, mut escaped) = (Vec::new(), String::new(), false, false);
    for c in line.chars() {
        match c {
            '|' if escaped => {
                cell.pop();
                cell.push('|');
            }
            '|' if !in_code => cells.push(std::mem::take(&mut cell).trim().to_owned()),
            c => cell.push(c),
        }
        in_code ^= c == '`' && !escaped;
        escaped = c == '\\' && !escaped;
    }
    // The last bar is optional.
    if !cell.trim().is_empty() {
        cells.push(cell.trim().to_owned());
    }
    cells
}

fn side(rule: &str) -> Side {
    match (rule.starts_with(':'), rule.ends_with(':')) {
        (true, true) => Side::Middle,
        (false, true) => Side::Right,
        _ => Side::Left,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn plain(width: usize) -> String {
        let lines = [
            "| name | what it is | 数 |",
            "|:--|---|--:|",
            "| `a|b` | a **bold** claim | 7 |",
            "| 名前 | x \\| y | 1000 |",
        ];
        assert!(is_rule(lines[1]) && !is_rule(lines[0]));
        anstream::adapter::strip_str(&set(&lines.map(str::to_owned), width)).to_string()
    }

    #[test]
    fn columns_stand_below_each_other() {
        expect![[r"
            name  what it is      数
            ────  ────────────  ────
            a|b   a bold claim     7
            名前  x | y         1000
        "]]
        .assert_eq(&plain(80));
    }

    #[test]
    fn cells_are_wrapped_and_then_listed_if_there_is_no_room() {
        expect![[r"
            name  what it     数
                  is
            ────  ────────  ────
            a|b   a bold       7
                  claim
            名前  x | y     1000
        "]]
        .assert_eq(&plain(20));
        expect![[r"
            • name: a|b
              what it is: a
              bold claim
              数: 7
            • name: 名前
              what it is: x
              | y
              数: 1000
        "]]
        .assert_eq(&plain(15));
    }
}
