//! Sets or removes one entry of a manifest that a person wrote, also an entry of several lines, and keeps all other
//! lines.
//!
//! As in `edit.rs`, the result is parsed again and must equal the old content with that change.

use serde_json::Value;

use super::edit::{apply_edits, entry_lines, read, set};
use super::marks::{MarkedNode, NodeContent, TextSpan, mark};

/// Sets the entry at the path, or removes it if there is no value. Returns the new text. `None` if the entry to remove
/// is missing, or if that would change anything else.
pub fn edit_entry(text: &str, path: &[&str], value: Option<&Value>) -> Option<String> {
    match value {
        Some(value) => {
            let edited = apply_edits(text, &[(path.to_vec(), value.clone())]);
            edited.or_else(|| replace_value(text, path, value))
        }
        None => {
            let mut expected = read(text)?;
            let removed = remove(&mut expected, path)?;
            let text = replace_lines(text, removed, None)?;
            (read(&text)? == expected).then_some(text)
        }
    }
}

fn replace_value(text: &str, path: &[&str], value: &Value) -> Option<String> {
    let mut expected = read(text)?;
    set(&mut expected, path, value.clone())?;
    let text = replace_lines(text, path, Some(value))?;
    (read(&text)? == expected).then_some(text)
}

/// Removes an entry, and the mappings around it that would be empty. Returns the path of the outermost one.
fn remove<'a>(document: &mut Value, path: &'a [&'a str]) -> Option<&'a [&'a str]> {
    let (last, parents) = path.split_last()?;
    let parent = parents.iter().try_fold(&mut *document, |at, key| at.get_mut(*key))?.as_object_mut()?;
    parent.remove(*last)?;
    let is_empty = parent.is_empty();
    if is_empty && !parents.is_empty() { remove(document, parents) } else { Some(path) }
}

/// Replaces the lines of an entry of a block mapping. `None` if the entry does not begin its line.
fn replace_lines(text: &str, path: &[&str], value: Option<&Value>) -> Option<String> {
    let marks = mark(text).ok()?;
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let mut at: &MarkedNode = &marks.root;
    let mut key: Option<TextSpan> = None;
    // The line after the entry, counted from 1.
    let mut end = lines.len() + 1;
    for name in path {
        let NodeContent::Map(entries) = &at.node else { return None };
        let place = entries.iter().position(|(known, ..)| known == name)?;
        let (_, span, inner) = entries.get(place)?;
        if let Some((_, next, _)) = entries.get(place + 1) {
            end = next.line;
        }
        (at, key) = (inner, Some(*span));
    }
    let (key, name) = (key?, *path.last()?);
    let (start, indent) = (key.line - 1, key.column - 1);
    if lines.get(start)?.chars().take(indent).any(|c| c != ' ') {
        return None;
    }
    let mut end = (end - 1).min(lines.len());
    // Comments before the next entry belong to that entry.
    while end > start + 1 && is_remark(lines.get(end - 1)?) {
        end -= 1;
    }
    let new = value.map(|value| entry_lines(indent, &[name], value)).unwrap_or_default();
    Some(format!("{}{new}{}", lines.get(..start)?.concat(), lines.get(end..)?.concat()))
}

/// Returns whether a line is empty or a comment.
pub(super) fn is_remark(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MANIFEST: &str = "# mine\nname: web # short\ndescription: >-\n  Reads\n  pages.\n\ntransport:\n  stdio:\n    \
                            command: serve\n    args:\n      - --port\n      - \"1\"\n# how long\ntimeouts:\n  call: 5s\n";

    #[test]
    fn entries_of_several_lines_are_replaced_in_place() {
        let new = edit_entry(MANIFEST, &["description"], Some(&json!("Reads."))).unwrap();
        assert_eq!(new, MANIFEST.replace(">-\n  Reads\n  pages.\n", "\"Reads.\"\n"));
        let new = edit_entry(MANIFEST, &["transport", "stdio", "args"], Some(&json!(["a", "b"]))).unwrap();
        assert_eq!(new, MANIFEST.replace("- --port\n      - \"1\"", "- \"a\"\n      - \"b\""));
    }

    #[test]
    fn a_scalar_is_exchanged_and_a_missing_entry_is_added() {
        let new = edit_entry(MANIFEST, &["name"], Some(&json!("net"))).unwrap();
        assert_eq!(new, MANIFEST.replace("web", "\"net\""));
        let new = edit_entry(MANIFEST, &["restart", "max"], Some(&json!(2))).unwrap();
        assert_eq!(new, format!("{MANIFEST}restart:\n  max: 2\n"));
    }

    #[test]
    fn an_entry_is_removed_with_a_mapping_that_would_be_empty() {
        let new = edit_entry(MANIFEST, &["timeouts", "call"], None).unwrap();
        assert_eq!(new, MANIFEST.replace("timeouts:\n  call: 5s\n", ""));
        let new = edit_entry(MANIFEST, &["transport", "stdio", "args"], None).unwrap();
        assert_eq!(new, MANIFEST.replace("    args:\n      - --port\n      - \"1\"\n", ""));
        assert_eq!(edit_entry(MANIFEST, &["title"], None), None, "it is not there");
    }

    #[test]
    fn what_cannot_be_changed_safely_is_left() {
        assert_eq!(edit_entry("a: {b: [1], c: 2}\n", &["a", "b"], Some(&json!([2]))), None, "a flow mapping");
        assert_eq!(edit_entry("a: [closed\n", &["a"], Some(&json!(1))), None);
        let shared = "a: &x\n  b: 1\nc: *x\n";
        assert_eq!(edit_entry(shared, &["a", "b"], Some(&json!(2))), None, "another entry would change with it");
    }
}
