//! Follows calls between definitions, by name.
//!
//! A call without a type, as `x.get()`, can mean every definition of that name. If many files define the name, such a call
//! says little: it is followed only inside its file, and for the callers of the definition that was asked for.

use std::collections::{HashMap, HashSet};

use super::index::{CodeIndex, IndexedFile};
use super::symbols::{CallSite, Definition};
use super::word_place::{DEFINES, MAY_CALL, MAY_CALL_OF_TYPE, MAY_DEFINE_CALLABLE, MAY_DEFINE_OTHER, is_word_byte};
use super::word_scan::visit_words;
use super::words::NameWords;

/// Maximum number of entries of a whole tree.
const MAX_TREE: usize = 200;
/// A name that more files define is common.
pub const MAX_DEFINERS: usize = 5;
/// How many calls are followed at once, so that several threads have work.
const CALLS_AT_ONCE: usize = 16;
const ANY_CALL: u32 = MAY_CALL | MAY_CALL_OF_TYPE;
const MAY_DEFINE: u32 = MAY_DEFINE_CALLABLE | MAY_DEFINE_OTHER;

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

/// The calls of an index, by name. It parses the files that may contain a name when they are needed.
#[derive(Debug)]
pub struct CallGraph<'a> {
    index: &'a CodeIndex<'a>,
    /// The files that may define a word, by its hash.
    definers: HashMap<u32, Vec<usize>>,
    /// The hashes of common names.
    common: HashSet<u32>,
}

impl<'a> CallGraph<'a> {
    pub fn new(index: &'a CodeIndex<'a>) -> Self {
        let mut definers: HashMap<u32, Vec<usize>> = HashMap::new();
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for (at, file) in index.files.iter().enumerate() {
            for (word, flags) in file.words.iter() {
                if flags & MAY_DEFINE != 0 {
                    definers.entry(word).or_default().push(at);
                }
                if flags & DEFINES != 0 {
                    *counts.entry(word).or_default() += 1;
                }
            }
        }
        let common = counts.into_iter().filter(|(_, files)| *files > MAX_DEFINERS).map(|(word, _)| word).collect();
        Self { index, definers, common }
    }

    pub fn definition(&self, id: DefinitionId) -> Option<&'a Definition> {
        self.index.symbols(id.file).definitions.get(id.definition)
    }

    /// Returns the first `max` definitions with this name, in the order of the files.
    pub fn find(&self, name: &SymbolName, max: usize) -> Vec<DefinitionId> {
        let container = name.container.as_deref().map(NameWords::new);
        let may_contain =
            |file: &IndexedFile| container.as_ref().is_none_or(|container| container.may_be(&file.words, MAY_DEFINE));
        let files = self.files_that_define(&NameWords::new(&name.name), &may_contain);
        let is_inside = |id: &DefinitionId| {
            name.container.as_deref().is_none_or(|container| self.container(*id) == Some(container))
        };
        let found = self.index.parse_in_turn(files).flat_map(|file| self.definitions_in(file, &name.name));
        found.filter(is_inside).take(max).collect()
    }

    /// Returns names that contain this one or that it contains, shortest first. Only ASCII letters are compared without
    /// their case.
    pub fn similar_names(&self, name: &str, max: usize) -> Vec<&'a str> {
        let wanted = name.to_ascii_lowercase();
        let is_part = |known: &str| known.len() > 3 && wanted.contains(known);
        let is_similar = |known: &&str| {
            let known = known.to_ascii_lowercase();
            known.contains(&wanted) || is_part(&known)
        };
        let files = self.index.files_with_text(&|language, text| {
            let mut is_found = !wanted.bytes().all(is_word_byte);
            let mut has_part = false;
            let shared_flags = visit_words(language, text, |word, flags| {
                let Ok(word) = std::str::from_utf8(word) else { return };
                let word = word.to_ascii_lowercase();
                let is_part = is_part(&word);
                has_part |= is_part;
                // A longer name can have more than one word, so that its place is unknown.
                is_found |= word.contains(&wanted) || (flags & MAY_DEFINE != 0 && is_part);
            });
            is_found || (has_part && shared_flags & MAY_DEFINE != 0)
        });
        self.index.parse(&files);
        let names = files.iter().flat_map(|file| &self.index.symbols(*file).definitions).map(|known| &*known.name);
        let mut names: Vec<_> = names.filter(is_similar).collect();
        names.sort_by_key(|name| (name.len(), *name));
        names.dedup();
        names.truncate(max);
        names
    }

    /// Returns the calls of or by a definition, `depth` steps far.
    pub fn tree(&self, root: DefinitionId, direction: CallDirection, depth: usize) -> Vec<CallTree> {
        let mut walk = TreeWalk { root, direction, seen: HashSet::from([root]), left: MAX_TREE };
        self.branches(root, depth, &mut walk)
    }

    /// Returns the common names that a definition calls without a type, and that [`Self::tree`] leaves out, each once.
    pub fn common_callees(&self, caller: DefinitionId) -> Vec<&'a str> {
        let calls = self.index.symbols(caller.file).calls.iter();
        let calls = calls.filter(|call| self::caller(caller.file, call) == Some(caller) && call.qualifier.is_none());
        let is_left_out = |name: &&str| {
            self.is_common(&NameWords::new(name)) && self.definitions_in(caller.file, name).next().is_none()
        };
        let mut names: Vec<_> = calls.map(|call| &*call.callee).filter(is_left_out).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    pub(super) fn is_common(&self, name: &NameWords) -> bool {
        name.as_word().is_some_and(|word| self.common.contains(&word))
    }

    fn branches(&self, from: DefinitionId, depth: usize, walk: &mut TreeWalk) -> Vec<CallTree> {
        if depth == 0 {
            return Vec::new();
        }
        let steps = match walk.direction {
            CallDirection::Callers => self.callers(from, from == walk.root, walk.left),
            CallDirection::Callees => self.callees(from, walk.left),
        };
        let mut trees = Vec::new();
        for (definition, lines) in steps {
            let Some(left) = walk.left.checked_sub(1) else { break };
            walk.left = left;
            let is_new = walk.seen.insert(definition);
            let next = if is_new { self.branches(definition, depth - 1, walk) } else { Vec::new() };
            trees.push(CallTree { definition, lines, next, is_repeated: !is_new && depth > 1 });
        }
        trees
    }

    /// Returns the definitions that call this one, with the lines of the calls. Ends after the file with caller `max`.
    fn callers(&self, callee: DefinitionId, is_root: bool, max: usize) -> Vec<(DefinitionId, Vec<u32>)> {
        let mut callers = OrderedLines::default();
        let Some(definition) = self.definition(callee) else { return callers.0 };
        let is_common = !is_root && self.is_common(&NameWords::new(&definition.name));
        for file in self.index.parse_in_turn(self.files_that_call(callee, definition, is_common)) {
            if callers.0.len() >= max {
                break;
            }
            let is_clear = |call: &&CallSite| !is_common || call.qualifier.is_some() || file == callee.file;
            let calls = self.index.symbols(file).calls.iter();
            let calls = calls.filter(|call| call.callee == definition.name).filter(is_clear);
            for call in calls.filter(|call| self.can_reach(file, call, callee)) {
                if let Some(caller) = caller(file, call) {
                    callers.add(caller, call.line);
                }
            }
        }
        callers.0
    }

    /// Returns the files that may call a definition. `can_reach` decides which calls are meant.
    fn files_that_call(&self, callee: DefinitionId, definition: &Definition, is_common: bool) -> Vec<usize> {
        if is_common && self.container(callee).is_none() && definition.kind.is_callable() {
            return vec![callee.file];
        }
        let name = NameWords::new(&definition.name);
        let container = self.container(callee).map(NameWords::new);
        let language = self.index.files.get(callee.file).map(|file| file.source.language);
        self.index.files_that(|file| {
            let may_mean = || match &container {
                // `Self` before the name counts as no type.
                Some(container) if is_common => container.may_occur(&file.words) && name.may_be(&file.words, ANY_CALL),
                Some(container) => {
                    name.may_be(&file.words, MAY_CALL)
                        || (container.may_occur(&file.words) && name.may_be(&file.words, MAY_CALL_OF_TYPE))
                }
                None if definition.kind.is_callable() => name.may_be(&file.words, MAY_CALL),
                None => name.may_be(&file.words, ANY_CALL),
            };
            language.is_some_and(|language| file.source.language.shares_names_with(language)) && may_mean()
        })
    }

    /// Returns the definitions that this one calls, with the lines of the calls. After the first `max` definitions, it looks
    /// for no others.
    fn callees(&self, caller: DefinitionId, max: usize) -> Vec<(DefinitionId, Vec<u32>)> {
        let calls = &self.index.symbols(caller.file).calls;
        let calls: Vec<_> = calls.iter().filter(|call| self::caller(caller.file, call) == Some(caller)).collect();
        let mut callees = OrderedLines::default();
        let mut definers: HashMap<(&str, Option<&str>), Vec<usize>> = HashMap::new();
        for some in calls.chunks(CALLS_AT_ONCE) {
            let is_full = callees.0.len() >= max;
            if !is_full {
                for call in some {
                    let name = (&*call.callee, call.qualifier.as_deref());
                    definers.entry(name).or_insert_with(|| self.files_that_may_be_called(caller, call));
                }
                let files: HashSet<usize> = definers.values().flatten().copied().collect();
                self.index.parse(&files.into_iter().collect::<Vec<_>>());
            }
            for call in some {
                let means = |callee: &DefinitionId| self.can_reach(caller.file, call, *callee);
                let known: Vec<_> = if is_full {
                    let is_named = |callee: &DefinitionId| {
                        self.definition(*callee).is_some_and(|known| known.name == call.callee) && means(callee)
                    };
                    callees.0.iter().map(|(callee, _)| *callee).filter(is_named).collect()
                } else {
                    let files = definers.get(&(&*call.callee, call.qualifier.as_deref())).into_iter().flatten();
                    files.flat_map(|file| self.definitions_in(*file, &call.callee)).filter(means).collect()
                };
                for callee in known {
                    callees.add(callee, call.line);
                }
            }
        }
        callees.0
    }

    /// Returns the files with definitions that a call may mean. `can_reach` decides which are meant.
    fn files_that_may_be_called(&self, caller: DefinitionId, call: &CallSite) -> Vec<usize> {
        let name = NameWords::new(&call.callee);
        if call.qualifier.is_none() && self.is_common(&name) {
            return vec![caller.file];
        }
        let language = self.index.files.get(caller.file).map(|file| file.source.language);
        let container = match call.qualifier.as_deref() {
            Some("Self") => self.container(caller),
            qualifier => qualifier,
        };
        let container = container.map(NameWords::new);
        self.files_that_define(&name, &|file| {
            let may_contain = container.as_ref().is_none_or(|container| {
                container.may_be(&file.words, MAY_DEFINE) || name.may_be(&file.words, MAY_DEFINE_OTHER)
            });
            may_contain && language.is_some_and(|language| language.shares_names_with(file.source.language))
        })
    }

    /// Returns the files that may define a name, and that pass a test.
    fn files_that_define(&self, name: &NameWords, is_wanted: &dyn Fn(&IndexedFile) -> bool) -> Vec<usize> {
        match name.as_word() {
            Some(word) => {
                let files = self.definers.get(&word).into_iter().flatten().copied();
                files.filter(|file| self.index.files.get(*file).is_some_and(is_wanted)).collect()
            }
            None => self.index.files_that(|file| name.may_occur(&file.words) && is_wanted(file)),
        }
    }

    fn definitions_in(&self, file: usize, name: &str) -> impl Iterator<Item = DefinitionId> {
        let definitions = self.index.symbols(file).definitions.iter().enumerate();
        let found = definitions.filter(move |(_, known)| &*known.name == name);
        found.map(move |(definition, _)| DefinitionId { file, definition })
    }

    /// Returns true if nothing rules out that the call means this definition.
    fn can_reach(&self, file: usize, call: &CallSite, callee: DefinitionId) -> bool {
        let (Some(from), Some(to)) = (self.index.files.get(file), self.index.files.get(callee.file)) else {
            return false;
        };
        if !from.source.language.shares_names_with(to.source.language) {
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
        let symbols = self.index.symbols(id.file);
        symbols.parent_of(symbols.definitions.get(id.definition)?).map(|parent| &*parent.name)
    }
}

/// The state of a walk through calls.
struct TreeWalk {
    root: DefinitionId,
    direction: CallDirection,
    seen: HashSet<DefinitionId>,
    /// How many entries may follow.
    left: usize,
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
