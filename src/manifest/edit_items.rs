//! Adds, removes, changes and reorders the items of a list in a manifest that a person wrote, and renames entries. All
//! other lines stay, and a comment stays with the item below it.
//!
//! As in `edit.rs`, the result is parsed again and must equal the old content with that change.

use std::ops::Range;

use serde_json::{Value, json};

use super::edit::{offset, read, scalar_length, set};
use super::edit_entry::{edit_entry, is_remark};
use super::marks::{MarkedNode, NodeContent, TextSpan, mark};
use super::yaml::{SourceFile, parse};

/// Words that YAML reads as something other than text, or did in an earlier version.
const RESERVED_WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

/// An item of a list after a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditedItem {
    /// The item that was at this position, with its comments.
    Kept(usize),
    /// An item with this text, which is a YAML document.
    Text(String),
}

/// Returns each item of the list at the path as a YAML document, with the comments above it. Without such a list there
/// are none. `None` if the lines of the items cannot be found.
pub fn item_texts(text: &str, path: &[&str]) -> Option<Vec<String>> {
    let document = read(text)?;
    let Some(values) = value_at(&document, path).filter(|value| !value.is_null()) else { return Some(Vec::new()) };
    let values = values.as_array()?;
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    match BlockList::find(text, path).filter(|list| list.items.len() == values.len()) {
        Some(list) => Some(list.items.iter().map(|item| item.document(&lines)).collect()),
        None => {
            let entry = EntryLines::find(text, path)?;
            let has_comment = lines.get(entry.lines.clone())?.iter().any(|line| line.contains('#'));
            (entry.is_in_brackets && !has_comment).then(|| values.iter().map(block_text).collect())
        }
    }
}

/// Replaces the items of the list at the path, which need not exist. Without items it removes the entry. `None` if that
/// would change anything else.
pub fn edit_items(text: &str, path: &[&str], items: &[EditedItem]) -> Option<String> {
    if items.is_empty() {
        return edit_entry(text, path, None);
    }
    let mut expected = read(text)?;
    let documents = item_texts(text, path)?;
    let old = value_at(&expected, path);
    let new_value = |item: &EditedItem| match item {
        EditedItem::Kept(place) => old?.get(place).cloned(),
        EditedItem::Text(text) => parse(&SourceFile::new("item.yaml", text.as_str())).ok(),
    };
    let values: Vec<Value> = items.iter().map(new_value).collect::<Option<_>>()?;
    set(&mut expected, path, Value::Array(values))?;
    let text = match BlockList::find(text, path) {
        Some(list) => list.replace(text, items, None)?,
        None => {
            // A list of lines takes the place of one in brackets.
            let text = edit_entry(text, path, Some(&json!([null])))?;
            BlockList::find(&text, path)?.replace(&text, items, Some(&documents))?
        }
    };
    (read(&text)? == expected).then_some(text)
}

/// Gives the entry at the path another name. `None` if there is an entry with this name, or if that would change
/// anything else.
pub fn rename_entry(text: &str, path: &[&str], name: &str) -> Option<String> {
    let mut expected = read(text)?;
    let (last, parents) = path.split_last()?;
    let parent = parents.iter().try_fold(&mut expected, |at, key| at.get_mut(*key))?.as_object_mut()?;
    if parent.contains_key(name) {
        return None;
    }
    let value = parent.remove(*last)?;
    parent.insert(name.to_owned(), value);
    let key = EntryLines::find(text, path)?.key;
    let start = offset(text, key.line, key.column)?;
    let end = start + scalar_length(&text[start..], key.width)?;
    let text = format!("{}{}{}", &text[..start], key_text(name), &text[end..]);
    (read(&text)? == expected).then_some(text)
}

/// Returns a new text of an item with the comments of its old one, which is a single value.
pub fn with_comments(old: &str, new: &str) -> String {
    let remarks: usize = old.split_inclusive('\n').take_while(|line| is_remark(line)).map(str::len).sum();
    let (above, line) = old.split_at(remarks);
    let value = |text: &str| parse(&SourceFile::new("item.yaml", text)).ok();
    let behind = line.trim_end().split_once(" #").filter(|(before, _)| value(before) == value(line));
    match (behind, new.split_once('\n')) {
        (Some((_, comment)), Some((first, rest))) => format!("{above}{first} #{comment}\n{rest}"),
        _ => format!("{above}{new}"),
    }
}

/// Returns a value as a YAML document, with a line for each entry and item.
pub fn block_text(value: &Value) -> String {
    let mut text = String::new();
    write_block(&mut text, 0, value);
    text
}

fn write_block(text: &mut String, indent: usize, value: &Value) {
    let space = " ".repeat(indent);
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            for (key, value) in entries {
                match has_lines(value) {
                    true => {
                        text.push_str(&format!("{space}{}:\n", key_text(key)));
                        write_block(text, indent + 2, value);
                    }
                    false => text.push_str(&format!("{space}{}: {value}\n", key_text(key))),
                }
            }
        }
        Value::Array(items) if has_lines(value) => {
            items.iter().for_each(|item| text.push_str(&item_lines(&block_text(item), indent)));
        }
        value => text.push_str(&format!("{space}{value}\n")),
    }
}

/// Returns whether a value is on the lines below its key.
fn has_lines(value: &Value) -> bool {
    let is_nested = |value: &Value| value.as_object().is_some_and(|map| !map.is_empty()) || value.is_array();
    match value {
        Value::Object(entries) => !entries.is_empty(),
        Value::Array(items) => items.iter().any(is_nested),
        _ => false,
    }
}

/// Returns a key as it is written, in quotes if YAML needs them.
fn key_text(key: &str) -> String {
    let is_plain = key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'))
        && !RESERVED_WORDS.contains(&key.to_ascii_lowercase().as_str());
    if is_plain { key.to_owned() } else { Value::from(key).to_string() }
}

/// Returns a document as an item of a list whose dashes are in this column.
fn item_lines(document: &str, indent: usize) -> String {
    let space = " ".repeat(indent);
    let mut text = String::new();
    let mut is_begun = false;
    for line in document.split_inclusive('\n') {
        if line.trim().is_empty() {
            text.push('\n');
        } else if is_begun {
            text.push_str(&format!("{space}  {line}"));
        } else if is_remark(line) {
            text.push_str(&format!("{space}{line}"));
        } else {
            text.push_str(&format!("{space}- {line}"));
            is_begun = true;
        }
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

fn value_at<'a>(document: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(document, |at, key| at.get(*key))
}

/// The lines of an entry, counted from 0, without the comments before the next one.
struct EntryLines {
    key: TextSpan,
    lines: Range<usize>,
    /// The lines on which its items begin, counted from 1. `None` if it is no list.
    items: Option<Vec<usize>>,
    is_in_brackets: bool,
}

impl EntryLines {
    fn find(text: &str, path: &[&str]) -> Option<Self> {
        let marks = mark(text).ok()?;
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let mut at: &MarkedNode = &marks.root;
        let mut key: Option<TextSpan> = None;
        let mut next_line = lines.len() + 1;
        for name in path {
            let NodeContent::Map(entries) = &at.node else { return None };
            let place = entries.iter().position(|(known, ..)| known == name)?;
            let (_, span, inner) = entries.get(place)?;
            if let Some((_, next, _)) = entries.get(place + 1) {
                next_line = next.line;
            }
            (at, key) = (inner, Some(*span));
        }
        let key = key?;
        let mut end = (next_line - 1).min(lines.len());
        while end > key.line && is_remark(lines.get(end - 1)?) {
            end -= 1;
        }
        let items = match &at.node {
            NodeContent::Seq(items) => Some(items.iter().map(|item| item.span.line).collect()),
            NodeContent::Map(_) | NodeContent::Scalar => None,
        };
        let value = offset(text, at.span.line, at.span.column);
        let is_in_brackets = value.is_some_and(|start| text[start..].starts_with('['));
        Some(Self { key, lines: key.line - 1..end, items, is_in_brackets })
    }
}

/// A list with a dash before each item.
struct BlockList {
    /// The column of the dashes, counted from 0.
    indent: usize,
    items: Vec<BlockItem>,
}

/// The lines of an item, counted from 0.
struct BlockItem {
    /// With the comments above it.
    lines: Range<usize>,
    /// The line with the dash.
    dash: usize,
    /// The column behind the dash, counted from 0.
    column: usize,
}

impl BlockList {
    /// Returns the list at the path. `None` if there is none, if it is in brackets, or if an item is an alias.
    fn find(text: &str, path: &[&str]) -> Option<Self> {
        let entry = EntryLines::find(text, path)?;
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let dashes: Vec<usize> = entry.items?.iter().map(|line| line - 1).collect();
        let indent = indent_of(lines.get(*dashes.first()?)?);
        let mut items: Vec<BlockItem> = Vec::new();
        for dash in dashes {
            let line = lines.get(dash)?;
            let content = line.get(indent..)?.strip_prefix('-').filter(|rest| rest.starts_with(' '))?;
            let is_below =
                dash > items.last().map_or(entry.lines.start, |before| before.dash) && dash < entry.lines.end;
            if indent_of(line) != indent || !is_below {
                return None;
            }
            let first = items.last().map_or(entry.lines.start, |before| before.dash) + 1;
            let belongs = |line: &&&str| is_remark(line) && (line.trim().is_empty() || indent_of(line) <= indent);
            let above = lines.get(first..dash)?.iter().rev().take_while(belongs).count();
            if let Some(before) = items.last_mut() {
                before.lines.end = dash - above;
            }
            let column = indent + 1 + indent_of(content);
            items.push(BlockItem { lines: dash - above..entry.lines.end, dash, column });
        }
        Some(Self { indent, items })
    }

    /// Returns the text with other items. Kept items are those of this list, or those of `documents`.
    fn replace(&self, text: &str, items: &[EditedItem], documents: Option<&[String]>) -> Option<String> {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let mut new = lines.get(..self.items.first()?.lines.start)?.concat();
        for item in items {
            match (item, documents) {
                (EditedItem::Text(text), _) => new.push_str(&item_lines(text, self.indent)),
                (EditedItem::Kept(place), Some(documents)) => {
                    new.push_str(&item_lines(documents.get(*place)?, self.indent));
                }
                (EditedItem::Kept(place), None) => {
                    new.push_str(&lines.get(self.items.get(*place)?.lines.clone())?.concat());
                }
            }
            if !new.ends_with('\n') {
                new.push('\n');
            }
        }
        new.push_str(&lines.get(self.items.last()?.lines.end..)?.concat());
        Some(new)
    }
}

impl BlockItem {
    /// Returns the item without its dash and its indentation.
    fn document(&self, lines: &[&str]) -> String {
        let within = |range: Range<usize>| lines.get(range).unwrap_or_default().iter();
        let above = within(self.lines.start..self.dash).map(|line| line.trim_start_matches(' '));
        let first = within(self.dash..self.dash + 1).map(|line| line.get(self.column..).unwrap_or_default());
        let below = within(self.dash + 1..self.lines.end)
            .map(|line| line.get(indent_of(line).min(self.column)..).unwrap_or_default());
        above.chain(first).chain(below).collect()
    }
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: &str = "name: a\n# who helps\ndelegates:\n  # the first\n  - coding/qa # quick\n  - to: coding/backend\n    \
                         workspace: worktree # apart\n\n  # the last\n  - goose/*\n# below\nmodes: []\n";

    fn kept(places: &[usize]) -> Vec<EditedItem> {
        places.iter().copied().map(EditedItem::Kept).collect()
    }

    fn edited(text: &str, items: &[EditedItem]) -> String {
        edit_items(text, &["delegates"], items).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn items_are_documents_with_their_comments() {
        let items = item_texts(AGENT, &["delegates"]).unwrap();
        let second = "to: coding/backend\nworkspace: worktree # apart\n";
        assert_eq!(items, ["# the first\ncoding/qa # quick\n", second, "\n# the last\ngoose/*\n"]);
        assert_eq!(item_texts(AGENT, &["modes"]), Some(Vec::new()));
        assert_eq!(item_texts(AGENT, &["title"]), Some(Vec::new()), "there is no such list");
        assert_eq!(item_texts(AGENT, &["name"]), None, "it is no list");
    }

    #[test]
    fn items_move_and_go_with_their_comments() {
        assert_eq!(edited(AGENT, &kept(&[0, 1, 2])), AGENT);
        let (first, second, last) = (
            "  # the first\n  - coding/qa # quick\n",
            "  - to: coding/backend\n    workspace: worktree # apart\n",
            "\n  # the last\n  - goose/*\n",
        );
        assert_eq!(
            edited(AGENT, &kept(&[1, 0, 2])),
            AGENT.replace(&[first, second].concat(), &[second, first].concat())
        );
        assert_eq!(edited(AGENT, &kept(&[0, 1])), AGENT.replace(last, ""));
        let none = AGENT.replace(&["delegates:\n", first, second, last].concat(), "");
        assert_eq!(edited(AGENT, &[]), none, "without items there is no entry");
    }

    #[test]
    fn new_items_have_the_indentation_of_the_others() {
        let new = EditedItem::Text(block_text(&json!({"to": "a/b", "on": ["x"], "deep": {"list": [{"count": 1}]}})));
        let lines = "  - to: \"a/b\"\n    \"on\": [\"x\"]\n    deep:\n      list:\n        - count: 1\n";
        let with_new = edited(AGENT, &[kept(&[0, 1, 2]), vec![new.clone()]].concat());
        assert_eq!(with_new, AGENT.replace("- goose/*\n", &format!("- goose/*\n{lines}")));
        for (before, after) in [
            ("name: a\n", format!("name: a\ndelegates:\n{lines}")),
            ("delegates: []\nname: a\n", format!("delegates:\n{lines}name: a\n")),
        ] {
            assert_eq!(edited(before, std::slice::from_ref(&new)), after, "{before}");
        }
        let flow = edited("delegates: [x/y, {to: c/d}]\n", &[kept(&[1]), vec![new]].concat());
        assert_eq!(flow, format!("delegates:\n  - to: \"c/d\"\n{lines}"));
    }

    #[test]
    fn lists_that_cannot_be_edited_safely_are_left() {
        let swapped = |text: &str| edit_items(text, &["delegates"], &kept(&[1, 0]));
        assert_eq!(swapped("delegates: [a, b] # mine\n"), None, "the comment would be lost");
        assert_eq!(swapped("x: &x a\ndelegates:\n  - *x\n  - b\n").as_deref(), None, "an alias");
        assert_eq!(swapped("delegates:\n  - a\n"), None, "there is no second item");
        assert_eq!(swapped("delegates:\n  - |\n    # text\n  - b\n"), None, "an item of several lines of text");
        assert_eq!(
            swapped("delegates:\n  - to: |\n      # text\n  - b\n").as_deref(),
            Some("delegates:\n  - b\n  - to: |\n      # text\n"),
            "it is no comment"
        );
    }

    #[test]
    fn a_single_value_keeps_its_comments() {
        assert_eq!(with_comments("# why\na/b # quick\n", "\"c/d\"\n"), "# why\n\"c/d\" # quick\n");
        assert_eq!(with_comments("a/b # quick\n", "to: \"a/b\"\nx: 1\n"), "to: \"a/b\" # quick\nx: 1\n");
        assert_eq!(with_comments("\"a # b\"\n", "c\n"), "c\n", "it is no comment");
    }

    #[test]
    fn an_entry_gets_another_name_in_place() {
        let text = "groups:\n  read: # safe\n    - a\n  'write': [b]\n";
        let renamed = |from: &str, to: &str| rename_entry(text, &["groups", from], to);
        assert_eq!(renamed("read", "view"), Some(text.replace("read:", "view:")));
        assert_eq!(renamed("write", "on"), Some(text.replace("'write'", "\"on\"")));
        assert_eq!(renamed("read", "write"), None, "there is one with this name");
        assert_eq!(renamed("other", "x"), None);
    }
}
