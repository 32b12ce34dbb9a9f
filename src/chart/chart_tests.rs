//! Every kind of picture: what holds for any data, large and hostile data, and errors.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn draw_json(kind: ChartKind, data: &Value, options: Value) -> Result<Picture, ChartError> {
    let options = serde_json::from_value(options).expect("options");
    draw(&ChartSpec { kind, data: ChartData::from_json(kind, data)?, title: Some("Title".to_owned()), options })
}

fn picture(kind: ChartKind, data: Value) -> Picture {
    draw_json(kind, &data, json!({})).expect("a picture")
}

fn error(kind: ChartKind, data: Value) -> String {
    draw_json(kind, &data, json!({})).expect_err("an error").to_string()
}

/// Checks what holds for every picture: well-formed, finite, inside its canvas, labels apart.
fn check(picture: &Picture) {
    check_xml(&picture.svg);
    for attribute in [" x=\"", " x1=\"", " x2=\"", " cx=\"", " width=\""] {
        check_numbers(&picture.svg, attribute, picture.width);
    }
    for attribute in [" y=\"", " y1=\"", " y2=\"", " cy=\"", " height=\""] {
        check_numbers(&picture.svg, attribute, picture.height);
    }
    for path in picture.svg.split(" d=\"").skip(1) {
        check_path(path.split('"').next().unwrap_or_default(), picture);
    }
    for (index, one) in picture.labels.iter().enumerate() {
        assert!(one.x >= 0.0 && one.right() <= picture.width, "{one:?}");
        assert!(one.y >= 0.0 && one.bottom() <= picture.height, "{one:?}");
        for other in &picture.labels[..index] {
            assert!(!one.overlaps(other), "{one:?} and {other:?}");
        }
    }
}

/// Checks that tags are balanced, attributes quoted, and text escaped.
fn check_xml(svg: &str) {
    let mut open = Vec::new();
    let mut rest = svg;
    while let Some(at) = rest.find('<') {
        let text = &rest[..at];
        assert!(!text.contains('>'), "{text}");
        for entity in text.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|known| entity.starts_with(known)), "{entity}");
        }
        assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text:?}");
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap_or_default());
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
}

fn check_numbers(svg: &str, attribute: &str, max: f64) {
    for text in svg.split(attribute).skip(1) {
        let number: f64 = text.split('"').next().and_then(|number| number.parse().ok()).expect("a number");
        assert!((-0.5..=max + 0.5).contains(&number), "{attribute}{number} of {max}");
    }
}

/// Checks absolute coordinates; relative ones (`h`, `v`) follow from them.
fn check_path(data: &str, picture: &Picture) {
    assert!(!data.contains("NaN") && !data.contains("inf"), "{data}");
    if data.contains('h') {
        return;
    }
    for command in data.split_inclusive(|letter: char| letter.is_ascii_alphabetic()).skip(1) {
        let numbers: Vec<f64> = command
            .trim_end_matches(|letter: char| letter.is_ascii_alphabetic())
            .split_whitespace()
            .map(|number| number.parse().expect("a number"))
            .collect();
        // An arc has radii, rotation and flags before its end.
        let points = if numbers.len() == 7 { &numbers[5..] } else { &numbers[..] };
        for point in points.chunks(2) {
            let inside =
                (-2.0..=picture.width + 2.0).contains(&point[0]) && (-2.0..=picture.height + 2.0).contains(&point[1]);
            assert!(inside, "{point:?} is outside of {} x {}: {data}", picture.width, picture.height);
        }
    }
}

const TABLE_KINDS: [ChartKind; 20] = [
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
];

#[test]
fn every_kind_draws_empty_data() {
    for kind in TABLE_KINDS {
        let drawn = picture(kind, json!([]));
        check(&drawn);
        assert!(drawn.svg.contains("No data"), "{kind:?}");
    }
}

#[test]
fn every_kind_draws_a_single_row() {
    let row = json!([{
        "source": "a", "target": "b", "value": 3, "open": 2, "high": 4, "low": 1, "close": 3, "lat": 50, "lon": 10,
    }]);
    for kind in TABLE_KINDS {
        match kind {
            ChartKind::Radar => assert!(error(kind, row.clone()).contains("at least 3 rows (axes)")),
            kind => check(&picture(kind, row.clone())),
        }
    }
}

#[test]
fn short_category_labels_are_all_visible() {
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let rows: Vec<_> = months.iter().map(|month| json!({"month": month, "n": 1})).collect();
    for kind in [ChartKind::Line, ChartKind::Bar, ChartKind::Area, ChartKind::Radar, ChartKind::Pie] {
        let drawn = picture(kind, json!(rows));
        for month in months {
            assert!(drawn.svg.contains(&format!(">{month}</text>")), "{kind:?} {month}");
        }
    }
}

#[test]
fn long_names_turn_bars_to_the_side() {
    let rows = json!([{"name": "東京都渋谷区の人口と世帯数", "n": 3}, {"name": "A long name of a category, twice", "n": -2},
        {"name": "مرحبا بالعالم", "n": 1}, {"name": "d", "n": 1}, {"name": "e", "n": 1}, {"name": "f", "n": 1}, {"name": "g", "n": 1}]);
    let drawn = picture(ChartKind::Bar, rows);
    check(&drawn);
    assert!(drawn.svg.contains(">A long name of a category, twice</text>"), "{}", drawn.svg);
    assert!(drawn.svg.contains(">東京都渋谷区の人口と世帯数</text>"));
}

#[test]
fn hundred_thousand_rows_stay_small() {
    let rows: Vec<_> = (0..100_000).map(|i| json!([i, (f64::from(i) / 700.0).sin(), i % 977])).collect();
    let rows = json!({"columns": ["i", "wave", "saw"], "rows": rows});
    let cases = [
        (ChartKind::Line, json!({})),
        (ChartKind::Area, json!({})),
        (ChartKind::Bar, json!({"x": "i", "y": ["wave"]})),
        (ChartKind::Scatter, json!({})),
        (ChartKind::Histogram, json!({"y": ["wave"]})),
        (ChartKind::Boxplot, json!({})),
        (ChartKind::Pie, json!({"x": "i", "y": ["saw"]})),
    ];
    for (kind, options) in cases {
        let drawn = draw_json(kind, &rows, options).expect("a picture");
        assert!(drawn.svg.len() < 400_000, "{kind:?} has {} bytes", drawn.svg.len());
        assert_eq!(drawn.rows, 100_000);
        check(&drawn);
    }
}

#[test]
fn a_thinned_line_keeps_its_extremes() {
    let rows: Vec<_> = (0..100_000).map(|i| json!({"x": i, "y": if i == 54_321 { 1_000 } else { 0 }})).collect();
    let drawn = picture(ChartKind::Line, json!(rows));
    let path =
        drawn.svg.split("stroke-width=\"2\"").next().and_then(|head| head.rsplit(" d=\"").next()).expect("a line");
    let highest = path.split(['L', 'M', ' ', '"']).skip(2).step_by(2).filter_map(|y| y.parse::<f64>().ok());
    let heights: Vec<f64> = highest.collect();
    let (low, high) = heights.iter().fold((f64::MAX, f64::MIN), |(low, high), y| (low.min(*y), high.max(*y)));
    assert!(high - low > 300.0, "the peak is drawn: {low} to {high}");
}

#[test]
fn errors_name_the_place_and_the_fix() {
    let cases = [
        (
            ChartKind::Line,
            json!([{"a": "x", "v": 1}, {"a": "y", "v": 2}, {"a": "z", "v": "many"}]),
            "row 3, column `v`: `many`",
        ),
        (ChartKind::Pie, json!([{"a": "x", "v": -1}]), "`x` has the value -1"),
        (ChartKind::Sankey, json!([{"source": "a", "target": "b"}, {"source": "b", "target": "a"}]), "`a` → `b` → `a`"),
        (ChartKind::Treemap, json!([{"name": "b", "parent": "root", "value": 1}]), "row 1: `b` has the parent `root`"),
        (
            ChartKind::Treemap,
            json!([{"name": "a", "parent": "b", "value": 1}, {"name": "b", "parent": "a", "value": 1}]),
            "own ancestor",
        ),
        (ChartKind::Treemap, json!({"name": "r", "children": [{"name": "x", "value": "3"}]}), "value of x"),
        (ChartKind::Map, json!([{"country": "Germny", "v": 1}]), "did you mean `Germany`?"),
        (ChartKind::Map, json!([{"lat": 91, "lon": 0}]), "91 is no latitude, which is between -90 and 90"),
        (ChartKind::Candlestick, json!([{"d": "mon", "open": 5, "high": 4, "low": 1, "close": 2}]), "row 1 (`mon`)"),
        (ChartKind::Scatter, json!([{"x": 1}]), "two columns of numbers"),
        (ChartKind::Bubble, json!([{"x": 1, "y": 2}]), "a third column of numbers (`size`)"),
        (ChartKind::Network, json!([{"a": 1}]), "the columns `source` and `target`"),
        (ChartKind::Gauge, json!([1, 2]), "2 values are too many for a gauge"),
        (ChartKind::Bar, json!([{"a": "x"}]), "a bar chart needs a column of numbers"),
        (ChartKind::Mermaid, json!("gantt\ntitle x"), "`gantt` cannot be drawn; these can: flowchart"),
        (ChartKind::Mermaid, json!("flowchart LR\nA --> B\nA ->> C"), "line 3 of the Mermaid text"),
        (ChartKind::Mermaid, json!("flowchart LR\nA[open --> B"), "`[` has no closing `]`"),
        (ChartKind::Mermaid, json!("sequenceDiagram\nloop x\nA->>B: hi"), "a block has no `end`"),
        (ChartKind::Mermaid, json!([1]), "must be the text of the diagram"),
    ];
    for (kind, data, expected) in cases {
        let message = error(kind, data);
        assert!(message.contains(expected), "{kind:?}: {message}");
    }
    let unknown = draw_json(ChartKind::Line, &json!([{"month": "x", "v": 1}]), json!({"x": "mont"})).unwrap_err();
    assert_eq!(unknown.to_string(), "there is no column `mont`; the columns are `month`, `v`; did you mean `month`?");
}

#[test]
fn hostile_texts_stay_texts() {
    let evil = "</title></svg><script>alert(1)</script>\u{202e}\u{0}\"&<!--";
    let rows = json!([{"name": evil, "v": 1}, {"name": "]]>", "v": 2}]);
    for kind in [ChartKind::Bar, ChartKind::Pie, ChartKind::Treemap, ChartKind::Funnel] {
        let options = ChartOptions::default();
        let data = ChartData::from_json(kind, &rows).unwrap();
        let drawn = draw(&ChartSpec { kind, data, title: Some(evil.to_owned()), options }).unwrap();
        check(&drawn);
        assert!(!drawn.svg.contains("<script"));
        let page = to_page(&drawn, evil);
        assert_eq!(page.matches("<script").count(), 1, "only the script of the page");
        assert!(!page.contains("src=") && !page.contains("http-equiv=\"refresh"));
    }
}

#[test]
fn mermaid_diagrams_have_their_texts() {
    let diagrams = [
        (
            "flowchart TD\nA([Start]) -->|yes| B{Choice}\nB -. no .-> C[(Store)]\nC ==> A\nsubgraph G [Group]\nB\nend\nD & E --> A",
            vec!["Start", "yes", "Choice", "no", "Store", "Group", "D", "E"],
        ),
        (
            "sequenceDiagram\nparticipant A as Alice\nA->>+B: hello\nB-->>-A: hi\nNote over A,B: greeting\nalt ok\nA-xB: end\nelse not ok\nA->>A: think\nend",
            vec!["Alice", "hello", "hi", "greeting", "alt [ok]", "[not ok]", "think"],
        ),
        ("stateDiagram-v2\n[*] --> Idle\nIdle --> Busy : work\nBusy --> [*]", vec!["Idle", "Busy", "work"]),
        ("pie title Pets\n\"Dogs\" : 3\n\"Cats\" : 2", vec!["Pets", "Dogs", "Cats"]),
    ];
    for (text, labels) in diagrams {
        let data = ChartData::Text(text.to_owned());
        let spec = ChartSpec { kind: ChartKind::Mermaid, data, title: None, options: ChartOptions::default() };
        let drawn = draw(&spec).unwrap_or_else(|error| panic!("{error}: {text}"));
        check(&drawn);
        for label in labels {
            assert!(drawn.svg.contains(&format!(">{label}</text>")), "{label} in {text}");
        }
    }
}

fn label() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Z ]{0,40}",
        "\\PC{0,20}",
        "[一-龥]{0,30}",
        Just("a".to_owned()),
        Just("<&\"'>".to_owned()),
        "20[0-9]{2}-[01][0-9]-[0-3][0-9]",
    ]
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => (-1000.0..1000.0f64).prop_map(Value::from),
        2 => (0..100i64).prop_map(Value::from),
        1 => prop_oneof![Just(json!(0)), Just(json!(1e-200)), Just(json!(1e199)), Just(json!(-1e199)), Just(json!(5e15))],
        1 => Just(Value::Null),
    ]
}

prop_compose! {
    fn rows()(rows in prop::collection::vec((label(), label(), number(), number(), number()), 0..60)) -> Value {
        rows.into_iter().map(|(a, b, x, y, z)| json!({"source": a, "target": b, "x": x, "y": y, "value": z})).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_rows_give_a_valid_picture_or_an_error(rows in rows(), stacked: bool, group: bool) {
        for kind in TABLE_KINDS {
            let options = if group { json!({"stacked": stacked, "group": "target"}) } else { json!({"stacked": stacked}) };
            match draw_json(kind, &rows, options) {
                Ok(picture) => check(&picture),
                Err(error) => prop_assert!(error.to_string().len() > 20),
            }
        }
    }

    #[test]
    fn any_positive_rows_give_a_picture(values in prop::collection::vec((label(), 0.0..1e9f64), 3..40)) {
        let rows: Value = values.iter().map(|(name, value)| json!({"name": format!("n{name}"), "value": value})).collect();
        let kinds = [ChartKind::Line, ChartKind::Area, ChartKind::Bar, ChartKind::Pie, ChartKind::Donut, ChartKind::Radar,
            ChartKind::Treemap, ChartKind::Sunburst, ChartKind::Histogram, ChartKind::Boxplot, ChartKind::Funnel];
        for kind in kinds {
            check(&draw_json(kind, &rows, json!({})).expect("a picture"));
        }
    }

    #[test]
    fn any_text_is_a_diagram_or_an_error(lines in prop::collection::vec("\\PC{0,30}", 0..12), kind in 0..4usize) {
        let head = ["flowchart TD", "sequenceDiagram", "stateDiagram-v2", "pie"][kind];
        let text = format!("{head}\n{}", lines.join("\n"));
        if let Ok(picture) = draw_json(ChartKind::Mermaid, &json!(text), json!({})) {
            check(&picture);
        }
    }

    #[test]
    fn any_flowchart_is_drawn(edges in prop::collection::vec((0..12u8, 0..12u8, "[a-z ]{0,20}"), 1..30), horizontal: bool) {
        let mut text = format!("flowchart {}\n", if horizontal { "LR" } else { "TD" });
        for (from, to, label) in edges {
            text.push_str(&format!("n{from}[Node {from}] -->|{label}| n{to}\n"));
        }
        check(&picture(ChartKind::Mermaid, json!(text)));
    }

    #[test]
    fn any_csv_is_a_table_or_an_error(text in "\\PC{0,200}") {
        if let Ok(table) = DataTable::from_csv(&text) {
            prop_assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
        }
    }
}
