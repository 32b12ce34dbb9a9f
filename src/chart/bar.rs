//! Bar charts: side by side or stacked, upright or from left to right.

use super::axes::{self, AxisNames, MARGIN, XAxis};
use super::canvas::{Anchor, FONT, Label, PathData, Rect, fit, measure};
use super::error::ChartError;
use super::frame::{Frame, SeriesSet};
use super::scale::{Scale, format_value};
use super::{ChartSheet, HEIGHT, WIDTH, color};

/// Charts with more categories stay upright.
const MAX_HORIZONTAL: usize = 80;
const ROW: f64 = 26.0;

/// The part of a bar that one series draws: category, series, start and end.
struct Part {
    category: usize,
    series: usize,
    from: f64,
    to: f64,
    value: f64,
}

pub(super) fn draw(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    let set = frame.series(true)?;
    let stacked = frame.options.stacked && set.series.len() > 1;
    let parts = parts(&set, stacked);
    let ends = parts.iter().flat_map(|part| [part.from, part.to]);
    let scale = Scale::over(ends, true, frame.options.min, frame.options.max)?;
    // Long names are readable next to bars, and not below them.
    let band = (WIDTH - 90.0) / set.labels.len().max(1) as f64;
    let long = set.labels.iter().any(|label| measure(label, FONT) > band.max(60.0));
    let fits = set.labels.len() <= MAX_HORIZONTAL;
    if frame.options.horizontal.unwrap_or(long) && fits {
        Ok(draw_horizontal(&set, &parts, scale, title, stacked))
    } else {
        Ok(draw_upright(&set, &parts, scale, title, stacked))
    }
}

fn parts(set: &SeriesSet, stacked: bool) -> Vec<Part> {
    let mut above = vec![0.0; set.labels.len()];
    let mut below = vec![0.0; set.labels.len()];
    let mut parts = Vec::new();
    for (series, of_series) in set.series.iter().enumerate() {
        for (x, value) in &of_series.points {
            let Some(value) = *value else { continue };
            let category = *x as usize;
            let sum = if value < 0.0 { &mut below[category] } else { &mut above[category] };
            let from = if stacked { *sum } else { 0.0 };
            *sum += value;
            parts.push(Part { category, series, from, to: from + value, value });
        }
    }
    parts
}

fn names(set: &SeriesSet) -> Vec<String> {
    set.series.iter().map(|series| series.name.clone()).collect()
}

/// Returns the start and thickness of a bar within its band.
fn slot(part: &Part, series: usize, band: f64, stacked: bool) -> (f64, f64) {
    let inner = (band * 0.8).max(band - 24.0).min(band * 0.92);
    let lanes = if stacked { 1.0 } else { series.max(1) as f64 };
    let lane = if stacked { 0.0 } else { part.series as f64 };
    let thickness = (inner / lanes).min(72.0);
    let start = (band - thickness * lanes) / 2.0 + lane * thickness;
    (start, (thickness * 0.96).max(0.4))
}

fn draw_upright(set: &SeriesSet, parts: &[Part], scale: Scale, title: &str, stacked: bool) -> ChartSheet {
    let names = names(set);
    let mut drawing = ChartSheet::new(WIDTH, HEIGHT);
    let top = axes::header(&mut drawing, title, &names);
    let y_name = if let [only] = names.as_slice() { only.as_str() } else { "" };
    let axis = XAxis::categories(&set.labels);
    let plot = axes::draw_axes(&mut drawing, top, &axis, scale, AxisNames { x: &set.x_name, y: y_name });
    let band = plot.area.w / set.labels.len().max(1) as f64;
    if band < 1.5 {
        draw_outline(&mut drawing, parts, names.len(), &plot);
        return drawing;
    }
    for series in 0..names.len() {
        drawing.canvas.open_series(series);
        for part in parts.iter().filter(|part| part.series == series) {
            let (start, thickness) = slot(part, names.len(), band, stacked);
            let (one, other) = (plot.y.at(part.from), plot.y.at(part.to));
            let x = plot.area.x + part.category as f64 * band + start;
            let rect = Rect { x, y: one.min(other), w: thickness, h: (one - other).abs() };
            let style = format!("fill=\"{}\"", color::series(series));
            drawing.canvas.rect(rect, &style, &tip(set, part));
        }
        drawing.canvas.close();
    }
    let labelled = parts.len() <= 40;
    for part in parts.iter().filter(|_| labelled) {
        let (start, thickness) = slot(part, names.len(), band, stacked);
        let x = plot.area.x + part.category as f64 * band + start + thickness / 2.0;
        let (from, to) = (plot.y.at(part.from), plot.y.at(part.to));
        let text = format_value(part.value);
        if stacked {
            if measure(&text, 11.0) <= thickness && (from - to).abs() >= 15.0 {
                let class = color::text_on(color::series(part.series));
                drawing.canvas.label(Label::new(&text, x, (from + to) / 2.0, Anchor::Middle).size(11.0).class(class));
            }
        } else if measure(&text, 11.0) <= thickness + 12.0 {
            let y = if part.value < 0.0 { to + 9.0 } else { to - 8.0 };
            drawing.canvas.label(Label::new(&text, x, y, Anchor::Middle).size(11.0));
        }
    }
    drawing
}

/// Draws bars that are narrower than a pixel as one area per series, which reaches the longest bar of each pixel.
fn draw_outline(drawing: &mut ChartSheet, parts: &[Part], series: usize, plot: &axes::PlotArea) {
    let zero = plot.y.at(0.0);
    for index in 0..series {
        let mut ends: std::collections::BTreeMap<i64, (f64, f64)> = std::collections::BTreeMap::new();
        for part in parts.iter().filter(|part| part.series == index) {
            let (x, y) = (plot.x.at(part.category as f64).floor() as i64, plot.y.at(part.to));
            let end = ends.entry(x).or_insert((zero, zero));
            *end = (end.0.min(y), end.1.max(y));
        }
        let mut path = PathData::default();
        for (x, (top, bottom)) in ends {
            let x = (x as f64).min(plot.area.right() - 1.0);
            path.push('M', &[(x, top), (x + 1.0, top), (x + 1.0, bottom), (x, bottom)]);
        }
        drawing.canvas.open_series(index);
        drawing.canvas.path(&path.end(), &format!("fill=\"{}\"", color::series(index)), "");
        drawing.canvas.close();
    }
    drawing.notes.push("bars narrower than a pixel are joined; the longest of each pixel is shown".to_owned());
}

fn draw_horizontal(set: &SeriesSet, parts: &[Part], scale: Scale, title: &str, stacked: bool) -> ChartSheet {
    let names = names(set);
    let lanes = if stacked { 1 } else { names.len().max(1) };
    let row = ROW.max(lanes as f64 * 14.0 + 6.0);
    let needed = set.labels.len() as f64 * row + 110.0 + if title.is_empty() { 0.0 } else { 30.0 };
    let mut drawing = ChartSheet::new(WIDTH, needed.max(220.0));
    let top = axes::header(&mut drawing, title, &names) + 4.0;
    let canvas = &mut drawing.canvas;
    let widest = set.labels.iter().map(|label| measure(label, FONT)).fold(0.0, f64::max).min(260.0);
    let left = MARGIN + widest + 10.0;
    let area = Rect { x: left, y: top, w: WIDTH - left - 70.0, h: canvas.height - top - 48.0 };
    let x = scale.to_pixels(area.x, area.right());
    for (value, label) in scale.ticks(6) {
        let at = x.at(value);
        let class = if value == 0.0 { "axis" } else { "grid" };
        canvas.line((at, area.y), (at, area.bottom()), &format!("class=\"{class}\""));
        canvas.label(Label::new(&label, at, area.bottom() + 12.0, Anchor::Middle).with_muted());
    }
    if let [only] = names.as_slice() {
        let name = fit(only, FONT, 200.0);
        canvas.label(Label::new(&name, area.x + area.w / 2.0, canvas.height - 14.0, Anchor::Middle).with_muted());
    }
    let band = area.h / set.labels.len().max(1) as f64;
    for (index, label) in set.labels.iter().enumerate() {
        let y = area.y + (index as f64 + 0.5) * band;
        canvas.label(Label::new(&fit(label, FONT, widest + 1.0), left - 8.0, y, Anchor::End));
    }
    for series in 0..names.len() {
        drawing.canvas.open_series(series);
        for part in parts.iter().filter(|part| part.series == series) {
            let (start, thickness) = slot(part, names.len(), band, stacked);
            let (one, other) = (x.at(part.from), x.at(part.to));
            let y = area.y + part.category as f64 * band + start;
            let rect = Rect { x: one.min(other), y, w: (one - other).abs(), h: thickness };
            drawing.canvas.rect(rect, &format!("fill=\"{}\"", color::series(series)), &tip(set, part));
        }
        drawing.canvas.close();
    }
    for part in parts.iter().filter(|_| !stacked) {
        let (start, thickness) = slot(part, names.len(), band, stacked);
        let y = area.y + part.category as f64 * band + start + thickness / 2.0;
        let at = x.at(part.to);
        let (at, anchor) = if part.value < 0.0 { (at - 4.0, Anchor::End) } else { (at + 4.0, Anchor::Start) };
        let size = 11.0_f64.min(thickness);
        if size >= 8.0 {
            drawing.canvas.label(Label::new(&format_value(part.value), at, y, anchor).size(size));
        }
    }
    drawing
}

fn tip(set: &SeriesSet, part: &Part) -> String {
    let (label, value) = (&set.labels[part.category], format_value(part.value));
    if set.series.len() > 1 {
        format!("{label}, {}: {value}", set.series[part.series].name)
    } else {
        format!("{label}: {value}")
    }
}
