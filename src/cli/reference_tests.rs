//! Generates the command reference `docs/cli.md` from the command line definition and compares it with the file.
//! `UPDATE_EXPECT=1 cargo test --lib command_reference` writes the file.

use clap::{Arg, Command, CommandFactory as _, Id};
use expect_test::expect_file;

use super::Cli;

const WIDTH: usize = 100;

const INTRODUCTION: &str = "\
# Command reference

<!-- Generated from src/cli by `UPDATE_EXPECT=1 cargo test --lib command_reference`. Do not edit. -->

`skein help COMMAND` prints the same. [reference.md](reference.md) lists exit codes, environment
variables and JSON fields. These pages explain the commands with examples:

- [run.md](run.md): `run`; [chat.md](chat.md): `chat`; [sessions.md](sessions.md): `sessions`
- [acp.md](acp.md): `acp`; [mcp-server.md](mcp-server.md): `mcp`
- [inspect.md](inspect.md): `check`, `graph`, `agents`, `services`, `tools`, `route`
- [add-services.md](add-services.md): `services add`, `services disable`, `agents add`
- [permissions.md](permissions.md): `permissions` and `--approval`
- [setup.md](setup.md): `new`, `trust`, `import`, `configure`, `doctor`, `completions`
- [apps.md](apps.md): `apps`; [recording.md](recording.md): `--record` and `--replay`
- [serve.md](serve.md): `serve`, `token`; [console.md](console.md): `console`
- [store.md](store.md): `store`; [audit.md](audit.md): `audit`; [report.md](report.md): `report`
- [knowledge.md](knowledge.md#lessons-on-skein-itself): `tutorial`
";

/// Topics that other pages explain.
const APPENDIX: &str = "
## Approval

[permissions.md](permissions.md) explains `--approval`.

## Models

[run.md](run.md#the-offline-model) explains `offline`, [models.md](models.md) language models.

## Environment

[reference.md](reference.md#environment-variables) lists the environment variables.

## Record and replay

[recording.md](recording.md) explains `--record` and `--replay`.
";

#[test]
fn the_command_reference_matches_the_command_line() {
    expect_file!["../../docs/cli.md"].assert_eq(&page());
}

fn page() -> String {
    let mut root = Cli::command();
    root.build();
    let mut page = INTRODUCTION.to_owned();
    page.push_str("\n## Global options\n\nEvery command takes these.\n\n");
    page.push_str(&items(root.get_arguments().filter(|argument| argument.is_global_set())));
    let global = global_ids(&root);
    for command in root.get_subcommands().filter(|command| is_documented(command)) {
        section(command, command.get_name(), &global, &mut page);
    }
    page + APPENDIX
}

fn is_documented(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// The arguments that a command hands down to its subcommands.
fn global_ids(command: &Command) -> Vec<Id> {
    let global = command.get_arguments().filter(|argument| argument.is_global_set());
    global.map(|argument| argument.get_id().clone()).collect()
}

/// One command and its subcommands. `inherited` are arguments that an earlier section lists.
fn section(command: &Command, name: &str, inherited: &[Id], page: &mut String) {
    let level = 2 + name.matches(' ').count();
    page.push_str(&format!("\n{} {name}\n\n", "#".repeat(level)));
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    page.push_str(&wrap(&sentences(&about), "", ""));
    let usage = command.clone().render_usage().to_string();
    page.push_str(&format!("\n```text\n{}\n```\n", usage.trim_start_matches("Usage: ").trim_end()));
    let own = command.get_arguments().filter(|argument| !inherited.contains(argument.get_id()));
    let items = items(own);
    if !items.is_empty() {
        page.push_str(&format!("\n{items}"));
    }
    let inherited = [inherited, &global_ids(command)].concat();
    for below in command.get_subcommands().filter(|below| is_documented(below)) {
        section(below, &format!("{name} {}", below.get_name()), &inherited, page);
    }
}

/// One list item per argument, in the order of the help.
fn items<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
    let shown = arguments.filter(|argument| !argument.is_hide_set() && argument.get_id() != "help");
    shown.map(item).collect()
}

fn item(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = format!("- {}", spelling(argument));
    match help.is_empty() {
        true => text.push('.'),
        false => text.push_str(&format!(": {}", sentences(&help))),
    }
    let values: Vec<_> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    let takes_value = argument.get_action().takes_values();
    if takes_value && !values.is_empty() {
        text.push_str(&format!(" Values: {}.", values.join(", ")));
    }
    let defaults: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes_value && !defaults.is_empty() {
        text.push_str(&format!(" Default: `{}`.", defaults.join(" ")));
    }
    if let Some(variable) = argument.get_env() {
        text.push_str(&format!(" Environment: `{}`.", variable.to_string_lossy()));
    }
    wrap(&text, "", "  ")
}

/// Joins the paragraphs of a help text. clap removes the full stop of the first one.
fn sentences(help: &str) -> String {
    let ended = help.split("\n\n").map(|paragraph| format!("{}.", paragraph.trim_end_matches('.')));
    ended.collect::<Vec<_>>().join(" ")
}

/// `-a`, `--agent AGENT`, or `<PROMPT>` for a positional argument.
fn spelling(argument: &Arg) -> String {
    let value = argument
        .get_action()
        .takes_values()
        .then(|| argument.get_value_names().unwrap_or_default().first().map(ToString::to_string))
        .flatten()
        .unwrap_or_default();
    if argument.is_positional() {
        return format!("`{}`", if value.is_empty() { argument.get_id().as_str() } else { &value });
    }
    let with_value = |flag: String| format!("`{}`", format!("{flag} {value}").trim_end());
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    match (short, long) {
        (Some(short), Some(long)) => format!("`{short}`, {}", with_value(long)),
        (Some(flag), None) | (None, Some(flag)) => with_value(flag),
        (None, None) => format!("`{}`", argument.get_id()),
    }
}

/// Breaks a text at spaces, but not inside backticks.
fn wrap(text: &str, first: &str, rest: &str) -> String {
    let mut lines = vec![first.to_owned()];
    for word in words(text) {
        let line = lines.last_mut().expect("a line");
        let is_empty = line.trim().is_empty();
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(format!("{rest}{word}"));
        } else {
            line.push_str(if is_empty { "" } else { " " });
            line.push_str(&word);
        }
    }
    lines.join("\n") + "\n"
}

fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut is_open = false;
    for word in text.split_whitespace() {
        match words.last_mut() {
            Some(last) if is_open => last.push_str(&format!(" {word}")),
            _ => words.push(word.to_owned()),
        }
        if word.matches('`').count() % 2 == 1 {
            is_open = !is_open;
        }
    }
    words
}
