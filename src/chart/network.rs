//! Network graphs. Nodes repel each other and links pull them together.

use super::axes;
use super::canvas::{Anchor, FONT, Label, fit, num};
use super::error::ChartError;
use super::frame::Frame;
use super::links::LinkSet;
use super::{ChartSheet, WIDTH, color};

const MAX_NODES: usize = 1_500;
const MAX_LINKS: usize = 10_000;
const HEIGHT: f64 = 600.0;

pub(super) fn draw(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    let set = LinkSet::read(frame, MAX_NODES, MAX_LINKS)?;
    if set.nodes.is_empty() {
        return Ok(axes::empty(title));
    }
    let mut drawing = ChartSheet::new(WIDTH, HEIGHT);
    let top = axes::header(&mut drawing, title, &[]);
    let mut degrees = vec![0usize; set.nodes.len()];
    for link in &set.links {
        degrees[link.source] += 1;
        degrees[link.target] += 1;
    }
    let places = place(&set, (60.0, top + 24.0, WIDTH - 60.0, HEIGHT - 30.0));
    let heaviest = set.links.iter().map(|link| link.value).fold(0.0, f64::max);
    for link in set.links.iter().filter(|link| link.source != link.target) {
        let ((x1, y1), (x2, y2)) = (places[link.source], places[link.target]);
        let width = if heaviest > 0.0 { 1.0 + 3.0 * (link.value / heaviest).sqrt() } else { 1.0 };
        let path = format!("M{} {}L{} {}", num(x1), num(y1), num(x2), num(y2));
        let style = format!("fill=\"none\" class=\"axis\" stroke-opacity=\"0.45\" stroke-width=\"{}\"", num(width));
        drawing.canvas.path(&path, &style, &set.tip(link));
    }
    let radius = |node: usize| (4.0 + (degrees[node] as f64).sqrt() * 2.0).min(16.0);
    for (node, (x, y)) in places.iter().enumerate() {
        let tip = format!("{}: {} links", set.nodes[node], degrees[node]);
        let style = format!("fill=\"{}\" class=\"edge\"", color::series(0));
        drawing.canvas.circle(*x, *y, radius(node), &style, &tip);
    }
    // Nodes with many links are named first, because names that would overlap are left out.
    let mut order: Vec<usize> = (0..set.nodes.len()).collect();
    order.sort_by_key(|node| std::cmp::Reverse(degrees[*node]));
    let mut unnamed = 0;
    for node in order {
        let (x, y) = places[node];
        let text = fit(&set.nodes[node], FONT, 130.0);
        let r = radius(node) + 3.0;
        let tries = [
            Label::new(&text, x + r, y, Anchor::Start),
            Label::new(&text, x - r, y, Anchor::End),
            Label::new(&text, x, y - r - 6.0, Anchor::Middle),
            Label::new(&text, x, y + r + 6.0, Anchor::Middle),
        ];
        unnamed += usize::from(!tries.into_iter().any(|label| drawing.canvas.label(label)));
    }
    if unnamed > 0 {
        drawing.notes.push(format!("{unnamed} names are left out, because they would overlap; the page shows them"));
    }
    Ok(drawing)
}

/// Places the nodes by the method of Fruchterman and Reingold, within `(left, top, right, bottom)`. The same graph
/// always gets the same places.
fn place(set: &LinkSet, (left, top, right, bottom): (f64, f64, f64, f64)) -> Vec<(f64, f64)> {
    let count = set.nodes.len();
    let distance = 1.0 / (count as f64).sqrt();
    // The start is a spiral, in which no two nodes share a place.
    let mut places: Vec<(f64, f64)> = (0..count)
        .map(|node| {
            let (radius, angle) = (((node as f64 + 0.5) / count as f64).sqrt() * 0.5, node as f64 * 2.399_963);
            (radius * angle.cos(), radius * angle.sin())
        })
        .collect();
    let rounds = (2_000_000 / (count * count).max(1)).clamp(12, 300);
    for round in 0..rounds {
        let mut moves = vec![(0.0, 0.0); count];
        for one in 0..count {
            for other in 0..one {
                let (dx, dy) = (places[one].0 - places[other].0, places[one].1 - places[other].1);
                let square = (dx * dx + dy * dy).max(1e-6);
                let force = distance * distance / square;
                moves[one] = (moves[one].0 + dx * force, moves[one].1 + dy * force);
                moves[other] = (moves[other].0 - dx * force, moves[other].1 - dy * force);
            }
            // A weak pull to the middle keeps parts without links in the picture.
            moves[one] = (moves[one].0 - places[one].0 * 0.3, moves[one].1 - places[one].1 * 0.3);
        }
        for link in &set.links {
            let (from, to) = (places[link.source], places[link.target]);
            let (dx, dy) = (to.0 - from.0, to.1 - from.1);
            let force = (dx * dx + dy * dy).sqrt() / distance;
            let (mx, my) = (dx * force, dy * force);
            moves[link.source] = (moves[link.source].0 + mx, moves[link.source].1 + my);
            moves[link.target] = (moves[link.target].0 - mx, moves[link.target].1 - my);
        }
        let heat = 0.1 * (1.0 - round as f64 / rounds as f64) + 0.001;
        for (place, (mx, my)) in places.iter_mut().zip(moves) {
            let length = (mx * mx + my * my).sqrt().max(1e-9);
            let step = length.min(heat);
            *place = (place.0 + mx / length * step, place.1 + my / length * step);
        }
    }
    let range = |values: &dyn Fn(&(f64, f64)) -> f64| {
        let start = (f64::INFINITY, f64::NEG_INFINITY);
        places.iter().map(values).fold(start, |(min, max), value| (min.min(value), max.max(value)))
    };
    let (x, y) = (range(&|place| place.0), range(&|place| place.1));
    let fit = |value: f64, (min, max): (f64, f64), from: f64, to: f64| {
        if max - min < 1e-9 { (from + to) / 2.0 } else { from + (value - min) / (max - min) * (to - from) }
    };
    places.iter().map(|place| (fit(place.0, x, left, right), fit(place.1, y, top, bottom))).collect()
}
