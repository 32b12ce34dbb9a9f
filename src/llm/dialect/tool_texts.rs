//! Keeps the JSON text of tools, so that requests with the same tools do not write it again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::llm::OfferedTool;

/// Maximum number of lists. Sessions in one mode share a list, so this is the number of modes in use at a time. Beyond
/// it, the list whose last use is the oldest goes.
const MAX_LISTS: usize = 16;

/// The texts of the latest lists of tools. The latest use comes first.
#[derive(Default)]
pub(super) struct ToolTexts {
    lists: Mutex<VecDeque<ToolText>>,
}

struct ToolText {
    tools: Arc<[OfferedTool]>,
    text: Arc<RawValue>,
}

impl ToolTexts {
    /// Returns the JSON text of the tools, which `write` writes if it is not known. `None` if there are no tools.
    pub(super) fn text(
        &self,
        tools: &Arc<[OfferedTool]>,
        write: impl Fn(&[OfferedTool]) -> serde_json::Result<Box<RawValue>>,
    ) -> serde_json::Result<Option<Arc<RawValue>>> {
        if tools.is_empty() {
            return Ok(None);
        }
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let place = lists.iter().position(|list| Arc::ptr_eq(&list.tools, tools) || is_same(&list.tools, tools));
        let list = match place.and_then(|place| lists.remove(place)) {
            Some(list) => list,
            None => ToolText { tools: Arc::clone(tools), text: write(tools)?.into() },
        };
        let text = Arc::clone(&list.text);
        lists.push_front(list);
        lists.truncate(MAX_LISTS);
        Ok(Some(text))
    }
}

/// Returns true if both lists have the same text. Two bindings may have equal tools.
fn is_same(one: &[OfferedTool], other: &[OfferedTool]) -> bool {
    let is_same_tool = |(one, other): (&OfferedTool, &OfferedTool)| {
        one.name == other.name
            && one.description == other.description
            && (Arc::ptr_eq(&one.schema, &other.schema) || has_same_order(&one.schema, &other.schema))
    };
    one.len() == other.len() && one.iter().zip(other).all(is_same_tool)
}

/// Returns true if the fields are equal and in the same order. Objects are equal in any order, but their texts are not.
fn has_same_order(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let is_same_field = |((name, value), (other_name, other)): ((&String, &Value), (&String, &Value))| {
        name == other_name && has_same_text(value, other)
    };
    one.len() == other.len() && one.iter().zip(other).all(is_same_field)
}

fn has_same_text(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => has_same_order(one, other),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| has_same_text(one, other))
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::to_raw_value;

    use super::*;

    fn tools(name: &str, schema: Value) -> Arc<[OfferedTool]> {
        let Value::Object(schema) = schema else { panic!("a schema is an object") };
        let tool = OfferedTool { name: name.to_owned(), description: "Reads.".to_owned(), schema: Arc::new(schema) };
        Arc::from([tool])
    }

    fn write(tools: &[OfferedTool]) -> serde_json::Result<Box<RawValue>> {
        to_raw_value(&tools.iter().map(|tool| (&tool.name, &tool.schema)).collect::<Vec<_>>())
    }

    #[test]
    fn equal_tools_have_one_text() {
        let texts = ToolTexts::default();
        let first = texts.text(&tools("read", json!({"type": "object"})), write).unwrap().unwrap();
        let again = texts.text(&tools("read", json!({"type": "object"})), write).unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &again), "the text is written once");
        let other = texts.text(&tools("read", json!({"type": "object", "required": []})), write).unwrap().unwrap();
        assert_ne!(first.get(), other.get());
        assert!(texts.text(&Arc::from([]), write).unwrap().is_none());
    }

    #[test]
    fn schemas_in_another_order_have_another_text() {
        let texts = ToolTexts::default();
        let one = texts.text(&tools("read", json!({"a": {"x": 1, "y": [2]}})), write).unwrap().unwrap();
        let two = texts.text(&tools("read", json!({"a": {"y": [2], "x": 1}})), write).unwrap().unwrap();
        assert!(one.get().contains(r#"{"x":1,"y":[2]}"#), "{one}");
        assert!(two.get().contains(r#"{"y":[2],"x":1}"#), "{two}");
    }

    #[test]
    fn the_list_with_the_oldest_use_goes_first() {
        let texts = ToolTexts::default();
        let first = texts.text(&tools("first", json!({})), write).unwrap().unwrap();
        let second = texts.text(&tools("second", json!({})), write).unwrap().unwrap();
        for number in 2..MAX_LISTS {
            texts.text(&tools(&format!("tool{number}"), json!({})), write).unwrap();
        }
        // The first is used again, so that the second has the oldest use.
        assert!(Arc::ptr_eq(&first, &texts.text(&tools("first", json!({})), write).unwrap().unwrap()));
        texts.text(&tools("new", json!({})), write).unwrap();
        assert_eq!(texts.lists.lock().unwrap().len(), MAX_LISTS);
        assert!(Arc::ptr_eq(&first, &texts.text(&tools("first", json!({})), write).unwrap().unwrap()));
        assert!(!Arc::ptr_eq(&second, &texts.text(&tools("second", json!({})), write).unwrap().unwrap()));
    }
}
