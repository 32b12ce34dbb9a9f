//! Funnel charts.

use super::axes::{self, MARGIN};
use super::canvas::{Anchor, FONT, Label, PathData, fit, measure};
use super::error::ChartError;
use super::frame::Frame;
use super::pie::percent;
use super::scale::format_value;
use super::{ChartSheet, WIDTH, color};

const MAX_STAGES: usize = 40;

pub(super) fn draw(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    let parts = frame.parts()?;
    if parts.len() > MAX_STAGES {
        let (kind, count) = (frame.kind.title(), parts.len());
        return Err(ChartError::TooMany { kind, what: "stages", count, max: MAX_STAGES });
    }
    let row = 52.0;
    let mut drawing = ChartSheet::new(WIDTH, 80.0 + row * parts.len().max(2) as f64);
    let top = axes::header(&mut drawing, title, &[]) + 6.0;
    let largest = parts.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let first = parts.first().map_or(0.0, |(_, value)| *value);
    let widest = parts.iter().map(|(name, _)| measure(name, FONT)).fold(0.0, f64::max).min(220.0);
    let left = MARGIN + widest + 14.0;
    let width = WIDTH - left - 150.0;
    let middle = left + width / 2.0;
    let half = |value: f64| if largest > 0.0 { (value / largest * width / 2.0).max(1.0) } else { 1.0 };
    for (index, (name, value)) in parts.iter().enumerate() {
        let y = top + index as f64 * row;
        let next = parts.get(index + 1).map_or(*value, |(_, next)| *next);
        let (upper, lower) = (half(*value), half(next));
        let outline = [
            (middle - upper, y),
            (middle + upper, y),
            (middle + lower, y + row - 4.0),
            (middle - lower, y + row - 4.0),
        ];
        let share = if first > 0.0 { percent(value / first) } else { "–".to_owned() };
        let tip = format!("{name}: {} ({share} of the first stage)", format_value(*value));
        let style = format!("fill=\"{}\"", color::series(0));
        let opacity = 1.0 - 0.5 * index as f64 / parts.len() as f64;
        let style = format!("{style} fill-opacity=\"{opacity:.2}\"");
        drawing.canvas.path(&PathData::default().to('M', &outline).close(), &style, &tip);
        let at = y + row / 2.0 - 2.0;
        drawing.canvas.label(Label::new(&fit(name, FONT, widest + 1.0), left - 8.0, at, Anchor::End));
        let numbers = format!("{} ({share})", format_value(*value));
        drawing.canvas.label(Label::new(&numbers, middle + width / 2.0 + 12.0, at, Anchor::Start).with_muted());
    }
    Ok(drawing)
}
