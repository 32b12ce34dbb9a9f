//! Draws flowcharts and state diagrams in layers.

use super::syntax::{FlowEdge, Flowchart, LineStyle, NodeShape};
use crate::chart::canvas::{Anchor, FONT, Label, PathData, Rect, measure, wrap};
use crate::chart::error::ChartError;
use crate::chart::layers::{self, NodeSize};
use crate::chart::{ChartSheet, axes, color};

const MARGIN: f64 = 24.0;
const LINE: f64 = 16.0;
const MAX_LABEL: f64 = 190.0;
/// Wider or taller diagrams are scaled down by the viewer.
const MIN_WIDTH: f64 = 360.0;

/// A node with its wrapped text.
struct NodeBox {
    lines: Vec<String>,
    w: f64,
    h: f64,
}

pub(super) fn draw(chart: &Flowchart, title: &str) -> Result<ChartSheet, ChartError> {
    if chart.nodes.is_empty() {
        return Ok(axes::empty(title));
    }
    let boxes: Vec<_> = chart.nodes.iter().map(|node| size(&node.text, node.shape)).collect();
    let sizes: Vec<_> = boxes
        .iter()
        .map(|node| match chart.horizontal {
            true => NodeSize { along: node.w, across: node.h },
            false => NodeSize { along: node.h, across: node.w },
        })
        .collect();
    let ends: Vec<_> = chart.edges.iter().map(|edge| (edge.from, edge.to)).collect();
    let widest = chart.edges.iter().map(|edge| measure(&edge.text, 11.0)).fold(0.0, f64::max).min(MAX_LABEL);
    let gap = if chart.horizontal {
        (widest + 36.0).max(56.0)
    } else if widest > 0.0 {
        68.0
    } else {
        46.0
    };
    let layout = layers::lay_out(&sizes, &ends, gap);
    let (w, h) = if chart.horizontal { (layout.along, layout.across) } else { (layout.across, layout.along) };
    // Room for loops, which leave their node at the right.
    let width = (w + 2.0 * MARGIN + 30.0).max(MIN_WIDTH);
    let mut probe = ChartSheet::new(width, 4_000.0);
    let top = head(&mut probe, chart, title);
    let mut drawing = ChartSheet::new(width, top + h + 2.0 * MARGIN);
    head(&mut drawing, chart, title);
    let left = (width - w) / 2.0;
    let at = |(along, across): (f64, f64)| {
        let along = if chart.backward { layout.along - along } else { along };
        let (x, y) = if chart.horizontal { (along, across) } else { (across, along) };
        (left + x, top + MARGIN + y)
    };
    let centers: Vec<_> = layout.nodes.iter().map(|place| at(*place)).collect();
    let routes: Vec<Vec<_>> = chart
        .edges
        .iter()
        .zip(&layout.edges)
        .map(|(edge, points)| {
            let mut points: Vec<_> = points.iter().map(|point| at(*point)).collect();
            if let [first, .., last] = points.as_mut_slice() {
                for (point, node) in [(first, edge.from), (last, edge.to)] {
                    move_to_border(point, centers[node], &boxes[node], chart.nodes[node].shape, chart.horizontal);
                }
            }
            points
        })
        .collect();
    for (edge, points) in chart.edges.iter().zip(&routes) {
        draw_edge(&mut drawing, chart, edge, points, centers[edge.from], &boxes[edge.from]);
    }
    for ((node, center), size) in chart.nodes.iter().zip(&centers).zip(&boxes) {
        draw_node(&mut drawing, node.shape, node.group, *center, size);
    }
    for (edge, points) in chart.edges.iter().zip(&routes) {
        draw_text(&mut drawing, chart, edge, points, centers[edge.from], &boxes[edge.from]);
    }
    Ok(drawing)
}

/// Moves the end of a line from the box around a node to the border of its shape.
fn move_to_border(point: &mut (f64, f64), center: (f64, f64), size: &NodeBox, shape: NodeShape, horizontal: bool) {
    let (along, across) = if horizontal { (size.w / 2.0, size.h / 2.0) } else { (size.h / 2.0, size.w / 2.0) };
    let offset = if horizontal { point.1 - center.1 } else { point.0 - center.0 };
    let share = (offset.abs() / across).min(1.0);
    let reach = match shape {
        NodeShape::Diamond => along * (1.0 - share),
        NodeShape::Circle | NodeShape::Dot => along * (1.0 - share * share).sqrt(),
        NodeShape::Hexagon if horizontal => along - 12.0 * share,
        NodeShape::Box | NodeShape::Round | NodeShape::Cylinder | NodeShape::Hexagon => along,
    };
    if horizontal {
        point.0 = center.0 + (point.0 - center.0).signum() * reach;
    } else {
        point.1 = center.1 + (point.1 - center.1).signum() * reach;
    }
}

/// Draws the title, and the names of the subgraphs with their colours. Returns the y coordinate below them.
fn head(drawing: &mut ChartSheet, chart: &Flowchart, title: &str) -> f64 {
    let below = axes::header(drawing, title, &[]);
    if chart.groups.is_empty() { below } else { axes::legend(drawing, below, &chart.groups) }
}

fn size(text: &str, shape: NodeShape) -> NodeBox {
    let lines = wrap(text, FONT, MAX_LABEL, 4);
    let widest = lines.iter().map(|line| measure(line, FONT)).fold(24.0, f64::max);
    let (w, h) = (widest + 24.0, lines.len().max(1) as f64 * LINE + 18.0);
    let (w, h) = match shape {
        NodeShape::Box | NodeShape::Round => (w, h),
        NodeShape::Cylinder => (w, h + 14.0),
        NodeShape::Hexagon => (w + 24.0, h),
        NodeShape::Circle => {
            let side = (w * w + h * h).sqrt() * 0.88;
            (side, side)
        }
        NodeShape::Diamond => (w * 1.35 + 10.0, h * 1.35 + 16.0),
        NodeShape::Dot => (16.0, 16.0),
    };
    NodeBox { lines, w, h }
}

fn draw_node(drawing: &mut ChartSheet, shape: NodeShape, group: Option<usize>, (x, y): (f64, f64), size: &NodeBox) {
    let canvas = &mut drawing.canvas;
    let (w, h) = (size.w, size.h);
    let rect = Rect { x: x - w / 2.0, y: y - h / 2.0, w, h };
    let color = group.map(color::series);
    // The background hides lines that pass below the node.
    let fill = match color {
        Some(color) => format!("fill=\"{color}\" fill-opacity=\"0.2\" stroke=\"{color}\" stroke-width=\"1.5\""),
        None => "class=\"node\"".to_owned(),
    };
    let mut shape_of = |style: &str| match shape {
        NodeShape::Box => canvas.rect(rect, &format!("rx=\"3\" {style}"), ""),
        NodeShape::Round => canvas.rect(rect, &format!("rx=\"{}\" {style}", (h / 2.0).min(18.0)), ""),
        NodeShape::Circle => canvas.circle(x, y, w / 2.0, style, ""),
        NodeShape::Dot => canvas.circle(x, y, 8.0, "class=\"solid\"", ""),
        NodeShape::Diamond => {
            let points = [(x, rect.y), (rect.right(), y), (x, rect.bottom()), (rect.x, y)];
            canvas.path(&PathData::default().to('M', &points).close(), style, "");
        }
        NodeShape::Hexagon => {
            let (l, r) = (rect.x + 12.0, rect.right() - 12.0);
            let points =
                [(l, rect.y), (r, rect.y), (rect.right(), y), (r, rect.bottom()), (l, rect.bottom()), (rect.x, y)];
            canvas.path(&PathData::default().to('M', &points).close(), style, "");
        }
        NodeShape::Cylinder => {
            let (t, b, l, r) = (rect.y + 7.0, rect.bottom() - 7.0, rect.x, rect.right());
            let path = PathData::default()
                .to('M', &[(l, t)])
                .to('C', &[(l, rect.y - 2.0), (r, rect.y - 2.0), (r, t)])
                .to('L', &[(r, b)])
                .to('C', &[(r, rect.bottom() + 2.0), (l, rect.bottom() + 2.0), (l, b)])
                .to('L', &[(l, t)])
                .to('C', &[(l, t + 9.0), (r, t + 9.0), (r, t)])
                .end();
            canvas.path(&path, style, "");
        }
    };
    if color.is_some() {
        shape_of("class=\"bg\"");
    }
    shape_of(&fill);
    let first = y - (size.lines.len() as f64 - 1.0) * LINE / 2.0 + if shape == NodeShape::Cylinder { 4.0 } else { 0.0 };
    for (index, line) in size.lines.iter().enumerate() {
        drawing.canvas.label(Label::new(line, x, first + index as f64 * LINE, Anchor::Middle));
    }
}

fn draw_edge(
    drawing: &mut ChartSheet,
    chart: &Flowchart,
    edge: &FlowEdge,
    points: &[(f64, f64)],
    center: (f64, f64),
    size: &NodeBox,
) {
    let style = match edge.style {
        LineStyle::Solid => "stroke-width=\"1.4\"",
        LineStyle::Dotted => "stroke-width=\"1.4\" stroke-dasharray=\"4 4\"",
        LineStyle::Thick => "stroke-width=\"3\"",
        LineStyle::Invisible => return,
    };
    let style = format!("fill=\"none\" class=\"axis\" {style}");
    if edge.from == edge.to {
        // The loop is at a side of the node where no layer follows.
        let (start, bends, end, before) = if chart.horizontal {
            let (x, y) = (center.0, center.1 - size.h / 2.0);
            ((x - 9.0, y), [(x - 16.0, y - 24.0), (x + 16.0, y - 24.0)], (x + 8.0, y), (x + 9.5, y - 9.0))
        } else {
            let (x, y) = (center.0 + size.w / 2.0, center.1);
            ((x, y - 9.0), [(x + 26.0, y - 16.0), (x + 26.0, y + 16.0)], (x, y + 7.0), (x + 9.0, y + 9.0))
        };
        let path = PathData::default().to('M', &[start]).to('C', &[bends[0], bends[1], before]);
        drawing.canvas.path(&path.end(), &style, "");
        draw_arrow(drawing, before, end);
        return;
    }
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
    let mut path = PathData::default().to('M', &[*first]);
    for pair in points.windows(2) {
        let [(x1, y1), (x2, y2)] = [pair[0], pair[1]];
        let (one, other) = if chart.horizontal {
            let middle = (x1 + x2) / 2.0;
            ((middle, y1), (middle, y2))
        } else {
            let middle = (y1 + y2) / 2.0;
            ((x1, middle), (x2, middle))
        };
        path.push('C', &[one, other, (x2, y2)]);
    }
    drawing.canvas.path(&path.end(), &style, "");
    // The line arrives along the direction of the layers.
    let before = |end: (f64, f64), next: (f64, f64)| match chart.horizontal {
        true => (end.0 + (next.0 - end.0).signum() * 9.0, end.1),
        false => (end.0, end.1 + (next.1 - end.1).signum() * 9.0),
    };
    if edge.head {
        draw_arrow(drawing, before(*last, points[points.len() - 2]), *last);
    }
    if edge.tail {
        draw_arrow(drawing, before(*first, points[1]), *first);
    }
}

fn draw_arrow(drawing: &mut ChartSheet, from: (f64, f64), tip: (f64, f64)) {
    let (dx, dy) = (tip.0 - from.0, tip.1 - from.1);
    let length = (dx * dx + dy * dy).sqrt().max(1e-9);
    let (ux, uy) = (dx / length, dy / length);
    let back = (tip.0 - ux * 9.0, tip.1 - uy * 9.0);
    let points = [tip, (back.0 - uy * 4.5, back.1 + ux * 4.5), (back.0 + uy * 4.5, back.1 - ux * 4.5)];
    drawing.canvas.path(&PathData::default().to('M', &points).close(), "class=\"solid\"", "");
}

/// Draws the text of a link at the first place along it that is free.
fn draw_text(
    drawing: &mut ChartSheet,
    chart: &Flowchart,
    edge: &FlowEdge,
    points: &[(f64, f64)],
    center: (f64, f64),
    size: &NodeBox,
) {
    if edge.text.is_empty() {
        return;
    }
    let text = crate::chart::canvas::fit(&edge.text, 11.0, MAX_LABEL);
    let mut places = Vec::new();
    for pair in points.windows(2) {
        let [(x1, y1), (x2, y2)] = [pair[0], pair[1]];
        for t in [0.5_f64, 0.35, 0.65, 0.25, 0.75] {
            // The same curve as in `draw_edge`: linear along the layers, eased across them.
            let (a, b) = (3.0 * t * (1.0 - t) * (1.0 - t), 3.0 * t * t * (1.0 - t));
            let eased = b + t * t * t;
            let linear = (a + b) * 0.5 + t * t * t;
            let (tx, ty) = if chart.horizontal { (linear, eased) } else { (eased, linear) };
            places.push((x1 + (x2 - x1) * tx, y1 + (y2 - y1) * ty));
        }
    }
    if edge.from == edge.to {
        places.push((center.0, center.1 - size.h / 2.0 - 9.0));
        places.push((center.0, center.1 + size.h / 2.0 + 9.0));
    }
    for (x, y) in places {
        let label = Label::new(&text, x, y, Anchor::Middle).size(11.0);
        let bounds = label.bounds();
        let inside = bounds.x >= 2.0 && bounds.right() <= drawing.canvas.width - 2.0;
        if inside && drawing.canvas.is_free(&bounds) {
            drawing.canvas.rect(bounds, "class=\"bg\" fill-opacity=\"0.9\"", "");
            drawing.canvas.label(label);
            return;
        }
    }
    drawing.notes.push(format!("the text `{text}` of a link is left out, because there is no room"));
}
