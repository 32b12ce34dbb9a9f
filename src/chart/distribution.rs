//! Box plots, histograms and candlestick charts.

use super::axes::{self, AxisNames, XAxis};
use super::canvas::{Anchor, Label, PathData, Rect};
use super::error::ChartError;
use super::frame::{AxisKind, Frame};
use super::scale::{self, Scale, format_value};
use super::{ChartSheet, HEIGHT, WIDTH, color};

const MAX_BOXES: usize = 60;
/// Outliers that one box shows.
const MAX_OUTLIERS: usize = 200;
const MAX_BINS: usize = 60;
/// More candles are joined.
const MAX_CANDLES: usize = 150;

/// The five numbers of a box, and the values outside of its whiskers.
struct BoxStats {
    name: String,
    whiskers: (f64, f64),
    quartiles: [f64; 3],
    outliers: Vec<f64>,
    count: usize,
}

impl BoxStats {
    fn of(name: String, mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let quartiles = [0.25, 0.5, 0.75].map(|share| quantile(&values, share));
        let reach = 1.5 * (quartiles[2] - quartiles[0]);
        let (low, high) = (quartiles[0] - reach, quartiles[2] + reach);
        let inside = || values.iter().copied().filter(|value| (low..=high).contains(value));
        let whiskers = (inside().fold(quartiles[0], f64::min), inside().fold(quartiles[2], f64::max));
        let outliers = values.iter().copied().filter(|value| !(low..=high).contains(value)).collect();
        Self { name, whiskers, quartiles, outliers, count: values.len() }
    }
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len().max(1) - 1) as f64;
    let low = sorted.get(at.floor() as usize).copied().unwrap_or_default();
    let high = sorted.get(at.ceil() as usize).copied().unwrap_or(low);
    low + (high - low) * at.fract()
}

pub(super) fn draw_boxes(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    let group = match frame.options.group.as_ref().or(frame.options.x.as_ref()) {
        Some(name) => Some(frame.column(name)?),
        None => frame.text_columns().first().copied(),
    };
    let columns = frame.value_columns(&[group])?;
    let mut groups: Vec<(String, Vec<f64>)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for &column in &columns {
        for (row, value) in frame.numbers(column)?.into_iter().enumerate() {
            let Some(value) = value else { continue };
            let name = match group {
                Some(group) if columns.len() > 1 => {
                    format!("{} {}", frame.text(row, Some(group)), frame.table.columns[column])
                }
                Some(group) => frame.text(row, Some(group)),
                None => frame.table.columns[column].clone(),
            };
            let place = *places.entry(name.clone()).or_insert_with(|| {
                groups.push((name, Vec::new()));
                groups.len() - 1
            });
            groups[place].1.push(value);
        }
    }
    if groups.len() > MAX_BOXES {
        let (kind, count) = (frame.kind.title(), groups.len());
        return Err(ChartError::TooMany { kind, what: "boxes", count, max: MAX_BOXES });
    }
    let boxes: Vec<_> = groups.into_iter().map(|(name, values)| BoxStats::of(name, values)).collect();
    let ends =
        boxes.iter().flat_map(|stats| stats.outliers.iter().copied().chain([stats.whiskers.0, stats.whiskers.1]));
    let y = Scale::over(ends, false, frame.options.min, frame.options.max)?;
    let mut drawing = ChartSheet::new(WIDTH, HEIGHT);
    let top = axes::header(&mut drawing, title, &[]);
    let labels: Vec<_> = boxes.iter().map(|stats| stats.name.clone()).collect();
    let y_name = if let [only] = columns.as_slice() { frame.table.columns[*only].as_str() } else { "" };
    let x_name = group.map_or("", |group| frame.table.columns[group].as_str());
    let plot = axes::draw_axes(&mut drawing, top, &XAxis::categories(&labels), y, AxisNames { x: x_name, y: y_name });
    let band = plot.area.w / boxes.len().max(1) as f64;
    for (index, stats) in boxes.iter().enumerate() {
        draw_box(&mut drawing, &plot, stats, plot.x.at(index as f64), (band * 0.5).min(70.0));
    }
    Ok(drawing)
}

fn draw_box(drawing: &mut ChartSheet, plot: &axes::PlotArea, stats: &BoxStats, x: f64, width: f64) {
    let canvas = &mut drawing.canvas;
    let color = color::series(0);
    let at = |value: f64| plot.y.at(value);
    let [first, median, third] = stats.quartiles;
    let tip = format!(
        "{}: median {}, quartiles {} and {}, whiskers {} and {}, {} values",
        stats.name,
        format_value(median),
        format_value(first),
        format_value(third),
        format_value(stats.whiskers.0),
        format_value(stats.whiskers.1),
        stats.count
    );
    for (end, edge) in [(stats.whiskers.0, first), (stats.whiskers.1, third)] {
        canvas.line((x, at(end)), (x, at(edge)), "class=\"ink\"");
        canvas.line((x - width / 4.0, at(end)), (x + width / 4.0, at(end)), "class=\"ink\"");
    }
    let rect = Rect { x: x - width / 2.0, y: at(third), w: width, h: at(first) - at(third) };
    canvas.rect(rect, &format!("fill=\"{color}\" fill-opacity=\"0.45\" stroke=\"{color}\""), &tip);
    let style = "class=\"ink\" stroke-width=\"2\"";
    canvas.line((x - width / 2.0, at(median)), (x + width / 2.0, at(median)), style);
    let mut last = f64::NAN;
    for value in stats.outliers.iter().take(MAX_OUTLIERS) {
        let y = at(*value);
        if (y - last).abs() < 1.0 {
            continue;
        }
        last = y;
        let tip = format!("{}: {}", stats.name, format_value(*value));
        canvas.circle(x, y, 3.0, &format!("fill=\"none\" stroke=\"{color}\""), &tip);
    }
}

pub(super) fn draw_histogram(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    let columns = match (&frame.options.y.is_empty(), &frame.options.x) {
        (true, Some(x)) => vec![frame.column(x)?],
        _ => frame.value_columns(&[])?,
    };
    let Some(&column) = columns.first() else { return Err(frame.missing("a column of numbers (`y`)")) };
    let mut values: Vec<f64> = frame.numbers(column)?.into_iter().flatten().collect();
    values.sort_by(f64::total_cmp);
    let (Some(&low), Some(&high)) = (values.first(), values.last()) else { return Ok(axes::empty(title)) };
    let (start, width, count) = bins(&values, low, high, frame.options.bins);
    let mut counts = vec![0usize; count];
    for value in &values {
        let bin = ((value - start) / width).floor().clamp(0.0, (count - 1) as f64) as usize;
        counts[bin] += 1;
    }
    let y = Scale::over(counts.iter().map(|count| *count as f64), true, None, frame.options.max)?;
    let x = Scale::new(start, start + width * count as f64);
    let mut drawing = ChartSheet::new(WIDTH, HEIGHT);
    let top = axes::header(&mut drawing, title, &[]);
    let name = &frame.table.columns[column];
    let axis = XAxis { kind: AxisKind::Number, scale: x, labels: &[] };
    let plot = axes::draw_axes(&mut drawing, top, &axis, y, AxisNames { x: name, y: "count" });
    for (index, count) in counts.iter().enumerate() {
        let from = start + width * index as f64;
        let (left, right) = (plot.x.at(from), plot.x.at(from + width));
        let top = plot.y.at(*count as f64);
        let rect = Rect { x: left + 0.5, y: top, w: (right - left - 1.0).max(0.5), h: plot.area.bottom() - top };
        let tip = format!("{} to {}: {count}", format_value(from), format_value(from + width));
        drawing.canvas.rect(rect, &format!("fill=\"{}\"", color::series(0)), &tip);
    }
    Ok(drawing)
}

/// Returns start, width and number of bins: as asked for, or by the rule of Freedman and Diaconis with round edges.
fn bins(sorted: &[f64], low: f64, high: f64, wanted: Option<usize>) -> (f64, f64, usize) {
    if high <= low {
        let half = if low == 0.0 { 0.5 } else { low.abs() * 0.05 };
        return (low - half, 2.0 * half, 1);
    }
    if let Some(count) = wanted {
        let count = count.clamp(1, 200);
        return (low, (high - low) / count as f64, count);
    }
    let spread = quantile(sorted, 0.75) - quantile(sorted, 0.25);
    let width = 2.0 * spread / (sorted.len() as f64).cbrt();
    let count = if width > 0.0 { ((high - low) / width).ceil() } else { (sorted.len() as f64).sqrt() };
    let width = scale::step(high - low, count.clamp(1.0, MAX_BINS as f64 / 2.0) as usize);
    let start = (low / width).floor() * width;
    let count = (((high - start) / width).floor() as usize + 1).clamp(1, 2 * MAX_BINS);
    (start, width, count)
}

/// The prices of one period.
struct Candle {
    label: String,
    open: f64,
    high: f64,
    low: f64,
    close: f64,
}

pub(super) fn draw_candles(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    let candles = read_candles(frame)?;
    let joined = candles.len().div_ceil(MAX_CANDLES).max(1);
    let candles: Vec<_> = candles.chunks(joined).map(join).collect();
    let y = Scale::over(candles.iter().flat_map(|c| [c.low, c.high]), false, frame.options.min, frame.options.max)?;
    let mut drawing = ChartSheet::new(WIDTH, HEIGHT);
    let top = axes::header(&mut drawing, title, &[]);
    let labels: Vec<_> = candles.iter().map(|candle| candle.label.clone()).collect();
    let plot = axes::draw_axes(&mut drawing, top, &XAxis::categories(&labels), y, AxisNames { x: "", y: "" });
    let width = (plot.area.w / candles.len().max(1) as f64 * 0.7).clamp(1.0, 24.0);
    for (index, candle) in candles.iter().enumerate() {
        let x = plot.x.at(index as f64);
        let rises = candle.close >= candle.open;
        // A rising candle is hollow and a falling one is filled, so that colour is not the only difference.
        let color = color::series(if rises { 2 } else { 1 });
        let (top, bottom) = (plot.y.at(candle.open.max(candle.close)), plot.y.at(candle.open.min(candle.close)));
        let [high, low] = [candle.high, candle.low].map(|value| plot.y.at(value));
        let wick = PathData::default().to('M', &[(x, high), (x, top)]).to('M', &[(x, bottom), (x, low)]).end();
        drawing.canvas.path(&wick, &format!("fill=\"none\" stroke=\"{color}\" stroke-width=\"1.3\""), "");
        let tip = format!(
            "{}: open {}, high {}, low {}, close {}",
            candle.label,
            format_value(candle.open),
            format_value(candle.high),
            format_value(candle.low),
            format_value(candle.close)
        );
        let rect = Rect { x: x - width / 2.0, y: top, w: width, h: (bottom - top).max(1.0) };
        let fill = if rises { "class=\"bg\"".to_owned() } else { format!("fill=\"{color}\"") };
        drawing.canvas.rect(rect, &format!("{fill} stroke=\"{color}\" stroke-width=\"1.3\""), &tip);
    }
    let legend = "hollow: rises, filled: falls";
    let (x, y) = (WIDTH - 20.0, plot.area.y - 10.0);
    drawing.canvas.label(Label::new(legend, x, y, Anchor::End).with_muted().size(11.0));
    if joined > 1 {
        drawing.notes.push(format!("each candle joins {joined} rows"));
    }
    Ok(drawing)
}

fn join(candles: &[Candle]) -> Candle {
    let (first, last) = (&candles[0], &candles[candles.len() - 1]);
    Candle {
        label: first.label.clone(),
        open: first.open,
        close: last.close,
        high: candles.iter().map(|candle| candle.high).fold(first.high, f64::max),
        low: candles.iter().map(|candle| candle.low).fold(first.low, f64::min),
    }
}

fn read_candles(frame: Frame<'_>) -> Result<Vec<Candle>, ChartError> {
    let column = |name: &str| {
        let found = frame.role(None, &[name, &name[..1]])?;
        found.ok_or_else(|| frame.missing("the columns `open`, `high`, `low` and `close`"))
    };
    let columns = [column("open")?, column("high")?, column("low")?, column("close")?];
    let names = match frame.name_column()? {
        Some(names) => Some(names),
        None => (0..frame.table.columns.len()).find(|column| !columns.contains(column)),
    };
    let mut candles = Vec::new();
    for row in 0..frame.table.rows.len() {
        let mut values = [0.0; 4];
        let mut complete = true;
        for (value, column) in values.iter_mut().zip(columns) {
            match frame.number(row, column)? {
                Some(number) => *value = number,
                None => complete = false,
            }
        }
        if !complete {
            continue;
        }
        let [open, high, low, close] = values;
        let label = frame.text(row, names);
        if low > open.min(close) || high < open.max(close) {
            let [open, high, low, close] = values.map(format_value);
            let (range, prices) = (format!("low {low} and high {high}"), format!("open {open} and close {close}"));
            return Err(ChartError::BadCandle { row: row + 1, label, range, prices });
        }
        candles.push(Candle { label, open, high, low, close });
    }
    Ok(candles)
}
