//! Limits the memory of JSON that a provider sends. Small values take many times the memory of their text.

use serde_json::Value;

use super::answer_reader::{CallSize, ProviderError};
use crate::llm::MAX_ANSWER;

/// Bytes of an event that is parsed unchecked. Its values take at most a few MiB.
const MAX_UNCHECKED: usize = 64 << 10;

/// Memory of an entry of an object: its value, name and hash.
const ENTRY: usize = size_of::<Value>() + size_of::<String>() + size_of::<u64>();
/// Entries that a list or an object has room for from its first one on.
const FIRST_ROOM: usize = 4;

/// Parses an event. Fails if its values would take more memory than an answer may.
pub(super) fn parse_event(data: &str) -> Result<Value, ProviderError> {
    if data.len() > MAX_UNCHECKED && tree_size(data) > MAX_ANSWER {
        return Err(ProviderError::CallsTooLong);
    }
    Ok(serde_json::from_str(data)?)
}

/// Parses the arguments of a complete call. Arguments that are no JSON stay text. Fails if the calls would take too much
/// memory together.
pub(super) fn parse_arguments(text: String, calls: &mut CallSize) -> Result<Value, ProviderError> {
    calls.add(tree_size(&text))?;
    Ok(serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Estimates the memory of the values in a JSON text, besides their texts.
pub(super) fn tree_size(text: &str) -> usize {
    let (mut entries, mut in_string, mut is_escaped) = (1, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b',' if !in_string => entries += 1,
            b'[' | b'{' if !in_string => entries += FIRST_ROOM,
            _ => {}
        }
    }
    entries * ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commas_and_brackets_outside_of_strings_count() {
        assert_eq!(tree_size(r#""a,[{\",[{\\""#), ENTRY);
        assert_eq!(tree_size(r#"{"a":[1,2],"b":{}}"#), (1 + 3 * FIRST_ROOM + 2) * ENTRY);
    }

    #[test]
    fn events_with_many_small_values_are_not_parsed() {
        for value in ["0", "[0]", r#"{"":0}"#] {
            let text = format!("[{}]", vec![value; 100_000].join(","));
            assert!(matches!(parse_event(&text), Err(ProviderError::CallsTooLong)), "{value}");
            assert!(parse_arguments(text, &mut CallSize::default()).is_err(), "{value}");
        }
        let long = format!("[\"{}\"]", "x,".repeat(1 << 20));
        assert!(parse_event(&long).is_ok() && parse_arguments(long, &mut CallSize::default()).is_ok());
    }
}
