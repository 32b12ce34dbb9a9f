//! What rules say about calls.

use super::*;

fn rules(texts: &[(&str, Then)]) -> Vec<Rule> {
    let rule = |(text, then): &(&str, Then)| Rule {
        rule: PermissionRule::from_text(text, *then).expect("a rule"),
        origin: Origin::Flag,
    };
    texts.iter().map(rule).collect()
}

fn said(rules: &[Rule], tool: &str, arguments: &[(&str, Argument)]) -> &'static str {
    let arguments = arguments.iter().map(|(name, argument)| ((*name).to_owned(), argument.clone())).collect();
    match judge(rules, Call { tool, arguments: &arguments }) {
        Ruling::Silent => "silent",
        Ruling::Allow(_) => "allow",
        Ruling::Ask { certain: true, .. } => "ask",
        Ruling::Ask { certain: false, .. } => "unsure",
        Ruling::Deny(_) => "deny",
    }
}

fn shell(rules: &[Rule], command: &str) -> &'static str {
    said(rules, "developer__shell", &[("command", Argument::Command(command.to_owned()))])
}

#[test]
fn a_command_line_is_allowed_if_every_part_is() {
    let rules = rules(&[
        ("developer__shell: {command: \"git status*\"}", Then::Allow),
        ("developer__shell: {command: \"ls *\"}", Then::Allow),
        ("developer__shell: {command: ls}", Then::Allow),
        ("developer__shell: {command: \"wc -l\"}", Then::Allow),
        ("developer__shell: {command: \"git commit -m 'a b'\"}", Then::Allow),
    ]);
    for (command, expected) in [
        ("git status", "allow"),
        ("git status --short | wc -l", "allow"),
        ("git 'status' && ls -la \"$HOME\" *.rs 2>/dev/null", "allow"),
        ("if git status; then ls; fi", "allow"),
        ("ls $(git status)", "allow"),
        ("git commit -m \"a b\"", "allow"),
        ("git commit -m a b", "silent"),
        ("git status-x", "allow"),
        ("ls && rm -rf x", "silent"),
        ("ls; rm x", "silent"),
        ("ls $(rm x)", "silent"),
        ("ls \"$(rm x)\"", "silent"),
        ("ls | sh", "silent"),
        ("git statu$x", "silent"),
        ("$x status", "silent"),
        ("l$x a", "silent"),
        ("/bin/ls a", "silent"),
        ("lsx", "silent"),
        ("LD_PRELOAD=x ls a", "silent"),
        ("PATH=/x; ls a", "silent"),
        ("ls a > b", "silent"),
        ("alias ls=rm; ls a", "silent"),
        ("ls() { rm x; }; ls a", "silent"),
        ("", "silent"),
        ("# nothing", "silent"),
    ] {
        assert_eq!(shell(&rules, command), expected, "{command}");
    }
}

#[test]
fn a_star_does_not_speak_of_what_runs_other_programs() {
    let any = rules(&[("developer__shell: {command: \"*\"}", Then::Allow)]);
    for command in ["ls -la", "rm -rf x", "git log | head"] {
        assert_eq!(shell(&any, command), "allow", "{command}");
    }
    for command in [
        "eval ls",
        "exec ls",
        ". x",
        "source x",
        "xargs rm",
        "env ls",
        "sh -c ls",
        "/bin/bash -c ls",
        "sudo ls",
        "nohup ls",
        "X=1 ls",
        "X=1",
        "\"X=1\" ls",
        "export X=1",
        "alias a=b",
        "cd /",
        "$x",
        "command ls",
        "builtin eval ls",
        "\\eval ls",
    ] {
        assert_eq!(shell(&any, command), "silent", "{command}");
    }
    let named = rules(&[
        ("developer__shell: {command: \"sudo apt update\"}", Then::Allow),
        ("developer__shell: {command: \"RUST_LOG=debug cargo test *\"}", Then::Allow),
        ("developer__shell: {command: \"cd *\"}", Then::Allow),
        ("developer__shell: {command: \"printf *\"}", Then::Allow),
    ]);
    for command in ["sudo apt update", "RUST_LOG=debug cargo test x", "cd src", "printf a"] {
        assert_eq!(shell(&named, command), "allow", "{command}");
    }
    for command in ["RUST_LOG=x cargo test x", "cdx", "printf -v 'a[$(rm x)]' b", "printf $x"] {
        assert_eq!(shell(&named, command), "silent", "{command}");
    }
}

#[test]
fn a_rule_denies_a_part_wherever_it_hides_and_asks_where_it_may() {
    let rules = rules(&[("developer__shell: {command: \"rm *\"}", Then::Deny), ("developer__shell", Then::Allow)]);
    for command in [
        "rm x",
        "ls && rm x",
        "ls $(rm x)",
        "\"rm\" x",
        "r'm' x",
        "/bin/rm x",
        "X=1 rm x",
        "sudo rm x",
        "sudo -u a rm x",
        "sh -c 'rm x'",
        "bash -c \"ls; rm x\"",
        "echo `rm x`",
        "if a; then rm x; fi",
        "for a in b; do rm $a; done",
        "find . | xargs rm -f",
        "f() { rm x; }",
        "{ rm x; }",
        "(rm x)",
        "rm $x",
        "rm 'a b'",
        "eval 'rm x'",
        "r\\\nm x",
    ] {
        assert_eq!(shell(&rules, command), "deny", "{command}");
    }
    for command in ["$x y", "r$x y", "$'\\x72m' x", "`x` y", "ls > x", "rm", "$(echo rm) x", "sh -c \"$x\""] {
        let expected = if command == "rm" { "allow" } else { "unsure" };
        assert_eq!(shell(&rules, command), expected, "{command}");
    }
    for command in ["ls", "echo $x", "echo rm x", "git rm x", "rmdir x"] {
        assert_eq!(shell(&rules, command), "allow", "{command}");
    }
}

#[test]
fn a_very_long_command_is_judged_at_once_and_asked_about() {
    let rules = rules(&[("developer__shell: {command: \"rm *\"}", Then::Deny), ("developer__shell", Then::Allow)]);
    for (word, expected) in [("sudo ", "unsure"), ("! ", "allow"), ("$x ", "unsure"), ("$(", "unsure"), ("a;", "allow")]
    {
        assert_eq!(shell(&rules, &word.repeat(20_000)), expected, "{word}");
    }
}

#[test]
fn deny_counts_more_than_ask_and_ask_more_than_allow_in_any_order() {
    let texts = [("a__*", Then::Allow), ("a__b", Then::Ask), ("a__b: {x: \"1\"}", Then::Deny)];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let rules = rules(&order.map(|index| texts[index]));
        let x = |value: Value| [("x", Argument::plain(&value))];
        assert_eq!(said(&rules, "a__b", &x(1.into())), "deny");
        assert_eq!(said(&rules, "a__b", &x(2.into())), "ask");
        assert_eq!(said(&rules, "a__b", &[]), "ask");
        assert_eq!(said(&rules, "a__c", &x(1.into())), "allow");
        assert_eq!(said(&rules, "ba__b", &[]), "silent");
    }
}

#[test]
fn a_path_is_matched_where_it_leads() {
    let rules = rules(&[("e: {path: \"src/*\"}", Then::Allow), ("e: {path: \"*.env\"}", Then::Deny)]);
    let path = |shown: &str, given: &str| {
        let (shown, given) = (shown.to_owned(), given.to_owned());
        [("path", Argument::Path { absolute: format!("/p/{shown}"), shown, given })]
    };
    assert_eq!(said(&rules, "e", &path("src/a", "src/a")), "allow");
    assert_eq!(said(&rules, "e", &path("/etc/a", "src/../../etc/a")), "silent");
    assert_eq!(said(&rules, "e", &path("src/.env", "src/link")), "deny");
    assert_eq!(said(&rules, "e", &[("path", Argument::Unresolved("~/a".to_owned()))]), "unsure");
    assert_eq!(said(&rules, "e", &[("path", Argument::plain(&serde_json::json!(["src/a"])))]), "silent");
    assert_eq!(said(&rules, "e", &[("path", Argument::plain(&serde_json::json!(["a.env"])))]), "deny");
    assert_eq!(said(&rules, "e", &[]), "silent");
}

#[test]
fn a_rule_may_be_for_one_folder() {
    let mut rule = rules(&[("a", Then::Allow)]).remove(0);
    assert!(rule.is_for(FilePath::new("/x")));
    rule.rule.project = Some("/home/me/p".to_owned());
    assert!(rule.is_for(FilePath::new("/home/me/p")) && rule.is_for(FilePath::new("/home/me/p/src")));
    assert!(!rule.is_for(FilePath::new("/home/me/p2")) && !rule.is_for(FilePath::new("/home/me")));
}

#[test]
fn what_is_kept_of_a_command_is_the_command_itself() {
    assert_eq!(narrowest("git  'status'").as_deref(), Some("git status"));
    assert_eq!(narrowest("X=1 ls").as_deref(), Some("X=1 ls"));
    assert_eq!(narrowest("git commit -m 'a b'").as_deref(), Some("git commit -m 'a b'"));
    for command in ["ls && rm x", "ls *", "ls '*'", "ls > x", "echo $x", ""] {
        assert_eq!(narrowest(command), None, "{command}");
    }
}
