//! Sankey and chord diagrams.

use std::f64::consts::TAU;

use super::axes;
use super::canvas::{Anchor, FONT, Label, PathData, Rect, fit, measure};
use super::error::ChartError;
use super::frame::Frame;
use super::links::LinkSet;
use super::pie::ring;
use super::scale::format_value;
use super::{ChartSheet, WIDTH, color};

const MAX_SANKEY: (usize, usize) = (300, 2_000);
const MAX_CHORD: (usize, usize) = (80, 2_000);
const NODE: f64 = 14.0;
const GAP: f64 = 12.0;

pub(super) fn draw_sankey(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    let mut set = LinkSet::read(frame, MAX_SANKEY.0, MAX_SANKEY.1)?;
    set.links.retain(|link| link.value > 0.0);
    if let Some(circle) = set.find_circle() {
        let names: Vec<_> = circle.iter().map(|node| format!("`{}`", set.nodes[*node])).collect();
        return Err(ChartError::Circle { path: names.join(" → ") });
    }
    if set.links.is_empty() {
        return Ok(axes::empty(title));
    }
    let columns = sankey_columns(&set);
    let last = columns.iter().copied().max().unwrap_or(0);
    let mut lists: Vec<Vec<usize>> = vec![Vec::new(); last + 1];
    for (node, column) in columns.iter().enumerate() {
        lists[*column].push(node);
    }
    let tallest = lists.iter().map(Vec::len).max().unwrap_or(1);
    let height = (120.0 + tallest as f64 * 24.0).clamp(480.0, 6_000.0);
    let mut drawing = ChartSheet::new(WIDTH, height);
    let top = axes::header(&mut drawing, title, &[]) + 4.0;
    let names = lists[last].iter().map(|node| measure(&set.nodes[*node], FONT));
    let side = names.fold(0.0, f64::max).min(150.0) + 22.0;
    // The labels of the last column are right of it, all others are right of their nodes within the picture.
    let (left, right) = (16.0, WIDTH - side - NODE);
    let area = Rect { x: left, y: top, w: right - left, h: height - top - 20.0 };
    let boxes = sankey_boxes(&set, &columns, &mut lists, area, last);
    draw_flows(&mut drawing, &set, &boxes);
    for (node, rect) in boxes.iter().enumerate() {
        let (incoming, outgoing) = throughput(&set, node);
        let tip = format!("{}: {}", set.nodes[node], format_value(incoming.max(outgoing)));
        drawing.canvas.rect(*rect, &format!("fill=\"{}\"", color::series(node)), &tip);
    }
    let step = if last > 0 { area.w / last as f64 } else { area.w };
    for (node, rect) in boxes.iter().enumerate() {
        let room = if columns[node] == last { side - 8.0 } else { step - NODE - 12.0 };
        let text = fit(&set.nodes[node], FONT, room);
        drawing.canvas.label(Label::new(&text, rect.right() + 5.0, rect.center().1, Anchor::Start));
    }
    Ok(drawing)
}

/// Returns the column of each node: the longest way from a source. Nodes that end a way stay where they are.
fn sankey_columns(set: &LinkSet) -> Vec<usize> {
    let mut columns = vec![0; set.nodes.len()];
    for _ in 0..set.nodes.len() {
        let mut changed = false;
        for link in &set.links {
            if columns[link.target] <= columns[link.source] {
                columns[link.target] = columns[link.source] + 1;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    columns
}

fn throughput(set: &LinkSet, node: usize) -> (f64, f64) {
    set.links.iter().fold((0.0, 0.0), |(incoming, outgoing), link| {
        let incoming = if link.target == node { incoming + link.value } else { incoming };
        let outgoing = if link.source == node { outgoing + link.value } else { outgoing };
        (incoming, outgoing)
    })
}

fn sankey_boxes(set: &LinkSet, columns: &[usize], lists: &mut [Vec<usize>], area: Rect, last: usize) -> Vec<Rect> {
    let sizes: Vec<f64> = (0..set.nodes.len())
        .map(|node| {
            let (incoming, outgoing) = throughput(set, node);
            incoming.max(outgoing)
        })
        .collect();
    let total = |list: &[usize]| list.iter().map(|node| sizes[*node]).sum::<f64>();
    let gap = |list: &[usize]| if list.len() > 1 { GAP.min(area.h * 0.4 / (list.len() - 1) as f64) } else { 0.0 };
    let unit = lists
        .iter()
        .map(|list| (area.h - gap(list) * list.len().saturating_sub(1) as f64) / total(list).max(f64::MIN_POSITIVE))
        .fold(f64::INFINITY, f64::min);
    let step = if last > 0 { area.w / last as f64 } else { 0.0 };
    let mut boxes = vec![Rect { x: 0.0, y: 0.0, w: NODE, h: 0.0 }; set.nodes.len()];
    // Each pass sorts the nodes of a column by the mean place of their neighbours.
    for pass in 0..6 {
        for list in lists.iter_mut() {
            if pass > 0 {
                let middle = |node: usize| {
                    let near = set.links.iter().filter_map(|link| {
                        let other = if link.target == node { link.source } else { link.target };
                        (link.target == node || link.source == node).then(|| (boxes[other].center().1, link.value))
                    });
                    let (sum, weight) =
                        near.fold((0.0, 0.0), |(sum, weight), (y, value)| (sum + y * value, weight + value));
                    if weight > 0.0 { sum / weight } else { 0.0 }
                };
                list.sort_by(|one, other| middle(*one).total_cmp(&middle(*other)));
            }
            let gap = gap(list);
            let used = total(list) * unit + gap * list.len().saturating_sub(1) as f64;
            let mut y = area.y + (area.h - used).max(0.0) / 2.0;
            for &node in list.iter() {
                let x = area.x + columns[node] as f64 * step;
                boxes[node] = Rect { x, y, w: NODE, h: (sizes[node] * unit).max(1.0) };
                y += sizes[node] * unit + gap;
            }
        }
    }
    boxes
}

fn draw_flows(drawing: &mut ChartSheet, set: &LinkSet, boxes: &[Rect]) {
    let unit = (0..boxes.len())
        .map(|node| {
            let (incoming, outgoing) = throughput(set, node);
            boxes[node].h / incoming.max(outgoing).max(f64::MIN_POSITIVE)
        })
        .fold(f64::INFINITY, f64::min);
    let mut order: Vec<_> = set.links.iter().collect();
    order.sort_by(|one, other| boxes[one.target].y.total_cmp(&boxes[other.target].y));
    let mut outgoing: Vec<f64> = boxes.iter().map(|rect| rect.y).collect();
    let mut starts = vec![0.0; order.len()];
    for (start, link) in starts.iter_mut().zip(&order) {
        *start = outgoing[link.source];
        outgoing[link.source] += link.value * unit;
    }
    let mut entries: Vec<usize> = (0..order.len()).collect();
    entries.sort_by(|one, other| boxes[order[*one].source].y.total_cmp(&boxes[order[*other].source].y));
    let mut incoming: Vec<f64> = boxes.iter().map(|rect| rect.y).collect();
    for index in entries {
        let link = order[index];
        let (thickness, from, to) = (link.value * unit, starts[index], incoming[link.target]);
        incoming[link.target] += thickness;
        let (x, end) = (boxes[link.source].right(), boxes[link.target].x);
        let middle = (x + end) / 2.0;
        let path = PathData::default()
            .to('M', &[(x, from)])
            .to('C', &[(middle, from), (middle, to), (end, to)])
            .to('L', &[(end, to + thickness)])
            .to('C', &[(middle, to + thickness), (middle, from + thickness), (x, from + thickness)])
            .close();
        let style = format!("fill=\"{}\" fill-opacity=\"0.4\"", color::series(link.source));
        drawing.canvas.path(&path, &style, &set.tip(link));
    }
}

pub(super) fn draw_chord(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    let mut set = LinkSet::read(frame, MAX_CHORD.0, MAX_CHORD.1)?;
    set.links.retain(|link| link.value > 0.0);
    let total: f64 = set.links.iter().map(|link| link.value * 2.0).sum();
    if total <= 0.0 {
        return Ok(axes::empty(title));
    }
    let height = 600.0;
    let mut drawing = ChartSheet::new(WIDTH, height);
    let top = axes::header(&mut drawing, title, &[]);
    let radius = (height - top) / 2.0 - 34.0;
    let (x, y) = (WIDTH / 2.0, (top + height) / 2.0);
    let count = set.nodes.len() as f64;
    let pad = (0.04_f64).min(0.3 / count);
    let unit = (TAU - pad * count) / total;
    let sizes: Vec<f64> = (0..set.nodes.len())
        .map(|node| {
            let (incoming, outgoing) = throughput(&set, node);
            incoming + outgoing
        })
        .collect();
    let mut starts = Vec::new();
    let mut angle = 0.0;
    for size in &sizes {
        starts.push(angle);
        angle += size * unit + pad;
    }
    let inner = radius - 16.0;
    let at = |angle: f64| (x + inner * angle.sin(), y - inner * angle.cos());
    let mut used = starts.clone();
    for link in &set.links {
        let width = link.value * unit;
        let from = used[link.source];
        used[link.source] += width;
        let to = used[link.target];
        used[link.target] += width;
        let large = width > TAU / 2.0;
        let path = PathData::default()
            .to('M', &[at(from)])
            .arc(inner, large, true, at(from + width))
            .to('Q', &[(x, y), at(to)])
            .arc(inner, large, true, at(to + width))
            .to('Q', &[(x, y), at(from)])
            .close();
        let style = format!("fill=\"{}\" fill-opacity=\"0.5\"", color::series(link.source));
        drawing.canvas.path(&path, &style, &set.tip(link));
    }
    // Large nodes are named first, because names that would overlap are left out.
    let mut order: Vec<usize> = (0..set.nodes.len()).collect();
    order.sort_by(|one, other| sizes[*other].total_cmp(&sizes[*one]));
    let mut unnamed = 0;
    for node in order {
        let (from, to) = (starts[node], starts[node] + sizes[node] * unit);
        let tip = format!("{}: {}", set.nodes[node], format_value(sizes[node]));
        let style = format!("fill=\"{}\"", color::series(node));
        drawing.canvas.path(&ring((x, y), inner + 2.0, radius, from, to.max(from + 0.002)), &style, &tip);
        let middle = (from + to) / 2.0;
        let (lx, ly) = (x + (radius + 10.0) * middle.sin(), y - (radius + 14.0) * middle.cos());
        let side = lx - x;
        let anchor = if side.abs() < 12.0 {
            Anchor::Middle
        } else if side > 0.0 {
            Anchor::Start
        } else {
            Anchor::End
        };
        let room = if anchor == Anchor::Middle { 200.0 } else { WIDTH / 2.0 - side.abs() - 4.0 };
        unnamed += usize::from(!drawing.canvas.label(Label::new(&fit(&set.nodes[node], FONT, room), lx, ly, anchor)));
    }
    if unnamed > 0 {
        drawing.notes.push(format!("{unnamed} names of small nodes are left out; the page shows them"));
    }
    Ok(drawing)
}
