//! Converts Jupyter notebooks to text: the sources and printed outputs of the cells, without JSON.

use serde::Deserialize;
use serde_json::Value;

/// Maximum characters of one output.
const MAX_OUTPUT: usize = 2_000;

#[derive(Deserialize)]
struct Notebook {
    cells: Vec<Cell>,
}

#[derive(Deserialize)]
struct Cell {
    cell_type: String,
    #[serde(default)]
    source: CellText,
    #[serde(default)]
    outputs: Vec<CellOutput>,
}

#[derive(Deserialize)]
struct CellOutput {
    #[serde(default)]
    text: CellText,
    #[serde(default)]
    data: serde_json::Map<String, Value>,
    #[serde(default)]
    evalue: String,
}

/// Text of a cell. The format allows one string or a list of lines.
#[derive(Deserialize)]
#[serde(untagged)]
enum CellText {
    One(String),
    Many(Vec<String>),
}

impl Default for CellText {
    fn default() -> Self {
        CellText::One(String::new())
    }
}

impl CellText {
    fn to_text(&self) -> String {
        match self {
            CellText::One(text) => text.clone(),
            CellText::Many(lines) => lines.concat(),
        }
    }
}

/// Returns the cells of a notebook; `None` if `json` is not a notebook.
pub(super) fn cells(json: &str) -> Option<String> {
    let notebook: Notebook = serde_json::from_str(json).ok()?;
    let mut text = String::new();
    for (index, cell) in notebook.cells.iter().enumerate() {
        text.push_str(&format!("## cell {} ({})\n{}\n", index + 1, cell.cell_type, cell.source.to_text().trim_end()));
        for output in &cell.outputs {
            text.push_str(&format!("-> {}\n", describe(output)));
        }
        text.push('\n');
    }
    Some(text)
}

fn describe(output: &CellOutput) -> String {
    if !output.evalue.is_empty() {
        return format!("error: {}", output.evalue);
    }
    let printed = output.text.to_text();
    let text = match output.data.get("text/plain") {
        Some(Value::String(text)) => printed + text,
        Some(Value::Array(lines)) => printed + &lines.iter().filter_map(Value::as_str).collect::<String>(),
        _ => printed,
    };
    let mut shown: String = text.trim_end().chars().take(MAX_OUTPUT).collect();
    if shown.len() < text.trim_end().len() {
        shown.push_str(" [...]");
    }
    for kind in output.data.keys().filter(|kind| *kind != "text/plain") {
        shown.push_str(&format!(" [{kind}]"));
    }
    shown.trim_start().to_owned()
}
