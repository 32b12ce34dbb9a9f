//! Pictures: a Mermaid text, or a table as CSV, gives SVG or an error.

use skein::chart::{ChartData, ChartKind, ChartOptions, ChartSpec, DataTable, draw};

use super::text_of;

pub(super) fn run(data: &[u8]) {
    let text = text_of(data);
    let options = ChartOptions::default();
    check(&ChartSpec { kind: ChartKind::Mermaid, data: ChartData::Text(text.to_owned()), title: None, options });
    if let Ok(table) = DataTable::from_csv(text) {
        for kind in ChartKind::ALL.into_iter().filter(|kind| *kind != ChartKind::Mermaid) {
            let (data, options) = (ChartData::Table(table.clone()), ChartOptions::default());
            check(&ChartSpec { kind, data, title: None, options });
        }
    }
}

fn check(spec: &ChartSpec) {
    if let Ok(picture) = draw(spec) {
        assert!(picture.width.is_finite() && picture.height.is_finite());
        assert!(!picture.svg.contains("NaN") || format!("{spec:?}").contains("NaN"));
    }
}
