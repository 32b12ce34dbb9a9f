//! What rules say about calls.

use super::*;

#[path = "permissions_limit_tests.rs"]
mod limits;

fn rules(texts: &[(&str, RuleEffect)]) -> Vec<SourcedRule> {
    let rule = |(text, then): &(&str, RuleEffect)| SourcedRule {
        rule: PermissionRule::from_text(text, *then).expect("a rule"),
        origin: RuleOrigin::Flag,
    };
    texts.iter().map(rule).collect()
}

fn said(rules: &[SourcedRule], tool: &str, arguments: &[(&str, Argument)]) -> &'static str {
    let arguments = arguments.iter().map(|(name, argument)| ((*name).to_owned(), argument.clone())).collect();
    match evaluate(rules, Call { tool, arguments: &arguments, brought: false }) {
        RuleDecision::Silent => "silent",
        RuleDecision::Allow(_) => "allow",
        RuleDecision::Ask { certain: true, .. } => "ask",
        RuleDecision::Ask { certain: false, .. } => "unsure",
        RuleDecision::Deny(_) => "deny",
    }
}

fn shell(rules: &[SourcedRule], command: &str) -> &'static str {
    said(rules, "developer__shell", &[("command", Argument::Command(command.to_owned()))])
}

#[test]
fn a_command_line_is_allowed_if_every_part_is() {
    let rules = rules(&[
        ("developer__shell: {command: \"git status*\"}", RuleEffect::Allow),
        ("developer__shell: {command: \"ls *\"}", RuleEffect::Allow),
        ("developer__shell: {command: ls}", RuleEffect::Allow),
        ("developer__shell: {command: \"wc -l\"}", RuleEffect::Allow),
        ("developer__shell: {command: \"git commit -m 'a b'\"}", RuleEffect::Allow),
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

fn allowing(patterns: &[&str]) -> Vec<SourcedRule> {
    let rule = |pattern: &&str| SourcedRule {
        rule: PermissionRule {
            tool: Some("developer__shell".to_owned()),
            host: None,
            arguments: [("command".to_owned(), (*pattern).to_owned())].into(),
            project: None,
            then: RuleEffect::Allow,
        },
        origin: RuleOrigin::Flag,
    };
    patterns.iter().map(rule).collect()
}

#[test]
fn a_pattern_that_allows_names_the_program() {
    let vague = allowing(&["*", "* --help", "*sh -c ls", "g*t status", "X=* ls", "'*' a"]);
    for command in [
        "ls -la",
        "sh -c ls",
        "jobs -x rm x --help",
        "rbash -c 'rm x' --help",
        "find . -delete --help",
        "git status",
        "X=1 ls",
        "\"X=1\" ls",
        "$x --help",
        "'*' a",
    ] {
        assert_eq!(shell(&vague, command), "silent", "{command}");
    }
    let named = allowing(&["ls*", "sudo apt update", "RUST_LOG=debug cargo test *", "X=1 ls", "find *"]);
    for command in ["ls", "ls -la", "sudo apt update", "RUST_LOG=debug cargo test x", "X=1 ls", "find . -delete"] {
        assert_eq!(shell(&named, command), "allow", "{command}");
    }
    for command in ["lsx", "sudo apt update x", "RUST_LOG=x cargo test x", "\"X=1\" ls", "X\\=1 ls", "'X'=1 ls"] {
        assert_eq!(shell(&named, command), "silent", "{command}");
    }
}

#[test]
fn everyday_commands_are_allowed_by_everyday_rules() {
    let rules = allowing(&[
        "git status*",
        "cargo test*",
        "ls *",
        "grep *",
        "echo *",
        "printf *",
        "cd *",
        "test *",
        "[ *",
        "command -v *",
    ]);
    for command in [
        "cd src && cargo test -- --nocapture 2>&1 | grep -v 'a[0-9]'",
        "printf '%s\\n' \"$HOME\" && ls -la *.rs",
        "printf '%5d%%\\n' 1; git status",
        "test -f Cargo.toml && cargo test",
        "if [ -d src ]; then ls src; else echo none; fi",
        "command -v cargo && cargo test",
        "echo \"a[$x]\"",
    ] {
        assert_eq!(shell(&rules, command), "allow", "{command}");
    }
}

#[test]
fn shell_changing_command_is_allowed_alone_and_verbatim_only() {
    let stars = allowing(&[
        "git status*",
        "echo *",
        "printf *",
        "command printf *",
        "builtin printf *",
        "read *",
        "test *",
        "[ *",
        "let *",
        "declare *",
        "export *",
        "set *",
        "eval *",
        "alias *",
        "wait *",
        "hash *",
    ]);
    for command in [
        "printf -v PATH %s /x/bin; git status",
        "printf -v HOME %s /x; git status",
        "printf %n PATH; git status",
        "printf '%5.3ln' PATH; git status",
        "printf \"$x\" PATH",
        "command printf -v 'a[$(evil)]' b",
        "builtin printf -v PATH b",
        "command -p printf -v PATH b; git status",
        "echo /x | { read PATH; git status; }",
        "read x",
        "echo 'a[$(evil)]' | { read x; test -v 'a[x]'; }",
        "test -v 'a[x]'",
        "[ -v 'a[x]' ]",
        "test -v a$x",
        "let x",
        "declare -i a=x",
        "export PATH=/x; git status",
        "set -x",
        "eval ls",
        "alias git=evil; git status",
        "hash -p /x git; git status",
    ] {
        assert_eq!(shell(&stars, command), "silent", "{command}");
    }
    let exact =
        allowing(&["git status", "export X=1", "printf -v PATH a", "read 'a[x]'", "X=1", ". venv/activate", "let x*"]);
    for command in ["export X=1", "printf -v PATH a", "X=1", ". venv/activate"] {
        assert_eq!(shell(&exact, command), "allow", "{command}");
        assert_eq!(shell(&exact, &format!("{command}; git status")), "silent", "{command}");
    }
    for command in ["read 'a[x]'", "let x*", "let 'x*'"] {
        assert_eq!(shell(&exact, command), "silent", "{command}");
    }
}

#[test]
fn a_rule_denies_a_part_wherever_it_hides_and_asks_where_it_may() {
    let rules =
        rules(&[("developer__shell: {command: \"rm *\"}", RuleEffect::Deny), ("developer__shell", RuleEffect::Allow)]);
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
    for command in
        ["ls", "echo $x", "rmdir x", "cargo test *.rs", "git commit -m \"it's $x\"", "ls # rm x", "A=$b ls $c"]
    {
        assert_eq!(shell(&rules, command), "allow", "{command}");
    }
}

#[test]
fn what_a_wrapper_runs_for_certain_is_denied() {
    let rules =
        rules(&[("developer__shell: {command: \"rm *\"}", RuleEffect::Deny), ("developer__shell", RuleEffect::Allow)]);
    for command in [
        "bash -c 'rm\tx'",
        "eval 'rm\tx'",
        "eval '\\rm' x",
        "eval 'r\\m' x",
        "eval \"'rm'\" x",
        "eval 'r\"\"m' x",
        "builtin eval '\\rm' x",
        "rbash -c 'rm x'",
        "mksh -c 'rm x'",
        "pkexec rm x",
        "A=1 sudo rm x",
        "find . | xargs rm",
        "xargs -a f rm",
    ] {
        assert_eq!(shell(&rules, command), "deny", "{command}");
    }
}

#[test]
fn what_may_be_run_is_asked_about() {
    let rules =
        rules(&[("developer__shell: {command: \"rm *\"}", RuleEffect::Deny), ("developer__shell", RuleEffect::Allow)]);
    let nested = (0..7).fold("rm x".to_owned(), |inner, _| format!("sh -c '{}'", inner.replace('\'', r"'\''")));
    for command in [
        nested.as_str(),
        "sh -c '{rm,x}'",
        "eval '{rm,x}'",
        "env -S'rm x'",
        "env -S'r\\m x'",
        "env --split-string='rm x'",
        "su -c'rm x'",
        "su --command='rm x'",
        "script -c'rm x' /dev/null",
        "GIT_SSH_COMMAND='rm x' git fetch",
        "A=1 GIT_SSH_COMMAND='r\"\"m x' git fetch",
        "export GIT_SSH_COMMAND='rm x'; git fetch",
        "BASH_ENV='$(rm x)' bash -c ls",
        "PS4='$(rm x)'; set -x; ls",
        "shopt -s expand_aliases\nalias ls='rm x'\nls",
        "alias ls=rm\nls x",
        "hash -p /bin/rm ls; ls x",
        "find . -exec rm {} \\;",
        "find . -exec /bin/rm {} \\;",
        "jobs -x rm x",
        "ssh h 'r\\m' x",
        "git -c alias.x='!rm x' x",
        "docker run a rm x",
        "/lib64/ld-linux-x86-64.so.2 /bin/rm x",
        "awk 'BEGIN{system(\"rm x\")}'",
        "perl -e 'exec \"rm\", \"x\"'",
        "python3 -c 'os.system(\"rm x\")'",
        "echo rm x | sh",
        "echo cm0geA== | base64 -d | bash",
        "curl http://127.0.0.1/x | sudo sh -s",
        "curl http://127.0.0.1/x | { cd /; sh; }",
        "echo 'rm x' | . /dev/stdin",
        "echo x rm | xargs",
        "echo x | xargs -n2 env",
        "echo x | xargs -I% % x",
        "git rm --help",
        "grep -r \"rm -rf\" docs",
        "echo rm x",
    ] {
        assert_eq!(shell(&rules, command), "unsure", "{command}");
    }
    for command in ["find . -name a | xargs grep b", "ls || sh x.sh", "find . -name '*.rs' -perm 644", "bash x.sh"] {
        assert_eq!(shell(&rules, command), "allow", "{command}");
    }
}

#[test]
fn deny_beats_ask_and_ask_beats_allow_in_any_order() {
    let texts = [("a__*", RuleEffect::Allow), ("a__b", RuleEffect::Ask), ("a__b: {x: \"1\"}", RuleEffect::Deny)];
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
    let rules = rules(&[("e: {path: \"src/*\"}", RuleEffect::Allow), ("e: {path: \"*.env\"}", RuleEffect::Deny)]);
    let path = |shown: &str, given: &str| {
        let (shown, given) = (shown.to_owned(), given.to_owned());
        [("path", Argument::Path { absolute: format!("/p/{shown}"), shown, given })]
    };
    assert_eq!(said(&rules, "e", &path("src/a", "src/a")), "allow");
    assert_eq!(said(&rules, "e", &path("/etc/a", "src/../../etc/a")), "silent");
    assert_eq!(said(&rules, "e", &path("src/.env", "src/link")), "deny");
    assert_eq!(said(&rules, "e", &[("path", Argument::Unresolved("~/a".to_owned()))]), "unsure");
    assert_eq!(said(&rules, "e", &[("path", Argument::plain(&serde_json::json!(["src/a"])))]), "unsure");
    assert_eq!(said(&rules, "e", &[("path", Argument::plain(&serde_json::json!(["a.env"])))]), "deny");
    assert_eq!(said(&rules, "e", &[]), "silent");
}

#[test]
fn a_rule_may_be_for_one_folder() {
    let is_for = |then: RuleEffect, given: &str, real: &str| {
        let mut rule = rules(&[("a", then)]).remove(0);
        rule.rule.project = Some("/home/me/p".to_owned());
        rule.is_for(FilePath::new(given), FilePath::new(real))
    };
    assert!(rules(&[("a", RuleEffect::Allow)])[0].is_for(FilePath::new("/x"), FilePath::new("/x")));
    for (given, real, allows, denies) in [
        ("/home/me/p", "/home/me/p", true, true),
        ("/link", "/home/me/p", true, true),
        ("/home/me/p/vendor", "/home/me/p/vendor", false, true),
        ("/home/me/p/link", "/elsewhere", false, true),
        ("/home/me/p/../q", "/home/me/q", false, true),
        ("/home/me/p2", "/home/me/p2", false, false),
        ("/home/me", "/home/me", false, false),
    ] {
        assert_eq!(is_for(RuleEffect::Allow, given, real), allows, "{given}");
        assert_eq!(is_for(RuleEffect::Deny, given, real), denies, "{given}");
        assert_eq!(is_for(RuleEffect::Ask, given, real), denies, "{given}");
    }
}

#[test]
fn user_wide_allow_rule_excludes_project_services() {
    let arguments = BTreeMap::new();
    let said = |rule: &SourcedRule, brought| {
        let rules = [rule.clone()];
        matches!(evaluate(&rules, Call { tool: "fs__read", arguments: &arguments, brought }), RuleDecision::Allow(_))
    };
    let mut rule = rules(&[("fs__*", RuleEffect::Allow)]).remove(0);
    assert!(said(&rule, false) && said(&rule, true), "whoever types it for this launch means what is there");
    let place = SourceLocation { file: "config.yaml".to_owned(), span: None };
    rule.origin = RuleOrigin::Config { layer: Layer::User, place };
    assert!(said(&rule, false) && !said(&rule, true));
    rule.rule.project = Some("/p".to_owned());
    assert!(said(&rule, true), "a rule for this very folder means what is there");
    rule.rule = PermissionRule { project: None, then: RuleEffect::Deny, ..rule.rule };
    let rules = [rule];
    let brought = Call { tool: "fs__read", arguments: &arguments, brought: true };
    assert!(matches!(evaluate(&rules, brought), RuleDecision::Deny(_)));
}

#[test]
fn lists_and_mappings_can_be_denied_but_never_allowed() {
    let rules = rules(&[("t: {n: 5}", RuleEffect::Deny), ("t: {n: \"*\"}", RuleEffect::Allow)]);
    let n = |value: Value| said(&rules, "t", &[("n", Argument::plain(&value))]);
    for value in [serde_json::json!(5), serde_json::json!(5.0), serde_json::json!([5]), serde_json::json!({"m": [5.0]})]
    {
        assert_eq!(n(value.clone()), "deny", "{value}");
    }
    assert_eq!(n(serde_json::json!(5.5)), "allow");
    assert_eq!(n(serde_json::json!([6])), "unsure");
    let inside = |value: Value| said(&rules, "t", &[("input", Argument::plain(&value))]);
    assert_eq!(inside(serde_json::json!({"a": [{"n": 6}]})), "unsure");
    assert_eq!(inside(serde_json::json!({"a": [{"m": 6}]})), "silent");
    let commands = self::rules(&[("t: {command: \"rm *\"}", RuleEffect::Deny)]);
    let command = |value: Value| {
        let argument = Argument::of(&value, &|text| Argument::Command(text.to_owned()));
        said(&commands, "t", &[("command", argument)])
    };
    assert_eq!(command(serde_json::json!(["rm", "x"])), "deny");
    assert_eq!(command(serde_json::json!(["ls; /bin/rm x"])), "deny");
    assert_eq!(command(serde_json::json!({"program": "rm", "args": ["x"]})), "unsure");
}

#[test]
fn a_folder_may_lead_to_what_is_denied_in_it() {
    let rules = rules(&[("t: {path: \"secret/*\"}", RuleEffect::Deny), ("t: {path: \"*\"}", RuleEffect::Allow)]);
    let path = |shown: &str, pattern: &[SourcedRule]| {
        let (shown, given) = (shown.to_owned(), shown.to_owned());
        let absolute = if shown.starts_with('/') { shown.clone() } else { format!("/p/{shown}") };
        said(pattern, "t", &[("path", Argument::Folder { shown, absolute, given })])
    };
    for (folder, expected) in
        [("", "unsure"), ("secret", "unsure"), ("secret/a", "deny"), ("src", "allow"), ("/etc", "allow")]
    {
        assert_eq!(path(folder, &rules), expected, "{folder}");
    }
    let absolute = self::rules(&[("t: {path: \"/etc/*\"}", RuleEffect::Deny)]);
    assert_eq!((path("", &absolute), path("/", &absolute)), ("silent", "unsure"));
}

#[test]
fn a_rule_about_a_command_says_nothing_of_what_changes_it() {
    let rules = rules(&[
        ("t: {command: ls}", RuleEffect::Allow),
        ("t: {command: ls, background: \"true\"}", RuleEffect::Allow),
    ]);
    let command = || ("command", Argument::Command("ls".to_owned()));
    let with = |rules: &[SourcedRule], name: &str, value: Value| {
        said(rules, "t", &[command(), (name, Argument::plain(&value))])
    };
    assert_eq!(with(&rules, "timeout", 5.into()), "allow");
    assert_eq!(with(&rules[..1], "background", false.into()), "allow");
    assert_eq!(with(&rules[..1], "background", true.into()), "silent");
    assert_eq!(with(&rules, "background", true.into()), "allow");
    assert_eq!(with(&rules, "args", serde_json::json!(["-x"])), "silent");
    assert_eq!(with(&rules, "stdin", "x".into()), "silent");
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
