//! Specifies callers, callees and ranks on small programs.

use std::path::PathBuf;
use std::sync::Arc;

use super::*;
use crate::code_index::{FileRank, IndexedFile, SourceLanguage, SymbolParser, rank};

fn index(files: &[(&str, &str)]) -> CodeIndex {
    let mut parser = SymbolParser::default();
    let files = files.iter().map(|(path, source)| {
        let path = PathBuf::from(path);
        let language = SourceLanguage::of_path(&path).unwrap();
        let symbols = Arc::new(parser.parse(language, source.as_bytes(), &|| false).unwrap());
        IndexedFile { path, language, symbols }
    });
    CodeIndex { files: files.collect(), unreadable: Vec::new() }
}

/// Returns the tree in one line: `b(c)` means that `b` leads to `c`; `*` marks a repetition.
fn tree(index: &CodeIndex, name: &str, direction: CallDirection, depth: usize) -> Vec<String> {
    let graph = CallGraph::new(index);
    let found = graph.find(&SymbolName::parse(name));
    found.iter().map(|id| show(&graph, &graph.tree(*id, direction, depth))).collect()
}

fn show(graph: &CallGraph<'_>, trees: &[CallTree]) -> String {
    let one = |tree: &CallTree| {
        let name = &graph.definition(tree.definition).unwrap().name;
        let next = show(graph, &tree.next);
        let next = if next.is_empty() { next } else { format!("({next})") };
        format!("{name}{}{next}", if tree.is_repeated { "*" } else { "" })
    };
    trees.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn calls_are_followed_to_the_given_depth() {
    let index = index(&[
        ("a.rs", "fn top() { middle(); middle(); }\nfn middle() { low(); }"),
        ("b.rs", "fn low() { missing(); }\nfn other() { low(); }"),
    ]);
    assert_eq!(tree(&index, "low", CallDirection::Callers, 1), ["middle other"]);
    assert_eq!(tree(&index, "low", CallDirection::Callers, 3), ["middle(top) other"]);
    assert_eq!(tree(&index, "top", CallDirection::Callees, 5), ["middle(low)"]);
    assert_eq!(tree(&index, "low", CallDirection::Callees, 5), [""]);
}

#[test]
fn recursion_ends() {
    let index = index(&[("a.py", "def a():\n  b()\ndef b():\n  a()\n  b()\n")]);
    assert_eq!(tree(&index, "a", CallDirection::Callees, 5), ["b(a* b*)"]);
}

#[test]
fn a_type_before_the_name_selects_the_method() {
    let index = index(&[(
        "a.rs",
        "impl Cat { fn new() -> Self { Self::feed(); todo!() } fn feed() {} }\n\
         impl Dog { fn new() {} fn feed() {} }\n\
         fn cats() { Cat::new(); }\nfn dogs() { Dog::new(); }",
    )]);
    assert_eq!(tree(&index, "Cat::new", CallDirection::Callers, 1), ["cats"]);
    assert_eq!(tree(&index, "Dog::new", CallDirection::Callers, 1), ["dogs"]);
    assert_eq!(tree(&index, "Cat::feed", CallDirection::Callers, 1), ["new"]);
    assert_eq!(tree(&index, "Dog::feed", CallDirection::Callers, 1), [""]);
    assert_eq!(tree(&index, "new", CallDirection::Callers, 1).len(), 2);
}

#[test]
fn languages_do_not_call_each_other() {
    let index = index(&[("a.rs", "fn run() {}"), ("b.py", "def main():\n  run()\n")]);
    assert_eq!(tree(&index, "run", CallDirection::Callers, 1), [""]);
}

#[test]
fn names_are_read_as_people_write_them() {
    let name = |text| {
        let SymbolName { container, name } = SymbolName::parse(text);
        (container.unwrap_or_default(), name)
    };
    assert_eq!(name("start"), (String::new(), "start".to_owned()));
    assert_eq!(name("crate::net::Server::start()"), ("Server".to_owned(), "start".to_owned()));
    assert_eq!(name(" Server.start "), ("Server".to_owned(), "start".to_owned()));
}

#[test]
fn similar_names_help_after_a_mistake() {
    let index = index(&[("a.rs", "fn start_server() {}\nfn start() {}\nfn stop() {}")]);
    assert_eq!(CallGraph::new(&index).similar_names("Start", 5), ["start", "start_server"]);
}

#[test]
fn used_files_rank_above_their_users() {
    let index = index(&[
        ("a.rs", "fn a() { core(); }"),
        ("b.rs", "fn b() { core(); edge(); }"),
        ("c.rs", "pub fn core() {}\npub fn unused() {}"),
        ("d.rs", "pub fn edge() { core(); }"),
    ]);
    let ranks = rank(&index);
    assert_eq!(ranks.iter().map(|ranked| ranked.file).collect::<Vec<_>>(), [2, 3, 0, 1]);
    let FileRank { definitions, .. } = &ranks[0];
    assert_eq!(definitions, &[3.0, 0.0]);
}
