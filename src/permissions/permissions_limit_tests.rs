//! Limits on the length of a command line and on the steps of comparing it with rules.

use super::*;

#[test]
fn a_very_long_command_is_asked_about() {
    let denying =
        rules(&[("developer__shell: {command: \"rm *\"}", RuleEffect::Deny), ("developer__shell", RuleEffect::Allow)]);
    for word in ["sudo ", "! ", "$x ", "$(", "a;", "a=", "eval "] {
        assert_eq!(shell(&denying, &word.repeat(20_000)), "unsure", "{word}");
    }
    assert_eq!(shell(&denying, &format!("rm {}", "x ".repeat(20_000))), "deny", "no parts are needed to tell");
    let allowing = rules(&[("developer__shell: {command: \"ls *\"}", RuleEffect::Allow)]);
    assert_eq!(shell(&allowing, &format!("ls {}", "x".repeat(16_000))), "allow");
    assert_eq!(shell(&allowing, &format!("ls {}", "x".repeat(17_000))), "silent");
    assert_eq!(narrowest(&format!("ls {}", "x".repeat(17_000))), None);
}

#[test]
fn what_takes_too_many_steps_is_asked_about() {
    let many = |pattern: &str, then| {
        let rule =
            |nth| (format!("developer__shell: {{command: \"{}\"}}", pattern.replace('#', &format!("{nth}"))), then);
        (0..50).map(rule).collect::<Vec<_>>()
    };
    let rules = |texts: &[(String, RuleEffect)]| {
        let texts: Vec<_> = texts.iter().map(|(text, then)| (text.as_str(), *then)).collect();
        rules(&texts)
    };
    let mut denying = many("*a*a*a*a*a*a*a*a*a*a*a*a*b#", RuleEffect::Deny);
    denying.push(("developer__shell".to_owned(), RuleEffect::Allow));
    let denying = rules(&denying);
    let allowing = rules(&many("ls *a*a*a*a*a*a*a*a*a*a*a*a*b#", RuleEffect::Allow));
    let nested = (0..4).fold("a ".repeat(150), |inner, _| format!("sh -c '{}'", inner.replace('\'', r"'\''")));
    let steps = |rules: &[SourcedRule], command: &str| {
        assert!(command.len() <= 16_384, "{}", command.len());
        let arguments = [("command".to_owned(), Argument::Command(command.to_owned()))].into();
        let budget = Budget::default();
        let ruling =
            judge_within(&budget, rules, Call { tool: "developer__shell", arguments: &arguments, brought: false });
        let said = match ruling {
            RuleDecision::Ask { certain: false, .. } => "unsure",
            RuleDecision::Silent => "silent",
            other => panic!("{other:?}"),
        };
        (said, budget.is_spent())
    };
    for command in [
        "a".repeat(16_000),
        format!("sudo {}", format!("{} ", "a".repeat(79)).repeat(199)),
        format!("eval {}", format!("'{}' ", "a;".repeat(39)).repeat(190)),
        "a|".repeat(8_000),
        format!("{nested};{}", "a".repeat(12_000)),
    ] {
        assert_eq!(steps(&denying, &command), ("unsure", true), "{}", &command[..40]);
    }
    assert_eq!(steps(&allowing, &format!("ls {}", "a".repeat(16_000))), ("silent", true));
    let budget = Budget::default();
    let arguments = [("command".to_owned(), Argument::Command("cargo test --locked | tail -5".to_owned()))].into();
    let call = Call { tool: "developer__shell", arguments: &arguments, brought: false };
    let everyday = rules(&many("rm -rf #*", RuleEffect::Deny));
    assert_eq!(judge_within(&budget, &everyday, call), RuleDecision::Silent);
    assert!(budget.used() < 100_000, "{}", budget.used());
}
