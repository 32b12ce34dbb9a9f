//! Reports cycles of services that require each other or agents that delegate to each other. A report shows the whole
//! chain with the location of every edge.

use std::collections::{HashMap, HashSet, VecDeque};

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{EdgeIndex, NodeIndex};
use petgraph::visit::EdgeRef;

use super::nodes::{EdgeKind, ServiceGraph};
use crate::diagnostic::Diagnostic;

pub(super) fn check(graph: &ServiceGraph, found: &mut Vec<Diagnostic>) {
    // Not Tarjan's algorithm: petgraph's version recurses, and a long chain of services would overflow the stack.
    for component in kosaraju_scc(graph.petgraph()) {
        let graph = graph.petgraph();
        let members: HashSet<_> = component.iter().copied().collect();
        // Starting at the first name makes the report deterministic.
        let Some(start) = component.into_iter().min_by_key(|index| &graph[*index]) else { continue };
        let Some(chain) = shortest_cycle(graph, start, &members) else { continue };
        found.push(describe(graph, &chain));
    }
}

/// Returns the edges of the shortest path from `start` back to itself. `None` if there is no such path.
fn shortest_cycle(
    graph: &petgraph::graph::DiGraph<super::Node, super::Edge>,
    start: NodeIndex,
    members: &HashSet<NodeIndex>,
) -> Option<Vec<EdgeIndex>> {
    let mut reached: HashMap<NodeIndex, EdgeIndex> = HashMap::new();
    let mut pending = VecDeque::from([start]);
    while let Some(node) = pending.pop_front() {
        for edge in graph.edges(node).filter(|edge| members.contains(&edge.target())) {
            if edge.target() == start {
                let mut chain = vec![edge.id()];
                let mut at = node;
                while at != start {
                    let previous = reached[&at];
                    chain.push(previous);
                    at = graph.edge_endpoints(previous)?.0;
                }
                chain.reverse();
                return Some(chain);
            }
            if let std::collections::hash_map::Entry::Vacant(entry) = reached.entry(edge.target()) {
                entry.insert(edge.id());
                pending.push_back(edge.target());
            }
        }
    }
    None
}

fn describe(graph: &petgraph::graph::DiGraph<super::Node, super::Edge>, chain: &[EdgeIndex]) -> Diagnostic {
    let ends = |edge: EdgeIndex| graph.edge_endpoints(edge).unwrap_or_default();
    let mut names: Vec<_> = chain.iter().map(|edge| graph[ends(*edge).0].to_string()).collect();
    names.push(names[0].clone());
    // Only services require and only agents delegate, so all edges of a cycle have one kind.
    let (what, field) = match graph[chain[0]].kind {
        EdgeKind::Delegates { .. } => ("agents delegate", "delegates"),
        EdgeKind::Has | EdgeKind::Needs { .. } | EdgeKind::Requires { .. } => {
            ("services require each other", "requires")
        }
    };
    let mut diagnostic = Diagnostic::error(
        "E110",
        graph[chain[0]].place(),
        format!("{what} in a circle: {}", names.join(" → ")),
        format!("remove one of these entries of `{field}`"),
    );
    for edge in chain {
        let (from, to) = ends(*edge);
        let verb = match graph[*edge].kind {
            EdgeKind::Has => "has",
            EdgeKind::Needs { .. } => "needs",
            EdgeKind::Requires { .. } => "requires",
            EdgeKind::Delegates { .. } => "delegates to",
        };
        diagnostic = diagnostic.with_related(graph[*edge].place(), format!("`{}` {verb} `{}`", graph[from], graph[to]));
    }
    diagnostic
}
