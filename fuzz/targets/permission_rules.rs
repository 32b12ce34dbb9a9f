//! Permission rules: a rule, a line `---`, and a command line. A rule that denies or asks beats one that allows, and no
//! rule allows what bash cannot be trusted to read as Skein does.

use std::collections::BTreeMap;

use skein::manifest::{PermissionRule, RuleEffect};
use skein::permissions::{Argument, Call, RuleDecision, RuleOrigin, SourcedRule, evaluate, read};

use super::text_of;

pub(super) fn run(data: &[u8]) {
    let text = text_of(data);
    let (rule, line) = text.split_once("\n---\n").unwrap_or((text, "git status"));
    let rules = |effects: &[RuleEffect]| -> Vec<SourcedRule> {
        let rules = effects.iter().filter_map(|effect| PermissionRule::from_text(rule, *effect).ok());
        rules.map(|rule| SourcedRule { rule, origin: RuleOrigin::Flag }).collect()
    };
    let arguments = BTreeMap::from([("command".to_owned(), Argument::Command(line.to_owned()))]);
    let call = Call { tool: "developer__shell", arguments: &arguments, brought: false };
    let is_allowed = |rules: &[SourcedRule]| matches!(evaluate(rules, call), RuleDecision::Allow(_));

    let allowing = rules(&[RuleEffect::Allow]);
    assert_eq!(evaluate(&allowing, call), evaluate(&allowing, call));
    // A rule without arguments allows the tool, whatever its command.
    let names_command = allowing.iter().any(|rule| !rule.rule.arguments.is_empty());
    if names_command && is_allowed(&allowing) {
        assert_eq!(read(line).unreadable, None, "{line:?} is allowed");
    }
    for effect in [RuleEffect::Ask, RuleEffect::Deny] {
        assert!(!is_allowed(&rules(&[RuleEffect::Allow, effect])), "{effect:?} beats allow: {text:?}");
    }
}
