//! A value of a row, and its form in JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum RowCell {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
}

impl RowCell {
    /// Makes the cell of a text. PostgreSQL has no NUL in texts, so it becomes a space.
    pub(super) fn text(text: &str) -> Self {
        RowCell::Text(text.replace('\0', " "))
    }

    /// Returns the text that a PostgreSQL statement casts to the type of the column. `None` for null.
    pub(super) fn to_parameter(&self) -> Option<String> {
        match self {
            RowCell::Null => None,
            RowCell::Integer(number) => Some(number.to_string()),
            RowCell::Real(number) => Some(number.to_string()),
            RowCell::Text(text) => Some(text.clone()),
            RowCell::Blob(bytes) => Some(STANDARD.encode(bytes)),
        }
    }

    fn to_json(&self) -> Value {
        match self {
            RowCell::Null => Value::Null,
            RowCell::Integer(number) => json!(number),
            // As a text, which every parser reads exactly.
            RowCell::Real(number) => json!({"real": number.to_string()}),
            RowCell::Text(text) => json!(text),
            RowCell::Blob(bytes) => json!({"blob": STANDARD.encode(bytes)}),
        }
    }

    /// Returns `None` if the JSON is no value of a row.
    fn from_json(value: &Value) -> Option<Self> {
        Some(match value {
            Value::Null => RowCell::Null,
            Value::Number(number) => RowCell::Integer(number.as_i64()?),
            Value::String(text) => RowCell::text(text),
            Value::Object(map) if map.len() == 1 => match (map.get("real"), map.get("blob")) {
                (Some(Value::String(real)), _) => RowCell::Real(real.parse().ok()?),
                (_, Some(Value::String(blob))) => RowCell::Blob(STANDARD.decode(blob).ok()?),
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// Returns a row as a line of JSON.
pub(super) fn row_json(row: &[RowCell]) -> String {
    Value::Array(row.iter().map(RowCell::to_json).collect()).to_string()
}

/// Returns the row in a list of JSON. `None` if one of the values is none of a row.
pub(super) fn row_from_json(values: &[Value]) -> Option<Vec<RowCell>> {
    values.iter().map(RowCell::from_json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_comes_back_exactly() {
        let row = vec![
            RowCell::Null,
            RowCell::Integer(i64::MIN),
            RowCell::Real(0.1 + 0.2),
            RowCell::Real(1.0),
            RowCell::text("a\0b \u{202e} \"é\"\n"),
            RowCell::Blob(vec![0, 255, 10]),
        ];
        let json = row_json(&row);
        assert!(!json.contains('\n'), "{json}");
        let values: Vec<Value> = serde_json::from_str(&json).unwrap();
        assert_eq!(row_from_json(&values).unwrap(), row);
        assert_eq!(row_from_json(&[json!({"other": 1})]), None);
        assert_eq!(row_from_json(&[json!(0.5)]), None);
    }
}
