//! Tables from CSV and JSON.

use serde_json::json;

use super::*;

fn csv(text: &str) -> Vec<Vec<TableCell>> {
    DataTable::from_csv(text).unwrap().rows
}

#[test]
fn csv_reads_quotes_separators_and_numbers() {
    let table = DataTable::from_csv("\u{feff}name;n\r\n\"a; \"\"b\"\"\";1.5\r\n\r\nc;\n").unwrap();
    assert_eq!(table.columns, ["name", "n"]);
    assert_eq!(table.rows[0], [TableCell::Text("a; \"b\"".to_owned()), TableCell::Number(1.5)]);
    assert_eq!(table.rows[1], [TableCell::Text("c".to_owned()), TableCell::Empty]);
    assert_eq!(
        csv("a,b\n\"1,234\",5%\n$7,-2e3"),
        [[TableCell::Number(1234.0), TableCell::Number(5.0)], [TableCell::Number(7.0), TableCell::Number(-2000.0)]]
    );
    assert_eq!(csv("a\ninf\nNaN"), [[TableCell::Text("inf".to_owned())], [TableCell::Empty]]);
    assert_eq!(csv(""), Vec::<Vec<TableCell>>::new());
}

#[test]
fn csv_errors_name_the_line() {
    let error = |text: &str| DataTable::from_csv(text).unwrap_err().to_string();
    assert_eq!(error("a,b\n1,2\n\"open,3\n"), "line 3 of the CSV text: a quoted field has no closing `\"`");
    assert!(error("a,b\n1,2,3").starts_with("line 2 of the CSV text: it has 3 fields, and the first line has 2"));
}

#[test]
fn json_rows_have_several_shapes() {
    let expected = DataTable {
        columns: vec!["a".to_owned(), "b".to_owned()],
        rows: vec![
            vec![TableCell::Number(1.0), TableCell::Empty],
            vec![TableCell::Number(2.0), TableCell::Text("x".to_owned())],
        ],
    };
    for value in [
        json!([{"a": 1}, {"a": 2, "b": "x"}]),
        json!([["a", "b"], [1, null], [2, "x"]]),
        json!({"a": [1, 2], "b": [null, "x"]}),
        json!({"columns": ["a", "b"], "rows": [[1], [2, "x"]]}),
    ] {
        assert_eq!(DataTable::from_json(&value).unwrap(), expected, "{value}");
    }
    assert_eq!(DataTable::from_json(&json!([3, 4])).unwrap().columns, ["value"]);
    assert_eq!(DataTable::from_json(&json!([])).unwrap(), DataTable::default());
}

#[test]
fn json_errors_name_row_and_column() {
    let error = |value: Value| DataTable::from_json(&value).unwrap_err().to_string();
    assert!(error(json!("x")).contains("this is a text"));
    assert!(error(json!([{"a": 1}, "x"])).starts_with("row 2 is a text"));
    assert!(error(json!([{"a": 1}, {"a": [1]}])).starts_with("row 2, column `a` holds a list"));
    assert!(error(json!([{"a": 1e300}])).starts_with("row 1, column `a`: 1e300 is too large"));
}
