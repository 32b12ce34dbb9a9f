//! Specifies that an answer is the same as if all files were parsed, for every definition of a real tree.
//!
//! The expected answers come from a plain search through the symbols of all files, without their words.

use std::collections::{BTreeMap, BTreeSet};

use super::symbols::{CallSite, Definition};
use super::testing::SourceTree;
use super::word_place::{DEFINES, USES};
use super::words::{NameWords, hash_of};
use super::*;

/// The folder of the comparison. The whole program takes long without optimisation.
const FOLDER: &str = "src/services/builtin";

/// The symbols of all files.
struct FullIndex<'a> {
    index: &'a CodeIndex<'a>,
    definitions: BTreeMap<&'a str, Vec<DefinitionId>>,
    calls: BTreeMap<&'a str, Vec<(usize, &'a CallSite)>>,
}

impl<'a> FullIndex<'a> {
    fn new(index: &'a CodeIndex<'a>) -> Self {
        let all: Vec<usize> = (0..index.files.len()).collect();
        index.parse(&all);
        let mut full = Self { index, definitions: BTreeMap::new(), calls: BTreeMap::new() };
        for file in all {
            let symbols = index.symbols(file);
            for (definition, known) in symbols.definitions.iter().enumerate() {
                full.definitions.entry(&known.name).or_default().push(DefinitionId { file, definition });
            }
            for call in &symbols.calls {
                full.calls.entry(&call.callee).or_default().push((file, call));
            }
        }
        full
    }

    fn definition(&self, id: DefinitionId) -> &'a Definition {
        &self.index.symbols(id.file).definitions[id.definition]
    }

    fn container(&self, id: DefinitionId) -> Option<&'a str> {
        self.index.symbols(id.file).parent_of(self.definition(id)).map(|parent| &*parent.name)
    }

    fn means(&self, file: usize, call: &CallSite, callee: DefinitionId) -> bool {
        let language = |file: usize| self.index.files[file].source.language;
        let container = self.container(callee);
        let caller = call.caller.map(|caller| DefinitionId { file, definition: caller as usize });
        language(file).shares_names_with(language(callee.file))
            && match call.qualifier.as_deref() {
                None => true,
                Some("Self") => caller.and_then(|caller| self.container(caller)) == container,
                Some(_) if container.is_none() => !self.definition(callee).kind.is_callable(),
                qualifier => qualifier == container,
            }
    }

    /// Returns callers or callees with the lines of the calls.
    fn step(
        &self,
        id: DefinitionId,
        direction: CallDirection,
        is_common: impl Fn(&str) -> bool,
    ) -> BTreeMap<DefinitionId, BTreeSet<u32>> {
        let mut found: BTreeMap<DefinitionId, BTreeSet<u32>> = BTreeMap::new();
        match direction {
            CallDirection::Callers => {
                for (file, call) in self.calls.get(&*self.definition(id).name).into_iter().flatten() {
                    if let Some(caller) = call.caller.filter(|_| self.means(*file, call, id)) {
                        let caller = DefinitionId { file: *file, definition: caller as usize };
                        found.entry(caller).or_default().insert(call.line);
                    }
                }
            }
            CallDirection::Callees => {
                let calls = &self.index.symbols(id.file).calls;
                for call in calls.iter().filter(|call| call.caller == u32::try_from(id.definition).ok()) {
                    let is_vague = call.qualifier.is_none() && is_common(&call.callee);
                    for callee in self.definitions.get(&*call.callee).into_iter().flatten() {
                        if self.means(id.file, call, *callee) && (!is_vague || callee.file == id.file) {
                            found.entry(*callee).or_default().insert(call.line);
                        }
                    }
                }
            }
        }
        found
    }
}

#[test]
fn every_definition_has_the_answers_of_a_full_parse() {
    SourceTree::of_folder(FOLDER).with_index(None, |index| {
        let full = FullIndex::new(index);
        let graph = CallGraph::new(index);
        for (name, expected) in &full.definitions {
            let named = SymbolName { container: None, name: (*name).to_owned() };
            assert_eq!(&graph.find(&named, usize::MAX), expected, "{name}");
            for id in expected {
                let container = full.container(*id).map(str::to_owned);
                let inside = graph.find(&SymbolName { container, name: (*name).to_owned() }, usize::MAX);
                assert!(inside.contains(id), "{name} in {:?}", index.files[id.file].source.path);
                for direction in [CallDirection::Callers, CallDirection::Callees] {
                    let expected = full.step(*id, direction, |name| graph.is_common(&NameWords::new(name)));
                    let steps = graph.tree(*id, direction, 1);
                    let found: BTreeMap<_, BTreeSet<u32>> =
                        steps.into_iter().map(|step| (step.definition, step.lines.into_iter().collect())).collect();
                    // A long answer is cut.
                    if expected.len() <= 200 {
                        assert_eq!(found, expected, "{direction:?} of {name}");
                    } else {
                        assert_eq!(found.len(), 200, "{direction:?} of {name}");
                        assert!(found.iter().all(|(id, lines)| expected.get(id) == Some(lines)), "{name}");
                    }
                }
            }
        }
    });
}

#[test]
fn an_index_that_parses_late_gives_the_same_tree() {
    let tree = SourceTree::of_folder("src/services/builtin/developer");
    let answers = |name: &str, is_full: bool| {
        tree.with_index(Some(name), |index| {
            if is_full {
                index.parse(&(0..index.files.len()).collect::<Vec<_>>());
            }
            let graph = CallGraph::new(index);
            let found = graph.find(&SymbolName::parse(name), 99);
            assert!(!found.is_empty(), "{name}");
            let steps = found.iter().map(|id| {
                [CallDirection::Callers, CallDirection::Callees].map(|direction| graph.tree(*id, direction, 3))
            });
            let steps: Vec<_> = steps.collect();
            let lines = index.focus_lines(usize::MAX);
            (steps, lines, index.files.iter().filter(|file| file.is_parsed()).count())
        })
    };
    for name in ["analyze", "display_path", "Workshop"] {
        let (late, full) = (answers(name, false), answers(name, true));
        assert_eq!((&late.0, &late.1), (&full.0, &full.1), "{name}");
        assert!(late.2 <= full.2, "{name}");
    }
    assert!(answers("languages", false).2 < answers("languages", true).2, "files without the name are not parsed");
}

#[test]
fn words_tell_what_is_defined_and_used() {
    SourceTree::of_folder(FOLDER).with_index(None, |index| {
        let (mut agreed, mut missed, mut wrong, mut called, mut unused) = (0_u32, 0, 0, 0_u32, 0);
        for at in index.parse_in_turn((0..index.files.len()).collect()) {
            let (words, symbols) = (&index.files[at].words, index.symbols(at));
            let is_named = |known: &&Definition| known.kind != DefinitionKind::Impl;
            let defined: BTreeSet<u32> =
                symbols.definitions.iter().filter(is_named).map(|known| hash_of(known.name.as_bytes())).collect();
            let guessed: BTreeSet<u32> =
                words.iter().filter(|(_, flags)| flags & DEFINES != 0).map(|(word, _)| word).collect();
            agreed += u32::try_from(defined.intersection(&guessed).count()).unwrap();
            missed += defined.difference(&guessed).count();
            wrong += guessed.difference(&defined).count();
            for call in &symbols.calls {
                let flags = words.flags(hash_of(call.callee.as_bytes())).unwrap_or_default();
                called += 1;
                unused += usize::from(flags & (USES | DEFINES) == 0);
            }
        }
        assert!(agreed > 100 && called > 1000, "{agreed} {called}");
        assert!(missed <= agreed as usize / 50, "{missed} definitions of {agreed} are missed");
        // Macros and test programs in strings look like definitions.
        assert!(wrong <= agreed as usize / 4, "{wrong} words beside {agreed} are no definitions");
        assert!(unused <= called as usize / 20, "{unused} of {called} calls are missed");
    });
}
