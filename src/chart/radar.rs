//! Radar charts.

use std::f64::consts::TAU;

use super::axes;
use super::canvas::{Anchor, FONT, Label, PathData, fit};
use super::error::ChartError;
use super::frame::Frame;
use super::scale::{Scale, format_value};
use super::{ChartSheet, WIDTH, color};

const MAX_AXES: usize = 40;
const HEIGHT: f64 = 560.0;

pub(super) fn draw(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    let set = frame.series(true)?;
    let count = set.labels.len();
    if count < 3 {
        let advice = "add rows, or draw a bar chart";
        return Err(ChartError::TooFew { kind: "radar chart", what: "rows (axes)", count, min: 3, advice });
    }
    if count > MAX_AXES {
        return Err(ChartError::TooMany { kind: "radar chart", what: "rows (axes)", count, max: MAX_AXES });
    }
    let scale = Scale::over(set.values(), true, frame.options.min, frame.options.max)?;
    let names: Vec<_> = set.series.iter().map(|series| series.name.clone()).collect();
    let mut drawing = ChartSheet::new(WIDTH, HEIGHT);
    let top = axes::header(&mut drawing, title, &names);
    let radius = (HEIGHT - top) / 2.0 - 40.0;
    let (x, y) = (WIDTH / 2.0, (top + HEIGHT) / 2.0);
    let scale = scale.to_pixels(0.0, radius);
    let at = |axis: usize, distance: f64| {
        let angle = axis as f64 / count as f64 * TAU;
        (x + distance * angle.sin(), y - distance * angle.cos())
    };
    let ticks = scale.ticks(4);
    for (value, _) in &ticks {
        let points: Vec<_> = (0..count).map(|axis| at(axis, scale.at(*value))).collect();
        let class = if *value == 0.0 && scale.min < 0.0 { "axis" } else { "grid" };
        let ring = PathData::default().to('M', &points).close();
        drawing.canvas.path(&ring, &format!("fill=\"none\" class=\"{class}\""), "");
    }
    for (axis, label) in set.labels.iter().enumerate() {
        drawing.canvas.line((x, y), at(axis, radius), "class=\"grid\"");
        let (lx, ly) = at(axis, radius + 14.0);
        let side = lx - x;
        let anchor = if side.abs() < 8.0 {
            Anchor::Middle
        } else if side > 0.0 {
            Anchor::Start
        } else {
            Anchor::End
        };
        let room = if anchor == Anchor::Middle { 240.0 } else { WIDTH / 2.0 - side.abs() - 8.0 };
        drawing.canvas.label(Label::new(&fit(label, FONT, room), lx, ly, anchor));
    }
    for (index, series) in set.series.iter().enumerate() {
        drawing.canvas.open_series(index);
        let value = |axis: usize| series.points.iter().find(|(x, _)| *x as usize == axis).and_then(|(_, value)| *value);
        let points: Vec<_> = (0..count).map(|axis| at(axis, scale.at(value(axis).unwrap_or(0.0)))).collect();
        let color = color::series(index);
        let style = format!("fill=\"{color}\" fill-opacity=\"0.15\" stroke=\"{color}\" stroke-width=\"2\"");
        drawing.canvas.path(&PathData::default().to('M', &points).close(), &style, "");
        for (axis, (px, py)) in points.into_iter().enumerate() {
            if let Some(value) = value(axis) {
                let tip = format!("{}, {}: {}", set.labels[axis], series.name, format_value(value));
                drawing.canvas.circle(px, py, 3.5, &format!("fill=\"{color}\" class=\"edge\""), &tip);
            }
        }
        drawing.canvas.close();
    }
    for (value, label) in &ticks {
        let (tx, ty) = at(0, scale.at(*value));
        drawing.canvas.label(Label::new(label, tx + 5.0, ty - 6.0, Anchor::Start).size(10.0).with_muted());
    }
    Ok(drawing)
}
