//! Pictures as a model and a client get them. How they look is checked in `src/chart`.

use std::time::Duration;

use base64::Engine as _;
use proptest::prelude::*;

use super::super::harness::{Harness, runtime};
use super::*;
use crate::conversation::Content;
use crate::tool::ToolOutcome;

fn harness() -> Harness {
    Harness::new(AutovisualiserService::new())
}

fn sales() -> Value {
    json!([{"month": "Jan", "sales": 3}, {"month": "Feb", "sales": 5}])
}

fn png(outcome: &ToolOutcome) -> Vec<u8> {
    let image = outcome.content.iter().find_map(|content| match content {
        Content::Image { mime, data } if mime == "image/png" => Some(data),
        _ => None,
    });
    base64::engine::general_purpose::STANDARD.decode(image.expect("an image")).unwrap()
}

#[tokio::test]
async fn a_picture_has_text_data_image_and_page() {
    let service = harness();
    let outcome = service.call("draw", json!({"kind": "bar", "data": sales(), "title": "Sales"})).await;
    assert!(!outcome.is_error, "{}", outcome.all_text());
    assert!(outcome.all_text().starts_with("drew a bar chart of 2 rows; the page is "), "{}", outcome.all_text());
    let data = outcome.structured.clone().unwrap();
    assert_eq!(data["data"], sales());
    assert_eq!(data["rows"], 2);
    let bytes = png(&outcome);
    assert_eq!(&bytes[..4], b"\x89PNG");
    for name in ["svg", "png", "html"] {
        assert!(std::path::Path::new(data["files"][name].as_str().unwrap()).starts_with(&service.session.scratch));
    }
    assert_eq!(std::fs::read(data["files"]["png"].as_str().unwrap()).unwrap(), bytes);
    let uri = data["uri"].as_str().unwrap();
    let page = service.resource(uri).await;
    assert_eq!(page["contents"][0]["mimeType"], PAGE_MIME);
    let html = page["contents"][0]["text"].as_str().unwrap();
    assert!(html.contains("default-src 'none'") && html.contains(">Sales</text>"));
    assert!(!html.contains("https://") && !html.contains("src="), "the page reaches nothing");
    let svg = service.resource(&format!("{uri}.svg")).await;
    assert_eq!(svg["contents"][0]["mimeType"], SVG_MIME);
    assert_eq!(outcome.meta.unwrap()["ui"]["resourceUri"], uri);
    let listed = service.resource(VIEW).await;
    assert_eq!(listed["contents"][0]["text"], VIEW_PAGE);
}

#[tokio::test]
async fn pictures_belong_to_their_session() {
    let service = harness();
    let data = service.data("draw", json!({"kind": "line", "data": sales()})).await;
    let uri = data["uri"].as_str().unwrap();
    let refused = service.other_session("second").read(uri).await.unwrap_err();
    assert!(refused.contains("in this session; call `draw` again"), "{refused}");
}

#[tokio::test]
async fn files_of_the_workspace_are_read() {
    let service = harness();
    let cwd = &service.session.cwd;
    std::fs::write(cwd.join("a.csv"), "month;sales\nJan;3\nFeb;5\n").unwrap();
    std::fs::write(cwd.join("a.json"), sales().to_string()).unwrap();
    std::fs::write(cwd.join("a.jsonl"), "{\"month\":\"Jan\",\"sales\":3}\n\n{\"month\":\"Feb\",\"sales\":5}\n")
        .unwrap();
    for file in ["a.csv", "a.json", "a.jsonl"] {
        let data = service.data("draw", json!({"kind": "pie", "file": file})).await;
        assert_eq!(data["data"], sales(), "{file}");
    }
    // A spreadsheet of Windows.
    std::fs::write(cwd.join("w.csv"), b"stadt,n\nM\xfcnchen,2\n").unwrap();
    assert_eq!(service.data("draw", json!({"kind": "bar", "file": "w.csv"})).await["data"][0]["stadt"], "München");
    std::fs::write(cwd.join("d.mmd"), "flowchart LR\nA --> B").unwrap();
    service.data("draw", json!({"kind": "mermaid", "file": "d.mmd"})).await;
}

#[tokio::test]
async fn refusals_name_the_next_step() {
    let service = harness();
    let cwd = &service.session.cwd;
    std::fs::write(cwd.join("a.csv"), "a,b\n1,2,3\n").unwrap();
    std::fs::write(cwd.join("bad.json"), "{").unwrap();
    std::fs::write(cwd.join("a.xlsx"), "PK").unwrap();
    std::fs::write(cwd.join("a.doc"), "text").unwrap();
    std::fs::write(cwd.join("b.csv"), b"a\0b").unwrap();
    std::fs::create_dir(cwd.join("folder.csv")).unwrap();
    let cases = [
        (json!({"kind": "bar"}), "give `data`"),
        (json!({"kind": "bar", "data": [], "file": "a.csv"}), "give either `data` or `file`"),
        (json!({"kind": "bar", "file": "a.csv"}), "`a.csv`: line 2 of the CSV text: it has 3 fields"),
        (json!({"kind": "bar", "file": "bad.json"}), "`bad.json` is no valid JSON"),
        // The parser of workbooks is another program, which a unit test has not.
        (json!({"kind": "bar", "file": "a.xlsx"}), "`a.xlsx`: the parser does not start"),
        (json!({"kind": "bar", "file": "none.xlsx"}), "could not read `none.xlsx`"),
        (json!({"kind": "bar", "file": "../../../etc/a.xlsx"}), "outside of what this session may reach"),
        (json!({"kind": "bar", "file": "a.csv", "sheet": "A"}), "`sheet` and `range` are for XLSX and ODS files"),
        (json!({"kind": "bar", "file": "a.doc"}), "is no CSV, JSON, XLSX or ODS file; save its data as CSV"),
        (json!({"kind": "bar", "file": "b.csv"}), "`b.csv` is binary"),
        (json!({"kind": "bar", "file": "folder.csv"}), "folder"),
        (json!({"kind": "bar", "file": "none.csv"}), "could not read `none.csv`"),
        (json!({"kind": "bar", "file": "../../../etc/passwd"}), "outside of what this session may reach"),
        (json!({"kind": "bar", "data": "text"}), "must be a list of rows"),
        (json!({"kind": "pie", "data": [{"party": "A", "seats": -3}]}), "`A` has the value -3"),
    ];
    for (arguments, expected) in cases {
        let refusal = service.refusal("draw", arguments.clone()).await;
        assert!(refusal.contains(expected), "{arguments}: {refusal}");
    }
    let written = std::fs::read_dir(service.session.scratch.join("charts"));
    assert!(written.is_err(), "a failed call writes nothing");
}

#[tokio::test]
async fn without_fonts_there_is_a_note_instead_of_a_png() {
    let rasterizer = Arc::new(Rasterizer::without_fonts());
    let service = Harness::new(AutovisualiserService { rasterizer, ..AutovisualiserService::new() });
    let outcome = service.call("draw", json!({"kind": "line", "data": sales()})).await;
    assert!(!outcome.is_error && outcome.all_text().contains("there is no PNG: this machine has no fonts"));
    assert!(outcome.structured.unwrap()["files"].get("png").is_none());
}

#[tokio::test]
async fn watching_draws_a_changed_file_again() {
    let service = harness();
    let file = service.session.cwd.join("a.csv");
    std::fs::write(&file, "month,sales\nJan,3\n").unwrap();
    let before = service.refusal("watch", json!({"paths": ["a.csv"], "seconds": 1})).await;
    assert!(before.contains("call `draw` with `file` first"), "{before}");
    service.data("draw", json!({"kind": "bar", "file": "a.csv"})).await;
    let same = service.data("watch", json!({"paths": ["a.csv"], "seconds": 1})).await;
    assert_eq!(same["changed"], false);
    let watch = service.call("watch", json!({"paths": ["a.csv"], "seconds": 30}));
    let change = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        std::fs::write(&file, "month,sales\nJan,3\nFeb,5\n").unwrap();
    };
    let (outcome, ()) = tokio::join!(watch, change);
    assert!(outcome.all_text().starts_with("`a.csv` changed"), "{}", outcome.all_text());
    assert_eq!(outcome.structured.clone().unwrap()["rows"], 2);
    assert_eq!(&png(&outcome)[..4], b"\x89PNG");
}

#[tokio::test]
async fn watching_returns_a_changed_image() {
    let service = harness();
    let file = service.session.cwd.join("shot.png");
    let watch = service.call("watch", json!({"paths": ["shot.png"], "seconds": 30}));
    let change = async { std::fs::write(&file, b"\x89PNG new").unwrap() };
    let (outcome, ()) = tokio::join!(watch, change);
    assert_eq!(png(&outcome), b"\x89PNG new");
    let page = service.refusal("watch", json!({"url": "http://localhost:3000"})).await;
    assert_eq!(page, "no page is open; open one with `browse`");
    let none = service.refusal("watch", json!({})).await;
    assert_eq!(none, "give 1 to 20 files in `paths`, or the `url` of a page");
}

#[tokio::test]
async fn hostile_requests_to_watch_are_refused_at_once() {
    let service = harness();
    std::fs::create_dir(service.session.cwd.join("folder.png")).unwrap();
    let many: Vec<String> = (0..21).map(|number| format!("{number}.png")).collect();
    for (arguments, problem) in [
        (json!({"paths": ["../../../etc/passwd.png"]}), "outside of what this session may reach"),
        (json!({"paths": ["a\u{0}b.png"]}), ""),
        (json!({"paths": [""]}), ""),
        (json!({"paths": many}), "give 1 to 20 files"),
        (json!({"paths": ["a.png"], "seconds": 0}), "`seconds` is between 1 and 280"),
        (json!({"paths": ["a.png"], "seconds": u64::MAX}), "`seconds` is between 1 and 280"),
        (json!({"url": "javascript:alert(1)"}), "no page is open"),
        (json!({"url": "http://127.0.0.1/", "paths": ["/etc/passwd"]}), "outside of what this session may reach"),
    ] {
        let begun = std::time::Instant::now();
        let refusal = service.refusal("watch", arguments.clone()).await;
        assert!(refusal.contains(problem) && refusal.len() > 10, "{arguments}: {refusal}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{arguments}");
    }
    // A folder that never changes is no picture.
    let folder = service.data("watch", json!({"paths": ["folder.png"], "seconds": 1})).await;
    assert_eq!(folder["changed"], false);
}

#[tokio::test]
async fn tools_describe_every_parameter_with_constraints() {
    let tools = harness().tools().await;
    assert_eq!(tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["draw", "watch"]);
    for tool in &tools {
        assert_eq!(tool.hints.read_only, Some(true));
        assert_eq!(tool.meta.as_ref().unwrap()["ui"]["resourceUri"], VIEW);
    }
    let kinds = tools[0].input_schema["properties"]["kind"]["enum"].as_array().unwrap();
    assert_eq!(kinds.len(), ChartKind::ALL.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Also hostile text becomes a picture or an error, and never more than one script.
    #[test]
    fn any_text_gives_a_picture_or_an_error(text in "\\PC{0,120}", title in "\\PC{0,60}", kind in 0..21usize) {
        let kind = ChartKind::ALL[kind];
        runtime().block_on(async {
            let service = harness();
            std::fs::write(service.session.cwd.join("a.csv"), &text).unwrap();
            let outcome = service.call("draw", json!({"kind": kind, "file": "a.csv", "title": title})).await;
            if let Some(data) = outcome.structured {
                let page = service.resource(data["uri"].as_str().unwrap()).await;
                assert_eq!(page["contents"][0]["text"].as_str().unwrap().matches("<script").count(), 1);
            } else {
                assert!(outcome.is_error && outcome.all_text().len() > 20, "{}", outcome.all_text());
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() })]

    /// `watch` returns the file that changed, byte for byte, and no other.
    #[test]
    fn watching_returns_exactly_the_file_that_changed(
        names in prop::collection::btree_set("[a-z]{1,8}", 2..5),
        at in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 1..200),
    ) {
        runtime().block_on(async {
            let service = harness();
            let names: Vec<String> = names.iter().map(|name| format!("{name}.png")).collect();
            for name in &names {
                std::fs::write(service.session.cwd.join(name), "before").unwrap();
            }
            let (changed, content) = (at.get(&names).clone(), [b"\x89PNG".as_slice(), &bytes].concat());
            let watch = service.call("watch", json!({"paths": names, "seconds": 30}));
            let change = async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                std::fs::write(service.session.cwd.join(&changed), &content).unwrap();
            };
            let (outcome, ()) = tokio::join!(watch, change);
            assert!(outcome.all_text().starts_with(&format!("`{changed}` changed")), "{}", outcome.all_text());
            assert_eq!(png(&outcome), content);
        });
    }
}
