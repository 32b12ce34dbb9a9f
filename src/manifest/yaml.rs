//! Text of a YAML or JSON file to a JSON value, and a path in that value back to a line and column.
//!
//! The value comes from `serde_yaml` (or `serde_json`), which keep no positions. Those come from a second,
//! marked parse, which runs only when a diagnostic needs a place or aliases must be weighed.
//!
//! Invariant: the only user of the YAML crates; no file is read here.

use std::fmt;
use std::sync::{Arc, OnceLock};

use saphyr_parser::{Event, Parser, Span as YamlSpan};
use serde_json::{Map, Value};

use crate::diagnostic::{Diagnostic, Place};

/// Aliases may make a document larger than its text; past this many nodes it is a bomb, not a manifest.
const MAX_NODES: usize = 200_000;

/// One file as it was read.
pub struct Source {
    pub file: String,
    pub text: String,
    marks: OnceLock<Option<Arc<Mark>>>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({})", self.file)
    }
}

impl Source {
    pub fn new(file: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { file: file.into(), text: text.into(), marks: OnceLock::new() })
    }

    fn marks(&self) -> Option<&Arc<Mark>> {
        self.marks.get_or_init(|| mark(&self.text).ok()).as_ref()
    }

    /// The place of the value at `path`, or of the nearest thing around it that exists.
    pub fn place(&self, path: &Path) -> Place {
        self.locate(path, Part::Value)
    }

    /// The place of the key that the last step of `path` names.
    pub fn key_place(&self, path: &Path) -> Place {
        self.locate(path, Part::Key)
    }

    fn locate(&self, path: &Path, part: Part) -> Place {
        let Some(root) = self.marks() else { return Place::file(&self.file) };
        let mut mark = root;
        let mut span = root.span;
        for (depth, step) in path.0.iter().enumerate() {
            let last = depth + 1 == path.0.len();
            match (step, &mark.node) {
                (Step::Key(key), Node::Map(entries)) => match entries.iter().find(|(name, ..)| name == key) {
                    Some((_, key_span, value)) => {
                        mark = value;
                        span = if last && part == Part::Key { *key_span } else { value.span };
                    }
                    None => break,
                },
                (Step::Index(index), Node::Seq(items)) => match items.get(*index) {
                    Some(item) => {
                        mark = item;
                        span = item.span;
                    }
                    None => break,
                },
                _ => break,
            }
        }
        Place::at(&self.file, &self.text, span.line, span.column, span.width)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Key,
    Value,
}

/// A path into a document: `modes[2].tool_groups[0]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Path(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

impl Path {
    pub fn root() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn key(&self, key: impl Into<String>) -> Self {
        self.with(Step::Key(key.into()))
    }

    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.with(Step::Index(index))
    }

    fn with(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if depth == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Reads the one document of a file. Syntax is all that can be wrong here.
pub(super) fn parse(source: &Source) -> Result<Value, Box<Diagnostic>> {
    if source.text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Err(empty(source));
    }
    let value = if source.file.ends_with(".json") { parse_json(source)? } else { parse_yaml(source)? };
    if value.is_null() { Err(empty(source)) } else { Ok(value) }
}

fn empty(source: &Source) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(
        "E004",
        Place::file(&source.file),
        "the file is empty",
        "write a manifest (`skein new agent NAME` shows one) or remove the file",
    ))
}

fn parse_json(source: &Source) -> Result<Value, Box<Diagnostic>> {
    // serde_json keeps the last of two equal keys without a word, so keys are read by a visitor that objects.
    serde_json::from_str::<Strict>(&source.text).map(|strict| strict.0).map_err(|error| {
        Box::new(Diagnostic::error(
            "E003",
            Place::at(&source.file, &source.text, error.line(), error.column(), 1),
            format!("not valid JSON: {}", before_location(&error.to_string())),
            "correct the syntax at this place",
        ))
    })
}

fn parse_yaml(source: &Source) -> Result<Value, Box<Diagnostic>> {
    if source.text.contains('&') && source.text.contains('*') {
        weigh(source)?;
    }
    match serde_yaml::from_str::<serde_yaml::Value>(&source.text) {
        Ok(value) => to_json(value).map_err(|misfit| {
            Box::new(Diagnostic::error(
                "E003",
                source.place(&Path(misfit.steps.into_iter().rev().collect())),
                misfit.problem,
                "use text, numbers, true/false, lists and mappings with text keys",
            ))
        }),
        Err(error) => {
            let message = before_location(&error.to_string());
            let place = match error.location() {
                Some(at) => Place::at(&source.file, &source.text, at.line(), at.column(), 1),
                None => Place::file(&source.file),
            };
            Err(Box::new(if message.contains("more than one document") {
                Diagnostic::error(
                    "E006",
                    second_document(source).unwrap_or(place),
                    "the file holds more than one document",
                    "keep one document per file: move what follows `---` to a file of its own",
                )
            } else {
                Diagnostic::error("E003", place, format!("not valid YAML: {message}"), syntax_help(&message))
            }))
        }
    }
}

fn syntax_help(message: &str) -> &'static str {
    if message.contains("tab") || message.contains("cannot start any token") {
        "indent with spaces, and quote text that begins with one of @ ` % * & ! | >"
    } else if message.contains("duplicate") {
        "keep one of the two entries"
    } else {
        "correct the syntax at this place; text with `: ` or ` #` in it needs quotes"
    }
}

fn second_document(source: &Source) -> Option<Place> {
    let line = source.text.lines().enumerate().skip(1).find(|(_, line)| line.starts_with("---"))?.0;
    Some(Place::at(&source.file, &source.text, line + 1, 1, 3))
}

/// Both parsers end their messages with "at line L column C", which the place says already.
fn before_location(message: &str) -> String {
    match message.rfind(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message.to_owned(),
    }
}

/// Counts the nodes a document has once its aliases are followed, without following them.
fn weigh(source: &Source) -> Result<(), Box<Diagnostic>> {
    let too_large = |place| {
        Box::new(Diagnostic::error(
            "E005",
            place,
            format!("aliases make this document larger than {MAX_NODES} nodes"),
            "write the repeated parts out, or remove the aliases",
        ))
    };
    match source.marks() {
        Some(root) if root.size > MAX_NODES => Err(too_large(Place::file(&source.file))),
        // A text the marked parser cannot read may still hold a bomb that the other one would build.
        None if source.text.matches('*').count() > 64 => Err(too_large(Place::file(&source.file))),
        _ => Ok(()),
    }
}

/// Something YAML can say and JSON cannot.
struct Misfit {
    problem: String,
    /// The way to it, from the inside out: it is written down only once something is wrong.
    steps: Vec<Step>,
}

impl Misfit {
    fn new(problem: String) -> Self {
        Self { problem, steps: Vec::new() }
    }

    fn inside(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }
}

fn to_json(value: serde_yaml::Value) -> Result<Value, Misfit> {
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
            json.ok_or_else(|| Misfit::new(format!("`{number}` is not a number a manifest can hold")))?
        }
        serde_yaml::Value::Sequence(items) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| to_json(item).map_err(|misfit| misfit.inside(Step::Index(index))))
            .collect::<Result<_, _>>()?,
        serde_yaml::Value::Mapping(entries) => {
            let mut object = Map::new();
            for (key, value) in entries {
                let serde_yaml::Value::String(key) = key else {
                    return Err(Misfit::new(format!("a key of this mapping is not text: {key:?}")));
                };
                match to_json(value) {
                    Ok(value) => object.insert(key, value),
                    Err(misfit) => return Err(misfit.inside(Step::Key(key))),
                };
            }
            Value::Object(object)
        }
        serde_yaml::Value::Tagged(tagged) => {
            return Err(Misfit::new(format!("the YAML tag {} has no meaning here", tagged.tag)));
        }
    })
}

/// A JSON value in which no object names a key twice.
struct Strict(Value);

impl<'de> serde::Deserialize<'de> for Strict {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Strict;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }
            fn visit_unit<E>(self) -> Result<Strict, E> {
                Ok(Strict(Value::Null))
            }
            fn visit_bool<E>(self, value: bool) -> Result<Strict, E> {
                Ok(Strict(value.into()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Strict, E> {
                Ok(Strict(value.into()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Strict, E> {
                Ok(Strict(value.into()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Strict, E> {
                Ok(Strict(value.into()))
            }
            fn visit_str<E>(self, value: &str) -> Result<Strict, E> {
                Ok(Strict(value.into()))
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Strict, A::Error> {
                let mut items = Vec::new();
                while let Some(Strict(item)) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Strict(Value::Array(items)))
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Strict, A::Error> {
                let mut object = Map::new();
                while let Some((key, Strict(value))) = map.next_entry::<String, Strict>()? {
                    if object.contains_key(&key) {
                        return Err(serde::de::Error::custom(format!("duplicate entry with key \"{key}\"")));
                    }
                    object.insert(key, value);
                }
                Ok(Strict(Value::Object(object)))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// The shape of a document with the place of every node. An alias shares the node of its anchor, so a
/// document with aliases takes no more room than its text.
struct Mark {
    span: TextSpan,
    node: Node,
    /// Nodes below and including this one, aliases followed.
    size: usize,
}

enum Node {
    Scalar,
    Seq(Vec<Arc<Mark>>),
    Map(Vec<MarkedEntry>),
}

/// A key of a mapping, where it stands, and its value.
type MarkedEntry = (String, TextSpan, Arc<Mark>);

#[derive(Clone, Copy)]
struct TextSpan {
    line: usize,
    column: usize,
    width: usize,
}

impl From<YamlSpan> for TextSpan {
    fn from(span: YamlSpan) -> Self {
        let same_line = span.start.line() == span.end.line();
        let width = if same_line { span.end.col().saturating_sub(span.start.col()) } else { 1 };
        Self { line: span.start.line(), column: span.start.col() + 1, width: width.max(1) }
    }
}

/// A collection whose end has not been read yet.
struct Open {
    span: TextSpan,
    anchor: usize,
    /// Present for a mapping.
    mapping: Option<OpenMapping>,
    items: Vec<Arc<Mark>>,
    size: usize,
}

/// The entries so far, and the key that waits for its value.
#[derive(Default)]
struct OpenMapping {
    entries: Vec<MarkedEntry>,
    waiting: Option<(String, TextSpan)>,
}

fn mark(text: &str) -> Result<Arc<Mark>, String> {
    let mut anchors: std::collections::HashMap<usize, Arc<Mark>> = std::collections::HashMap::new();
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| error.to_string())?;
        let span = TextSpan::from(span);
        let (mark, key, anchor) = match event {
            Event::Scalar(text, _, anchor, _) => {
                let mark = Arc::new(Mark { span, node: Node::Scalar, size: 1 });
                (mark, Some(text.into_owned()), anchor)
            }
            Event::Alias(anchor) => match anchors.get(&anchor) {
                Some(target) => (Arc::clone(target), None, 0),
                None => return Err("an alias without an anchor".to_owned()),
            },
            Event::SequenceStart(anchor, _) => {
                open.push(Open { span, anchor, mapping: None, items: Vec::new(), size: 1 });
                continue;
            }
            Event::MappingStart(anchor, _) => {
                open.push(Open { span, anchor, mapping: Some(OpenMapping::default()), items: Vec::new(), size: 1 });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let done = open.pop().ok_or("unbalanced collection")?;
                let node = match done.mapping {
                    Some(mapping) => Node::Map(mapping.entries),
                    None => Node::Seq(done.items),
                };
                (Arc::new(Mark { span: done.span, node, size: done.size }), None, done.anchor)
            }
            _ => continue,
        };
        if anchor > 0 {
            anchors.insert(anchor, Arc::clone(&mark));
        }
        let Some(parent) = open.last_mut() else { return Ok(mark) };
        parent.size = parent.size.saturating_add(mark.size);
        match &mut parent.mapping {
            None => parent.items.push(mark),
            Some(mapping) => match mapping.waiting.take() {
                None => mapping.waiting = Some((key.unwrap_or_default(), span)),
                Some((key, key_span)) => mapping.entries.push((key, key_span, mark)),
            },
        }
    }
    Err("no document".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, path: &Path) -> (usize, usize, usize) {
        let place = Source::new("a.yaml", text).place(path);
        let span = place.span.expect("a place in the text");
        (span.line, span.column, span.width)
    }

    #[test]
    fn a_path_leads_back_to_its_line_and_column() {
        let text = "name: x\nmodes:\n  - slug: one\n    deps: [a, {name: b}]\n";
        let second = Path::root().key("modes").index(0).key("deps").index(1).key("name");
        assert_eq!(at(text, &second), (4, 22, 1));
        assert_eq!(second.to_string(), "modes[0].deps[1].name");
    }

    #[test]
    fn a_path_that_does_not_exist_leads_to_the_nearest_thing_around_it() {
        assert_eq!(at("a:\n  b: 1\n", &Path::root().key("a").key("missing")), (2, 3, 1));
    }

    #[test]
    fn columns_count_characters_not_bytes() {
        assert_eq!(at("{ü: [ä, x]}", &Path::root().key("ü").index(1)), (1, 9, 1));
    }

    #[test]
    fn what_json_cannot_say_is_found_where_it_stands() {
        for (text, line, column) in
            [("a:\n  - {b: 1}\n  - {b: .nan}\n", 3, 9), ("a:\n  - c: !Tag {d: 1}\n", 2, 8), ("a: [x, {1: y}]\n", 1, 8)]
        {
            let error = parse(&Source::new("a.yaml", text)).expect_err("refused");
            let span = error.at.span.expect("a place in the text");
            assert_eq!((error.code, span.line, span.column), ("E003", line, column), "{text}");
        }
    }

    #[test]
    fn an_alias_bomb_is_refused_before_it_is_built() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for n in 1..40 {
            let reference = format!("*a{},", n - 1).repeat(10);
            text.push_str(&format!("a{n}: &a{n} [{reference}]\n"));
        }
        let error = parse(&Source::new("bomb.yaml", text)).expect_err("refused");
        assert_eq!(error.code, "E005");
    }

    #[test]
    fn equal_keys_are_refused_in_both_notations() {
        for (file, text) in [("a.json", r#"{"a": 1, "a": 2}"#), ("a.yaml", "a: 1\na: 2\n")] {
            let error = parse(&Source::new(file, text)).expect_err("refused");
            assert!(error.problem.contains("duplicate"), "{}", error.problem);
        }
    }
}
