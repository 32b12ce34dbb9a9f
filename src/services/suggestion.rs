//! Suggests tool groups for a service that a user adds, from the annotations and names of its tools.
//!
//! Invariant: a suggestion only. The user sees the groups before a mode uses them, and edits them in the manifest.

use std::collections::BTreeMap;

use crate::ids::{GroupName, ToolName};
use crate::tool::{ToolHints, ToolSpec};

/// Words that begin the names of tools that only read.
const READ_WORDS: [&str; 16] = [
    "get", "list", "read", "search", "find", "query", "show", "describe", "lookup", "count", "check", "view",
    "explain", "status", "compare", "analyze",
];
/// Words of tools that run programs or code.
const COMMAND_WORDS: [&str; 8] = ["run", "exec", "execute", "shell", "command", "eval", "bash", "script"];
/// Words of tools that drive a browser or a screen.
const BROWSER_WORDS: [&str; 8] = ["browser", "browse", "navigate", "click", "screenshot", "page", "tab", "scroll"];

/// Suggests a group for each tool: `read`, `command`, `browser` or `edit`. Names that a manifest cannot hold are left
/// out.
pub fn suggest_groups(tools: &[ToolSpec]) -> BTreeMap<GroupName, Vec<ToolName>> {
    let mut groups: BTreeMap<GroupName, Vec<ToolName>> = BTreeMap::new();
    for tool in tools.iter().filter(|tool| can_be_listed(tool.name.as_str())) {
        let group = GroupName::new(suggest_group(tool.name.as_str(), tool.hints));
        groups.entry(group).or_default().push(tool.name.clone());
    }
    groups
}

/// Returns the group of one tool. A tool that claims to be destructive never becomes `read`.
fn suggest_group(name: &str, hints: ToolHints) -> &'static str {
    let words = words(name);
    let has = |known: &[&str]| words.iter().any(|word| known.contains(&word.as_str()));
    let begins_reading = words.first().is_some_and(|word| READ_WORDS.contains(&word.as_str()));
    match hints.read_only {
        Some(true) if hints.destructive != Some(true) => "read",
        None if begins_reading && hints.destructive != Some(true) && !has(&COMMAND_WORDS) => "read",
        _ if has(&COMMAND_WORDS) => "command",
        _ if has(&BROWSER_WORDS) => "browser",
        _ => "edit",
    }
}

/// Splits `readFile`, `read_file` and `read-file` into lower-case words.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in name.chars() {
        let begins = c.is_uppercase() && before.is_lowercase();
        if begins || !c.is_alphanumeric() {
            words.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Returns whether a manifest can hold the name of a tool.
fn can_be_listed(name: &str) -> bool {
    !name.is_empty() && name.chars().count() <= 128 && !name.contains(|c: char| c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hints(read_only: Option<bool>, destructive: Option<bool>) -> ToolHints {
        ToolHints { read_only, destructive, ..ToolHints::default() }
    }

    #[test]
    fn annotations_count_before_names() {
        for (name, read_only, destructive, expected) in [
            ("anything", Some(true), None, "read"),
            ("anything", Some(true), Some(true), "edit"),
            ("get_issue", None, None, "read"),
            ("getIssue", None, None, "read"),
            ("list-pull-requests", None, None, "read"),
            ("get_issue", Some(false), None, "edit"),
            ("get_issue", None, Some(true), "edit"),
            ("create_issue", None, None, "edit"),
            ("check_run_script", None, None, "command"),
            ("execute_sql", Some(false), None, "command"),
            ("browser_click", None, None, "browser"),
            ("forget", None, None, "edit"),
        ] {
            let group = suggest_group(name, hints(read_only, destructive));
            assert_eq!(group, expected, "{name} {read_only:?} {destructive:?}");
        }
    }

    #[test]
    fn a_name_that_no_manifest_can_hold_gets_no_group() {
        let tool = |name: &str| ToolSpec {
            name: ToolName::new(name),
            title: None,
            description: String::new(),
            input_schema: std::sync::Arc::default(),
            output_schema: None,
            hints: ToolHints::default(),
            meta: None,
        };
        let groups = suggest_groups(&[tool("get_a"), tool("get b"), tool("set_c")]);
        let shown: Vec<_> = groups.iter().map(|(group, tools)| format!("{group}: {tools:?}")).collect();
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert_eq!(groups[&GroupName::new("read")], [ToolName::new("get_a")]);
    }
}
