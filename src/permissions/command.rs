//! A pattern for a command line, held against one of its parts.
//!
//! Invariant: a pattern that allows names the program and speaks of the part as it stands. One that denies speaks of
//! whatever the part may run: for certain where that is known, and otherwise so that it is asked about.

use super::ArgumentMatch;
use super::budget::Budget;
use super::glob::{self, UNKNOWN};
use super::shell::{self, ShellWord, SimpleCommand, text};

/// Builtins of bash that assign, evaluate, or change what later commands mean. A `*` allows none of them, and nothing
/// allows one beside other parts.
const CHANGING: [&str; 29] = [
    ".",
    "alias",
    "bind",
    "compgen",
    "complete",
    "compopt",
    "declare",
    "enable",
    "eval",
    "export",
    "fc",
    "getopts",
    "hash",
    "history",
    "jobs",
    "let",
    "local",
    "mapfile",
    "read",
    "readarray",
    "readonly",
    "set",
    "shopt",
    "source",
    "trap",
    "typeset",
    "unalias",
    "unset",
    "wait",
];

/// Programs and builtins that are known to run what their arguments name, or to take them for a script.
const WRAPPERS: [&str; 60] = [
    ".",
    "ash",
    "at",
    "bash",
    "batch",
    "bind",
    "builtin",
    "busybox",
    "choom",
    "chroot",
    "chrt",
    "command",
    "compgen",
    "complete",
    "csh",
    "dash",
    "doas",
    "env",
    "eval",
    "exec",
    "fakeroot",
    "fc",
    "fish",
    "flock",
    "ionice",
    "ksh",
    "linux32",
    "linux64",
    "mksh",
    "nice",
    "nohup",
    "nsenter",
    "parallel",
    "pkexec",
    "prlimit",
    "rbash",
    "runuser",
    "script",
    "setarch",
    "setsid",
    "sh",
    "source",
    "ssh",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "systemd-run",
    "taskset",
    "tcsh",
    "time",
    "timeout",
    "toybox",
    "trap",
    "unbuffer",
    "unshare",
    "watch",
    "xargs",
    "yash",
    "zsh",
];
/// Those that read what they run from a pipe.
const READING: [&str; 17] = [
    ".", "ash", "at", "bash", "batch", "csh", "dash", "fish", "ksh", "mksh", "parallel", "rbash", "sh", "source",
    "tcsh", "yash", "zsh",
];
/// Those that make one script of all their arguments.
const JOINING: [&str; 4] = ["eval", "parallel", "ssh", "watch"];
/// Those after which a name may stand for another program.
const RENAMING: [&str; 3] = ["alias", "enable", "hash"];

/// Words behind a wrapper that are looked at as a command each. Nobody types more, and each takes time.
const MAX_WRAPPED: usize = 200;
/// How deep scripts within words are followed.
const MAX_DEPTH: usize = 4;

/// Where the value begins, if the word is `X=1`, `X+=1` or `X[1]=1`, quoted or not.
fn assigns(word: &ShellWord) -> Option<usize> {
    let (name, _) = word.text.split_once('=')?;
    let end = name.len() + 1;
    let name = name.strip_suffix('+').unwrap_or(name);
    let name = name.split(['[', UNKNOWN]).next().unwrap_or(name);
    let sound = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    sound.then_some(end)
}

/// Whether a pattern that allows covers a part of a command line that could be read. `alone`: there is no other part.
pub(super) fn covers(part: &SimpleCommand, pattern: &str, alone: bool, budget: &Budget) -> bool {
    if !budget.spend(length(&part.words)) {
        return false;
    }
    let words = command_of(&part.words);
    let (assigned, _) = part.words.split_at(part.words.len() - words.len());
    let head = &part.words[..part.words.len().min(assigned.len() + 1)];
    let quoted = |word: &ShellWord| assigns(word).is_some_and(|end| !word.is_typed_up_to(end));
    if head.iter().any(|word| !word.is_known()) || assigned.iter().any(quoted) {
        return false;
    }
    if changes_the_shell(words) {
        return alone && !words.iter().any(is_evaluated) && pattern == part.text() && !pattern.contains('*');
    }
    let head = text(head);
    let named = pattern.strip_prefix(&head).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '*']));
    named && !head.contains('*') && glob::matches(pattern, &part.text(), budget)
}

/// What comes after the assignments: whether a later command may mean something else after it, or an argument of it
/// be run. `a[$(rm x)]` is run by whoever looks up a variable of that name, and `a[x]` if `x` holds such a thing.
fn changes_the_shell(words: &[ShellWord]) -> bool {
    let Some((program, arguments)) = words.split_first() else { return true };
    match program.text.as_str() {
        "command" | "builtin" => {
            let options = arguments.iter().take_while(|word| word.text.starts_with('-')).count();
            changes_the_shell(&arguments[options..]) && !arguments.is_empty()
        }
        "test" | "[" => arguments.iter().any(is_evaluated),
        "printf" => arguments.first().is_some_and(|format| {
            !format.is_known() || format.text.starts_with('-') || counts_into_a_variable(&format.text)
        }),
        name => CHANGING.contains(&name),
    }
}

fn is_evaluated(word: &ShellWord) -> bool {
    word.text != "[" && word.text.contains(['$', '`', '[', UNKNOWN])
}

/// `%n` of printf assigns the number of characters so far.
fn counts_into_a_variable(format: &str) -> bool {
    format.split('%').skip(1).any(|conversion| {
        conversion.trim_start_matches(|c: char| c.is_ascii_digit() || "#'-+ .*hjlLqtzZ".contains(c)).starts_with('n')
    })
}

fn is_one_of(names: &[&str], word: &ShellWord) -> bool {
    names.contains(&base(&word.text))
}

/// The last part of a path.
fn base(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// What a pattern that denies or asks finds in a command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CommandMatch {
    No,
    /// Something that nobody can read, or whose value nobody knows.
    Unclear,
    /// What it speaks of, or a program that takes commands from elsewhere, where it may or may not be run.
    Hidden,
    Yes,
}

impl CommandMatch {
    fn only_if(self, so: bool) -> Self {
        if so { self } else { CommandMatch::No }
    }
}

/// Whether a pattern that denies or asks speaks of a command line: of the whole, of a part, or of what a part runs.
pub(super) fn match_restricting(pattern: &str, command: &str, budget: &Budget) -> ArgumentMatch {
    if glob::matches(pattern, command, budget) || glob::matches(pattern, command.trim(), budget) {
        return ArgumentMatch::Yes;
    }
    match match_script(pattern, command, 0, budget) {
        CommandMatch::Yes => ArgumentMatch::Yes,
        CommandMatch::Unclear | CommandMatch::Hidden => ArgumentMatch::Maybe,
        CommandMatch::No => ArgumentMatch::No,
    }
}

fn match_script(pattern: &str, command: &str, depth: usize, budget: &Budget) -> CommandMatch {
    if !budget.spend(command.len()) {
        return CommandMatch::Unclear;
    }
    let script = shell::read_at(command, depth);
    let least = CommandMatch::Unclear.only_if(script.unreadable.is_some());
    let parts = script.parts.iter().map(|part| {
        // Each looks through the names of programs above.
        if !budget.spend(WRAPPERS.len() + length(&part.words)) {
            return CommandMatch::Unclear;
        }
        match_part(pattern, command, &part.words, depth, budget).max(match_pipe(part))
    });
    parts.max().unwrap_or(CommandMatch::No).max(least)
}

/// The words after the assignments.
fn command_of(words: &[ShellWord]) -> &[ShellWord] {
    &words[words.iter().take_while(|word| assigns(word).is_some()).count()..]
}

/// Programs that a pipe may tell what to run, and builtins that give a name another meaning.
fn match_pipe(part: &SimpleCommand) -> CommandMatch {
    let Some((program, arguments)) = command_of(&part.words).split_first() else { return CommandMatch::No };
    let shell = is_one_of(&WRAPPERS, program) && part.words.iter().any(|word| is_one_of(&READING, word));
    let told = shell || base(&program.text) == "xargs" && runs_what_it_reads(arguments);
    let renames = is_one_of(&RENAMING, program) && !arguments.is_empty();
    CommandMatch::Hidden.only_if(part.piped && told).max(CommandMatch::Unclear.only_if(renames))
}

/// Of the arguments of `xargs`: whether a program, and not only arguments for one, may come out of the pipe.
fn runs_what_it_reads(arguments: &[ShellWord]) -> bool {
    let replaces = |word: &ShellWord| ["-I", "-i", "-J", "--replace"].iter().any(|flag| word.text.starts_with(flag));
    arguments.iter().all(|word| word.text.starts_with('-'))
        || arguments.iter().any(|word| replaces(word) || is_one_of(&WRAPPERS, word))
}

/// The bytes of all words, and one for each.
fn length(words: &[ShellWord]) -> usize {
    words.iter().map(|word| word.text.len() + 1).sum()
}

fn match_part(pattern: &str, script: &str, words: &[ShellWord], depth: usize, budget: &Budget) -> CommandMatch {
    let command = command_of(words);
    let found = match_verbatim(pattern, words, budget)
        .max(match_verbatim(pattern, command, budget))
        .max(match_within(pattern, words, budget));
    let runs_others = command.first().is_some_and(|first| is_one_of(&WRAPPERS, first) || !first.is_known());
    if depth >= MAX_DEPTH || command.len() > MAX_WRAPPED {
        return found.max(CommandMatch::Hidden.only_if(runs_others && command.len() > 1));
    }
    let wrapped = if runs_others { match_wrapped(pattern, command, depth, budget) } else { CommandMatch::No };
    found.max(wrapped).max(match_words(pattern, script, words, depth, budget))
}

/// Words of a script, and values within words, that would be scripts if the program took them for such.
fn match_words(pattern: &str, script: &str, words: &[ShellWord], depth: usize, budget: &Budget) -> CommandMatch {
    let texts = words.iter().map(|word| word.text.as_str()).filter(|text| text.contains(is_special));
    let scripts = texts.flat_map(|text| [Some(text), text.split_once('=').map(|(_, value)| value)]).flatten();
    // A script of one word was just looked at.
    let scripts = scripts.filter(|inner| *inner != script);
    let found = scripts.map(|script| match_script(pattern, script, depth + 1, budget)).max();
    CommandMatch::Hidden.only_if(found >= Some(CommandMatch::Hidden))
}

/// Behind a program that runs what its arguments name: from each word on there may be a command, and each word may
/// be a script.
fn match_wrapped(pattern: &str, words: &[ShellWord], depth: usize, budget: &Budget) -> CommandMatch {
    let joining = words.iter().position(|word| is_one_of(&JOINING, word));
    let joined = joining.map(|at| match_script(pattern, &plain(&words[at + 1..]), depth + 1, budget));
    let mut all = words.to_vec();
    if ["xargs", "parallel"].contains(&base(&words[0].text)) {
        all.push(ShellWord::new_unknown());
    }
    let further = (1..words.len()).map(|from| {
        let script = match_script(pattern, &words[from].text, depth + 1, budget);
        match_verbatim(pattern, &all[from..], budget).max(script)
    });
    further.chain(joined).max().unwrap_or(CommandMatch::No)
}

/// What may mean something in a script, of a shell or of another language.
fn is_special(c: char) -> bool {
    c.is_ascii() && !c.is_ascii_alphanumeric() && !"_-./:+@%~".contains(c)
}

/// Whether the pattern matches behind other words, or within one: `find . -exec rm x`, `awk '{system("rm x")}'`.
fn match_within(pattern: &str, words: &[ShellWord], budget: &Budget) -> CommandMatch {
    if !budget.spend(length(words)) {
        return CommandMatch::Unclear;
    }
    let plain = plain(words);
    let bare = plain.replace(is_special, " ");
    let bare = bare.split_whitespace().collect::<Vec<_>>().join(" ");
    CommandMatch::Hidden
        .only_if([text(words), plain, bare].iter().any(|text| glob::matches_within(pattern, text, budget)))
}

fn plain(words: &[ShellWord]) -> String {
    words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ")
}

/// Words as one command, with its program's path and without.
fn match_verbatim(pattern: &str, words: &[ShellWord], budget: &Budget) -> CommandMatch {
    if !budget.spend(length(words)) {
        return CommandMatch::Unclear;
    }
    let quoted = text(words);
    let plain = plain(words);
    let program = words.first().map_or("", |word| word.text.as_str());
    let short = format!("{}{}", base(program), plain.strip_prefix(program).unwrap_or_default());
    if [&quoted, &plain, &short].iter().any(|text| glob::matches(pattern, text, budget)) {
        return CommandMatch::Yes;
    }
    // An expansion may turn out to be nothing, and the blanks around it vanish with it.
    let vanishing = |text: &str| {
        let parts: Vec<_> = text.split(UNKNOWN).map(str::trim).collect();
        parts.join(&UNKNOWN.to_string())
    };
    let unknown = plain.contains(UNKNOWN);
    let texts = [quoted.clone(), plain.clone(), short.clone(), vanishing(&plain), vanishing(&short)];
    CommandMatch::Unclear.only_if(unknown && texts.iter().any(|text| glob::may_match(pattern, text, budget)))
}

/// The narrowest pattern that still covers this command line, for a rule that is kept: the command itself, if it is a
/// single one that can be read and holds no `*`. Nothing if there is none.
pub fn narrowest(command: &str) -> Option<String> {
    let script = shell::read(command);
    let [part] = script.parts.as_slice() else { return None };
    let text = part.text();
    let sound = script.unreadable.is_none() && !text.contains(['*', UNKNOWN]);
    (sound && covers(part, &text, true, &Budget::default())).then_some(text)
}
