//! Maps of the world: countries shaded by a value, or points by latitude and longitude. The outlines are from Natural
//! Earth (public domain), at a scale of 1:110 million; smaller countries are dots.

use std::sync::OnceLock;

use super::axes::{self, MARGIN};
use super::canvas::{Anchor, FONT, Label, PathData, Rect, fit, measure};
use super::error::{ChartError, suggest};
use super::frame::Frame;
use super::heatmap::Shade;
use super::scale::format_value;
use super::{ChartSheet, WIDTH, color};

/// One line per country: `ISO 3|ISO 2|names|rings`. A ring is a start and steps, in tenths of a degree.
const WORLD: &str = include_str!("world.txt");
const HEIGHT: f64 = 480.0;
const MAX_POINTS: usize = 5_000;
/// The smallest part of the world that a map shows, in units of the projection.
const MIN_SPAN: f64 = 0.25;

struct Country {
    codes: [&'static str; 2],
    names: Vec<&'static str>,
    /// Outlines in projected coordinates. A ring of one point is a dot.
    rings: Vec<Vec<(f64, f64)>>,
}

impl Country {
    fn is_called(&self, name: &str) -> bool {
        let name = name.trim();
        self.codes.iter().any(|code| !code.is_empty() && code.eq_ignore_ascii_case(name))
            || self.names.iter().any(|known| known.to_lowercase() == name.to_lowercase())
    }
}

fn world() -> &'static [Country] {
    static COUNTRIES: OnceLock<Vec<Country>> = OnceLock::new();
    COUNTRIES.get_or_init(|| {
        let read = |line: &'static str| {
            let mut fields = line.split('|');
            let codes = [fields.next()?, fields.next()?];
            let names = fields.next()?.split('/').collect();
            let rings = fields.next()?.split(';').map(read_ring).collect();
            Some(Country { codes, names, rings })
        };
        WORLD.lines().filter_map(read).collect()
    })
}

fn read_ring(text: &str) -> Vec<(f64, f64)> {
    let mut at = (0.0, 0.0);
    let step = |step: &str| {
        let (x, y) = step.split_once(',')?;
        at = (at.0 + x.parse::<f64>().ok()?, at.1 + y.parse::<f64>().ok()?);
        Some(project(at.0 / 10.0, at.1 / 10.0))
    };
    text.split(' ').filter_map(step).collect()
}

/// Projects longitude and latitude in degrees by the Equal Earth projection, which keeps areas. `y` points down.
fn project(longitude: f64, latitude: f64) -> (f64, f64) {
    const A: [f64; 4] = [1.340264, -0.081106, 0.000893, 0.003796];
    let root = 3f64.sqrt();
    let angle = (root / 2.0 * latitude.to_radians().sin()).clamp(-1.0, 1.0).asin();
    let square = angle * angle;
    let sixth = square * square * square;
    let divisor = A[0] + 3.0 * A[1] * square + sixth * (7.0 * A[2] + 9.0 * A[3] * square);
    let x = 2.0 * root / 3.0 * longitude.to_radians() * angle.cos() / divisor;
    (x, -angle * (A[0] + A[1] * square + sixth * (A[2] + A[3] * square)))
}

/// A value of a country, or of a point.
struct Place {
    label: String,
    value: Option<f64>,
    /// `None` for a country.
    point: Option<(f64, f64)>,
    country: Option<usize>,
    row: usize,
}

pub(super) fn draw(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    let places = read(frame)?;
    let mut drawing = ChartSheet::new(WIDTH, HEIGHT);
    let top = axes::header(&mut drawing, title, &[]);
    let values = || places.iter().filter_map(|place| place.value);
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    let (low, high) = values().fold(start, |(low, high), value| (low.min(value), high.max(value)));
    let shade = Shade::new(frame.options.min.unwrap_or(low), frame.options.max.unwrap_or(high));
    let is_shaded = places.iter().any(|place| place.country.is_some()) && low <= high;
    if is_shaded {
        axes::draw_color_scale(&mut drawing, top, &format_value(shade.low), &format_value(shade.high), |share| {
            shade.color(shade.low + share * (shade.high - shade.low))
        });
    }
    let top = if is_shaded { top + 22.0 } else { top };
    let area = Rect { x: MARGIN, y: top, w: WIDTH - 2.0 * MARGIN, h: HEIGHT - top - MARGIN };
    let view = View::new(area, &places);
    drawing.canvas.rect(area, "class=\"grid\" fill=\"none\"", "");
    for (index, country) in world().iter().enumerate() {
        let place = places.iter().rev().find(|place| place.country == Some(index));
        draw_country(&mut drawing, &view, country, place, shade);
    }
    draw_points(&mut drawing, &view, &places, frame.kind.title())?;
    Ok(drawing)
}

fn read(frame: Frame<'_>) -> Result<Vec<Place>, ChartError> {
    let latitude = frame.role(None, &["lat", "latitude"])?;
    let longitude = frame.role(None, &["lon", "lng", "long", "longitude"])?;
    let value = match frame.options.y.first().or(frame.options.size.as_ref()) {
        Some(name) => Some(frame.column(name)?),
        None => {
            let columns = 0..frame.table.columns.len();
            columns
                .into_iter()
                .find(|column| frame.is_numeric(*column) && Some(*column) != latitude && Some(*column) != longitude)
        }
    };
    let names = frame.role(frame.options.label.as_ref().or(frame.options.x.as_ref()), &["label", "name", "city"])?;
    let names = names.or_else(|| frame.text_columns().first().copied());
    let mut places = Vec::new();
    for row in 0..frame.table.rows.len() {
        let amount = value.map(|value| frame.number(row, value)).transpose()?.flatten();
        if let (Some(latitude), Some(longitude)) = (latitude, longitude) {
            let (Some(lat), Some(lon)) = (frame.number(row, latitude)?, frame.number(row, longitude)?) else {
                continue;
            };
            for (what, value, max) in [("latitude", lat, 90), ("longitude", lon, 180)] {
                if value.abs() > f64::from(max) {
                    let value = format_value(value);
                    return Err(ChartError::OutOfRange { row: row + 1, what, value, min: -max, max });
                }
            }
            let label = names.map(|names| frame.text(row, Some(names))).unwrap_or_default();
            places.push(Place { label, value: amount, point: Some(project(lon, lat)), country: None, row });
            continue;
        }
        let usual = frame.role(frame.options.x.as_ref(), &["country", "code", "iso"])?.or(names);
        let Some(column) = usual else {
            return Err(frame.missing("`lat` and `lon`, or a column of countries (`x`)"));
        };
        let name = frame.text(row, Some(column));
        let Some(country) = world().iter().position(|country| country.is_called(&name)) else {
            let near = suggest(&name, world().iter().flat_map(|country| country.names.iter().copied()));
            return Err(ChartError::UnknownCountry { row: row + 1, name, near });
        };
        let label = world()[country].names[0].to_owned();
        places.push(Place { label, value: amount, point: None, country: Some(country), row });
    }
    Ok(places)
}

/// The part of the projected world that fills an area.
struct View {
    area: Rect,
    scale: f64,
    /// The middle of the view, projected.
    center: (f64, f64),
}

impl View {
    /// Shows the whole world, or the part with the points.
    fn new(area: Rect, places: &[Place]) -> Self {
        let points = || places.iter().filter_map(|place| place.point);
        let outline = [(-2.7, -1.3), (2.7, 0.98)];
        let start = (f64::INFINITY, f64::INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY);
        let grow =
            |(x1, y1, x2, y2): (f64, f64, f64, f64), (x, y): (f64, f64)| (x1.min(x), y1.min(y), x2.max(x), y2.max(y));
        let is_points = points().next().is_some();
        let (x1, y1, x2, y2) =
            if is_points { points().fold(start, grow) } else { outline.into_iter().fold(start, grow) };
        let pad = if is_points { 1.35 } else { 1.0 };
        let (width, height) = (((x2 - x1) * pad).max(MIN_SPAN), ((y2 - y1) * pad).max(MIN_SPAN));
        let scale = (area.w / width).min(area.h / height);
        Self { area, scale, center: ((x1 + x2) / 2.0, (y1 + y2) / 2.0) }
    }

    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (cx, cy) = self.area.center();
        (cx + (x - self.center.0) * self.scale, cy + (y - self.center.1) * self.scale)
    }

    fn shows(&self, (x, y): (f64, f64)) -> bool {
        (self.area.x..=self.area.right()).contains(&x) && (self.area.y..=self.area.bottom()).contains(&y)
    }
}

fn draw_country(drawing: &mut ChartSheet, view: &View, country: &Country, place: Option<&Place>, shade: Shade) {
    let value = place.and_then(|place| place.value);
    let tip = match value {
        Some(value) => format!("{}: {}", country.names[0], format_value(value)),
        None => country.names[0].to_owned(),
    };
    let fill = match (place, value) {
        (_, Some(value)) => format!("fill=\"{}\" class=\"edge\" stroke-width=\"0.6\"", shade.color(value)),
        (Some(_), None) => format!("fill=\"{}\" class=\"edge\" stroke-width=\"0.6\"", color::series(0)),
        (None, None) => "class=\"node\" stroke-width=\"0.5\" stroke-opacity=\"0.6\"".to_owned(),
    };
    let mut path = PathData::default();
    for ring in &country.rings {
        if let [point] = ring.as_slice() {
            let (x, y) = view.at(*point);
            let inner = view.area.shrink(4.0);
            if place.is_some() && (inner.x..=inner.right()).contains(&x) && (inner.y..=inner.bottom()).contains(&y) {
                drawing.canvas.circle(x, y, 4.0, &fill, &tip);
            }
            continue;
        }
        let outline = clip(ring.iter().map(|point| view.at(*point)).collect(), view.area);
        if outline.len() >= 3 {
            path.push('M', &outline);
            path.push('Z', &[]);
        }
    }
    if !path.is_empty() {
        drawing.canvas.path(&path.end(), &fill, &tip);
    }
}

/// Cuts a polygon to a rectangle by the method of Sutherland and Hodgman.
fn clip(mut polygon: Vec<(f64, f64)>, area: Rect) -> Vec<(f64, f64)> {
    // Each side is given by the distance of a point from it, which is positive inside.
    let sides: [&dyn Fn((f64, f64)) -> f64; 4] =
        [&|p| p.0 - area.x, &|p| area.right() - p.0, &|p| p.1 - area.y, &|p| area.bottom() - p.1];
    for distance in sides {
        let mut cut = Vec::with_capacity(polygon.len());
        for (index, &point) in polygon.iter().enumerate() {
            let before = polygon[(index + polygon.len() - 1) % polygon.len()];
            let (from, to) = (distance(before), distance(point));
            if (from < 0.0) != (to < 0.0) {
                let share = from / (from - to);
                cut.push((before.0 + (point.0 - before.0) * share, before.1 + (point.1 - before.1) * share));
            }
            if to >= 0.0 {
                cut.push(point);
            }
        }
        polygon = cut;
    }
    polygon
}

fn draw_points(drawing: &mut ChartSheet, view: &View, places: &[Place], kind: &'static str) -> Result<(), ChartError> {
    let mut points: Vec<_> = places.iter().filter_map(|place| Some((place, view.at(place.point?)))).collect();
    if points.len() > MAX_POINTS {
        return Err(ChartError::TooMany { kind, what: "points", count: points.len(), max: MAX_POINTS });
    }
    if let Some(place) =
        places.iter().find(|place| place.point.is_some() && place.value.is_some_and(|value| value < 0.0))
    {
        let label = format!("row {} ({})", place.row + 1, place.label);
        return Err(ChartError::Negative { kind, label, value: format_value(place.value.unwrap_or_default()) });
    }
    let largest = points.iter().filter_map(|(place, _)| place.value).fold(0.0, f64::max);
    let radius = |place: &Place| match place.value {
        Some(value) if largest > 0.0 => 3.0 + (value / largest).sqrt() * 15.0,
        _ => 5.0,
    };
    points.sort_by(|(one, _), (other, _)| radius(other).total_cmp(&radius(one)));
    for (place, (x, y)) in points.iter().filter(|(_, at)| view.shows(*at)) {
        let value = place.value.map(|value| format!(": {}", format_value(value))).unwrap_or_default();
        let room = (x - 1.0).min(y - 1.0).min(WIDTH - x - 1.0).min(HEIGHT - y - 1.0);
        let style = format!("fill=\"{}\" fill-opacity=\"0.75\" class=\"edge\"", color::series(1));
        drawing.canvas.circle(*x, *y, radius(place).min(room), &style, &format!("{}{value}", place.label));
    }
    for (place, (x, y)) in &points {
        let text = fit(&place.label, FONT, 140.0);
        let r = radius(place) + 4.0;
        let right = x + r + measure(&text, FONT) < view.area.right();
        let (x, anchor) = if right { (x + r, Anchor::Start) } else { (x - r, Anchor::End) };
        drawing.canvas.label(Label::new(&text, x, *y, anchor));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_country_is_read_and_found_by_name_and_code() {
        assert!(world().len() > 230);
        for name in ["Germany", "DE", "deu", "United States", "Türkiye", "ivory coast", "Singapore"] {
            assert!(world().iter().any(|country| country.is_called(name)), "{name}");
        }
        for country in world() {
            assert!(!country.names[0].is_empty());
            assert!(country.rings.iter().all(|ring| ring.len() == 1 || ring.len() >= 3), "{}", country.names[0]);
            assert!(country.rings.iter().flatten().all(|(x, y)| x.abs() < 2.75 && y.abs() < 1.35));
        }
    }

    #[test]
    fn clipping_keeps_the_part_inside() {
        let area = Rect { x: 0.0, y: 0.0, w: 10.0, h: 10.0 };
        let square = vec![(-5.0, -5.0), (5.0, -5.0), (5.0, 5.0), (-5.0, 5.0)];
        let cut = clip(square, area);
        assert!(cut.iter().all(|(x, y)| (0.0..=5.0).contains(x) && (0.0..=5.0).contains(y)), "{cut:?}");
        assert!(clip(vec![(20.0, 20.0), (30.0, 20.0), (30.0, 30.0)], area).is_empty());
    }
}
