//! A pattern for a command line, held against one of its parts.

use super::Match;
use super::glob::{self, UNKNOWN};
use super::shell::{self, Part, Word};

/// Programs and builtins that run what their arguments name, or change what later parts mean. A pattern speaks of
/// them only if it names them: `*` does not.
const WRAPPERS: [&str; 75] = [
    ".",
    "alias",
    "bash",
    "bind",
    "break",
    "builtin",
    "busybox",
    "cd",
    "chroot",
    "chrt",
    "command",
    "compgen",
    "complete",
    "continue",
    "dash",
    "declare",
    "disown",
    "doas",
    "enable",
    "env",
    "eval",
    "exec",
    "export",
    "fc",
    "fish",
    "flock",
    "getopts",
    "hash",
    "ionice",
    "ksh",
    "let",
    "local",
    "mapfile",
    "nice",
    "nohup",
    "nsenter",
    "parallel",
    "popd",
    "printf",
    "pushd",
    "read",
    "readarray",
    "readonly",
    "return",
    "runuser",
    "script",
    "set",
    "setsid",
    "sh",
    "shift",
    "shopt",
    "source",
    "ssh",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "systemd-run",
    "taskset",
    "test",
    "time",
    "timeout",
    "trap",
    "typeset",
    "ulimit",
    "umask",
    "unalias",
    "unset",
    "unshare",
    "wait",
    "watch",
    "xargs",
    "zsh",
    "[",
    "exit",
];
/// Builtins that calculate with, or assign to, what their arguments name: `a[$(rm x)]` runs `rm`.
const EVALUATING: [&str; 16] = [
    "[",
    "declare",
    "export",
    "getopts",
    "let",
    "local",
    "mapfile",
    "printf",
    "read",
    "readarray",
    "readonly",
    "return",
    "test",
    "typeset",
    "unset",
    "wait",
];

/// Words behind a wrapper that are looked at as a command each. Nobody types more, and each takes time.
const MAX_WRAPPED: usize = 200;

/// `X=1`, `X+=1` and `X[1]=1`, quoted or not.
fn assigns(word: &Word) -> bool {
    let Some((name, _)) = word.text.split_once('=') else { return false };
    let name = name.strip_suffix('+').unwrap_or(name);
    let name = name.split(['[', UNKNOWN]).next().unwrap_or(name);
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether a pattern that allows covers a part of a command line that could be read.
pub(super) fn allowed_by(part: &Part, pattern: &str) -> bool {
    let assignments = part.words.iter().take_while(|word| assigns(word)).count();
    let program = part.words.get(assignments);
    let head = &part.words[..part.words.len().min(assignments + 1)];
    if head.iter().any(|word| !word.is_known()) {
        return false;
    }
    let name = program.map_or("", |word| word.text.as_str());
    let evaluated = |word: &Word| word.text.contains(['$', '`', UNKNOWN]);
    if EVALUATING.contains(&name) && part.words.iter().any(evaluated) {
        return false;
    }
    if assignments > 0 || wraps(name) {
        let head = Part { words: head.to_vec() }.text();
        let named = pattern.strip_prefix(&head).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
        if !named || head.contains('*') {
            return false;
        }
    }
    glob::matches(pattern, &part.text())
}

fn wraps(name: &str) -> bool {
    WRAPPERS.contains(&base(name))
}

/// The last part of a path.
fn base(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Whether a pattern that denies or asks speaks of a command line: of the whole, of a part, or of what a part runs.
pub(super) fn concerned(pattern: &str, command: &str) -> Match {
    if glob::matches(pattern, command) || glob::matches(pattern, command.trim()) {
        return Match::Yes;
    }
    in_script(pattern, command, 0)
}

fn in_script(pattern: &str, command: &str, depth: usize) -> Match {
    let script = shell::read_at(command, depth);
    let least = if script.unreadable.is_some() { Match::Maybe } else { Match::No };
    let parts = script.parts.iter().map(|part| in_part(pattern, &part.words, depth));
    parts.max().unwrap_or(Match::No).max(least)
}

fn in_part(pattern: &str, words: &[Word], depth: usize) -> Match {
    let Some(first) = words.first() else { return Match::No };
    let mut found = as_it_stands(pattern, words);
    if assigns(first) || wraps(&first.text) || !first.is_known() {
        if words.len() > MAX_WRAPPED {
            return found.max(Match::Maybe);
        }
        let further = (1..words.len()).map(|from| as_it_stands(pattern, &words[from..]));
        found = found.max(further.max().unwrap_or(Match::No));
        // `sh -c "rm x"`: each word may be a command line. Such words are seldom, and seldom deep.
        if depth < 3 {
            let inner = words[1..].iter().filter(|word| word.text.contains([' ', ';', '&', '|', '\n', '(', '`', '$']));
            let inner = inner.map(|word| in_script(pattern, &word.text, depth + 1));
            found = found.max(inner.max().unwrap_or(Match::No));
        }
    }
    found
}

/// Words as one command, with its program's path and without.
fn as_it_stands(pattern: &str, words: &[Word]) -> Match {
    let quoted = Part { words: words.to_vec() }.text();
    let plain = words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ");
    let program = words.first().map_or("", |word| word.text.as_str());
    let short = format!("{}{}", base(program), plain.strip_prefix(program).unwrap_or_default());
    if [&quoted, &plain, &short].iter().any(|text| glob::matches(pattern, text)) {
        return Match::Yes;
    }
    // An expansion may turn out to be nothing, and the blanks around it vanish with it.
    let vanishing = |text: &str| {
        let parts: Vec<_> = text.split(UNKNOWN).map(str::trim).collect();
        parts.join(&UNKNOWN.to_string())
    };
    let unknown = plain.contains(UNKNOWN);
    let texts = [quoted.clone(), plain.clone(), short.clone(), vanishing(&plain), vanishing(&short)];
    if unknown && texts.iter().any(|text| glob::may_match(pattern, text)) { Match::Maybe } else { Match::No }
}

/// The narrowest pattern that still covers this command line, for a rule that is kept: the command itself, if it is a
/// single one that can be read and holds no `*`. Nothing if there is none.
pub fn narrowest(command: &str) -> Option<String> {
    let script = shell::read(command);
    let [part] = script.parts.as_slice() else { return None };
    let text = part.text();
    let sound = script.unreadable.is_none() && !text.contains(['*', UNKNOWN]);
    (sound && allowed_by(part, &text)).then_some(text)
}
