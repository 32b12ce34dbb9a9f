//! Pie and donut charts, and gauges.

use std::f64::consts::{PI, TAU};

use super::axes;
use super::canvas::{Anchor, FONT, Label, PathData, Rect, fit, measure};
use super::error::ChartError;
use super::frame::Frame;
use super::scale::format_value;
use super::{ChartKind, ChartSheet, HEIGHT, WIDTH, color};

/// Smaller slices beyond these are joined.
const MAX_SLICES: usize = 12;

pub(super) fn draw(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    Ok(draw_parts(frame.kind == ChartKind::Donut, frame.parts()?, title))
}

pub(super) fn draw_parts(is_donut: bool, parts: Vec<(String, f64)>, title: &str) -> ChartSheet {
    let total: f64 = parts.iter().map(|(_, value)| value).sum();
    if total <= 0.0 {
        let mut drawing = axes::empty(title);
        drawing.notes = vec!["all values are 0".to_owned()];
        return drawing;
    }
    let mut drawing = ChartSheet::new(WIDTH, HEIGHT);
    let slices = join_small(&mut drawing, parts);
    let top = axes::header(&mut drawing, title, &[]);
    let radius = ((HEIGHT - top) / 2.0 - 18.0).min(190.0);
    let (x, y) = (30.0 + radius, (top + HEIGHT) / 2.0);
    let hole = if is_donut { radius * 0.58 } else { 0.0 };
    let mut angle = 0.0;
    for (index, (name, value)) in slices.iter().enumerate() {
        let share = value / total;
        let end = angle + share * TAU;
        drawing.canvas.open_series(index);
        let tip = format!("{name}: {} ({})", format_value(*value), percent(share));
        let style = format!("fill=\"{}\" class=\"edge\" stroke-width=\"1.5\"", color_of(index, slices.len()));
        drawing.canvas.path(&ring((x, y), hole, radius, angle, end), &style, &tip);
        drawing.canvas.close();
        let text = percent(share);
        let middle = (angle + end) / 2.0;
        let at = if is_donut { (radius + hole) / 2.0 } else { radius * 0.68 };
        // The label must fit between the two sides of the slice.
        if measure(&text, FONT) + 6.0 < share.min(0.5) * TAU * at {
            let (lx, ly) = (x + at * middle.sin(), y - at * middle.cos());
            let class = color::text_on(color_of(index, slices.len()));
            drawing.canvas.label(Label::new(&text, lx, ly, Anchor::Middle).class(class));
        }
        angle = end;
    }
    if is_donut {
        drawing.canvas.label(Label::new(&format_value(total), x, y - 8.0, Anchor::Middle).size(22.0).class("b"));
        drawing.canvas.label(Label::new("total", x, y + 14.0, Anchor::Middle).with_muted());
    }
    draw_names(&mut drawing, &slices, total, x + radius + 40.0, y);
    drawing
}

/// The last slice of many has the colour of the first, unless it takes another.
fn color_of(index: usize, count: usize) -> &'static str {
    let clash = index > 0 && index + 1 == count && index.is_multiple_of(8);
    color::series(if clash { index + 3 } else { index })
}

fn join_small(drawing: &mut ChartSheet, parts: Vec<(String, f64)>) -> Vec<(String, f64)> {
    let mut slices: Vec<_> = parts.into_iter().filter(|(_, value)| *value > 0.0).collect();
    if slices.len() <= MAX_SLICES {
        return slices;
    }
    slices.sort_by(|one, other| other.1.total_cmp(&one.1));
    let rest = slices.split_off(MAX_SLICES - 1);
    drawing.notes.push(format!("the {} smallest slices are joined", rest.len()));
    slices.push((format!("Other ({})", rest.len()), rest.iter().map(|(_, value)| value).sum()));
    slices
}

fn draw_names(drawing: &mut ChartSheet, slices: &[(String, f64)], total: f64, x: f64, y: f64) {
    let row = 24.0;
    let mut at = y - row * (slices.len() as f64 - 1.0) / 2.0;
    for (index, (name, value)) in slices.iter().enumerate() {
        let numbers = format!("{} ({})", format_value(*value), percent(value / total));
        let room = WIDTH - x - 40.0 - measure(&numbers, FONT) - 12.0;
        let name = fit(if name.is_empty() { "(empty)" } else { name }, FONT, room.max(40.0));
        drawing.canvas.open_key(index);
        let swatch = Rect { x, y: at - 6.0, w: 12.0, h: 12.0 };
        drawing.canvas.rect(swatch, &format!("rx=\"2\" fill=\"{}\"", color_of(index, slices.len())), "");
        drawing.canvas.label(Label::new(&name, x + 20.0, at, Anchor::Start));
        drawing.canvas.close();
        let after = x + 20.0 + measure(&name, FONT) + 10.0;
        drawing.canvas.label(Label::new(&numbers, after, at, Anchor::Start).with_muted());
        at += row;
    }
}

/// Formats a share of 1.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 10.0 || percent == 0.0 { format!("{percent:.0}%") } else { format!("{percent:.1}%") }
}

/// Returns the outline of a part of a ring. Angles are clockwise from the top.
pub(super) fn ring((x, y): (f64, f64), inner: f64, outer: f64, from: f64, to: f64) -> String {
    // A whole circle has equal ends, which an arc cannot have.
    let to = to.min(from + TAU - 0.0005);
    let at = |radius: f64, angle: f64| (x + radius * angle.sin(), y - radius * angle.cos());
    let large = to - from > PI;
    let path = PathData::default().to('M', &[at(outer, from)]).arc(outer, large, true, at(outer, to));
    if inner <= 0.0 {
        return path.to('L', &[(x, y)]).close();
    }
    path.to('L', &[at(inner, to)]).arc(inner, large, false, at(inner, from)).close()
}

pub(super) fn draw_gauge(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    let names = frame.name_column()?;
    let bounds = [frame.role(None, &["min"])?, frame.role(None, &["max"])?];
    let values = frame.value_columns(&[names, bounds[0], bounds[1]])?;
    let (Some(&column), count) = (values.first(), frame.table.rows.len()) else {
        return Err(frame.missing("a column of numbers (`y`)"));
    };
    if count > 1 {
        return Err(ChartError::TooMany { kind: "gauge", what: "values", count, max: 1 });
    }
    let Some(value) = frame.number(0, column)? else { return Ok(axes::empty(title)) };
    let bound = |at: usize| bounds[at].map(|column| frame.number(0, column)).transpose().map(Option::flatten);
    let low = frame.options.min.or(bound(0)?).unwrap_or(0.0_f64.min(value));
    let usual = if (0.0..=100.0).contains(&value) { 100.0 } else { value.abs() * 1.25 };
    let high = frame.options.max.or(bound(1)?).unwrap_or(usual);
    if low >= high || !low.is_finite() || !high.is_finite() {
        return Err(ChartError::BadRange { min: format_value(low), max: format_value(high) });
    }
    let mut drawing = ChartSheet::new(WIDTH, 400.0);
    let top = axes::header(&mut drawing, title, &[]);
    let outer = (400.0 - top - 60.0).min(250.0);
    let (x, y) = (WIDTH / 2.0, top + outer + 20.0);
    let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
    let end = -PI / 2.0 + share * PI;
    let canvas = &mut drawing.canvas;
    let inner = outer * 0.7;
    canvas.path(&ring((x, y), inner, outer, -PI / 2.0, PI / 2.0), "class=\"panel\"", "");
    let tip = format!("{} of {} to {}", format_value(value), format_value(low), format_value(high));
    if share > 0.0 {
        let style = format!("fill=\"{}\"", color::series(0));
        canvas.path(&ring((x, y), inner, outer, -PI / 2.0, end), &style, &tip);
    }
    let needle = |radius: f64| (x + radius * end.sin(), y - radius * end.cos());
    canvas.line(needle(inner - 8.0), needle(outer + 8.0), "class=\"ink\" stroke-width=\"3\"");
    canvas.label(Label::new(&format_value(value), x, y - 34.0, Anchor::Middle).size(40.0).class("b"));
    let name = names.map_or_else(|| frame.table.columns[column].clone(), |names| frame.text(0, Some(names)));
    canvas.label(Label::new(&fit(&name, 14.0, inner * 1.5), x, y, Anchor::Middle).size(14.0).with_muted());
    let middle = (inner + outer) / 2.0;
    canvas.label(Label::new(&format_value(low), x - middle, y + 14.0, Anchor::Middle).with_muted());
    canvas.label(Label::new(&format_value(high), x + middle, y + 14.0, Anchor::Middle).with_muted());
    if !(low..=high).contains(&value) {
        drawing.notes.push(format!("the value is outside of {} to {}", format_value(low), format_value(high)));
    }
    Ok(drawing)
}
