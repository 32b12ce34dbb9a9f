//! Parses YAML or JSON text to a JSON value, and maps a path in that value back to a line and column.
//!
//! The value comes from `serde_yaml` or `serde_json`, which keep no positions. A second, marked parse (`marks.rs`)
//! provides them. It runs only if a diagnostic needs a location or if the document has aliases.
//!
//! Invariant: the only user of `serde_yaml`. No file is read here.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use super::json::{DUPLICATE, Strict};
use super::marks::{MAX_DEPTH, MAX_NODES, MarkError, Marks, NodeContent, TextSpan, mark};
use crate::diagnostic::{Diagnostic, SourceLocation, hides_value};

/// The maximum number of locations per file. Each takes a pass through the text and stores a line. After that,
/// diagnostics only name the file.
const MAX_PLACES: usize = 200;

/// A file as read.
pub struct SourceFile {
    pub file: String,
    pub text: String,
    marks: OnceLock<Result<Marks, MarkError>>,
    /// The number of locations looked up so far.
    located: AtomicUsize,
}

impl fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({})", self.file)
    }
}

impl SourceFile {
    pub fn new(file: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { file: file.into(), text: text.into(), marks: OnceLock::new(), located: AtomicUsize::new(0) })
    }

    fn marks(&self) -> Result<&Marks, &MarkError> {
        self.marks.get_or_init(|| mark(&self.text)).as_ref()
    }

    /// Returns the location of the value at `path`, or of the nearest existing value around it.
    pub fn place(&self, path: &DocumentPath) -> SourceLocation {
        self.locate(path, EntryPart::Value)
    }

    /// Returns the location of the key in the last step of `path`.
    pub fn key_place(&self, path: &DocumentPath) -> SourceLocation {
        self.locate(path, EntryPart::Key)
    }

    fn locate(&self, path: &DocumentPath, part: EntryPart) -> SourceLocation {
        let in_full = self.located.fetch_add(1, Ordering::Relaxed) < MAX_PLACES;
        let (Ok(Marks { root, .. }), true) = (self.marks(), in_full) else { return SourceLocation::file(&self.file) };
        let mut mark = root;
        let mut span = root.span;
        for (depth, step) in path.0.iter().enumerate() {
            let last = depth + 1 == path.0.len();
            match (step, &mark.node) {
                (PathStep::Key(key), NodeContent::Map(entries)) => {
                    match entries.iter().find(|(name, ..)| name == key) {
                        Some((_, key_span, value)) => {
                            mark = value;
                            span = if last && part == EntryPart::Key { *key_span } else { value.span };
                        }
                        None => break,
                    }
                }
                (PathStep::Index(index), NodeContent::Seq(items)) => match items.get(*index) {
                    Some(item) => {
                        mark = item;
                        span = item.span;
                    }
                    None => break,
                },
                _ => break,
            }
        }
        self.at(span)
    }

    fn at(&self, span: TextSpan) -> SourceLocation {
        SourceLocation::at(&self.file, &self.text, span.line, span.column, span.width)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum EntryPart {
    Key,
    Value,
}

/// A path into a document: `modes[2].tool_groups[0]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DocumentPath(Vec<PathStep>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum PathStep {
    Key(String),
    Index(usize),
}

impl PathStep {
    fn key(&self) -> Option<&str> {
        match self {
            Self::Key(key) => Some(key),
            Self::Index(_) => None,
        }
    }
}

impl DocumentPath {
    pub fn root() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn key(&self, key: impl Into<String>) -> Self {
        self.with(PathStep::Key(key.into()))
    }

    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.with(PathStep::Index(index))
    }

    /// Returns true if an error must not quote the value here, because it may be a secret.
    pub(super) fn hides_value(&self, value: &str) -> bool {
        let keys: Vec<_> = self.0.iter().filter_map(PathStep::key).collect();
        hides_value(&keys, self.0.last().and_then(PathStep::key), value)
    }

    fn with(&self, step: PathStep) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl fmt::Display for DocumentPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Key(key) if depth == 0 => f.write_str(key)?,
                PathStep::Key(key) => write!(f, ".{key}")?,
                PathStep::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Parses the single document of a file. Fails only for syntax errors.
pub fn parse(source: &SourceFile) -> Result<Value, Box<Diagnostic>> {
    if source.text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Err(empty(source));
    }
    let value = if source.file.ends_with(".json") { parse_json(source)? } else { parse_yaml(source)? };
    if value.is_null() { Err(empty(source)) } else { Ok(value) }
}

fn empty(source: &SourceFile) -> Box<Diagnostic> {
    let blank = source.text.trim_start_matches('\u{feff}').trim().is_empty();
    let is_config = Path::new(&source.file).file_stem().is_some_and(|stem| stem == "config");
    Box::new(Diagnostic::error(
        "E004",
        SourceLocation::file(&source.file),
        if blank { "the file is empty" } else { "the file holds nothing but comments" },
        match is_config {
            true => "write `version: 1` and your settings, or remove the file",
            false => "write a manifest (`skein new agent NAME` shows one) or remove the file",
        },
    ))
}

fn parse_json(source: &SourceFile) -> Result<Value, Box<Diagnostic>> {
    serde_json::from_str::<Strict>(&source.text).map(|strict| strict.0).map_err(|error| {
        let message = strip_location(&error.to_string());
        if message.starts_with(DUPLICATE) {
            return duplicate_key(source, &message);
        }
        // serde_json counts columns in bytes.
        let line = source.text.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
        let column = line.char_indices().take_while(|(byte, _)| *byte < error.column()).count();
        let (message, help) = if error.is_eof() {
            ("the file ends too early".to_owned(), "close what is still open: quotes, brackets, braces")
        } else if message == "trailing comma" {
            (message, "remove the comma before this place")
        } else {
            (message, "correct the syntax at this place")
        };
        let at = SourceLocation::at(&source.file, &source.text, error.line(), column, 1);
        Box::new(Diagnostic::error("E003", at, format!("not valid JSON: {message}"), help))
    })
}

/// Reports a duplicate key. The parsers only know the start or end of the mapping; the marked parse knows both keys.
fn duplicate_key(source: &SourceFile, message: &str) -> Box<Diagnostic> {
    let key = message.strip_prefix(DUPLICATE).unwrap_or_default().trim_matches('"');
    let problem = format!("the key `{key}` appears twice in one mapping");
    let help = "keep one of the two entries";
    Box::new(match source.marks().map(|marks| marks.repeated) {
        Ok(Some((first, second))) => Diagnostic::error("E003", source.at(second), problem, help)
            .with_related(source.at(first), "first defined here"),
        Ok(None) | Err(_) => Diagnostic::error("E003", SourceLocation::file(&source.file), problem, help),
    })
}

fn parse_yaml(source: &SourceFile) -> Result<Value, Box<Diagnostic>> {
    if let Some(place) = too_deep(source) {
        let help = "a manifest needs a handful of levels; close the brackets that are still open";
        return Err(Box::new(Diagnostic::error("E003", place, "brackets are nested too deeply", help)));
    }
    if source.text.contains('&') && source.text.contains('*') {
        weigh(source)?;
    }
    match serde_yaml::from_str::<serde_yaml::Value>(&source.text) {
        Ok(value) => to_json(value).map_err(|unfit| Box::new(unfit.diagnostic(source))),
        Err(error) => {
            let message = strip_location(&error.to_string());
            let place = match error.location() {
                Some(at) => SourceLocation::at(&source.file, &source.text, at.line(), at.column(), 1),
                None => SourceLocation::file(&source.file),
            };
            if message.contains(DUPLICATE) {
                return Err(duplicate_key(source, message.rsplit(": ").next().unwrap_or_default()));
            }
            Err(Box::new(if message.contains("more than one document") {
                Diagnostic::error(
                    "E006",
                    second_document(source).unwrap_or(place),
                    "the file holds more than one document",
                    "keep one document per file: move what follows `---` to its own file",
                )
            } else if starts_with_tab(&place) {
                Diagnostic::error("E003", place, "not valid YAML: a tab cannot indent", "indent with spaces")
            } else {
                Diagnostic::error("E003", place, format!("not valid YAML: {message}"), syntax_help(&message))
            }))
        }
    }
}

fn syntax_help(message: &str) -> &'static str {
    if message.contains("cannot start any token") {
        "quote text that begins with one of @ ` %"
    } else if message.contains("unknown anchor") {
        "write `&name` before the value this `*name` repeats; quote text that begins with *"
    } else if message.contains("',' or") {
        "close the list or mapping that is still open with ] or }, and put commas between its entries"
    } else {
        "correct the syntax at this place; text with `: ` or ` #` in it needs quotes"
    }
}

/// Returns the location where brackets are nested deeper than any parser reads. Both parsers take quadratic time for
/// that, so this counts first. Brackets in quotes and comments count too, which does not matter in practice.
fn too_deep(source: &SourceFile) -> Option<SourceLocation> {
    let mut depth = 0_usize;
    for (index, byte) in source.text.bytes().enumerate() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth > 2 * MAX_DEPTH {
            let before = &source.text[..index];
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            return Some(SourceLocation::at(&source.file, &source.text, line, column, 1));
        }
    }
    None
}

fn starts_with_tab(place: &SourceLocation) -> bool {
    place.span.as_ref().is_some_and(|span| span.text.chars().nth(span.column - 1) == Some('\t'))
}

fn second_document(source: &SourceFile) -> Option<SourceLocation> {
    let line = source.text.lines().enumerate().skip(1).find(|(_, line)| line.starts_with("---"))?.0;
    Some(SourceLocation::at(&source.file, &source.text, line + 1, 1, 3))
}

/// Removes "at line L column C" and everything after it; the diagnostic has the location already.
fn strip_location(message: &str) -> String {
    match message.find(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message.to_owned(),
    }
}

/// Fails if a document has too many nodes with its aliases followed. Counts them without expanding the aliases.
fn weigh(source: &SourceFile) -> Result<(), Box<Diagnostic>> {
    let too_large = |place| {
        Box::new(Diagnostic::error(
            "E005",
            place,
            format!("aliases make this document grow past {MAX_NODES} values"),
            "write the repeated parts out, or remove the aliases",
        ))
    };
    match source.marks() {
        Err(MarkError::TooLarge(at)) => Err(too_large(source.at(*at))),
        // A text that the marked parser cannot read may still be a bomb for the other parser.
        Err(MarkError::Unreadable) if source.text.matches('*').count() > 64 => {
            Err(too_large(SourceLocation::file(&source.file)))
        }
        Err(MarkError::Unreadable) | Ok(_) => Ok(()),
    }
}

/// A YAML construct that JSON cannot express.
struct Unfit {
    problem: String,
    part: EntryPart,
    /// The path to it from the inside out, collected while the error propagates.
    steps: Vec<PathStep>,
}

impl Unfit {
    fn value(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), part: EntryPart::Value, steps: Vec::new() }
    }

    fn key(key: &str) -> Self {
        let problem = format!("the key `{key}` is not text");
        Self { problem, part: EntryPart::Key, steps: vec![PathStep::Key(key.to_owned())] }
    }

    fn inside(mut self, step: PathStep) -> Self {
        self.steps.push(step);
        self
    }

    fn diagnostic(self, source: &SourceFile) -> Diagnostic {
        let path = DocumentPath(self.steps.into_iter().rev().collect());
        let help = match self.part {
            EntryPart::Value => "use text, numbers, true/false, lists and mappings",
            EntryPart::Key => "put the key in quotes",
        };
        Diagnostic::error("E003", source.locate(&path, self.part), self.problem, help)
    }
}

fn to_json(value: serde_yaml::Value) -> Result<Value, Unfit> {
    Ok(match value {
        serde_yaml::Value::Null => Value::Null,
        serde_yaml::Value::Bool(value) => Value::Bool(value),
        serde_yaml::Value::String(value) => Value::String(value),
        serde_yaml::Value::Number(number) => {
            let json = number
                .as_u64()
                .map(Value::from)
                .or_else(|| number.as_i64().map(Value::from))
                .or_else(|| number.as_f64().filter(|float| float.is_finite()).map(Value::from));
            json.ok_or_else(|| Unfit::value(format!("`{number}` is not a number a manifest can hold")))?
        }
        serde_yaml::Value::Sequence(items) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| to_json(item).map_err(|unfit| unfit.inside(PathStep::Index(index))))
            .collect::<Result<_, _>>()?,
        serde_yaml::Value::Mapping(entries) => {
            let mut object = Map::new();
            for (key, value) in entries {
                let key = match key {
                    serde_yaml::Value::String(key) => key,
                    serde_yaml::Value::Bool(key) => return Err(Unfit::key(&key.to_string())),
                    serde_yaml::Value::Number(key) => return Err(Unfit::key(&key.to_string())),
                    _ => return Err(Unfit::value("a key of this mapping is not text")),
                };
                let value = to_json(value).map_err(|unfit| unfit.inside(PathStep::Key(key.clone())))?;
                object.insert(key, value);
            }
            Value::Object(object)
        }
        // The tag may be a secret without quotes that begins with `!`.
        serde_yaml::Value::Tagged(_) => return Err(Unfit::value("a YAML tag has no meaning here")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, path: &DocumentPath) -> (usize, usize, usize) {
        let place = SourceFile::new("a.yaml", text).place(path);
        let span = place.span.expect("a place in the text");
        (span.line, span.column, span.width)
    }

    #[test]
    fn a_path_leads_back_to_its_line_and_column() {
        let text = "name: x\nmodes:\n  - slug: one\n    deps: [a, {name: b}]\n";
        let second = DocumentPath::root().key("modes").index(0).key("deps").index(1).key("name");
        assert_eq!(at(text, &second), (4, 22, 1));
        assert_eq!(second.to_string(), "modes[0].deps[1].name");
    }

    #[test]
    fn an_empty_config_needs_a_version_not_a_manifest() {
        let help = |file: &str| parse(&SourceFile::new(file, "# nothing yet\n")).expect_err("it is empty").help;
        assert_eq!(help("~/.config/skein/config.yaml"), "write `version: 1` and your settings, or remove the file");
        assert!(help("agents/mine.yaml").contains("`skein new agent NAME`"));
    }

    #[test]
    fn missing_path_resolves_to_its_nearest_parent() {
        assert_eq!(at("a:\n  b: 1\n", &DocumentPath::root().key("a").key("missing")), (2, 3, 1));
    }

    #[test]
    fn columns_count_characters_not_bytes() {
        assert_eq!(at("{ü: [ä, x]}", &DocumentPath::root().key("ü").index(1)), (1, 9, 1));
    }

    #[test]
    fn an_alias_bomb_is_refused_before_it_is_built() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for n in 1..40 {
            let reference = format!("*a{},", n - 1).repeat(10);
            text.push_str(&format!("a{n}: &a{n} [{reference}]\n"));
        }
        let error = parse(&SourceFile::new("bomb.yaml", text)).expect_err("refused");
        assert_eq!(error.code, "E005");
    }

    #[test]
    fn an_entry_below_a_secret_name_is_quoted() {
        let groups = DocumentPath::root().key("groups").key("secrets");
        assert!(groups.hides_value("Read_Secret"));
        assert!(!groups.index(0).hides_value("Read_Secret"));
        assert!(DocumentPath::root().key("args").index(0).hides_value("k1"));
    }

    #[test]
    fn a_tag_is_not_quoted() {
        let refuse = |text: &str| parse(&SourceFile::new("a.yaml", text)).expect_err("a tag is refused");
        assert_eq!(refuse("env:\n  DSN: !Secr3tPw x\n").problem, "a YAML tag has no meaning here");
        for text in ["env:\n  DSN: !Secr3tPw x\n", "env:\n  DSN: !Secr3tPw\n", "env: {DSN: !Secr3tPw}\n"] {
            let error = refuse(text);
            assert!(!format!("{error:?}").contains("Secr3tPw"), "{error:?}");
        }
    }

    #[test]
    fn equal_keys_are_refused_in_both_notations() {
        for (file, text) in [("a.json", r#"{"a": 1, "a": 2}"#), ("a.yaml", "a: 1\na: 2\n")] {
            let error = parse(&SourceFile::new(file, text)).expect_err("refused");
            assert!(error.problem.contains("twice"), "{}", error.problem);
        }
    }
}
