//! Rules about calls: from the config, from the command line, with a judge, and against what bash really runs.
#![allow(clippy::expect_used, reason = "helpers of tests fail the test")]

/// Shared with the fuzzer.
#[path = "../../fuzz/targets/real_bash.rs"]
mod real_bash;

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::json;
use skein::manifest::{PermissionRule, RuleEffect};
use skein::permissions::{Argument, Call, RuleDecision, RuleOrigin, SourcedRule, evaluate};

use crate::model::{Answer, Model, calls, says};
use crate::support::{Run, Sandbox};
use real_bash::{is_named, programs, really_ran};

// ---- what bash really runs ----

fn rule(pattern: &str, then: RuleEffect) -> SourcedRule {
    let text = format!("developer__shell: {{command: \"{pattern}\"}}");
    SourcedRule { rule: PermissionRule::from_text(&text, then).expect("a rule"), origin: RuleOrigin::Flag }
}

/// `safe`, `safe one`, and `ok` with whatever follows.
fn rules() -> Vec<SourcedRule> {
    ["safe", "safe one", "ok *"].map(|pattern| rule(pattern, RuleEffect::Allow)).to_vec()
}

fn allowed(rules: &[SourcedRule], command: &str) -> bool {
    let arguments = [("command".to_owned(), Argument::Command(command.to_owned()))].into();
    matches!(
        evaluate(rules, Call { tool: "developer__shell", arguments: &arguments, brought: false }),
        RuleDecision::Allow(_)
    )
}

const TOKENS: &[&str] = &[
    "safe",
    "safe",
    "safe",
    "safe one",
    "safe one",
    "ok a",
    "ok a",
    "ok",
    "evil",
    "evil",
    "one",
    " ",
    " ",
    " ",
    " ",
    " ",
    ";",
    "; ",
    " && ",
    " || ",
    " | ",
    "&",
    " & ",
    "\n",
    "\\\n",
    " \\\n",
    "\\",
    "'",
    "'",
    "\"",
    "\"",
    "`",
    "$(",
    ")",
    "(",
    "{ ",
    "; }",
    "{safe,one}",
    "${x}",
    "$x",
    "\"$x\"",
    "${x:-evil}",
    "${y}",
    "$y",
    "$IFS",
    "$'evil'",
    "$'\\x65vil'",
    "$\"evil\"",
    "$((",
    "))",
    "$[",
    "]",
    "[ -v ",
    "[[ ",
    " ]]",
    "<(evil)",
    ">(evil)",
    " > made",
    " >> made",
    " 2>/dev/null",
    " >/dev/null",
    " 2>&1",
    " &>/dev/null",
    " >&made",
    "<<E\n",
    "\nE\n",
    "<<<",
    "#",
    " # ",
    "if ",
    "; then ",
    "; fi",
    "else ",
    "until ",
    "; do ",
    "; done",
    "for i in ",
    "case a in a) ",
    " ;; esac",
    "! ",
    "time ",
    "eval ",
    "exec ",
    "X=1 ",
    "PATH=/bin:. ",
    "alias safe=evil",
    "shopt -s expand_aliases",
    "safe() { evil; }",
    "function ok { evil; }",
    "sudo ",
    "env ",
    "xargs ",
    "sh -c ",
    "*",
    "~",
    "\u{a0}",
];

/// Tokens in any order, and sound commands with one thing hidden in them.
fn commands() -> impl Strategy<Value = String> {
    let soup = vec(select(TOKENS), 1..9).prop_map(|tokens| tokens.concat());
    let good =
        || select(&["safe", "safe one", "ok a", "ok \"$x\"", "s'a'fe", "\"safe\" one", "ok *", "ok $(safe)"][..]);
    let glue = || select(&["; ", " && ", " || ", " | ", " & ", "\n", " \\\n; ", " 2>&1 | ", " >/dev/null; "][..]);
    let joined = (good(), glue(), good(), vec(select(TOKENS), 0..3), glue(), good())
        .prop_map(|(a, g, b, extra, h, c)| format!("{a}{g}{b}{}{h}{c}", extra.concat()));
    let wrapped = (good(), select(TOKENS), good()).prop_map(|(a, token, b)| format!("{a} {token} {b}"));
    let within = (
        select(
            &[
                "ok $(@)",
                "ok \"$(@)\"",
                "(@)",
                "{ @; }",
                "if @; then @; fi",
                "until @; do @; done",
                "! @",
                "ok '@'",
                "ok \"@\"",
            ][..],
        ),
        prop_oneof![good().prop_map(str::to_owned), soup.clone()],
    )
        .prop_map(|(around, inner)| around.replace('@', &inner));
    prop_oneof![soup, joined, wrapped, within]
}

#[test]
fn whatever_is_allowed_runs_only_what_the_rules_name() {
    let folder = tempfile::tempdir().expect("a folder");
    programs(folder.path());
    let rules = rules();
    let mut runner = TestRunner::deterministic();
    let strategy = commands();
    let mut tried = HashSet::new();
    for _ in 0..10_000 {
        let command = strategy.new_tree(&mut runner).expect("a command").current();
        if tried.len() >= 300 {
            break;
        }
        if !allowed(&rules, &command) || !tried.insert(command.clone()) {
            continue;
        }
        for line in really_ran(folder.path(), &command) {
            assert!(is_named(&line), "{command:?} is allowed and ran {line}");
        }
    }
    assert!(tried.len() >= 200, "only {} commands were allowed: the test says little", tried.len());
    assert!(really_ran(folder.path(), "evil").contains(&"evil".to_owned()), "what runs is seen");
}

/// What the shell itself does: builtins that assign, evaluate, calculate with subscripts, rename, or read.
const BUILTINS: &[&str] = &[
    "printf a",
    "printf -v PATH %s 0",
    "printf -v x %b 'a[\\0044(evil)]'",
    "printf -v 'a[x]' b",
    "printf -v 'a[$(evil)]' b",
    "printf -vPATH 0",
    "printf -- %n PATH",
    "printf %n PATH",
    "printf '%-5ln' PATH",
    "printf '%s%n' '' PATH",
    "printf %s \"$x\"",
    "printf %d 'a[$(evil)]'",
    "printf '%*d' 'a[$(evil)]' 1",
    "printf \"$y\" PATH",
    "command printf -v PATH 0",
    "builtin printf -v 'a[$(evil)]' b",
    "command -p printf %n PATH",
    "command eval evil",
    "echo 0",
    "echo 'a[$(evil)]'",
    "echo evil",
    "read PATH",
    "read x",
    "read 'a[x]'",
    "read -r y",
    "mapfile -t x",
    "mapfile -C evil -c 1 x",
    "test -v x",
    "test -v 'a[x]'",
    "test -v 'a[$(evil)]'",
    "test 'a[$(evil)]' -eq 1",
    "test -f one",
    "[ -v 'a[x]' ]",
    "[ -v \"$y\" ]",
    "[ -d 0 ]",
    "let x",
    "let 'a[x]'",
    "declare -i a=x",
    "declare 'a[x]=1'",
    "declare -n x=PATH",
    "typeset PATH=0",
    "export PATH=0",
    "readonly x",
    "unset PATH",
    "unset 'a[x]'",
    "getopts a PATH",
    "wait -p 'a[x]' -n",
    "set -x",
    "set -a",
    "shopt -s expand_aliases",
    "alias safe=evil",
    "alias ok='evil; '",
    "hash -p 0/safe safe",
    "enable -n printf",
    "eval evil",
    "eval eval evil",
    "eval safe",
    ". ./evil",
    "source ./evil",
    "trap evil EXIT",
    "trap evil DEBUG",
    "jobs -x evil",
    "cd 0",
    "cd ./0",
    "pushd 0",
    "PATH=0",
    "X=1",
    "X=1 safe",
    "\"X=1\" safe",
    "PS4='$(evil)'",
    "printf -v PS4 %b '\\0044(evil)'",
    "exit",
    "return 'a[$(evil)]'",
    "shift 'a[$(evil)]'",
    "ulimit -c 'a[$(evil)]'",
    "kill -l 'a[$(evil)]'",
    "safe 99999999999>/dev/null",
    "ok {fd}>/dev/null",
];

/// Two or three of them and of what the rules name, in all the ways that let one see what another did.
fn with_builtins() -> impl Strategy<Value = String> {
    let good = || select(&["safe", "safe one", "ok a", "ok $x"][..]);
    let one = move || prop_oneof![3 => select(BUILTINS), 1 => good()];
    let shape = select(
        &[
            "@; @; %",
            "@ && @ && %",
            "@\n@\n%",
            "@ | { @; %; }",
            "@ | { @; @; }",
            "@ | while @; do @; break; done",
            "if @; then @; %; fi",
            "{ @; @; }; %",
            "(@; %)",
            "ok $(@; %)",
            "@ 2>/dev/null; ! @; %",
            "@",
        ][..],
    );
    (shape, vec(one(), 3), good()).prop_map(|(shape, parts, last)| {
        let filled = parts.iter().fold(shape.to_owned(), |text, part| text.replacen('@', part, 1));
        filled.replace('%', last)
    })
}

/// Every builtin may be used by whoever names it with a `*`, and none opens a way to another program.
#[test]
fn no_builtin_that_is_allowed_changes_what_later_commands_run() {
    let folder = tempfile::tempdir().expect("a folder");
    programs(folder.path());
    let mut rules = rules();
    let prefixes: HashSet<_> = BUILTINS.iter().filter_map(|part| part.split([' ', '=']).next()).collect();
    let named = prefixes.iter().filter(|name| !["safe", "ok", "\"X"].contains(name));
    rules.extend(named.flat_map(|name| [rule(&format!("{name} *"), RuleEffect::Allow), rule(name, RuleEffect::Allow)]));
    rules.extend(["command printf *", "builtin printf *", "X=1 safe", "X=1"].map(|text| rule(text, RuleEffect::Allow)));
    let mut runner = TestRunner::deterministic();
    let strategy = with_builtins();
    let (mut tried, mut refused) = (HashSet::new(), 0);
    for _ in 0..20_000 {
        let command = strategy.new_tree(&mut runner).expect("a command").current();
        if tried.len() >= 200 {
            break;
        }
        if !allowed(&rules, &command) {
            refused += 1;
            continue;
        }
        if !tried.insert(command.clone()) {
            continue;
        }
        for line in really_ran(folder.path(), &command) {
            assert!(is_named(&line), "{command:?} is allowed and ran {line}");
        }
    }
    assert!(tried.len() >= 100 && refused >= 100, "{} were allowed, {refused} not", tried.len());
}

/// Bash may learn new builtins: each must be known as one that is harmless or as one that is not.
#[expect(clippy::disallowed_methods, reason = "bash knows its builtins")]
#[test]
fn every_builtin_of_bash_is_known() {
    const HARMLESS: &str = ": [ bg break builtin caller cd command continue dirs disown echo exec exit false fg help kill \
                            logout popd printf pushd pwd return shift suspend test times true type ulimit umask";
    let listed = Command::new("/bin/bash").args(["-c", "compgen -b"]).output().expect("bash starts");
    for name in String::from_utf8_lossy(&listed.stdout).lines() {
        let harmless = HARMLESS.split_whitespace().any(|harmless| harmless == name);
        let rules = [rule(&format!("{name} *"), RuleEffect::Allow)];
        assert_eq!(allowed(&rules, &format!("{name} a")), harmless, "{name}");
    }
}

/// `evil x` in the ways that it can be hidden, within each other.
fn hidden() -> impl Strategy<Value = String> {
    let plain = select(
        &["evil x", "evil\tx", "ev\\il x", "'evil' x", "ev\"\"il x", "{evil,x}", "\\evil x", "safe; evil x"][..],
    );
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    plain.prop_map(str::to_owned).prop_recursive(6, 64, 2, move |inner| {
        let around = select(
            &[
                "sh -c @",
                "bash -c @",
                "eval @",
                "builtin eval @",
                "env -S@",
                "env sh -c @",
                "echo @ | sh",
                "echo @ | bash -s",
                "printf %s @ | { safe; sh; }",
                "echo @ | . /dev/stdin",
                "echo @ | xargs -I% sh -c %",
                "shopt -s expand_aliases\nalias safe=@\nsafe",
                "PS4='$('@')'; set -x; safe",
                "BASH_ENV=x eval @",
                "trap @ EXIT",
                "safe; a=$(eval @)",
                "find . -maxdepth 0 -exec sh -c @ \\;",
                "a=@; eval \"$a\"",
            ][..],
        );
        (around, inner).prop_map(move |(around, inner)| around.replace('@', &quoted(&inner)))
    })
}

#[test]
fn whatever_runs_what_is_denied_is_asked_about_at_least() {
    let folder = tempfile::tempdir().expect("a folder");
    programs(folder.path());
    for name in ["sh", "bash", "env", "xargs", "find"] {
        let file = folder.path().join("bin").join(name);
        if file.exists() {
            std::fs::remove_file(&file).expect("removed");
        }
        let real =
            ["/bin", "/usr/bin"].map(|folder| Path::new(folder).join(name)).into_iter().find(|real| real.exists());
        std::os::unix::fs::symlink(real.expect("a usual program"), &file).expect("linked");
    }
    let rules = [rule("evil *", RuleEffect::Deny)];
    let mut runner = TestRunner::deterministic();
    let strategy = hidden();
    let (mut ran, mut tried) = (0, HashSet::new());
    for _ in 0..250 {
        let command = strategy.new_tree(&mut runner).expect("a command").current();
        if !tried.insert(command.clone()) {
            continue;
        }
        let arguments = [("command".to_owned(), Argument::Command(command.clone()))].into();
        let silent = matches!(
            evaluate(&rules, Call { tool: "developer__shell", arguments: &arguments, brought: false }),
            RuleDecision::Silent
        );
        let evil = really_ran(folder.path(), &command).iter().any(|line| line.starts_with("evil["));
        ran += usize::from(evil);
        assert!(!(evil && silent), "{command:?} runs what is denied and is not asked about");
    }
    assert!(ran >= 100, "only {ran} of {} commands ran it: the test says little", tried.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_can_be_judged(command in "\\PC{0,60}", odd in "[$`'\"(){}<>|&;\\\\\n #a]{0,60}") {
        for command in [command, odd] {
            let mut rules = rules();
            allowed(&rules, &command);
            rules[0].rule.then = RuleEffect::Deny;
            prop_assert!(!allowed(&rules, &format!("{command}\nsafe")), "what is denied is never allowed");
        }
    }
}

// ---- as a user types it ----

fn shell(sandbox: &Sandbox, flags: &[&str], command: &str) -> Run {
    let prompt = format!("run {command}");
    sandbox.skein(&[&["run", "-a", "coding", "-m", "backend"], flags, &[&prompt]].concat())
}

const TOUCH: &str = "developer__shell: {command: \"touch *\"}";

#[test]
fn a_rule_of_the_command_line_is_for_one_run() {
    let sandbox = Sandbox::new();
    let run = shell(&sandbox, &["--allow", TOUCH], "touch made");
    assert_eq!((run.code, sandbox.path("project/made").exists()), (0, true), "{}", run.whole());
    let run = shell(&sandbox, &["--allow", TOUCH], "touch more && rm made");
    assert_eq!((run.code, sandbox.path("project/more").exists()), (5, false), "{}", run.whole());
    let run = shell(&sandbox, &[], "touch more");
    assert_eq!((run.code, sandbox.path("project/more").exists()), (5, false), "{}", run.whole());
    let run = shell(&sandbox, &["--approval", "auto", "--deny", TOUCH], "ls; touch more");
    assert_eq!((run.code, sandbox.path("project/more").exists()), (5, false), "{}", run.whole());
    assert!(run.stderr.contains("required by a rule") || run.stdout.contains("required by a rule"), "{}", run.whole());
    let run = shell(&sandbox, &["--approval", "read-only", "--allow", TOUCH], "touch more");
    assert_eq!(run.code, 5, "a rule opens no level: {}", run.whole());
    let run = sandbox.skein(&["run", "--allow", "a b", "x"]);
    assert!(run.code == 2 && run.stderr.contains("write `TOOL`"), "{}", run.whole());
}

#[test]
fn a_project_can_deny_what_its_user_allows() {
    let sandbox = Sandbox::new();
    let rule = |then: &str| {
        format!(
            "version: 1\npermissions:\n  - {{tool: developer__shell, arguments: {{command: \"touch *\"}}, then: {then}}}\n"
        )
    };
    sandbox.write("config/config.yaml", &rule("allow"));
    let run = shell(&sandbox, &[], "touch made");
    assert_eq!((run.code, sandbox.path("project/made").exists()), (0, true), "{}", run.whole());
    sandbox.write("project/.skein/config.yaml", &rule("deny"));
    assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
    let run = shell(&sandbox, &[], "touch more");
    assert_eq!((run.code, sandbox.path("project/more").exists()), (5, false), "{}", run.whole());
    let listed = sandbox.skein(&["permissions", "list", "--json"]).json();
    let layers: Vec<_> =
        listed.as_array().expect("a list").iter().map(|rule| (&rule["layer"], &rule["line"])).collect();
    assert_eq!(layers, [(&json!("user"), &json!(3)), (&json!("project"), &json!(3))]);
}

#[test]
fn a_call_can_be_tried_without_calling() {
    let sandbox = Sandbox::new();
    let test = |flags: &[&str], command: &str| {
        let call = format!("developer__shell {}", json!({"command": command}));
        let run = sandbox
            .skein(&[&["permissions", "test", "-a", "coding", "-m", "backend", "--json"], flags, &[&call]].concat());
        assert_eq!(run.code, 0, "{}", run.whole());
        run.json()
    };
    let told = test(&["--allow", TOUCH], "touch made && rm $x");
    assert_eq!(told["outcome"], "ask");
    assert_eq!(told["parts"][0]["allowed_by"]["tool"], "developer__shell");
    assert_eq!((&told["parts"][1]["command"], &told["parts"][1]["allowed_by"]), (&json!("rm …"), &json!(null)));
    assert_eq!(test(&["--allow", TOUCH], "touch made")["outcome"], "run");
    assert_eq!(test(&["--deny", TOUCH], "touch made")["outcome"], "refuse");
    let told = test(&["--approval", "auto", "--deny", TOUCH], "echo `x`");
    assert_eq!((&told["outcome"], &told["unreadable"]), (&json!("ask"), &json!("it holds backticks")));
    assert!(!sandbox.path("project/made").exists());
    let unknown = sandbox.skein(&[
        "permissions",
        "test",
        "-a",
        "coding",
        "-m",
        "security",
        "developer__shell {\"command\": \"ls\"}",
    ]);
    assert!(unknown.code == 2 && unknown.stderr.contains("there is no tool"), "{}", unknown.whole());
}

/// The outcome of `permissions test` in a folder, and who allows the parts of the command.
fn outcome(sandbox: &Sandbox, folder: &str, flags: &[&str], call: &str) -> (String, Vec<bool>) {
    let args = [&["permissions", "test", "-a", "coding", "-m", "backend", "--json"], flags, &[call]].concat();
    let output = sandbox.command(&args).current_dir(sandbox.path(folder)).output().expect("skein starts");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let parts = told["parts"].as_array().expect("parts").iter().map(|part| !part["allowed_by"].is_null()).collect();
    (told["outcome"].as_str().expect("an outcome").to_owned(), parts)
}

#[test]
fn a_rule_for_a_folder_allows_in_that_very_folder() {
    let sandbox = Sandbox::new();
    sandbox.write("project/vendor/evil/x", "");
    sandbox.write("elsewhere/x", "");
    std::os::unix::fs::symlink(sandbox.path("elsewhere"), sandbox.path("project/link")).expect("linked");
    let project = sandbox.path("project").canonicalize().expect("a folder");
    let rule = |command: &str, then: &str| {
        format!(
            "  - {{tool: developer__shell, arguments: {{command: {command}}}, project: {}, then: {then}}}\n",
            project.display()
        )
    };
    let rules = rule("make test", "allow") + &rule("make clean", "deny");
    sandbox.write("config/config.yaml", &format!("version: 1\npermissions:\n{rules}"));
    let at = |folder: &str, command: &str| {
        outcome(&sandbox, folder, &[], &format!("developer__shell {}", json!({"command": command}))).0
    };
    for (folder, allowed) in
        [("project", true), ("project/vendor/evil", false), ("project/link", false), ("elsewhere", false)]
    {
        assert_eq!(at(folder, "make test"), if allowed { "run" } else { "ask" }, "{folder}");
    }
    assert_eq!(
        (at("project", "make clean").as_str(), at("project/vendor/evil", "make clean").as_str()),
        ("refuse", "refuse")
    );
}

#[test]
fn what_is_said_of_a_part_is_what_counts() {
    let sandbox = Sandbox::new();
    let rule = "developer__shell: {command: ls, timeout: 5}";
    let test = |arguments: serde_json::Value| {
        outcome(&sandbox, "project", &["--allow", rule], &format!("developer__shell {arguments}"))
    };
    assert_eq!(test(json!({"command": "ls"})), ("ask".to_owned(), vec![false]));
    assert_eq!(test(json!({"command": "ls", "timeout": 5})), ("run".to_owned(), vec![true]));
    assert_eq!(test(json!({"command": "ls", "timeout": 5, "background": true})), ("ask".to_owned(), vec![false]));
}

#[test]
fn a_rule_that_is_misspelt_is_told() {
    let sandbox = Sandbox::new();
    let idle = |rule: &str| {
        let args = ["permissions", "test", "-a", "coding", "-m", "backend", "--json", "--deny", rule];
        let run = sandbox.skein(&[&args[..], &["developer__shell {\"command\": \"ls\"}"]].concat());
        run.json()["idle_rules"]
            .as_array()
            .expect("a list")
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert!(idle("developer__shell: {comand: \"rm *\"}").contains("did you mean `command`?"));
    assert!(idle("developer__shel").contains("did you mean `developer__shell`?"));
    for rule in ["developer__shell: {command: \"rm *\"}", "developer__*: {path: \"x\"}", "mail__send"] {
        assert_eq!(idle(rule), "", "{rule}");
    }
    let noted = |rule: &str| sandbox.skein(&["run", "--deny", rule, "list"]).stderr;
    let misspelt = noted("developer__shel");
    assert!(misspelt.contains("permission rule matches nothing: "), "{misspelt}");
    assert!(misspelt.contains("did you mean `developer__shell`?"), "{misspelt}");
    assert!(!noted("developer__shell").contains("matches nothing"));
}

#[test]
fn a_folder_is_asked_about_where_a_file_in_it_is_denied() {
    let sandbox = Sandbox::new();
    sandbox.write("project/secret/k", "x");
    sandbox.write("project/src/a", "x");
    let deny = ["--approval", "auto", "--deny", "developer__*: {path: \"secret/*\"}"];
    for (call, expected) in [
        ("developer__read_file {\"path\": \"secret/k\"}", "refuse"),
        ("developer__list_dir {\"path\": \"secret\"}", "ask"),
        ("developer__search {\"pattern\": \"x\"}", "ask"),
        ("developer__search {\"pattern\": \"x\", \"path\": \".\"}", "ask"),
        ("developer__search {\"pattern\": \"x\", \"path\": \"src\"}", "run"),
        ("developer__read_file {\"path\": \"src/a\"}", "run"),
    ] {
        assert_eq!(outcome(&sandbox, "project", &deny, call).0, expected, "{call}");
    }
}

#[test]
fn a_rule_for_files_looks_at_where_a_path_leads() {
    let sandbox = Sandbox::new();
    sandbox.write("project/src/a.txt", "a");
    std::os::unix::fs::symlink("..", sandbox.path("project/src/up")).expect("linked");
    let rule = "developer__write_file: {path: \"src/*\"}";
    let outcome = |path: &str| {
        let call = format!("developer__write_file {}", json!({"path": path, "content": "x"}));
        let run =
            sandbox.skein(&["permissions", "test", "-a", "coding", "-m", "backend", "--json", "--allow", rule, &call]);
        assert_eq!(run.code, 0, "{}", run.whole());
        run.json()["outcome"].clone()
    };
    for (path, expected) in [
        ("src/a.txt", "run"),
        ("src/new.txt", "run"),
        ("./src/../src/a.txt", "run"),
        ("src/../a.txt", "ask"),
        ("src/../../etc/x", "ask"),
        ("src/up/a.txt", "ask"),
    ] {
        assert_eq!(outcome(path), expected, "{path}");
    }
}

#[test]
fn smart_runs_what_a_judge_finds_read_only_and_asks_otherwise() {
    for (verdict, runs) in [
        (r#"{"verdict":"read_only","reason":"It prints."}"#, true),
        (r#"{"verdict":"unsure","reason":"Who knows."}"#, false),
        ("read_only", false),
    ] {
        let wish = calls("developer__shell", &json!({"command": "echo answer read_only"}));
        let model = Model::new([wish, says(verdict), says("done")].map(Answer::Stream).into());
        let sandbox = Sandbox::new();
        let run = model.run(&sandbox, &["-a", "coding", "-m", "backend", "--approval", "smart", "go"]);
        assert_eq!(run.code, if runs { 0 } else { 5 }, "{verdict}: {}", run.whole());
        let asked = model.request(1);
        assert!(asked["tools"].as_array().is_none_or(Vec::is_empty), "the judge has no tools: {asked}");
        let shown = asked["messages"].to_string();
        assert!(shown.contains("an internal check") && shown.contains("echo answer read_only"), "{shown}");
    }
}

#[test]
fn a_project_does_not_choose_the_judge() {
    let verdict = r#"{"verdict":"read_only","reason":"It prints."}"#;
    for (file, judge) in [("project/.skein/config.yaml", "scripted"), ("config/config.yaml", "chosen")] {
        let wish = calls("developer__shell", &json!({"command": "echo answer"}));
        let model = Model::new([wish, says(verdict), says("done")].map(Answer::Stream).into());
        let sandbox = Sandbox::new();
        sandbox.write(file, "version: 1\nprofiles: {default: {accelerator: 'openai:chosen'}}\n");
        sandbox.write("project/.skein/keep", "");
        sandbox.skein(&["trust", "--yes"]);
        let run = model.run(&sandbox, &["-a", "coding", "-m", "backend", "--approval", "smart", "go"]);
        assert_eq!(run.code, 0, "{}", run.whole());
        assert_eq!(model.request(1)["model"], judge, "{file}");
    }
}

#[test]
fn smart_without_a_model_asks() {
    let sandbox = Sandbox::new();
    let run = shell(&sandbox, &["--approval", "smart"], "touch made");
    assert_eq!((run.code, sandbox.path("project/made").exists()), (5, false), "{}", run.whole());
}

#[test]
fn what_a_rule_asks_about_does_not_go_to_the_judge() {
    let wish = calls("developer__shell", &json!({"command": "touch made"}));
    let model = Model::new([wish, says("done")].map(Answer::Stream).into());
    let sandbox = Sandbox::new();
    let rule = "version: 1\npermissions:\n  - {tool: developer__shell, arguments: {command: 'touch *'}, then: ask}\n";
    sandbox.write("config/config.yaml", rule);
    let run = model.run(&sandbox, &["-a", "coding", "-m", "backend", "--approval", "smart", "go"]);
    assert_eq!((run.code, sandbox.path("project/made").exists()), (5, false), "{}", run.whole());
    let asked = model.requests.lock().expect("the requests");
    assert!(asked.iter().all(|(_, body)| !body.contains("an internal check")), "{asked:?}");
}
