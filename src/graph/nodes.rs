//! Builds the service graph: agents, modes and services as nodes; `has`, `needs`, `requires` and `delegates` as edges.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

use crate::diagnostic::SourceLocation;
use crate::ids::{AgentName, ModeId, RoleName, ServiceName};
use crate::manifest::{DependencyKind, DocumentPath, Manifests, SourceFile};

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    Agent(AgentName),
    Mode(ModeId),
    Service(ServiceName),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Agent(agent) => agent.fmt(f),
            Node::Mode(mode) => mode.fmt(f),
            Node::Service(service) => service.fmt(f),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EdgeKind {
    /// An agent has a mode.
    Has,
    /// A mode needs a service.
    Needs { optional: bool },
    /// A service requires another in a role.
    Requires { role: RoleName },
    /// An agent may delegate to modes of another agent.
    Delegates { pattern: String },
}

#[derive(Debug, Clone)]
pub struct Edge {
    pub kind: EdgeKind,
    source: Arc<SourceFile>,
    path: DocumentPath,
}

impl Edge {
    /// Returns the location that defines the edge.
    pub fn place(&self) -> SourceLocation {
        self.source.place(&self.path)
    }
}

#[derive(Debug, Default)]
pub struct ServiceGraph {
    graph: DiGraph<Node, Edge>,
    index: HashMap<Node, NodeIndex>,
}

impl ServiceGraph {
    /// Builds the graph. Skips edges to unknown names, which `checks` reports.
    pub(super) fn build(manifests: &Manifests) -> Self {
        let mut graph = Self::default();
        for name in manifests.services.keys() {
            graph.node(Node::Service(name.clone()));
        }
        for name in manifests.agents.keys() {
            graph.node(Node::Agent(name.clone()));
        }
        for (name, entry) in &manifests.services {
            for (position, (role, required)) in entry.manifest.requires.roles().into_iter().enumerate() {
                let at = entry.path.key("requires");
                let path = match &entry.manifest.requires {
                    crate::manifest::Requires::Services(_) => at.index(position),
                    crate::manifest::Requires::Roles(_) => at.key(role.as_str()),
                };
                let edge = Edge { kind: EdgeKind::Requires { role }, source: Arc::clone(&entry.source), path };
                graph.edge(&Node::Service(name.clone()), &Node::Service(required.clone()), edge);
            }
        }
        for (name, entry) in &manifests.agents {
            let agent = Node::Agent(name.clone());
            for mode in &entry.modes {
                let node = Node::Mode(ModeId::new(name.clone(), mode.mode.slug.clone()));
                graph.node(node.clone());
                let has = Edge { kind: EdgeKind::Has, source: Arc::clone(&mode.source), path: mode.path.clone() };
                graph.edge(&agent, &node, has);
                for (position, dependency) in mode.mode.dependencies.iter().enumerate() {
                    if dependency.kind() == DependencyKind::Tool {
                        let needs = Edge {
                            kind: EdgeKind::Needs { optional: dependency.optional() },
                            source: Arc::clone(&mode.source),
                            path: mode.path.key("dependencies").index(position),
                        };
                        graph.edge(&node, &Node::Service(dependency.name().clone()), needs);
                    }
                }
            }
            for (position, delegate) in entry.manifest.delegates.iter().enumerate() {
                let pattern = delegate.pattern();
                let wanted = pattern.split_once('/').map_or("", |(agent, _)| agent);
                let is_meant = |name: &&AgentName| match wanted {
                    // All agents but this one.
                    "*" => **name != entry.manifest.name,
                    wanted => name.as_str() == wanted,
                };
                for target in manifests.agents.keys().filter(is_meant) {
                    let delegates = Edge {
                        kind: EdgeKind::Delegates { pattern: pattern.to_owned() },
                        source: Arc::clone(&entry.source),
                        path: DocumentPath::root().key("delegates").index(position),
                    };
                    graph.edge(&agent, &Node::Agent(target.clone()), delegates);
                }
            }
        }
        graph
    }

    fn node(&mut self, node: Node) {
        if !self.index.contains_key(&node) {
            let index = self.graph.add_node(node.clone());
            self.index.insert(node, index);
        }
    }

    fn edge(&mut self, from: &Node, to: &Node, edge: Edge) {
        if let (Some(from), Some(to)) = (self.index.get(from), self.index.get(to)) {
            self.graph.add_edge(*from, *to, edge);
        }
    }

    pub(super) fn petgraph(&self) -> &DiGraph<Node, Edge> {
        &self.graph
    }

    /// Returns, for each service, the length of the longest chain of services it requires. The graph must have no
    /// cycles.
    pub(super) fn service_heights(&self) -> HashMap<ServiceName, usize> {
        let mut heights = HashMap::new();
        // In topological order every node precedes its targets; in reverse, the targets of each node are done.
        for index in petgraph::algo::toposort(&self.graph, None).unwrap_or_default().into_iter().rev() {
            if let Node::Service(service) = &self.graph[index] {
                let required = self.graph.neighbors(index).filter_map(|target| match &self.graph[target] {
                    Node::Service(required) => heights.get(required),
                    Node::Agent(_) | Node::Mode(_) => None,
                });
                let height = required.max().map_or(0, |height| height + 1);
                heights.insert(service.clone(), height);
            }
        }
        heights
    }

    /// Returns the edges that leave a node, in source order.
    pub fn from<'a>(&'a self, node: &Node) -> impl Iterator<Item = (&'a Edge, &'a Node)> + use<'a> {
        let mut edges: Vec<_> = self
            .index
            .get(node)
            .into_iter()
            .flat_map(|index| self.graph.edges_directed(*index, Direction::Outgoing))
            .collect();
        edges.sort_by_key(|edge| edge.id());
        edges.into_iter().map(|edge| (edge.weight(), &self.graph[edge.target()]))
    }

    /// Returns the edges that lead to a node, in source order.
    pub fn to<'a>(&'a self, node: &Node) -> impl Iterator<Item = (&'a Edge, &'a Node)> + use<'a> {
        let mut edges: Vec<_> = self
            .index
            .get(node)
            .into_iter()
            .flat_map(|index| self.graph.edges_directed(*index, Direction::Incoming))
            .collect();
        edges.sort_by_key(|edge| edge.id());
        edges.into_iter().map(|edge| (edge.weight(), &self.graph[edge.source()]))
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.graph.node_weights()
    }

    pub fn edges(&self) -> impl Iterator<Item = (&Node, &Edge, &Node)> {
        self.graph.edge_references().map(|edge| (&self.graph[edge.source()], edge.weight(), &self.graph[edge.target()]))
    }
}
