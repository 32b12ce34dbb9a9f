//! Reads flowcharts and state diagrams.

use std::collections::HashMap;

use super::{Line, fail};
use crate::chart::error::ChartError;

const MAX_NODES: usize = 400;
const MAX_EDGES: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeShape {
    Box,
    Round,
    Circle,
    Diamond,
    Hexagon,
    Cylinder,
    /// Start or end of a state diagram.
    Dot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineStyle {
    Solid,
    Dotted,
    Thick,
    Invisible,
}

#[derive(Debug, Clone)]
pub(super) struct FlowNode {
    pub(super) text: String,
    pub(super) shape: NodeShape,
    /// Index of its subgraph.
    pub(super) group: Option<usize>,
}

#[derive(Debug, Clone)]
pub(super) struct FlowEdge {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) text: String,
    pub(super) style: LineStyle,
    pub(super) head: bool,
    pub(super) tail: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Flowchart {
    /// Left to right instead of top to bottom.
    pub(super) horizontal: bool,
    /// Bottom to top, or right to left.
    pub(super) backward: bool,
    pub(super) nodes: Vec<FlowNode>,
    pub(super) edges: Vec<FlowEdge>,
    pub(super) groups: Vec<String>,
    ids: HashMap<String, usize>,
}

impl Flowchart {
    fn node(&mut self, id: &str, label: Option<(String, NodeShape)>, group: Option<usize>) -> usize {
        let index = *self.ids.entry(id.to_owned()).or_insert_with(|| {
            self.nodes.push(FlowNode { text: id.to_owned(), shape: NodeShape::Box, group });
            self.nodes.len() - 1
        });
        let node = &mut self.nodes[index];
        if let Some((text, shape)) = label {
            (node.text, node.shape) = (text, shape);
        }
        node.group = node.group.or(group);
        index
    }

    fn check(self, line: usize) -> Result<Self, ChartError> {
        if self.nodes.len() > MAX_NODES || self.edges.len() > MAX_EDGES {
            return fail(line, format!("more than {MAX_NODES} nodes or {MAX_EDGES} links; split the diagram"));
        }
        Ok(self)
    }
}

pub(super) fn read_flowchart(number: usize, rest: &str, body: &[Line<'_>]) -> Result<Flowchart, ChartError> {
    let (direction, first) = rest.split_once(';').unwrap_or((rest, ""));
    let mut chart = Flowchart::default();
    (chart.horizontal, chart.backward) = match direction.trim() {
        "" | "TD" | "TB" => (false, false),
        "BT" => (false, true),
        "LR" => (true, false),
        "RL" => (true, true),
        other => return fail(number, format!("`{other}` is no direction; use TD, BT, LR or RL")),
    };
    let mut open: Vec<usize> = Vec::new();
    for &(line, text) in std::iter::once(&(number, first)).chain(body) {
        for statement in split_statements(text) {
            read_statement(&mut chart, &mut open, line, statement)?;
        }
    }
    if let Some(group) = open.last() {
        return fail(body.last().map_or(1, |line| line.0), format!("subgraph `{}` has no `end`", chart.groups[*group]));
    }
    chart.check(number)
}

/// Splits at semicolons outside of quotes.
fn split_statements(text: &str) -> Vec<&str> {
    let mut statements = Vec::new();
    let (mut start, mut quoted) = (0, false);
    for (at, letter) in text.char_indices() {
        quoted ^= letter == '"';
        if letter == ';' && !quoted {
            statements.push(text[start..at].trim());
            start = at + 1;
        }
    }
    statements.push(text[start..].trim());
    statements.retain(|statement| !statement.is_empty());
    statements
}

fn read_statement(chart: &mut Flowchart, open: &mut Vec<usize>, line: usize, text: &str) -> Result<(), ChartError> {
    match text.split_whitespace().next().unwrap_or_default() {
        "subgraph" => {
            let name = text["subgraph".len()..].trim();
            let title = name.split_once('[').map_or(name, |(_, title)| title.trim_end_matches(']'));
            chart.groups.push(label_text(title));
            open.push(chart.groups.len() - 1);
            return Ok(());
        }
        "end" => {
            return match open.pop() {
                Some(_) => Ok(()),
                None => fail(line, "`end` without a `subgraph`"),
            };
        }
        // These change the look or the behaviour, not what the diagram says.
        "direction" | "style" | "classDef" | "class" | "linkStyle" | "click" | "accTitle:" | "accDescr:" => {
            return Ok(());
        }
        _ => {}
    }
    let group = open.last().copied();
    let mut rest = text;
    let mut before: Option<(Vec<usize>, EdgeToken)> = None;
    loop {
        let nodes = read_nodes(chart, &mut rest, group, line)?;
        if let Some((sources, edge)) = before.take() {
            for &from in &sources {
                for &to in &nodes {
                    let EdgeToken { text, style, head, tail } = edge.clone();
                    chart.edges.push(FlowEdge { from, to, text, style, head, tail });
                }
            }
            if chart.edges.len() > MAX_EDGES {
                return fail(line, format!("more than {MAX_EDGES} links; split the diagram"));
            }
        }
        if rest.trim().is_empty() {
            return Ok(());
        }
        let Some(edge) = read_edge(&mut rest) else {
            let near: String = rest.trim().chars().take(20).collect();
            return fail(line, format!("cannot read `{near}`; a link is `A --> B`, `A -- text --> B` or `A -.-> B`"));
        };
        before = Some((nodes, edge));
    }
}

/// Reads `A & B[text]`.
fn read_nodes(
    chart: &mut Flowchart,
    rest: &mut &str,
    group: Option<usize>,
    line: usize,
) -> Result<Vec<usize>, ChartError> {
    let mut nodes = Vec::new();
    loop {
        *rest = rest.trim_start();
        let end = id_end(rest);
        if end == 0 {
            let near: String = rest.chars().take(20).collect();
            return fail(line, format!("a node name is missing before `{near}`"));
        }
        let id = &rest[..end];
        *rest = &rest[end..];
        let label = read_shape(rest, line)?;
        nodes.push(chart.node(id, label, group));
        if let Some(class) = rest.strip_prefix(":::") {
            *rest = class.trim_start_matches(|letter: char| letter.is_alphanumeric() || letter == '_');
        }
        match rest.trim_start().strip_prefix('&') {
            Some(more) => *rest = more,
            None => return Ok(nodes),
        }
    }
}

/// Returns the length of the node name at the start. A hyphen belongs to it only between letters.
fn id_end(text: &str) -> usize {
    let mut letters = text.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        let hyphen = letter == '-' && at > 0 && letters.peek().is_some_and(|(_, next)| next.is_alphanumeric());
        if !(letter.is_alphanumeric() || matches!(letter, '_' | '.' | '#') || hyphen) {
            return at;
        }
    }
    text.len()
}

const SHAPES: [(&str, &str, NodeShape); 14] = [
    ("(((", ")))", NodeShape::Circle),
    ("((", "))", NodeShape::Circle),
    ("([", "])", NodeShape::Round),
    ("[[", "]]", NodeShape::Box),
    ("[(", ")]", NodeShape::Cylinder),
    ("[/", "/]", NodeShape::Box),
    ("[/", "\\]", NodeShape::Box),
    ("[\\", "\\]", NodeShape::Box),
    ("[\\", "/]", NodeShape::Box),
    ("{{", "}}", NodeShape::Hexagon),
    ("[", "]", NodeShape::Box),
    ("(", ")", NodeShape::Round),
    ("{", "}", NodeShape::Diamond),
    (">", "]", NodeShape::Box),
];

fn read_shape(rest: &mut &str, line: usize) -> Result<Option<(String, NodeShape)>, ChartError> {
    let mut opened = None;
    for (open, close, shape) in SHAPES {
        let Some(inside) = rest.strip_prefix(open) else { continue };
        opened = opened.or(Some((open, close)));
        // Quoted text may contain brackets.
        let quoted = inside.strip_prefix('"').and_then(|text| text.find('"')).map_or(0, |end| end + 2);
        if let Some(end) = inside[quoted..].find(close) {
            let text = label_text(&inside[..quoted + end]);
            *rest = &inside[quoted + end + close.len()..];
            return Ok(Some((text, shape)));
        }
    }
    match opened {
        Some((open, close)) => {
            fail(line, format!("`{open}` has no closing `{close}`; quote text that contains brackets"))
        }
        None if rest.starts_with("@{") => {
            fail(line, "`@{ shape: … }` is not supported; use brackets such as `A[text]`")
        }
        None => Ok(None),
    }
}

/// Removes quotes and markup from a label. Line breaks become spaces, because labels are wrapped anyway.
pub(super) fn label_text(text: &str) -> String {
    let text = text.trim().trim_matches('"').trim_matches('`');
    let mut text = text.to_owned();
    for tag in ["<br/>", "<br>", "<br />", "\\n"] {
        text = text.replace(tag, " ");
    }
    for (entity, letter) in [("#quot;", "\""), ("#amp;", "&"), ("#lt;", "<"), ("#gt;", ">"), ("#35;", "#")] {
        text = text.replace(entity, letter);
    }
    text.replace("**", "").trim().to_owned()
}

#[derive(Debug, Clone)]
struct EdgeToken {
    text: String,
    style: LineStyle,
    head: bool,
    tail: bool,
}

/// Reads a link such as `-->`, `<-->`, `-.->|text|` or `== text ==>`. `None` if there is none.
fn read_edge(rest: &mut &str) -> Option<EdgeToken> {
    let text = rest.trim_start();
    let (tail, text) = text.strip_prefix('<').map_or((false, text), |text| (true, text));
    let text = text.strip_prefix(['o', 'x']).filter(|text| text.starts_with("--")).unwrap_or(text);
    let (style, mark, marks) = [
        (LineStyle::Dotted, "-.", "-."),
        (LineStyle::Solid, "--", "-"),
        (LineStyle::Thick, "==", "="),
        (LineStyle::Invisible, "~~~", "~"),
    ]
    .into_iter()
    .find(|(_, mark, _)| text.starts_with(mark))?;
    let after = text.trim_start_matches(|letter| marks.contains(letter));
    let drawn = text.len() - after.len();
    let (mut head, mut after) = read_head(after);
    let mut label = String::new();
    // `--` and `-.` alone start a text that another mark ends.
    if drawn == 2 && !head && style != LineStyle::Invisible {
        let closing = if style == LineStyle::Dotted { ".-" } else { mark };
        let (text, end) = after.split_once(closing)?;
        label = label_text(text);
        (head, after) = read_head(end.trim_start_matches(|letter| marks.contains(letter)));
    }
    if let Some((text, end)) = after.trim_start().strip_prefix('|').and_then(|text| text.split_once('|')) {
        label = label_text(text);
        after = end;
    }
    *rest = after;
    Some(EdgeToken { text: label, style, head, tail })
}

/// Reads the end of a link. A circle or a cross is drawn as an arrow.
fn read_head(text: &str) -> (bool, &str) {
    if let Some(rest) = text.strip_prefix('>') {
        return (true, rest);
    }
    match text.strip_prefix(['o', 'x']) {
        Some(rest) if rest.starts_with([' ', '|']) => (true, rest),
        _ => (false, text),
    }
}

/// Reads a state diagram as a flowchart of rounded nodes.
pub(super) fn read_states(body: &[Line<'_>]) -> Result<Flowchart, ChartError> {
    let mut chart = Flowchart::default();
    let state = |chart: &mut Flowchart, id: &str, is_start: bool| {
        let id = id.split(":::").next().unwrap_or_default().trim();
        if id == "[*]" {
            let id = if is_start { "[start]" } else { "[end]" };
            return chart.node(id, Some((String::new(), NodeShape::Dot)), None);
        }
        let known = chart.ids.contains_key(id);
        chart.node(id, (!known).then(|| (id.to_owned(), NodeShape::Round)), None)
    };
    for &(line, text) in body {
        if let Some((from, rest)) = text.split_once("-->") {
            let (to, label) = rest.split_once(':').unwrap_or((rest, ""));
            if from.trim().is_empty() || to.trim().is_empty() {
                return fail(line, "a transition is `Idle --> Running : start`");
            }
            let from = state(&mut chart, from, true);
            let to = state(&mut chart, to, false);
            let (text, style) = (label_text(label), LineStyle::Solid);
            chart.edges.push(FlowEdge { from, to, text, style, head: true, tail: false });
        } else if let Some(rest) = text.strip_prefix("state ") {
            if rest.trim_end().ends_with('{') {
                return fail(line, "states inside states are not supported; draw them as a flowchart with subgraphs");
            }
            let (label, id) = rest.split_once(" as ").unwrap_or((rest, rest));
            let index = state(&mut chart, id.split("<<").next().unwrap_or_default(), true);
            chart.nodes[index].text = label_text(label.split("<<").next().unwrap_or_default());
        } else if text.starts_with("direction") {
            chart.horizontal = text.ends_with("LR") || text.ends_with("RL");
        } else if let Some((id, label)) = text.split_once(':') {
            let index = state(&mut chart, id, true);
            chart.nodes[index].text = label_text(label);
        } else if text.starts_with("note") || text.starts_with("classDef") || text.starts_with("class ") {
            continue;
        } else if text.split_whitespace().count() == 1 {
            state(&mut chart, text, true);
        } else {
            return fail(line, "a line is `A --> B : text`, `A : text` or `state \"text\" as A`");
        }
    }
    chart.check(body.first().map_or(1, |line| line.0))
}
