//! JSON of programs that keep it in Protocol Buffers, as those of A2A do. There every number is a double.

use serde_json::{Number, Value};

/// The largest number up to which doubles hold every integer.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Replaces `3.0` by `3`, also inside. Schemas and tools tell integers apart.
pub fn restore_integers(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::Number(integer(&number).unwrap_or(number)),
        Value::Array(items) => items.into_iter().map(restore_integers).collect(),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, restore_integers(value))).collect())
        }
        other => other,
    }
}

/// Returns a double without a fraction as an integer. `None` for any other number.
fn integer(number: &Number) -> Option<Number> {
    let double =
        number.as_f64().filter(|double| number.is_f64() && double.fract() == 0.0 && double.abs() < MAX_EXACT)?;
    // Exact, because the number has no fraction and is small enough.
    format!("{double:.0}").parse::<i64>().ok().map(Number::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn whole_doubles_become_integers() {
        let value = json!({"a": 3.0, "b": [-2.0, 2.5, 7, 0.0], "c": {"d": 1e300}, "e": "1.0", "f": null});
        let expected = json!({"a": 3, "b": [-2, 2.5, 7, 0], "c": {"d": 1e300}, "e": "1.0", "f": null});
        assert_eq!(restore_integers(value), expected);
    }
}
