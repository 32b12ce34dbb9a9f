//! Splits a bash command line into its simple commands, so that every program it can start is a separate part.
//!
//! Invariant: anything not understood with certainty makes the whole command line unreadable. Reading on after that
//! only finds more parts for `deny` and `ask` rules.

use super::glob::UNKNOWN;

/// The maximum length of a command line in bytes. A longer one is unreadable and has no parts.
const MAX_COMMAND: usize = 16 << 10;
/// The nesting depth up to which substitutions are read.
const MAX_DEPTH: usize = 16;

/// Reserved words that a command follows: `then rm x`.
const BEFORE_A_COMMAND: [&str; 8] = ["if", "then", "else", "elif", "while", "until", "do", "!"];
/// Reserved words that begin or end a list and are not commands themselves.
const BRACKETS: [&str; 5] = ["{", "}", "fi", "done", "esac"];
/// Reserved words that start a syntax that this parser does not support.
const OTHER_SYNTAX: [&str; 9] = ["for", "case", "select", "function", "coproc", "[[", "]]", "time", "in"];

/// A command line, split into parts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Script {
    pub parts: Vec<SimpleCommand>,
    /// The reason why `parts` may be incomplete.
    pub unreadable: Option<&'static str>,
}

/// A simple command: assignments, a program, arguments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SimpleCommand {
    pub(super) words: Vec<ShellWord>,
    /// True if a pipe precedes it, so it may read the output of another part.
    pub(super) piped: bool,
}

/// A word without its quotes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ShellWord {
    /// The text, with [`UNKNOWN`] for every expansion.
    pub(super) text: String,
    /// The word as typed, if nothing in it was quoted or expanded.
    bare: Option<String>,
    /// The length of the text before the first quote or expansion.
    plain: usize,
}

impl ShellWord {
    /// Returns a word of which nothing is known.
    pub(super) fn new_unknown() -> Self {
        Self { text: UNKNOWN.to_string(), bare: None, plain: 0 }
    }

    pub(super) fn is_known(&self) -> bool {
        !self.text.contains(UNKNOWN)
    }

    /// Returns true if the text before `end` is unquoted. Bash treats `X=1` as an assignment only if the part up to `=`
    /// is.
    pub(super) fn is_typed_up_to(&self, end: usize) -> bool {
        end <= self.plain
    }

    /// Returns true for a file descriptor such as `2` in `2>x`. Bash treats a number beyond a C int as an argument.
    fn numbers_a_file(&self) -> bool {
        let digits = self.bare.as_ref().filter(|bare| bare.chars().all(|c| c.is_ascii_digit()));
        digits.is_some_and(|digits| digits.parse::<i32>().is_ok())
    }

    /// Returns the word, quoted if it would otherwise look like several words.
    fn quote(&self) -> String {
        let plain = |c: char| !c.is_whitespace() && c != '\'' && c != '"';
        if !self.text.is_empty() && self.text.chars().all(plain) {
            return self.text.clone();
        }
        format!("'{}'", self.text.replace('\'', r"'\''"))
    }
}

impl SimpleCommand {
    /// Joins the words with single spaces. Words with blanks or quotes are put in single quotes.
    pub(super) fn text(&self) -> String {
        text(&self.words)
    }
}

pub(super) fn text(words: &[ShellWord]) -> String {
    words.iter().map(ShellWord::quote).collect::<Vec<_>>().join(" ")
}

/// Shows `…` for each expansion.
impl std::fmt::Display for SimpleCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text().replace(UNKNOWN, "…"))
    }
}

/// Splits a command line into its parts.
pub fn read(command: &str) -> Script {
    read_at(command, 0)
}

pub(super) fn read_at(command: &str, depth: usize) -> Script {
    if command.len() > MAX_COMMAND {
        return Script { parts: Vec::new(), unreadable: Some("it is too long") };
    }
    let mut reader =
        ShellReader { chars: command.chars().collect(), at: 0, script: Script::default(), depth, piped: false };
    if command.contains(odd) {
        reader.unreadable("it holds a character that does not belong into a command");
    }
    reader.list(false);
    reader.script
}

/// Returns true for control characters and non-ASCII blanks and invisible characters, which may hide something.
fn odd(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t') || (!c.is_ascii() && c.is_whitespace()) || crate::text::is_invisible(c)
}

struct ShellReader {
    chars: Vec<char>,
    at: usize,
    script: Script,
    depth: usize,
    /// Whether there was a pipe. Everything after it may read from it, also within a group.
    piped: bool,
}

impl ShellReader {
    fn unreadable(&mut self, why: &'static str) {
        self.script.unreadable.get_or_insert(why);
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    /// Reads commands up to the end, or up to the `)` of a substitution.
    fn list(&mut self, nested: bool) {
        let mut part = SimpleCommand::default();
        let mut open = 0usize;
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\\' if self.chars.get(self.at + 1) == Some(&'\n') => {
                    let after_blank = self.at == 0 || matches!(self.chars[self.at - 1], ' ' | '\t');
                    self.at += 2;
                    if !after_blank || self.peek() == Some('#') {
                        self.unreadable("a line goes on in the middle of a word");
                    }
                }
                '#' => self.comment(nested),
                '&' if self.chars.get(self.at + 1) == Some(&'>') => {
                    self.at += 1;
                    self.redirection(&mut part);
                }
                '|' => {
                    let or = self.chars.get(self.at + 1) == Some(&'|');
                    self.at += if or { 2 } else { 1 };
                    self.end(&mut part);
                    self.piped |= !or;
                }
                '\n' | ';' | '&' => {
                    self.at += 1;
                    self.end(&mut part);
                }
                '(' => {
                    self.at += 1;
                    if !part.words.is_empty() {
                        self.unreadable("it defines a function or a list");
                    }
                    if self.peek() == Some('(') {
                        self.unreadable("it calculates");
                    }
                    self.end(&mut part);
                    open += 1;
                }
                ')' if open > 0 => {
                    self.at += 1;
                    open -= 1;
                    self.end(&mut part);
                }
                ')' if nested => {
                    self.at += 1;
                    return self.end(&mut part);
                }
                ')' => {
                    self.at += 1;
                    self.unreadable("a bracket is closed that was not opened");
                    self.end(&mut part);
                }
                '<' | '>' => self.redirection(&mut part),
                _ => {
                    let word = self.word();
                    let redirected = matches!(self.peek(), Some('<' | '>'));
                    if redirected && c == '{' {
                        self.unreadable("it keeps the number of a file in a variable");
                    }
                    if !(redirected && word.numbers_a_file()) {
                        part.words.push(word);
                    }
                }
            }
        }
        if nested || open > 0 {
            self.unreadable("a bracket is not closed");
        }
        self.end(&mut part);
    }

    fn comment(&mut self, nested: bool) {
        if nested {
            self.unreadable("a substitution contains a comment");
        }
        while self.peek().is_some_and(|c| c != '\n') {
            self.at += 1;
        }
    }

    /// Ends the current simple command and adds it to the parts.
    fn end(&mut self, part: &mut SimpleCommand) {
        let mut words = std::mem::take(&mut part.words);
        let is_one_of =
            |word: &ShellWord, reserved: &[&str]| word.bare.as_deref().is_some_and(|bare| reserved.contains(&bare));
        let reserved = words.iter().take_while(|word| {
            [&BEFORE_A_COMMAND[..], &BRACKETS, &OTHER_SYNTAX].iter().any(|reserved| is_one_of(word, reserved))
        });
        let reserved = reserved.count();
        if words[..reserved].iter().any(|word| is_one_of(word, &OTHER_SYNTAX)) {
            self.unreadable("it holds a loop, a choice or a definition");
        }
        words.drain(..reserved);
        if !words.is_empty() {
            self.script.parts.push(SimpleCommand { words, piped: self.piped });
        }
    }

    /// Reads a redirection, starting at `<` or `>`. Only harmless ones, such as to `/dev/null`, are readable.
    fn redirection(&mut self, part: &mut SimpleCommand) {
        let mut operator = String::new();
        while let Some(c) = self.peek().filter(|c| matches!(c, '<' | '>' | '&' | '|')) {
            operator.push(c);
            self.at += 1;
        }
        if self.peek() == Some('(') {
            self.unreadable("it makes a file of a command");
            return self.end(part);
        }
        while self.peek().is_some_and(|c| c == ' ' || c == '\t') {
            self.at += 1;
        }
        // Bash does not treat a reserved word after a redirection as reserved.
        if part.words.is_empty() {
            self.unreadable("a redirection precedes its command");
        }
        let starts_a_word = self.peek().is_some_and(|c| !matches!(c, '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>'));
        let target = if starts_a_word { self.word().bare } else { None };
        let harmless = matches!(
            (operator.as_str(), target.as_deref()),
            (">" | ">>" | "<", Some("/dev/null")) | (">&", Some("1" | "2"))
        );
        if !harmless {
            self.unreadable("it reads from or writes to a file");
        }
    }

    /// Reads a word up to a blank or an operator, and removes its quotes.
    fn word(&mut self) -> ShellWord {
        let mut text = String::new();
        let mut bare = Some(String::new());
        let mut plain = None;
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>' => break,
                '\\' if self.chars.get(self.at + 1) == Some(&'\n') => {
                    self.at += 2;
                    self.unreadable("a line goes on in the middle of a word");
                }
                '\'' | '"' | '\\' | '$' | '`' => {
                    bare = None;
                    plain = plain.or(Some(text.len()));
                    self.at += 1;
                    self.read_quoted(c, &mut text);
                }
                '*' | '?' | '[' | '{' | '}' | '~' => {
                    self.at += 1;
                    text.push(UNKNOWN);
                    bare = bare.map(|bare| bare + &c.to_string());
                }
                _ => {
                    self.at += 1;
                    text.push(c);
                    bare = bare.map(|bare| bare + &c.to_string());
                }
            }
        }
        // Alone, these are names and not patterns.
        if let Some(name) = bare.as_deref().filter(|bare| matches!(*bare, "{" | "}" | "[" | "[[")) {
            name.clone_into(&mut text);
        }
        let plain = plain.unwrap_or(text.len());
        ShellWord { bare: bare.filter(|_| !text.contains(UNKNOWN)), text, plain }
    }

    /// Reads on after the quoting or expanding character `c`.
    fn read_quoted(&mut self, c: char, text: &mut String) {
        match c {
            '\'' => loop {
                match self.next() {
                    Some('\'') => break,
                    Some(c) => text.push(c),
                    None => return self.unreadable("a quote is not closed"),
                }
            },
            '"' => self.double_quoted(text),
            '\\' => match self.next() {
                Some(c) => text.push(c),
                None => self.unreadable("it ends in a backslash"),
            },
            '$' => self.expansion(text, false),
            _ => self.backticks(text),
        }
    }

    fn double_quoted(&mut self, text: &mut String) {
        loop {
            match self.next() {
                Some('"') => return,
                Some('\\') => match self.next() {
                    Some(c @ ('$' | '`' | '"' | '\\')) => text.push(c),
                    Some('\n') => self.unreadable("a line goes on in the middle of a word"),
                    Some(c) => text.extend(['\\', c]),
                    None => return self.unreadable("a quote is not closed"),
                },
                Some('$') => self.expansion(text, true),
                Some('`') => self.backticks(text),
                Some(c) => text.push(c),
                None => return self.unreadable("a quote is not closed"),
            }
        }
    }

    /// Reads on after `$`.
    fn expansion(&mut self, text: &mut String, in_quotes: bool) {
        let name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        match self.peek() {
            Some('(') => {
                self.at += 1;
                text.push(UNKNOWN);
                if self.peek() == Some('(') {
                    self.unreadable("it calculates");
                }
                self.read_nested();
            }
            Some('{') => {
                text.push(UNKNOWN);
                let plain = self.chars[self.at + 1..].iter().take_while(|c| name(**c)).count();
                if plain > 0 && self.chars.get(self.at + 1 + plain) == Some(&'}') {
                    self.at += plain + 2;
                } else {
                    self.at += 1;
                    self.unreadable("it expands a variable in a special way");
                }
            }
            Some(c) if name(c) => {
                text.push(UNKNOWN);
                while self.peek().is_some_and(name) {
                    self.at += 1;
                }
            }
            Some('@' | '*' | '#' | '?' | '-' | '$' | '!') => {
                self.at += 1;
                text.push(UNKNOWN);
            }
            Some('[' | '\\') => {
                text.push(UNKNOWN);
                self.unreadable("it expands something in a special way");
            }
            Some('\'' | '"') if !in_quotes => {
                text.push(UNKNOWN);
                self.unreadable("it holds a special kind of quotes");
            }
            _ => text.push('$'),
        }
    }

    fn read_nested(&mut self) {
        if self.depth >= MAX_DEPTH {
            self.at = self.chars.len();
            return self.unreadable("it is nested too deeply");
        }
        self.depth += 1;
        self.list(true);
        self.depth -= 1;
    }

    /// Reads on after a backtick, the old syntax of a substitution, which has different escapes.
    fn backticks(&mut self, text: &mut String) {
        text.push(UNKNOWN);
        self.unreadable("it holds backticks");
        let mut inner = String::new();
        while let Some(c) = self.next().filter(|c| *c != '`') {
            let escaped = c == '\\' && matches!(self.peek(), Some('`' | '$' | '\\'));
            inner.push(if escaped { self.next().unwrap_or(c) } else { c });
        }
        if self.depth < MAX_DEPTH {
            self.script.parts.extend(read_at(&inner, self.depth + 1).parts);
        }
    }
}

#[cfg(test)]
#[path = "shell_tests.rs"]
mod tests;
