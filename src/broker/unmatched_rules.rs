//! Finds permission rules that match no tool or argument, so that they can be reported. A misspelt denying rule looks
//! as if it protects something.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::binding::Binding;
use super::bound_tool::BoundTool;
use crate::ids::nearest;
use crate::permissions::{RuleOrigin, SourcedRule};

impl Binding {
    /// Returns descriptions of rules that match no tool or argument and are probably misspelt, with the nearest name.
    pub fn rules_without_match(&self) -> Vec<String> {
        self.policy.rules.iter().filter_map(|rule| mismatch(rule, self.tools())).collect()
    }

    /// Like [`Self::rules_without_match`], only for rules of the command line.
    pub fn flag_rules_without_match(&self) -> Vec<String> {
        let flags = self.policy.rules.iter().filter(|rule| rule.origin == RuleOrigin::Flag);
        flags.filter_map(|rule| mismatch(rule, self.tools())).collect()
    }
}

fn mismatch(rule: &SourcedRule, tools: &BTreeMap<String, Arc<BoundTool>>) -> Option<String> {
    // A host rule names no tool, and resources and prompts are not tools.
    let wanted = rule.rule.tool.as_deref().filter(|tool| !tool.contains('/'))?;
    let meant: Vec<_> = tools.iter().filter(|(name, _)| rule.names_tool(name)).map(|(_, tool)| tool).collect();
    let known: Vec<&str> = meant.iter().flat_map(|tool| arguments(tool)).collect();
    let (what, near) = if meant.is_empty() {
        // Another mode may have the tool if no name here is similar.
        (format!("no tool is called `{wanted}`"), Some(nearest(wanted, tools.keys().map(String::as_str))?))
    } else {
        let unknown = rule.rule.arguments.keys().find(|name| !known.contains(&name.as_str()))?;
        (format!("no such tool takes an argument `{unknown}`"), nearest(unknown, known))
    };
    let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    Some(format!("permission rule matches nothing: {rule}: {what}{near}"))
}

fn arguments(tool: &BoundTool) -> impl Iterator<Item = &str> {
    let properties = tool.spec.input_schema.get("properties").and_then(serde_json::Value::as_object);
    properties.into_iter().flat_map(|properties| properties.keys().map(String::as_str))
}
