//! Pictures: a Mermaid text, or a table as CSV, gives SVG or an error.

#![no_main]

use skein::chart::{ChartData, ChartKind, ChartOptions, ChartSpec, DataTable, draw};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let options = ChartOptions::default();
    let spec = ChartSpec { kind: ChartKind::Mermaid, data: ChartData::Text(text.to_owned()), title: None, options };
    check(&spec);
    if let Ok(table) = DataTable::from_csv(text) {
        for kind in ChartKind::ALL.into_iter().filter(|kind| *kind != ChartKind::Mermaid) {
            let (data, options) = (ChartData::Table(table.clone()), ChartOptions::default());
            check(&ChartSpec { kind, data, title: None, options });
        }
    }
});

fn check(spec: &ChartSpec) {
    if let Ok(picture) = draw(spec) {
        assert!(picture.width.is_finite() && picture.height.is_finite());
        assert!(!picture.svg.contains("NaN") || format!("{spec:?}").contains("NaN"));
    }
}
