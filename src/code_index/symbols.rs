//! Collects the definitions and calls of one file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::sync::Arc;

use tree_sitter::{Node, ParseOptions, Parser, Tree};

use super::definition_kind::DefinitionKind;
use super::language::SourceLanguage;
use super::rules::{DefinitionRule, NameRule, NodeTable};

/// Maximum number of characters of a signature.
const MAX_SIGNATURE: usize = 160;
/// Maximum number of characters of a name. A longer one is generated code or garbage.
const MAX_NAME: usize = 200;
/// Steps of the parser between two questions whether the work is cancelled. All threads share the lock of that question.
const STEPS_PER_CHECK: u32 = 64;
/// Fields of the part before a called name, as `Server` in `Server::start()`.
const QUALIFIER_FIELDS: [&str; 6] = ["path", "scope", "object", "value", "operand", "expression"];

/// Something that a file defines. Lines count from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    pub name: Arc<str>,
    pub kind: DefinitionKind,
    pub first_line: u32,
    pub last_line: u32,
    /// The index of the definition that contains this one.
    pub parent: Option<u32>,
    /// The text up to the body, on one line.
    pub signature: String,
}

/// A call inside a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallSite {
    pub(super) callee: Arc<str>,
    /// The type before the name, as `Server` in `Server::start()`.
    pub(super) qualifier: Option<Arc<str>>,
    pub(super) line: u32,
    /// The index of the definition that contains the call.
    pub(super) caller: Option<u32>,
}

/// What [`SymbolParser`] finds in a file. Definitions are in the order of the text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileSymbols {
    pub definitions: Vec<Definition>,
    pub(super) calls: Vec<CallSite>,
    pub lines: u32,
}

impl FileSymbols {
    pub(super) const EMPTY: Self = Self { definitions: Vec::new(), calls: Vec::new(), lines: 0 };

    /// Returns how deeply a definition is nested.
    pub fn depth(&self, definition: &Definition) -> usize {
        std::iter::successors(self.parent_of(definition), |parent| self.parent_of(parent)).count()
    }

    /// Returns the definition that contains this one.
    pub fn parent_of(&self, definition: &Definition) -> Option<&Definition> {
        self.definitions.get(usize::try_from(definition.parent?).ok()?)
    }
}

/// Parses files of any language. Create one per thread.
#[derive(Default)]
pub struct SymbolParser {
    parsers: HashMap<SourceLanguage, (Parser, NodeTable)>,
}

impl std::fmt::Debug for SymbolParser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SymbolParser").field("languages", &self.parsers.keys()).finish()
    }
}

impl SymbolParser {
    /// Parses a file. Returns `None` if `is_cancelled` returns true before the end.
    pub fn parse(
        &mut self,
        language: SourceLanguage,
        source: &[u8],
        is_cancelled: &dyn Fn() -> bool,
    ) -> Option<FileSymbols> {
        Some(self.parse_with_focus(language, source, None, is_cancelled)?.0)
    }

    /// Parses a file. Returns also the lines that contain an identifier with the name `focus`, each once.
    pub(super) fn parse_with_focus(
        &mut self,
        language: SourceLanguage,
        source: &[u8],
        focus: Option<&str>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Option<(FileSymbols, Vec<u32>)> {
        let (parser, table) = self.parser(language)?;
        let tree = parse_tree(parser, source, is_cancelled)?;
        let mut collector = SymbolCollector {
            source,
            table,
            symbols: FileSymbols::default(),
            scopes: Vec::new(),
            names: HashMap::new(),
            focus: focus.map(str::as_bytes),
            focus_lines: Vec::new(),
        };
        collector.walk(&tree);
        let mut symbols = collector.symbols;
        let lines = memchr::memchr_iter(b'\n', source).count();
        let has_open_line = source.last().is_some_and(|byte| *byte != b'\n');
        symbols.lines = u32::try_from(lines + usize::from(has_open_line)).unwrap_or(u32::MAX);
        Some((symbols, collector.focus_lines))
    }

    /// Returns the parser of a language. `None` if the grammar does not fit the library, which a test rules out.
    fn parser(&mut self, language: SourceLanguage) -> Option<&mut (Parser, NodeTable)> {
        match self.parsers.entry(language) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) => {
                let grammar = language.grammar();
                let mut parser = Parser::new();
                parser.set_language(&grammar).ok()?;
                Some(new.insert((parser, NodeTable::new(language, &grammar))))
            }
        }
    }
}

fn parse_tree(parser: &mut Parser, source: &[u8], is_cancelled: &dyn Fn() -> bool) -> Option<Tree> {
    // A cancelled parse would continue with the next file.
    parser.reset();
    let mut steps = 0_u32;
    let mut progress = |_: &_| {
        steps = steps.wrapping_add(1);
        let is_over = steps.is_multiple_of(STEPS_PER_CHECK) && is_cancelled();
        if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = ParseOptions::new().progress_callback(&mut progress);
    parser.parse_with_options(&mut |at, _| source.get(at..).unwrap_or_default(), None, Some(options))
}

/// Visits every node in the order of the text, with its depth. The nesting of a hostile file does not use the stack.
fn visit_nodes<'tree>(tree: &'tree Tree, mut visit: impl FnMut(Node<'tree>, usize)) {
    let mut cursor = tree.walk();
    let mut depth = 0;
    loop {
        visit(cursor.node(), depth);
        if cursor.goto_first_child() {
            depth += 1;
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return;
            }
            depth -= 1;
        }
    }
}

fn line_of(node: Node<'_>) -> u32 {
    u32::try_from(node.start_position().row + 1).unwrap_or(u32::MAX)
}

struct SymbolCollector<'a> {
    source: &'a [u8],
    table: &'a NodeTable,
    symbols: FileSymbols,
    /// The definitions around the current node, with their depths in the tree.
    scopes: Vec<(usize, u32)>,
    /// Each name is stored once per file.
    names: HashMap<&'a str, Arc<str>>,
    focus: Option<&'a [u8]>,
    focus_lines: Vec<u32>,
}

impl<'a> SymbolCollector<'a> {
    fn walk(&mut self, tree: &Tree) {
        visit_nodes(tree, |node, depth| {
            while self.scopes.last().is_some_and(|(scope, _)| *scope >= depth) {
                self.scopes.pop();
            }
            let meaning = self.table.meaning(node.kind_id());
            if let Some(rule) = meaning.definition {
                self.define(rule, node, depth);
            }
            if meaning.is_call {
                self.call(node);
            }
            if let Some(focus) = self.focus {
                self.compare_with_focus(node, focus);
            }
        });
    }

    fn compare_with_focus(&mut self, node: Node<'_>, focus: &[u8]) {
        let range = node.byte_range();
        let is_match = range.len() == focus.len()
            && node.child_count() == 0
            && self.source.get(range) == Some(focus)
            && !node.kind().contains("comment")
            && !node.kind().contains("string");
        if is_match && self.focus_lines.last() != Some(&line_of(node)) {
            self.focus_lines.push(line_of(node));
        }
    }

    fn define(&mut self, rule: &DefinitionRule, node: Node<'_>, depth: usize) {
        let Some(name) = self.definition_name(rule.name, node) else { return };
        let parent = self.scopes.last().map(|(_, parent)| *parent);
        let is_in_type = parent
            .and_then(|parent| self.symbols.definitions.get(usize::try_from(parent).ok()?))
            .is_some_and(|parent| parent.kind.has_methods());
        let kind = match rule.kind {
            DefinitionKind::Function if is_in_type => DefinitionKind::Method,
            kind => kind,
        };
        let Ok(index) = u32::try_from(self.symbols.definitions.len()) else { return };
        let name = self.intern(name);
        let last_line = u32::try_from(node.end_position().row + 1).unwrap_or(u32::MAX);
        let signature = self.signature(node);
        self.symbols.definitions.push(Definition {
            name,
            kind,
            first_line: line_of(node),
            last_line,
            parent,
            signature,
        });
        self.scopes.push((depth, index));
    }

    fn call(&mut self, node: Node<'_>) {
        let Some(callee) = callee(node, &self.table.callee_fields) else { return };
        let Some(name) = self.text(callee) else { return };
        let name = self.intern(name);
        let qualifier = self.qualifier(callee).map(|qualifier| self.intern(qualifier));
        let caller = self.scopes.last().map(|(_, caller)| *caller);
        self.symbols.calls.push(CallSite { callee: name, qualifier, line: line_of(callee), caller });
    }

    /// Returns the type before a called name. Variables and modules before it say nothing about the type.
    fn qualifier(&self, callee: Node<'_>) -> Option<&'a str> {
        let parent = callee.parent()?;
        let qualifier = QUALIFIER_FIELDS.iter().find_map(|field| parent.child_by_field_name(field))?;
        let last = qualifier.child_by_field_name("name").unwrap_or(qualifier);
        let last = last.child_by_field_name("type").unwrap_or(last);
        self.text(last).filter(|name| last.child_count() == 0 && name.starts_with(char::is_uppercase))
    }

    fn definition_name(&self, rule: NameRule, node: Node<'_>) -> Option<&'a str> {
        let is_at_top = || self.scopes.is_empty();
        let name = match rule {
            NameRule::Name => node.child_by_field_name("name"),
            NameRule::NameWithBody => node.child_by_field_name("body").and_then(|_| node.child_by_field_name("name")),
            NameRule::NameAtTop if is_at_top() => node.child_by_field_name("name"),
            NameRule::LeftAtTop if is_at_top() => {
                node.child_by_field_name("left").filter(|left| left.kind() == "identifier")
            }
            NameRule::NameAtTop | NameRule::LeftAtTop => None,
            NameRule::FunctionValue(field) => {
                let value = node.child_by_field_name("value").or_else(|| node.child_by_field_name("right"))?;
                let is_function =
                    matches!(value.kind(), "arrow_function" | "function_expression" | "generator_function" | "class");
                let name = node.child_by_field_name(field).filter(|_| is_function)?;
                // `exports.name = function` defines `name`.
                name.child_by_field_name("property").or(Some(name))
            }
            NameRule::Declarator => name_in_declarator(node),
            NameRule::Prototype => name_in_declarator(node).filter(|name| is_function_name(*name)),
            NameRule::ImplementedType => {
                let implemented = node.child_by_field_name("type")?;
                implemented.child_by_field_name("type").or(Some(implemented))
            }
            #[cfg(feature = "all-languages")]
            NameRule::FirstIdentifier => {
                let mut cursor = node.walk();
                node.named_children(&mut cursor).find(|child| matches!(child.kind(), "identifier" | "name"))
            }
        };
        self.text(name?)
    }

    /// Returns the text of a node that is a name. Code that an error recovery skipped can be empty or long.
    fn text(&self, node: Node<'_>) -> Option<&'a str> {
        let text = std::str::from_utf8(self.source.get(node.byte_range())?).ok()?.trim_matches(['"', '\'', '`']);
        (!text.is_empty() && text.len() <= MAX_NAME && !text.contains('\n')).then_some(text)
    }

    fn intern(&mut self, name: &'a str) -> Arc<str> {
        Arc::clone(self.names.entry(name).or_insert_with(|| Arc::from(name)))
    }

    fn signature(&self, node: Node<'_>) -> String {
        let value = node.child_by_field_name("value").and_then(|value| value.child_by_field_name("body"));
        let end = node.child_by_field_name("body").or(value).map_or(node.end_byte(), |body| body.start_byte());
        let text = String::from_utf8_lossy(self.source.get(node.start_byte()..end).unwrap_or_default());
        let mut signature = String::new();
        for word in text.split_whitespace() {
            if !signature.is_empty() {
                signature.push(' ');
            }
            signature.extend(word.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }));
            if signature.len() > MAX_SIGNATURE * 4 {
                break;
            }
        }
        // `=>` of an arrow function, but not `>` of type parameters.
        let trimmed = signature.trim_end_matches(['{', ':', ' ', '=']).trim_end_matches("=>");
        let trimmed = trimmed.trim_end_matches(['{', ':', ' ', '=']);
        match trimmed.char_indices().nth(MAX_SIGNATURE) {
            Some((end, _)) => format!("{}...", &trimmed[..end]),
            None => trimmed.to_owned(),
        }
    }
}

/// Returns the name in a C declarator, below pointers, arrays and parameters.
fn name_in_declarator(node: Node<'_>) -> Option<Node<'_>> {
    let mut inner = node.child_by_field_name("declarator")?;
    loop {
        inner = match inner.child_by_field_name("declarator") {
            Some(next) => next,
            // `A::b` declares `b`. Parentheses and references have no field.
            None => match inner.kind() {
                "qualified_identifier" | "template_function" => inner.child_by_field_name("name")?,
                "parenthesized_declarator" | "reference_declarator" => inner.named_child(0)?,
                _ => return Some(inner),
            },
        };
    }
}

/// Returns true if a declared name is that of a function, and not of a pointer to one.
fn is_function_name(name: Node<'_>) -> bool {
    let mut parent = name.parent();
    while let Some(node) = parent {
        match node.kind() {
            "function_declarator" => return true,
            "qualified_identifier" | "template_function" => parent = node.parent(),
            _ => return false,
        }
    }
    false
}

/// Returns the node with the name of the function that a call names.
fn callee<'tree>(call: Node<'tree>, fields: &[u16]) -> Option<Node<'tree>> {
    let mut node = call;
    loop {
        let by_field = fields.iter().find_map(|field| node.child_by_field_id(*field));
        node = match by_field {
            Some(next) => next,
            None if node.child_count() == 0 => return Some(node),
            // `a.b` in grammars without fields: the last part is the name.
            None if node.kind() == "navigation_expression" => {
                node.named_child(u32::try_from(node.named_child_count()).ok()?.checked_sub(1)?)?
            }
            None => node.named_child(0)?,
        };
        // A call of the result of an expression has no name.
        let is_expression =
            matches!(node.kind(), "call_expression" | "call" | "lambda" | "subscript" | "arrow_function")
                || node.kind().contains("string");
        if is_expression {
            return None;
        }
    }
}

#[cfg(test)]
#[path = "symbols_tests.rs"]
mod tests;
