//! Draws the graph without an external program. Agents are cards with their modes as rows on the left, services are on
//! the right, and each dependency is an edge in the service's colour.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::id_of;
use crate::graph::nodes::{EdgeKind, Node};
use crate::graph::plan::Plan;
use crate::ids::{AgentName, ServiceName};
use crate::manifest::{Readiness, ServiceEntry};

const MARGIN: f64 = 32.0;
const TITLE: f64 = 64.0;
/// Space left of the cards for the delegation arrows.
const DELEGATES: f64 = 72.0;
const CARD: f64 = 300.0;
const CARD_HEAD: f64 = 40.0;
const ROW: f64 = 30.0;
const GAP: f64 = 26.0;
const EDGES: f64 = 300.0;
const BOX: f64 = 230.0;
const BOX_HEIGHT: f64 = 42.0;
const BOX_GAP: f64 = 14.0;
const LEGEND: f64 = 44.0;

/// Distinct on white and for most colour-blind readers. Services use them in turn.
const COLOURS: [&str; 10] =
    ["#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#dc2626", "#4f46e5", "#92400e"];

const STYLE: &str = "text{font-family:Inter,'Helvetica Neue',Helvetica,Arial,sans-serif;fill:#1f2937}\
.title{font-size:20px;font-weight:700}.sub{font-size:13px;fill:#6b7280}.agent{font-size:15px;font-weight:700;fill:#fff}\
.mode{font-size:13px}.small{font-size:11px;fill:#6b7280}.service{font-size:14px;font-weight:600}\
.card{fill:#fff;stroke:#cbd5e1}.head{fill:#334155}.row{stroke:#e2e8f0}.edge{fill:none;stroke-width:1.6;opacity:.75}";

pub(super) fn draw(plan: &Plan) -> String {
    let rows = place_modes(plan);
    let services = order_services(plan, &rows.modes);
    let services_height = services.len() as f64 * (BOX_HEIGHT + BOX_GAP) - BOX_GAP;
    let height = (rows.bottom - TITLE - MARGIN).max(services_height);
    let card_x = MARGIN + DELEGATES;
    let box_x = card_x + CARD + EDGES;
    let width = box_x + BOX + MARGIN * 2.0;
    let total = MARGIN + TITLE + height + LEGEND + MARGIN;
    let first = MARGIN + TITLE + (height - services_height).max(0.0) / 2.0;
    let tops: BTreeMap<&ServiceName, (f64, &str)> = services
        .iter()
        .enumerate()
        .map(|(index, service)| {
            let top = first + index as f64 * (BOX_HEIGHT + BOX_GAP);
            (&service.manifest.name, (top, COLOURS[index % COLOURS.len()]))
        })
        .collect();

    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {total}\" width=\"{width}\" height=\"{total}\">\n\
         <style>{STYLE}</style>\n<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" \
         markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#334155\"/></marker></defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#f8fafc\"/>\n\
         <text class=\"title\" x=\"{card_x}\" y=\"{}\">Agents ask for services</text>\n\
         <text class=\"sub\" x=\"{card_x}\" y=\"{}\">{} agents, {} modes, {} services</text>\n",
        MARGIN + 20.0,
        MARGIN + 40.0,
        plan.agents().count(),
        rows.modes.len(),
        services.len(),
    );
    draw_needs(&mut out, plan, &rows, &tops, card_x, box_x);
    draw_cards(&mut out, plan, &rows, card_x);
    draw_delegates(&mut out, plan, &rows, card_x);
    for service in &services {
        draw_service(&mut out, service, tops[&service.manifest.name], box_x);
    }
    draw_requires(&mut out, plan, &tops, box_x + BOX);
    let legend_y = total - MARGIN;
    _ = writeln!(
        out,
        "<text class=\"small\" x=\"{card_x}\" y=\"{legend_y}\">dashed line: optional · dashed box: planned · +mcp: every \
         service that users or editors bring · a mode without a line has no tools</text>\n</svg>"
    );
    out
}

/// The position of each card and each row.
struct Rows {
    cards: BTreeMap<AgentName, (f64, f64)>,
    /// The vertical middle of each mode's row.
    modes: BTreeMap<Node, f64>,
    bottom: f64,
}

fn place_modes(plan: &Plan) -> Rows {
    let mut rows = Rows { cards: BTreeMap::new(), modes: BTreeMap::new(), bottom: MARGIN + TITLE };
    // Agents that delegate come above those they delegate to.
    let mut agents: Vec<_> = plan.agents().collect();
    agents.sort_by_key(|agent| agent.manifest.delegates.is_empty());
    for agent in agents {
        let top = if rows.cards.is_empty() { rows.bottom } else { rows.bottom + GAP };
        let height = CARD_HEAD + plan.modes_of(agent).count() as f64 * ROW + 6.0;
        for (index, entry) in plan.modes_of(agent).enumerate() {
            let middle = top + CARD_HEAD + (index as f64 + 0.5) * ROW + 2.0;
            rows.modes.insert(Node::Mode(id_of(agent, entry)), middle);
        }
        rows.cards.insert(agent.manifest.name.clone(), (top, height));
        rows.bottom = top + height;
    }
    rows
}

/// Sorts services close to the modes that need them, so that few edges cross. Unused services come last.
fn order_services<'a>(plan: &'a Plan, modes: &BTreeMap<Node, f64>) -> Vec<&'a ServiceEntry> {
    let mut services: Vec<_> = plan
        .services()
        .filter(|service| plan.reaches(service))
        .map(|service| {
            let users = plan.graph().to(&Node::Service(service.manifest.name.clone()));
            let heights: Vec<_> = users.filter_map(|(_, node)| modes.get(node)).collect();
            let middle =
                if heights.is_empty() { f64::MAX } else { heights.iter().copied().sum::<f64>() / heights.len() as f64 };
            (middle, service)
        })
        .collect();
    services.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.manifest.name.cmp(&b.1.manifest.name)));
    services.into_iter().map(|(_, service)| service).collect()
}

fn draw_needs(
    out: &mut String,
    plan: &Plan,
    rows: &Rows,
    tops: &BTreeMap<&ServiceName, (f64, &str)>,
    card_x: f64,
    box_x: f64,
) {
    for (from, edge, to) in plan.graph().edges() {
        let (EdgeKind::Needs { optional }, Node::Service(service)) = (&edge.kind, to) else { continue };
        let (Some(y1), Some((top, colour))) = (rows.modes.get(from), tops.get(service)) else { continue };
        let (x1, x2, y2) = (card_x + CARD, box_x, top + BOX_HEIGHT / 2.0);
        let bend = EDGES * 0.5;
        let dash = if *optional { " stroke-dasharray=\"5 4\"" } else { "" };
        _ = writeln!(
            out,
            "<path class=\"edge\" stroke=\"{colour}\"{dash} d=\"M{x1} {y1}C{} {y1} {} {y2} {x2} {y2}\"/>",
            x1 + bend,
            x2 - bend
        );
    }
}

fn draw_cards(out: &mut String, plan: &Plan, rows: &Rows, x: f64) {
    for agent in plan.agents() {
        let (top, height) = rows.cards[&agent.manifest.name];
        let title = agent.manifest.title.as_deref().unwrap_or(agent.manifest.name.as_str());
        let label = if plan.is_unfenced(agent) { " (unfenced)" } else { "" };
        _ = writeln!(
            out,
            "<rect class=\"card\" x=\"{x}\" y=\"{top}\" width=\"{CARD}\" height=\"{height}\" rx=\"10\"/>\n\
             <path class=\"head\" d=\"M{x} {}v-{}a10 10 0 0 1 10 -10h{}a10 10 0 0 1 10 10v{}z\"/>\n\
             <text class=\"agent\" x=\"{}\" y=\"{}\">{}</text>",
            top + CARD_HEAD,
            CARD_HEAD - 10.0,
            CARD - 20.0,
            CARD_HEAD - 10.0,
            x + 14.0,
            top + 25.0,
            shorten(title, 28 - label.len()) + label,
        );
        for (index, entry) in plan.modes_of(agent).enumerate() {
            let id = id_of(agent, entry);
            let y = rows.modes[&Node::Mode(id.clone())];
            if index > 0 {
                let line = y - ROW / 2.0;
                _ = writeln!(out, "<path class=\"row\" d=\"M{} {line}h{}\"/>", x + 12.0, CARD - 24.0);
            }
            _ = writeln!(out, "<text class=\"mode\" x=\"{}\" y=\"{}\">{}</text>", x + 14.0, y + 4.5, entry.mode.slug);
            let scope = plan.mode(&id).map(|(_, scope)| scope);
            let badge = match scope {
                _ if entry.mode.internal => "internal, no tools",
                Some(scope) if scope.lists_mcp() => "+mcp",
                Some(scope) if scope.rules().is_empty() => "no tools",
                _ => continue,
            };
            _ = writeln!(
                out,
                "<text class=\"small\" text-anchor=\"end\" x=\"{}\" y=\"{}\">{badge}</text>",
                x + CARD - 14.0,
                y + 4.0
            );
        }
    }
}

fn draw_delegates(out: &mut String, plan: &Plan, rows: &Rows, x: f64) {
    for (lane, (from, _, to)) in
        plan.graph().edges().filter(|(_, edge, _)| matches!(edge.kind, EdgeKind::Delegates { .. })).enumerate()
    {
        let (Node::Agent(from), Node::Agent(to)) = (from, to) else { continue };
        // A limited plan does not have all agents and services.
        let (Some((y1, _)), Some((y2, _))) = (rows.cards.get(from), rows.cards.get(to)) else { continue };
        let (y1, y2) = (y1 + CARD_HEAD / 2.0, y2 + CARD_HEAD / 2.0);
        let bend = x - 24.0 - (lane % 4) as f64 * 12.0;
        _ = writeln!(
            out,
            "<path class=\"edge\" stroke=\"#334155\" marker-end=\"url(#tip)\" d=\"M{x} {y1}C{bend} {y1} {bend} {y2} {x} {y2}\"/>"
        );
    }
}

fn draw_service(out: &mut String, service: &ServiceEntry, (top, colour): (f64, &str), x: f64) {
    let manifest = &service.manifest;
    let dash = if manifest.status == Readiness::Planned { " stroke-dasharray=\"5 4\"" } else { "" };
    let about = match (&manifest.owner, manifest.groups.len()) {
        (Some(owner), _) => format!("owned by the {owner}"),
        (None, 0) => "no declared groups".to_owned(),
        (None, _) => manifest.groups.keys().map(|group| group.as_str()).collect::<Vec<_>>().join(" · "),
    };
    _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{top}\" width=\"{BOX}\" height=\"{BOX_HEIGHT}\" rx=\"21\" fill=\"#fff\" stroke=\"{colour}\" \
         stroke-width=\"2\"{dash}/>\n<text class=\"service\" x=\"{tx}\" y=\"{}\">{}</text>\n\
         <text class=\"small\" x=\"{tx}\" y=\"{}\">{}</text>",
        top + 18.0,
        shorten(manifest.name.as_str(), 22),
        top + 33.0,
        shorten(&about, 34),
        tx = x + 20.0,
    );
}

fn draw_requires(out: &mut String, plan: &Plan, tops: &BTreeMap<&ServiceName, (f64, &str)>, x: f64) {
    for (from, edge, to) in plan.graph().edges() {
        let (EdgeKind::Requires { .. }, Node::Service(from), Node::Service(to)) = (&edge.kind, from, to) else {
            continue;
        };
        let (Some((y1, _)), Some((y2, _))) = (tops.get(from), tops.get(to)) else { continue };
        let (y1, y2) = (y1 + BOX_HEIGHT / 2.0, y2 + BOX_HEIGHT / 2.0);
        let bend = x + MARGIN;
        _ = writeln!(
            out,
            "<path class=\"edge\" stroke=\"#334155\" marker-end=\"url(#tip)\" d=\"M{x} {y1}C{bend} {y1} {bend} {y2} {x} {y2}\"/>"
        );
    }
}

/// Truncates a title, which is third-party text, and escapes it for XML.
fn shorten(text: &str, length: usize) -> String {
    // XML also forbids these two characters, although they are not control characters.
    let allowed = |c: &char| !c.is_control() && !matches!(c, '\u{FFFE}' | '\u{FFFF}');
    let mut short: String = text.chars().filter(allowed).take(length).collect();
    if text.chars().count() > length {
        short.push('…');
    }
    short.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
