//! Follows calls between definitions, by name.

use std::collections::{HashMap, HashSet};

use super::index::CodeIndex;
use super::symbols::{CallSite, Definition};

/// Maximum number of entries of a whole tree.
const MAX_TREE: usize = 200;

/// A name that a person writes: `start`, `Server::start` or `Server.start`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymbolName {
    pub container: Option<String>,
    pub name: String,
}

impl SymbolName {
    pub fn parse(text: &str) -> Self {
        let text = text.trim().trim_end_matches("()");
        let (container, name) = match text.rsplit_once("::").or_else(|| text.rsplit_once('.')) {
            Some((container, name)) if !name.is_empty() => (Some(container), name),
            _ => (None, text),
        };
        // `crate::server::Server::start`: only the type is compared.
        let container =
            container.and_then(|container| container.rsplit(['.', ':']).next()).filter(|last| !last.is_empty());
        Self { container: container.map(str::to_owned), name: name.to_owned() }
    }
}

/// A definition of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DefinitionId {
    pub file: usize,
    pub definition: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallDirection {
    Callers,
    Callees,
}

/// A definition that calls or is called, with those one step further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTree {
    pub definition: DefinitionId,
    /// The lines of the calls, in the file of the caller.
    pub lines: Vec<u32>,
    pub next: Vec<CallTree>,
    /// The definition occurs earlier in the tree, where its calls are shown.
    pub is_repeated: bool,
}

/// The calls of an index, by name.
#[derive(Debug)]
pub struct CallGraph<'a> {
    index: &'a CodeIndex,
    definitions: HashMap<&'a str, Vec<DefinitionId>>,
    /// The file and the call.
    calls: HashMap<&'a str, Vec<(usize, &'a CallSite)>>,
}

impl<'a> CallGraph<'a> {
    pub fn new(index: &'a CodeIndex) -> Self {
        let mut graph = Self { index, definitions: HashMap::new(), calls: HashMap::new() };
        for (file, indexed) in index.files.iter().enumerate() {
            for (definition, known) in indexed.symbols.definitions.iter().enumerate() {
                graph.definitions.entry(&known.name).or_default().push(DefinitionId { file, definition });
            }
            for call in &indexed.symbols.calls {
                graph.calls.entry(&call.callee).or_default().push((file, call));
            }
        }
        graph
    }

    pub fn definition(&self, id: DefinitionId) -> Option<&'a Definition> {
        self.index.files.get(id.file)?.symbols.definitions.get(id.definition)
    }

    /// Returns the definitions with this name, in the order of the files.
    pub fn find(&self, name: &SymbolName) -> Vec<DefinitionId> {
        let found = self.definitions.get(name.name.as_str()).map(Vec::as_slice).unwrap_or_default();
        let is_inside = |id: &&DefinitionId| {
            name.container.as_deref().is_none_or(|container| self.container(**id) == Some(container))
        };
        found.iter().filter(is_inside).copied().collect()
    }

    /// Returns names that contain this one or that it contains, shortest first.
    pub fn similar_names(&self, name: &str, max: usize) -> Vec<&'a str> {
        let wanted = name.to_lowercase();
        let is_similar = |known: &&str| {
            let known = known.to_lowercase();
            known.contains(&wanted) || (known.len() > 3 && wanted.contains(&known))
        };
        let mut names: Vec<_> = self.definitions.keys().copied().filter(is_similar).collect();
        names.sort_by_key(|name| (name.len(), *name));
        names.truncate(max);
        names
    }

    /// Returns the calls of or by a definition, `depth` steps far.
    pub fn tree(&self, root: DefinitionId, direction: CallDirection, depth: usize) -> Vec<CallTree> {
        let mut seen = HashSet::from([root]);
        let mut left = MAX_TREE;
        self.branches(root, direction, depth, &mut seen, &mut left)
    }

    fn branches(
        &self,
        from: DefinitionId,
        direction: CallDirection,
        depth: usize,
        seen: &mut HashSet<DefinitionId>,
        left: &mut usize,
    ) -> Vec<CallTree> {
        if depth == 0 {
            return Vec::new();
        }
        let steps = match direction {
            CallDirection::Callers => self.callers(from),
            CallDirection::Callees => self.callees(from),
        };
        let mut trees = Vec::new();
        for (definition, lines) in steps {
            let Some(rest) = left.checked_sub(1) else { break };
            *left = rest;
            let is_new = seen.insert(definition);
            let next = if is_new { self.branches(definition, direction, depth - 1, seen, left) } else { Vec::new() };
            trees.push(CallTree { definition, lines, next, is_repeated: !is_new && depth > 1 });
        }
        trees
    }

    /// Returns the definitions that call this one, with the lines of the calls.
    fn callers(&self, callee: DefinitionId) -> Vec<(DefinitionId, Vec<u32>)> {
        let Some(definition) = self.definition(callee) else { return Vec::new() };
        let calls = self.calls.get(&*definition.name).map(Vec::as_slice).unwrap_or_default();
        let mut callers = OrderedLines::default();
        for (file, call) in calls.iter().filter(|(file, call)| self.can_reach(*file, call, callee)) {
            if let Some(caller) = caller(*file, call) {
                callers.add(caller, call.line);
            }
        }
        callers.0
    }

    /// Returns the definitions that this one calls, with the lines of the calls.
    fn callees(&self, caller: DefinitionId) -> Vec<(DefinitionId, Vec<u32>)> {
        let mut callees = OrderedLines::default();
        let Some(file) = self.index.files.get(caller.file) else { return Vec::new() };
        for call in file.symbols.calls.iter().filter(|call| self::caller(caller.file, call) == Some(caller)) {
            let known = self.definitions.get(&*call.callee).map(Vec::as_slice).unwrap_or_default();
            for callee in known.iter().filter(|callee| self.can_reach(caller.file, call, **callee)) {
                callees.add(*callee, call.line);
            }
        }
        callees.0
    }

    /// Returns true if nothing rules out that the call means this definition.
    fn can_reach(&self, file: usize, call: &CallSite, callee: DefinitionId) -> bool {
        let (Some(from), Some(to)) = (self.index.files.get(file), self.index.files.get(callee.file)) else {
            return false;
        };
        if !from.language.shares_names_with(to.language) {
            return false;
        }
        match (call.qualifier.as_deref(), self.container(callee)) {
            (None, _) => true,
            (Some("Self"), container) => caller(file, call).and_then(|caller| self.container(caller)) == container,
            (Some(qualifier), Some(container)) => qualifier == container,
            // A constructor is called by the name of its type.
            (Some(_), None) => self.definition(callee).is_some_and(|callee| !callee.kind.is_callable()),
        }
    }

    /// Returns the name of the type or module that contains a definition.
    fn container(&self, id: DefinitionId) -> Option<&'a str> {
        let symbols = &self.index.files.get(id.file)?.symbols;
        symbols.parent_of(symbols.definitions.get(id.definition)?).map(|parent| &*parent.name)
    }
}

fn caller(file: usize, call: &CallSite) -> Option<DefinitionId> {
    Some(DefinitionId { file, definition: usize::try_from(call.caller?).ok()? })
}

/// Definitions with lines, in the order in which they were added.
#[derive(Default)]
struct OrderedLines(Vec<(DefinitionId, Vec<u32>)>);

impl OrderedLines {
    fn add(&mut self, definition: DefinitionId, line: u32) {
        match self.0.iter_mut().find(|(known, _)| *known == definition) {
            Some((_, lines)) if lines.last() != Some(&line) => lines.push(line),
            Some(_) => {}
            None => self.0.push((definition, vec![line])),
        }
    }
}

#[cfg(test)]
#[path = "call_graph_tests.rs"]
mod tests;
