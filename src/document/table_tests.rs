//! Tables of workbooks, as pictures need them.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::archive::OfficeArchive;
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
    assert_eq!(other, "the file is no XLSX or ODS file");
    let damaged = rows(&bytes[..bytes.len() / 2], None, None).expect_err("damaged");
    assert!(damaged.contains("is damaged"), "{damaged}");
}

/// An ODS file with these elements.
fn spreadsheet(content: &str) -> Vec<u8> {
    let content = format!(
        "<office:document-content xmlns:office=\"o\" xmlns:text=\"t\" xmlns:table=\"a\" xmlns:style=\"s\" \
         xmlns:calcext=\"c\">{content}</office:document-content>"
    );
    let mut archive = OfficeArchive::empty();
    archive.write("mimetype", "application/vnd.oasis.opendocument.spreadsheet");
    archive.write("content.xml", content.as_str());
    archive.finish().expect("an archive")
}

fn ods_rows(bytes: &[u8], sheet: Option<&str>, range: Option<&str>) -> Result<Vec<Vec<String>>, String> {
    let request = TableRequest { sheet: sheet.map(Into::into), range: range.map(Into::into) };
    read_table(bytes, "a.ods", &request).map_err(|error| error.to_string())
}

#[test]
fn a_sheet_of_an_ods_file_becomes_rows() {
    let cell = |attributes: &str, text: &str| {
        format!("<table:table-cell {attributes}><text:p>{text}</text:p></table:table-cell>")
    };
    let row = |cells: &[String]| format!("<table:table-row>{}</table:table-row>", cells.concat());
    let header = row(&[cell("", "Month"), cell("", "Sales"), cell("", "Share"), cell("", "When")]);
    let first = row(&[
        cell("", "Jan"),
        cell("office:value-type=\"currency\" office:value=\"1234.5\"", "1,234.50 €"),
        cell("office:value-type=\"percentage\" office:value=\"0.25\"", "25%"),
        cell("office:value-type=\"date\" office:date-value=\"2026-01-31\"", "31.01.26"),
    ]);
    let second = row(&[
        cell("", "Feb"),
        cell(
            "table:formula=\"of:=1/0\" office:value-type=\"float\" office:value=\"0\" calcext:value-type=\"error\"",
            "#DIV/0!",
        ),
        cell("", "Err:502"),
    ]);
    let bytes = spreadsheet(&format!(
        "<style:style style:name=\"ta2\"><style:table-properties table:display=\"false\"/></style:style>\
         <table:table table:name=\"Secret\" table:style-name=\"ta2\">{}</table:table>\
         <table:table table:name=\"Empty\"/><table:table table:name=\"Sales\">{header}{first}{second}</table:table>",
        row(&[cell("", "hidden")])
    ));
    let expected = [["Month", "Sales", "Share", "When"], ["Jan", "1234.5", "25%", "2026-01-31"], ["Feb", "", "", ""]];
    assert_eq!(ods_rows(&bytes, None, None).expect("rows"), expected);
    assert_eq!(ods_rows(&bytes, Some("sales"), Some("A1:B2")).expect("rows"), [["Month", "Sales"], ["Jan", "1234.5"]]);
    assert_eq!(ods_rows(&bytes, Some("Secret"), None).expect("rows"), [["hidden"]]);
    for (sheet, range, problem) in [
        (Some("Sale"), None, "there is no sheet `Sale`; the sheets are `Secret`, `Empty`, `Sales`"),
        (Some("Empty"), None, "there are no cells; give another `sheet` or `range`. The sheets are `Secret`, "),
        (None, Some("Z1:Z9"), "there are no cells"),
    ] {
        let error = ods_rows(&bytes, sheet, range).expect_err(problem);
        assert!(error.contains(problem), "{error}");
    }
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

    /// An ODS file, however damaged, gives rows or an error.
    #[test]
    fn a_damaged_ods_file_is_an_error(
        text in "[a-z<>/&;\"=: ]{0,80}",
        (rows, columns) in (0u64..1 << 40, 0u64..40),
        length in 0usize..400,
    ) {
        let bytes = spreadsheet(&format!(
            "<table:table table:name=\"A\"><table:table-row table:number-rows-repeated=\"{rows}\">\
             <table:table-cell table:number-columns-repeated=\"{columns}\"><text:p>{text}</text:p></table:table-cell>\
             </table:table-row></table:table>"
        ));
        drop(ods_rows(&bytes, None, None));
        drop(ods_rows(&bytes[..length.min(bytes.len())], None, None));
    }
}
