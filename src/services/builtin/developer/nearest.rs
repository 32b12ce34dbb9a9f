//! Finds the lines most similar to a text that was not found.

use std::time::{Duration, Instant};

use crate::text::line_diff;

/// Maximum number of passages shown.
const MAX_PLACES: usize = 3;
/// Maximum number of lines shown per passage.
const MAX_LINES: usize = 12;
/// Minimum similarity of a passage that is shown.
const ALIKE: f32 = 0.6;
/// Time limit of the comparison.
const PATIENCE: Duration = Duration::from_millis(300);

/// Describes the lines of `text` that resemble `wanted`, with line numbers, or states that none do.
pub(super) fn describe(text: &str, wanted: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let wanted: Vec<&str> = wanted.lines().collect();
    if let Some(start) = same_but_for_space(&lines, &wanted) {
        return format!(
            "These lines differ from it only in white space; copy them exactly:\n{}",
            number_lines(&lines, start, wanted.len())
        );
    }
    let places = alike(&lines, &wanted);
    if places.is_empty() {
        return "Nothing in the text resembles it; read it again".to_owned();
    }
    let places: Vec<String> = places.into_iter().map(|start| number_lines(&lines, start, wanted.len())).collect();
    format!("Nearest lines:\n{}Copy the text exactly as it is", places.join("  ...\n"))
}

fn same_but_for_space(lines: &[&str], wanted: &[&str]) -> Option<usize> {
    let squeeze = |line: &str| line.split_whitespace().collect::<String>();
    let wanted: Vec<String> = wanted.iter().map(|line| squeeze(line)).collect();
    if wanted.iter().all(String::is_empty) {
        return None;
    }
    let lines: Vec<String> = lines.iter().map(|line| squeeze(line)).collect();
    lines.windows(wanted.len()).position(|window| window == wanted)
}

/// Returns the first lines of the most similar passages, in file order.
fn alike(lines: &[&str], wanted: &[&str]) -> Vec<usize> {
    // The longest line identifies a passage better than a brace does.
    let Some((offset, key)) = wanted.iter().map(|line| line.trim()).enumerate().max_by_key(|(_, line)| line.len())
    else {
        return Vec::new();
    };
    if key.is_empty() {
        return Vec::new();
    }
    let deadline = Instant::now() + PATIENCE;
    let mut scored = Vec::new();
    for (index, line) in lines.iter().map(|line| line.trim()).enumerate() {
        let (short, long) = (line.len().min(key.len()), line.len().max(key.len()));
        // The ratio is twice the common part divided by the sum of the lengths, so very different lengths rule a
        // match out.
        if short * 2 < long || long > 2_000 {
            continue;
        }
        let ratio = line_diff::char_similarity(key, line);
        if ratio >= ALIKE {
            scored.push((ratio, index.saturating_sub(offset)));
        }
        if Instant::now() > deadline {
            break;
        }
    }
    scored.sort_by(|(left, _), (right, _)| right.total_cmp(left));
    let mut starts: Vec<usize> = scored.into_iter().take(MAX_PLACES).map(|(_, start)| start).collect();
    starts.sort_unstable();
    starts
}

fn number_lines(lines: &[&str], start: usize, length: usize) -> String {
    let shown = lines.iter().enumerate().skip(start).take(length.min(MAX_LINES));
    shown.map(|(index, line)| format!("{:>5}\t{}\n", index + 1, line.chars().take(400).collect::<String>())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_differ_in_indentation_are_named_as_such() {
        let said = describe("fn a() {\n    one();\n}\n", "fn a() {\n\tone();");
        assert_eq!(
            said,
            "These lines differ from it only in white space; copy them exactly:\n    1\tfn a() {\n    2\t    one();\n"
        );
    }

    #[test]
    fn the_most_similar_lines_are_shown_with_their_numbers() {
        let text = "zero\nlet total = first + second;\n\nunrelated words here\n";
        let said = describe(text, "let total = first - second;");
        assert!(said.contains("    2\tlet total = first + second;"), "{said}");
        assert!(!said.contains("unrelated"), "{said}");
    }

    #[test]
    fn nothing_alike_is_said_plainly() {
        assert!(describe("a\nb\n", "something else entirely").starts_with("Nothing in the text"));
        assert!(describe("", "x").starts_with("Nothing in the text"));
    }
}
