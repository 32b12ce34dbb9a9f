//! Defines a permission rule as written in a config file and on the command line.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::yaml::{self, SourceFile};
use crate::diagnostic::Diagnostic;

/// A permission rule: the calls it matches, and its effect on them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["tool"]}, {"required": ["host"]}]))]
pub struct PermissionRule {
    /// The tool as the model sees it, as `developer__shell`; `*` stands for any characters.
    // `SERVICE__resources/read` and `SERVICE__prompts/get` are resources and prompts. The comment above is a help text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9_*/-]{1,64}$"))]
    pub tool: Option<String>,
    /// The host that a call reaches: `HOST`, `HOST:PORT`, `*.HOST` for its subdomains, or an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Patterns for the arguments, by name; `*` stands for any characters. An argument without a pattern may have any
    /// value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub arguments: BTreeMap<String, String>,
    /// Only for sessions in this folder, as an absolute path; a rule that denies or asks also holds below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^/"))]
    pub project: Option<String>,
    /// The effect. `deny` beats `ask`, and `ask` beats `allow`.
    pub then: RuleEffect,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuleEffect {
    Allow,
    Ask,
    #[default]
    Deny,
}

impl RuleEffect {
    /// Returns the name used in files.
    pub fn as_str(self) -> &'static str {
        match self {
            RuleEffect::Allow => "allow",
            RuleEffect::Ask => "ask",
            RuleEffect::Deny => "deny",
        }
    }
}

const FORM: &str = "write `TOOL`, `TOOL: {ARGUMENT: \"PATTERN\"}`, or `host: \"HOST\"`";

/// Why a text is not a permission rule. Each message ends with the correct form.
#[derive(Debug, thiserror::Error)]
pub enum RuleTextError {
    #[error("{}; {FORM}", .0.problem)]
    Yaml(Box<Diagnostic>),
    #[error("it is not a rule; {FORM}")]
    NotARule,
    #[error("`{tool}` is not the name of a tool; {FORM}")]
    ToolName { tool: String },
    #[error("the arguments are no mapping; {FORM}")]
    Arguments,
    #[error("the pattern for `{argument}` must be text; {FORM}")]
    Pattern { argument: String },
}

/// The prefix of a host rule in its text form.
const HOST: &str = "host:";

impl PermissionRule {
    /// Parses `developer__shell: {command: "git status*"}`, a tool alone, or a host rule. Fails with the problem and
    /// the correct form.
    pub fn from_text(text: &str, then: RuleEffect) -> Result<Self, RuleTextError> {
        // Not parsed as YAML, where `host: *.example.com` would be an alias.
        if let Some(host) = text.trim().strip_prefix(HOST).map(str::trim).filter(|host| !host.starts_with('{')) {
            let quoted = |mark| host.strip_prefix(mark).and_then(|host: &str| host.strip_suffix(mark));
            let host = quoted('"').or_else(|| quoted('\'')).unwrap_or(host);
            return Ok(Self { host: Some(host.to_owned()), then, ..Self::default() });
        }
        let value = yaml::parse(&SourceFile::new("rule", text)).map_err(RuleTextError::Yaml)?;
        let (tool, arguments) = match value {
            Value::String(tool) => (tool, BTreeMap::new()),
            Value::Object(object) if object.len() == 1 => {
                let (tool, arguments) = object.into_iter().next().ok_or(RuleTextError::NotARule)?;
                (tool, patterns(arguments)?)
            }
            _ => return Err(RuleTextError::NotARule),
        };
        let legal = |c: char| c.is_ascii_alphanumeric() || "_*/-".contains(c);
        if tool.is_empty() || !tool.chars().all(legal) {
            return Err(RuleTextError::ToolName { tool });
        }
        Ok(Self { tool: Some(tool), host: None, arguments, project: None, then })
    }
}

fn patterns(arguments: Value) -> Result<BTreeMap<String, String>, RuleTextError> {
    let Value::Object(arguments) = arguments else { return Err(RuleTextError::Arguments) };
    let pattern = |(name, value): (String, Value)| match value {
        Value::String(text) => Ok((name, text)),
        Value::Number(_) | Value::Bool(_) => Ok((name, value.to_string())),
        _ => Err(RuleTextError::Pattern { argument: name }),
    };
    arguments.into_iter().map(pattern).collect()
}

/// Formats the rule as on the command line.
impl std::fmt::Display for PermissionRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(host) = &self.host {
            write!(f, "{HOST} {}", Value::from(host.as_str()))?;
        }
        f.write_str(self.tool.as_deref().unwrap_or_default())?;
        if self.arguments.is_empty() {
            return Ok(());
        }
        let patterns =
            self.arguments.iter().map(|(name, pattern)| format!("{name}: {}", Value::from(pattern.as_str())));
        write!(f, ": {{{}}}", patterns.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_back_as_it_is_shown() {
        for text in [
            "developer__shell",
            "developer__*",
            r#"developer__shell: {command: "git status*"}"#,
            r#"developer__edit_file: {old: "a\"b", path: "src/*"}"#,
            "notes__resources/read",
            r#"host: "*.example.com""#,
        ] {
            let rule = PermissionRule::from_text(text, RuleEffect::Deny).expect("a rule");
            assert_eq!(rule.to_string(), text);
        }
        for text in ["host: *.example.com:8080", "host:'*.example.com:8080'"] {
            let rule = PermissionRule::from_text(text, RuleEffect::Allow).expect("a rule");
            assert_eq!((rule.host.as_deref(), rule.tool), (Some("*.example.com:8080"), None));
        }
        let plain = PermissionRule::from_text("developer__shell: {command: ls, timeout: 5}", RuleEffect::Allow);
        assert_eq!(plain.expect("a rule").to_string(), r#"developer__shell: {command: "ls", timeout: "5"}"#);
    }

    #[test]
    fn what_is_no_rule_is_told_with_the_form() {
        for text in ["", "[a]", "a b", "shell: ls", "a: {b: [c]}", "{a: {}, b: {}}", "x: {"] {
            let problem = PermissionRule::from_text(text, RuleEffect::Allow).expect_err(text);
            assert!(problem.to_string().ends_with(FORM), "{text}: {problem}");
        }
    }
}
