//! Permission rules: a rule and a command line in one text, with a line between them. The decision is the same twice.

#![no_main]

use std::collections::BTreeMap;

use serde_json::json;
use skein::manifest::{PermissionRule, RuleEffect};
use skein::permissions::{Argument, Call, RuleOrigin, SourcedRule, evaluate};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let (rule, line) = text.split_once("\n---\n").unwrap_or((text, "git status"));
    let arguments = BTreeMap::from([("command".to_owned(), Argument::plain(&json!(line)))]);
    let rules: Vec<_> = [RuleEffect::Allow, RuleEffect::Ask, RuleEffect::Deny]
        .into_iter()
        .filter_map(|effect| PermissionRule::from_text(rule, effect).ok())
        .map(|rule| SourcedRule { rule, origin: RuleOrigin::Flag })
        .collect();
    let call = || Call { tool: "developer__shell", arguments: &arguments, brought: false };
    assert_eq!(evaluate(&rules, call()), evaluate(&rules, call()));
});
