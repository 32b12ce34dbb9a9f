//! Generates docs/gallery.md and its pictures: one example for each kind of picture of `autovisualiser`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use expect_test::expect_file;
use serde_json::{Value, json};
use skein::chart::{self, ChartData, ChartKind, ChartSpec};

use crate::support::{files_below, read, repository};

const INTRODUCTION: &str = "# The gallery

The service `autovisualiser` draws data as pictures. Its tool `draw` takes a `kind`, and `data` or a
CSV, JSON, XLSX or ODS `file`. It answers with the validated data, a PNG, an SVG and an interactive
page. There you can zoom, hide series, and read each value and the table of the data. Its tool
`watch` waits until a file or the page in the browser changes, and shows it again. A test generates
this page.

**Columns.** `draw` chooses columns by their content. The first column of text or dates is `x`, and
columns of numbers are values. Name them in `options` if the choice is wrong: `x`, `y`, `group`,
`size`, `label`. The other options are `stacked`, `horizontal`, `bins`, `min`, `max` and `theme`.

**Mermaid.** These diagrams work: `flowchart` (or `graph`), `stateDiagram-v2` without nested states,
`sequenceDiagram` and `pie`. Subgraphs become colours with a legend, and styles are ignored. Other
diagrams get an error that lists these.

**Look.** An SVG follows the light or dark mode of its viewer, and `theme` fixes it. A PNG is light
unless `theme` is `dark`. The colours differ with each common form of colour blindness, and lines
also differ in dashes and markers.

**Large data.** Lines, bars, points and candles that share a pixel are joined, so 100,000 rows stay
readable. A note in the answer says what is joined or left out.

**Fonts.** The PNG uses the fonts of the machine. Without any font there is no PNG, and the answer
has a note. A script without a font shows boxes in the PNG; the page uses the fonts of the browser.

The outlines of the map are from [Natural Earth](https://www.naturalearthdata.com) (public domain).
";

/// Formats the arguments of an example, with three rows of its data.
fn call(example: &Value) -> String {
    if let Some(text) = example["data"].as_str() {
        return text.trim_end().to_owned();
    }
    let mut text = format!("kind: {}\n", example["kind"].as_str().unwrap());
    if let Some(options) = example.get("options") {
        _ = writeln!(text, "options: {options}");
    }
    let lines: Vec<_> = match &example["data"] {
        Value::Array(rows) => rows.iter().map(Value::to_string).collect(),
        data => serde_json::to_string_pretty(data).unwrap().lines().map(str::to_owned).collect(),
    };
    let shown = if example["data"].is_array() { 3 } else { 14 };
    text.push_str("data:\n");
    for line in lines.iter().take(shown) {
        _ = writeln!(text, "  {line}");
    }
    if lines.len() > shown {
        text.push_str("  …\n");
    }
    text.trim_end().to_owned()
}

/// `UPDATE_EXPECT=1 cargo t gallery` writes the page and its pictures again.
#[test]
fn the_gallery_shows_every_kind() {
    let examples: Vec<Value> = serde_json::from_str(&read(repository("tests/fixtures/charts/gallery.json"))).unwrap();
    let mut page = INTRODUCTION.to_owned();
    let mut kinds = Vec::new();
    let mut names = BTreeSet::new();
    for example in &examples {
        let name = example["name"].as_str().unwrap();
        let kind: ChartKind = serde_json::from_value(example["kind"].clone()).unwrap();
        let spec = ChartSpec {
            kind,
            data: ChartData::from_json(kind, &example["data"]).unwrap(),
            title: example["title"].as_str().map(str::to_owned),
            options: serde_json::from_value(example.get("options").cloned().unwrap_or(json!({}))).unwrap(),
        };
        let picture = chart::draw(&spec).unwrap_or_else(|error| panic!("{name}: {error}"));
        let file = format!("images/gallery/{name}.svg");
        expect_file![repository(&format!("docs/{file}"))].assert_eq(&picture.svg);
        let title = kind.title();
        if !kinds.contains(&kind) {
            let heading = title[..1].to_uppercase() + &title[1..];
            _ = writeln!(page, "\n## {heading}");
        }
        _ = writeln!(page, "\n![{}]({file})\n", example["title"].as_str().unwrap());
        _ = writeln!(page, "```text\n{}\n```", call(example));
        kinds.push(kind);
        names.insert(format!("{name}.svg"));
    }
    for kind in ChartKind::ALL {
        assert!(kinds.contains(&kind), "{kind:?} has no example");
    }
    for file in files_below(&repository("docs/images/gallery")) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        assert!(names.contains(&name), "{name} belongs to no example");
    }
    expect_file![repository("docs/gallery.md")].assert_eq(&page);
}
