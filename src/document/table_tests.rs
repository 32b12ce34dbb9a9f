//! Tables of workbooks, as pictures need them.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn workbook(sheets: Value) -> Vec<u8> {
    let sheets: Vec<SheetSpec> = serde_json::from_value(sheets).expect("sheets");
    write_document("a.xlsx", None, Some(&sheets)).expect("a workbook")
}

fn rows(bytes: &[u8], sheet: Option<&str>, range: Option<&str>) -> Result<Vec<Vec<String>>, String> {
    let request = TableRequest { sheet: sheet.map(Into::into), range: range.map(Into::into) };
    read_table(bytes, "a.xlsx", &request).map_err(|error| error.to_string())
}

#[test]
fn a_sheet_or_a_range_becomes_rows() {
    let bytes = workbook(json!([
        {"name": "Empty", "rows": []},
        {"name": "Sales", "rows": [
            ["Report"],
            [],
            [null, "Month", "Sales", "When"],
            [null, "Jan", 1234.5, {"value": "2026-01-31", "format": "yyyy-mm-dd"}],
            [null, "Feb", null, {"value": 0.25, "format": "0%"}],
        ]},
    ]));
    let expected = [["Month", "Sales", "When"], ["Jan", "1234.5", "2026-01-31"], ["Feb", "", "25%"]];
    assert_eq!(rows(&bytes, Some("sales"), Some("B3:D9")).expect("rows"), expected);
    let whole = rows(&bytes, None, None).expect("rows");
    assert_eq!(whole[0], ["Report", "", "", ""], "the first sheet with cells, without empty rows");
    assert_eq!(whole.len(), 4);
    for (sheet, range, problem) in [
        (Some("Sale"), None, "there is no sheet `Sale`; the sheets are `Empty`, `Sales`"),
        (Some("Empty"), None, "there are no cells; give another `sheet` or `range`. The sheets are `Empty`, `Sales`"),
        (None, Some("Z1:Z9"), "there are no cells"),
        (None, Some("1:A"), "`1:A` is no range"),
    ] {
        let error = rows(&bytes, sheet, range).expect_err(problem);
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn cells_that_are_far_apart_and_other_files_are_refused() {
    let bytes = workbook(json!([{"name": "A", "rows": [["a"]]}]));
    let edits: Vec<DocumentEdit> =
        serde_json::from_value(json!([{"at": "XFD2", "rows": vec![json!(["b"]); 200]}])).expect("edits");
    let (bytes, _) = update_document(&bytes, "a.xlsx", &edits).expect("updated");
    let error = rows(&bytes, None, None).expect_err("too large");
    assert_eq!(error, "the file is beyond the limits: the table has 201 rows and 16384 columns; give a `range`");
    assert_eq!(rows(&bytes, None, Some("XFD2:XFD3")).expect("rows"), [["b"], ["b"]]);
    let other = read_table(b"a,b", "a.csv", &TableRequest::default()).expect_err("no workbook").to_string();
    assert_eq!(other, "the file is no XLSX file");
    let damaged = rows(&bytes[..bytes.len() / 2], None, None).expect_err("damaged");
    assert!(damaged.contains("is damaged"), "{damaged}");
}

proptest! {
    /// The rows of a table without empty rows and columns are the rows that were written.
    #[test]
    fn rows_survive_a_round_trip(
        table in (1usize..5).prop_flat_map(|width| {
            prop::collection::vec(prop::collection::vec("[a-zäß&<]{1,8}", width), 1..8)
        })
    ) {
        let bytes = workbook(json!([{"name": "A", "rows": table}]));
        prop_assert_eq!(rows(&bytes, None, None), Ok(table));
    }
}
