//! Renders a plan as text for a terminal, Mermaid and DOT for other tools, SVG for a slide, or JSON for programs.

mod svg;

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::nodes::{EdgeKind, Node};
use super::plan::Plan;
use super::sandbox_view::{profile_groups, profile_json};
use crate::ids::ModeId;
use crate::manifest::{AgentEntry, DelegateEntry, ModeEntry, Readiness};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Text,
    Dot,
    Mermaid,
    Svg,
    Json,
}

pub fn render(plan: &Plan, format: Format) -> String {
    match format {
        Format::Text => text(plan),
        Format::Dot => dot(plan),
        Format::Mermaid => mermaid(plan),
        Format::Svg => svg::draw(plan),
        Format::Json => format!("{:#}\n", graph_json(plan)),
    }
}

fn id_of(agent: &AgentEntry, mode: &ModeEntry) -> ModeId {
    ModeId::new(agent.manifest.name.clone(), mode.mode.slug.clone())
}

/// Returns the name of an agent, marked `(unfenced)` if it is an external agent without a sandbox.
fn label(plan: &Plan, agent: &AgentEntry) -> String {
    let label = if plan.is_unfenced(agent) { " (unfenced)" } else { "" };
    format!("{}{label}", agent.manifest.name)
}

fn text(plan: &Plan) -> String {
    let mut out = String::new();
    for agent in plan.agents() {
        let delegates: Vec<_> = agent.manifest.delegates.iter().map(DelegateEntry::pattern).collect();
        let delegates = if delegates.is_empty() { String::new() } else { format!("  → {}", delegates.join(", ")) };
        _ = writeln!(out, "{}{delegates}", label(plan, agent));
        for (index, entry) in agent.modes.iter().enumerate() {
            let branch = if index + 1 == agent.modes.len() { "└─" } else { "├─" };
            let id = id_of(agent, entry);
            let mut needs: Vec<String> = plan
                .graph()
                .from(&Node::Mode(id.clone()))
                .map(|(edge, node)| match edge.kind {
                    EdgeKind::Needs { optional: true } => format!("{node}?"),
                    _ => node.to_string(),
                })
                .collect();
            if plan.mode(&id).is_some_and(|(_, scope)| scope.lists_mcp()) {
                needs.push("+mcp".to_owned());
            }
            if needs.is_empty() {
                needs.push("(nothing)".to_owned());
            }
            let internal = if entry.mode.internal { "  (internal)" } else { "" };
            _ = writeln!(out, "{branch} {:<16} {}{internal}", entry.mode.slug.as_str(), needs.join(" "));
        }
    }
    _ = writeln!(out, "services");
    let count = plan.services().count();
    for (index, service) in plan.services().enumerate() {
        let branch = if index + 1 == count { "└─" } else { "├─" };
        let mut notes = Vec::new();
        if service.manifest.status == Readiness::Planned {
            notes.push("planned".to_owned());
        }
        if let Some(owner) = &service.manifest.owner {
            notes.push(format!("owned by {owner}"));
        }
        if service.user_installed() {
            notes.push(format!("{}", service.layer));
        }
        for (role, required) in service.manifest.requires.roles() {
            let role = if role.as_str() == required.as_str() { String::new() } else { format!(" as {role}") };
            notes.push(format!("requires {required}{role}"));
        }
        let notes = if notes.is_empty() { String::new() } else { format!("  ({})", notes.join(", ")) };
        _ = writeln!(out, "{branch} {}{notes}", service.manifest.name);
    }
    let groups = profile_groups(plan);
    _ = writeln!(out, "sandbox");
    for (index, (names, sandbox)) in groups.iter().enumerate() {
        let branch = if index + 1 == groups.len() { "└─" } else { "├─" };
        _ = writeln!(out, "{branch} {}\n{}  {sandbox}", names.join(", "), if branch == "└─" { " " } else { "│" });
    }
    _ = writeln!(out, "\n? optional   +mcp every service that you or your editor bring");
    out
}

fn dot(plan: &Plan) -> String {
    let mut out = String::from("digraph skein {\n  rankdir=LR;\n  node [fontname=\"Helvetica\"];\n");
    for agent in plan.agents() {
        let name = &agent.manifest.name;
        let label = label(plan, agent);
        _ = writeln!(out, "  \"agent:{name}\" [label=\"{label}\", shape=box, style=bold];");
        for entry in &agent.modes {
            let id = id_of(agent, entry);
            let style = if entry.mode.internal { ", style=dashed" } else { "" };
            _ = writeln!(out, "  \"mode:{id}\" [label=\"{}\", shape=box{style}];", entry.mode.slug);
        }
    }
    for service in plan.services() {
        let name = &service.manifest.name;
        let style = if service.manifest.status == Readiness::Planned { ", style=dashed" } else { "" };
        _ = writeln!(out, "  \"service:{name}\" [label=\"{name}\", shape=ellipse{style}];");
    }
    for (from, edge, to) in plan.graph().edges() {
        let attributes = match &edge.kind {
            EdgeKind::Has => "arrowhead=none".to_owned(),
            EdgeKind::Needs { optional: true } => "style=dashed".to_owned(),
            EdgeKind::Needs { optional: false } => String::new(),
            EdgeKind::Requires { role } => format!("label=\"{role}\""),
            EdgeKind::Delegates { pattern } => format!("label=\"{pattern}\", color=blue"),
        };
        _ = writeln!(out, "  \"{}\" -> \"{}\" [{attributes}];", key(from), key(to));
    }
    out.push_str("}\n");
    out
}

fn mermaid(plan: &Plan) -> String {
    let plain = |node: &Node| key(node).replace([':', '/', '-'], "_");
    let mut out = String::from("flowchart LR\n");
    for agent in plan.agents() {
        _ = writeln!(
            out,
            "  subgraph {}[\"{}\"]",
            plain(&Node::Agent(agent.manifest.name.clone())),
            label(plan, agent)
        );
        for entry in &agent.modes {
            _ = writeln!(out, "    {}[\"{}\"]", plain(&Node::Mode(id_of(agent, entry))), entry.mode.slug);
        }
        out.push_str("  end\n");
    }
    for service in plan.services() {
        let node = plain(&Node::Service(service.manifest.name.clone()));
        _ = writeln!(out, "  {node}([\"{}\"])", service.manifest.name);
    }
    for (from, edge, to) in plan.graph().edges() {
        let arrow = match &edge.kind {
            EdgeKind::Has => continue,
            EdgeKind::Needs { optional: true } => "-.->".to_owned(),
            EdgeKind::Needs { optional: false } => "-->".to_owned(),
            EdgeKind::Requires { role } => format!("-->|{role}|"),
            EdgeKind::Delegates { pattern } => format!("==>|\"{pattern}\"|"),
        };
        _ = writeln!(out, "  {} {arrow} {}", plain(from), plain(to));
    }
    out
}

fn key(node: &Node) -> String {
    match node {
        Node::Agent(agent) => format!("agent:{agent}"),
        Node::Mode(mode) => format!("mode:{mode}"),
        Node::Service(service) => format!("service:{service}"),
    }
}

fn graph_json(plan: &Plan) -> Value {
    let mut nodes = Vec::new();
    for agent in plan.agents() {
        let node = key(&Node::Agent(agent.manifest.name.clone()));
        nodes.push(json!({
            "id": node, "kind": "agent", "name": agent.manifest.name, "layer": agent.layer, "file": agent.source.file,
            "unfenced": plan.is_unfenced(agent),
            "sandbox": profile_json(plan.agent_sandbox(&agent.manifest.name)),
        }));
        for entry in &agent.modes {
            let id = id_of(agent, entry);
            let mcp = plan.mode(&id).is_some_and(|(_, scope)| scope.lists_mcp());
            nodes.push(json!({
                "id": key(&Node::Mode(id.clone())), "kind": "mode", "name": id, "internal": entry.mode.internal, "mcp": mcp,
                "tool_groups": entry.mode.tool_groups,
                "sandbox": profile_json(plan.mode_sandbox(&id)),
            }));
        }
    }
    for service in plan.services() {
        nodes.push(json!({
            "id": key(&Node::Service(service.manifest.name.clone())), "kind": "service", "name": service.manifest.name,
            "status": service.manifest.status, "owner": service.manifest.owner,
            "layer": service.layer, "file": service.source.file,
            "sandbox": profile_json(plan.service_sandbox(&service.manifest.name)),
        }));
    }
    let edges: Vec<_> = plan
        .graph()
        .edges()
        .map(|(from, edge, to)| {
            let mut value = json!({"from": key(from), "to": key(to)});
            let kind = match &edge.kind {
                EdgeKind::Has => "has",
                EdgeKind::Needs { optional } => {
                    value["optional"] = json!(optional);
                    "needs"
                }
                EdgeKind::Requires { role } => {
                    value["role"] = json!(role);
                    "requires"
                }
                EdgeKind::Delegates { pattern } => {
                    value["pattern"] = json!(pattern);
                    "delegates"
                }
            };
            value["kind"] = json!(kind);
            value
        })
        .collect();
    json!({"nodes": nodes, "edges": edges})
}
