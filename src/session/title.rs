//! Derives the title of a session from what the user wrote in the first prompt.
//!
//! Invariant: a title comes from the user's own words if there are any. Editors put context before and after them: file
//! names, excerpts, and blocks in tags.

use crate::conversation::Content;
use crate::tool::is_hidden;

/// Maximum number of characters of a title.
const MAX: usize = 60;

/// Returns the title for a session that starts with `prompt`. `None` if the prompt has no text.
pub(super) fn title_of(prompt: &[Content]) -> Option<String> {
    let blocks: Vec<&str> = prompt.iter().filter_map(Content::as_text).collect();
    let untagged = blocks.iter().map(|block| without_tags(block));
    let own = untagged.clone().find_map(|text| first_line(&text, |line| !is_context(line)));
    // Some editors put the whole prompt into a tag, and some prompts are only a file name.
    let tagged = || blocks.iter().find_map(|block| first_line(&inside_tag(block)?, |line| !is_context(line)));
    let any = || blocks.iter().find_map(|block| first_line(block, |_| true));
    own.or_else(tagged).or_else(any)
}

/// Returns a title from one line of text. `None` if nothing of it can be shown.
pub(super) fn line_title(line: &str) -> Option<String> {
    first_line(line, |_| true)
}

/// Returns the first line outside of code blocks that `fits`, shortened to a title.
fn first_line(text: &str, fits: impl Fn(&str) -> bool) -> Option<String> {
    let mut in_code = false;
    let line = text.lines().map(str::trim).find(|line| {
        let is_fence = line.starts_with("```") || line.starts_with("~~~");
        in_code ^= is_fence;
        !in_code && !is_fence && !line.is_empty() && fits(line)
    })?;
    let line: String = line.chars().filter(|c| !c.is_control() && !is_hidden(*c)).collect();
    let line = line.trim_start_matches(['#', '>', ' ']).trim();
    if line.chars().count() <= MAX {
        return Some(line.to_owned()).filter(|line| !line.is_empty());
    }
    let cut: String = line.chars().take(MAX).collect();
    let end = cut.rfind(' ').filter(|end| *end > MAX / 2).unwrap_or(cut.len());
    Some(format!("{}…", cut[..end].trim_end()))
}

/// Returns true for a line that names a file, such as `src/main.rs:3-7` or `@notes.md`, instead of saying something.
fn is_context(line: &str) -> bool {
    let (path, position) = line.split_once(':').unwrap_or((line, ""));
    let is_position = position.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | ':' | ','));
    let path = path.strip_prefix('@').unwrap_or(path);
    let in_path = |c: char| c.is_alphanumeric() || "/._-~+@".contains(c);
    let is_path =
        path.contains('/') || path.rsplit_once('.').is_some_and(|(name, end)| !name.is_empty() && !end.is_empty());
    line.starts_with("file://") || (is_position && is_path && path.chars().all(in_path))
}

/// Removes the blocks `<tag>…</tag>` of a text, with their contents.
fn without_tags(text: &str) -> String {
    let mut left = String::new();
    let mut rest = text;
    while let Some((before, block)) = next_tag(rest) {
        left.push_str(before);
        left.push('\n');
        rest = &rest[before.len() + block.len()..];
    }
    left.push_str(rest);
    left
}

/// Returns the contents of the first tagged block.
fn inside_tag(text: &str) -> Option<String> {
    let (_, block) = next_tag(text)?;
    let start = block.find('>')? + 1;
    let end = block.rfind("</")?;
    block.get(start..end).map(str::to_owned)
}

/// Splits at the first block that a tag opens and closes: the text before it, and the block.
fn next_tag(text: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    while let Some(found) = text[from..].find('<') {
        let start = from + found;
        let name: &str =
            text[start + 1..].split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))).next()?;
        let opens = name.starts_with(|c: char| c.is_ascii_alphabetic());
        let close = format!("</{name}>");
        if let Some(end) = text[start..].find(&close).filter(|_| opens) {
            return Some((&text[..start], &text[start..start + end + close.len()]));
        }
        from = start + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn title(blocks: &[&str]) -> Option<String> {
        title_of(&blocks.iter().map(|text| Content::text(*text)).collect::<Vec<_>>())
    }

    #[test]
    fn a_title_is_what_the_user_wrote() {
        for (blocks, expected) in [
            (&["Fix the login page\nand the tests"][..], "Fix the login page"),
            // agent-shell puts a region of a file first.
            (&["\n\nnotes.md:4-3\n\nSort the list"], "Sort the list"),
            (&["@src/app.py\nRename greet"], "Rename greet"),
            (&["/home/user/project/a.rs:12\nWhat does this do?"], "What does this do?"),
            // goose puts the time and the folder last, others put tags first.
            (&["Run make", "<turn-context>\n<current-time>now</current-time>\n</turn-context>"], "Run make"),
            (&["<system_context>Continuing</system_context>", "Go on"], "Go on"),
            (&["<context id=\"1\">\nfile\n</context>\n\nExplain it"], "Explain it"),
            (&["```rust\nfn main() {}\n```\nAdd a test"], "Add a test"),
            // avante puts the prompt into a tag.
            (
                &["<previous_user_message>Run make</previous_user_message>", "<system_context>x</system_context>"],
                "Run make",
            ),
            (&["README.md"], "README.md"),
            (&["if a < b then c > d"], "if a < b then c > d"),
        ] {
            assert_eq!(title(blocks).as_deref(), Some(expected), "{blocks:?}");
        }
        assert_eq!(title(&["  \n"]), None);
    }

    #[test]
    fn a_long_title_ends_at_a_word() {
        let long = title(&[&"word ".repeat(30)]).unwrap();
        assert!(long.ends_with("word…") && long.chars().count() <= MAX + 1, "{long}");
    }
}
