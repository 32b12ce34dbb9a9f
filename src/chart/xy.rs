//! Line, area, scatter and bubble charts.

use super::axes::{self, AxisNames, PlotArea, XAxis};
use super::canvas::{Anchor, Label, PathData, fit, num};
use super::error::ChartError;
use super::frame::{AxisKind, Frame, Series, SeriesSet};
use super::scale::{Scale, format_value};
use super::{ChartKind, ChartSheet, HEIGHT, WIDTH, color};

/// Series with more points have no markers.
const MAX_MARKERS: usize = 60;
/// Points of a series that show their value under the pointer.
const MAX_TIPS: usize = 250;
/// More points than this are drawn as a density.
const MAX_POINTS: usize = 2_000;
/// Edge of a cell of a density, in pixels.
const CELL: f64 = 3.0;
const MAX_RADIUS: f64 = 34.0;
const DASHES: [&str; 4] = ["", "6 3", "2 3", "9 3 2 3"];

pub(super) fn draw_lines(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    let mut set = frame.series(false)?;
    let is_area = frame.kind == ChartKind::Area;
    let tops: Vec<Series> = set.series.clone();
    let stacked = is_area && frame.options.stacked && set.series.len() > 1;
    let bases = if stacked { stack(&mut set) } else { Vec::new() };
    let y = Scale::over(set.values(), is_area, frame.options.min, frame.options.max)?;
    let names: Vec<_> = set.series.iter().map(|series| series.name.clone()).collect();
    let mut drawing = ChartSheet::new(WIDTH, HEIGHT);
    let top = axes::header(&mut drawing, title, &names);
    let axis = x_axis(&set);
    let y_name = if let [only] = names.as_slice() { only.as_str() } else { "" };
    let plot = axes::draw_axes(&mut drawing, top, &axis, y, AxisNames { x: &set.x_name, y: y_name });
    for (index, series) in set.series.iter().enumerate().rev() {
        drawing.canvas.open_series(index);
        if is_area {
            let base = bases.get(index);
            fill_area(&mut drawing, &plot, series, base.map(Vec::as_slice), index, stacked);
        }
        draw_line(&mut drawing, &plot, series, index);
        let tip = |point: usize| {
            let (x, value) = tops[index].points[point];
            format!("{}, {}: {}", set.position(x), series.name, format_value(value.unwrap_or_default()))
        };
        draw_markers(&mut drawing, &plot, series, index, tip);
        drawing.canvas.close();
    }
    Ok(drawing)
}

fn x_axis(set: &SeriesSet) -> XAxis<'_> {
    if set.kind == AxisKind::Category {
        return XAxis::categories(&set.labels);
    }
    let positions = set.series.iter().flat_map(|series| series.points.iter().map(|(x, _)| *x));
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    let (min, max) = positions.fold(start, |(min, max), x| (min.min(x), max.max(x)));
    // One time has a day on each side.
    let (min, max) =
        if set.kind == AxisKind::Time && min == max { (min - 86_400.0, max + 86_400.0) } else { (min, max) };
    XAxis { kind: set.kind, scale: Scale::new(min, max), labels: &set.labels }
}

/// Adds up the series at each position. Returns the base of each point.
fn stack(set: &mut SeriesSet) -> Vec<Vec<f64>> {
    let mut sums: std::collections::HashMap<u64, f64> = std::collections::HashMap::new();
    let mut bases = Vec::new();
    for series in &mut set.series {
        let mut of_series = Vec::new();
        for (x, value) in &mut series.points {
            let sum = sums.entry(x.to_bits()).or_default();
            of_series.push(*sum);
            *sum += value.unwrap_or_default();
            *value = Some(*sum);
        }
        bases.push(of_series);
    }
    bases
}

/// Returns the runs of points without a gap, in pixels, with at most four points per pixel column: the first, the
/// lowest, the highest and the last. These look the same as all points.
fn runs(plot: &PlotArea, points: impl Iterator<Item = (f64, Option<f64>)>) -> Vec<Vec<(f64, f64)>> {
    let mut runs: Vec<Vec<(f64, f64)>> = vec![Vec::new()];
    let mut column: Vec<(f64, f64)> = Vec::new();
    let flush = |column: &mut Vec<(f64, f64)>, run: &mut Vec<(f64, f64)>| {
        if column.len() <= 4 {
            run.append(column);
            return;
        }
        let by_y = |one: &&(f64, f64), other: &&(f64, f64)| one.1.total_cmp(&other.1);
        let (low, high) = (column.iter().min_by(by_y).copied(), column.iter().max_by(by_y).copied());
        run.extend(column.first().copied());
        run.extend(low);
        run.extend(high);
        run.extend(column.last().copied());
        column.clear();
    };
    for (x, value) in points {
        let last = runs.len() - 1;
        let Some(value) = value else {
            flush(&mut column, &mut runs[last]);
            if !runs[last].is_empty() {
                runs.push(Vec::new());
            }
            continue;
        };
        let point = (plot.x.at(x), plot.y.at(value));
        if column.first().is_some_and(|(x, _)| x.floor() != point.0.floor()) {
            flush(&mut column, &mut runs[last]);
        }
        column.push(point);
    }
    let last = runs.len() - 1;
    flush(&mut column, &mut runs[last]);
    runs.retain(|run| !run.is_empty());
    runs
}

fn draw_line(drawing: &mut ChartSheet, plot: &PlotArea, series: &Series, index: usize) {
    let mut path = PathData::default();
    for run in runs(plot, series.points.iter().copied()) {
        path.push('M', &run[..1]);
        if run.len() > 1 {
            path.push('L', &run[1..]);
        }
    }
    if path.is_empty() {
        return;
    }
    let dash = DASHES[index / 2 % DASHES.len()];
    let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
    let style =
        format!("fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-linejoin=\"round\"{dash}", color::series(index));
    drawing.canvas.path(&path.end(), &style, "");
}

fn fill_area(
    drawing: &mut ChartSheet,
    plot: &PlotArea,
    series: &Series,
    base: Option<&[f64]>,
    index: usize,
    stacked: bool,
) {
    let zero = plot.y.at(0.0);
    let upper = runs(plot, series.points.iter().copied());
    let lower = base.map(|base| runs(plot, series.points.iter().zip(base).map(|((x, _), base)| (*x, Some(*base)))));
    let opacity = if stacked { 0.75 } else { 0.25 };
    let style = format!("fill=\"{}\" fill-opacity=\"{opacity}\"", color::series(index));
    for run in upper {
        let (Some(first), Some(last)) = (run.first().copied(), run.last().copied()) else { continue };
        let mut path = PathData::default().to('M', &run[..1]);
        path.push('L', &run[..]);
        match lower.as_ref().and_then(|lower| lower.first()) {
            Some(lower) => path.push('L', &lower.iter().rev().copied().collect::<Vec<_>>()),
            None => path.push('L', &[(last.0, zero), (first.0, zero)]),
        }
        drawing.canvas.path(&path.close(), &style, "");
    }
}

fn draw_markers(
    drawing: &mut ChartSheet,
    plot: &PlotArea,
    series: &Series,
    index: usize,
    tip: impl Fn(usize) -> String,
) {
    let count = series.points.len();
    let every = count.div_ceil(MAX_TIPS).max(1);
    for (point, (x, value)) in series.points.iter().enumerate().step_by(every) {
        let Some(value) = value else { continue };
        let (x, y) = (plot.x.at(*x), plot.y.at(*value));
        if count <= MAX_MARKERS {
            let style = format!("fill=\"{}\" class=\"edge\"", color::series(index));
            drawing.canvas.path(&marker(index, x, y), &style, &tip(point));
        } else {
            drawing.canvas.circle(x, y, 5.0, "fill=\"transparent\"", &tip(point));
        }
    }
}

/// Returns the outline of a marker: circle, square, diamond or triangle.
fn marker(index: usize, x: f64, y: f64) -> String {
    let r = 4.0;
    let path = PathData::default();
    match index % 4 {
        0 => path.to('M', &[(x - r, y)]).arc(r, false, true, (x + r, y)).arc(r, false, true, (x - r, y)).close(),
        1 => path.to('M', &[(x - 3.5, y - 3.5), (x + 3.5, y - 3.5), (x + 3.5, y + 3.5), (x - 3.5, y + 3.5)]).close(),
        2 => path.to('M', &[(x, y - 5.0), (x + 5.0, y), (x, y + 5.0), (x - 5.0, y)]).close(),
        _ => path.to('M', &[(x, y - 5.0), (x + 4.6, y + 3.5), (x - 4.6, y + 3.5)]).close(),
    }
}

/// A point of a scatter plot.
struct Spot {
    x: f64,
    y: f64,
    size: f64,
    label: String,
}

pub(super) fn draw_points(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    let is_bubble = frame.kind == ChartKind::Bubble;
    let columns = 0..frame.table.columns.len();
    let numeric: Vec<_> = columns.filter(|column| frame.is_numeric(*column)).collect();
    let size = frame.role(frame.options.size.as_ref(), if is_bubble { &["size", "r", "value"] } else { &[] })?;
    let mut free = numeric.iter().copied().filter(|column| Some(*column) != size);
    let x = frame.role(frame.options.x.as_ref(), &["x"])?.or_else(|| free.next());
    let y = match frame.options.y.first() {
        Some(name) => Some(frame.column(name)?),
        None => frame
            .role(None, &["y"])?
            .or_else(|| numeric.iter().copied().find(|column| Some(*column) != x && Some(*column) != size)),
    };
    let (Some(x), Some(y)) = (x, y) else { return Err(frame.missing("two columns of numbers (`x` and `y`)")) };
    let size = size.or_else(|| numeric.iter().copied().find(|column| is_bubble && *column != x && *column != y));
    if is_bubble && size.is_none() {
        return Err(frame.missing("a third column of numbers (`size`)"));
    }
    let group = frame.options.group.as_ref().map(|name| frame.column(name)).transpose()?;
    let label = frame.role(frame.options.label.as_ref(), &["label", "name"])?;
    let label = label.or_else(|| frame.text_columns().into_iter().find(|column| Some(*column) != group));
    let groups = collect_spots(frame, (x, y), size, group, label)?;
    let names: Vec<_> = groups.iter().map(|(name, _)| name.clone()).collect();
    let spots = || groups.iter().flat_map(|(_, spots)| spots);
    let x_scale = Scale::over(spots().map(|spot| spot.x), false, None, None)?;
    let y_scale = Scale::over(spots().map(|spot| spot.y), false, frame.options.min, frame.options.max)?;
    let (x_scale, y_scale) = if is_bubble { (widen(x_scale), widen(y_scale)) } else { (x_scale, y_scale) };
    let largest = spots().map(|spot| spot.size).fold(0.0, f64::max);
    let count = spots().count();
    let mut drawing = ChartSheet::new(WIDTH, HEIGHT);
    let top = axes::header(&mut drawing, title, &names);
    let axis = XAxis { kind: AxisKind::Number, scale: x_scale, labels: &[] };
    let columns = &frame.table.columns;
    let plot = axes::draw_axes(&mut drawing, top, &axis, y_scale, AxisNames { x: &columns[x], y: &columns[y] });
    for (index, (_, spots)) in groups.iter().enumerate() {
        drawing.canvas.open_series(index);
        if count > MAX_POINTS {
            draw_density(&mut drawing, &plot, spots, index);
        } else {
            draw_spots(&mut drawing, &plot, spots, index, is_bubble.then_some(largest));
        }
        drawing.canvas.close();
    }
    if count > MAX_POINTS {
        drawing.notes.push("points at the same place are drawn once, more strongly".to_owned());
    } else if label.is_some() {
        for spot in spots() {
            let radius = if is_bubble { radius(spot.size, largest) } else { 4.0 };
            let text = fit(&spot.label, 11.0, 110.0);
            let at = (plot.x.at(spot.x) + radius + 3.0, plot.y.at(spot.y));
            drawing.canvas.label(Label::new(&text, at.0, at.1, Anchor::Start).size(11.0).with_muted());
        }
    }
    Ok(drawing)
}

/// Adds room, so that circles at the edge stay inside.
fn widen(scale: Scale) -> Scale {
    let pad = (scale.max - scale.min) * 0.1;
    Scale::new(scale.min - pad, scale.max + pad)
}

type SpotGroups = Vec<(String, Vec<Spot>)>;

fn collect_spots(
    frame: Frame<'_>,
    (x, y): (usize, usize),
    size: Option<usize>,
    group: Option<usize>,
    label: Option<usize>,
) -> Result<SpotGroups, ChartError> {
    let mut groups: SpotGroups = Vec::new();
    let mut places = std::collections::HashMap::new();
    for row in 0..frame.table.rows.len() {
        let (Some(x), Some(y)) = (frame.number(row, x)?, frame.number(row, y)?) else { continue };
        let size = size.map(|size| frame.number(row, size)).transpose()?.flatten().unwrap_or(0.0);
        let label = label.map(|label| frame.text(row, Some(label))).unwrap_or_default();
        if size < 0.0 {
            return Err(ChartError::Negative {
                kind: frame.kind.title(),
                label: format!("row {}", row + 1),
                value: size.to_string(),
            });
        }
        let name = group.map(|group| frame.text(row, Some(group))).unwrap_or_default();
        let place = *places.entry(name.clone()).or_insert_with(|| {
            groups.push((name, Vec::new()));
            groups.len() - 1
        });
        groups[place].1.push(Spot { x, y, size, label });
    }
    if groups.len() > 40 {
        return Err(ChartError::TooMany { kind: frame.kind.title(), what: "groups", count: groups.len(), max: 40 });
    }
    Ok(groups)
}

/// Returns a radius whose area is proportional to the size.
fn radius(size: f64, largest: f64) -> f64 {
    if largest <= 0.0 { 4.0 } else { (size / largest).sqrt().max(0.06) * MAX_RADIUS }
}

fn draw_spots(drawing: &mut ChartSheet, plot: &PlotArea, spots: &[Spot], index: usize, largest: Option<f64>) {
    let color = color::series(index);
    let mut order: Vec<_> = spots.iter().collect();
    // Small circles are drawn last, so that large ones do not hide them.
    order.sort_by(|one, other| other.size.total_cmp(&one.size));
    for spot in order {
        let (x, y) = (plot.x.at(spot.x), plot.y.at(spot.y));
        let mut tip = format!("{}, {}", format_value(spot.x), format_value(spot.y));
        if !spot.label.is_empty() {
            tip = format!("{}: {tip}", spot.label);
        }
        match largest {
            Some(largest) => {
                // A circle at the edge of the picture is cut down to what fits.
                let room = x.min(y).min(WIDTH - x).min(HEIGHT - y);
                let style = format!("fill=\"{color}\" fill-opacity=\"0.55\" stroke=\"{color}\"");
                let tip = format!("{tip}, size {}", format_value(spot.size));
                drawing.canvas.circle(x, y, radius(spot.size, largest).min(room), &style, &tip);
            }
            None => {
                let style = format!("fill=\"{color}\" fill-opacity=\"0.75\"");
                drawing.canvas.path(&marker(index, x, y), &style, &tip);
            }
        }
    }
}

/// Draws many points as a grid of cells. Cells with more points are stronger.
fn draw_density(drawing: &mut ChartSheet, plot: &PlotArea, spots: &[Spot], index: usize) {
    let mut cells: std::collections::BTreeMap<(i64, i64), usize> = std::collections::BTreeMap::new();
    for spot in spots {
        let cell = ((plot.x.at(spot.x) / CELL).floor() as i64, (plot.y.at(spot.y) / CELL).floor() as i64);
        *cells.entry(cell).or_default() += 1;
    }
    let most = cells.values().copied().max().unwrap_or(1) as f64;
    let mut levels = [const { String::new() }; 4];
    for ((x, y), count) in cells {
        let share = if most > 1.0 { (count as f64).ln() / most.ln() } else { 1.0 };
        let level = ((share * 4.0) as usize).min(3);
        let (x, y) = ((x as f64 + 0.5) * CELL, (y as f64 + 0.5) * CELL);
        levels[level].push_str(&format!("M{} {}h0", num(x), num(y)));
    }
    for (path, opacity) in levels.iter().zip(["0.3", "0.5", "0.75", "1"]) {
        if !path.is_empty() {
            let color = color::series(index);
            let style = format!(
                "fill=\"none\" stroke=\"{color}\" stroke-opacity=\"{opacity}\" stroke-width=\"3\" stroke-linecap=\"round\""
            );
            drawing.canvas.path(path, &style, "");
        }
    }
}
