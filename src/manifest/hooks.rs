//! Defines the hooks of a config: commands that Skein runs at events of a session. Event names and fields are those of
//! Claude Code.

use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A moment in a session at which hooks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookEvent {
    SessionStart,
    UserPromptSubmit,
    PreToolUse,
    PostToolUse,
    Stop,
    SessionEnd,
}

impl HookEvent {
    /// Returns the name in files and in the input of a hook.
    pub fn as_str(self) -> &'static str {
        match self {
            HookEvent::SessionStart => "SessionStart",
            HookEvent::UserPromptSubmit => "UserPromptSubmit",
            HookEvent::PreToolUse => "PreToolUse",
            HookEvent::PostToolUse => "PostToolUse",
            HookEvent::Stop => "Stop",
            HookEvent::SessionEnd => "SessionEnd",
        }
    }

    /// Returns true if a hook can refuse what is about to happen.
    pub fn is_refusable(self) -> bool {
        matches!(self, HookEvent::UserPromptSubmit | HookEvent::PreToolUse)
    }

    /// Returns true if a matcher selects tools.
    pub fn concerns_tools(self) -> bool {
        matches!(self, HookEvent::PreToolUse | HookEvent::PostToolUse)
    }

    /// Returns true if a matcher has a meaning.
    pub fn has_matcher(self) -> bool {
        !matches!(self, HookEvent::UserPromptSubmit | HookEvent::Stop)
    }
}

/// Commands that run at events of a session, by event; a project's can only refuse prompts and calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
pub struct HookConfig {
    /// Before the first prompt of a session that is new or opened again; the matcher is `startup` or `resume`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub session_start: Vec<HookGroup>,
    /// Before a prompt is routed or sent to a model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub user_prompt_submit: Vec<HookGroup>,
    /// Before a tool call, after the permission rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pre_tool_use: Vec<HookGroup>,
    /// After a tool call that ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub post_tool_use: Vec<HookGroup>,
    /// At the end of a turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<HookGroup>,
    /// When a session is closed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub session_end: Vec<HookGroup>,
}

impl HookConfig {
    pub fn is_empty(&self) -> bool {
        self.groups().all(|(_, groups)| groups.is_empty())
    }

    /// Returns the groups of every event.
    pub fn groups(&self) -> impl Iterator<Item = (HookEvent, &[HookGroup])> {
        [
            (HookEvent::SessionStart, self.session_start.as_slice()),
            (HookEvent::UserPromptSubmit, self.user_prompt_submit.as_slice()),
            (HookEvent::PreToolUse, self.pre_tool_use.as_slice()),
            (HookEvent::PostToolUse, self.post_tool_use.as_slice()),
            (HookEvent::Stop, self.stop.as_slice()),
            (HookEvent::SessionEnd, self.session_end.as_slice()),
        ]
        .into_iter()
    }
}

/// Hooks with one matcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HookGroup {
    /// Names separated by `|`, or a regular expression; all if left out. For calls, the tool as the model sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matcher: Option<String>,
    pub hooks: Vec<HookCommand>,
}

/// A command that receives JSON on its standard input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HookCommand {
    /// Always `command`.
    #[serde(rename = "type", default)]
    pub kind: HookKind,
    /// A line for the shell, in the session's folder and in the sandbox of its mode.
    #[schemars(length(min = 1))]
    pub command: String,
    /// Seconds until the command is ended; 60 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600))]
    pub timeout: Option<u64>,
    /// Whether a prompt or a call continues if the command fails; `continue` if left out.
    #[serde(rename = "onFailure", default)]
    pub on_failure: HookFailure,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HookKind {
    #[default]
    Command,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HookFailure {
    #[default]
    Continue,
    Block,
}

/// Selects the tools or kinds of an event.
#[derive(Debug, Clone)]
pub enum HookMatcher {
    All,
    /// Exactly these names.
    Names(Vec<String>),
    /// Anywhere in the name.
    Pattern(Regex),
}

/// The prefix of MCP tools and the name of the shell in Claude Code. Both mean the same in Skein.
const FOREIGN_PREFIX: &str = "mcp__";
const FOREIGN_SHELL: &str = "Bash";
const SHELL: &str = "developer__shell";

impl HookMatcher {
    /// Parses a matcher. Fails if it is not a regular expression.
    pub fn parse(text: Option<&str>) -> Result<Self, regex::Error> {
        let text = text.unwrap_or_default().trim();
        if text.is_empty() || text == "*" {
            return Ok(Self::All);
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_- ,|".contains(c);
        if text.chars().all(is_plain) {
            let names = text.split(['|', ',']).map(str::trim).filter(|name| !name.is_empty());
            return Ok(Self::Names(names.map(str::to_owned).collect()));
        }
        Regex::new(text).map(Self::Pattern)
    }

    /// Returns whether the matcher selects a name. A tool also has the name that Claude Code would give it.
    pub fn matches(&self, name: &str) -> bool {
        let is_selected = |name: &str| match self {
            Self::All => true,
            Self::Names(names) => names.iter().any(|known| known == name),
            Self::Pattern(pattern) => pattern.is_match(name),
        };
        is_selected(name)
            || name.contains("__") && is_selected(&format!("{FOREIGN_PREFIX}{name}"))
            || name == SHELL && is_selected(FOREIGN_SHELL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matcher_is_a_list_of_names_or_a_pattern() {
        for (matcher, name, expected) in [
            (None, "developer__shell", true),
            (Some(""), "x", true),
            (Some("*"), "x", true),
            (Some("developer__shell"), "developer__shell", true),
            (Some("developer__shell"), "developer__shell_stop", false),
            (Some("developer__shell | memory__recall"), "memory__recall", true),
            (Some("developer__.*"), "developer__write_file", true),
            (Some("^shell"), "developer__shell", false),
            (Some("mcp__memory__.*"), "memory__recall", true),
            (Some("Bash"), "developer__shell", true),
            (Some("Bash"), "developer__write_file", false),
            (Some("resume"), "startup", false),
        ] {
            assert_eq!(HookMatcher::parse(matcher).unwrap().matches(name), expected, "{matcher:?} {name}");
        }
        assert!(HookMatcher::parse(Some("developer__(")).is_err());
    }
}
