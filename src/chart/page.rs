//! The interactive page of a picture: one HTML document without links to anything outside.

use serde_json::Value;

use super::Picture;
use super::canvas::{clean, escape};

const PAGE: &str = include_str!("page.html");
/// Rows of the table below the picture.
const MAX_ROWS: usize = 200;

/// Returns a page with the picture, tooltips, zoom, series that can be hidden, and the data as a table.
pub fn to_page(picture: &Picture, title: &str) -> String {
    let holes =
        [("{title}", escape(&clean(title))), ("{picture}", picture.svg.clone()), ("{table}", table(&picture.data))];
    let mut page = String::with_capacity(PAGE.len() + picture.svg.len());
    let mut rest = PAGE;
    // Fills the holes in one pass, so that inserted text is not searched for holes.
    while let Some((at, hole, text)) =
        holes.iter().filter_map(|(hole, text)| Some((rest.find(hole)?, hole, text))).min_by_key(|(at, ..)| *at)
    {
        page.push_str(&rest[..at]);
        page.push_str(text);
        rest = &rest[at + hole.len()..];
    }
    page + rest
}

fn table(data: &Value) -> String {
    let Value::Array(rows) = data else {
        let text = data.as_str().map_or_else(|| data.to_string(), str::to_owned);
        return format!("<pre>{}</pre>", escape(&text));
    };
    let Some(Value::Object(first)) = rows.first() else { return "<p>No rows</p>".to_owned() };
    let heads: String = first.keys().map(|name| format!("<th>{}</th>", escape(&clean(name)))).collect();
    let mut body = String::new();
    for row in rows.iter().take(MAX_ROWS).filter_map(Value::as_object) {
        let cell = |value: &Value| match value {
            Value::Null => "<td></td>".to_owned(),
            Value::String(text) => format!("<td>{}</td>", escape(&clean(text))),
            other => format!("<td class=\"n\">{other}</td>"),
        };
        body.push_str(&format!("<tr>{}</tr>\n", row.values().map(cell).collect::<String>()));
    }
    format!("<table><thead><tr>{heads}</tr></thead><tbody>\n{body}</tbody></table>")
}
