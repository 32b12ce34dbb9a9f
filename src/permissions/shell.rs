//! A command line for bash, split into its simple commands: every program it can start is a part of its own.
//!
//! Invariant: what is not certainly understood makes the whole unreadable. Going on after that only finds more parts,
//! for rules that deny.

use super::glob::UNKNOWN;

/// Bytes of a command line that is read. A longer one is unreadable and has no parts.
const MAX_COMMAND: usize = 16 << 10;
/// How deep substitutions are followed.
const MAX_DEPTH: usize = 16;

/// Words after which another command follows: `then rm x`.
const BEFORE_A_COMMAND: [&str; 8] = ["if", "then", "else", "elif", "while", "until", "do", "!"];
/// Words that end or begin a list and are no command themselves.
const BRACKETS: [&str; 5] = ["{", "}", "fi", "done", "esac"];
/// Words that begin what has a syntax of its own.
const OTHER_SYNTAX: [&str; 9] = ["for", "case", "select", "function", "coproc", "[[", "]]", "time", "in"];

/// A command line, split.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Script {
    pub parts: Vec<SimpleCommand>,
    /// Why the parts may not be all that there is.
    pub unreadable: Option<&'static str>,
}

/// A simple command: assignments, a program, arguments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SimpleCommand {
    pub(super) words: Vec<ShellWord>,
    /// A pipe stands before it, so it may read what another part writes.
    pub(super) piped: bool,
}

/// A word without its quotes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ShellWord {
    /// With [`UNKNOWN`] for every expansion.
    pub(super) text: String,
    /// As it was typed, if nothing in it was quoted or expanded.
    bare: Option<String>,
    /// How much of the text stands before the first quote or expansion.
    plain: usize,
}

impl ShellWord {
    /// One of which nothing is known.
    pub(super) fn new_unknown() -> Self {
        Self { text: UNKNOWN.to_string(), bare: None, plain: 0 }
    }

    pub(super) fn is_known(&self) -> bool {
        !self.text.contains(UNKNOWN)
    }

    /// Bash takes `X=1` for an assignment only if nothing up to the `=` is quoted.
    pub(super) fn is_typed_up_to(&self, end: usize) -> bool {
        end <= self.plain
    }

    /// `2` of `2>x`. What does not fit into a C int bash takes for an argument.
    fn numbers_a_file(&self) -> bool {
        let digits = self.bare.as_ref().filter(|bare| bare.chars().all(|c| c.is_ascii_digit()));
        digits.is_some_and(|digits| digits.parse::<i32>().is_ok())
    }

    /// Quoted if it would otherwise look like several words.
    fn quote(&self) -> String {
        let plain = |c: char| !c.is_whitespace() && c != '\'' && c != '"';
        if !self.text.is_empty() && self.text.chars().all(plain) {
            return self.text.clone();
        }
        format!("'{}'", self.text.replace('\'', r"'\''"))
    }
}

impl SimpleCommand {
    /// One space between words; a word with blanks or quotes in it stands in single quotes.
    pub(super) fn text(&self) -> String {
        text(&self.words)
    }
}

pub(super) fn text(words: &[ShellWord]) -> String {
    words.iter().map(ShellWord::quote).collect::<Vec<_>>().join(" ")
}

/// With `…` for what an expansion will make of it.
impl std::fmt::Display for SimpleCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text().replace(UNKNOWN, "…"))
    }
}

/// Splits a command line.
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

/// Control characters, and blanks and marks beyond ASCII, which may look like something else.
fn odd(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t') || (!c.is_ascii() && c.is_whitespace()) || crate::text::is_invisible(c)
}

struct ShellReader {
    chars: Vec<char>,
    at: usize,
    script: Script,
    depth: usize,
    /// Whether there was a pipe: whatever follows may read from it, also within a group.
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

    /// Commands up to the end, or up to the `)` of a substitution.
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
            self.unreadable("a comment stands in a substitution");
        }
        while self.peek().is_some_and(|c| c != '\n') {
            self.at += 1;
        }
    }

    /// A simple command has come to its end.
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

    /// At `<` or `>`. Only what reads or writes nothing is understood.
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
        // A reserved word after a redirection is none.
        if part.words.is_empty() {
            self.unreadable("a redirection stands before its command");
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

    /// Up to a blank or an operator, without quotes.
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
        // Alone, these are names.
        if let Some(name) = bare.as_deref().filter(|bare| matches!(*bare, "{" | "}" | "[" | "[[")) {
            name.clone_into(&mut text);
        }
        let plain = plain.unwrap_or(text.len());
        ShellWord { bare: bare.filter(|_| !text.contains(UNKNOWN)), text, plain }
    }

    /// After a character that quotes or expands.
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

    /// After `$`.
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

    /// After a backtick: the old way to write a substitution, with escapes of its own.
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
