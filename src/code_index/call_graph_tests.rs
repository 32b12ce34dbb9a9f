//! Specifies callers, callees and ranks on small programs.

use super::*;
use crate::code_index::CodeRank;
use crate::code_index::testing::SourceTree;

/// Returns the tree in one line: `b(c)` means that `b` leads to `c`; `*` marks a repetition.
fn tree(tree: &SourceTree, name: &str, direction: CallDirection, depth: usize) -> Vec<String> {
    tree.with_index(None, |index| {
        let graph = CallGraph::new(index);
        let found = graph.find(&SymbolName::parse(name), 99);
        found.iter().map(|id| show(&graph, &graph.tree(*id, direction, depth))).collect()
    })
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
    let program = SourceTree::new(&[
        ("a.rs", "fn top() { middle(); middle(); }\nfn middle() { low(); }"),
        ("b.rs", "fn low() { missing(); }\nfn other() { low(); }"),
    ]);
    assert_eq!(tree(&program, "low", CallDirection::Callers, 1), ["middle other"]);
    assert_eq!(tree(&program, "low", CallDirection::Callers, 3), ["middle(top) other"]);
    assert_eq!(tree(&program, "top", CallDirection::Callees, 5), ["middle(low)"]);
    assert_eq!(tree(&program, "low", CallDirection::Callees, 5), [""]);
}

#[test]
fn recursion_ends() {
    let program = SourceTree::new(&[("a.py", "def a():\n  b()\ndef b():\n  a()\n  b()\n")]);
    assert_eq!(tree(&program, "a", CallDirection::Callees, 5), ["b(a* b*)"]);
}

#[test]
fn a_type_before_the_name_selects_the_method() {
    let program = SourceTree::new(&[(
        "a.rs",
        "impl Cat { fn new() -> Self { Self::feed(); todo!() } fn feed() {} }\n\
         impl Dog { fn new() {} fn feed() {} }\n\
         fn cats() { Cat::new(); }\nfn dogs() { Dog::new(); }",
    )]);
    assert_eq!(tree(&program, "Cat::new", CallDirection::Callers, 1), ["cats"]);
    assert_eq!(tree(&program, "Dog::new", CallDirection::Callers, 1), ["dogs"]);
    assert_eq!(tree(&program, "Cat::feed", CallDirection::Callers, 1), ["new"]);
    assert_eq!(tree(&program, "Dog::feed", CallDirection::Callers, 1), [""]);
    assert_eq!(tree(&program, "new", CallDirection::Callers, 1).len(), 2);
}

#[test]
fn languages_do_not_call_each_other() {
    let program = SourceTree::new(&[("a.rs", "fn run() {}"), ("b.py", "def main():\n  run()\n")]);
    assert_eq!(tree(&program, "run", CallDirection::Callers, 1), [""]);
}

#[test]
fn only_files_that_may_contain_the_answer_are_parsed() {
    let program = SourceTree::new(&[
        ("a.rs", "impl Cat { fn new() -> Self { purr() } }"),
        ("b.rs", "impl Dog { fn new() -> Self { todo!() } }"),
        ("c.rs", "fn cats() { Cat::new(); }"),
        ("d.rs", "fn dogs() { Dog::new(); }"),
        ("e.rs", "fn purr() {} // new"),
        ("f.rs", "fn hiss() { purr(); }"),
    ]);
    program.with_index(None, |index| {
        let graph = CallGraph::new(index);
        let found = graph.find(&SymbolName::parse("Cat::new"), 99);
        let [id] = found[..] else { panic!("{found:?}") };
        assert_eq!(show(&graph, &graph.tree(id, CallDirection::Callers, 1)), "cats");
        assert_eq!(show(&graph, &graph.tree(id, CallDirection::Callees, 1)), "purr");
        let parsed: Vec<_> = index.files.iter().filter(|file| file.is_parsed()).collect();
        let parsed: Vec<_> = parsed.iter().map(|file| file.source.path.to_str().unwrap()).collect();
        // The comment in `e.rs` is a word as any other.
        assert_eq!(parsed, ["a.rs", "c.rs", "e.rs"]);
    });
}

#[test]
fn common_names_are_followed_only_with_a_type() {
    let mut files: Vec<_> = (0..=MAX_DEFINERS)
        .map(|number| (format!("t{number:02}.rs"), format!("impl T{number} {{ fn get(&self) {{}} }}")))
        .collect();
    files.push(("use.rs".to_owned(), "fn plain() { x.get(); }\nfn exact() { T3::get(); }".to_owned()));
    files.push(("own.rs".to_owned(), "impl Own { fn get(&self) { last() } }\nfn near() { o.get(); }".to_owned()));
    files.push(("z.rs".to_owned(), "fn last() {}".to_owned()));
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let program = SourceTree::new(&files);
    assert_eq!(tree(&program, "plain", CallDirection::Callees, 1), [""]);
    assert_eq!(tree(&program, "exact", CallDirection::Callees, 1), ["get"]);
    assert_eq!(tree(&program, "near", CallDirection::Callees, 1), ["get"], "the file defines the name itself");
    assert_eq!(tree(&program, "T3::get", CallDirection::Callers, 1), ["near plain exact"], "it was asked for");
    assert_eq!(tree(&program, "last", CallDirection::Callers, 2), ["get(near)"], "`plain` is not followed");
    program.with_index(None, |index| {
        let graph = CallGraph::new(index);
        let common = |name| graph.common_callees(graph.find(&SymbolName::parse(name), 1)[0]);
        assert_eq!((common("plain"), common("exact"), common("near")), (vec!["get"], vec![], vec![]));
    });
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
    let program = SourceTree::new(&[("a.rs", "fn start_server() {}\nfn start() {}\nfn stop() {}")]);
    program.with_index(None, |index| {
        let graph = CallGraph::new(index);
        assert_eq!(graph.similar_names("Start", 5), ["start", "start_server"]);
        assert_eq!(graph.similar_names("restart_now", 5), ["start"]);
        assert!(graph.similar_names("other", 5).is_empty());
    });
}

#[test]
fn used_files_rank_above_their_users() {
    let program = SourceTree::new(&[
        ("a.rs", "fn a() { core(); }"),
        ("b.rs", "fn b() { core(); edge(); }"),
        ("c.rs", "pub fn core() {}\npub fn unused() {}"),
        ("d.rs", "pub fn edge() { core(); }"),
    ]);
    program.with_index(None, |index| {
        let rank = CodeRank::new(index);
        assert_eq!(rank.files, [2, 3, 0, 1]);
        assert_eq!([rank.users(2, "core"), rank.users(2, "unused")], [3.0, 0.0]);
        assert!(index.files.iter().all(|file| !file.is_parsed()));
    });
}
