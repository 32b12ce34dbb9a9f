//! What becomes of a command line.

use super::*;

fn parts(command: &str) -> Vec<String> {
    read(command).parts.iter().map(|part| part.text().replace(UNKNOWN, "?")).collect()
}

#[test]
fn every_simple_command_is_a_part() {
    for (command, expected) in [
        ("git status", &["git status"][..]),
        ("  git   status\t", &["git status"]),
        ("a && b || c; d & e | f |& g\nh", &["a", "b", "c", "d", "e", "f", "g", "h"]),
        ("(a; b)", &["a", "b"]),
        ("{ a; b; }", &["a", "b"]),
        ("! a", &["a"]),
        ("if a; then b; elif c; then d; else e; fi", &["a", "b", "c", "d", "e"]),
        ("while a; do b; done", &["a", "b"]),
        ("echo $(a b) \"x $(c | d)\"", &["a b", "c", "d", "echo ? 'x ?'"]),
        ("a # b; c\nd", &["a", "d"]),
        ("a 2>&1 >/dev/null | b 2>/dev/null", &["a", "b"]),
        ("a &>/dev/null", &["a"]),
        ("a 2147483647>/dev/null", &["a"]),
        ("a 99999999999>/dev/null", &["a 99999999999"]),
        ("a \\\n  b", &["a b"]),
    ] {
        assert_eq!(parts(command), expected, "{command}");
        assert_eq!(read(command).unreadable, None, "{command}");
    }
}

#[test]
fn words_lose_their_quotes_and_keep_their_borders() {
    for (command, expected) in [
        ("g'i't \"sta\"\\tus", "git status"),
        ("echo 'a b' \"c'd\" '' e\\ f", r"echo 'a b' 'c'\''d' '' 'e f'"),
        ("echo a\\;b ';' \"&&\"", "echo a;b ; &&"),
        ("echo \"\\$x \\n\"", r"echo '$x \n'"),
        ("echo $x ${y} \"$z\" *.rs ~/a {a,b} $?", "echo ? ? ? ?.rs ?/a ?a,b? ?"),
        ("[ a ]", "[ a ]"),
        ("echo a#b $", "echo a#b $"),
        ("сat x", "сat x"),
    ] {
        assert_eq!(parts(command), [expected], "{command}");
        assert_eq!(read(command).unreadable, None, "{command}");
    }
}

#[test]
fn what_is_not_certainly_understood_is_unreadable() {
    for command in [
        "ls > file",
        "ls >> file",
        "ls 2> file",
        "ls >| file",
        "ls >& file",
        "ls &> file",
        "ls > \"/dev/null\"x",
        "cat < file",
        "cat <<EOF\nrm x\nEOF",
        "cat <<< x",
        "ls {fd}>/dev/null",
        "ls a {fd}</dev/null",
        "diff <(a) <(b)",
        "tee >(rm x)",
        ">/dev/null if x",
        "echo `rm x`",
        "echo \"`rm x`\"",
        "echo $'\\x72m'",
        "echo $\"x\"",
        "echo ${x:-$(rm x)}",
        "echo ${!x}",
        "echo $((x))",
        "echo $[x]",
        "((x = 1))",
        "[[ -v x ]]",
        "for x in a; do b; done",
        "case a in a) b;; esac",
        "select x in a; do b; done",
        "function f { a; }",
        "f() { a; }",
        "a=(b c)",
        "time a",
        "coproc a",
        "l\\\ns",
        "ls \"a\\\nb\"",
        "echo \"$\\\n(rm x)\"",
        "echo $\\\n(rm x)",
        "ls \\\n#x",
        "echo $(a # b\n)",
        "echo 'a",
        "echo \"a",
        "echo $(a",
        "(a",
        "a)",
        "a \\",
        "a\0b",
        "a\rb",
        "a\u{a0}b",
        "a\u{202e}b",
        "a\u{200b}b",
    ] {
        assert!(read(command).unreadable.is_some(), "{command:?}");
    }
    let deep = format!("{}rm{}", "$(".repeat(5000), ")".repeat(5000));
    assert!(read(&deep).unreadable.is_some());
}

#[test]
fn what_is_unreadable_still_shows_its_parts() {
    for command in [
        "for x in a; do rm y; done",
        "case a in a) rm y;; esac",
        "f() { rm y; }",
        "echo `rm y`",
        "echo ${x:-$(rm y)}",
        "diff <(rm y)",
        "cat <<EOF\n$(rm y)\nEOF",
        "time rm y",
        "echo $((1)); rm y",
        "ls > $(rm y)",
    ] {
        assert!(parts(command).iter().any(|part| part.starts_with("rm y")), "{command}: {:?}", parts(command));
    }
}
