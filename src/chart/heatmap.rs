//! Heat maps.

use super::axes::{self, MARGIN};
use super::canvas::{Anchor, FONT, Label, Rect, fit, measure, num};
use super::error::ChartError;
use super::frame::Frame;
use super::scale::format_value;
use super::{ChartSheet, HEIGHT, WIDTH, color};

const MAX_SIDE: usize = 1_000;
/// Grids with more cells have no tooltips, and cells of one colour are joined.
const MAX_TIPS: usize = 2_500;
/// Colours of a joined grid.
const LEVELS: usize = 24;

/// Values by row and column.
struct Grid {
    columns: Vec<String>,
    rows: Vec<String>,
    values: Vec<Vec<Option<f64>>>,
}

pub(super) fn draw(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    let grid = read(frame)?;
    for count in [grid.columns.len(), grid.rows.len()] {
        if count > MAX_SIDE {
            return Err(ChartError::TooMany {
                kind: frame.kind.title(),
                what: "rows or columns",
                count,
                max: MAX_SIDE,
            });
        }
    }
    let values = || grid.values.iter().flatten().flatten().copied();
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    let (low, high) = values().fold(start, |(low, high), value| (low.min(value), high.max(value)));
    if low > high {
        return Ok(axes::empty(title));
    }
    let shade = Shade::new(frame.options.min.unwrap_or(low), frame.options.max.unwrap_or(high));
    let row_height = if grid.rows.len() > 24 { 0.0 } else { 26.0 };
    let mut drawing = ChartSheet::new(WIDTH, HEIGHT.max(row_height * grid.rows.len() as f64 + 130.0));
    let top = axes::header(&mut drawing, title, &[]);
    axes::draw_color_scale(&mut drawing, top, &format_value(shade.low), &format_value(shade.high), |share| {
        shade.color(shade.low + share * (shade.high - shade.low))
    });
    let widest = grid.rows.iter().map(|name| measure(name, FONT)).fold(0.0, f64::max).min(200.0);
    let left = MARGIN + widest + 8.0;
    let top = top + 26.0;
    let area = Rect { x: left, y: top, w: WIDTH - left - MARGIN, h: drawing.canvas.height - top - 32.0 };
    let cell = (area.w / grid.columns.len().max(1) as f64, area.h / grid.rows.len().max(1) as f64);
    if grid.columns.len() * grid.rows.len() <= MAX_TIPS {
        draw_cells(&mut drawing, &grid, area, cell, shade);
    } else {
        draw_joined(&mut drawing, &grid, area, cell, shade);
    }
    let every = (16.0 / cell.1).ceil().max(1.0) as usize;
    for (index, name) in grid.rows.iter().enumerate().step_by(every) {
        let y = area.y + (index as f64 + 0.5) * cell.1;
        drawing.canvas.label(Label::new(&fit(name, FONT, widest + 1.0), left - 6.0, y, Anchor::End));
    }
    let wanted = grid.columns.iter().map(|name| measure(name, FONT)).fold(0.0, f64::max) + 8.0;
    let every = (wanted.min(84.0) / cell.0).ceil().max(1.0) as usize;
    for (index, name) in grid.columns.iter().enumerate().step_by(every) {
        let text = fit(name, FONT, cell.0 * every as f64 - 4.0);
        let x = area.x + (index as f64 + 0.5) * cell.0;
        let half = measure(&text, FONT) / 2.0;
        let x = x.clamp(half + 1.0, (WIDTH - half - 1.0).max(half + 1.0));
        drawing.canvas.label(Label::new(&text, x, area.bottom() + 14.0, Anchor::Middle).with_muted());
    }
    Ok(drawing)
}

/// The map from values to colours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shade {
    pub(super) low: f64,
    pub(super) high: f64,
    diverging: bool,
}

impl Shade {
    /// Creates a scale. If values are on both sides of zero, zero is in the middle.
    pub(super) fn new(low: f64, high: f64) -> Self {
        if low < 0.0 && high > 0.0 {
            let reach = high.max(-low);
            return Self { low: -reach, high: reach, diverging: true };
        }
        Self { low, high, diverging: false }
    }

    fn share(&self, value: f64) -> f64 {
        if self.high > self.low { ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0) } else { 0.5 }
    }

    pub(super) fn color(&self, value: f64) -> String {
        if self.diverging { color::diverging(self.share(value)) } else { color::sequence(self.share(value)) }
    }
}

/// Reads rows of `x`, `y` and value, or a table whose numeric columns are the columns of the map.
fn read(frame: Frame<'_>) -> Result<Grid, ChartError> {
    let texts = frame.text_columns();
    let long = match (&frame.options.x, &frame.options.group) {
        (Some(x), Some(y)) => Some((frame.column(x)?, frame.column(y)?)),
        _ => match (frame.role(None, &["x"])?, frame.role(None, &["y"])?, texts.as_slice()) {
            (Some(x), Some(y), _) if frame.options.y.is_empty() => Some((x, y)),
            (_, _, [x, y, ..]) => Some((*x, *y)),
            _ => None,
        },
    };
    let Some((x, y)) = long else {
        let names = frame.name_column()?;
        let columns = frame.value_columns(&[names])?;
        let rows = (0..frame.table.rows.len()).map(|row| frame.text(row, names)).collect();
        let value = |row: usize| columns.iter().map(|column| frame.number(row, *column)).collect();
        let values = (0..frame.table.rows.len()).map(value).collect::<Result<_, _>>()?;
        let columns = columns.iter().map(|column| frame.table.columns[*column].clone()).collect();
        return Ok(Grid { columns, rows, values });
    };
    let value = match frame.value_columns(&[Some(x), Some(y)])?.first() {
        Some(value) => *value,
        None => return Err(frame.missing("a column of numbers for the cells (`y`)")),
    };
    let mut grid = Grid { columns: Vec::new(), rows: Vec::new(), values: Vec::new() };
    let mut places = [std::collections::HashMap::new(), std::collections::HashMap::new()];
    let mut cells = Vec::new();
    for row in 0..frame.table.rows.len() {
        let column = place(&mut places[0], &mut grid.columns, frame.text(row, Some(x)));
        let line = place(&mut places[1], &mut grid.rows, frame.text(row, Some(y)));
        cells.push((line, column, frame.number(row, value)?));
    }
    // The sides are limited before the grid is allocated.
    if grid.columns.len() <= MAX_SIDE && grid.rows.len() <= MAX_SIDE {
        grid.values = vec![vec![None; grid.columns.len()]; grid.rows.len()];
        for (line, column, value) in cells {
            grid.values[line][column] = value;
        }
    }
    Ok(grid)
}

fn place(places: &mut std::collections::HashMap<String, usize>, names: &mut Vec<String>, name: String) -> usize {
    *places.entry(name.clone()).or_insert_with(|| {
        names.push(name);
        names.len() - 1
    })
}

fn draw_cells(drawing: &mut ChartSheet, grid: &Grid, area: Rect, cell: (f64, f64), shade: Shade) {
    for (line, values) in grid.values.iter().enumerate() {
        for (column, value) in values.iter().enumerate() {
            let Some(value) = *value else { continue };
            let x = area.x + column as f64 * cell.0;
            let y = area.y + line as f64 * cell.1;
            let color = shade.color(value);
            let tip = format!("{}, {}: {}", grid.rows[line], grid.columns[column], format_value(value));
            let gap = if cell.0.min(cell.1) > 8.0 { 1.0 } else { 0.0 };
            let rect = Rect { x, y, w: cell.0 - gap, h: cell.1 - gap };
            drawing.canvas.rect(rect, &format!("fill=\"{color}\""), &tip);
            let text = format_value(value);
            if measure(&text, 11.0) + 6.0 <= cell.0 && cell.1 >= 16.0 {
                let (x, y) = rect.center();
                let label = Label::new(&text, x, y, Anchor::Middle).size(11.0);
                drawing.canvas.label(label.class(color::text_on(&color)));
            }
        }
    }
}

fn draw_joined(drawing: &mut ChartSheet, grid: &Grid, area: Rect, cell: (f64, f64), shade: Shade) {
    let mut paths = vec![String::new(); LEVELS];
    for (line, values) in grid.values.iter().enumerate() {
        let level =
            |value: &Option<f64>| value.map(|value| (shade.share(value) * (LEVELS - 1) as f64).round() as usize);
        let levels: Vec<_> = values.iter().map(level).collect();
        let y = area.y + line as f64 * cell.1;
        // Rows overlap a little, so that rounding leaves no gap.
        let height = if line + 1 < grid.rows.len() { cell.1 + 0.3 } else { cell.1 };
        let mut start = 0;
        while start < levels.len() {
            let same = levels[start..].iter().take_while(|level| **level == levels[start]).count();
            if let Some(level) = levels[start] {
                let (x, width) = (area.x + start as f64 * cell.0, same as f64 * cell.0);
                let (x, y, w, h) = (num(x), num(y), num(width), num(height));
                paths[level].push_str(&format!("M{x} {y}h{w}v{h}h-{w}z"));
            }
            start += same;
        }
    }
    for (level, path) in paths.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
        let value = shade.low + (shade.high - shade.low) * level as f64 / (LEVELS - 1) as f64;
        drawing.canvas.path(path, &format!("fill=\"{}\" shape-rendering=\"crispEdges\"", shade.color(value)), "");
    }
}
