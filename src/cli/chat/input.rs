//! The line editor: editing, history, completion of commands and paths, multi-line input.
//!
//! Invariant: the history contains only lines typed here, in a file that only the user can read. No control character
//! of a text that was not typed here reaches the terminal.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, CompletionType, Config, Context, Editor, Event, EventHandler, Helper, KeyCode, KeyEvent, Modifiers,
};

use super::super::keyboard::Keyboard;
use super::super::output::{CommandError, display_line, verbatim};

/// Lines of history to keep.
const MAX_HISTORY: usize = 1000;

/// Result of reading a line.
#[derive(Debug, PartialEq)]
pub(super) enum LineInput {
    Line(String),
    /// Ctrl-C; `empty` is false if it discarded text.
    Interrupted {
        empty: bool,
    },
    /// Ctrl-D, or a closed terminal.
    Ended,
    /// The line editor failed.
    Broken(String),
}

/// The words that can currently be completed.
#[derive(Debug, Clone, Default)]
pub(super) struct CompletionWords {
    /// Names without the leading slash.
    pub(super) commands: Vec<String>,
    pub(super) modes: Vec<String>,
    pub(super) models: Vec<String>,
    pub(super) cwd: PathBuf,
}

/// The line editor.
pub(super) struct Input {
    /// Locked while a line is read.
    editor: Arc<Mutex<Editor<Assistant, MemHistory>>>,
    keyboard: Arc<Keyboard>,
    file: PathBuf,
}

/// Completion words, and the line as last seen by the hinter.
#[derive(Default)]
struct Assistant {
    words: CompletionWords,
    line: Mutex<String>,
    /// Where `line` ended with a backslash when Enter was pressed. Pasted text may have other backslashes.
    continued: Mutex<Vec<usize>>,
}

impl Input {
    pub(super) fn new(data: &Path, keyboard: Arc<Keyboard>) -> Result<Self, CommandError> {
        let failed = |error: ReadlineError| {
            CommandError::work(format!("the terminal cannot be used: {error}"), "use `skein run` instead")
        };
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .completion_show_all_if_ambiguous(true)
            .max_history_size(MAX_HISTORY)
            .map_err(failed)?
            .build();
        let history = MemHistory::with_config(&config);
        let mut editor = Editor::with_history(config, history).map_err(failed)?;
        editor.set_helper(Some(Assistant::default()));
        for key in [KeyEvent::ctrl('J'), KeyEvent(KeyCode::Enter, Modifiers::ALT)] {
            editor.bind_sequence(Event::from(key), EventHandler::Simple(Cmd::Newline));
        }
        // Ctrl-Z would return to the shell with the terminal in the wrong mode, so it does nothing.
        editor.bind_sequence(Event::from(KeyEvent::ctrl('Z')), EventHandler::Simple(Cmd::Noop));
        let file = data.join("chat_history");
        for line in read_history(&file) {
            editor.add_history_entry(line).map_err(failed)?;
        }
        Ok(Self { editor: Arc::new(Mutex::new(editor)), keyboard, file })
    }

    /// Reads a line. `initial` is its initial text, which the user can edit and which may come from a project's file.
    pub(super) async fn line(&self, prompt: &'static str, initial: &str, words: CompletionWords) -> LineInput {
        let initial = sanitize_lines(initial);
        let (editor, keyboard) = (Arc::clone(&self.editor), Arc::clone(&self.keyboard));
        let read = tokio::task::spawn_blocking(move || {
            let _reads = keyboard.lock_reading();
            let mut editor = editor.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(assistant) = editor.helper_mut() {
                assistant.words = words;
                assistant.see("");
                assistant.take_continued();
            }
            let prompt = (prompt, format!("\x1b[1;36m{prompt}\x1b[0m"));
            let read = editor.readline_with_initial(&prompt, (&initial, ""));
            let empty = editor.helper().is_none_or(Assistant::saw_nothing);
            let continued = editor.helper().map(Assistant::take_continued).unwrap_or_default();
            (read.map(|line| join_continued(line, &continued)), empty)
        });
        match read.await {
            Ok((Ok(line), _)) => LineInput::Line(line),
            Ok((Err(ReadlineError::Interrupted), empty)) => LineInput::Interrupted { empty },
            Ok((Err(error), _)) => {
                if !matches!(error, ReadlineError::Eof) {
                    tracing::warn!(%error, "the terminal cannot be read");
                }
                LineInput::Ended
            }
            Err(error) => LineInput::Broken(error.to_string()),
        }
    }

    /// Adds a line to the history, for this and later sessions.
    pub(super) fn remember(&self, line: &str) {
        let mut editor = self.editor.lock().unwrap_or_else(PoisonError::into_inner);
        let new = editor.add_history_entry(sanitize_lines(line));
        let kept = new.is_ok_and(|new| new) && append(&self.file, line).is_ok();
        if !kept {
            tracing::debug!("a line was not kept in the history");
        }
    }
}

pub(super) fn editor_failure(why: &str) -> CommandError {
    CommandError::work(
        format!("the line editor failed: {why}"),
        "`skein chat -c` continues the session; please report this",
    )
}

/// Removes the backslashes that continued a line. `ends` are the lengths of the input up to each of them.
fn join_continued(mut line: String, ends: &[usize]) -> String {
    for end in ends.iter().rev() {
        let at = end.saturating_sub(1);
        if line.get(at..).is_some_and(|rest| rest.starts_with("\\\n")) {
            line.remove(at);
        }
    }
    line
}

/// Moves the ends behind a change of the line, and drops those whose backslash it removed.
fn shift_ends(ends: &mut Vec<usize>, before: &str, after: &str) {
    // The end of the line comes first: of two backslashes before a line end, the last one continues the line.
    let kept_end = before.bytes().rev().zip(after.bytes().rev()).take_while(|(old, new)| old == new).count();
    let changed = before.len().min(after.len()) - kept_end;
    let kept_start = before.bytes().zip(after.bytes()).take(changed).take_while(|(old, new)| old == new).count();
    ends.retain_mut(|end| {
        let is_behind = *end > before.len() - kept_end;
        if is_behind {
            *end = *end + after.len() - before.len();
        }
        is_behind || *end <= kept_start
    });
}

/// Replaces the characters of a text with which it could change the terminal or the order of other text. Keeps lines,
/// tabs and all other invisible characters: the model gets the text again.
fn sanitize_lines(text: &str) -> String {
    let sanitize_line = |line: &str| line.trim_end_matches('\r').replace(is_unsafe, "\u{FFFD}");
    text.split('\n').map(sanitize_line).collect::<Vec<_>>().join("\n")
}

/// Returns true for control characters except tabs, and for embeddings, overrides and isolates of the direction.
fn is_unsafe(c: char) -> bool {
    (c.is_control() && c != '\t') || matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Reads the history: one JSON string per line, because an entry may have many lines.
fn read_history(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let entries: Vec<String> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let skip = entries.len().saturating_sub(MAX_HISTORY);
    if skip > MAX_HISTORY {
        // Rewrite the file when it has grown to more than twice the entries that are read.
        let text: String = text.lines().skip(skip).map(|line| format!("{line}\n")).collect();
        let new = file.with_extension(std::process::id().to_string());
        let written = private(&new).and_then(|mut opened| opened.write_all(text.as_bytes()));
        if let Err(error) = written.and_then(|()| fs::rename(&new, file)) {
            tracing::debug!(%error, "the history could not be made shorter");
        }
    }
    // The file has the lines as they were typed.
    entries.iter().skip(skip).map(|entry| sanitize_lines(entry)).collect()
}

fn append(file: &Path, line: &str) -> std::io::Result<()> {
    let entry = serde_json::to_string(line)? + "\n";
    private(file)?.write_all(entry.as_bytes())
}

fn private(file: &Path) -> std::io::Result<fs::File> {
    fs::OpenOptions::new().create(true).append(true).mode(0o600).open(file)
}

impl Assistant {
    fn see(&self, line: &str) {
        let mut last = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        shift_ends(&mut self.continued.lock().unwrap_or_else(PoisonError::into_inner), &last, line);
        line.clone_into(&mut last);
    }

    fn saw_nothing(&self) -> bool {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn take_continued(&self) -> Vec<usize> {
        std::mem::take(&mut *self.continued.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Helper for Assistant {}
impl Highlighter for Assistant {}

impl Hinter for Assistant {
    type Hint = String;

    /// Returns no hint; records the line that is being typed.
    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.see(line);
        None
    }
}

impl Validator for Assistant {
    /// A backslash at the end continues the input on the next line.
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        if !context.input().ends_with('\\') {
            return Ok(ValidationResult::Valid(None));
        }
        self.see(context.input());
        self.continued.lock().unwrap_or_else(PoisonError::into_inner).push(context.input().len());
        Ok(ValidationResult::Incomplete)
    }
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (from, found) = complete(&self.words, &line[..at]);
        // Names of commands and models come from services and files.
        let pair = |(display, replacement): (String, String)| Pair {
            display: display_line(&display),
            replacement: verbatim(&replacement),
        };
        Ok((from, found.into_iter().map(pair).collect()))
    }
}

/// Returns where the word to complete starts, and its candidates: the text to show and the text to insert.
fn complete(words: &CompletionWords, line: &str) -> (usize, Vec<(String, String)>) {
    if let Some(from) = open_quote(line) {
        return (from, paths(&words.cwd, &line[from + "@\"".len()..], true));
    }
    let from = line.char_indices().rfind(|(_, c)| c.is_whitespace()).map_or(0, |(at, c)| at + c.len_utf8());
    let word = &line[from..];
    let among = |known: &[String], stroke: &str, end: &str| {
        let fitting = known.iter().filter(|name| name.starts_with(word.trim_start_matches('/')));
        fitting.map(|name| (format!("{stroke}{name}"), format!("{stroke}{name}{end}"))).collect::<Vec<_>>()
    };
    if let Some(path) = word.strip_prefix('@') {
        return (from, paths(&words.cwd, path, false));
    }
    match line[..from].trim() {
        "" if word.starts_with('/') && from == 0 => (from, among(&words.commands, "/", " ")),
        "/mode" => (from, among(&words.modes, "", "")),
        "/model" => (from, among(&words.models, "", "")),
        _ => (from, Vec::new()),
    }
}

/// Returns the place of an `@"` that begins a word and has no second quote. `None` if there is none.
fn open_quote(line: &str) -> Option<usize> {
    let at = line.rfind("@\"")?;
    let begins_word = line[..at].chars().next_back().is_none_or(char::is_whitespace);
    (begins_word && !line[at + "@\"".len()..].contains('"')).then_some(at)
}

/// Lists files and folders below `cwd` whose path starts with `initial`. A path with a space is in quotes; after a
/// folder, the second quote is missing, so that its files can follow.
fn paths(cwd: &Path, initial: &str, is_quoted: bool) -> Vec<(String, String)> {
    let (folder, name) = initial.rsplit_once('/').map_or(("", initial), |(folder, name)| (folder, name));
    let entries = fs::read_dir(cwd.join(folder)).into_iter().flatten().filter_map(Result::ok);
    let mut found: Vec<_> = entries
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path().is_dir())))
        // A quote would end the path, and control characters must not reach the terminal.
        .filter(|(entry, _)| entry.starts_with(name) && !entry.contains(['"', '\n']) && verbatim(entry) == *entry)
        .filter(|(entry, _)| !entry.starts_with('.') || name.starts_with('.'))
        .map(|(entry, is_folder)| {
            let before = if folder.is_empty() { String::new() } else { format!("{folder}/") };
            let end = if is_folder { "/" } else { "" };
            let inserted = match (is_quoted || entry.contains(char::is_whitespace), is_folder) {
                (false, _) => format!("@{before}{entry}{end}"),
                (true, true) => format!("@\"{before}{entry}{end}"),
                (true, false) => format!("@\"{before}{entry}\""),
            };
            (format!("{entry}{end}"), inserted)
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_their_arguments_and_paths_are_completed() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::write(folder.path().join("src/main.rs"), "").unwrap();
        fs::create_dir(folder.path().join("two words")).unwrap();
        fs::write(folder.path().join("two words/a file.txt"), "").unwrap();
        fs::write(folder.path().join(".hidden"), "").unwrap();
        fs::write(folder.path().join("src/mal\u{1b}]0;title\u{7}.rs"), "").unwrap();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let words = CompletionWords {
            commands: names(&["mode", "model", "undo"]),
            modes: names(&["coding/backend", "coding/qa"]),
            models: names(&["offline", "openai:x"]),
            cwd: folder.path().to_owned(),
        };
        let typed = |line: &str| {
            let (from, found) = complete(&words, line);
            (from, found.into_iter().map(|(_, typed)| typed).collect::<Vec<_>>())
        };
        assert_eq!(typed("/mo"), (0, names(&["/mode ", "/model "])));
        assert_eq!(typed("/mode coding/b"), (6, names(&["coding/backend"])));
        assert_eq!(typed("/model o"), (7, names(&["offline", "openai:x"])));
        assert_eq!(typed("see @"), (4, names(&["@src/", "@\"two words/"])));
        assert_eq!(typed("see @t"), (4, names(&["@\"two words/"])));
        assert_eq!(typed("see @\"two w"), (4, names(&["@\"two words/"])));
        assert_eq!(typed("see @\"two words/"), (4, names(&["@\"two words/a file.txt\""])));
        assert_eq!(typed("see @\"src/m"), (4, names(&["@\"src/main.rs\""])));
        assert_eq!(typed("see @\"two words/a file.txt\" and @src/m").1, names(&["@src/main.rs"]));
        assert_eq!(typed("see @src/m"), (4, names(&["@src/main.rs"])));
        assert_eq!(typed("看\u{3000}@src/m"), (6, names(&["@src/main.rs"])));
        assert_eq!(typed("/mode\u{A0}coding/b"), (7, names(&["coding/backend"])));
        assert_eq!(typed("plain words").1, names(&[]));
    }

    #[test]
    fn control_characters_do_not_reach_the_line_editor() {
        let hostile = "one\t\u{1b}]0;PWNED\u{7}\r\ntwo \u{1b}[2J ä 日本\n";
        let tame = "one\t\u{FFFD}]0;PWNED\u{FFFD}\ntwo \u{FFFD}[2J ä 日本\n";
        assert_eq!(sanitize_lines(hostile), tame);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chat_history");
        append(&file, hostile).unwrap();
        assert_eq!(read_history(&file), [tame]);
        let words = CompletionWords { commands: vec!["evil\u{1b}[2J".to_owned()], ..CompletionWords::default() };
        let assistant = Assistant { words, ..Assistant::default() };
        let (_, found) = assistant.complete("/ev", 3, &Context::new(&MemHistory::new())).unwrap();
        assert_eq!(found[0].replacement, "/evil\u{FFFD}[2J ");
    }

    #[test]
    fn invisible_characters_of_the_user_stay() {
        let text = "שלום\u{200F}! 1\u{FE0F}\u{20E3} co\u{AD}op می\u{200C}روم";
        assert_eq!(sanitize_lines(text), text);
        assert_eq!(sanitize_lines("a\u{202E}b\u{2067}c\u{9B}2J"), "a\u{FFFD}b\u{FFFD}c\u{FFFD}2J");
        let folder = tempfile::tempdir().unwrap();
        let input = Input::new(folder.path(), Arc::default()).unwrap();
        input.remember(text);
        input.remember("a\u{202E}b");
        assert_eq!(read_history(&input.file), [text, "a\u{FFFD}b"]);
        assert!(fs::read_to_string(&input.file).unwrap().contains("a\u{202E}b"), "as it was typed");
    }

    #[test]
    fn only_a_backslash_at_enter_continues_the_input() {
        assert_eq!(join_continued("a\\\nä\\\nb".to_owned(), &[2, 6]), "a\nä\nb");
        assert_eq!(join_continued("a\\\nb\\\nc".to_owned(), &[2]), "a\nb\\\nc");
        assert_eq!(join_continued("ä\\\nb".to_owned(), &[2, 9]), "ä\\\nb");
    }

    #[test]
    fn a_continued_line_can_be_edited_before_its_end() {
        let sent = |steps: &[&str]| {
            let assistant = Assistant::default();
            assistant.see("ä \\");
            assistant.continued.lock().unwrap().push("ä \\".len());
            steps.iter().for_each(|line| assistant.see(line));
            join_continued((*steps.last().unwrap()).to_owned(), &assistant.take_continued())
        };
        assert_eq!(sent(&["ä \\\n", "ä \\\n-l"]), "ä \n-l");
        assert_eq!(sent(&["ä \\\n-l", "sä \\\n-l", "suä \\\n-l"]), "suä \n-l");
        assert_eq!(sent(&["ä \\\n-l", " \\\n-l", " b \\\n-l"]), " b \n-l");
        assert_eq!(sent(&["ä \\\n-l", "ä \\\\\n-l"]), "ä \\\n-l");
        assert_eq!(sent(&["ä \\\n-l", "ä \n-l", "ä b\\\n-l"]), "ä b\\\n-l");
        assert_eq!(sent(&["ä \\\n-l", "other"]), "other");
    }

    #[test]
    fn the_history_is_private_and_keeps_lines_whole() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chat_history");
        append(&file, "one\ntwo").unwrap();
        append(&file, "three").unwrap();
        assert_eq!(read_history(&file), ["one\ntwo", "three"]);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        (0..3 * MAX_HISTORY).for_each(|at| append(&file, &at.to_string()).unwrap());
        assert_eq!(read_history(&file).len(), MAX_HISTORY);
        assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), MAX_HISTORY);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
