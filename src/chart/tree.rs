//! Treemaps and sunburst charts.

use std::collections::HashMap;
use std::f64::consts::TAU;

use serde_json::Value;

use super::axes::{self, MARGIN};
use super::canvas::{Anchor, FONT, Label, Rect, fit, measure};
use super::error::{ChartError, suggest};
use super::frame::Frame;
use super::pie::{percent, ring};
use super::scale::format_value;
use super::{ChartKind, ChartSheet, WIDTH, color};

const MAX_DEPTH: usize = 12;
const MAX_NODES: usize = 20_000;

/// A node of a hierarchy. `value` includes the children.
#[derive(Debug, Clone, Default)]
pub(super) struct TreeNode {
    name: String,
    value: f64,
    children: Vec<TreeNode>,
}

impl TreeNode {
    /// Reads a nested `{name, value, children}`.
    pub(super) fn from_json(value: &Value, depth: usize) -> Result<Self, ChartError> {
        let name = value.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        if depth > MAX_DEPTH {
            return Err(ChartError::TooMany { kind: "treemap", what: "levels", count: depth, max: MAX_DEPTH });
        }
        let Value::Object(node) = value else {
            return Err(ChartError::NotRows { found: "a tree with a node that is no object" });
        };
        let own = match node.get("value") {
            None | Some(Value::Null) => 0.0,
            Some(value) => value.as_f64().filter(|value| value.abs() < 1e200).ok_or_else(|| {
                let value = value.to_string();
                ChartError::NotNumber { row: depth, column: format!("value of {name}"), value }
            })?,
        };
        if own < 0.0 {
            return Err(ChartError::Negative { kind: "treemap", label: name, value: own.to_string() });
        }
        let children = node.get("children").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let children = children.iter().map(|child| Self::from_json(child, depth + 1)).collect::<Result<_, _>>()?;
        Ok(Self { name, value: own, children }.add_up())
    }

    /// Reads rows with `name`, `parent` and a value, or rows whose columns of text are the levels.
    pub(super) fn from_table(frame: Frame<'_>) -> Result<Self, ChartError> {
        let count = frame.table.rows.len();
        if count > MAX_NODES {
            return Err(ChartError::TooMany { kind: frame.kind.title(), what: "rows", count, max: MAX_NODES });
        }
        let parent = frame.role(frame.options.group.as_ref(), &["parent"])?;
        let values = frame.value_columns(&[parent])?;
        let Some(&value) = values.first() else { return Err(frame.missing("a column of numbers (`y`)")) };
        let amount = |row: usize, label: &str| {
            let amount = frame.number(row, value)?.unwrap_or(0.0);
            if amount < 0.0 {
                let (kind, label) = (frame.kind.title(), label.to_owned());
                return Err(ChartError::Negative { kind, label, value: amount.to_string() });
            }
            Ok(amount)
        };
        if let Some(parent) = parent {
            return Self::from_parents(frame, parent, amount);
        }
        let levels = match &frame.options.x {
            Some(x) => vec![frame.column(x)?],
            None => frame.text_columns(),
        };
        if levels.is_empty() {
            return Err(frame.missing("a column of names (`x`)"));
        }
        if levels.len() > MAX_DEPTH {
            return Err(ChartError::TooMany {
                kind: frame.kind.title(),
                what: "levels",
                count: levels.len(),
                max: MAX_DEPTH,
            });
        }
        let mut root = Self::default();
        for row in 0..count {
            let mut node = &mut root;
            for level in &levels {
                let name = frame.text(row, Some(*level));
                if name.is_empty() {
                    continue;
                }
                let place = match node.children.iter().position(|child| child.name == name) {
                    // The last level keeps each row.
                    Some(place) if Some(level) != levels.last() => place,
                    _ => {
                        node.children.push(Self { name, ..Self::default() });
                        node.children.len() - 1
                    }
                };
                node = &mut node.children[place];
            }
            node.value += amount(row, &node.name)?;
        }
        Ok(root.add_up())
    }

    fn from_parents(
        frame: Frame<'_>,
        parent: usize,
        amount: impl Fn(usize, &str) -> Result<f64, ChartError>,
    ) -> Result<Self, ChartError> {
        let names = frame.role(frame.options.x.as_ref(), &["name", "id", "node"])?;
        let names = names.or_else(|| frame.text_columns().into_iter().find(|column| *column != parent));
        let Some(names) = names else { return Err(frame.missing("a column of names (`x`)")) };
        let count = frame.table.rows.len();
        let mut rows: HashMap<String, usize> = HashMap::new();
        for row in 0..count {
            let node = frame.text(row, Some(names));
            if rows.insert(node.clone(), row).is_some() {
                return Err(ChartError::DuplicateNode { row: row + 1, node });
            }
        }
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); count];
        let mut roots = Vec::new();
        for row in 0..count {
            let (node, above) = (frame.text(row, Some(names)), frame.text(row, Some(parent)));
            match rows.get(&above) {
                _ if above.is_empty() => roots.push(row),
                Some(at) => children[*at].push(row),
                None => {
                    let near = suggest(&above, rows.keys().map(String::as_str));
                    return Err(ChartError::UnknownParent { row: row + 1, node, parent: above, near });
                }
            }
        }
        let mut reached = 0;
        let top: Result<Vec<_>, _> =
            roots.iter().map(|row| Self::build(frame, names, *row, &children, &amount, 1, &mut reached)).collect();
        let top = top?;
        if reached < count {
            let lost = (0..count).find(|row| !is_below(*row, &roots, &children));
            return Err(ChartError::ParentCircle { node: frame.text(lost.unwrap_or(0), Some(names)) });
        }
        Ok(Self { children: top, ..Self::default() }.add_up())
    }

    fn build(
        frame: Frame<'_>,
        names: usize,
        row: usize,
        children: &[Vec<usize>],
        amount: &impl Fn(usize, &str) -> Result<f64, ChartError>,
        depth: usize,
        reached: &mut usize,
    ) -> Result<Self, ChartError> {
        *reached += 1;
        if depth > MAX_DEPTH {
            return Err(ChartError::TooMany { kind: frame.kind.title(), what: "levels", count: depth, max: MAX_DEPTH });
        }
        let name = frame.text(row, Some(names));
        let value = amount(row, &name)?;
        let below =
            children[row].iter().map(|row| Self::build(frame, names, *row, children, amount, depth + 1, reached));
        let below = below.collect::<Result<_, _>>()?;
        Ok(Self { name, value, children: below }.add_up())
    }

    /// Makes the value of a node with children at least their sum, and sorts them by size.
    fn add_up(mut self) -> Self {
        self.children =
            self.children.into_iter().map(|child| if child.value == 0.0 { child.add_up() } else { child }).collect();
        let sum: f64 = self.children.iter().map(|child| child.value).sum();
        self.value = self.value.max(sum);
        self.children.sort_by(|one, other| other.value.total_cmp(&one.value));
        self
    }

    pub(super) fn count(&self) -> usize {
        1 + self.children.iter().map(Self::count).sum::<usize>()
    }

    fn depth(&self) -> usize {
        1 + self.children.iter().map(Self::depth).max().unwrap_or(0)
    }
}

fn is_below(row: usize, roots: &[usize], children: &[Vec<usize>]) -> bool {
    let mut open = roots.to_vec();
    while let Some(at) = open.pop() {
        if at == row {
            return true;
        }
        open.extend(&children[at]);
    }
    false
}

pub(super) fn draw(kind: ChartKind, mut root: TreeNode, title: &str) -> Result<ChartSheet, ChartError> {
    let count = root.count();
    if count > MAX_NODES {
        return Err(ChartError::TooMany { kind: kind.title(), what: "nodes", count, max: MAX_NODES });
    }
    // A root with one child adds nothing to the picture.
    while let [only] = root.children.as_mut_slice() {
        if only.children.is_empty() {
            break;
        }
        root = std::mem::take(only);
    }
    if root.value <= 0.0 {
        let mut drawing = axes::empty(title);
        drawing.notes = vec!["all values are 0".to_owned()];
        return Ok(drawing);
    }
    let mut drawing = ChartSheet::new(WIDTH, if kind == ChartKind::Treemap { 520.0 } else { 600.0 });
    let top = axes::header(&mut drawing, title, &[]);
    let total = root.value;
    if kind == ChartKind::Treemap {
        let area = Rect { x: MARGIN, y: top, w: WIDTH - 2.0 * MARGIN, h: drawing.canvas.height - top - MARGIN };
        fill(&mut drawing, &root, area, total, None, 0);
    } else {
        let radius = (drawing.canvas.height - top) / 2.0 - 12.0;
        let center = (WIDTH / 2.0, (top + drawing.canvas.height) / 2.0);
        let hole = radius * 0.22;
        let width = (radius - hole) / (root.depth() - 1).max(1) as f64;
        let text = format_value(total);
        drawing.canvas.label(Label::new(&fit(&text, 14.0, hole * 1.8), center.0, center.1, Anchor::Middle).class("b"));
        burst(&mut drawing, &root, center, (hole, width), (0.0, TAU), total, None);
    }
    Ok(drawing)
}

/// Returns whether a name that was cut still says something.
fn is_legible(text: &str, name: &str) -> bool {
    text == name || text.chars().count() > 2
}

fn tip(node: &TreeNode, total: f64) -> String {
    format!("{}: {} ({})", node.name, format_value(node.value), percent(node.value / total))
}

/// Fills an area with the children of a node, as squares as possible.
fn fill(drawing: &mut ChartSheet, node: &TreeNode, area: Rect, total: f64, branch: Option<usize>, depth: usize) {
    for (index, (child, rect)) in squarify(&node.children, area).into_iter().enumerate() {
        let branch = branch.unwrap_or(index);
        if rect.w < 0.3 || rect.h < 0.3 {
            continue;
        }
        let color = color::series(branch);
        let gap = if rect.w.min(rect.h) > 4.0 { 1.0 } else { 0.0 };
        let inner = rect.shrink(gap);
        if child.children.is_empty() {
            let style = format!("fill=\"{color}\"");
            drawing.canvas.rect(inner, &style, &tip(child, total));
            let class = color::text_on(color);
            let text = fit(&child.name, FONT, inner.w - 8.0);
            let named = inner.h >= 18.0 && is_legible(&text, &child.name);
            if named
                && drawing.canvas.label(Label::new(&text, inner.x + 4.0, inner.y + 10.0, Anchor::Start).class(class))
            {
                let value = format_value(child.value);
                if inner.h >= 34.0 && measure(&value, 11.0) <= inner.w - 8.0 {
                    let label = Label::new(&value, inner.x + 4.0, inner.y + 26.0, Anchor::Start);
                    drawing.canvas.label(label.size(11.0).class(class));
                }
            }
            continue;
        }
        let style = format!("fill=\"{color}\" fill-opacity=\"0.18\" stroke=\"{color}\"");
        drawing.canvas.rect(inner, &style, &tip(child, total));
        let head = if inner.h > 44.0 && inner.w > 40.0 && depth < 3 { 20.0 } else { 0.0 };
        if head > 0.0 {
            let text = fit(&child.name, FONT, inner.w - 8.0);
            drawing.canvas.label(Label::new(&text, inner.x + 4.0, inner.y + 10.0, Anchor::Start).class("b"));
        }
        let below = Rect { y: inner.y + head, h: inner.h - head, ..inner }.shrink(gap * 2.0);
        fill(drawing, child, below, total, Some(branch), depth + 1);
    }
}

/// Divides an area among nodes, which are sorted by size, by the method of Bruls, Huizing and van Wijk.
fn squarify(nodes: &[TreeNode], area: Rect) -> Vec<(&TreeNode, Rect)> {
    let total: f64 = nodes.iter().map(|node| node.value).sum();
    let mut placed = Vec::new();
    if total <= 0.0 || area.w <= 0.0 || area.h <= 0.0 {
        return placed;
    }
    let unit = area.w * area.h / total;
    let mut rest = area;
    let mut from = 0;
    while from < nodes.len() && nodes[from].value > 0.0 {
        let side = rest.w.min(rest.h).max(1e-9);
        let (mut end, mut sum, mut worst) = (from, 0.0, f64::INFINITY);
        while end < nodes.len() && nodes[end].value > 0.0 {
            let next = sum + nodes[end].value * unit;
            let (largest, smallest) = (nodes[from].value * unit, nodes[end].value * unit);
            let shape = (side * side * largest / (next * next)).max(next * next / (side * side * smallest));
            if shape > worst {
                break;
            }
            (worst, sum) = (shape, next);
            end += 1;
        }
        let thickness = (sum / side).min(rest.w.max(rest.h));
        let mut offset = 0.0;
        for node in &nodes[from..end] {
            let length = if thickness > 0.0 { node.value * unit / thickness } else { 0.0 };
            let rect = if rest.w >= rest.h {
                Rect { x: rest.x, y: rest.y + offset, w: thickness, h: length.min(rest.h - offset) }
            } else {
                Rect { x: rest.x + offset, y: rest.y, w: length.min(rest.w - offset), h: thickness }
            };
            offset += length;
            placed.push((node, rect));
        }
        rest = if rest.w >= rest.h {
            Rect { x: rest.x + thickness, w: rest.w - thickness, ..rest }
        } else {
            Rect { y: rest.y + thickness, h: rest.h - thickness, ..rest }
        };
        from = end;
    }
    placed
}

fn burst(
    drawing: &mut ChartSheet,
    node: &TreeNode,
    center: (f64, f64),
    (inner, width): (f64, f64),
    (from, to): (f64, f64),
    total: f64,
    branch: Option<usize>,
) {
    let mut angle = from;
    for (index, child) in node.children.iter().enumerate() {
        let end = angle + child.value / node.value * (to - from);
        let branch = branch.unwrap_or(index);
        if end - angle > 0.001 {
            let color = color::series(branch);
            let style = format!("fill=\"{color}\" class=\"edge\" stroke-width=\"1\"");
            drawing.canvas.path(&ring(center, inner, inner + width, angle, end), &style, &tip(child, total));
            let (middle, at) = ((angle + end) / 2.0, inner + width / 2.0);
            // The text is horizontal, so its room depends on the direction of the slice.
            let arc = (end - angle).min(2.0) * at;
            let room = if middle.sin().abs() > 0.7 { width } else { arc }.min(arc.max(width)) - 8.0;
            let tall = if middle.sin().abs() > 0.7 { arc } else { width };
            let text = fit(&child.name, 11.0, room);
            if tall >= 15.0 && is_legible(&text, &child.name) {
                let (x, y) = (center.0 + at * middle.sin(), center.1 - at * middle.cos());
                let label = Label::new(&text, x, y, Anchor::Middle).size(11.0).class(color::text_on(color));
                drawing.canvas.label(label);
            }
            burst(drawing, child, center, (inner + width, width), (angle, end), total, Some(branch));
        }
        angle = end;
    }
}
