//! The parts that charts share: title, legend, axes and grid.

use super::canvas::{Anchor, FONT, Label, Rect, fit, measure, wrap};
use super::frame::AxisKind;
use super::scale::Scale;
use super::{ChartSheet, HEIGHT, WIDTH, color, time};

pub(super) const MARGIN: f64 = 16.0;
const TITLE: f64 = 17.0;
/// Lines of a legend; entries beyond them are counted.
const MAX_LEGEND_LINES: usize = 4;
const SWATCH: f64 = 11.0;

/// Draws a picture without data.
pub(super) fn empty(title: &str) -> ChartSheet {
    let mut drawing = ChartSheet::new(WIDTH, HEIGHT);
    let top = header(&mut drawing, title, &[]);
    let (x, y) = (WIDTH / 2.0, (top + HEIGHT) / 2.0);
    drawing.canvas.label(Label::new("No data", x, y, Anchor::Middle).with_muted().size(16.0));
    drawing.notes.push("the data has no rows".to_owned());
    drawing
}

/// Draws the title, and a legend if there are several names. Returns the y coordinate below them.
pub(super) fn header(drawing: &mut ChartSheet, title: &str, names: &[String]) -> f64 {
    let canvas = &mut drawing.canvas;
    let mut y = MARGIN;
    for line in wrap(title, TITLE * 1.08, canvas.width - 2.0 * MARGIN, 2) {
        canvas.label(Label::new(&line, MARGIN, y + TITLE * 0.6, Anchor::Start).size(TITLE).class("b"));
        y += TITLE * 1.3;
    }
    if names.len() < 2 { y + 4.0 } else { legend(drawing, y, names) }
}

/// Draws a legend below `y`. Returns the y coordinate below it.
pub(super) fn legend(drawing: &mut ChartSheet, y: f64, names: &[String]) -> f64 {
    let canvas = &mut drawing.canvas;
    let mut y = y + 6.0;
    let mut x = MARGIN;
    let mut lines = 1;
    for (index, name) in names.iter().enumerate() {
        let text = fit(if name.is_empty() { "(empty)" } else { name }, FONT, 170.0);
        let width = SWATCH + 6.0 + measure(&text, FONT) + 16.0;
        // The last line keeps room for the count of what is left out.
        let room = if lines == MAX_LEGEND_LINES && index + 1 < names.len() { 90.0 } else { 0.0 };
        if x + width > canvas.width - MARGIN - room && x > MARGIN {
            if lines == MAX_LEGEND_LINES {
                let more = format!("+{} more", names.len() - index);
                canvas.label(Label::new(&more, x, y + 8.0, Anchor::Start).with_muted());
                break;
            }
            lines += 1;
            y += 19.0;
            x = MARGIN;
        }
        canvas.open_key(index);
        let swatch = Rect { x, y: y + 2.0, w: SWATCH, h: SWATCH };
        canvas.rect(swatch, &format!("rx=\"2\" fill=\"{}\"", color::series(index)), "");
        canvas.label(Label::new(&text, x + SWATCH + 6.0, y + 8.0, Anchor::Start));
        canvas.close();
        x += width;
    }
    y + 24.0
}

/// Names and kinds of the two axes.
#[derive(Debug, Clone, Copy)]
pub(super) struct AxisNames<'a> {
    pub(super) x: &'a str,
    pub(super) y: &'a str,
}

/// A horizontal axis: its scale without pixels, and its labels.
#[derive(Debug, Clone)]
pub(super) struct XAxis<'a> {
    pub(super) kind: AxisKind,
    pub(super) scale: Scale,
    /// Labels of the positions of a category axis.
    pub(super) labels: &'a [String],
}

impl XAxis<'_> {
    pub(super) fn categories(labels: &[String]) -> XAxis<'_> {
        let end = labels.len().max(1) as f64 - 0.5;
        XAxis { kind: AxisKind::Category, scale: Scale::new(-0.5, end), labels }
    }
}

/// The area between the axes, with scales that map to its pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlotArea {
    pub(super) area: Rect,
    pub(super) x: Scale,
    pub(super) y: Scale,
}

/// Draws grid, axes and their labels between `top` and the bottom of the picture.
pub(super) fn draw_axes(
    drawing: &mut ChartSheet,
    top: f64,
    axis: &XAxis<'_>,
    y: Scale,
    names: AxisNames<'_>,
) -> PlotArea {
    let canvas = &mut drawing.canvas;
    let ticks = y.ticks(6);
    let widest = ticks.iter().map(|(_, label)| measure(label, FONT)).fold(0.0, f64::max);
    let left = MARGIN + widest + 8.0;
    let mut top = top + 8.0;
    if !names.y.is_empty() {
        let name = fit(names.y, FONT, canvas.width / 2.0);
        canvas.label(Label::new(&name, MARGIN, top + 4.0, Anchor::Start).with_muted());
        top += 20.0;
    }
    let below = if names.x.is_empty() { 30.0 } else { 48.0 };
    let area = Rect { x: left, y: top, w: canvas.width - left - MARGIN - 8.0, h: canvas.height - top - below };
    let y = y.to_pixels(area.bottom(), area.y);
    for (value, label) in &ticks {
        let at = y.at(*value);
        let class = if *value == 0.0 { "axis" } else { "grid" };
        canvas.line((area.x, at), (area.right(), at), &format!("class=\"{class}\""));
        canvas.label(Label::new(label, left - 8.0, at, Anchor::End).with_muted());
    }
    let x = axis.scale.to_pixels(area.x, area.right());
    canvas.line((area.x, area.bottom()), (area.right(), area.bottom()), "class=\"axis\"");
    if !names.x.is_empty() {
        let name = fit(names.x, FONT, area.w / 2.0);
        canvas.label(Label::new(&name, area.x + area.w / 2.0, canvas.height - 14.0, Anchor::Middle).with_muted());
    }
    draw_positions(drawing, axis, x, area);
    PlotArea { area, x, y }
}

fn draw_positions(drawing: &mut ChartSheet, axis: &XAxis<'_>, x: Scale, area: Rect) {
    let canvas = &mut drawing.canvas;
    let baseline = area.bottom() + 16.0;
    if axis.kind == AxisKind::Category {
        let band = area.w / axis.labels.len().max(1) as f64;
        let wanted = axis.labels.iter().map(|label| measure(label, FONT)).fold(0.0, f64::max) + 8.0;
        // Long labels are cut, but keep about ten letters.
        let every = (wanted.min(110.0) / band).ceil().max(1.0) as usize;
        for (index, label) in axis.labels.iter().enumerate().step_by(every) {
            let text = fit(label, FONT, band * every as f64 - 6.0);
            let at = x.at(index as f64);
            let half = measure(&text, FONT) / 2.0;
            let at = at.clamp(half + 2.0, (canvas.width - half - 2.0).max(half + 2.0));
            canvas.label(Label::new(&text, at, baseline, Anchor::Middle).with_muted());
        }
        return;
    }
    let ticks =
        if axis.kind == AxisKind::Time { time::ticks(axis.scale.min, axis.scale.max, 8) } else { axis.scale.ticks(8) };
    for (value, label) in ticks {
        let at = x.at(value);
        canvas.line((at, area.bottom()), (at, area.bottom() + 4.0), "class=\"axis\"");
        let half = measure(&label, FONT) / 2.0;
        let middle = at.clamp(half + 2.0, (canvas.width - half - 2.0).max(half + 2.0));
        canvas.label(Label::new(&label, middle, baseline, Anchor::Middle).with_muted());
    }
}

/// Draws a colour scale at the right edge of the header line `y`, from `low` to `high`.
pub(super) fn draw_color_scale(drawing: &mut ChartSheet, y: f64, low: &str, high: &str, shade: impl Fn(f64) -> String) {
    let canvas = &mut drawing.canvas;
    let (width, steps) = (160.0, 32);
    let right = canvas.width - MARGIN - measure(high, FONT) - 6.0;
    let start = right - width;
    for step in 0..steps {
        let share = f64::from(step) / f64::from(steps - 1);
        let part = width / f64::from(steps);
        let rect = Rect {
            x: start + f64::from(step) * part,
            y,
            w: if step + 1 < steps { part + 1.0 } else { part },
            h: SWATCH,
        };
        canvas.rect(rect, &format!("fill=\"{}\"", shade(share)), "");
    }
    canvas.label(Label::new(low, start - 6.0, y + 5.5, Anchor::End).with_muted());
    canvas.label(Label::new(high, right + 6.0, y + 5.5, Anchor::Start).with_muted());
}
