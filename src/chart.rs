//! Draws data as SVG: charts, maps, graphs and Mermaid diagrams. Takes values and returns text.
//!
//! Invariant: valid data of any size gives well-formed SVG with finite coordinates inside the picture, and labels that
//! do not overlap. Other data gives an error that names the place in the data.

mod axes;
mod bar;
mod canvas;
mod color;
mod distribution;
mod error;
mod flow;
mod frame;
mod funnel;
mod heatmap;
mod layers;
mod links;
mod map;
mod mermaid;
mod network;
mod page;
mod pie;
mod radar;
mod scale;
mod table;
mod time;
mod tree;
mod xy;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::canvas::Canvas;
pub use self::color::Theme;
pub use self::error::ChartError;
use self::frame::Frame;
pub use self::page::to_page;
pub use self::table::DataTable;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 480.0;
/// Rows in [`Picture::data`]. The picture always shows all rows.
const MAX_DATA_ROWS: usize = 500;

/// A kind of picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ChartKind {
    Line,
    Area,
    Bar,
    Scatter,
    Bubble,
    Pie,
    Donut,
    Radar,
    Treemap,
    Sunburst,
    Sankey,
    Chord,
    Map,
    Heatmap,
    Boxplot,
    Histogram,
    Candlestick,
    Gauge,
    Funnel,
    Network,
    Mermaid,
}

impl ChartKind {
    pub const ALL: [ChartKind; 21] = [
        ChartKind::Line,
        ChartKind::Area,
        ChartKind::Bar,
        ChartKind::Scatter,
        ChartKind::Bubble,
        ChartKind::Pie,
        ChartKind::Donut,
        ChartKind::Radar,
        ChartKind::Treemap,
        ChartKind::Sunburst,
        ChartKind::Sankey,
        ChartKind::Chord,
        ChartKind::Map,
        ChartKind::Heatmap,
        ChartKind::Boxplot,
        ChartKind::Histogram,
        ChartKind::Candlestick,
        ChartKind::Gauge,
        ChartKind::Funnel,
        ChartKind::Network,
        ChartKind::Mermaid,
    ];

    /// Returns the name for people.
    pub fn title(self) -> &'static str {
        match self {
            ChartKind::Line => "line chart",
            ChartKind::Area => "area chart",
            ChartKind::Bar => "bar chart",
            ChartKind::Scatter => "scatter plot",
            ChartKind::Bubble => "bubble chart",
            ChartKind::Pie => "pie chart",
            ChartKind::Donut => "donut chart",
            ChartKind::Radar => "radar chart",
            ChartKind::Treemap => "treemap",
            ChartKind::Sunburst => "sunburst chart",
            ChartKind::Sankey => "sankey diagram",
            ChartKind::Chord => "chord diagram",
            ChartKind::Map => "map",
            ChartKind::Heatmap => "heat map",
            ChartKind::Boxplot => "box plot",
            ChartKind::Histogram => "histogram",
            ChartKind::Candlestick => "candlestick chart",
            ChartKind::Gauge => "gauge",
            ChartKind::Funnel => "funnel chart",
            ChartKind::Network => "network graph",
            ChartKind::Mermaid => "Mermaid diagram",
        }
    }
}

/// Columns to use, and the look. Without names of columns, those that fit are used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(inline)]
pub struct ChartOptions {
    /// Column of names, dates or x values
    #[schemars(length(min = 1))]
    pub x: Option<String>,
    /// Columns of values
    #[schemars(length(max = 100))]
    pub y: Vec<String>,
    /// Column whose values become series
    #[schemars(length(min = 1))]
    pub group: Option<String>,
    /// Column of sizes (bubble, map)
    #[schemars(length(min = 1))]
    pub size: Option<String>,
    /// Column of labels
    #[schemars(length(min = 1))]
    pub label: Option<String>,
    /// Stack bars or areas
    pub stacked: bool,
    /// Bars from left to right
    pub horizontal: Option<bool>,
    /// Bins of a histogram
    #[schemars(range(min = 1, max = 200))]
    pub bins: Option<usize>,
    /// Start of the value axis or gauge
    pub min: Option<f64>,
    /// End of the value axis or gauge
    pub max: Option<f64>,
    /// `auto` follows the light or dark mode of the viewer
    pub theme: Theme,
}

/// The data of a picture.
#[derive(Debug, Clone, PartialEq)]
pub enum ChartData {
    Table(DataTable),
    /// A nested `{name, value, children}`.
    Tree(Value),
    /// Mermaid.
    Text(String),
}

impl ChartData {
    /// Reads the data of a kind. Fails if its shape does not fit the kind.
    pub fn from_json(kind: ChartKind, value: &Value) -> Result<Self, ChartError> {
        match (kind, value) {
            (ChartKind::Mermaid, Value::String(text)) => Ok(Self::Text(text.clone())),
            (ChartKind::Mermaid, _) => {
                let problem = "`data` must be the text of the diagram, such as \"flowchart LR\\nA --> B\"".to_owned();
                Err(ChartError::Mermaid { line: 1, problem })
            }
            (ChartKind::Treemap | ChartKind::Sunburst, Value::Object(node))
                if node.get("children").is_some_and(Value::is_array) =>
            {
                Ok(Self::Tree(value.clone()))
            }
            (ChartKind::Sankey | ChartKind::Chord | ChartKind::Network, Value::Object(graph)) => {
                let links = ["links", "edges"].into_iter().find_map(|name| graph.get(name));
                Ok(Self::Table(DataTable::from_json(links.unwrap_or(value))?))
            }
            (ChartKind::Gauge, Value::Number(_)) => Ok(Self::Table(DataTable::from_json(&json!([value]))?)),
            (ChartKind::Gauge, Value::Object(row)) if row.values().all(|cell| !cell.is_array()) => {
                Ok(Self::Table(DataTable::from_json(&json!([value]))?))
            }
            _ => Ok(Self::Table(DataTable::from_json(value)?)),
        }
    }
}

/// What to draw.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartSpec {
    pub kind: ChartKind,
    pub data: ChartData,
    pub title: Option<String>,
    pub options: ChartOptions,
}

/// A finished picture.
#[derive(Debug, Clone)]
pub struct Picture {
    pub svg: String,
    pub width: f64,
    pub height: f64,
    /// The data as it was understood; of long data, the first rows.
    pub data: Value,
    /// Number of rows, nodes or lines in the data.
    pub rows: usize,
    /// What the picture leaves out or joins.
    pub notes: Vec<String>,
    #[cfg_attr(not(test), expect(dead_code, reason = "the tests check that labels do not overlap"))]
    labels: Vec<canvas::Rect>,
}

/// A canvas with the notes that the drawing leaves.
struct ChartSheet {
    canvas: Canvas,
    notes: Vec<String>,
}

impl ChartSheet {
    fn new(width: f64, height: f64) -> Self {
        Self { canvas: Canvas::new(width, height), notes: Vec::new() }
    }
}

/// Draws a picture. Fails if the data does not fit the kind.
pub fn draw(spec: &ChartSpec) -> Result<Picture, ChartError> {
    let title = spec.title.as_deref().unwrap_or_default();
    let (drawing, data, rows) = match &spec.data {
        ChartData::Table(table) => {
            let frame = Frame { kind: spec.kind, table, options: &spec.options };
            (draw_table(frame, title)?, table.to_json(MAX_DATA_ROWS), table.rows.len())
        }
        ChartData::Tree(value) => {
            let tree = tree::TreeNode::from_json(value, 1)?;
            let count = tree.count();
            (tree::draw(spec.kind, tree, title)?, value.clone(), count)
        }
        ChartData::Text(text) => (mermaid::draw(text, title)?, Value::from(text.as_str()), text.lines().count()),
    };
    let (width, height) = (drawing.canvas.width, drawing.canvas.height);
    let name = if title.is_empty() { spec.kind.title() } else { title };
    let (svg, labels) = drawing.canvas.finish(spec.options.theme, name);
    Ok(Picture { svg, width, height, data, rows, notes: drawing.notes, labels })
}

fn draw_table(frame: Frame<'_>, title: &str) -> Result<ChartSheet, ChartError> {
    if frame.table.rows.is_empty() {
        return Ok(axes::empty(title));
    }
    match frame.kind {
        ChartKind::Line | ChartKind::Area => xy::draw_lines(frame, title),
        ChartKind::Scatter | ChartKind::Bubble => xy::draw_points(frame, title),
        ChartKind::Bar => bar::draw(frame, title),
        ChartKind::Pie | ChartKind::Donut => pie::draw(frame, title),
        ChartKind::Gauge => pie::draw_gauge(frame, title),
        ChartKind::Radar => radar::draw(frame, title),
        ChartKind::Treemap | ChartKind::Sunburst => tree::draw(frame.kind, tree::TreeNode::from_table(frame)?, title),
        ChartKind::Sankey => flow::draw_sankey(frame, title),
        ChartKind::Chord => flow::draw_chord(frame, title),
        ChartKind::Network => network::draw(frame, title),
        ChartKind::Map => map::draw(frame, title),
        ChartKind::Heatmap => heatmap::draw(frame, title),
        ChartKind::Boxplot => distribution::draw_boxes(frame, title),
        ChartKind::Histogram => distribution::draw_histogram(frame, title),
        ChartKind::Candlestick => distribution::draw_candles(frame, title),
        ChartKind::Funnel => funnel::draw(frame, title),
        ChartKind::Mermaid => Err(ChartError::NotRows { found: "a table; Mermaid needs a text" }),
    }
}

#[cfg(test)]
#[path = "chart/chart_tests.rs"]
mod tests;
