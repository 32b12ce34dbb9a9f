//! Matches a command pattern against the parts of a command line.
//!
//! Invariant: an `allow` pattern must name the program and match the part literally. A `deny` or `ask` pattern matches
//! everything the part may run: with certainty where that is known, and otherwise so that the user is asked.

use super::ArgumentMatch;
use super::budget::Budget;
use super::glob::{self, UNKNOWN};
use super::shell::{self, ShellWord, SimpleCommand, text};

/// Bash builtins that assign, evaluate, or change the meaning of later commands. A `*` allows none of them, and no
/// pattern allows one next to other parts.
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

/// Programs and builtins known to run what their arguments name, or to interpret them as a script.
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
/// Wrappers that read the commands they run from a pipe.
const READING: [&str; 17] = [
    ".", "ash", "at", "bash", "batch", "csh", "dash", "fish", "ksh", "mksh", "parallel", "rbash", "sh", "source",
    "tcsh", "yash", "zsh",
];
/// Wrappers that join all their arguments into one script.
const JOINING: [&str; 4] = ["eval", "parallel", "ssh", "watch"];
/// Builtins after which a name may mean another program.
const RENAMING: [&str; 3] = ["alias", "enable", "hash"];

/// The number of words after a wrapper that are each examined as a command. This bounds the time; real commands have
/// fewer.
const MAX_WRAPPED: usize = 200;
/// The nesting depth up to which scripts within words are examined.
const MAX_DEPTH: usize = 4;

/// Returns the start of the value if the word is an assignment such as `X=1`, `X+=1` or `X[1]=1`, quoted or not.
fn assigns(word: &ShellWord) -> Option<usize> {
    let (name, _) = word.text.split_once('=')?;
    let end = name.len() + 1;
    let name = name.strip_suffix('+').unwrap_or(name);
    let name = name.split(['[', UNKNOWN]).next().unwrap_or(name);
    let sound = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    sound.then_some(end)
}

/// Returns true if an `allow` pattern covers a readable part of a command line. `alone` means there is no other part.
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

/// Returns true if these words, without assignments, may change the meaning of a later command or evaluate an argument.
/// Looking up a variable named `a[$(rm x)]` runs the command; so does `a[x]` if `x` contains such an expression.
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

/// Returns true if a printf format contains `%n`, which assigns the number of characters so far.
fn counts_into_a_variable(format: &str) -> bool {
    format.split('%').skip(1).any(|conversion| {
        conversion.trim_start_matches(|c: char| c.is_ascii_digit() || "#'-+ .*hjlLqtzZ".contains(c)).starts_with('n')
    })
}

fn is_one_of(names: &[&str], word: &ShellWord) -> bool {
    names.contains(&base(&word.text))
}

/// Returns the last component of a path.
fn base(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// How certainly a `deny` or `ask` pattern matches a command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CommandMatch {
    No,
    /// Part of the command line is unreadable or has an unknown value.
    Unclear,
    /// A match that may or may not run, or a program that takes its commands from elsewhere.
    Hidden,
    Yes,
}

impl CommandMatch {
    fn only_if(self, so: bool) -> Self {
        if so { self } else { CommandMatch::No }
    }
}

/// Matches a `deny` or `ask` pattern against the whole command line, its parts, and the commands the parts run.
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
        // Each part is compared with the program names above.
        if !budget.spend(WRAPPERS.len() + length(&part.words)) {
            return CommandMatch::Unclear;
        }
        match_part(pattern, command, &part.words, depth, budget).max(match_pipe(part))
    });
    parts.max().unwrap_or(CommandMatch::No).max(least)
}

/// Returns the words after the assignments.
fn command_of(words: &[ShellWord]) -> &[ShellWord] {
    &words[words.iter().take_while(|word| assigns(word).is_some()).count()..]
}

/// Matches programs that may run commands from a pipe, and builtins that change the meaning of a name.
fn match_pipe(part: &SimpleCommand) -> CommandMatch {
    let Some((program, arguments)) = command_of(&part.words).split_first() else { return CommandMatch::No };
    let shell = is_one_of(&WRAPPERS, program) && part.words.iter().any(|word| is_one_of(&READING, word));
    let told = shell || base(&program.text) == "xargs" && runs_what_it_reads(arguments);
    let renames = is_one_of(&RENAMING, program) && !arguments.is_empty();
    CommandMatch::Hidden.only_if(part.piped && told).max(CommandMatch::Unclear.only_if(renames))
}

/// Takes the arguments of `xargs`. Returns true if the pipe may supply a program, and not only arguments for one.
fn runs_what_it_reads(arguments: &[ShellWord]) -> bool {
    let replaces = |word: &ShellWord| ["-I", "-i", "-J", "--replace"].iter().any(|flag| word.text.starts_with(flag));
    arguments.iter().all(|word| word.text.starts_with('-'))
        || arguments.iter().any(|word| replaces(word) || is_one_of(&WRAPPERS, word))
}

/// Returns the bytes of all words, plus one per word.
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

/// Matches words, and values after `=`, as scripts, in case the program interprets them as such.
fn match_words(pattern: &str, script: &str, words: &[ShellWord], depth: usize, budget: &Budget) -> CommandMatch {
    let texts = words.iter().map(|word| word.text.as_str()).filter(|text| text.contains(is_special));
    let scripts = texts.flat_map(|text| [Some(text), text.split_once('=').map(|(_, value)| value)]).flatten();
    // A script of one word was already examined.
    let scripts = scripts.filter(|inner| *inner != script);
    let found = scripts.map(|script| match_script(pattern, script, depth + 1, budget)).max();
    CommandMatch::Hidden.only_if(found >= Some(CommandMatch::Hidden))
}

/// Matches the arguments of a wrapper: a command may start at each word, and each word may be a script.
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

/// Returns true for a character that may have a meaning in a shell script or another language.
fn is_special(c: char) -> bool {
    c.is_ascii() && !c.is_ascii_alphanumeric() && !"_-./:+@%~".contains(c)
}

/// Matches the pattern after other words or within one: `find . -exec rm x`, `awk '{system("rm x")}'`.
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

/// Matches words as one command, with and without the path of the program.
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
    // An expansion may be empty, and the blanks around it then disappear.
    let vanishing = |text: &str| {
        let parts: Vec<_> = text.split(UNKNOWN).map(str::trim).collect();
        parts.join(&UNKNOWN.to_string())
    };
    let unknown = plain.contains(UNKNOWN);
    let texts = [quoted.clone(), plain.clone(), short.clone(), vanishing(&plain), vanishing(&short)];
    CommandMatch::Unclear.only_if(unknown && texts.iter().any(|text| glob::may_match(pattern, text, budget)))
}

/// Returns the narrowest pattern that covers this command line, for a rule to be stored: the command itself. `None`
/// unless it is a single readable command without `*`.
pub fn narrowest(command: &str) -> Option<String> {
    let script = shell::read(command);
    let [part] = script.parts.as_slice() else { return None };
    let text = part.text();
    let sound = script.unreadable.is_none() && !text.contains(['*', UNKNOWN]);
    (sound && covers(part, &text, true, &Budget::default())).then_some(text)
}
