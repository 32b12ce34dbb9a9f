//! Reads a file of router examples: one request per line, with blank lines and comments left out.

/// Returns the examples in `text`, in order. A line that starts with `#` is a comment.
pub(super) fn parse(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn blank_lines_and_comments_are_ignored() {
        let text = "# Requests for a mode.\r\n\r\n  write a test  \r\n\t# indented comment\nfix issue #12\n\n";
        assert_eq!(parse(text), ["write a test", "fix issue #12"]);
    }

    #[test]
    fn a_file_of_comments_has_no_examples() {
        assert!(parse("# nothing yet\n\n").is_empty());
    }
}
