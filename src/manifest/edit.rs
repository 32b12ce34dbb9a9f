//! Sets values and adds list items in a config file that a user wrote, and keeps every other byte.
//!
//! The marked parse provides the position of each edit. The result is parsed again and must equal the old content with
//! the new values. Otherwise the file cannot be edited safely, and the functions return `None`.

use serde_json::{Map, Value};

use super::marks::{MarkedNode, NodeContent, TextSpan, mark};
use super::yaml::{SourceFile, parse};

/// Sets each path to its value and returns the new text. `None` if that would change anything else.
pub fn apply_edits(text: &str, changes: &[(Vec<&str>, Value)]) -> Option<String> {
    let mut expected = read(text)?;
    let mut text = text.to_owned();
    for (path, value) in changes {
        set(&mut expected, path, value.clone())?;
        text = apply_edit(&text, path, value)?;
        if read(&text)? != expected {
            return None;
        }
    }
    Some(text)
}

/// Inserts `item` at the start of the list at the path, creating the list if needed. `None` if that would change
/// anything else.
pub fn with_first(text: &str, path: &[&str], item: &Value) -> Option<String> {
    let mut expected = read(text)?;
    let pointer: String = path.iter().map(|key| format!("/{key}")).collect();
    match expected.pointer_mut(&pointer) {
        Some(list) => list.as_array_mut()?.insert(0, item.clone()),
        None => set(&mut expected, path, Value::from(vec![item.clone()]))?,
    }
    let text = first(text, path, item)?;
    (read(&text)? == expected).then_some(text)
}

fn first(text: &str, path: &[&str], item: &Value) -> Option<String> {
    let marks = mark(text).ok()?;
    let (mut at, mut key_line): (&MarkedNode, usize) = (&marks.root, 0);
    for key in path {
        let NodeContent::Map(entries) = &at.node else { return None };
        let Some((_, key, inner)) = entries.iter().find(|(name, ..)| name == key) else {
            return apply_edit(text, path, &Value::from(vec![item.clone()]));
        };
        (at, key_line) = (inner, key.line);
    }
    let NodeContent::Seq(items) = &at.node else { return None };
    let below = items.first().and_then(|first| text[offset(text, first.span.line, 1)?..].split_once("- "));
    if let Some((indent, _)) = below.filter(|(indent, _)| indent.trim_matches(' ').is_empty()) {
        // Insert right below the key, so that a comment above the next item stays with that item.
        let line = offset(text, key_line + 1, 1)?;
        return Some(format!("{}{indent}- {item}\n{}", &text[..line], &text[line..]));
    }
    let start = offset(text, at.span.line, at.span.column)?;
    let inside = text[start..].strip_prefix('[')?;
    let comma = if items.is_empty() { "" } else { ", " };
    Some(format!("{}[{item}{comma}{inside}", &text[..start]))
}

/// Removes `item` from the list at the path. Removes the key as well if the list has no other item. `None` if the item is
/// missing, or if that would change anything else.
pub fn without_item(text: &str, path: &[&str], item: &str) -> Option<String> {
    let mut expected = read(text)?;
    let (last, parents) = path.split_last()?;
    let parent = parents.iter().try_fold(&mut expected, |at, key| at.get_mut(*key))?.as_object_mut()?;
    let list = parent.get_mut(*last)?.as_array_mut()?;
    let before = list.len();
    list.retain(|value| value != item);
    let is_empty = list.is_empty();
    if list.len() == before {
        return None;
    }
    if is_empty {
        parent.remove(*last);
    }
    let text = remove_item(text, path, item, is_empty)?;
    (read(&text)? == expected).then_some(text)
}

fn remove_item(text: &str, path: &[&str], item: &str, with_key: bool) -> Option<String> {
    let marks = mark(text).ok()?;
    let (mut at, mut key_span): (&MarkedNode, Option<TextSpan>) = (&marks.root, None);
    for key in path {
        let NodeContent::Map(entries) = &at.node else { return None };
        let (_, span, inner) = entries.iter().find(|(name, ..)| name == key)?;
        (at, key_span) = (inner, Some(*span));
    }
    let NodeContent::Seq(items) = &at.node else { return None };
    let start = offset(text, at.span.line, at.span.column)?;
    if text[start..].starts_with('[') {
        // The caller parses the result, so a bracket inside an item only makes the edit fail.
        let end = start + text[start..].find(']')? + 1;
        if with_key {
            let key = offset(text, key_span?.line, 1)?;
            let rest = text[end..].split_once('\n').map_or("", |(_, rest)| rest);
            return Some(format!("{}{rest}", &text[..key]));
        }
        let inside = text[start + 1..end - 1].split(',');
        let kept: Vec<_> = inside.filter(|part| part.trim().trim_matches(['"', '\'']) != item).map(str::trim).collect();
        return Some(format!("{}[{}]{}", &text[..start], kept.join(", "), &text[end..]));
    }
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    let is_item = |line: &&str| {
        let value = line.trim_start().strip_prefix("- ").unwrap_or_default();
        value.split(" #").next().unwrap_or_default().trim().trim_matches(['"', '\'']) == item
    };
    let mut removed: Vec<usize> = items.iter().map(|item| item.span.line - 1).collect();
    removed.retain(|line| lines.get(*line).is_some_and(is_item));
    if with_key {
        removed.push(key_span?.line - 1);
    }
    removed.sort_unstable();
    for line in removed.into_iter().rev() {
        lines.remove(line);
    }
    Some(lines.concat())
}

pub(super) fn read(text: &str) -> Option<Value> {
    parse(&SourceFile::new("config.yaml", text)).ok().filter(Value::is_object)
}

pub(super) fn set(value: &mut Value, path: &[&str], new: Value) -> Option<()> {
    let (last, parents) = path.split_last()?;
    let mut at = value.as_object_mut()?;
    for key in parents {
        at = at.entry(*key).or_insert_with(|| Value::Object(Map::new())).as_object_mut()?;
    }
    at.insert((*last).to_owned(), new);
    Some(())
}

fn apply_edit(text: &str, path: &[&str], value: &Value) -> Option<String> {
    let marks = mark(text).ok()?;
    let mut at: &MarkedNode = &marks.root;
    for (depth, key) in path.iter().enumerate() {
        let NodeContent::Map(entries) = &at.node else { return None };
        match entries.iter().find(|(name, ..)| name == key) {
            Some((_, _, inner)) => at = inner,
            None => {
                let first = entries.first().map(|(_, span, _)| *span);
                return insert(text, at.span, first, depth == 0, &path[depth..], value);
            }
        }
    }
    let NodeContent::Scalar = at.node else { return None };
    let start = offset(text, at.span.line, at.span.column)?;
    let end = start + scalar_length(&text[start..], at.span.width)?;
    Some(format!("{}{value}{}", &text[..start], &text[end..]))
}

/// Returns the length of a scalar in bytes. For a quoted scalar, the parser's width includes the text after the quote.
pub(super) fn scalar_length(text: &str, width: usize) -> Option<usize> {
    let quote = text.chars().next()?;
    if !matches!(quote, '"' | '\'') {
        let plain: String = text.chars().take(width).collect();
        return Some(plain.trim_end().len());
    }
    let mut inside = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = inside.next() {
        let doubled = c == '\'' && quote == c && inside.peek().is_some_and(|(_, next)| *next == c);
        if doubled || (c == '\\' && quote == '"') {
            inside.next();
        } else if c == quote {
            return Some(at + 1);
        }
    }
    None
}

/// Inserts an entry into the mapping that starts at `mapping` and whose first key is at `first`.
fn insert(
    text: &str,
    mapping: TextSpan,
    first: Option<TextSpan>,
    at_root: bool,
    path: &[&str],
    value: &Value,
) -> Option<String> {
    let start = offset(text, mapping.line, mapping.column)?;
    if text[start..].starts_with('{') {
        let inside = path.iter().rev().fold(value.to_string(), |inner, key| format!("{{{key}: {inner}}}"));
        let entry = inside.strip_prefix('{')?.strip_suffix('}')?;
        let comma = if first.is_some() { ", " } else { "" };
        return Some(format!("{}{{{entry}{comma}{}", &text[..start], &text[start + 1..]));
    }
    let first = first?;
    let indent = first.column - 1;
    let lines = entry_lines(indent, path, value);
    if at_root {
        let gap = if text.ends_with('\n') { "" } else { "\n" };
        return Some(format!("{text}{gap}{lines}"));
    }
    let line = offset(text, first.line, 1)?;
    text[line..].starts_with(&" ".repeat(indent)).then(|| format!("{}{lines}{}", &text[..line], &text[line..]))
}

/// Returns the lines of an entry of a block mapping. Its keys are the steps of the path.
pub(super) fn entry_lines(indent: usize, path: &[&str], value: &Value) -> String {
    let mut lines = String::new();
    for (depth, key) in path.iter().enumerate() {
        let space = " ".repeat(indent + 2 * depth);
        let end = match value {
            _ if depth + 1 < path.len() => String::new(),
            Value::Array(items) if !items.is_empty() => {
                items.iter().map(|item| format!("\n{space}  - {item}")).collect()
            }
            value => format!(" {value}"),
        };
        lines.push_str(&format!("{space}{key}:{end}\n"));
    }
    lines
}

/// Converts a line and column, both counted from 1, to a byte offset.
pub(super) fn offset(text: &str, line: usize, column: usize) -> Option<usize> {
    let mut start = 0;
    for _ in 1..line {
        start += text[start..].find('\n')? + 1;
    }
    let rest = &text[start..];
    let inside = rest.char_indices().map(|(at, _)| at).chain([rest.len()]).nth(column - 1)?;
    Some(start + inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with_model(text: &str) -> Option<String> {
        apply_edits(text, &[(vec!["profiles", "default", "processor"], json!("openai:new"))])
    }

    #[test]
    fn a_value_is_exchanged_and_the_rest_stays() {
        let text =
            "# mine\nversion: 1\nprofiles:\n  default: # the one\n    processor: openai:old # fast\n    agent: goose\n";
        let new = with_model(text).expect("edited");
        assert_eq!(new, text.replace("openai:old", "\"openai:new\""));
        for quoted in ["'openai:old'", "'it''s'", "\"a\\\"b\""] {
            let text = text.replace("openai:old", quoted);
            assert_eq!(with_model(&text), Some(text.replace(quoted, "\"openai:new\"")), "{quoted}");
        }
    }

    #[test]
    fn what_is_missing_is_added_where_it_belongs() {
        assert_eq!(
            with_model("version: 1 # one\napproval: ask").as_deref(),
            Some("version: 1 # one\napproval: ask\nprofiles:\n  default:\n    processor: \"openai:new\"\n")
        );
        assert_eq!(
            with_model("version: 1\nprofiles:\n    # mine\n    work: {agent: goose}\n").as_deref(),
            Some(
                "version: 1\nprofiles:\n    # mine\n    default:\n      processor: \"openai:new\"\n    work: {agent: goose}\n"
            )
        );
        assert_eq!(
            with_model("version: 1\nprofiles: {default: {agent: goose}}\n").as_deref(),
            Some("version: 1\nprofiles: {default: {processor: \"openai:new\", agent: goose}}\n")
        );
    }

    #[test]
    fn an_item_comes_first_in_whatever_form_the_list_has() {
        let item = json!({"tool": "a", "arguments": {"x": "it's: \"b\" # c"}});
        let put = |text: &str| with_first(text, &["rules"], &item);
        for (before, after) in [
            ("version: 1 # one\n", "version: 1 # one\nrules:\n  - ITEM\n"),
            ("version: 1", "version: 1\nrules:\n  - ITEM\n"),
            ("rules: [] # none\nversion: 1\n", "rules: [ITEM] # none\nversion: 1\n"),
            ("rules: [{tool: b}]\n", "rules: [ITEM, {tool: b}]\n"),
            ("rules: [\n  {tool: b}, # mine\n]\n", "rules: [ITEM, \n  {tool: b}, # mine\n]\n"),
            (
                "rules: # mine\n  # b\n  - tool: b\n    x: y\nz: 1\n",
                "rules: # mine\n  - ITEM\n  # b\n  - tool: b\n    x: y\nz: 1\n",
            ),
            ("rules:\n- tool: b\n", "rules:\n- ITEM\n- tool: b\n"),
            ("{version: 1}\n", "{rules: [ITEM], version: 1}\n"),
        ] {
            let after = after.replace("ITEM", &item.to_string());
            assert_eq!(put(before).as_ref(), Some(&after), "{before}");
            assert!(put(&after).is_some_and(|twice| twice.matches("it's").count() == 2), "{after}");
        }
        let deeper = with_first("a:\n  b:\n    - 1\n", &["a", "b"], &json!(0));
        assert_eq!(deeper.as_deref(), Some("a:\n  b:\n    - 0\n    - 1\n"));
        for wrong in [
            "rules:\n",
            "rules: text\n",
            "rules: {a: 1}\n",
            "not: [closed\n",
            "x: &x [1]\nrules: *x\n",
            "version: 1\n...\n",
        ] {
            assert_eq!(put(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_edited_safely_is_left() {
        assert_eq!(with_model("version: 1\nprofiles:\n"), None, "a key without a value");
        assert_eq!(with_model("version: 1\nprofiles: [a]\n"), None);
        assert_eq!(with_model("not: [closed\n"), None);
        let shared = "version: 1\nprofiles:\n  a: &x {processor: 'openai:a'}\n  default: *x\n";
        assert_eq!(with_model(shared), None, "another profile would change with it");
    }

    #[test]
    fn an_item_is_removed_and_the_rest_stays() {
        let removed = |text: &str| without_item(text, &["disabled_services"], "b");
        let block = "version: 1\ndisabled_services: # mine\n  - a\n  - \"b\" # noisy\nrecall: true\n";
        let expected = "version: 1\ndisabled_services: # mine\n  - a\nrecall: true\n";
        assert_eq!(removed(block).as_deref(), Some(expected));
        let flow = "version: 1\ndisabled_services: [a, 'b', c] # mine\n";
        assert_eq!(removed(flow).as_deref(), Some("version: 1\ndisabled_services: [a, c] # mine\n"));
        for last in ["version: 1\ndisabled_services: [b]\n", "version: 1\ndisabled_services:\n  - b\n"] {
            assert_eq!(removed(last).as_deref(), Some("version: 1\n"), "{last}");
        }
        assert_eq!(removed("version: 1\ndisabled_services: [a]\n"), None, "it is not there");
        assert_eq!(removed("version: 1\n"), None);
    }
}
